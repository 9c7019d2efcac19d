"""Runs with context parallelism side by side."""

from __future__ import annotations

from dataclasses import replace

import pytest
from context_report_helpers import (
    RINGS,
    Ring,
    column,
    draw,
    named,
    printed,
    runs,
    with_context,
)
from report_helpers import US, make_report

from sp_profiler.report import context_compare, markdown, terminal
from sp_profiler.report.comparison import comparison
from sp_profiler.report.context import families
from sp_profiler.theory.ring import causal_balance


def test_one_look_tells_whether_hops_are_hidden_and_how_even_the_work_is() -> None:
    (one,) = context_compare.listings(runs())
    assert [label for label, *_ in one.columns][:5] == [
        "Run", "Hidden, forward", "Hidden, backward", "Even, measured", "By counting"
    ]  # fmt: skip
    ideal = float(causal_balance("contiguous", ranks=4, tokens=16))
    assert [row[0] for row in one.rows] == [
        "Ring zigzag sync", "Ring zigzag async", "Ring contiguous async", "Ulysses sync"
    ]  # fmt: skip
    assert column(one, "Hidden, forward") == pytest.approx([0, 1, 270 / 522, 0], abs=1e-3)
    assert column(one, "By counting") == pytest.approx([1, 1, ideal, None])
    text = printed(terminal.print_comparison, runs())
    for part in ("hidden, forward", "even, measured", "by counting"):
        assert part in text
        assert part.capitalize().replace(", ", ", ") in markdown.render_comparison(runs(), "demo")


def test_what_was_not_measured_is_no_zero_side_by_side() -> None:
    found = replace(draw(Ring()), hops=[], balance=[], models=[])
    (one,) = context_compare.listings([named(with_context(found), "ring", "zigzag", "sync")])
    assert one.rows == [["Ring zigzag sync", None, None, None, None, "Ring attention", "zigzag", 4]]
    (told,) = comparison([named(with_context(found), "ring", "zigzag", "sync")])["runs"][0][
        "context_parallel"
    ]
    assert (told["hidden_ns"], told["exposed_ns"], told["hidden_ratio"]) == (None, None, None)


def test_the_answers_say_it_in_words() -> None:
    hidden, even = context_compare.answers(runs())
    assert hidden == (
        "Ring zigzag sync hides nothing of the time of its transfers; Ring zigzag async hides 100 %; Ring "
        "contiguous async hides 52 %; Ulysses sync hides nothing."
    )
    assert even == "By counting, causal attention is 58 % even in contiguous and 100 % even in zigzag."
    assert context_compare.answers([make_report()]) == []
    two = named(with_context(draw(Ring(layout="contiguous", ranks=2))), "ring", "contiguous", "sync")
    assert "is 58 % to 67 % even in contiguous and" in context_compare.answers([two, *runs()])[1]
    every = draw(Ring(layout="contiguous", causal=False))  # its ideal division is even, whatever the mask
    schemes = [replace(one, scheme="ring-self-attention", causal=True) for one in every.schemes]
    other = named(with_context(replace(every, schemes=schemes)), "rsa", "contiguous", "async")
    assert context_compare.answers([other, *runs()])[1] == even


def test_the_comparison_for_programs_has_exact_sums() -> None:
    told = [one["context_parallel"] for one in comparison([*runs(), make_report()])["runs"]]
    assert told[-1] is None
    (ring,) = told[1]
    (family,) = families(draw(RINGS["contiguous"]))
    assert ring["exposed_ns"] == family.exposure().exposed_ns
    assert sum(ring["exposed_parts_ns"].values()) == ring["exposed_ns"]
    assert ring["layout"] == "contiguous"
    (exchange,) = told[0]
    assert exchange["layout_copy_ns"] == 8 * 12 * 50 * US
    assert exchange["measured_balance_ratio"] is None
