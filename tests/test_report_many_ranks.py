"""A report of a thousand ranks stays readable: aggregates, outliers named, tables cut and said to be."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from report_helpers import MS, make_report
from rich.console import Console

from sp_profiler.report import across_figures, evidence, html, many_ranks, markdown, rank_figures, view
from sp_profiler.report.figures import FEW_BARS
from sp_profiler.report.format import short_group, shown_group
from sp_profiler.report.model import Finding, Fleet, Report, StepAcross, kinds_of, windows_by_rank
from sp_profiler.report.terminal import print_report

RANKS = 1024
SLOW, HIDDEN = 700, 33  # the ranks unlike the others


@cache
def thousand(ranks: int = RANKS) -> Report:
    """Ranks that differ a little; in a step rank 700 exposes 9 ms more, rank 33 computes 8 ms less."""
    drawn = make_report(ranks=2, steps=2, layers=1)
    base, steps = drawn.ranks[0], [step for step in drawn.steps if step.rank == 0]
    draw = np.random.default_rng(1)
    rows = []
    for rank in range(ranks):
        more = int(draw.integers(40_000)) + (18 * MS if rank == SLOW else 0)
        less = 16 * MS if rank == HIDDEN else 0
        rows.append(
            replace(
                base,
                rank=rank,
                file=f"rank-{rank:05d}.json.gz",
                exposed_ns=(base.exposed_ns or 0) + more,
                compute_ns=(base.compute_ns or 0) - less,
            )
        )
    told = {"ranks": list(range(ranks)), "groups": [f"tp[{8 * n}-{8 * n + 7}]" for n in range(ranks // 8)]}
    return replace(
        drawn,
        run=replace(drawn.run, world_size=ranks, ranks=list(range(ranks))),
        ranks=rows,
        steps=[replace(step, rank=rank) for rank in range(ranks) for step in steps],
        findings=[Finding("peer-skew", "advice", "They wait.", {"collectives": 9, **told}, "Look.")],
    )


def printed(report: Report, width: int = 120) -> str:
    out = io.StringIO()
    print_report(report, Console(file=out, width=width, color_system=None))
    return out.getvalue()


def test_the_spread_of_a_figure_is_what_numpy_says() -> None:
    report = thousand()
    exposed = np.array([(r.exposed_ns or 0) / 2 for r in report.ranks])  # two steps each
    (one,) = [spread for spread in many_ranks.spreads(report) if spread.name == "exposed_ns"]
    assert (one.least, one.most) == (exposed.min(), exposed.max())
    assert (one.low, one.median, one.high) == tuple(np.percentile(exposed, (5, 50, 95)))
    assert one.most_rank.rank == SLOW
    assert one.least_rank.rank == int(exposed.argmin())


def test_ranks_unlike_the_others_are_named_and_no_other() -> None:
    found = many_ranks.unlike(thousand())
    assert [(one.rank.rank, one.name) for one in found] == [(SLOW, "exposed_ns"), (HIDDEN, "compute_ns")]
    assert found[0].ns - found[0].median == pytest.approx(9 * MS, abs=20_000)
    assert found[1].ns - found[1].median == -8 * MS


def test_among_equal_or_few_ranks_none_is_unlike() -> None:
    report = thousand()
    alike = replace(report, ranks=[replace(report.ranks[0], rank=rank) for rank in range(RANKS)])
    assert many_ranks.unlike(alike) == []
    few = replace(report, ranks=report.ranks[: many_ranks.MANY])
    assert many_ranks.listings(few) == []
    assert rank_figures.rank_spread(few) is None


def test_the_terminal_names_the_outliers_and_stays_short() -> None:
    text = printed(thousand())
    assert text.count("\n") < 130
    assert max(map(len, text.splitlines())) < 200
    assert "How 1024 ranks spread" in text
    row = next(line for line in text.splitlines() if re.match(r"\s*700\s+Exposed", line))
    assert "9.0" in row
    assert "the 16 most exposed of 1024" in text


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_spread_fits_a_terminal(width: int) -> None:
    out = io.StringIO()
    print_report(thousand(), Console(file=out, width=width, color_system=None, force_terminal=True))
    table = out.getvalue().split("How 1024 ranks spread")[1].split("By rank")[0]
    assert max(map(len, table.splitlines())) <= width


def test_markdown_says_what_it_cuts() -> None:
    text = markdown.render(thousand())
    assert len(text) < 60_000
    assert "… and 1004 more rows" in text.replace("\u202f", "")
    rows = text.split("## Ranks\n")[1].splitlines()
    assert rows[1].endswith("most exposed first.")
    assert rows[5].startswith(f"| {SLOW} |")
    assert "ranks: 0-1023 (1" in text  # the evidence, not a thousand numbers
    assert "and 120 more" in text


def test_the_page_is_bounded() -> None:
    report = thousand()
    page = html.render(report)
    assert len(page) < 5_000_000
    text = page[page.index('{"report"') :]
    data, _ = json.JSONDecoder().raw_decode(text.replace("\\u003c", "<"))
    for name, plot in data["plots"].items():
        assert len(plot["data"]) < 16, name  # what a legend shows
        if name != "rank-spread":
            assert all(len(trace.get("y", ())) <= 400 for trace in plot["data"]), name
    bars = data["plots"]["step-time"]["data"][0]["y"]
    assert len(bars) == FEW_BARS
    assert {f"rank {SLOW}", f"rank {HIDDEN}"} <= set(bars)
    assert "24 of 1024" in page
    (points,) = data["plots"]["rank-spread"]["data"]
    assert points["x"] == list(range(RANKS))
    assert "0-1023 (1" in page


def test_the_picture_of_all_ranks_names_the_outlier() -> None:
    figure = rank_figures.rank_spread(thousand())
    assert figure is not None
    (note,) = figure.layout.annotations  # type: ignore[attr-defined]
    assert note.x == SLOW
    assert note.text.startswith("rank 700 · ")
    (points,) = figure.data  # type: ignore[misc]
    assert points.y[SLOW] == pytest.approx(note.y)


def test_of_more_ranks_neighbours_share_a_point() -> None:
    report = thousand(3 * rank_figures.MOST_POINTS)
    figure = rank_figures.rank_spread(report)
    assert figure is not None
    (points,) = figure.data  # type: ignore[misc]
    assert len(points.x) == rank_figures.MOST_POINTS
    assert SLOW in points.x  # the most exposed of its neighbours


def test_the_map_of_waits_shows_the_ranks_that_wait_most() -> None:
    """Of 200 ranks and one call the 64 with most waiting, in their order."""
    one = thousand().collectives[0]
    waits = {rank: (rank * 37) % 200 for rank in range(200)}
    rows = [replace(one, id=rank, rank=rank, seq=1, skew_wait_ns=ns) for rank, ns in waits.items()]
    found = across_figures.waits(replace(thousand(), collectives=rows))
    assert found is not None
    most = sorted(waits, key=lambda rank: -waits[rank])[: across_figures.MOST_RANKS]
    assert found.ranks == sorted(most)
    assert found.ns[:, 0].tolist() == [waits[rank] for rank in found.ranks]
    assert found.ranks_left_out == 200 - 64


# --- of a fleet ------------------------------------------------------------------------------------------


def a_fleet() -> Report:
    """The same report as one of a fleet that lists 3 of its collectives and 5 of its windows."""
    report = thousand()
    windows = windows_by_rank(report)
    steps = [
        StepAcross(n, RANKS, RANKS * 20 * MS, 0, 0, 0, RANKS * 2 * MS, 0, 21 * MS, 5, 11 * MS, SLOW)
        for n in (0, 1)
    ]
    fleet = Fleet(
        windows=2 * RANKS,
        rank_windows=[windows[r.rank, r.device] for r in report.ranks],
        collectives=len(report.collectives),
        collectives_at="work/collectives",
        kinds=kinds_of(report),
        steps=steps,
    )
    return replace(report, collectives=report.collectives[:3], steps=report.steps[:5], fleet=fleet)


def test_tables_of_a_fleet_add_up_to_all_of_it() -> None:
    whole, fleet = thousand(), a_fleet()
    tables = {table.id: table for table in view.tables(fleet)}
    every = {table.id: table for table in view.tables(whole)}
    assert tables["kinds"].rows == every["kinds"].rows
    collectives = tables["collectives"]
    assert (len(collectives.rows), collectives.total) == (3, len(whole.collectives))
    assert collectives.sums == every["collectives"].sums
    assert "work/collectives" in collectives.note
    assert tables["steps"].total == 2 * RANKS
    assert "The 5 most exposed of 2048" in tables["steps"].note
    assert [row[0] for row in tables["steps-across"].rows] == [0, 1]
    assert tables["steps-across"].rows[0][2] == 20 * MS


def test_screens_of_a_fleet_say_where_all_collectives_are() -> None:
    assert "work/collectives" in markdown.render(a_fleet())
    assert "work/collectives" in html.render(a_fleet())
    assert "Steps, over all ranks" in printed(a_fleet())
    assert printed(a_fleet()).count("By purpose") == 1


# --- texts -----------------------------------------------------------------------------------------------


def test_evidence_is_short_only_where_it_is_long() -> None:
    told = {"ranks": [0, 1, 2], "ops": ["all-reduce"], "groups": ["tp[0,1]"], "ns": 3, "x": {"ranks": [1]}}
    assert evidence.readable("", told) == told
    many = evidence.readable(
        "", {"ranks": [*range(64), *range(72, 128)], "groups": list("abcdefghijklmnopqrst")}
    )
    assert many["ranks"] == "0-63, 72-127 (120 ranks)"
    assert many["groups"] == [*"abcdefgh", "and 12 more"]
    scattered = evidence.readable("ranks", list(range(0, 100, 3)))
    assert scattered == "0, 3, 6, 9, 12, 15, 18, 21, and 26 more stretches (34 ranks)"


def test_long_keys_of_groups_are_shown_in_stretches() -> None:
    key = f"dp[{','.join(map(str, range(3, 1024, 16)))}]"
    assert shown_group(key) == short_group(key) == "dp[3-1011:16]"
    assert shown_group("tp[0,1,2,3]") == "tp[0,1,2,3]"
