"""What a file says about itself: rank, world, host, devices, groups."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from sp_profiler.ledger import Ledger
from sp_profiler.trace.schema import MAX_TIME_NS
from sp_profiler.trace.tables import Metadata
from sp_profiler.trace.values import to_int

_SMALL_BYTES = 1 << 16
_MAX_RANK = 10_000_000

# `local_rank3` is no rank: it repeats on every host. `worker3_` names a rank, `worker3.` only a worker
# (torch's tensorboard handler puts any word there), which `load` takes as a hint among several files.
_RANK_IN_NAME = re.compile(
    r"(?<![a-z])(?<!local[_.-])(?:global[_.-]?)?(?:rank[_. -]?|worker[_-]?(?=\d+_))(\d{1,7})(?!\d)", re.I
)
_WORKER_IN_NAME = re.compile(r"(?<![a-z])worker[_. -]?(\d{1,7})(?!\d)", re.I)
# torch.profiler.tensorboard_trace_handler without a worker name: host_pid.time.pt.trace.json
_HOST_IN_NAME = re.compile(r"(?P<host>.+)_\d+\.\d{10,}\.pt\.trace\.json", re.I)


def rank_from_name(path: str) -> int | None:
    """The rank that a file's name tells: `rank-34.x`, `rank0.json`, `worker3_x`."""
    match = _RANK_IN_NAME.search(os.path.basename(path))
    return int(match[1]) if match else None


def worker_from_name(path: str) -> int | None:
    """The number of the worker in a file's name, `worker3.1623212756351.pt.trace.json`."""
    match = _WORKER_IN_NAME.search(os.path.basename(path))
    return int(match[1]) if match else None


def host_from_name(path: str) -> str | None:
    """The host in a name as torch's tensorboard handler makes it, `host_pid.time.pt.trace.json.gz`."""
    match = _HOST_IN_NAME.match(os.path.basename(path))
    named = rank_from_name(path) is not None or worker_from_name(path) is not None
    return match["host"] if match and not named else None


def read_metadata(members: dict[str, Any], path: str, ledger: Ledger) -> Metadata:
    """Metadata from the top-level values of a file (all but `traceEvents`); never raises."""
    info = members.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    rank, source = _rank(info, path)
    if rank is None:
        ledger.add(
            "rank-unknown", "assumption", "neither the file nor its name tells the rank; it is unknown"
        )
    devices = members.get("deviceProperties")
    devices = devices if isinstance(devices, list) else []
    groups = info.get("pg_config")
    hosts = (members.get("host_name"), members.get("hostname"), info.get("host_name"), info.get("hostname"))
    known = {"traceEvents", "deviceProperties", "distributedInfo", "baseTimeNanoseconds"}
    return Metadata(
        rank=rank,
        rank_source=source,
        world_size=_at_least(info.get("world_size"), 1),
        backend=info["backend"] if isinstance(info.get("backend"), str) else None,
        host=next((host for host in hosts if isinstance(host, str) and host), host_from_name(path)),
        schema_version=to_int(members.get("schemaVersion")),
        base_time_ns=_base_time(members.get("baseTimeNanoseconds"), ledger),
        has_device_properties=bool(devices),
        devices=tuple(device for device in devices if isinstance(device, dict)),
        groups=tuple(g for g in groups if isinstance(g, dict)) if isinstance(groups, list) else (),
        top_level={key: value for key, value in members.items() if key not in known and _is_small(value)},
    )


def world_sizes(run_json: dict[str, Any] | None, of_traces: Iterable[Metadata]) -> set[int]:
    """All numbers of ranks that run.json and the traces of a run state; more than one where they disagree."""
    stated = _at_least((run_json or {}).get("world_size"), 1)
    told = {one.world_size for one in of_traces}
    return {size for size in (stated, *told) if size is not None}


def world_size_of(run_json: dict[str, Any] | None, of_traces: Iterable[Metadata]) -> int | None:
    """The number of ranks of a run: the largest that is stated."""
    return max(world_sizes(run_json, of_traces), default=None)


def _rank(info: dict[str, Any], path: str) -> tuple[int | None, str]:
    rank = _at_least(info.get("rank"), 0)
    if rank is not None:
        return rank, "distributedInfo"
    rank = rank_from_name(path)
    return rank, "unknown" if rank is None else "file-name"


def _at_least(value: Any, least: int) -> int | None:
    number = None if isinstance(value, bool) else to_int(value)
    return number if number is not None and least <= number <= _MAX_RANK else None


def _base_time(value: Any, ledger: Ledger) -> int:
    if value is None:
        return 0
    base = None if isinstance(value, bool) else to_int(value)
    if base is None or not -MAX_TIME_NS < base < MAX_TIME_NS:
        ledger.add(
            "bad-base-time",
            "assumption",
            "baseTimeNanoseconds is not a time; 0 was assumed, so this file shares no time axis with others",
        )
        return 0
    return base


def _is_small(value: Any) -> bool:
    return len(msgspec.json.encode(value)) <= _SMALL_BYTES
