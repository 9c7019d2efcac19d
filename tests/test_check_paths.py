"""Any field of a report by its path."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_helpers import make_report

from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.checking.paths import follow, parse_path
from sp_profiler.errors import UsageError

REPORT = make_report(ranks=3)


def values(path: str, report: Any = REPORT) -> list[Any]:
    return [found.value for found in follow(parse_path(path), report)]


def test_fields_keys_and_entries() -> None:
    assert values("totals.exposed_ns") == [REPORT.totals.exposed_ns]
    assert values('totals.exposed_by_group_ns."tp[0,1]"') == [REPORT.totals.exposed_by_group_ns["tp[0,1]"]]
    module = "layers.1.mlp.up"
    assert values(f'totals.exposed_by_module_ns."{module}"') == [REPORT.totals.exposed_by_module_ns[module]]
    assert values("ranks[*].idle_ns") == [one.idle_ns for one in REPORT.ranks]
    assert values("ranks[1].idle_ns") == [REPORT.ranks[1].idle_ns]
    assert values("ranks[rank=2].idle_ns") == [REPORT.ranks[2].idle_ns]
    assert values('groups[group="tp[0,1]"].collectives') == [REPORT.groups[0].collectives]
    assert values("totals.hiding_by_purpose.dgrad.hidden_of_hideable") == [
        REPORT.totals.hiding_by_purpose["dgrad"].hidden_of_hideable
    ]
    assert values("run.workload.mode") == ["tp"]


def test_what_is_not_there_is_null_with_a_reason() -> None:
    (found,) = follow(parse_path("totals.exposed_by_group_ns.dp"), REPORT)
    assert found.value is None
    assert found.missing == "there is no 'dp' (there is tp[0,1])"
    assert values("memory.peak_bytes") == [None]  # the report has no memory
    assert values("memory.ranks[*].peak_bytes") == [None]
    assert values("ranks[rank=7].idle_ns") == []
    assert values("ranks[9].idle_ns") == []
    assert values("run.workload.mode.deeper") == [None]


def test_collectives_may_be_columns() -> None:
    table = replace(REPORT, collectives=Collectives.of(REPORT.collectives))
    assert values("collectives[*].exposed_ns", table) == values("collectives[*].exposed_ns")
    assert values("collectives[id=3].dur_ns", table) == [REPORT.collectives[3].dur_ns]


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("totals.exposd_ns", "did you mean exposed_ns?"),
        ("totls.exposed_ns", "did you mean totals?"),
        ("totals", "no single figure"),
        ("totals.exposed_by_group_ns", "no single figure"),
        ("ranks.idle_ns", "ranks[*]"),
        ("totals[*].idle_ns", "is no list"),
        ("ranks[*]", "no single figure"),
        ("ranks[rnk=1].idle_ns", "have no 'rnk'"),
        ("totals.exposed_ns.more", "nothing below"),
        ("totals.", "is no path"),
        (".totals", "is no path"),
        ("totals..x", "is no path"),
        ("", "is no path"),
        ("ranks[.idle_ns", "is no path"),
        ('totals."open', "is no path"),
        ("totals exposed", "is no path"),
    ],
)
def test_paths_that_no_report_has(path: str, word: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_path(path)
    assert word in str(raised.value)


@pytest.mark.parametrize(
    ("path", "unit"),
    [
        ("totals.exposed_ns", "ns"),
        ("totals.overlapped_by_role_ns.wgrad", "ns"),
        ("totals.overlap_ratio", "ratio"),
        ("totals.hidden_of_hideable", "ratio"),
        ("memory.peak_bytes", "bytes"),
        ("memory.peak_by_category.activations", "bytes"),
        ("collectives[*].busbw_gbps", "gbps"),
        ("contention[*].slowdown_ratio", "count"),  # it may exceed 1
        ("totals.partner_unknown", "count"),
    ],
)
def test_units_follow_from_names(path: str, unit: str) -> None:
    assert parse_path(path).unit == unit


@given(st.text(min_size=1, max_size=20))
def test_any_key_can_be_named_in_quotes(key: str) -> None:
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    report = replace(REPORT, totals=replace(REPORT.totals, exposed_by_module_ns={key: 5}))
    if "\n" not in key:
        assert values(f'totals.exposed_by_module_ns."{escaped}"', report) == [5]


@given(st.text(max_size=30))
def test_any_text_is_a_path_or_a_sentence(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert parse_path(text).parts
