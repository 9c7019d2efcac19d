"""CSV, Parquet and polars tables of a report."""

from __future__ import annotations

import csv
import io

import polars as pl
import pytest
from report_helpers import HOSTILE, make_report

from sp_profiler.errors import UsageError
from sp_profiler.report import tables
from sp_profiler.report.model import Report


def empty() -> Report:
    """A report without a single row in any table."""
    from dataclasses import replace

    nothing: dict = {
        "ranks": [],
        "steps": [],
        "collectives": [],
        "groups": [],
        "gemms": [],
        "data_quality": [],
    }
    return replace(make_report(), **nothing)


def test_maps_become_columns_that_sum_to_the_whole() -> None:
    report = make_report()
    frame = report.to_polars("ranks")
    parts = frame.select(pl.sum_horizontal(pl.col("^overlapped_by_role_ns\\..*$"))).to_series()
    assert parts.to_list() == [rank.overlapped_ns for rank in report.ranks]
    assert frame["overlapped_by_role_ns.wgrad"].to_list() == [
        rank.overlapped_by_role_ns["wgrad"] for rank in report.ranks
    ]
    assert frame["hiding_by_purpose.dgrad.partner_hidden_ns"].dtype == pl.Int64


def test_collectives_are_the_default_and_exact() -> None:
    report = make_report()
    frame = report.to_polars()
    assert frame.height == len(report.collectives)
    assert frame["start_ns"].to_list() == [c.start_ns for c in report.collectives]
    assert frame["ranks"].to_list() == [[0, 1]] * len(report.collectives)
    assert frame["partner.what"].to_list() == [
        c.partner.what if c.partner else None for c in report.collectives
    ]
    assert frame["skew_wait_ns"].null_count() == frame.height


def test_exposed_table_sums_to_exposed_for_every_rank_and_step() -> None:
    report = make_report()
    frame = report.to_polars("exposed")
    for by in ("group", "op", "purpose", "phase", "module", "layer", "union-by-group"):
        of_rank = frame.filter((pl.col("by") == by) & pl.col("step").is_null())
        assert of_rank["ns"].sum() == report.totals.exposed_ns, by
        of_steps = frame.filter((pl.col("by") == by) & pl.col("step").is_not_null())
        assert of_steps["ns"].sum() == report.totals.exposed_ns, by


@pytest.mark.parametrize("table", tables.TABLES)
def test_csv_and_parquet_hold_the_same_rows(table: str) -> None:
    report = make_report()
    frame = report.to_polars(table)
    assert pl.read_parquet(io.BytesIO(tables.parquet_tables(report)[table])).equals(frame)
    rows = list(csv.reader(io.StringIO(tables.csv_tables(report)[table])))
    assert rows[0] == frame.columns
    assert len(rows) == frame.height + 1
    for column in (name for name in frame.columns if name.endswith("_ns")):
        place = rows[0].index(column)
        assert [int(row[place]) if row[place] else None for row in rows[1:]] == frame[column].to_list()


@pytest.mark.parametrize("table", tables.TABLES)
def test_an_empty_table_keeps_its_header(table: str) -> None:
    text = tables.csv_tables(empty())[table]
    assert text.endswith("\n")
    assert len(text.splitlines()) == 1
    assert any(word in text for word in ("rank", "code", "name", "role", "group"))


def test_unknown_table_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="there is no table 'kernels'"):
        make_report().to_polars("kernels")


@pytest.mark.parametrize("name", [*HOSTILE, "+1", "-1", "@SUM(A1)", "\t=1", "  =1+1", "\ud800"])
def test_hostile_names_are_inert_in_csv_and_exact_in_polars(name: str) -> None:
    report = make_report(name=name)
    text = tables.csv_tables(report)["gemms"]
    assert all(char == "\n" or char.isprintable() for char in text)
    cell = next(csv.DictReader(io.StringIO(text)))["name"]
    assert not cell.lstrip(" ").startswith(("=", "+", "-", "@"))
    if name.isprintable():
        assert cell.removeprefix("'") == name
        assert report.to_polars("gemms")["name"][0] == name


def test_formula_in_a_column_name_is_inert() -> None:
    from dataclasses import replace

    report = make_report()
    ranks = [replace(rank, exposed_by_group_ns={"=1+1": 5, "a\nb": 6, "a\\nb": 7}) for rank in report.ranks]
    header = tables.csv_tables(replace(report, ranks=ranks))["ranks"].splitlines()[0]
    assert "exposed_by_group_ns.=1+1" in header  # does not start with the formula
    assert header.count("a\\nb") == 2  # two names that look the same are kept apart
