"""What a comparison of two runs contains: plain frozen dataclasses, and nothing about how they are shown.

Times are ns and counts are numbers, means per step and rank (`Side`); sizes are bytes, ratios shares of 1.
None means that a run does not tell, or has no such thing: `verdict` says which. Never 0 in its place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from sp_profiler.report.model import Tool

SCHEMA = "sp-profile/comparison"
SCHEMA_VERSION = 1

Unit = Literal["ns", "count", "bytes", "ratio", "gbps"]
Verdict = Literal[
    "equal",  # the same to the last digit
    "changed",  # beyond noise and resolution
    "came",  # exactly 0 in every step of the base, above the resolution in every step here
    "went",  # the other way round
    "within-noise",
    "noise-unknown",  # differs, and nothing tells how far it strays by itself
    "only-base",
    "only-here",
    "unknown",  # a run does not tell
]


@dataclass(frozen=True)
class Delta:
    """One figure of both runs.

    `figure` is its name in the report, `name` the purpose, module, ... it is of ("" for the whole).
    `difference = here - base`, `relative` that over base. Beyond `noise` (the half-width of the 99 % interval
    of the difference that the spread of the steps gives, docs/compare.md) and `resolution` it is `changed`.
    `noise_from`: steps | computation (a part of it, whose own steps are not recorded) | counted (the same
    in every repetition: no noise); None where nothing tells the noise.
    """

    figure: str
    name: str
    unit: Unit
    base: float | None
    here: float | None
    difference: float | None
    relative: float | None
    noise: float | None
    noise_from: Literal["steps", "computation", "counted"] | None
    resolution: float
    verdict: Verdict

    @property
    def is_moved(self) -> bool:
        """Whether both runs know it and it changed."""
        return self.verdict in ("changed", "came", "went")

    @property
    def is_changed(self) -> bool:
        """The same, or only one run has it at all."""
        return self.is_moved or self.verdict in ("only-base", "only-here")

    @property
    def contribution(self) -> float:
        """What it adds to the difference of a sum that it is a part of."""
        return 0.0 if self.verdict == "unknown" else (self.here or 0) - (self.base or 0)


@dataclass(frozen=True)
class Part:
    """A part of a difference, with its reason. Parts of one difference sum to it exactly, in whole ns.

    `reason`: came | gone | count | bytes | rate (time per byte) | transfer (where bytes are not known) |
    skew-wait | duration (where waits are not known) | overlap (per `under`: the role it runs under, other) |
    concurrency (exposed together with other collectives, which share that time).
    """

    reason: str
    under: str | None
    ns: int


@dataclass(frozen=True)
class RunFacts:
    """Which run, and what its means are over. `windows`: number of (rank, device, step)."""

    name: str
    label: str
    path: str
    world_size: int | None
    ranks: list[int | None]
    ranks_missing: list[int]
    backend: str | None
    device_type: str | None
    window_rule: str
    steps: int
    windows: int


@dataclass(frozen=True)
class Setting:
    """A setting of the workload or the environment that differs; None where a run does not say."""

    where: str  # workload | versions | hardware | environment | set_by_tool | run
    name: str
    base: Any
    here: Any


@dataclass(frozen=True)
class RankChange:
    rank: int | None
    device: int
    figures: list[Delta]  # of one rank: means per step


@dataclass(frozen=True)
class KindChange:
    """The collectives of one operation, group and purpose. `parts` and `by_cause` each sum to the difference
    of `exposed` (`by_cause` to the ns of rounding; empty where a run does not tell causes)."""

    op: str | None
    group: str  # a group's key; of groups that were matched by name or role the common name
    base_groups: list[str]
    here_groups: list[str]
    purpose: str
    exposed: Delta
    figures: list[Delta]
    parts: list[Part]
    by_cause: list[Delta]
    became: Literal["async", "sync"] | None  # all of them were the other before
    because: str  # in words; empty where there is no difference


@dataclass(frozen=True)
class SiteChange:
    """One collective of the program, met once in every step of every rank: the `ordinal`-th of its kind,
    module and layer in a step. `pairs`: how often it was found in both runs, the others in one only."""

    op: str | None
    group: str
    purpose: str
    phase: str
    module: str | None
    layer: int | None
    ordinal: int
    pairs: int
    only_base: int
    only_here: int
    exposed: Delta
    duration: Delta


@dataclass(frozen=True)
class CollectivePair:
    """One collective in both runs, by its ids in the two reports."""

    rank: int | None
    ordinal_of_step: int
    base_id: int
    here_id: int
    op: str | None
    group: str
    purpose: str
    module: str | None
    layer: int | None
    base_exposed_ns: int
    here_exposed_ns: int
    base_dur_ns: int
    here_dur_ns: int


@dataclass(frozen=True)
class Matched:
    """How many single collectives were found in both runs; `largest`: whose exposed time differs most."""

    pairs: int
    only_base: int
    only_here: int
    largest: list[CollectivePair]


@dataclass(frozen=True)
class GroupChange:
    """One process group, or several matched by their name or role."""

    group: str
    base_groups: list[str]
    here_groups: list[str]
    matched_by: Literal["key", "name", "role"] | None  # None: in one run only
    figures: list[Delta]


@dataclass(frozen=True)
class GemmChange:
    """GEMMs of one shape, dtype and role. `kernels` differ where another kernel was chosen."""

    shape: str | None
    dtype: str | None
    role: str
    base_kernels: list[str]
    here_kernels: list[str]
    time: Delta  # per step and rank
    count: Delta
    each: Delta  # mean duration of one


@dataclass(frozen=True)
class FindingChange:
    change: Literal["came", "went"]
    code: str
    severity: str
    text: str


@dataclass(frozen=True)
class Comparison:
    """`here` beside `base`. Lists are sorted by size of the difference, largest first."""

    tool: Tool
    runs: list[dict[str, Any]]  # base and here, as report.comparison tells of any number of runs
    base: RunFacts
    here: RunFacts
    is_different: bool | None  # None: nothing is known to differ, and the noise of something is unknown
    summary: list[str]  # the main sentences
    notes: list[str]  # what keeps the two from being compared in full
    settings: list[Setting]
    totals: list[Delta]
    step_parts: list[Delta]  # what a step is made of: differences sum to the step's
    by: dict[str, list[Delta]]  # role, cause, purpose, op, group, phase, layer, module: exposed; role: hidden
    hiding_by_purpose: list[Delta]
    exposed_parts: list[Part] | None  # of all exposed time; None where not all collectives are at hand
    ranks: list[RankChange]
    groups: list[GroupChange]
    kinds: list[KindChange] | None  # None where not all collectives are at hand
    sites: list[SiteChange] | None
    matched: Matched | None
    gemms: list[GemmChange]
    contention: list[Delta]
    stragglers: list[Delta]
    memory: list[Delta]
    context_parallel: list[Delta]
    coverage: list[Delta]
    findings: list[FindingChange]
    schema: Literal["sp-profile/comparison"] = field(default=SCHEMA)
    schema_version: Literal[1] = field(default=SCHEMA_VERSION)
