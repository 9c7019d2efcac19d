"""How long an executed schedule takes on a machine, and what of its communication runs under computation.

Two queues, as on a GPU: computation in the order in which it was launched, and one collective after another
on the link. A synchronous collective holds computation until it ends, an asynchronous one until its wait.
Seconds, as floats.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from sp_profiler.planning.events import Compute, Event, Launch, Wait
from sp_profiler.theory.machine import Machine
from sp_profiler.theory.time import collective_seconds, gemm_seconds


@dataclass
class StepTimes:
    """One step of one rank. `compute` and `exposed` sum to `step`; `hidden` and `exposed` to `comm`."""

    gemm_s: float = 0.0
    attention_s: float = 0.0
    memory_s: float = 0.0
    """Of operators that only read and write; 0 where the machine's memory bandwidth is not known."""
    comm_s: float = 0.0
    hidden_s: float = 0.0
    exposed_s: float = 0.0
    exposed_by_purpose_s: dict[str, float] = field(default_factory=dict)
    compute_by_role_s: dict[str, float] = field(default_factory=dict)

    @property
    def compute_s(self) -> float:
        return self.gemm_s + self.attention_s + self.memory_s

    @property
    def step_s(self) -> float:
        return self.compute_s + self.exposed_s


@dataclass(frozen=True)
class _Flight:
    launch: Launch
    start_s: float
    end_s: float


class _Clock:
    """Where the two queues stand."""

    def __init__(self, ranks: int, machine: Machine) -> None:
        self.times = StepTimes()
        self._ranks = ranks
        self._machine = machine
        self._now_s = 0.0  # of computation
        self._link_free_s = 0.0
        self._in_flight: deque[_Flight] = deque()

    def compute(self, event: Compute) -> None:
        duration = _compute_seconds(event, self._machine)
        times = self.times
        if event.kind == "gemm":
            times.gemm_s += duration
        elif event.kind == "attention":
            times.attention_s += duration
        else:
            times.memory_s += duration
        times.compute_by_role_s[event.role] = times.compute_by_role_s.get(event.role, 0.0) + duration
        self._now_s += duration

    def launch(self, event: Launch) -> None:
        start = max(self._now_s, self._link_free_s)
        duration = collective_seconds(event.op, event.bytes, self._ranks, self._machine)
        self._in_flight.append(_Flight(event, start, start + duration))
        self._link_free_s = start + duration
        if not event.is_async:
            self._settle_up_to(event.seq)

    def wait(self, event: Wait) -> None:
        if any(flight.launch.seq == event.seq for flight in self._in_flight):
            self._settle_up_to(event.seq)

    def finish(self) -> StepTimes:
        """What nobody waited for ends before the step does."""
        if self._in_flight:
            self._settle_up_to(self._in_flight[-1].launch.seq)
        return self.times

    def _settle_up_to(self, seq: int) -> None:
        """Hold computation until this collective has ended, and with it those before it on the link: what
        runs of them while nothing is computed is exposed."""
        times = self.times
        while self._in_flight:
            flight = self._in_flight.popleft()
            duration = flight.end_s - flight.start_s
            exposed = max(flight.end_s - max(self._now_s, flight.start_s), 0.0)
            purpose = flight.launch.purpose
            times.comm_s += duration
            times.exposed_s += exposed
            times.hidden_s += duration - exposed
            times.exposed_by_purpose_s[purpose] = times.exposed_by_purpose_s.get(purpose, 0.0) + exposed
            self._now_s = max(self._now_s, flight.end_s)
            if flight.launch.seq == seq:
                return


def simulate(events: Iterable[Event], ranks: int, machine: Machine) -> StepTimes:
    """Times of a step whose collectives are among `ranks`."""
    clock = _Clock(ranks, machine)
    for event in events:
        if isinstance(event, Compute):
            clock.compute(event)
        elif isinstance(event, Launch):
            clock.launch(event)
        else:
            clock.wait(event)
    return clock.finish()


def _compute_seconds(event: Compute, machine: Machine) -> float:
    if event.kind == "memory":
        return 0.0 if machine.memory_bytes_per_s is None else event.bytes / machine.memory_bytes_per_s
    return gemm_seconds(event.flops, machine)
