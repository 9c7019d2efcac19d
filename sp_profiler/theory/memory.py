"""Closed forms of memory: what one rank of a shipped workload keeps for backward and holds, in bytes.

A LLaMA-like decoder (pre-norm blocks, RMSNorm, grouped-query attention with a flash kernel, SwiGLU) in
[S, B, H] layout. G = S*B tokens of a micro-batch, F = e*G*H bytes of one activation for elements of e bytes,
T ranks that share the model (1 in ddp), h = max(e, 4) bytes of what is computed in fp32 or better. In sp a
rank's residual stream holds G/T tokens, else G: G' below.

Every term follows from what an operator needs for its derivative. A product keeps the factors whose
partner needs a gradient, a power its input, rsqrt, softmax and SiLU's product what they made or took. Nothing
is kept twice: where two operators keep one tensor, the first counts. Korthikanti et al. (arXiv 2205.05198)
count the GPT layer of their paper in the same way: `korthikanti`.
"""

from __future__ import annotations

from dataclasses import dataclass

from sp_profiler.theory.communication import block_parameters
from sp_profiler.theory.korthikanti import korthikanti

__all__ = ["TERMS", "Shape", "block_terms", "korthikanti", "outer_terms", "saved_bytes", "saved_terms"]

TERMS = (
    "embedding",  # the tokens that the embedding looked up
    "norm",  # what RMSNorm keeps of its input
    "column-input",  # inputs of the column linears: gathered, shared, or a shard
    "row-input",  # inputs of the row linears
    "rotary",  # what rotary embedding keeps besides its tables
    "attention",  # q, k, v, the output and the log-sum-exp of the attention core
    "mlp",  # gate, up and SiLU(gate)
    "recompute-input",  # inputs of what a checkpoint will run again
    "logits",  # the head's input, the log-softmax, the loss's weight
    "other",  # anything else: nothing, in the closed form
)
"""The terms of the equation, as `record.saved_tensors` names what it sees."""

MODES = ("ddp", "tp", "sp")
SAVES = ("full", "shard")
PROJECTIONS = ("separate", "fused")
NORMS = ("eager", "fused")
RECOMPUTES = ("none", "selective", "full")

_TOKEN_BYTES = 8
_STEP_BYTES = 4
"""Of AdamW's step counter, an fp32 scalar for each parameter tensor."""
_COLUMNS = {"separate": 5, "fused": 2}
"""Column linears of a block: q, k, v, gate and up; or qkv and gate_up."""


@dataclass(frozen=True)
class Shape:
    """A workload's sizes and schedule. Raises ValueError for a value that is not one of the known ones."""

    mode: str
    seq_len: int
    micro_batch: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    ranks: int = 1
    element_bytes: int = 2
    save: str | None = None
    projections: str = "separate"
    norm: str = "eager"
    recompute: str = "none"
    num_microbatches: int = 1

    def __post_init__(self) -> None:
        known = {
            "mode": MODES,
            "save": (*SAVES, None),
            "projections": PROJECTIONS,
            "norm": NORMS,
            "recompute": RECOMPUTES,
        }
        for name, values in known.items():
            if getattr(self, name) not in values:
                raise ValueError(f"no closed form for {name} '{getattr(self, name)}'")

    @property
    def parts(self) -> int:
        """T."""
        return 1 if self.mode == "ddp" else self.ranks

    @property
    def tokens(self) -> int:
        """G = S*B."""
        return self.seq_len * self.micro_batch

    @property
    def stream_tokens(self) -> int:
        """G': tokens of a rank's residual stream."""
        return self.tokens // self.parts if self.mode == "sp" else self.tokens

    @property
    def activation_bytes(self) -> int:
        """F."""
        return self.element_bytes * self.tokens * self.hidden

    @property
    def high_bytes(self) -> int:
        """h."""
        return max(self.element_bytes, 4)


def norm_bytes(shape: Shape) -> int:
    """One RMSNorm. eager, operator by operator: pow keeps x in fp32 (hG'H), the product with rsqrt keeps
    rsqrt (hG') and shares x, the product with the weight keeps the normalised x (hG'H): in bf16 4F and 4G'
    bytes without SP, so two norms of a block make the 8F of FACTS. fused: x as it came (eG'H) and one number
    a token (hG')."""
    tokens, high = shape.stream_tokens, shape.high_bytes
    if shape.norm == "eager":
        return 2 * high * tokens * shape.hidden + high * tokens
    return shape.element_bytes * tokens * shape.hidden + high * tokens


def column_input_bytes(shape: Shape) -> int:
    """Inputs of a block's column linears. ddp, tp: two (q, k, v share one, gate and up the other), 2F. sp
    that saves the gathered input: one for each linear, 5F separate, 2F fused. sp that saves a shard: the two
    shared ones divided, 2F/T. Megatron-LM (arXiv 2205.05198, section 4.2.2) does the last."""
    if shape.mode != "sp":
        return 2 * shape.activation_bytes
    if shape.save == "shard":
        return 2 * shape.activation_bytes // shape.parts
    return _COLUMNS[shape.projections] * shape.activation_bytes


def _query_bytes(shape: Shape) -> int:
    """q, or the attention core's output, of this rank's heads: F/T."""
    return shape.activation_bytes // shape.parts


def _key_value_bytes(shape: Shape) -> int:
    """k and v of this rank's heads: 2F/T times key/value heads over heads."""
    return 2 * shape.activation_bytes * shape.kv_heads // (shape.heads * shape.parts)


def attention_bytes(shape: Shape) -> int:
    """q, k, v, the output, and the log-sum-exp in fp32 or better: 2F/T + 2F/T k/a + hGa/T. What the kernel
    for CPUs keeps; CUDA's flash kernel keeps two 8-byte random states more. The output is the row linear's
    input too and counts here."""
    lse = shape.high_bytes * shape.tokens * shape.heads // shape.parts
    return 2 * _query_bytes(shape) + _key_value_bytes(shape) + lse


def mlp_bytes(shape: Shape) -> int:
    """SiLU keeps gate, its product with up keeps SiLU(gate) and up: 3eG ffn/T."""
    return 3 * shape.element_bytes * shape.tokens * shape.ffn // shape.parts


def down_input_bytes(shape: Shape) -> int:
    """The input of the second row linear: eG ffn/T."""
    return shape.element_bytes * shape.tokens * shape.ffn // shape.parts


def block_terms(shape: Shape) -> dict[str, int]:
    """Bytes by term that one block keeps for backward, one micro-batch.

    recompute full: the block's input, eG'H, and nothing else. selective: the attention core's inputs q, k
    and v as `recompute-input`, its output as the row linear's input; only the log-sum-exp is freed, because
    a flash kernel keeps no scores (with stored scores it is 5as/h, equation 6 of the paper).
    """
    if shape.recompute == "full":
        return {"recompute-input": shape.element_bytes * shape.stream_tokens * shape.hidden}
    terms = {
        "norm": 2 * norm_bytes(shape),
        "column-input": column_input_bytes(shape),
        "row-input": down_input_bytes(shape),
        "attention": attention_bytes(shape),
        "mlp": mlp_bytes(shape),
    }
    if shape.recompute == "selective":
        del terms["attention"]
        terms["row-input"] += _query_bytes(shape)
        terms["recompute-input"] = _query_bytes(shape) + _key_value_bytes(shape)
    return terms


def outer_terms(shape: Shape) -> dict[str, int]:
    """Bytes by term of what is there once: the tokens of the whole step (8 bytes, S+1 of a sequence), the
    final norm, and for the loss the head's whole input (F), the log-softmax (hG vocab) and a scalar (h).
    """
    tokens = _TOKEN_BYTES * (shape.seq_len + 1) * shape.micro_batch * shape.num_microbatches
    log_softmax = shape.high_bytes * shape.tokens * shape.vocab
    return {
        "embedding": tokens,
        "norm": norm_bytes(shape),
        "logits": shape.activation_bytes + log_softmax + shape.high_bytes,
    }


def shape_terms(shape: Shape, layers: int) -> dict[str, int]:
    """Bytes by term of a model with so many blocks; terms that are 0 are there too."""
    block, outer = block_terms(shape), outer_terms(shape)
    return {term: layers * block.get(term, 0) + outer.get(term, 0) for term in TERMS}


def saved_terms(
    *,
    mode: str,
    layers: int,
    seq_len: int,
    micro_batch: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    ffn: int,
    vocab: int,
    ranks: int,
    element_bytes: int,
    save: str | None = None,
    projections: str = "separate",
    norm: str = "eager",
    recompute: str = "none",
    num_microbatches: int = 1,
) -> dict[str, int]:
    """Bytes by term (`TERMS`, each there) that one rank keeps for backward, one micro-batch; exact.

    `block_terms` has those of a block, `outer_terms` those outside of the blocks. Raises ValueError for an
    unknown mode or option.
    """
    shape = Shape(
        mode, seq_len, micro_batch, hidden, heads, kv_heads, ffn, vocab, ranks, element_bytes,
        save, projections, norm, recompute, num_microbatches,
    )  # fmt: skip
    return shape_terms(shape, layers)


def saved_bytes(shape: Shape, layers: int) -> int:
    """All of `shape_terms`."""
    return sum(shape_terms(shape, layers).values())


@dataclass(frozen=True)
class States:
    """What a rank holds from step to step, and the gradients between backward and the optimizer."""

    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int


def states(shape: Shape, layers: int) -> States:
    """Parameters (eP), gradients (eP) and AdamW's two moments and step counters (2eP + 4 per tensor).

    P is what one rank holds: linears of the blocks divided by T, norms, embedding and head whole. Moments are
    of the parameters' type, as torch makes them; there are no fp32 master weights.
    """
    sizes = {
        "hidden": shape.hidden,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "ffn": shape.ffn,
    }
    norms = 2 * shape.hidden
    block = (block_parameters(**sizes) - norms) // shape.parts + norms
    parameters = layers * block + shape.hidden + 2 * shape.vocab * shape.hidden
    tensors = layers * (_COLUMNS[shape.projections] + 2 + 2) + 3
    size = shape.element_bytes * parameters
    return States(size, size, 2 * size + _STEP_BYTES * tensors)


def peak_bytes_at_least(shape: Shape, layers: int) -> int:
    """What a step cannot do without: parameters and optimizer with the saved activations at the border of
    forward and backward, or with all gradients when the optimizer steps. What operators make for the moment
    comes on top."""
    held = states(shape, layers)
    lasting = held.parameter_bytes + held.optimizer_bytes
    return lasting + max(saved_bytes(shape, layers), held.gradient_bytes)
