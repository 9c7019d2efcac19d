"""The module and layer that work on the CPU belongs to.

Rules, the first that tells a module:

range       the innermost `sp::` range with a module around it; a gloo range has that of its launch
foreign     a framework's range that names a module: `FSDP::all_gather (layers.3)`
frame       the innermost `nn.Module: X_0` python frame (profiles with `with_stack=True`)
operator    the autograd function or node around it, where all `sp::` ranges inside that one name one module
forward     backward work: the module of the forward operator with the same sequence number
between     forward work between the ranges of two linears of one block, or before a block's first: the block.
            Norms, activations and residual sums have no range of their own
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from sp_profiler.analysis.memory.cpu import CpuSide, innermost_around
from sp_profiler.classify.nesting import Nest, nest_of
from sp_profiler.classify.tables import Classified, Phase
from sp_profiler.trace.tables import NONE, Category, Int32, Int64

FRAME = "nn.Module: "
_FOREIGN = re.compile(r"^(?:FSDP::\w+|FullyShardedDataParallel\.\w+) \(([\w.]+)\)$")
_PATH_LAYER = re.compile(r"(?:^|\.)(?:layers?|blocks?|h)\.(\d+)(?=\.|$)")
_CLASS_LAYER = re.compile(r"(?:Layer|Block)_(\d+)$")


@dataclass(frozen=True)
class Modules:
    """Module (code into `names`) and layer of every position of the nest, with one more, NONE, for NONE."""

    names: list[str]  # the trace's strings, then modules
    module: Int32
    layer: Int32


class _Names:
    """Codes of the modules' names: after the strings of the trace, each name once."""

    def __init__(self, pool: list[str]) -> None:
        self.pool = list(pool)
        self._codes: dict[str, int] = {}

    def code(self, name: str) -> int:
        if name not in self._codes:
            self._codes[name] = len(self.pool)
            self.pool.append(name)
        return self._codes[name]


def layer_of_path(module: str) -> int | None:
    """The layer in a module's path: 3 of `model.layers.3.attention.q`."""
    found = _PATH_LAYER.search(module)
    return int(found[1]) if found and len(found[1]) < 9 else None


def find_modules(cpu: CpuSide, classified: Classified) -> Modules:
    """Module and layer of every position; see the rules above."""
    names = _Names(cpu.trace.strings.pool)
    size = len(cpu.nest.row) + 1
    module, layer = np.full(size, NONE, np.int64), np.full(size, NONE, np.int64)
    for found, its_layer in (
        _of_ranges(cpu, classified, names),
        _of_foreign(cpu, names),
        _of_frames(cpu, names),
    ):
        fresh = module == NONE
        module = np.where(fresh, found, module)
        layer = np.where(fresh & (layer == NONE), its_layer, layer)
    _of_operators(cpu, module, layer)
    _between(cpu, names, module, layer)
    _of_forward(cpu, module, layer)
    return Modules(names.pool, module.astype(np.int32), layer.astype(np.int32))


def _of_ranges(cpu: CpuSide, classified: Classified, names: _Names) -> tuple[Int64, Int64]:
    notes = cpu.annotations
    codes = np.array([*(names.code(name) for name in notes.names), NONE], dtype=np.int64)
    module, layer = codes[notes.module].copy(), notes.layer.copy()
    activities = classified.activities
    launched = np.flatnonzero(activities.collective != NONE)
    positions = cpu.nest.position[activities.event[launched]]
    for place, number in zip(positions.tolist(), activities.collective[launched].tolist(), strict=True):
        of = classified.collectives[number]
        if place != NONE and of.module is not None:
            module[place] = names.code(of.module)
            layer[place] = NONE if of.layer is None else of.layer
    return _inherited(cpu.nest, module), _inherited(cpu.nest, layer)


def _of_foreign(cpu: CpuSide, names: _Names) -> tuple[Int64, Int64]:
    pool, codes = cpu.trace.strings.pool, cpu.trace.events.name[cpu.nest.row]
    module, layer = np.full(len(pool) + 1, NONE, np.int64), np.full(len(pool) + 1, NONE, np.int64)
    for code in np.unique(codes[codes >= 0]).tolist():
        if found := _FOREIGN.match(pool[code]):
            number = layer_of_path(found[1])
            module[code] = names.code(found[1])
            layer[code] = NONE if number is None else number
    return _inherited(cpu.nest, module[codes]), _inherited(cpu.nest, layer[codes])


def _inherited(nest: Nest, own: Int64) -> Int64:
    """For each position the value of the nearest event that has one, NONE without."""
    return np.append(own, NONE)[nest.nearest(own != NONE)]


def _of_frames(cpu: CpuSide, names: _Names) -> tuple[Int64, Int64]:
    size = len(cpu.nest.row) + 1
    events, strings = cpu.trace.events, cpu.trace.strings
    named = strings.match(events.name, lambda text: text.startswith(FRAME))
    rows = np.flatnonzero(named & (events.category == int(Category.PYTHON))).astype(np.int64)
    thread = cpu.threads(events.tid[rows])
    rows, thread = rows[thread != NONE], thread[thread != NONE]
    nothing = np.full(size, NONE, np.int64)
    if len(rows) == 0:
        return nothing, nothing
    nest = nest_of(events, rows, thread)
    module, layer = np.full(len(strings.pool), NONE, np.int64), np.full(len(strings.pool), NONE, np.int64)
    for code in np.unique(events.name[rows]).tolist():
        name = strings.pool[code].removeprefix(FRAME)
        module[code] = names.code(name)
        if number := _CLASS_LAYER.search(name):
            layer[code] = int(number[1]) if len(number[1]) < 9 else NONE
    codes = events.name[nest.row]
    # Of nested blocks (a layer and the mixture-of-experts layer inside it) the outermost counts.
    marked = layer[codes] != NONE
    above = nest.nearest(marked)[nest.parent] != NONE
    around = innermost_around(events, nest, cpu.nest.thread, events.start_ns[cpu.nest.row])
    inner = np.append(around, NONE)
    outer = nest.nearest(marked & ~above)[inner]
    return np.append(module[codes], NONE)[inner], np.append(layer[codes], NONE)[outer]


def _of_operators(cpu: CpuSide, module: Int64, layer: Int64) -> None:
    """What lies in an autograd function or node beside its ranges belongs to the module that those name."""
    owner = cpu.phases.owner
    told = np.flatnonzero((module[:-1] != NONE) & (owner[:-1] != NONE) & (cpu.annotations.what >= 0))
    if len(told) == 0:
        return
    size = len(module)
    least, most = np.full(size, np.iinfo(np.int64).max), np.full(size, NONE, np.int64)
    of_layer = np.full(size, NONE, np.int64)
    np.minimum.at(least, owner[told], module[told])
    np.maximum.at(most, owner[told], module[told])
    of_layer[owner[told]] = layer[told]
    one = (least == most) & (most != NONE)
    open_ = np.flatnonzero((module[:-1] == NONE) & one[owner[:-1]] & (owner[:-1] != NONE))
    module[open_] = most[owner[open_]]
    layer[open_] = np.where(layer[open_] == NONE, of_layer[owner[open_]], layer[open_])


def _of_forward(cpu: CpuSide, module: Int64, layer: Int64) -> None:
    """Backward work without a module of its own takes that of the forward operator of its sequence number."""
    events, nest = cpu.trace.events, cpu.nest
    sequence = events.sequence[nest.row]
    backward = cpu.phases.phase[:-1] == Phase.BACKWARD
    known = np.flatnonzero((sequence >= 0) & ~backward & (module[:-1] != NONE))
    node = cpu.phases.owner[:-1]
    open_ = np.flatnonzero(backward & (module[:-1] == NONE) & (node != NONE))
    if len(known) == 0 or len(open_) == 0:
        return
    # Numbers grow through the whole run, so the first operator of a number (the outermost) is the one.
    numbers, first = np.unique(sequence[known], return_index=True)
    asked = sequence[node[open_]]
    place = np.minimum(np.searchsorted(numbers, asked), len(numbers) - 1)
    same = numbers[place] == asked
    peer = known[first[place[same]]]
    module[open_[same]] = module[peer]
    layer[open_[same]] = layer[peer]


def _between(cpu: CpuSide, names: _Names, module: Int64, layer: Int64) -> None:
    """Give forward work between ranges to the block whose range comes next; see the rules above."""
    events, nest, notes = cpu.trace.events, cpu.nest, cpu.annotations
    start = events.start_ns[nest.row]
    forward = cpu.runs.phase_at(start) == Phase.FORWARD
    ranges = np.flatnonzero((notes.what >= 0) & (notes.module != NONE) & forward)
    open_ = np.flatnonzero((module[:-1] == NONE) & forward & (cpu.phases.phase[:-1] == Phase.FORWARD))
    for number in np.unique(nest.thread[ranges]).tolist():
        here = ranges[nest.thread[ranges] == number]  # positions of a thread go by start
        asked = open_[nest.thread[open_] == number]
        after = np.searchsorted(here, asked)
        asked, after = asked[after < len(here)], after[after < len(here)]
        following, previous = here[after], here[np.maximum(after - 1, 0)]
        run = cpu.runs.at(start)
        has_previous = (after > 0) & (run[previous] == run[asked])
        target, before = notes.layer[following], notes.layer[previous]
        fits = (run[following] == run[asked]) & (target != NONE)
        fits &= ~has_previous | (before == NONE) | (before == target) | (before == target - 1)
        into, of = np.unique(following[fits], return_inverse=True)
        blocks = [_block(names.pool[module[to]], int(notes.layer[to])) for to in into.tolist()]
        codes = np.array([names.code(block) for block in blocks], dtype=np.int64)
        module[asked[fits]] = codes[of.reshape(-1)]
        layer[asked[fits]] = target[fits]


def _block(path: str, layer: int) -> str:
    """The block of a module: `layers.3` of `layers.3.attention.q`."""
    parts = path.split(".")
    return ".".join(parts[: parts.index(str(layer)) + 1]) if str(layer) in parts else f"layer {layer}"
