"""Figures of a model with many layers from runs with a few, where each layer adds the same.

A run's figures are taken apart so far that every part can only grow in a straight line: bytes by term, and
the peak of each stretch of a step (embedding, first and last block, head and loss, in forward and backward;
what lies between the first and the last block lies between their peaks). The step's peak is the largest of
them, which of them it is may change with the number of layers. What does not grow evenly from one to two to
three layers is not extrapolated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from sp_profiler.errors import UsageError
from sp_profiler.planning.events import Segment
from sp_profiler.planning.step import ExecutedStep
from sp_profiler.planning.timeline import StepTimes, simulate
from sp_profiler.theory.communication import wire_bytes
from sp_profiler.theory.machine import Machine

Number = int | float | Fraction

BASES = ((1, 2, 3), (2, 3, 4))
"""Numbers of layers to be executed: two to draw the line, the third to check it. The second is tried where
a model of one layer is a case of its own."""
MOST_EXECUTED = 512
"""Layers that are executed one by one where they cannot be extrapolated."""


@dataclass(frozen=True)
class Figures:
    """The numbers of one run by name: `saved.<term>`, `peak.<where>`, `comm.<purpose>`, `time.<part>`..."""

    values: dict[str, Number]
    is_even: bool
    """Whether the peaks of the blocks lie on a straight line from the first to the last."""

    def group(self, prefix: str) -> dict[str, Number]:
        """Those whose name begins so, by the rest of their name."""
        start = f"{prefix}."
        return {name[len(start) :]: value for name, value in self.values.items() if name.startswith(start)}


@dataclass(frozen=True)
class Found:
    """Figures for a number of layers, and the numbers that were executed to know them."""

    figures: Figures
    extrapolated_from: tuple[int, ...] | None


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
    peaks, is_even = _peaks(step.segments)
    values.update({f"peak.{where}": size for where, size in peaks.items()})
    if machine is not None:
        values.update(_time_values(simulate(step.events, step.config.ranks, machine)))
    return Figures(values, is_even)


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
        self._base: tuple[int, ...] | None = None
        self._is_tried = False

    def at(self, layers: int) -> Found:
        """Executed where that is as cheap or asked for, else extrapolated where layers add the same.

        Raises UsageError for more than `MOST_EXECUTED` layers that would have to be executed.
        """
        if self._extrapolate and layers > BASES[0][-1]:
            if not self._is_tried:
                self._base, self._is_tried = self._find_base(), True
            if self._base is not None and layers not in self._executed:
                first, second = (self._figures(count) for count in self._base[:2])
                return Found(_extended(first, second, layers - self._base[0]), self._base)
        if layers > MOST_EXECUTED:
            raise UsageError(
                f"--layers {layers} is more than the {MOST_EXECUTED} that are executed one by one"
                + (": this scheme's layers do not all add the same" if self._extrapolate else "")
            )
        return Found(self._figures(layers), None)

    def _figures(self, layers: int) -> Figures:
        if layers not in self._executed:
            self._executed[layers] = figures_of(self._run(layers), self._machine)
        return self._executed[layers]

    def _find_base(self) -> tuple[int, ...] | None:
        for base in BASES:
            if grows_evenly([self._figures(count) for count in base]):
                return base
        return None


def grows_evenly(runs: Sequence[Figures]) -> bool:
    """Whether every number grows by the same from run to run, the runs being of n, n+1 and n+2 layers."""
    if not all(run.is_even for run in runs) or len({frozenset(run.values) for run in runs}) != 1:
        return False
    first, second, third = (run.values for run in runs)
    return all(_equal(third[name] - second[name], second[name] - first[name], third[name]) for name in first)


def _equal(one: Number, other: Number, scale: Number) -> bool:
    """Exactly, but for times: they are sums of floats."""
    if isinstance(one, float) or isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9 * abs(float(scale)))
    return one == other


def _extended(first: Figures, second: Figures, more: int) -> Figures:
    values = {name: value + more * (second.values[name] - value) for name, value in first.values.items()}
    return Figures(values, True)


def _add(values: dict[str, Number], name: str, number: Number) -> None:
    values[name] = values.get(name, 0) + number


def _time_values(times: StepTimes) -> dict[str, Number]:
    values: dict[str, Number] = {
        f"time.{name}": getattr(times, f"{name}_s")
        for name in ("gemm", "attention", "memory", "comm", "hidden", "exposed")
    }
    values |= {f"exposed.{purpose}": share for purpose, share in times.exposed_by_purpose_s.items()}
    return values | {f"role.{role}": share for role, share in times.compute_by_role_s.items()}


def _peaks(segments: Iterable[Segment]) -> tuple[dict[str, int], bool]:
    """The largest peak of each kind of stretch, and whether the blocks' peaks lie on straight lines.

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
    for where, of_pass in blocks.items():
        peaks[f"{where}, first block"] = of_pass[min(of_pass)]
        peaks[f"{where}, last block"] = of_pass[max(of_pass)]
    return peaks, all(_is_line(of_pass) for of_pass in blocks.values())


def _is_line(peaks: dict[int, int]) -> bool:
    values = [peaks[key] for key in sorted(peaks)]
    return all(a + c == 2 * b for a, b, c in zip(values, values[1:], values[2:], strict=False))
