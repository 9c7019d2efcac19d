"""Merged reports of ranks: any order gives the same, and what all collectives in memory would have given."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import numpy as np
import pytest
from fleet_report_helpers import (
    facts_of,
    fleet_report,
    leaf,
    merged_in_some_order,
    ordinary,
    random_rank,
    travelled,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from sp_profiler.analysis.kind_figures import kind_figures, together
from sp_profiler.analysis.kinds import CollectiveKinds, Kind
from sp_profiler.analysis.rank_runs import added_runs, runs
from sp_profiler.analysis.results import CollectiveFigures
from sp_profiler.classify.groups import group_key
from sp_profiler.fleet import merge as module
from sp_profiler.fleet.filled import RankAcross
from sp_profiler.fleet.merge import RankReport, merge, rank_report
from sp_profiler.fleet.names import LONG, pattern, ranks_in, short_name
from sp_profiler.report import html, markdown, tables
from sp_profiler.report import json as report_json
from sp_profiler.report.format import stretches
from sp_profiler.report.model import Report, kinds_of, windows_by_rank, windows_of

GROUPS = ["tp[0,1]", "dp[0,2]", "alone[0]"]
seeds = st.integers(0, 2**32)


def random_ranks(seed: int, count: int, groups: list[str] | None = None):
    return [random_rank(seed, rank, groups or GROUPS) for rank in range(count)]


@settings(max_examples=25, deadline=None)
@given(seeds, st.integers(1, 6))
def test_a_fleet_finds_what_all_collectives_in_memory_show(seed: int, count: int) -> None:
    results = random_ranks(seed, count)
    leaves = [leaf(place, result) for place, result in enumerate(results)]
    fleet = fleet_report(merged_in_some_order(leaves, np.random.default_rng(seed)), results)
    whole = ordinary(results)
    assert fleet.findings == whole.findings
    assert fleet.summary == whole.summary
    for name in (
        "run",
        "window",
        "totals",
        "ranks",
        "steps",
        "groups",
        "coverage",
        "environment",
        "collectives",
    ):
        assert getattr(fleet, name) == getattr(whole, name), name
    assert fleet.data_quality == whole.data_quality
    for one, two in zip(fleet.gemms, whole.gemms, strict=True):
        assert replace(one, tflops=None) == replace(two, tflops=None)
        assert one.tflops == pytest.approx(two.tflops, rel=1e-12)
    assert windows_of(fleet) == windows_of(whole)
    assert windows_by_rank(fleet) == windows_by_rank(whole)
    assert set(together(kinds_of(fleet), ("op", "purpose"))) == set(
        together(kinds_of(whole), ("op", "purpose"))
    )


def some_rules_speak() -> set[str]:
    return {f.code for seed in range(12) for f in ordinary(random_ranks(seed, 3)).findings}


def test_the_random_ranks_make_the_rules_speak() -> None:
    """Else the test above proves nothing."""
    assert some_rules_speak() >= {
        "peer-skew",
        "synchronous-with-partner",
        "synchronous-without-partner",
        "launched-after-partner",
        "partner-too-short",
        "late-partner",
        "queued",
        "no-partner",
        "exposed-for-unknown-cause",
        "feature-without-kernels",
    }


BOUNDS = {
    "MOST_COLLECTIVES": 12,
    "MOST_OF_TRACE": 5,
    "MOST_STEPS": 4,
    "MOST_GROUPS": 2,
    "MOST_KINDS": 25,
    "MOST_PARTS": 40,
    "KEPT_PARTS": 2,
    "MOST_RANKS_OF_KINDS": 60,
}


@settings(max_examples=25, deadline=None)
@given(seeds, st.integers(2, 8), st.integers(1, 4), st.sampled_from([{}, BOUNDS]))
def test_any_order_of_merging_gives_the_same(
    seed: int, count: int, groups: int, bounds: dict[str, int]
) -> None:
    names = [f"tp[{2 * n},{2 * n + 1}]" for n in range(groups)]
    results = random_ranks(seed, count, names)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in bounds.items():
            patch.setattr(module, name, value)
        leaves = [leaf(place, result) for place, result in enumerate(results)]
        flat = travelled(merge(leaves))
        draw = np.random.default_rng(seed)
        for _ in range(2):
            assert merged_in_some_order(leaves, draw) == flat
        if bounds:
            assert len(flat.collectives) <= 12
            assert len(flat.steps) <= 4


@settings(max_examples=20, deadline=None)
@given(seeds, st.integers(3, 6))
def test_what_is_bounded_still_adds_up(seed: int, count: int) -> None:
    """Within bounds that bite, sums over kinds, groups and parts are those of all collectives."""
    names = [f"tp[{2 * n},{2 * n + 1}]" for n in range(4)]
    results = random_ranks(seed, count, names)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in BOUNDS.items():
            patch.setattr(module, name, value)
            patch.setattr(f"sp_profiler.fleet.assembled.{name}", value, raising=False)
        fleet = fleet_report(merge([leaf(n, result) for n, result in enumerate(results)]), results)
    whole = ordinary(results)
    every = [c for result in results for c in result.collectives]
    assert fleet.fleet is not None
    assert fleet.fleet.collectives == len(every) == sum(one.collectives for one in kinds_of(fleet))
    for name in ("dur_ns", "overlapped_ns", "exposed_ns", "exposed_share_ns"):
        assert sum(getattr(one, name) for one in kinds_of(fleet)) == sum(getattr(c, name) for c in every)
    assert sum(one.exposed_ns for one in fleet.fleet.steps) == sum(
        step.exposed_ns or 0 for step in whole.steps
    )
    for name in ("exposed_by_module_ns", "exposed_by_layer_ns"):
        assert getattr(fleet.totals, name) == getattr(whole.totals, name)
    for name in ("exposed_by_group_ns", "exposed_union_by_group_ns"):
        assert sum(getattr(fleet.totals, name).values()) == sum(getattr(whole.totals, name).values())
    for one, two in zip(fleet.ranks, whole.ranks, strict=True):
        assert sum(one.exposed_by_module_ns.values()) == sum(two.exposed_by_module_ns.values())
        assert replace(one, exposed_by_module_ns={}) == replace(two, exposed_by_module_ns={})
    assert sum(one.collectives for one in fleet.groups) == sum(one.collectives for one in whole.groups)
    listed = {group.group for group in fleet.groups}
    assert set(fleet.totals.exposed_by_group_ns) <= listed | set(names)
    assert {c.id: c for c in whole.collectives}.items() >= {c.id: c for c in fleet.collectives}.items()
    # Text and evidence but for names of groups and ranks: the rules saw the same sums and examples. Where
    # kinds are too many, operations and kernels are one, and the rule that looks for kernels is silent.
    coarse = any(entry.code == "kinds-coarse" for entry in fleet.data_quality)
    known = [f for f in whole.findings if not coarse or f.code != "feature-without-kernels"]
    same = [f for f in fleet.findings if not coarse or f.code != "feature-without-kernels"]
    for one, two in zip(same, known, strict=True):
        assert one.code == two.code
        for key in (*([] if coarse else ["ops"]), "exposed_ns", "collectives", "examples"):
            assert one.evidence.get(key) == two.evidence.get(key)


def test_the_most_exposed_collectives_are_listed() -> None:
    results = [random_rank(7, rank, GROUPS, most=150) for rank in range(8)]
    merged = merge([leaf(place, result) for place, result in enumerate(results)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_COLLECTIVES", 50)
        merged = merge([merged])
    report = fleet_report(merged, results)
    every = ordinary(results).collectives
    worst = sorted(every, key=lambda c: (-c.exposed_share_ns, c.id))[:50]
    listed = {c.id for c in report.collectives}
    assert listed >= {c.id for c in worst}
    for found in report.findings:
        assert listed >= {one["id"] for one in found.evidence.get("examples", ())}
        assert listed >= set(found.evidence.get("longest_collective_ids", ()))
    assert len(listed) < 50 + 400
    (entry,) = [e for e in report.data_quality if e.code == "collectives-on-disk"]
    assert entry.severity == "note"
    assert "work/collectives" in entry.text
    assert entry.count == len(every) - len(listed)


# --- the report as a file --------------------------------------------------------------------------------


def a_fleet(ranks: int = 6, groups: list[str] | None = None) -> Report:
    results = random_ranks(3, ranks, groups)
    return fleet_report(merge([leaf(n, result) for n, result in enumerate(results)]), results)


def test_a_fleets_report_follows_the_schema_and_comes_back() -> None:
    report = a_fleet()
    text = report_json.render(report)
    Draft202012Validator(json.loads(report_json.SCHEMA_PATH.read_text())).validate(json.loads(text))
    assert report_json.read_report(text) == report


def test_an_ordinary_report_has_no_member_fleet() -> None:
    assert '"fleet"' not in report_json.render(ordinary(random_ranks(1, 2)))


def test_every_screen_shows_a_fleet() -> None:
    report = a_fleet()
    assert "Collectives by kind" in html.render(report)
    assert "Collectives by kind" in markdown.render(report)
    assert tables.csv_tables(report)["collectives"].count("\n") == len(report.collectives) + 1


# --- what does not grow ------------------------------------------------------------------------------------


def test_a_report_of_a_thousand_ranks_is_bounded() -> None:
    """Of 1,024 ranks in groups of 8, 128 across, and all: bounded whatever the traces hold."""
    ranks = 1024
    world = group_key("default_pg", range(ranks), ranks)

    def groups(rank: int) -> list[str]:
        first = rank - rank % 8
        return [
            group_key("tp", range(first, first + 8), 8),
            group_key("dp", range(rank % 8, ranks, 8), ranks // 8),
            world,
        ]

    results = [random_rank(5, rank, groups(rank), most=10) for rank in range(ranks)]
    level = [leaf(place, result) for place, result in enumerate(results)]
    assert max(len(json_of(one)) for one in level) < 200_000
    while len(level) > 1:
        level = [merge(level[low : low + 16]) for low in range(0, len(level), 16)]
    report = fleet_report(level[0], results)
    assert len(report.ranks) == ranks
    assert len(report.collectives) <= module.MOST_COLLECTIVES + 400  # and those that findings may name
    assert len(report.steps) <= module.MOST_STEPS
    names = [group.group for group in report.groups]
    assert len(names) <= module.MOST_GROUPS + 3
    assert any(name.startswith("tp[8 ranks] x ") for name in names)
    assert "default_pg[0-1023]" in names
    (whole,) = [group for group in report.groups if group.group == "default_pg[0-1023]"]
    assert whole.ranks == list(range(ranks))
    every = sum(len(result.collectives) for result in results)
    assert sum(one.collectives for one in kinds_of(report)) == every
    assert sum(group.collectives for group in report.groups) == sum(
        c.group is not None for result in results for c in result.collectives
    )
    codes = {entry.code for entry in report.data_quality}
    assert {"collectives-on-disk", "steps-most-exposed", "groups-by-pattern", "same"} <= codes
    (same,) = [entry for entry in report.data_quality if entry.code == "same"]
    assert (same.file, same.count) == (None, ranks)
    assert len(report.data_quality) < 30
    assert len(report_json.render(report)) < 12_000_000


def json_of(report: RankReport) -> bytes:
    import msgspec

    return msgspec.json.encode(report)


# --- names -----------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 5_000), min_size=LONG + 1, max_size=200, unique=True))
@settings(deadline=None)
def test_a_short_name_tells_the_ranks_or_is_told_apart(ranks: list[int]) -> None:
    key = group_key("dp", ranks, len(ranks))
    name = short_name(key)
    assert len(name) < 200
    assert short_name(name) == name
    told = ranks_in(name)
    assert told == ranks if told is not None else f"[{len(ranks)} ranks, " in name
    assert pattern(name) == f"dp[{len(ranks)} ranks]"
    other = short_name(group_key("dp", [*ranks[:-1], ranks[-1] + 5_001], len(ranks)))
    assert other != name


def test_names_of_groups() -> None:
    assert short_name("tp[0,1,2,3,4,5,6,7]") == "tp[0,1,2,3,4,5,6,7]"
    assert short_name(group_key("dp", range(3, 1024, 8), 128)) == "dp[3-1019:8]"
    assert short_name(group_key("world", range(10_000), 10_000)) == "world[0-9999]"
    assert short_name("tp[?]") == "tp[?]"
    assert stretches((4, 0, 1, 2, 9)) == "4,0-2,9"
    assert pattern("tp[0,1,2,3,4,5,6,7]") == pattern("tp[8 ranks]") == "tp[8 ranks]"
    assert pattern("alone[7]") == "alone[1 rank]"
    assert pattern("tp[?]") == "tp[?]"


# --- kinds -----------------------------------------------------------------------------------------------


def test_ranks_of_kinds_are_runs() -> None:
    assert runs([(0, 2), (1, 2), (2, 2), (4, 2), (5, 1)]) == ((0, 2, 2), (4, 4, 2), (5, 5, 1))
    assert runs([(-1, 3), (0, 3)]) == ((-1, -1, 3), (0, 0, 3))  # a rank nobody knows is in no run
    assert added_runs([((0, 0, 2),), ((1, 1, 2),)]) == ((0, 1, 2),)
    assert added_runs([((0, 3, 2),), ((1, 1, 1),)]) == ((0, 0, 2), (1, 1, 3), (2, 3, 2))
    assert added_runs([((0, 3, 2),), None]) is None


def is_after_partner(row: CollectiveFigures) -> bool:
    told, mine = row.cause_evidence, row.launch_ns
    if told is None or mine is None or told.partner_end_ns is None or told.partner_launch_ns is None:
        return False
    return told.partner_end_ns <= row.start_ns and told.partner_launch_ns < mine


@settings(max_examples=30, deadline=None)
@given(seeds)
def test_kinds_sum_what_they_hold(seed: int) -> None:
    rows = list(random_rank(seed, 0, GROUPS, most=60).collectives)
    kinds = CollectiveKinds.of(rows)
    assert len(kinds) == len(rows)
    for cause in {name for row in rows for name in row.exposed_by_cause_ns or {}}:
        mine = kinds.where(lambda kind, cause=cause: cause in kind.causes)
        having = [row for row in rows if (row.exposed_by_cause_ns or {}).get(cause)]
        assert len(mine) == len(having)
        assert mine.of_cause(cause) == sum((row.exposed_by_cause_ns or {})[cause] for row in having)
        largest = sorted(having, key=lambda row: (-(row.exposed_by_cause_ns or {})[cause], row.id))[:5]
        assert [row for _, row in mine.largest(lambda t, cause=cause: t.exposed_by_cause(cause))] == largest
    late = kinds.where(lambda kind: kind.is_after_partner)
    assert len(late) == sum(map(is_after_partner, rows))
    assert kinds.by_rank() == {0: len(rows)}
    assert sum(one.collectives for one in kind_figures(rows)) == len(rows)


def test_a_kind_has_every_field_that_tells_collectives_apart() -> None:
    """A field that rules begin to ask for belongs into `Kind`, or they cannot ask."""
    assert {field.name for field in fields(Kind)} >= {"op", "group", "purpose", "is_async", "partner", "rule"}


def test_the_rank_and_its_place_need_not_agree() -> None:
    """Ranks 3 and 7 alone: ids count through the two traces."""
    results = [random_rank(1, rank, GROUPS) for rank in (3, 7)]
    leaves = [
        rank_report(place, facts_of(rank), result, RankAcross())
        for place, (rank, result) in enumerate(zip((3, 7), results, strict=True))
    ]
    report = fleet_report(merge(leaves), results)
    assert [c.id for c in report.collectives] == list(range(len(report.collectives)))
    assert report.run.ranks == [3, 7]
