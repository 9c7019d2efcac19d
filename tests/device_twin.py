"""Makes a device-like trace of a CPU trace: the operators keep their times, their work moves to a device.

Each operator that multiplies matrices becomes a launch inside it and a delayed kernel on stream 7, each
collective a launch and a kernel with NCCL's metadata on stream 20; gloo's own ranges go. Kernels follow the
rules of streams: one after the other on each, a collective after what was launched before it, and what is
launched after a synchronous collective or after a wait follows the collective.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sp_profiler.classify.gemm import is_gemm_op
from sp_profiler.record.annotate import Range, parse_range

GEMM_STREAM, COMM_STREAM = 7, 20
DELAY_US, COMM_US = 40.0, 600.0
_NAMES = {
    "all_reduce": "allreduce",
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
}
_KERNELS = {
    "all_reduce": "AllReduce_Sum_f32",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter_Sum_f32",
}


def device_twin(source: Path, target: Path, *, tells_async: bool = True) -> Path:
    """Write the device-like twin of `source`. Every collective needs its `sp::comm` range: the truth.

    `tells_async=False` leaves out what torch before 2.13 did not write.
    """
    trace = json.loads(source.read_text())
    events = [event for event in trace["traceEvents"] if not str(event.get("name", "")).startswith("gloo:")]
    device = _device_events(events)
    for event in device if not tells_async else ():
        event["args"].pop("Is asynchronized op", None)
    trace["traceEvents"] = events + device
    trace["deviceProperties"] = [{"id": 0, "name": "Test device", "numSms": 132}]
    target.write_text(json.dumps(trace))
    return target


def _device_events(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    calls = sorted(
        (
            event
            for event in events
            if event.get("ph") == "X" and event.get("cat") in ("cpu_op", "user_annotation")
        ),
        key=lambda event: (float(event["ts"]), -float(event["dur"])),
    )
    device = _Device()
    for event in calls:
        device.see(event)
    return device.events


class _Device:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._free = {GEMM_STREAM: 0.0, COMM_STREAM: 0.0}
        self._ends: dict[tuple[str, int], float] = {}
        self._comm: tuple[Range, float] | None = None
        self._inside_until = 0.0

    def see(self, event: dict[str, Any]) -> None:
        start, end = float(event["ts"]), float(event["ts"]) + float(event["dur"])
        name = event["name"]
        found = parse_range(name)
        if found is not None and found.what == "comm":
            self._comm = (found, end)
        elif found is not None and found.what == "wait":
            self._free[GEMM_STREAM] = max(self._free[GEMM_STREAM], self._ends[_key(found)])
        elif event["cat"] == "cpu_op" and is_gemm_op(name) and start >= self._inside_until:
            self._inside_until = end
            self._launch(event, "sm90_xmma_gemm_f32f32", GEMM_STREAM, end - start, {})
        elif name.startswith("c10d::"):
            assert self._comm is not None, f"{name} has no sp::comm range"
            assert start < self._comm[1], f"{name} lies outside its sp::comm range"
            self._collective(event, self._comm[0])

    def _collective(self, event: dict[str, Any], found: Range) -> None:
        self._free[COMM_STREAM] = max(self._free.values())
        op, kernel = found.fields["op"], f"ncclDevKernel_{_KERNELS[found.fields['op']]}_RING_LL(...)"
        end = self._launch(event, kernel, COMM_STREAM, COMM_US, _metadata(op, found))
        self._ends[_key(found)] = end
        if not found.is_async:
            self._free[GEMM_STREAM] = max(self._free[GEMM_STREAM], end)

    def _launch(
        self, event: dict[str, Any], kernel: str, stream: int, dur: float, args: dict[str, Any]
    ) -> float:
        number = len(self.events) + 1
        call = float(event["ts"]) + float(event["dur"]) / 2
        start = max(self._free[stream], call + DELAY_US)
        place = {"pid": event["pid"], "tid": event["tid"]}
        self.events += [
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": round(call, 3), "dur": 0.001}
            | place
            | {"args": {"correlation": number}},
            {
                "ph": "X",
                "cat": "kernel",
                "name": kernel,
                "ts": round(start, 3),
                "dur": round(dur, 3),
                "pid": 0,
            }
            | {"tid": stream, "args": {"correlation": number, "device": 0, "stream": stream, **args}},
        ]
        self._free[stream] = start + dur
        return start + dur


def _key(found: Range) -> tuple[str, int]:
    assert found.seq is not None
    return found.fields["group"], found.seq


def _metadata(op: str, found: Range) -> dict[str, Any]:
    """As NCCL's logging writes it; the group has no name of its own, so that it gives nothing away."""
    elements = (found.bytes or 0) // 4
    size = 2
    return {
        "Collective name": _NAMES[op],
        "In msg nelems": elements // size if op == "all_gather" else elements,
        "Out msg nelems": elements // size if op == "reduce_scatter" else elements,
        "Group size": size,
        "dtype": "Float",
        "Process Group Name": "1",
        "Process Group Description": "undefined",
        "Process Group Ranks": "[0, 1]",
        "Seq": found.seq,
        "Is asynchronized op": found.is_async,
    }
