"""The figures that budgets have names for: what each is, how it is read from a report, which way is worse.

A reading is one number with its place. In the scope "total" a figure has one reading, of the whole run; in
"rank" one of each rank and device, in "step" one of each step of each: then the worst one is judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sp_profiler.checking.parts import PART_MAPS, SCOPES, Scope, Within
from sp_profiler.checking.quantities import Unit
from sp_profiler.checking.tolerance import Worse

if TYPE_CHECKING:
    from sp_profiler.checking.readings import Reading
    from sp_profiler.report.model import Report


@dataclass(frozen=True)
class Figure:
    """`about`: what it is, as the subject of a sentence. `plain`: how many base units a limit without a unit
    counts, as the name says (`-ms`, `-gib`). `is_mean`: a mean over windows, told "per step and rank".
    """

    name: str
    unit: Unit
    worse: Worse
    about: str
    reader: str  # the function of `readings`
    plain: float = 1
    scopes: tuple[Scope, ...] = SCOPES
    parts: tuple[str, ...] = ()  # what it may be narrowed to
    is_mean: bool = False

    @property
    def option(self) -> str:
        """`max-exposed-ms`, `min-wgrad-hidden`: a limit on the side that is worse."""
        return f"{'max' if self.worse == 'higher' else 'min'}-{self.name}"

    def read(self, report: Report, scope: Scope, within: Within | None) -> Sequence[Reading]:
        """What it reads in a report; the analyses' modules are imported only now."""
        from sp_profiler.checking import readings

        return getattr(readings, self.reader)(report, scope, within)


MS, GIB = 1e6, 2.0**30
EVERY_PART = tuple(PART_MAPS)
_RANKS: tuple[Scope, ...] = ("total", "rank")
_WHOLE: tuple[Scope, ...] = ("total",)

_TIMES = (
    Figure(
        "exposed-ratio",
        "ratio",
        "higher",
        "exposed communication as a share of the time",
        "exposed_ratio",
        parts=EVERY_PART,
    ),
    Figure(
        "exposed-ms",
        "ns",
        "higher",
        "exposed communication",
        "exposed_time",
        plain=MS,
        parts=EVERY_PART,
        is_mean=True,
    ),
    Figure("step-ms", "ns", "higher", "the time", "step", plain=MS, is_mean=True),
    Figure("idle-ratio", "ratio", "higher", "idle time as a share of the time", "idle_ratio"),
    Figure(
        "skew-ratio",
        "ratio",
        "higher",
        "waiting for the last rank as a share of communication",
        "skew_ratio",
        scopes=_WHOLE,
        parts=("group",),
    ),
)
_HIDING = (
    Figure(
        "overlap-ratio",
        "ratio",
        "lower",
        "overlapped communication as a share of communication",
        "overlap_ratio",
    ),
    Figure(
        "hidden-of-hideable",
        "ratio",
        "lower",
        "what is hidden of the hideable communication",
        "hidden_of_hideable",
        parts=("purpose",),
    ),
    Figure(
        "wgrad-hidden",
        "ratio",
        "lower",
        "what wgrad hides of the hideable dgrad communication",
        "wgrad_hidden",
    ),
    Figure(
        "busbw-gbps",
        "gbps",
        "lower",
        "the bus bandwidth of the slowest operation",
        "busbw",
        scopes=_WHOLE,
        parts=("group",),
    ),
)
_OTHERS = (
    Figure(
        "memory-gib", "bytes", "higher", "the peak of allocated memory", "memory", plain=GIB, scopes=_RANKS
    ),
    Figure("saved-gib", "bytes", "higher", "the memory kept for backward", "saved", plain=GIB, scopes=_RANKS),
    Figure("coverage", "ratio", "lower", "the lowest coverage", "coverage", scopes=_WHOLE),
    Figure("missing-ranks", "count", "higher", "the number of missing ranks", "missing_ranks", scopes=_WHOLE),
)
FIGURES: Mapping[str, Figure] = {one.name: one for one in (*_TIMES, *_HIDING, *_OTHERS)}

COMPARED = (
    "step-ms",
    "exposed-ms",
    "hidden-of-hideable",
    "wgrad-hidden",
    "memory-gib",
    "saved-gib",
    "coverage",
)
"""What a baseline is compared in when nothing else is asked. Shares of the step are not among them: they rise
when computation gets faster, which is no regression."""
