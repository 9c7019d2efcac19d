"""Memory that exists for communication: born inside a collective, or the buffer that it writes into.

The second kind is allocated by the caller just before the launch (`torch.empty`, then
`all_gather_into_tensor(output, input)`): the latest allocation of its size on the launching thread, made by
an operator that only allocates, called from no other `aten::` operator, and alive at the launch.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from sp_profiler.analysis.memory.cpu import CpuSide
from sp_profiler.classify.annotations import COMM
from sp_profiler.classify.collectives import unified_op
from sp_profiler.classify.dtypes import dtype_bytes, dtype_name
from sp_profiler.classify.groups import parse_group_key
from sp_profiler.trace.tables import NONE, Bool, Int64

_COMMUNICATES = re.compile(
    r"^(?:c10d::|_c10d_functional|record_param_comms$|sp::comm|(?:nccl|gloo|mpi|ucc|xccl|hccl):|symm_mem::"
    r"|FSDP::(?:all_gather|reduce_scatter|post_backward_reduce|all_reduce))"
)
_WRITES_INTO = ("all_gather", "reduce_scatter", "all_to_all")
_LOOK_BACK = 16
"""How many allocations of the thread before a launch are looked at."""
_CUDA_ROUNDS_TO = 512
_CUDA_KEEPS_REST_BELOW = 1 << 20
"""torch's CUDA allocator rounds sizes up, and does not split off a rest of a large block below 1 MiB."""


def is_communication(name: str) -> bool:
    """Whether what is allocated inside an operator or range of this name serves communication."""
    return bool(_COMMUNICATES.match(name))


@dataclass(frozen=True)
class Launches:
    """Collectives that write into a buffer of the caller: where they begin, and the buffer's bytes."""

    position: Int64  # outermost operator or range of the collective, in the nest; sorted by (thread, start)
    bytes: Int64


def is_ddp_forward(name: str) -> bool:
    """The range in which DistributedDataParallel's reducer allocates its buckets, outside of any operator."""
    return name == "DistributedDataParallel.forward"


def inside_communication(cpu: CpuSide) -> Int64:
    """For each position the nearest communication around it (or itself), NONE outside; one more for NONE."""
    names = cpu.trace.events.name[cpu.nest.row]
    return cpu.nest.nearest(cpu.trace.strings.match(names, is_communication))


def find_launches(cpu: CpuSide, inside: Int64) -> Launches:
    """Every collective whose output's size is told: by our range, its metadata, or its inputs' shapes."""
    own = inside[:-1] == np.arange(len(cpu.nest.row))
    outermost = own & (inside[cpu.nest.parent] == NONE)
    top = cpu.nest.nearest(outermost)
    told: dict[int, int] = {}
    for at in np.flatnonzero(own).tolist():  # from the outside in: our range before the operator in it
        size = _output_bytes(cpu, at) if int(top[at]) not in told else None
        if size is not None:
            told[int(top[at])] = size
    order = sorted(told)
    return Launches(np.array(order, np.int64), np.array([told[at] for at in order], np.int64))


def _output_bytes(cpu: CpuSide, position: int) -> int | None:
    trace, row = cpu.trace, int(cpu.nest.row[position])
    strings, events = trace.strings, trace.events
    if cpu.annotations.what[position] == COMM:
        found = cpu.annotations.range_at(position)
        op, size = found.fields.get("op"), found.bytes
        if op not in _WRITES_INTO or size is None:
            return None
        if op != "reduce_scatter":
            return size
        key = parse_group_key(found.fields.get("group", ""))
        return size // len(key[1]) if key and key[1] else None
    if events.collective[row] != NONE:
        args = trace.collectives[events.collective[row]]
        each = dtype_bytes(dtype_name(args.dtype))
        if unified_op(args.name) not in _WRITES_INTO or args.out_elements is None or each is None:
            return None
        return args.out_elements * each
    name = strings[int(events.name[row])] or ""
    if not name.startswith("c10d::") or unified_op(name) not in _WRITES_INTO:
        return None
    return _first_tensor(strings[int(events.dims[row])], strings[int(events.types[row])])


@lru_cache(maxsize=65536)
def _first_tensor(dims: str | None, types: str | None) -> int | None:
    """Bytes of an operator's first input: c10d's operators take the output first."""
    try:
        shape, spelled = json.loads(dims or "[]")[0], json.loads(types or "[]")[0]
    except (ValueError, LookupError, TypeError):
        return None
    each = dtype_bytes(dtype_name(spelled)) if isinstance(spelled, str) else None
    if each is None or not isinstance(shape, list) or not shape:
        return None
    return prod(shape) * each if all(isinstance(length, int) for length in shape) else None


@dataclass(frozen=True)
class Allocations:
    """The allocations of one device, one value each."""

    thread: Int64  # of the nest
    time_ns: Int64
    bytes: Int64
    death_ns: Int64  # the largest int64 for what is never freed
    bare: Bool  # made by an operator that only allocates, called from no other aten operator or collective


def match_buffers(cpu: CpuSide, launches: Launches, made: Allocations) -> Int64:
    """For each allocation the launch (place in `launches`) that writes into it, NONE for none."""
    found = np.full(len(made.bytes), NONE, dtype=np.int64)
    if len(launches.position) == 0 or len(made.bytes) == 0:
        return found
    order = np.lexsort((made.time_ns, made.thread))
    rows = cpu.nest.row[launches.position]
    start, thread = cpu.trace.events.start_ns[rows], cpu.nest.thread[launches.position]
    before = np.zeros(len(rows), dtype=np.int64)
    for number in np.unique(thread).tolist():
        here = np.flatnonzero(thread == number)
        low, high = np.searchsorted(made.thread[order], (number, number + 1))
        before[here] = low + np.searchsorted(made.time_ns[order[low:high]], start[here], side="right")
    open_ = np.arange(len(rows))
    for back in range(1, _LOOK_BACK + 1):
        open_ = open_[before[open_] >= back]
        row = order[before[open_] - back]
        fits = made.bare[row] & (made.thread[row] == thread[open_]) & (found[row] == NONE)
        fits &= _holds(made.bytes[row], launches.bytes[open_]) & (made.death_ns[row] > start[open_])
        # Where two launches ask for one buffer, the earlier one (by start) has it.
        row, taken = row[fits], open_[fits]
        _, first = np.unique(row, return_index=True)
        found[row[first]] = taken[first]
        served = np.zeros(len(rows), dtype=np.bool_)
        served[taken[first]] = True
        open_ = open_[~served[open_]]
    return found


def _holds(block: Int64, asked: Int64) -> Bool:
    """Whether a block is what an allocator gives when it is asked for so many bytes."""
    rounded = -(-asked // _CUDA_ROUNDS_TO) * _CUDA_ROUNDS_TO
    rest = np.where(asked >= _CUDA_KEEPS_REST_BELOW, _CUDA_KEEPS_REST_BELOW, 0)
    return (block >= asked) & (block <= rounded + rest) & (asked > 0)
