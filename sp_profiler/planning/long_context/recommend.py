"""The recommendation: what to do first, second and third, each step with its reason.

The order is that of cost: TP + SP inside a node divides everything over the fastest link and sends little
more than TP; selective recompute costs a forward of attention; context parallelism needs more ranks, and a
slower link between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from sp_profiler.planning.long_context import reasons
from sp_profiler.planning.long_context.figures import layer_sizes
from sp_profiler.planning.long_context.model import ContextScheme, ContextSizes, RecommendedStep
from sp_profiler.planning.long_context.request import ELEMENT_BYTES
from sp_profiler.planning.machines import Machines
from sp_profiler.theory.korthikanti import saved_terms


@dataclass(frozen=True)
class Situation:
    """What the steps are chosen from."""

    schemes: Sequence[ContextScheme]
    sizes: ContextSizes
    machines: Machines | None

    def place(self, scheme: str, recompute: str = "none") -> int | None:
        """Of the scheme of this name, where it can be built."""
        return next(
            (
                place
                for place, one in enumerate(self.schemes)
                if one.scheme == scheme and one.recompute == recompute and one.is_possible
            ),
            None,
        )

    def context(self) -> list[int]:
        """Places of the schemes of context parallelism to choose from: with TP + SP inside a node where that
        can be built, else alone."""
        places = [place for place, one in enumerate(self.schemes) if one.cp > 1 and one.is_possible]
        shared = [place for place in places if self.schemes[place].tp > 1]
        return shared or places

    def kept(self, place: int | None) -> int | None:
        return None if place is None else self.schemes[place].saved_bytes_per_layer

    def single(self, attention: str) -> int:
        """Bytes of a layer on one device."""
        terms = saved_terms(
            layer_sizes(self.sizes, 1),
            scheme="none",
            attention=attention,
            element_bytes=ELEMENT_BYTES[self.sizes.dtype],
        )
        return round(sum(terms.values(), Fraction(0)))


def recommend(
    schemes: Sequence[ContextScheme], sizes: ContextSizes, machines: Machines | None
) -> tuple[list[RecommendedStep], int | None]:
    """The steps in order, and the place of what stands in the end. At least one scheme can be built."""
    now = Situation(schemes, sizes, machines)
    tensor, recomputed, chosen = now.place("sp"), now.place("sp", "selective"), _chosen(now)
    steps = [
        _tensor_step(now, tensor),
        _recompute_step(now, tensor, recomputed),
        _context_step(now, recomputed, chosen),
        *_hide_step(now, chosen),
    ]
    standing = [place for place in (chosen, recomputed, tensor, now.place("tp")) if place is not None]
    return steps, standing[0]


def _tensor_step(now: Situation, tensor: int | None) -> RecommendedStep:
    before = now.place("tp")
    taken = tensor is not None
    return RecommendedStep(
        order=1,
        code="tensor-sequence-parallel",
        title=_tensor_title(now) if taken else "No TP + SP",
        is_taken=taken,
        scheme=tensor,
        reason=reasons.of_tensor(now.schemes, now.sizes, now.machines, before, tensor, now.single("scores")),
        saved_bytes_per_layer_before=now.single("scores"),
        saved_bytes_per_layer=now.kept(tensor) if taken else now.single("scores"),
    )


def _tensor_title(now: Situation) -> str:
    where = "inside a node" if now.sizes.tp <= now.sizes.ranks_per_node else "wider than a node"
    return f"TP + SP over {now.sizes.tp} ranks, {where}"


def _recompute_step(now: Situation, tensor: int | None, recomputed: int | None) -> RecommendedStep:
    before = now.single("scores") if tensor is None else now.kept(tensor)
    after = now.single("recomputed") if recomputed is None else now.kept(recomputed)
    assert before is not None
    assert after is not None
    scheme = None if recomputed is None else now.schemes[recomputed]
    return RecommendedStep(
        order=2,
        code="selective-recompute",
        title="Selective recompute of attention, or a flash kernel",
        is_taken=True,
        scheme=recomputed,
        reason=reasons.of_recompute(now.sizes, before, after, scheme),
        saved_bytes_per_layer_before=before,
        saved_bytes_per_layer=after,
    )


def _context_step(now: Situation, recomputed: int | None, chosen: int | None) -> RecommendedStep:
    before = now.single("recomputed") if recomputed is None else now.kept(recomputed)
    taken = chosen is not None
    if chosen is None:
        title, reason = "No context parallelism", reasons.of_no_context(now.schemes)
    else:
        title = now.schemes[chosen].label
        others = [place for place in ranked(now) if place != chosen]
        reason = reasons.of_context(now.schemes, now.sizes, chosen, others)
    return RecommendedStep(
        order=3,
        code="context-parallel",
        title=f"Context parallelism over {now.sizes.cp} ranks: {title}" if taken else title,
        is_taken=taken,
        scheme=chosen,
        reason=reason,
        saved_bytes_per_layer_before=before,
        saved_bytes_per_layer=now.kept(chosen) if taken else before,
    )


def _hide_step(now: Situation, chosen: int | None) -> Iterator[RecommendedStep]:
    """Of a ring whose hops do not all hide, or of which nobody knows: what would hide them."""
    if chosen is None:
        return
    one = now.schemes[chosen]
    ring = one.ring
    if ring is None or (ring.is_hidden and ring.is_backward_hidden):
        return
    yield RecommendedStep(
        order=4,
        code="hide-hops",
        title="Hops that attention does not hide" if now.machines else "Whether hops hide",
        is_taken=False,
        scheme=chosen,
        reason=reasons.of_hops(one, now.sizes, now.machines),
        saved_bytes_per_layer_before=one.saved_bytes_per_layer,
        saved_bytes_per_layer=one.saved_bytes_per_layer,
    )


def _chosen(now: Situation) -> int | None:
    return next(iter(ranked(now)), None)


def ranked(now: Situation) -> list[int]:
    """Places of the schemes of context parallelism, best first: by the time of a layer, without rates by how
    evenly a causal mask divides the work. Of equals the first that is listed."""
    places = now.context()
    if now.machines is None:
        return sorted(places, key=lambda place: _by_rule(now.schemes[place], now.sizes))
    return sorted(places, key=lambda place: layer_ns(now.schemes[place]))


def layer_ns(one: ContextScheme) -> int:
    """Forward and backward of one layer."""
    assert one.forward is not None
    assert one.backward is not None
    return one.forward.layer_ns + one.backward.layer_ns


def _by_rule(one: ContextScheme, sizes: ContextSizes) -> int:
    """Without rates: a ring that is even, as what it sends can hide; then what is exposed anyway."""
    if one.scheme == "ring":
        even = {"zigzag": 0, "striped": 1, "contiguous": 4} if sizes.causal else {"contiguous": 0}
        return even.get(str(one.layout), 1)
    return 2 if one.scheme == "usp" else 3
