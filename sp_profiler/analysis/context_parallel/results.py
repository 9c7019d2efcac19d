"""What is found about context parallelism: plain frozen dataclasses, named as the report has them.

A *pass* is one forward or backward of attention in one layer. In a ring it consists of *ring steps*: step s
is attention over the block of keys and values that s *hops* have brought (the own block is step 0), and hop
s travels beside step s. Times are int nanoseconds, sizes bytes; None means "could not look", and the ledger
says why. Medians are over the whole passes of all steps and layers inside the chosen windows.

`phase` is forward, backward, or recompute: a forward that backward repeats is a pass of its own. Lists are
sorted by group, then rank, phase and hop; groups are named as everywhere, "unknown" where nothing names it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SchemeName = Literal["ring", "ring-self-attention", "ulysses", "usp", "all-gather", "unknown"]


@dataclass(frozen=True)
class Scheme:
    """Attention over a sequence that ranks share, as it was found; one for each set of ranks that share one.

    `evidence` is the sentence that says why it is taken for this scheme. `layout` and `causal` are those of
    run.json, else what the measured work of the ranks leaves no doubt about (`layout_rule` says which).
    """

    scheme: SchemeName
    ranks: list[int]
    groups: list[str]  # keys of the process groups it communicates in: of usp two kinds
    evidence: str
    layout: str | None  # contiguous | zigzag | striped; None where unknown, and where no ring runs
    layout_rule: str | None  # workload | measured-work
    causal: bool | None
    forward_passes: int  # whole ones of one rank, the most seen
    backward_passes: int
    incomplete_passes: int  # cut by the window, or with hops missing: in no figure below
    recompute_passes: int = 0
    ring_ranks: int | None = None  # ranks in each of its rings; None without one


@dataclass(frozen=True)
class Hop:
    """One hop of a ring (or transfer of another scheme) on one rank, over all its whole passes of a phase.

    `payload` is what travels: kv, k, v, dkv, kv+dkv, q, out... `hop` is the ring step beside which it
    travels: keys and values leave in hop 0, gradients, one step behind, in hop 1. In ring self-attention the
    turn of the second tensor goes on counting at the number of ranks; the transfers of another scheme are
    numbered from 0. `attention_ns` is the attention of that ring step; 0 where the rank computes nothing in
    it, None where the schedule has none left. `transfer_ns` is without the wait for the peer; None where
    ranks were not matched. `hidden_ns`, `exposed_ns` (its own: two hops that are exposed at once both say so)
    and what the latter is made of are sums: `exposed_ns = communication_ns + imbalance_ns + skew_ns` where
    all are known.
    """

    group: str
    rank: int | None
    device: int
    phase: str  # forward | backward | recompute
    payload: str
    hop: int
    passes: int
    source: int | None  # the rank it receives from
    target: int | None
    bytes: int | None
    dur_ns: int  # median, wait for the peer included
    transfer_ns: int | None  # median
    attention_ns: int | None  # median
    larger: Literal["transfer", "attention", "equal"] | None  # of the medians
    passes_transfer_larger: int | None
    hidden_ns: int
    exposed_ns: int
    communication_ns: int | None  # exposed although every peer was there
    imbalance_ns: int | None  # waited for a peer that had more attention to compute
    skew_ns: int | None  # waited for a peer that came late for another reason


@dataclass(frozen=True)
class StepModel:
    """max(m/beta + alpha, attention) fitted to the measured ring steps of one phase, over all ranks.

    `hop_bytes` and `hop_ns` are of everything that travels beside one block: in backward K, V and, where they
    do, dK, dV. `latency_ns` and `bytes_per_s` are None where all hops have one size: then only `hop_ns` can
    be told. `schedule` is what was measured: `overlapped` where blocks begin before the hop beside them ends,
    else `in-turn`, of which a ring step lasts hop + attention. `residual_ratio` is the median of
    |model - measured| / measured over the steps, by the model of that schedule; `model_pass_ns` is always
    that of overlapped hops: what the pass would take. Of a CPU run the fit is this machine's and says
    nothing about a network.
    """

    group: str
    phase: str
    ring_steps: int  # measured steps the fit rests on
    hop_bytes: int | None
    hop_ns: int | None
    latency_ns: int | None
    bytes_per_s: float | None
    attention_ns: int  # median of a block
    measured_pass_ns: int  # median, first ring step's start to last one's end
    model_pass_ns: int | None
    residual_ratio: float | None
    is_this_machine_only: bool  # a CPU run
    schedule: Literal["overlapped", "in-turn"] | None = None  # None where nothing tells


@dataclass(frozen=True)
class Balance:
    """How evenly the attention of a ring is divided, with every ring step as long as its slowest rank's.

    `work_ns[i][s]` is the median attention of rank `ranks[i]` in ring step s (None: no trace of the rank, or
    no attention known), `scores[i][s]` what counting gives for the layout, of one head and sequence (None
    where layout or lengths are unknown). Ratios are ideal time over the sum of the steps' maxima;
    `limit_ratio` is that of an endless sequence. Ring self-attention has 2p steps; keys and values that were
    gathered count as one.
    """

    group: str
    phase: str
    ranks: list[int]
    work_ns: list[list[int | None]]
    scores: list[list[int]] | None
    measured_ratio: float | None
    ideal_ratio: float | None
    limit_ratio: float | None
    lost_ns: list[int] | None  # per rank and pass: the steps' maxima less its own work
    imbalance_ns: list[int] | None  # per rank: of its exposed time, sums as in `Hop`
    communication_ns: list[int] | None
    skew_ns: list[int] | None


@dataclass(frozen=True)
class LayoutCopies:
    """Copies that bring heads and tokens into the order an all-to-all needs: neither attention nor
    communication. One for each rank and phase; sums inside the windows."""

    group: str
    rank: int | None
    device: int
    phase: str
    passes: int
    all_to_alls: int
    comm_ns: int
    exposed_ns: int
    copies: int
    copy_ns: int


@dataclass(frozen=True)
class ContextParallel:
    schemes: list[Scheme]
    hops: list[Hop]
    models: list[StepModel]
    balance: list[Balance]
    layout_copies: list[LayoutCopies]
