"""What a check found: plain data, as its JSON has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sp_profiler.report.model import Tool

SCHEMA = "sp-profile/check"
SCHEMA_VERSION = 1

State = Literal["holds", "broken", "unknown", "skipped"]
VerdictUnit = Literal["ns", "bytes", "ratio", "gbps", "count", "text"]
Bound = Literal["max", "min", "equals", "no-worse", "none-of"]


@dataclass(frozen=True)
class Where:
    """What to look at first: whoever is worst. None where that does not apply, or is not known."""

    rank: int | None = None
    device: int | None = None
    step: int | None = None
    collective: int | None = None  # its id in the report
    text: str = ""  # in words


@dataclass(frozen=True)
class Verdict:
    """One budget of one run. Figures are in base units: ns, bytes, ratios in [0, 1], 1e9 bytes a second.

    `broken` and, unless it is allowed, `unknown` fail the check. `skipped`: there was nothing to compare
    with. `value` is null when nobody could look, and where only a lower bound is known that bound: `text`
    then says why.
    """

    budget: str  # unlike that of any other budget of the run
    figure: str
    bound: Bound
    state: State
    fails: bool
    value: float | int | str | bool | None
    limit: float | int | str | bool | None  # of no-worse: the worst value that is still allowed
    unit: VerdictUnit
    scope: Literal["total", "rank", "step"]
    text: str  # one sentence
    where: Where | None = None
    baseline: float | int | None = None  # the other run's value
    worse: Literal["higher", "lower"] | None = None  # of no-worse: which way is
    noise: float | None = None  # of no-worse: what the steps' spread lets the two differ by
    origin: str = ""  # the option, or the file, that set it


@dataclass(frozen=True)
class RunCheck:
    """One run and its budgets. `error`: why it could not be used, with no verdicts then."""

    name: str
    path: str
    holds: bool
    verdicts: list[Verdict]
    notes: list[str] = field(default_factory=list)
    error: str | None = None
    device_type: str | None = None
    seconds: float | None = None  # that reading and judging took


@dataclass(frozen=True)
class Check:
    """All runs. It holds when every budget of every run does."""

    tool: Tool
    holds: bool
    runs: list[RunCheck]
    config: str | None  # the file that budgets came from
    baseline: str | None
    schema: Literal["sp-profile/check"] = SCHEMA
    schema_version: Literal[1] = field(default=SCHEMA_VERSION)


def failed(run: RunCheck) -> list[Verdict]:
    """The verdicts that fail the check, those that are broken first."""
    return sorted((one for one in run.verdicts if one.fails), key=lambda one: one.state != "broken")


def count(run: RunCheck, state: State) -> int:
    return sum(one.state == state for one in run.verdicts)
