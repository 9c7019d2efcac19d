"""The blocks of a snapshot in the columns that traces have too, each with what it is for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sp_profiler.analysis.memory.blocks import (
    ACTIVATION,
    BEFORE,
    BEFORE_RECORDING,
    BEFORE_WINDOW,
    COMMUNICATION,
    GRADIENT,
    PARAMETER,
    TEMPORARY,
    UNKNOWN,
    Blocks,
)
from sp_profiler.analysis.memory.categories import Lives, categorize, crossings
from sp_profiler.classify.tables import Phase
from sp_profiler.snapshot.frames import StackNames, Told
from sp_profiler.snapshot.history import History
from sp_profiler.snapshot.phases import Phases
from sp_profiler.snapshot.ranges import Ranges
from sp_profiler.snapshot.tables import Ints, Snapshot
from sp_profiler.snapshot.worker.protocol import NONE
from sp_profiler.trace.tables import Int8, Int32

NO_STACK = "(no stack recorded)"
_TORCH_SAYS = {
    "parameter": PARAMETER,
    "optimizer_state": PARAMETER,
    "gradient": GRADIENT,
    "activation": ACTIVATION,
    "temporary": TEMPORARY,
}
"""Words of torch.profiler's memory profiler (`export_memory_timeline`); its others say nothing of ours."""


@dataclass(frozen=True)
class Labelled:
    """Blocks, and how many of them were given a category by assumption."""

    blocks: Blocks
    assumed_activations: int


def label(
    snapshot: Snapshot, history: History, phases: Phases, ranges: Ranges, told: Told, time_ns: Ints | None
) -> Labelled:
    """The blocks of one device. `time_ns` is one value per event, None where the snapshot has no times."""
    count = history.events
    born, dies = history.birth != BEFORE, history.death < count
    birth = np.where(born, history.birth, count)  # one place more for blocks without
    asked = np.where(dies, np.minimum(history.free_requested, history.death), count)
    made = _Of(history.made)
    phase = made.pick(told.phase, Phase.UNKNOWN)
    phase = np.where(phase == Phase.UNKNOWN, _at(phases.phase, birth, Phase.UNKNOWN), phase).astype(np.int8)
    freed_phase = _at(phases.phase, asked, Phase.UNKNOWN).astype(np.int8)
    freed = _Of(history.freed if phases.frees_told else np.full(len(history), NONE, dtype=np.int64))
    lives = Lives(
        birth=history.birth,
        death=history.death,
        events=count,
        phase=phase,
        freed_phase=freed_phase,
        run=_at(phases.run, birth, NONE),
        freed_run=_at(phases.run, asked, NONE),
        communicates=made.pick(told.is_collective, False) | (_at(ranges.collective, birth, 0) == 1),
        zero_grad=freed.pick(told.is_zero_grad, False),
        freed=dies & ~history.free_missing,
        step_borders=phases.step_borders,
        borders=phases.borders,
        frees_unseen=False,  # the end is known
    )
    category, assumed = _category(snapshot, history, lives, made, told)
    names, operator, made_by = _sites(history, told)
    module, names = _modules(snapshot, history, ranges, birth, names)
    times = np.full(count, NONE, dtype=np.int64) if time_ns is None else time_ns
    blocks = Blocks(
        bytes=history.bytes,
        address=history.address.astype(np.uint64),
        birth=history.birth,
        death=history.death,
        birth_ns=_at(times, birth, NONE),
        death_ns=_at(times, np.where(history.free_missing, count, history.death), NONE),
        category=category,
        operator=operator,
        made_by=made_by,
        phase=phase,
        step=_at(ranges.step, birth, NONE).astype(np.int32),
        module=module,
        layer=_at(ranges.layer, birth, NONE).astype(np.int32),
        freed_by=freed.pick(told.site, NONE).astype(np.int32),
        freed_phase=freed_phase,
        crosses_border=(phase == Phase.FORWARD) & _is_across(lives),
        freed_unseen=np.zeros(len(history), dtype=np.bool_),  # totals are those of the blocks
        names=names,
        stack_of=_stacks(snapshot, history),
    )
    return Labelled(blocks, assumed)


class _Of:
    """Values of stacks looked up for blocks."""

    def __init__(self, stack: Ints) -> None:
        self._stack = stack

    def pick(self, values: np.ndarray, none: object) -> np.ndarray:
        """`values` has one entry per stack; `none` for blocks without a stack."""
        return np.append(values, np.array([none], dtype=values.dtype))[self._stack]


def _at(values: np.ndarray, place: Ints, none: int) -> np.ndarray:
    """Values at these places, `none` at the place after the last."""
    return np.append(values, np.array([none], dtype=values.dtype))[np.minimum(place, len(values))]


def _is_across(lives: Lives) -> np.ndarray:
    return crossings(lives.birth, lives.death, lives.borders) > 0


def _stacks(snapshot: Snapshot, history: History) -> Callable[[int], list[str]]:
    names = StackNames(snapshot.stacks)
    return lambda row: names.shown(int(history.made[row]))


def _sites(history: History, told: Told) -> tuple[list[str], Int32, Int32]:
    """Names, and each block's first user frame; what has no stack is named by why."""
    names = [*told.sites, BEFORE_RECORDING, NO_STACK]
    operator = _Of(history.made).pick(told.site, NONE).astype(np.int32)
    why = np.where(history.birth == BEFORE, len(told.sites), len(told.sites) + 1)
    return names, operator, np.where(operator == NONE, why, operator).astype(np.int32)


def _modules(
    snapshot: Snapshot, history: History, ranges: Ranges, birth: Ints, names: list[str]
) -> tuple[Int32, list[str]]:
    """Each block's module: of the `sp::` range around it, else the program's own label for the memory."""
    module = _at(ranges.module, birth, NONE)
    module = np.where(module == NONE, NONE, module + len(names))
    names = [*names, *ranges.modules]
    labels = np.unique(history.label[history.label != NONE])
    code = np.searchsorted(labels, history.label) + len(names)
    module = np.where((module == NONE) & (history.label != NONE), code, module)
    return module.astype(np.int32), [*names, *(snapshot.stacks.texts[text] for text in labels.tolist())]


def _category(snapshot: Snapshot, history: History, lives: Lives, made: _Of, told: Told) -> tuple[Int8, int]:
    """What each block is for: by its life as in traces, then by what only stacks tell.

    Returns the categories and how many blocks are activations because they are still alive.
    """
    category = categorize(lives)
    at_end = lives.death == lives.events
    building = made.pick(told.is_building, False)
    unseen = category == BEFORE_WINDOW
    category[unseen & (lives.phase == Phase.BACKWARD)] = GRADIENT
    category[unseen & (lives.phase == Phase.FORWARD)] = ACTIVATION
    category[unseen & ((lives.phase == Phase.OPTIMIZER) | building)] = PARAMETER
    category[unseen & lives.communicates] = COMMUNICATION
    category[at_end & building & ~lives.communicates] = PARAMETER
    open_ = at_end & (lives.birth != BEFORE) & ~building & ~lives.communicates
    open_ &= (lives.phase == Phase.FORWARD) | (lives.phase == Phase.BACKWARD)
    open_ &= category != PARAMETER
    earlier = _earlier(history, category, at_end)
    known = open_ & (earlier != NONE)
    category[known] = earlier[known]
    assumed = open_ & ~known & (lives.phase == Phase.FORWARD) & np.isin(category, (UNKNOWN, ACTIVATION))
    category[assumed] = ACTIVATION
    for text, code in _TORCH_SAYS.items():
        if text in snapshot.stacks.texts:
            category[history.category == snapshot.stacks.texts.index(text)] = code
    return category, int(assumed.sum())


def _earlier(history: History, category: Int8, at_end: np.ndarray) -> Ints:
    """For each block what most bytes came to that were allocated by the same stack and are freed."""
    wanted = np.unique(history.made[at_end & (history.made != NONE)])
    rows = np.flatnonzero(~at_end & (history.birth != BEFORE) & np.isin(history.made, wanted))
    if not len(rows):
        return np.full(len(history), NONE, dtype=np.int64)
    stack = np.searchsorted(wanted, history.made[rows])
    sums = np.zeros((len(wanted), UNKNOWN + 1), dtype=np.int64)
    np.add.at(sums, (stack, category[rows]), history.bytes[rows])
    most = np.where(sums.any(axis=1), sums.argmax(axis=1), NONE)
    most[most == UNKNOWN] = NONE
    place = np.minimum(np.searchsorted(wanted, history.made), len(wanted) - 1)
    return np.where(wanted[place] == history.made, most[place], NONE)
