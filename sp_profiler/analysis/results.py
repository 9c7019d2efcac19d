"""The results of the analyses: plain frozen dataclasses, named and typed as the report has them.

All times are int nanoseconds, all sizes bytes. None means "could not look", and the ledger says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sp_profiler.analysis.arrivals import Arrivals
from sp_profiler.analysis.columns import Records
from sp_profiler.analysis.context_parallel.families import DeviceContext
from sp_profiler.ledger import LedgerEntry
from sp_profiler.trace.tables import Int64


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
    # Idle because what ran next had not been launched; None where launches are not known, and on the CPU.
    host_bound_ns: int | None = field(default=None, kw_only=True)
    # What overlapped GEMMs lost to the communication beside them, and overlapped_ns without it; None where
    # no overlapped GEMM could be compared (DESIGN: Contention).
    slowdown_ns: int | None = field(default=None, kw_only=True)
    net_gain_ns: int | None = field(default=None, kw_only=True)
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
class CauseEvidence:
    """What decided the cause of a collective, to be looked up in the trace; None where it does not say."""

    rule: str  # one of analysis.causes.RULES
    queued_behind: str | None  # same-group | full-device: it began late behind these
    wait_start_ns: int | None
    wait_end_ns: int | None
    launched_before_wait: int | None  # computations launched between launch and wait
    partner_launch_ns: int | None  # of the partner's first activity
    partner_start_ns: int | None
    partner_end_ns: int | None  # of the partner's last activity


@dataclass(frozen=True, slots=True)  # a run has a million: a dict for each would take 2 GB
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
    queue_delay_ns: int | None = None  # from launch to start
    cause_evidence: CauseEvidence | None = None


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
    skew_wait_ns: int | None = None  # summed over its ranks; None where no collective was matched
    bandwidth: list[Bandwidth] | None = None  # by operation; None where none is known


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
    share_of_peak: float | None = None  # of the device's dense peak for the dtype; None for unknown devices


@dataclass(frozen=True)
class GemmSamples:
    """The GEMMs of known shape of one device, one row each; int64 columns. What contention is made of."""

    keys: tuple[tuple[str, str | None, str], ...]  # shape, dtype, role
    key: Int64  # place in `keys`
    dur_ns: Int64
    overlapped_ns: Int64  # the part during which communication runs
    window: Int64  # place of the window in which it begins


@dataclass(frozen=True)
class ContentionFigures:
    """GEMMs of one shape, dtype and role: while communication overlaps at least half of each, and while not.

    A median is None with fewer than five samples; `from_baseline` names the side that another run lent.
    """

    shape: str
    dtype: str | None
    role: str
    overlapped_count: int
    alone_count: int
    median_overlapped_ns: int | None
    median_alone_ns: int | None
    from_baseline: str | None  # overlapped | alone
    slowdown_ratio: float | None  # median_overlapped / median_alone
    slowdown_ns: int | None  # overlapped_count x the difference of the medians, at least 0
    overlapped_gemm_ns: int  # time of the overlapped ones


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
class CriticalPathPart:
    """Equal parts of a critical path: a kernel, operator or gap, with how often and how long it is on it."""

    name: str
    kind: str
    count: int
    ns: int


@dataclass(frozen=True)
class CriticalPath:
    """The longest chain of dependencies through one step of one rank, as another tool finds it."""

    rank: int | None
    step: int | None  # None: the whole trace
    source: str  # the tool and its version
    total_ns: int
    by_kind_ns: dict[str, int]  # in the tool's words: cpu_bound, gpu_compute_bound, ...
    longest: list[CriticalPathPart]
    is_complete: bool  # False: the tool could not connect all of it


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
class ExposedStretches:
    """The exposed time of one device, stretch by stretch, before it is divided among causes. Int64 columns.

    The first seven have a row for each collective: until `first_turn_ns` its exposed time has the cause
    `causes[:, 0]`, until `second_turn_ns` `causes[:, 1]`, then `causes[:, 2]`, which are places in
    `analysis.causes.CAUSES`. The others have a row for each (collective, exposed stretch in which the same
    collectives run): `owner` is the collective's row, `window` the place of the window, `share_ns` what the
    collective gets of the stretch.
    """

    id: Int64
    begins_ns: Int64
    first_turn_ns: Int64
    second_turn_ns: Int64
    causes: Int64  # (collectives, 3)
    evidence: Records  # of CauseEvidence
    delay_ns: Int64
    owner: Int64
    window: Int64
    start_ns: Int64
    end_ns: Int64
    share_ns: Int64


@dataclass(frozen=True)
class Clock:
    """The clock of one host against the first host's (that of the lowest rank).

    `offset_ns` is how far it is ahead, None where no collective connects it; `spread_ns` how far single
    collectives stray from that; `residual_ns` the median disagreement of end times that is left. `host` is
    None where nothing names it.
    """

    host: str | None
    ranks: list[int]
    offset_ns: int | None
    spread_ns: int | None
    residual_ns: int | None
    applied: bool
    collectives: int = 0  # end times compared


@dataclass(frozen=True)
class Unmatched:
    """A collective that some of its ranks lack.

    `reason` is `not-in-trace` for ranks whose trace lacks it, one entry each, and `no-trace` for ranks that
    have no trace here: one entry for all such collectives of a group and operation (`seq` is then that of
    the only one, else None).
    """

    group: str | None
    op: str | None
    seq: int | None
    ranks_present: list[int]
    ranks_missing: list[int]
    reason: str = "not-in-trace"
    collectives: int = 1


@dataclass(frozen=True)
class Straggler:
    """A rank and what the others lost to it: the time they waited in collectives at which it arrived last."""

    rank: int
    cost_ns: int
    collectives: int
    cost_by_group_ns: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Bandwidth:
    """One operation of one group: sums over collectives whose transfer and size are known, and their ratio.

    `is_bound`: ranks are missing in some, so bandwidths are lower bounds.
    """

    op: str
    collectives: int
    bytes: int
    transfer_ns: int
    algbw_gbps: float | None
    busbw_gbps: float | None
    is_bound: bool


@dataclass(frozen=True)
class RankResult:
    """Everything the per-rank analyses say about one trace. `groups` and `gemms` are device by device."""

    ranks: tuple[RankFigures, ...]  # one per device
    steps: tuple[StepFigures, ...]
    collectives: Sequence[CollectiveFigures]  # analysis.collective_table.Collectives: columns
    groups: tuple[GroupFigures, ...]
    gemms: tuple[GemmFigures, ...]
    gemm_role_known_ratio: float | None
    purpose_known_ratio: float | None
    comm_metadata_ratio: float | None
    ledger: tuple[LedgerEntry, ...]
    coverage: Coverage = field(default_factory=lambda: Coverage())  # what the three ratios are made of
    # One per device, in the order of `ranks`; what causes are made of, no result itself.
    stretches: tuple[ExposedStretches, ...] = field(default=(), compare=False, repr=False)
    # Likewise what contention is made of; None for CPU runs.
    gemm_samples: tuple[GemmSamples | None, ...] = field(default=(), compare=False, repr=False)
    # All collectives of the trace, for the analyses across ranks.
    arrivals: Arrivals | None = field(default=None, compare=False, repr=False)
    # Attention over a shared sequence, of each device that shows any: what `context_parallel` is made of.
    context: tuple[DeviceContext, ...] = field(default=(), compare=False, repr=False)
