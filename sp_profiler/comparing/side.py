"""One of the two runs: its means per step and rank, and the figures of its single steps, the samples."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from statistics import fmean
from typing import TypeVar

from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.results import Figures, RankFigures, StepFigures
from sp_profiler.comparing.noise import LEAST_NS, SHARE_OF_STEP
from sp_profiler.report.model import Report, by_step, collectives_of, windows_by_rank, windows_of

F = TypeVar("F", bound=Figures)
Get = Callable[[Figures], float | None]


class Side:
    """A report with what is made of it more than once."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.windows = windows_of(report)
        self.is_by_step = by_step(report)

    @cached_property
    def steps(self) -> list[list[StepFigures]]:
        """The windows of all ranks, step by step in order; empty where a report lists only some of them."""
        steps: dict[int, list[StepFigures]] = {}
        for one in self.report.steps:
            steps.setdefault(-1 if one.step is None else one.step, []).append(one)
        if len(self.report.steps) != self.windows:
            return []
        return [steps[number] for number in sorted(steps)]

    @cached_property
    def samples_count(self) -> int:
        """How many steps there are whose figures are told one by one."""
        fleet = self.report.fleet
        return len(fleet.steps) if fleet is not None and not self.steps else len(self.steps)

    @cached_property
    def ordinal_of(self) -> dict[int, int]:
        """Number of a step -> its place among the steps of the run."""
        return {step: place for place, step in enumerate(sorted(set(self.report.window.steps)))}

    @cached_property
    def step_count(self) -> int:
        return len(self.ordinal_of) if self.is_by_step else 1

    @cached_property
    def collectives(self) -> Collectives:
        """The collectives of which something lies inside the windows."""
        table = Collectives.of(self.report.collectives)
        inside = table.numbers("overlapped_ns").or_zero() != 0
        return table.take(inside | (table.numbers("exposed_ns").or_zero() != 0))

    @cached_property
    def has_all_collectives(self) -> bool:
        """Whether all collectives are listed, and account for all exposed time: the report of a very large
        run lists the most exposed ones only, which may leave out hidden ones alone."""
        exposed = self.report.totals.exposed_ns
        if exposed is None or collectives_of(self.report) != len(self.report.collectives):
            return False
        return self.collectives.total("exposed_share_ns") == exposed

    def mean(self, get: Get) -> float | None:
        """The figure of the totals per step and rank, in whole ns."""
        value = get(self.report.totals)
        return None if value is None else round(value / self.windows)

    def samples(self, get: Get) -> list[float] | None:
        """The figure of each step, its mean over ranks; None where a step does not know it.

        A run too large to list all its steps has sums of some figures over the ranks of each.
        """
        if self.report.fleet is not None and not self.steps:
            try:
                return [get(one) / one.windows for one in self.report.fleet.steps]  # type: ignore[arg-type]
            except AttributeError:  # not among those figures
                return None
        found: list[float] = []
        for step in self.steps:
            values = [get(one) for one in step]
            known = [value for value in values if value is not None]
            if len(known) < len(values):
                return None
            found.append(fmean(known))
        return found

    def ratios(self, part: Get, whole: Get) -> list[float] | None:
        """The ratio of two figures in each step, from their sums over ranks."""
        found: list[float] = []
        for step in self.steps:
            values = [(part(one), whole(one)) for one in step]
            below = sum(two or 0 for _, two in values)
            if not below or any(one is None or two is None for one, two in values):
                return None
            found.append(sum(one or 0 for one, _ in values) / below)
        return found

    def of_rank(self, rank: RankFigures) -> list[StepFigures]:
        """The steps of one rank and device, in order."""
        return self._by_rank.get((rank.rank, rank.device), [])

    def windows_of(self, rank: RankFigures) -> int:
        """How many windows a rank and device has; at least 1."""
        return self._windows_by_rank.get((rank.rank, rank.device), 1)

    @cached_property
    def _windows_by_rank(self) -> dict[tuple[int | None, int], int]:
        return dict(windows_by_rank(self.report))

    @cached_property
    def _by_rank(self) -> dict[tuple[int | None, int], list[StepFigures]]:
        found: dict[tuple[int | None, int], list[StepFigures]] = {}
        for one in sorted(self.report.steps, key=lambda one: -1 if one.step is None else one.step):
            found.setdefault((one.rank, one.device), []).append(one)
        return found


def resolution_ns(base: Side, here: Side) -> float:
    """Of times per step: what is less is never called a change."""
    step = max((side.mean(lambda f: f.window_ns) or 0 for side in (base, here)), default=0)
    return max(LEAST_NS, SHARE_OF_STEP * step)
