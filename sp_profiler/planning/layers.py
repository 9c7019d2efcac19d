"""Figures of a model with many layers from runs with a few, where each layer adds the same.

A run's figures are taken apart so far that every part can only grow in a straight line: bytes by term, and
the peak of each stretch of a step (embedding, blocks, head and loss, in forward and backward). The step's
peak is the largest of them, and which of them it is may change with the number of layers. Blocks between
two blocks whose peaks lie on a line have peaks between theirs. What does not grow evenly from one number
of layers to the next and the one after is not extrapolated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from sp_profiler.errors import UsageError
from sp_profiler.planning.events import Segment
from sp_profiler.planning.step import ExecutedStep
from sp_profiler.planning.timeline import StepTimes, simulate
from sp_profiler.theory.communication import wire_bytes
from sp_profiler.theory.machine import Machine

Number = int | float | Fraction


@dataclass(frozen=True)
class Base:
    """Numbers of layers to be executed, two to draw the line and the third to check it. `edge` blocks at
    each end are cases of their own; those between them are alike."""

    counts: tuple[int, int, int]
    edge: int


BASES = (Base((1, 2, 3), 0), Base((4, 5, 6), 1))
"""In the order in which they are tried. Often the first and the last block are like the others; in
backward the last may peak otherwise, because the head's gradients are still there."""
MOST_EXECUTED = 512
"""Layers that are executed one by one where they cannot be extrapolated."""


@dataclass(frozen=True)
class Figures:
    """The numbers of one run by name: `saved.<term>`, `peak.<where>`, `comm.<purpose>`, `time.<part>`..."""

    values: dict[str, Number]
    blocks: dict[str, list[int]] = field(default_factory=dict)
    """Of each pass over the blocks their peaks, first block first; besides those in `values`."""

    def whole(self) -> dict[str, Number]:
        """All numbers, the blocks' largest peak of each pass among them."""
        return self.values | {f"peak.{where}, a block": max(peaks) for where, peaks in self.blocks.items()}

    def at_edge(self, edge: int) -> dict[str, Number] | None:
        """All numbers, with the peaks of `edge` blocks at each end and of the first and last between them;
        None where those between do not lie on a line."""
        found = dict(self.values)
        for where, peaks in self.blocks.items():
            middle = peaks[edge : len(peaks) - edge]
            if not middle or not _is_line(middle):
                return None
            ends = {**{i: peaks[i] for i in range(edge)}, **{-1 - i: peaks[-1 - i] for i in range(edge)}}
            found |= {f"peak.{where}, a block {place}": size for place, size in ends.items()}
            found |= {f"peak.{where}, a block first": middle[0], f"peak.{where}, a block last": middle[-1]}
        return found


@dataclass(frozen=True)
class Found:
    """Numbers for a number of layers, and the numbers of layers that were executed to know them."""

    values: dict[str, Number]
    extrapolated_from: tuple[int, ...] | None

    def group(self, prefix: str) -> dict[str, Number]:
        """Those whose name begins so, by the rest of their name."""
        start = f"{prefix}."
        return {name[len(start) :]: value for name, value in self.values.items() if name.startswith(start)}


def figures_of(step: ExecutedStep, machine: Machine | None) -> Figures:
    """The numbers of an executed step; with times where a machine is given."""
    measured = step.measurement
    values: dict[str, Number] = {
        "hidden": measured.hidden_bytes,
        "parameter": measured.parameter_bytes,
        "gradient": measured.gradient_bytes,
        "optimizer": measured.optimizer_bytes,
        "collectives": len(measured.calls),
        "layer": sum(tensor.bytes for tensor in measured.saved.tensors if tensor.layer == 0),
    }
    for tensor in measured.saved.tensors:
        _add(values, f"saved.{tensor.term}", tensor.bytes)
    for call in measured.calls:
        _add(values, f"comm.{call.purpose}", wire_bytes(call.op, call.bytes, step.config.ranks))
    peaks, blocks = _peaks(step.segments)
    values.update({f"peak.{where}": size for where, size in peaks.items()})
    if machine is not None:
        values.update(_time_values(simulate(step.events, step.config.ranks, machine)))
    return Figures(values, blocks)


class Layers:
    """Figures of one scheme for any number of layers; executes each number once at most."""

    def __init__(
        self,
        run: Callable[[int], ExecutedStep],
        machine: Machine | None,
        *,
        extrapolate: bool = True,
    ) -> None:
        self._run = run
        self._machine = machine
        self._extrapolate = extrapolate
        self._executed: dict[int, Figures] = {}
        self._line: _Line | None = None
        self._is_tried = False

    def at(self, layers: int) -> Found:
        """Executed where that is as cheap or asked for, else extrapolated where layers add the same.

        Raises UsageError for more than `MOST_EXECUTED` layers that would have to be executed.
        """
        if self._extrapolate and layers > BASES[0].counts[-1]:
            if not self._is_tried:
                self._line, self._is_tried = self._find_line(), True
            if self._line is not None and layers not in self._executed:
                return Found(self._line.at(layers), self._line.base.counts)
        if layers > MOST_EXECUTED:
            raise UsageError(
                f"--layers {layers} is more than the {MOST_EXECUTED} that are executed one by one"
                + (": this scheme's layers do not all add the same" if self._extrapolate else "")
            )
        return Found(self._figures(layers).whole(), None)

    def _figures(self, layers: int) -> Figures:
        if layers not in self._executed:
            self._executed[layers] = figures_of(self._run(layers), self._machine)
        return self._executed[layers]

    def _find_line(self) -> _Line | None:
        for base in BASES:
            line = line_through([self._figures(count) for count in base.counts], base)
            if line is not None:
                return line
        return None


@dataclass(frozen=True)
class _Line:
    base: Base
    start: dict[str, Number]
    increment: dict[str, Number]

    def at(self, layers: int) -> dict[str, Number]:
        more = layers - self.base.counts[0]
        return {name: value + more * self.increment[name] for name, value in self.start.items()}


def line_through(runs: Sequence[Figures], base: Base) -> _Line | None:
    """The line on which every number of the three runs lies; None where one of them does not."""
    numbers = [run.at_edge(base.edge) for run in runs]
    first, second, third = numbers
    if first is None or second is None or third is None or not first.keys() == second.keys() == third.keys():
        return None
    if not all(_equal(third[name] - second[name], second[name] - first[name]) for name in first):
        return None
    return _Line(base, first, {name: second[name] - value for name, value in first.items()})


def _equal(one: Number, other: Number) -> bool:
    """Exactly, but for times: they are sums of floats, and what is less than a picosecond is rounding."""
    if isinstance(one, float) or isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    return one == other


def _add(values: dict[str, Number], name: str, number: Number) -> None:
    values[name] = values.get(name, 0) + number


def _time_values(times: StepTimes) -> dict[str, Number]:
    values: dict[str, Number] = {
        f"time.{name}": getattr(times, f"{name}_s")
        for name in ("gemm", "attention", "memory", "comm", "hidden", "exposed")
    }
    values |= {f"exposed.{purpose}": share for purpose, share in times.exposed_by_purpose_s.items()}
    return values | {f"role.{role}": share for role, share in times.compute_by_role_s.items()}


def _peaks(segments: Iterable[Segment]) -> tuple[dict[str, int], dict[str, list[int]]]:
    """The largest peak of each kind of stretch, and the blocks' peaks, first block first.

    Every pass over the blocks (a micro-batch's forward or backward) has peaks of its own.
    """
    peaks: dict[str, int] = {}
    blocks: dict[str, dict[int, int]] = {}
    passes = 0
    phase = ""
    for segment in segments:
        if segment.phase != phase:
            passes, phase = passes + 1, segment.phase
        where = f"{passes} {phase}"
        if isinstance(segment.key, int):
            of_pass = blocks.setdefault(where, {})
            of_pass[segment.key] = max(of_pass.get(segment.key, 0), segment.peak_bytes)
        else:
            name = f"{where}, {segment.key}"
            peaks[name] = max(peaks.get(name, 0), segment.peak_bytes)
    return peaks, {where: [found[i] for i in sorted(found)] for where, found in blocks.items()}


def _is_line(peaks: Sequence[int]) -> bool:
    return all(a + c == 2 * b for a, b, c in zip(peaks, peaks[1:], peaks[2:], strict=False))
