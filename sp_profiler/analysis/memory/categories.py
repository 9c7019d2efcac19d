"""What each block is for, told from when it is born, when it dies, and what made it.

In this order:

communication        born inside a collective, or the buffer that one writes into; also when it is then kept
                     for backward (`crosses_border` tells), as the gathered inputs of sequence parallelism are
before-window        alive when the recording began. A gradient, when `zero_grad` frees it
gradient             born in backward, not freed by the end of that backward
parameter-optimizer  alive across two step borders or at the end across one; or born in the optimizer's step
                     and alive across one; of one step alone: born in the optimizer's step, alive at the end.
                     Where frees go unseen, a block without one tells nothing, unless the optimizer made it
activation           born before a backward, alive when it begins, and then freed in it, or held by a variable
                     until later in that step or into the next one
temporary            freed in the stretch of forward, backward or optimizer in which it was born
unknown              all else, e.g. born in forward and alive at the end of the recording
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp_profiler.analysis.memory.blocks import (
    ACTIVATION,
    BEFORE,
    BEFORE_WINDOW,
    COMMUNICATION,
    GRADIENT,
    PARAMETER,
    TEMPORARY,
    UNKNOWN,
)
from sp_profiler.classify.tables import Phase
from sp_profiler.trace.tables import Bool, Int8, Int64


@dataclass(frozen=True)
class Lives:
    """What the decision needs of each block; `birth` and `death` are positions of the timeline."""

    birth: Int64
    death: Int64
    events: int  # length of the timeline
    phase: Int8  # at birth
    freed_phase: Int8  # UNKNOWN for what is alive at the end
    run: Int64  # number of the stretch of one phase in which it is born, and ...
    freed_run: Int64  # ... in which it is freed; -1 for neither
    communicates: Bool
    zero_grad: Bool  # freed by zero_grad
    step_borders: Int64  # positions of the first event of each later step
    borders: Int64  # positions of the first event of each backward that follows forward
    freed: Bool  # the file holds the free
    frees_unseen: bool  # some frees of the device are not in the file

    @property
    def doubtful(self) -> Bool:
        """Nobody knows whether these are alive: frees go unseen and none is told."""
        return ~self.freed & self.frees_unseen


def crossings(birth: Int64, death: Int64, borders: Int64) -> Int64:
    """How many of the borders (positions, sorted) each block is alive across."""
    return np.searchsorted(borders, death, side="right") - np.searchsorted(borders, birth, side="right")


def categorize(lives: Lives) -> Int8:
    """The category of each block, see above."""
    born, at_end = lives.birth != BEFORE, lives.death == lives.events
    steps = crossings(lives.birth, lives.death, lives.step_borders)
    crosses = crossings(lives.birth, lives.death, lives.borders) > 0
    backward, optimizer = lives.phase == Phase.BACKWARD, lives.phase == Phase.OPTIMIZER
    same_run = (lives.run == lives.freed_run) & (lives.run >= 0) & ~at_end
    one_step = len(lives.step_borders) == 0
    stays = (steps >= 2) | ((steps == 1) & (at_end | optimizer)) | (one_step & optimizer & at_end)
    stays &= optimizer | ~lives.doubtful
    return np.select(
        [
            born & lives.communicates,
            ~born & lives.zero_grad,
            ~born,
            backward & ~same_run,
            stays,
            same_run,
            crosses & ~lives.doubtful,
        ],
        [COMMUNICATION, GRADIENT, BEFORE_WINDOW, GRADIENT, PARAMETER, TEMPORARY, ACTIVATION],
        UNKNOWN,
    ).astype(np.int8)
