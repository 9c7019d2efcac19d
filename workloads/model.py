"""A LLaMA-like decoder in [S, B, H] layout that does not know how it is split: it asks its `Layout`.

S tokens, B sequences, H hidden, a heads, k key/value heads, d = H/a. `a` and `k` below are those of
this rank, which the model reads off the shapes that the layout's linears give it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sp_profiler.record.annotate import annotate
from workloads.attention import Attend
from workloads.communication import Site
from workloads.config import WorkloadConfig
from workloads.layout import Layout
from workloads.linear import Piece, Weighted
from workloads.norms import RMSNorm, compute_dtype

ROPE_BASE = 10_000.0


class Embedding(Weighted):
    """Tokens [S, B] -> [S, B, H]; every rank has it whole."""

    saved_term = "embedding"

    def __init__(self, site: Site, vocab: int, hidden: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(site, [Piece(f"{site.module}.weight", (vocab, hidden))], 1, device, dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.weight)


class Attention(nn.Module):
    """Causal grouped-query attention (Ainslie et al. 2023, arXiv 2305.13245) with rotary embedding."""

    saved_term = "rotary"

    def __init__(self, config: WorkloadConfig, layout: Layout, layer: int) -> None:
        super().__init__()
        assert config.kv_heads is not None
        prefix = f"layers.{layer}.attention"
        self._ratio = (config.heads, config.kv_heads, config.kv_heads)
        self._head_dim = config.head_dim
        outputs = {name: heads * config.head_dim for name, heads in zip("qkv", self._ratio, strict=True)}
        self.projections = _columns(layout, prefix, layer, config, outputs, fused_name="qkv")
        shape = (config.hidden, config.hidden)
        self.o = layout.row(Site(f"{prefix}.o", layer), Piece(f"{prefix}.o.weight", shape))
        core = Site(f"{prefix}.core", layer)
        self.core = AttentionCore(core, layout.attend, recompute=config.recompute == "selective")

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        heads = [
            part.unflatten(-1, (-1, self._head_dim))  # (S, B, a*d) -> (S, B, a, d)
            for part in _project(x, self.projections, self._ratio)
        ]
        # A v that is part of a fused output would keep all of it alive until backward: copy it out.
        q, k, v = rotate(heads[0], cos, sin), rotate(heads[1], cos, sin), heads[2].contiguous()
        return self.o(self.core(q, k, v).flatten(2))  # (S, B, a, d) -> (S, B, a*d)


class AttentionCore(nn.Module):
    """What the layout's `attend` does; with `recompute` only q, k and v are kept for backward."""

    saved_term = "attention"

    def __init__(self, site: Site, attend: Attend, *, recompute: bool) -> None:
        super().__init__()
        self.site = site
        self._attend = attend
        self._recompute = recompute

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self._recompute:
            return repeated(self._attend, self.site, q, k, v, self.site)
        return self._attend(q, k, v, self.site)


class FeedForward(nn.Module):
    """SwiGLU (Shazeer 2020, arXiv 2002.05202): down(silu(gate(x)) * up(x))."""

    saved_term = "mlp"

    def __init__(self, config: WorkloadConfig, layout: Layout, layer: int) -> None:
        super().__init__()
        assert config.ffn is not None
        prefix = f"layers.{layer}.mlp"
        outputs = {"gate": config.ffn, "up": config.ffn}
        self.projections = _columns(layout, prefix, layer, config, outputs, fused_name="gate_up")
        shape = (config.hidden, config.ffn)
        self.down = layout.row(Site(f"{prefix}.down", layer), Piece(f"{prefix}.down.weight", shape))

    def forward(self, x: Tensor) -> Tensor:
        gate, up = _project(x, self.projections, (1, 1))
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    """Pre-norm residual block. Modules are registered in their order of use.

    With full recompute only its input is kept for backward.
    """

    def __init__(
        self, config: WorkloadConfig, layout: Layout, layer: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__()

        def norm(name: str) -> RMSNorm:
            return RMSNorm(Site(f"layers.{layer}.{name}", layer), config.hidden, config.norm, device, dtype)

        self.site = Site(f"layers.{layer}", layer)
        self._recompute = config.recompute == "full"
        self.attention_norm = norm("attention_norm")
        self.attention = Attention(config, layout, layer)
        self.mlp_norm = norm("mlp_norm")
        self.mlp = FeedForward(config, layout, layer)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if self._recompute:
            return repeated(self._run, self.site, x, cos, sin)
        return self._run(x, cos, sin)

    def _run(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.mlp(self.mlp_norm(x))


class Decoder(nn.Module):
    """Embedding, blocks, final norm and untied head. Weights are uninitialised."""

    cos: Tensor
    sin: Tensor
    saved_term = "other"

    def __init__(
        self, config: WorkloadConfig, layout: Layout, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self._layout = layout
        self.embedding = Embedding(Site("embedding"), config.vocab, config.hidden, device, dtype)
        self.layers = nn.ModuleList(Block(config, layout, i, device, dtype) for i in range(config.layers))
        self.norm = RMSNorm(Site("norm"), config.hidden, config.norm, device, dtype)
        self.head = layout.replicated(Site("head"), Piece("head.weight", (config.vocab, config.hidden)))
        self.cross_entropy = CrossEntropy()
        positions = layout.own_tokens(torch.arange(config.seq_len, device=device))
        cos, sin = rotary_tables(positions, config.head_dim, compute_dtype(dtype))
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [S, B, vocab] of tokens [S, B], S being those that the layout gives this rank."""
        x = self._layout.enter(self.embedding(tokens), Site("embedding"))
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.head(self._layout.leave(self.norm(x), Site("head")))

    def loss(self, tokens: Tensor) -> Tensor:
        """Mean cross-entropy of the next token, in fp32 or better; tokens are [S+1, B] of the whole sequence.

        Where ranks divide the sequence it is the mean over this rank's tokens.
        """
        own, following = self._layout.own_tokens(tokens[:-1]), self._layout.own_tokens(tokens[1:])
        return self.cross_entropy(self(own), following)


class CrossEntropy(nn.Module):
    """Mean over all tokens [S, B] of the logits [S, B, vocab], in fp32 or better."""

    saved_term = "logits"

    def forward(self, logits: Tensor, tokens: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1).to(compute_dtype(logits.dtype)), tokens.flatten())


def weighted_modules(model: nn.Module) -> Iterator[tuple[str, Weighted]]:
    """Every module that holds a weight, with its name."""
    for name, module in model.named_modules():
        if isinstance(module, Weighted):
            yield name, module


def _columns(
    layout: Layout,
    prefix: str,
    layer: int,
    config: WorkloadConfig,
    outputs: dict[str, int],
    fused_name: str,
) -> nn.ModuleDict:
    """One column linear for each of `outputs`, or one for all of them."""
    pieces = [Piece(f"{prefix}.{name}.weight", (size, config.hidden)) for name, size in outputs.items()]
    if config.projections == "fused":
        return nn.ModuleDict({fused_name: layout.column(Site(f"{prefix}.{fused_name}", layer), pieces)})
    return nn.ModuleDict(
        {
            name: layout.column(Site(f"{prefix}.{name}", layer), [piece])
            for name, piece in zip(outputs, pieces, strict=True)
        }
    )


def _project(x: Tensor, linears: nn.ModuleDict, ratio: Sequence[int]) -> list[Tensor]:
    """The outputs of all linears; a fused one's are split in this ratio (a rank holds a part of each)."""
    if len(linears) == len(ratio):
        return [linear(x) for linear in linears.values()]
    (fused,) = linears.values()
    out = fused(x)
    unit = out.shape[-1] // sum(ratio)
    return list(out.split([unit * share for share in ratio], dim=-1))


def rotary_tables(positions: Tensor, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin [S, 1, 1, d/2] of position x base^(-2i/d) (Su et al. 2021, arXiv 2104.09864).

    `positions` [S] are those in the whole sequence, whatever part of it this rank holds.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device=positions.device) / head_dim
    angles = torch.outer(positions.double(), ROPE_BASE**-exponents)
    angles = angles[:, None, None, :]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the halves of each head, [S, B, a, d], in the precision of the tables."""
    first, second = x.to(cos.dtype).chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


def repeated(function: Callable[..., Tensor], site: Site, *inputs: Any) -> Tensor:
    """`function(*inputs)`, of which only the inputs are kept: backward runs it once more when it needs the
    rest (Chen et al. 2016, arXiv 1604.06174), under a `recompute` range."""
    again = partial(annotate, "recompute", module=site.module, layer=site.layer)
    # Nothing here is random, so no state of a generator is kept either.
    return checkpoint(
        function,
        *inputs,
        use_reentrant=False,
        preserve_rng_state=False,
        context_fn=lambda: (nullcontext(), again()),
    )
