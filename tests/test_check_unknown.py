"""Figures that nobody could look at, or known in part: memory, hiding, waits and bandwidth of ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from check_helpers import GIB, verdict, verdicts, with_memory
from report_helpers import make_report

from sp_profiler.analysis.results import Bandwidth, Hiding, Straggler
from sp_profiler.checking.api import check
from sp_profiler.ledger import LedgerEntry
from sp_profiler.report.model import Coverage

REPORT = make_report(ranks=2, steps=3)


def test_a_null_figure_is_no_pass_and_says_why() -> None:
    entry = LedgerEntry(
        "memory-not-recorded", "note", "Memory was not recorded: record it with profile_memory=True"
    )
    report = replace(REPORT, data_quality=[entry])
    one = verdict(report, max_memory_gib=100)
    assert (one.state, one.fails, one.value) == ("unknown", True, None)
    assert "memory-not-recorded" in one.text
    assert "profile_memory=True" in one.text
    assert not check(report, max_memory_gib=100).holds
    allowed = verdict(report, max_memory_gib=100, allow_unknown=True)
    assert (allowed.state, allowed.fails) == ("unknown", False)
    assert check(report, max_memory_gib=100, allow_unknown=True).holds


def test_every_figure_of_a_report_without_communication_is_unknown_or_zero() -> None:
    totals = replace(
        REPORT.totals,
        comm_ns=0,
        overlapped_ns=0,
        exposed_ns=0,
        overlap_ratio=None,
        hidden_of_hideable=None,
        partner_hidden_ns=None,
        partner_hideable_ns=None,
        hiding_by_purpose={},
        exposed_by_group_ns={},
    )
    report = replace(REPORT, totals=totals, groups=[], collectives=[])
    found = verdicts(
        report,
        min_overlap_ratio=0,
        min_hidden_of_hideable=0,
        min_wgrad_hidden=0,
        max_skew_ratio=1,
        min_busbw_gbps=0,
        max_exposed_ms=0,
    )
    states = {name: one.state for name, one in found.items()}
    assert states.pop("max-exposed-ms") == "holds"
    assert set(states.values()) == {"unknown"}
    assert "there is no communication" in found["min-overlap-ratio"].text
    assert "no communication of purpose dgrad" in found["min-wgrad-hidden"].text


def test_nothing_hideable_is_not_hidden() -> None:
    hiding = {"dgrad": Hiding(0, 0, None), "kv": Hiding(None, None, None)}
    report = replace(REPORT, totals=replace(REPORT.totals, hiding_by_purpose=hiding))
    assert "could be hidden" in verdict(report, min_wgrad_hidden=0).text
    told = verdict(report, purpose={"kv": {"min_hidden_of_hideable": 0}}).text
    assert "has a known partner" in told


def test_figures_that_no_report_may_have() -> None:
    report = replace(REPORT, totals=replace(REPORT.totals, window_ns=None, exposed_ns=None, idle_ns=None))
    for name in ("max_exposed_ratio", "max_exposed_ms", "max_step_ms", "max_idle_ratio"):
        assert verdict(report, **{name: 1}).state == "unknown"
    empty = replace(REPORT, coverage=Coverage(None, None, None))
    assert verdict(empty, min_coverage=0).state == "unknown"
    nobody = replace(REPORT, run=replace(REPORT.run, world_size=None))
    assert verdict(nobody, max_missing_ranks=0).state == "unknown"


# --- memory ----------------------------------------------------------------------------------------------


def test_the_highest_peak_of_all_ranks_decides() -> None:
    report = with_memory(3 * GIB, 5 * GIB, 4 * GIB)
    one = verdict(report, max_memory_gib=4)
    assert (one.state, one.value) == ("broken", 5 * GIB)
    assert one.where is not None
    assert one.where.rank == 1
    assert "in backward" in one.text
    assert "activations" in one.text
    assert verdict(report, max_memory_gib=5).state == "holds"


def test_a_rank_without_a_peak_may_have_the_highest() -> None:
    known = with_memory(3 * GIB, None)
    assert verdict(known, max_memory_gib=4).state == "unknown"
    assert verdict(known, max_memory_gib=2).state == "broken"  # whatever the other one has
    absent = replace(with_memory(3 * GIB), run=replace(REPORT.run, ranks=[0, 1, 2]))
    one = verdict(absent, max_memory_gib=4)
    assert one.state == "unknown"
    assert "ranks 1-2 have no peak of memory" in one.text


def test_a_peak_without_its_start_is_a_lower_bound() -> None:
    report = with_memory(3 * GIB, is_relative=True)
    assert verdict(report, max_memory_gib=4).state == "unknown"
    assert verdict(report, max_memory_gib=2).state == "broken"


def test_hooks_come_before_events_for_what_is_kept() -> None:
    events = verdict(with_memory(4 * GIB, 8 * GIB), max_saved_gib=1)
    assert (events.state, events.value) == ("broken", 2 * GIB)
    assert "from memory events" in events.text
    hooks = verdict(with_memory(4 * GIB, 8 * GIB, saved=(GIB, 3 * GIB)), max_saved_gib=1)
    assert (hooks.state, hooks.value) == ("broken", 3 * GIB)
    assert "from hooks" in hooks.text
    assert verdict(with_memory(4 * GIB, None), max_saved_gib=3).state == "unknown"


# --- across ranks ------------------------------------------------------------------------------------------


def test_skew_is_a_share_of_the_communication_of_matched_groups() -> None:
    group = replace(REPORT.groups[0], comm_ns=100, skew_wait_ns=30)
    other = replace(group, group="dp[0,1]", comm_ns=1000, skew_wait_ns=None)
    report = replace(REPORT, groups=[group, other], stragglers=[Straggler(1, 30, 2)])
    one = verdict(report, max_skew_ratio=0.2)
    assert one.value == 0.3
    assert "1 group without matched collectives" in one.text
    assert "rank 1, which came last in 2 collectives" in one.text
    assert verdict(report, group={"dp": {"max_skew_ratio": 0.2}}).state == "unknown"


@pytest.mark.parametrize(
    ("busbw", "is_bound", "state"),
    [
        (120.0, False, "holds"),
        (80.0, False, "broken"),
        (120.0, True, "holds"),
        (80.0, True, "unknown"),
        (None, False, "unknown"),
    ],
)
def test_a_lower_bound_of_bandwidth_proves_only_what_lies_below_it(
    busbw: float | None, is_bound: bool, state: str
) -> None:
    slow = Bandwidth("all_reduce", 4, 100, 10, busbw, busbw, is_bound)
    fast = Bandwidth("all_gather", 4, 100, 10, 300.0, 300.0, False)
    report = replace(REPORT, groups=[replace(REPORT.groups[0], bandwidth=[fast, slow])])
    assert verdict(report, min_busbw_gbps=100).state == state


def test_missing_ranks_are_counted() -> None:
    report = replace(REPORT, run=replace(REPORT.run, world_size=8, ranks_missing=[2, 3, 4, 5, 6, 7]))
    one = verdict(report, max_missing_ranks=5)
    assert (one.state, one.value) == ("broken", 6)
    assert "2-7" in one.text
