"""What the model asks of the way it is split, so that it need not know which one it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor, nn

from workloads.attention import attention_core
from workloads.communication import Site
from workloads.linear import Piece, Weighted


class Layout(Protocol):
    """How a decoder is spread over ranks.

    Between `enter` and `leave` the residual stream is [S, B, H] or this rank's part of it. Column
    linears take the stream and give the full sequence; row linears take the full sequence with this
    rank's features and give the stream.
    """

    @property
    def model_parts(self) -> int:
        """Ranks that divide the pieces of one model among them."""
        ...

    @property
    def model_part(self) -> int:
        """This rank's place among them."""
        ...

    def column(self, site: Site, pieces: Sequence[Piece]) -> Weighted:
        """A linear that divides its outputs; `pieces` of shape [O, I] each."""
        ...

    def row(self, site: Site, piece: Piece) -> Weighted:
        """A linear that divides its inputs."""
        ...

    def replicated(self, site: Site, piece: Piece) -> Weighted:
        """A linear that every rank has whole."""
        ...

    def enter(self, x: Tensor, site: Site) -> Tensor:
        """From the full [S, B, H] to the residual stream."""
        ...

    def leave(self, x: Tensor, site: Site) -> Tensor:
        """From the residual stream to the full [S, B, H]."""
        ...

    def own_tokens(self, x: Tensor) -> Tensor:
        """Of something [S, ...] of the whole sequence what belongs to the tokens of this rank's model."""
        ...

    def attend(self, q: Tensor, k: Tensor, v: Tensor, site: Site) -> Tensor:
        """Causal attention over the whole sequence of this rank's q [S, B, a, d] and k, v [S, B, k, d]."""
        ...

    def gradient_reduction(self, model: nn.Module) -> GradientReduction:
        """What is still to be summed over ranks once the gradients of `model` exist."""
        ...


class WholeSequence:
    """For layouts that give every rank's attention core all tokens, of some or all heads."""

    def own_tokens(self, x: Tensor) -> Tensor:
        return x

    def attend(self, q: Tensor, k: Tensor, v: Tensor, site: Site) -> Tensor:
        return attention_core(q, k, v, site)


class GradientReduction(Protocol):
    """Sums over ranks those gradients that are not whole after backward."""

    def before_last_backward(self) -> None:
        """The backward that follows is the step's last: every gradient is complete after it."""
        ...

    def finish(self) -> None:
        """On return every `.grad` is what the whole model on one device would have."""
        ...


class NothingToReduce:
    """For layouts in which backward leaves every gradient whole."""

    def before_last_backward(self) -> None:
        return

    def finish(self) -> None:
        return
