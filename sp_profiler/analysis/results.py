"""The results of the analyses: plain frozen dataclasses, named and typed as the report has them.

All times are int nanoseconds, all sizes bytes. None means "could not look", and the ledger says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sp_profiler.ledger import LedgerEntry


@dataclass(frozen=True)
class Hiding:
    """How much of what could be hidden is hidden (DESIGN: Hiding)."""

    partner_hidden_ns: int | None = None
    partner_hideable_ns: int | None = None
    hidden_of_hideable: float | None = None


@dataclass(frozen=True)
class LeftOut:
    """What no window covers, per reason and kind. `ns` is a union, so windows + left out = all."""

    reason: str  # before-first-window | after-last-window | between-windows
    kind: str  # communication | computation | memory; a fused kernel is in the first two, as in C and K
    events: int  # those that lie there at least in part
    ns: int


@dataclass(frozen=True)
class Figures:
    """The figures of one (rank, device) or of one step of it (DESIGN section 4).

    `compute_ns + exposed_ns + memory_op_only_ns + idle_ns == window_ns`, always.
    """

    window_ns: int | None
    comm_ns: int | None
    compute_ns: int | None
    memory_op_ns: int | None
    memory_op_only_ns: int | None
    busy_ns: int | None
    idle_ns: int | None
    overlapped_ns: int | None
    exposed_ns: int | None
    overlap_ratio: float | None
    overlapped_by_role_ns: dict[str, int]
    exposed_by_group_ns: dict[str, int]
    exposed_by_op_ns: dict[str, int]
    exposed_by_purpose_ns: dict[str, int]
    exposed_by_phase_ns: dict[str, int]
    exposed_by_module_ns: dict[str, int]
    exposed_by_layer_ns: dict[str, int]
    exposed_by_cause_ns: dict[str, int] | None
    exposed_union_by_group_ns: dict[str, int]
    dgrad_comm_ns: int | None
    wgrad_overlapped_ns: int | None
    wgrad_overlap_ratio: float | None
    partner_hidden_ns: int | None
    partner_hideable_ns: int | None
    hidden_of_hideable: float | None
    partner_unknown: int | None  # collectives without a known partner, left out of the three figures above
    hiding_by_purpose: dict[str, Hiding]
    step_ns_if_all_hidden: int | None
    # Kernels that compute and communicate at once: in comm_ns, compute_ns and overlapped_ns, listed apart
    # because their overlap is by construction, not measured hiding. Never in the hiding figures above.
    fused_ns: int | None = None


@dataclass(frozen=True)
class RankFigures(Figures):
    rank: int | None = None
    device: int = 0
    device_type: str = "cuda"  # cuda | cpu
    file: str = ""
    cpu_comm_ns: int | None = None  # gloo time in a file that also holds device events; never in comm_ns
    left_out: list[LeftOut] = field(default_factory=list)


@dataclass(frozen=True)
class StepFigures(Figures):
    rank: int | None = None
    device: int = 0
    step: int | None = None
    start_ns: int | None = None  # the window is [start_ns, end_ns)
    end_ns: int | None = None


@dataclass(frozen=True)
class Partner:
    """The GEMMs (or attention) under which a collective should hide."""

    what: str  # role: wgrad, dgrad, attention...
    module: str | None
    rule: str  # annotation | same-linear | between-launch-and-wait
    dur_ns: int  # |w|, the union of its activities
    activities: int


@dataclass(frozen=True)
class CollectiveFigures:
    """One collective of one rank.

    `start_ns` and `dur_ns` are those of the trace. `overlapped_ns`, `exposed_ns` and `exposed_share_ns` count
    what lies inside the chosen windows, so that the shares sum to the rank's `exposed_ns`; where that is less
    than the whole, `note` says so. Otherwise `overlapped_ns + exposed_ns == dur_ns`.
    """

    id: int
    rank: int | None
    device: int
    stream: int
    step: int | None  # the launching step
    op: str | None
    group: str | None  # the group's key, tp[0,1]
    ranks: list[int]
    bytes: int | None
    dtype: str | None
    seq: int | None
    is_async: bool | None
    purpose: str
    purpose_rule: str
    phase: str
    module: str | None
    layer: int | None
    launch_ns: int | None
    start_ns: int
    dur_ns: int
    overlapped_ns: int
    exposed_ns: int
    exposed_share_ns: int
    partner: Partner | None
    hidden_ns: int | None  # |c ∩ w|
    hideable_ns: int | None  # min(|c|, |w|)
    skew_wait_ns: int | None = None
    transfer_ns: int | None = None
    transfer_is_bound: bool | None = None
    algbw_gbps: float | None = None
    busbw_gbps: float | None = None
    cause: str | None = None
    exposed_by_cause_ns: dict[str, int] | None = None
    kernel: str | None = None  # the kernel's or range's own name
    note: str | None = None


@dataclass(frozen=True)
class GroupFigures:
    """One process group over the whole run, inside the chosen windows.

    `comm_ns` and `overlapped_ns` are of the union of its collectives, `exposed_share_ns` the sum of their
    shares. `bytes` is None when the size of any of them is not known.
    """

    group: str
    ranks: list[int]
    size: int | None
    backend: str | None
    collectives: int
    bytes: int | None
    comm_ns: int
    overlapped_ns: int
    exposed_share_ns: int


@dataclass(frozen=True)
class GemmFigures:
    """GEMMs of one kernel name, shape, dtype and role that ran inside the chosen windows."""

    name: str
    shape: str | None
    dtype: str | None
    role: str
    count: int
    total_ns: int
    tflops: float | None


@dataclass(frozen=True)
class Segment:
    """A drawn stretch of one lane of the timeline of one step."""

    lane: str
    name: str
    start_ns: int
    end_ns: int
    kind: str
    role: str
    phase: str
    module: str | None
    layer: int | None


@dataclass(frozen=True)
class Known:
    """How much of a total is known; `ratio` is None where there was nothing to know."""

    known_ns: int = 0
    total_ns: int = 0

    @property
    def ratio(self) -> float | None:
        return self.known_ns / self.total_ns if self.total_ns else None


@dataclass(frozen=True)
class Coverage:
    """Time-weighted shares of what was known, with their weights so that ranks can be added."""

    gemm_role: Known = Known()  # GEMM time whose role is known
    purpose: Known = Known()  # communication time whose purpose is known
    comm_metadata: Known = Known()  # communication time whose op, group and bytes are all known


@dataclass(frozen=True)
class RankResult:
    """Everything the per-rank analyses say about one trace. `groups` and `gemms` are device by device."""

    ranks: tuple[RankFigures, ...]  # one per device
    steps: tuple[StepFigures, ...]
    collectives: tuple[CollectiveFigures, ...]
    groups: tuple[GroupFigures, ...]
    gemms: tuple[GemmFigures, ...]
    gemm_role_known_ratio: float | None
    purpose_known_ratio: float | None
    comm_metadata_ratio: float | None
    ledger: tuple[LedgerEntry, ...]
    coverage: Coverage = field(default_factory=lambda: Coverage())  # what the three ratios are made of
