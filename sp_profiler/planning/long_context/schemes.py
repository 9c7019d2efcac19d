"""Which schemes there are at a size, and which of their constraints fail."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from sp_profiler.planning.long_context.model import ContextSizes, Failure
from sp_profiler.theory.ring import LAYOUTS

Kind = Literal["tp", "sp", "ring", "ulysses", "usp"]


@dataclass(frozen=True)
class Candidate:
    """How ranks share one sequence: `tp` of them the model, `ulysses` x `ring` the tokens.

    A global rank is ((ring x Ulysses ranks) + ulysses) x tp + tp: what communicates most on neighbours (Fang
    and Zhao 2024, arXiv 2405.07719), as in `workloads.context.parallel`.
    """

    kind: Kind
    tp: int
    sequence_parallel: bool
    recompute: Literal["none", "selective"] = "none"
    layout: str | None = None
    ulysses: int = 1
    ring: int = 1

    @property
    def cp(self) -> int:
        return self.ulysses * self.ring

    @property
    def ranks(self) -> int:
        return self.tp * self.cp

    @property
    def attention(self) -> Literal["scores", "recomputed", "flash"]:
        if self.cp > 1:
            return "flash"
        return "recomputed" if self.recompute == "selective" else "scores"

    @property
    def label(self) -> str:
        return f"{_NAMES[self.kind](self)}{' + TP + SP' if self.cp > 1 and self.tp > 1 else ''}"


_NAMES = {
    "tp": lambda one: "TP",
    "sp": lambda one: "TP + SP" + (", selective recompute" if one.recompute == "selective" else ""),
    "ring": lambda one: f"ring {one.layout}",
    "ulysses": lambda one: "Ulysses",
    "usp": lambda one: f"USP {one.ulysses} × {one.ring} {one.layout}",
}


def candidates(sizes: ContextSizes, splits: Sequence[int]) -> list[Candidate]:
    """TP and SP inside a node, then context parallelism alone, then both."""
    tp = sizes.tp
    out: list[Candidate] = []
    if tp > 1:
        out.append(Candidate("tp", tp, sequence_parallel=False))
        out.append(Candidate("sp", tp, sequence_parallel=True))
        out.append(Candidate("sp", tp, sequence_parallel=True, recompute="selective"))
    out += _context(sizes, splits, 1)
    if tp > 1:
        out += _context(sizes, splits, tp)
    return out


def _context(sizes: ContextSizes, splits: Sequence[int], tp: int) -> Iterator[Candidate]:
    cp, shared = sizes.cp, tp > 1
    for layout in LAYOUTS:
        yield Candidate("ring", tp, shared, layout=layout, ring=cp)
    yield Candidate("ulysses", tp, shared, ulysses=cp)
    layout = "zigzag" if sizes.causal else "contiguous"
    for ulysses in splits:
        yield Candidate("usp", tp, shared, layout=layout, ulysses=ulysses, ring=cp // ulysses)


def failures(one: Candidate, sizes: ContextSizes) -> list[Failure]:
    """The constraints that these sizes break, one sentence each; what follows from another is left out."""
    return [*_of_model(one, sizes), *_of_sequence(one, sizes), *_of_exchange(one, sizes)]


def _of_model(one: Candidate, sizes: ContextSizes) -> Iterator[Failure]:
    shares = {"heads": sizes.heads, "key/value heads": sizes.kv_heads, "feed-forward columns": sizes.ffn}
    for what, count in shares.items():
        if count % one.tp:
            code = {"heads": "tp-heads", "key/value heads": "tp-kv-heads"}.get(what, "tp-ffn")
            yield Failure(code, f"TP cannot divide {count} {what} among {one.tp} ranks")


def _of_sequence(one: Candidate, sizes: ContextSizes) -> Iterator[Failure]:
    length, cp = sizes.seq_len, one.cp
    parts = granularity(one)
    if length % parts == 0:
        return
    if one.layout == "zigzag" and length % (2 * one.ring):
        chunks = f"zigzag cannot divide {length} tokens into {2 * one.ring} chunks, two for each ring rank"
        yield Failure("zigzag-chunks", chunks)
    elif length % cp:
        yield Failure("sequence", f"{length} tokens cannot be divided among {cp} ranks")
    elif one.sequence_parallel and (length // cp) % one.tp:
        of_rank = f"the {length // cp} tokens of a context rank" if cp > 1 else f"{length} tokens"
        yield Failure("sp-sequence", f"SP cannot divide {of_rank} among {one.tp} ranks")


def granularity(one: Candidate) -> int:
    """What the number of tokens must be a multiple of."""
    parts = one.cp * (one.tp if one.sequence_parallel else 1)
    return math.lcm(parts, 2 * one.ring) if one.layout == "zigzag" else parts


def _of_exchange(one: Candidate, sizes: ContextSizes) -> Iterator[Failure]:
    """Ulysses exchanges whole heads, of those that TP leaves a rank."""
    if one.ulysses == 1 or sizes.heads % one.tp or sizes.kv_heads % one.tp:
        return
    left = f", which TP over {one.tp} leaves a rank," if one.tp > 1 else ""
    for code, what, count in (
        ("ulysses-heads", "heads", sizes.heads // one.tp),
        ("ulysses-kv-heads", "key/value heads", sizes.kv_heads // one.tp),
    ):
        if count % one.ulysses:
            noun = what.removesuffix("s") if count == 1 else what
            text = f"Ulysses cannot divide the {count} {noun}{left} among {one.ulysses} ranks"
            yield Failure(code, text)
