"""What a plan of long context contains: the machine-readable contract, and nothing about how it is made.

Names and units are stable: fields are added freely, never renamed. Sizes are bytes of one rank, times int ns
of the slowest rank. None: there is no such figure (no rates were given, the scheme cannot be built, or it has
no ring); `data_quality` and `failures` say why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from sp_profiler.ledger import LedgerEntry

if TYPE_CHECKING:
    import polars as pl

SCHEMA = "sp-profile/long-context-plan"
SCHEMA_VERSION = 1

Direction = Literal["forward", "backward"]
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")


@dataclass(frozen=True)
class ContextTool:
    name: str
    version: str


@dataclass(frozen=True)
class ContextSizes:
    """What was asked for. `tp` is the size of TP in the schemes that have it, whether given or chosen."""

    seq_len: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    layers: int
    micro_batch: int
    dtype: str
    causal: bool
    cp: int
    tp: int
    is_tp_given: bool
    ranks_per_node: int


@dataclass(frozen=True)
class LinkRates:
    """One direction of a rank's link; GB are 1e9 bytes."""

    bandwidth_gb_per_s: float
    peer_bandwidth_gb_per_s: float  # to one other rank
    step_latency_us: float
    launch_latency_us: float


@dataclass(frozen=True)
class ContextMachine:
    name: str
    tflops: float  # dense peak at the plan's dtype
    efficiency: float  # share of it that GEMMs and attention reach
    across: LinkRates  # between ranks of different nodes
    inside: LinkRates  # between ranks of one node
    sources: list[str]


@dataclass(frozen=True)
class Failure:
    """A constraint that the scheme does not meet at these sizes."""

    code: str
    text: str


@dataclass(frozen=True)
class Transfer:
    """What one rank sends in one layer and direction: `count` hops, or collectives, of equal size.

    `bytes` is the full tensor of all-reduce, all-gather and reduce-scatter, a rank's buffer of an all-to-all,
    one hop of a ring. `wire_bytes` is what the rank sends for all of them. `transfer_ns` of one is its bytes
    alone, `ns` with latencies.
    """

    direction: Direction
    op: str
    payload: str  # kv, dkv, q, k, v, out, activation, input-regather, dgrad
    ranks: int
    link: Literal["inside", "across"]
    count: int
    bytes: int
    wire_bytes: int
    hides_under: str | None  # attention, a GEMM of the same linear; None: nothing
    transfer_ns: int | None
    ns: int | None


@dataclass(frozen=True)
class ToHide:
    """The smallest block, in tokens, from which on every hop hides, and the sequence it makes.

    `tokens` is Liu et al.'s condition with grouped keys and this mask (causal: the block half masked);
    `unmasked_tokens` without a mask; `with_latency_tokens` counts the link's latency too, as the plan's times
    do. The sequences are those, times the ranks of the ring, rounded up to what the scheme can divide.
    """

    tokens: float
    unmasked_tokens: float
    with_latency_tokens: float
    seq_len: int
    backward_tokens: float
    backward_with_latency_tokens: float
    backward_seq_len: int


@dataclass(frozen=True)
class RingFigures:
    """One layer's attention over a ring of `ranks`. `block_tokens` are those of one part of the ring: with
    Ulysses inside, of all its ranks together. Times of ring steps are the maximum over ranks."""

    ranks: int
    layout: str
    block_tokens: int
    hops: int  # of K and V, in each direction
    hop_bytes: int
    gradient_hops: int  # of dK and dV, in backward
    gradient_hop_bytes: int
    block_flops: int  # without a mask
    own_block_flops: int  # ring step 0, with the mask
    later_block_flops: int  # of every later ring step, the slowest rank's
    balance_ratio: float  # ideal time over the time of the slowest ranks
    hop_transfer_ns: int | None
    hop_ns: int | None
    gradient_hop_ns: int | None
    block_ns: int | None
    own_block_ns: int | None
    later_block_ns: int | None
    hidden_hops: int | None  # of `hops`, in forward, wholly under attention
    is_hidden: bool | None  # every hop of forward
    is_hidden_unmasked: bool | None  # the same, were there no mask
    is_backward_hidden: bool | None  # all of backward but the last hop of dK and dV, which nothing can hide
    backward_exposed_ns: int | None
    exposed_ns: int | None  # forward
    imbalance_ns: int | None  # forward: what an even division of the scores would save of attention
    to_hide: ToHide | None


@dataclass(frozen=True)
class LayerTime:
    """One layer, one micro-batch, on the slowest rank. gemm + attention + exposed = layer; hidden + exposed =
    comm."""

    gemm_ns: int
    attention_ns: int
    comm_ns: int
    hidden_ns: int
    exposed_ns: int
    exposed_context_ns: int  # of it by context parallelism, the rest by TP and SP
    layer_ns: int


@dataclass(frozen=True)
class ContextScheme:
    """One scheme. `scheme` names what divides the sequence; tp and sequence_parallel what divides the model
    besides. Figures are None where `failures` holds anything."""

    label: str
    scheme: Literal["tp", "sp", "ring", "ulysses", "usp"]
    layout: str | None
    recompute: Literal["none", "selective"]
    attention: Literal["scores", "recomputed", "flash"]  # what is kept of the scores
    tp: int
    sequence_parallel: bool
    cp: int
    ulysses_ranks: int
    ring_ranks: int
    ranks: int
    failures: list[Failure]
    tokens: int | None  # of the sequence, on one rank
    saved_bytes_per_layer: int | None  # Korthikanti's layer
    saved_bytes: int | None  # of all layers
    saved_by_term: dict[str, int] | None  # of one layer
    decoder_saved_bytes_per_layer: int | None  # the shipped decoder's block, with flash attention
    forward_wire_bytes: int | None
    backward_wire_bytes: int | None
    transfers: list[Transfer] | None
    ring: RingFigures | None
    forward: LayerTime | None
    backward: LayerTime | None

    @property
    def is_possible(self) -> bool:
        return not self.failures


@dataclass(frozen=True)
class RecommendedStep:
    """One step of the recommendation, in the order in which to take them."""

    order: int
    code: Literal["tensor-sequence-parallel", "selective-recompute", "context-parallel", "hide-hops"]
    title: str
    is_taken: bool
    scheme: int | None  # place in `schemes` of what stands after this step
    reason: str
    saved_bytes_per_layer_before: int | None
    saved_bytes_per_layer: int | None


@dataclass(frozen=True)
class LongContextPlan:
    tool: ContextTool
    sizes: ContextSizes
    machine: ContextMachine | None
    assumptions: list[str]
    single_device_bytes_per_layer: int
    schemes: list[ContextScheme]
    recommendation: list[RecommendedStep]
    recommended: int | None  # place in `schemes`
    data_quality: list[LedgerEntry]
    schema: Literal["sp-profile/long-context-plan"] = field(default=SCHEMA, init=False)
    schema_version: Literal[1] = field(default=SCHEMA_VERSION, init=False)

    def to_json(self) -> str:
        """As `sp-profile plan --long-context --format json` writes it."""
        from sp_profiler.report.planned import json

        return json.render(self)

    def to_polars(self, table: str = "schemes") -> pl.DataFrame:
        """A table of the plan: schemes, transfers or recommendation. Raises UsageError for another."""
        from sp_profiler.report.planned.long_context_tables import to_polars

        return to_polars(self, table)
