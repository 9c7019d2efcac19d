"""One step of a workload, executed without data: its measurement, its events and where its memory peaks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sp_profiler.errors import UsageError
from sp_profiler.planning.events import Compute, Event, Launch, Segment, Wait
from sp_profiler.record.annotate import Range, parse_range
from sp_profiler.record.live_bytes import LiveBytes
from sp_profiler.record.places import Place
from workloads.config import WorkloadConfig
from workloads.measure import SavedMeasurement, fake_rank, measure_saved

_ENTER = "profiler::_record_function_enter_new"
_EXIT = "profiler::_record_function_exit"
_MATRIX_PRODUCTS = frozenset(("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm"))
_GATHERS = frozenset(("aten::embedding", "aten::nll_loss_forward"))
"""Read as much as they write, of a table that may be large."""
_UNTOUCHED = ("aten::empty", "aten::new_empty", "aten::empty_like", "aten::empty_strided")
"""Allocate and touch nothing."""
_LOCATING = ("fwd", "dgrad", "wgrad", "attention", "recompute")
"""Ranges that say in which block the program is."""

_current_graph_task: Any = getattr(torch._C, "_current_graph_task_id")  # noqa: B009 - its stub lacks it


@dataclass(frozen=True)
class ExecutedStep:
    """What one rank did in a step of `config` and what it held."""

    config: WorkloadConfig
    measurement: SavedMeasurement
    events: tuple[Event, ...]
    segments: tuple[Segment, ...]


def execute(config: WorkloadConfig) -> ExecutedStep:
    """Run a step of the workload's own code under FakeTensorMode, as rank 0 of a fake process group.

    No data, so any size and any number of ranks on one CPU. Raises UsageError in a process that belongs to
    a process group already.
    """
    if torch.distributed.is_initialized():
        raise UsageError("this process is in a process group: plan before it is made, or in another process")
    recorders: list[StepRecorder] = []

    def follow(place: Callable[[], Place]) -> StepRecorder:
        recorders.append(StepRecorder(place))
        return recorders[-1]

    config = config.canonical()
    with fake_rank(config.ranks, "dp" if config.mode == "ddp" else "tp") as communicator:
        measurement = measure_saved(config, communicator, torch.device("cpu"), follow=follow)
    (recorder,) = recorders
    return ExecutedStep(config, measurement, tuple(recorder.events), tuple(recorder.segments()))


@dataclass
class _OpenSegment:
    phase: str
    key: int | str
    peak_bytes: int


@dataclass
class _Here:
    """The ranges around the operator at work, outermost first; those that are not ours are None."""

    ranges: list[Range | None] = field(default_factory=list)

    def role(self) -> str:
        whats = [one.what for one in self.ranges if one is not None]
        if "recompute" in whats:
            return "recompute"
        return whats[-1] if whats else "other"

    def communicates(self) -> bool:
        return any(one is not None and one.what in ("comm", "wait") for one in self.ranges)


class StepRecorder(LiveBytes):
    """Follows storages, and writes down every operator, collective and wait by the ranges around them."""

    def __init__(self, place: Callable[[], Place]) -> None:
        super().__init__(place)
        self.events: list[Event] = []
        self._here = _Here()
        self._segments: list[_OpenSegment] = []

    def segments(self) -> list[Segment]:
        return [Segment(one.phase, one.key, one.peak_bytes) for one in self._segments]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if name == _ENTER:
            self._enter(parse_range(args[0]))
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if name == _EXIT:
            self._here.ranges.pop()
        elif name.startswith("aten::") and not self._here.communicates():
            self._compute(name, func, (*args, *(kwargs or {}).values()), result)
        self._note_peak()
        return result

    def _enter(self, entered: Range | None) -> None:
        self._here.ranges.append(entered)
        if entered is None:
            return
        if entered.what == "comm":
            self.events.append(_launch(entered))
        elif entered.what == "wait":
            assert entered.seq is not None
            self.events.append(Wait(entered.seq))
        elif entered.what == "optimizer":
            self._begin("optimizer", "optimizer")
        elif entered.what in _LOCATING:
            phase = "forward" if _current_graph_task() == -1 else "backward"
            self._begin(phase, entered.module or "" if entered.layer is None else entered.layer)

    def _begin(self, phase: str, key: int | str) -> None:
        last = self._segments[-1] if self._segments else None
        if last is None or (last.phase, last.key) != (phase, key):
            self._segments.append(_OpenSegment(phase, key, self.current_bytes))

    def _note_peak(self) -> None:
        in_backward = _current_graph_task() != -1
        if not self._segments:
            self._begin("forward", "start")
        elif in_backward and self._segments[-1].phase != "backward":
            self._begin("backward", "loss")
        elif not in_backward and self._segments[-1].phase == "backward":
            self._begin("between", "backwards")
        last = self._segments[-1]
        last.peak_bytes = max(last.peak_bytes, self.current_bytes)

    def _compute(self, name: str, func: Any, given: tuple[Any, ...], result: Any) -> None:
        role = self._here.role()
        inputs, outputs = list(_tensors(given)), list(_tensors((result,)))
        if name in _MATRIX_PRODUCTS:
            self.events.append(Compute("gemm", _product_flops(name, inputs), 0, role))
        elif "scaled_dot_product" in name:
            self.events.append(Compute("attention", _attention_flops(name, func, given), 0, role))
        elif moved := _moved_bytes(name, func, given, inputs, outputs):
            last = self.events[-1] if self.events else None
            if isinstance(last, Compute) and last.kind == "memory" and last.role == role:
                self.events.pop()
                moved += last.bytes
            self.events.append(Compute("memory", 0, moved, role))


def _launch(comm: Range) -> Launch:
    assert comm.seq is not None
    assert comm.bytes is not None
    return Launch(
        comm.fields["op"], comm.bytes, bool(comm.is_async), comm.seq, comm.fields.get("purpose", "unknown")
    )


def _product_flops(name: str, inputs: list[Tensor]) -> int:
    """2mnk for every matrix of the batch."""
    left, right = inputs[-2:]
    return 2 * left.numel() * right.shape[-1]


def _attention_flops(name: str, func: Any, given: tuple[Any, ...]) -> int:
    """Of QK^T and PV, of a causal mask half; in backward five products instead of two."""
    arguments = dict(zip((argument.name for argument in func._schema.arguments), given, strict=False))
    query, key = arguments["query"], arguments["key"]
    batch, heads, length, size = query.shape
    whole = 4 * batch * heads * length * key.shape[-2] * size
    flops = whole // 2 if arguments.get("is_causal") else whole
    return flops * 5 // 2 if name.endswith("_backward") else flops


def _moved_bytes(
    name: str, func: Any, given: tuple[Any, ...], inputs: list[Tensor], outputs: list[Tensor]
) -> int:
    """Bytes that an operator of no reuse reads and writes; 0 for views and for what only allocates."""
    if name.startswith(_UNTOUCHED):
        return 0
    written = [
        tensor
        for argument, value in zip(func._schema.arguments, given, strict=False)
        if argument.is_write
        for tensor in _tensors((value,))
    ]
    if not written:
        known = {tensor.untyped_storage()._cdata for tensor in inputs}
        if outputs and all(tensor.untyped_storage()._cdata in known for tensor in outputs):
            return 0  # a view
        written = outputs
    if name in _GATHERS:
        return 2 * sum(map(_bytes, written))
    return sum(map(_bytes, inputs)) + sum(map(_bytes, written))


def _bytes(tensor: Tensor) -> int:
    """What an operator touches of it: an expanded tensor is read once."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors(value)
