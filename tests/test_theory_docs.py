"""docs/theory.md against the code: every formula of its tables is evaluated, every figure computed again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from math import exp, inf, log1p
from pathlib import Path

import numpy as np
import pytest

from sp_profiler.theory import korthikanti as memory
from sp_profiler.theory.communication import block_schedule, wire_bytes
from sp_profiler.theory.ring import (
    RING_SELF_ATTENTION_WIRE,
    RING_SELF_ATTENTION_WIRE_WITH_REDUCE_SCATTER,
    TABLE_2,
    RingSizes,
    backward_wire_bytes,
    block_flops,
    causal_balance,
    forward_wire_bytes,
    hop_bytes,
    hop_seconds,
    limit_balance,
    rank_scores,
    ring_saved_bytes,
    ring_scores,
    ring_self_attention_score_bytes,
    tokens_to_hide,
    ulysses_wire_bytes,
)
from sp_profiler.theory.time import RING_STEPS

PAGE = (Path(__file__).parent.parent / "docs" / "theory.md").read_text()
Table = dict[str, list[str]]


def tables() -> Iterator[tuple[tuple[str, ...], Table]]:
    """Headers and rows (by their first cell) of every table."""
    block: list[list[str]] = []
    for line in [*PAGE.splitlines(), ""]:
        if line.startswith("|"):
            block.append([cell.strip() for cell in line.strip("|").split("|")])
        elif block:
            yield tuple(block[0]), {row[0]: row[1:] for row in block[2:]}
            block = []


def table(*header: str) -> Table:
    (found,) = [rows for head, rows in tables() if head == header]
    return found


def value(formula: str, **names: float | Fraction) -> Fraction:
    """The value of a formula as the page writes it: letters are names, neighbours are multiplied."""
    text = formula.replace("−", "-").replace("^", "**")
    tokens = re.findall(r"\*\*|[A-Za-zΦβα]|\d+|[-+*/()]", text)
    assert "".join(tokens) == text.replace(" ", ""), f"cannot read {formula}"
    written: list[str] = []
    for token in tokens:
        is_operand = token not in ("**", *"+-*/)")
        if written and is_operand and written[-1] not in ("**", *"+-*/("):
            written.append("*")
        written.append(f"Fraction({token})" if token.isdigit() else token)
    names = {name: Fraction(number) for name, number in names.items()}
    return Fraction(eval(" ".join(written), {"Fraction": Fraction}, names))


def test_formulas_are_read_as_written() -> None:
    assert value("sbh(10 + 24/t + 5as/(ht))", s=7, b=2, h=3, t=4, a=5) == 42 * (16 + Fraction(5 * 35, 12))
    assert value("Φe/(2β)k/a", Φ=8, e=2, β=4, k=1, a=2) == 1
    with pytest.raises(AssertionError, match="cannot read"):
        value("s_1", s=1)


# --- collectives ----------------------------------------------------------------------------------------


def test_collectives() -> None:
    rows = table("collective", "bytes a rank sends", "steps")
    assert {name.replace("-", "_") for name in rows} == set(RING_STEPS)
    for name, (sent, steps) in rows.items():
        op = name.replace("-", "_")
        for T in (2, 3, 8):
            assert value(sent, X=1000, T=T) == wire_bytes(op, 1000, T)
            assert value(steps, T=T) == RING_STEPS[op] * (T - 1)


SCHEDULES = {
    "TP": ("tp", None),
    "SP, save=full": ("sp", "full"),
    "SP, save=shard": ("sp", "shard"),
}


def test_schedules() -> None:
    rows = table("schedule", "fused projections", "separate projections")
    assert set(rows) == set(SCHEDULES)
    for name, (mode, save) in SCHEDULES.items():
        for projections, formula in zip(("fused", "separate"), rows[name], strict=True):
            for comm in ("sync", "async"):
                schedule = block_schedule(
                    mode, comm=comm, save=save, projections=projections, activation_bytes=840
                )
                for T in (2, 4):
                    assert schedule.wire_bytes(T) == value(formula, r=Fraction(T - 1, T), F=840)


def test_operators() -> None:
    """Entering is the all-gather, leaving the reduce-scatter, and in backward the other way round."""
    rows = table("", "in front of a column linear (entering)", "behind a row linear (leaving)")
    for name, cells in rows.items():
        mode, phase = name.lower().split(", ")
        schedule = block_schedule(mode, comm="sync", save="full", projections="fused", activation_bytes=8)
        for cell, modules in zip(
            cells, (("attention.qkv", "mlp.gate_up"), ("attention.o", "mlp.down")), strict=True
        ):
            found = {one.op for one in getattr(schedule, phase) if one.module in modules}
            said = cell.split(": ")[1].replace("-", "_")
            assert found == ({said} if said != "nothing" else set()), (name, cell)


# --- memory ---------------------------------------------------------------------------------------------

SIZES = ({"s": 512, "b": 2, "h": 96, "a": 6, "t": 3}, {"s": 8192, "b": 4, "h": 4096, "a": 32, "t": 8})
PARTS = {
    "attention": {
        "qkv-input", "query-key", "value", "softmax-output", "softmax-dropout-mask",
        "softmax-dropout-output", "projection-input", "attention-dropout-mask",
    },
    "MLP": {"mlp-input", "gelu-input", "second-linear-input", "mlp-dropout-mask"},
    "norms": {"norm-inputs"},
}  # fmt: skip
BYTES: dict[str, Callable[[memory.LayerSizes], Fraction | int]] = {
    "one device": memory.single_device_bytes,
    "TP": memory.tensor_parallel_bytes,
    "TP + SP": memory.sequence_parallel_bytes,
    "TP + SP, selective recompute": memory.selective_bytes,
    "TP, selective recompute": memory.selective_tensor_parallel_bytes,
    "full recompute": memory.full_recompute_bytes,
}


def layer(s: int, b: int, h: int, a: int, t: int) -> memory.LayerSizes:
    return memory.LayerSizes(s, b, h, a, t)


@pytest.mark.parametrize("sizes", SIZES)
def test_memory(sizes: dict[str, int]) -> None:
    terms = memory.layer_terms(layer(**sizes))
    rows = table("part", "bytes")
    assert set().union(*PARTS.values()) == set(terms)
    assert {name: value(cells[0], **sizes) for name, cells in rows.items()} == {
        name: sum(terms[term] for term in part) for name, part in PARTS.items()
    }
    rows = table("scheme", "bytes of a layer on one rank", "in the paper")
    assert {name: value(cells[0], **sizes) for name, cells in rows.items()} == {
        name: form(layer(**sizes)) for name, form in BYTES.items()
    }


# --- rings ----------------------------------------------------------------------------------------------

RINGS = (RingSizes(4096, 4, 2, 16, 4, 8), RingSizes(960, 5, 1, 6, 6, 32, element_bytes=8))
RING_BYTES: dict[str, Callable[[RingSizes], Fraction | int]] = {
    "a hop of K and V, m": hop_bytes,
    "forward, sent by a rank per layer": forward_wire_bytes,
    "backward, sent by a rank per layer": backward_wire_bytes,
    "FLOPs of a block in forward": block_flops,
    "kept for backward: q, k, v, out, log-sum-exp": ring_saved_bytes,
}


def letters(ring: RingSizes) -> dict[str, float | Fraction]:
    """The page's symbols of a ring."""
    p, e = ring.ranks, ring.element_bytes
    names: dict[str, float | Fraction] = {
        "S": ring.seq_len,
        "B": ring.micro_batch,
        "a": ring.heads,
        "k": ring.kv_heads,
        "d": ring.head_dim,
    }
    full = e * ring.seq_len * ring.micro_batch * ring.heads * ring.head_dim
    return names | {"p": p, "e": e, "g": max(e, 4), "r": Fraction(p - 1, p), "F": full}


@pytest.mark.parametrize("ring", RINGS)
def test_rings(ring: RingSizes) -> None:
    rows = table("quantity", "formula")
    assert {name: value(cells[0], **letters(ring)) for name, cells in rows.items()} == {
        name: form(ring) for name, form in RING_BYTES.items()
    }


@pytest.mark.parametrize("ring", RINGS)
def test_relatives(ring: RingSizes) -> None:
    rows = table("scheme", "sent by a rank per layer")
    names = letters(ring)
    wire = names["r"] * names["F"]
    assert {name: value(cells[0], **names) for name, cells in rows.items()} == {
        "Ulysses, one direction": ulysses_wire_bytes(ring),
        "ring self-attention, as published": RING_SELF_ATTENTION_WIRE * wire,
        "ring self-attention, with reduce-scatter": RING_SELF_ATTENTION_WIRE_WITH_REDUCE_SCATTER * wire,
        "ring self-attention, scores kept": ring_self_attention_score_bytes(ring),
    }


def test_conditions_to_hide() -> None:
    """The formulas, and that a hop and a block of so many tokens take equally long."""
    rows = table("case", "c at least")
    assert list(rows) == ["no mask", "causal, zigzag"]
    names = {"Φ": 2**40, "β": 2**30, "e": 2, "k": 4, "a": 32}
    for zigzag, cells in zip((False, True), rows.values(), strict=True):
        tokens = value(cells[0], **names)
        assert tokens == tokens_to_hide(
            flops_per_s=2.0**40, bytes_per_s=2.0**30, heads=32, kv_heads=4, causal_zigzag=zigzag
        )
        ring = RingSizes(int(tokens) * 8, 8, 1, 32, 4, 128)
        share = Fraction(1, 2) if zigzag else Fraction(1)
        assert hop_bytes(ring) / Fraction(2**30) == block_flops(ring, share=share) / 2**40


def test_table_2_of_liu_et_al() -> None:
    rows = table("machine", "TFLOP/s", "GB/s", "printed", "formula")
    assert {name: tuple(map(float, cells[:3])) for name, cells in rows.items()} == TABLE_2
    for cells in rows.values():
        tera, giga, printed = map(float, cells[:3])
        tokens = tokens_to_hide(flops_per_s=tera * 1e12, bytes_per_s=giga * 1e9)
        assert cells[3] == f"{tokens / 1000:.2f}"
        assert abs(tokens / 1000 - printed) <= 0.06 * printed


def example(kv_heads: int, **changes: int) -> RingSizes:
    sizes = {"seq_len": 131072, "ranks": 16, "micro_batch": 1, "heads": 32, "head_dim": 128} | changes
    return RingSizes(kv_heads=kv_heads, **sizes)


def figures(ring: RingSizes) -> dict[str, str]:
    """The example's figures as the page prints them."""
    hop = hop_seconds(hop_bytes(ring), bytes_per_s=50e9)
    block, half = (float(block_flops(ring, share=Fraction(1, by))) / 400e12 for by in (1, 2))
    sent = forward_wire_bytes(ring)
    return {
        "a hop": f"{hop_bytes(ring) / 1e6:.3g} MB",
        "forward, 15 hops": f"{sent / 1e9:.3g} GB" if sent >= 1e9 else f"{sent / 1e6:.3g} MB",
        "time of a hop": f"{hop * 1e3:.2f} ms",
        "attention of a block, no mask": f"{block * 1e3:.2f} ms",
        "attention of a block, causal zigzag": f"{half * 1e3:.2f} ms",
        "hidden without a mask": "yes" if hop <= block else "no",
        "hidden with causal zigzag": "yes" if hop <= half else "no",
    }


def test_the_example() -> None:
    rows = table("figure", "32 key/value heads", "8 key/value heads")
    for column, kv_heads in enumerate((32, 8)):
        assert {name: cells[column] for name, cells in rows.items()} == figures(example(kv_heads))


# --- balance --------------------------------------------------------------------------------------------


def holds(layout: str, rank: int, p: int, n: int) -> list[int]:
    """The tokens of a rank."""
    if layout == "contiguous":
        return list(range(rank * n, (rank + 1) * n))
    if layout == "striped":
        return list(range(rank, n * p, p))
    half = n // 2
    return [c * half + x for c in (rank, 2 * p - 1 - rank) for x in range(half)]


@pytest.mark.parametrize("layout", ["contiguous", "zigzag", "striped"])
@pytest.mark.parametrize(("p", "n"), [(2, 4), (3, 6), (4, 8)])
def test_balance_by_counting(layout: str, p: int, n: int) -> None:
    """Pairs of a query and a key that it may see, one by one."""
    tokens = [np.array(holds(layout, rank, p, n)) for rank in range(p)]
    counted = tuple(
        tuple(int((tokens[i][:, None] >= tokens[(i - s) % p][None, :]).sum()) for s in range(p))
        for i in range(p)
    )
    assert counted == ring_scores(layout, ranks=p, tokens=n, causal=True)
    assert counted == tuple(
        tuple(rank_scores(layout, ranks=p, tokens=n, rank=i, step=s) for s in range(p)) for i in range(p)
    )
    S = n * p
    slowest = sum(max(column) for column in zip(*counted, strict=True))
    (formula, limit) = table("layout", "balance", "for long sequences")[layout]
    assert Fraction(S * (S + 1), 2 * p * slowest) == value(formula, n=n, p=p)
    assert value(formula, n=n, p=p) == causal_balance(layout, ranks=p, tokens=n)
    assert value(limit, p=p) == limit_balance(layout, ranks=p, causal=True)


def test_printed_balance() -> None:
    (header, rows) = next((h, r) for h, r in tables() if h[0] == "n = 64")
    ranks = [int(cell.removeprefix("p = ")) for cell in header[1:]]
    for layout, cells in rows.items():
        exact = [causal_balance(layout, ranks=p, tokens=64) for p in ranks]
        assert cells == ["1" if one == 1 else f"{float(one):.4f}" for one in exact]


# --- merging --------------------------------------------------------------------------------------------


def sigma(x: float) -> float:
    return 1 / (1 + exp(-x)) if x >= 0 else exp(x) / (1 + exp(x))


def log_sigma(x: float) -> float:
    """As the page writes it."""
    return min(x, 0.0) - log1p(exp(-abs(x)))


@pytest.mark.parametrize(
    ("one", "two"), [(0.0, 0.0), (3.0, -2.0), (-700.0, 900.0), (1e30, -1e30), (4.0, -inf)]
)
def test_merging_cannot_overflow(one: float, two: float) -> None:
    assert "lse ← lse − log σ(l₁ − l₂)" in PAGE
    assert "out ← out − σ(l₂ − l₁) (out − o₂)" in PAGE
    out = 5.0 - sigma(two - one) * (5.0 - 1.0)
    lse = one - log_sigma(one - two)
    assert lse == pytest.approx(float(np.logaddexp(one, two)), rel=1e-15, abs=1e-300)
    weights = np.exp(np.array([one, two]) - max(one, two))
    assert out == pytest.approx(float((weights / weights.sum()) @ np.array([5.0, 1.0])), rel=1e-14)


# --- errors ---------------------------------------------------------------------------------------------


def errors() -> dict[str, str]:
    return {said: cells[0] for said, cells in table("said", "right").items()}


def answer(words: str) -> str:
    (found,) = [right for said, right in errors().items() if words in said]
    return found


def test_the_hop_that_forgets_to_divide() -> None:
    """Where 8.4 GB, 126 GB and 0.17 s come from, and what is right."""
    wrong = 2 * 2 * 128_000 * 4 * 32 * 128
    (said,) = [said for said in errors() if "8.4 GB" in said]
    assert f"{wrong / 1e9:.1f} GB" in said
    assert f"{15 * wrong / 1e9:.0f} GB" in said
    assert f"{wrong / 50e9:.2f} s" in said
    right = figures(example(32))
    for figure in ("a hop", "forward, 15 hops", "time of a hop"):
        assert right[figure] in answer("8.4 GB")


def test_what_sequence_parallelism_saves() -> None:
    found = answer("7/8")
    sizes = {name: int(re.search(rf"\b{name} = (\d+)", found)[1]) for name in "sbhat"}  # type: ignore[index]
    saved = 1 - memory.sequence_parallel_bytes(layer(**sizes)) / memory.tensor_parallel_bytes(layer(**sizes))
    both = 1 - memory.selective_bytes(layer(**sizes)) / memory.selective_tensor_parallel_bytes(layer(**sizes))
    assert f"{float(100 * saved):.1f} %" in found
    assert f"{float(100 * both):.0f} %" in found


def test_other_errors() -> None:
    sizes = layer(**SIZES[1])
    assert "equation 2" in answer("is what tensor parallelism keeps")
    dropped = memory.single_device_bytes(sizes) - sizes.ranks * memory.selective_bytes(sizes)
    assert dropped == value("5as^2b", a=32, s=8192, b=4)
    assert memory.selective_bytes(sizes) == value("34sbh/t", **SIZES[1])
    assert "5as/h goes" in answer("34 into 18")
    assert "entering gathers, leaving scatters" in answer("entering a TP region")
    shard, full = (
        block_schedule("sp", comm="sync", save=save, projections="fused", activation_bytes=8).wire_bytes(2)
        for save in ("shard", "full")
    )
    assert f"{float(100 * (shard / full - 1)):.0f} % more" in answer("SP sends more")
    quarter = tokens_to_hide(flops_per_s=4e14, bytes_per_s=5e10, heads=32, kv_heads=8)
    assert quarter == tokens_to_hide(flops_per_s=4e14, bytes_per_s=5e10) / 4
    assert "a quarter" in answer("tokens on")
    balance = causal_balance("contiguous", ranks=8, tokens=64)
    assert f"of 8 ranks with 64 tokens {float(100 * balance):.0f} %" in answer("half the time")
    many = causal_balance("striped", ranks=10**9, tokens=64)
    assert "n/(n+1)" in answer("striped")
    assert float(many) == pytest.approx(float(value("n/(n+1)", n=64)))


def test_no_figure_stands_outside_the_tables() -> None:
    """Figures with units are those of tables that the tests above recompute, or of the example's machine."""
    prose = "\n".join(line for line in PAGE.splitlines() if not line.startswith("|"))
    found = set(re.findall(r"\d[\d.]*\s?(?:[GMT]?B/s|[GMk]B|TFLOP(?:/s)?|ms|%)", prose))
    assert found == {"50 GB/s", "400 TFLOP/s"}
