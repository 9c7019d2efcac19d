"""Figures of the dashboard: the timeline at any width, waits across ranks, hiding by layer, what changed."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from analysis_helpers import comm, compute, draw, gemm, step
from hypothesis import given
from hypothesis import strategies as st

from sp_profiler.analysis.lanes import Budget, Lanes, lanes_of_rank, view
from sp_profiler.analysis.rank import analyze_rank
from sp_profiler.analysis.steps import WindowRule
from sp_profiler.classify.tables import Role
from sp_profiler.engine import analyze_files
from sp_profiler.report import across_figures
from sp_profiler.report.cause_figures import CAUSE, step_by_cause
from sp_profiler.report.lane_figures import HIGH, DrawnRank, Mark, _shares, is_binned, lane_figure
from sp_profiler.report.model import Report, windows_of
from sp_profiler.report.overlap_figures import hiding_by_layer
from sp_profiler.trace.find import find_runs

DEMO = Path(__file__).resolve().parent.parent / "traces/demo"
EVIL = "<b onclick=alert(1)>x</b>"


def report_of(name: str) -> Report:
    (files,) = find_runs([str(DEMO / name)])
    return analyze_files(files)


def lanes(*drawn, **more) -> Lanes:
    trace, classified = draw(*drawn, **more)
    return lanes_of_rank(trace, classified, analyze_rank(trace, classified, WindowRule()))


def unpacked(packed: dict[str, str]) -> np.ndarray:
    values = np.frombuffer(base64.b64decode(packed["bdata"]), packed["dtype"])
    return values.reshape([int(n) for n in packed["shape"].split(", ")]) if "shape" in packed else values


# --- the timeline ---------------------------------------------------------------------------------------


def drawn(found: Lanes, start: int, end: int, budget: Budget, marks: Sequence[Mark] = ()) -> dict:
    rank = DrawnRank(found, view(found, start, end, 10, budget), collective=lambda place: 100 + place)
    return lane_figure([rank], 0, start, end, "light", marks)


def test_single_activities_are_bars_with_their_collectives() -> None:
    found = lanes(
        comm(5_000_000, 15_000_000),
        gemm(0, 10_000_000, Role.WGRAD, name=EVIL),
        steps=(step(3, 0, 20_000_000),),
    )
    figure = drawn(found, 0, 20_000_000, Budget(), [Mark(5_000_000, 15_000_000, "")])
    bars = {trace["name"]: trace for trace in figure["data"]}
    assert set(bars) == {"wgrad", "communication", "communication exposed"}
    assert unpacked(bars["communication"]["base"]).tolist() == [5.0]
    assert unpacked(bars["communication"]["x"]).tolist() == [10.0]
    assert bars["communication"]["customdata"] == [[100]]
    assert bars["wgrad"]["customdata"] == [[-1]]
    assert unpacked(bars["communication exposed"]["base"]).tolist() == [10.0]
    assert "<b onclick" not in json.dumps(figure)
    assert "&lt;b onclick" in bars["wgrad"]["hovertext"][0]
    layout = figure["layout"]
    assert layout["xaxis"]["range"] == [0, 20]
    assert layout["yaxis"]["ticktext"] == ["exposed", "compute", "communication"]
    assert [note["text"] for note in layout["annotations"]] == ["step 3"]
    frame = next(shape for shape in layout["shapes"] if shape["type"] == "rect")
    assert (frame["x0"], frame["x1"]) == (5, 15)


def test_full_lanes_are_shares_of_time() -> None:
    found = lanes(*(compute(i, i + 1, Role.OTHER if i % 4 else Role.FWD) for i in range(0, 512, 2)))
    figure = drawn(found, 0, 512, Budget(rows=10))  # in 64 bins of 8 ns
    areas = {trace["name"]: unpacked(trace["y"]) for trace in figure["data"] if "name" in trace}
    assert {name: set(values.tolist()) for name, values in areas.items()} == {
        "forward GEMM": {25}, "other computation": {25},
    }  # fmt: skip
    told = figure["data"][-1]
    assert unpacked(told["customdata"]).shape == (64, 2)
    assert "forward GEMM: %{customdata[0]} %" in told["hovertemplate"]


@given(
    st.lists(st.lists(st.integers(0, 50), min_size=3, max_size=3), min_size=1, max_size=6),
    st.integers(300, 999),
)
def test_shares_never_exceed_the_lane_and_are_off_by_less_than_one(
    parts: list[list[int]], width: int
) -> None:
    edges = np.arange(4) * width
    shares = _shares({look: np.array(values) for look, values in enumerate(parts)}, edges)
    total = sum(values.astype(int) for values in shares.values())
    assert (np.asarray(total) <= HIGH).all()
    for look, values in enumerate(parts):
        exact = np.array(values) * HIGH / width
        assert (np.abs(shares[look] - exact) <= 1).all()


def test_ranks_with_clocks_apart_are_drawn_on_one_axis() -> None:
    one, two = lanes(gemm(0, 1_000_000)), lanes(gemm(7_000_000, 8_000_000))
    ranks = [
        DrawnRank(one, view(one, 0, 1_000_000, 10), "rank 0"),
        DrawnRank(two, view(two, 7_000_000, 8_000_000, 10), "rank 1", shift_ns=7_000_000),
    ]
    figure = lane_figure(ranks, 0, 0, 1_000_000, "dark")
    (bars,) = figure["data"]
    assert unpacked(bars["base"]).tolist() == [0.0, 0.0]
    assert figure["layout"]["yaxis"]["ticktext"] == ["rank 0 · compute", "rank 1 · compute"]
    assert not is_binned(ranks)


# --- the other views --------------------------------------------------------------------------------------


def test_exposed_time_by_cause_is_all_exposed_time() -> None:
    report = report_of("tp-async")
    looks = {look.label for look in CAUSE.values()}
    drawn_ms = [
        sum(trace.x[n] for trace in step_by_cause(report).data if trace.name in looks) for n in (0, 1)
    ]  # type: ignore[union-attr, attr-defined]
    for rank, shown in zip(report.ranks, drawn_ms, strict=True):
        assert rank.exposed_ns is not None
        assert abs(shown * 1e6 * windows_of(report, rank) - rank.exposed_ns) < 1
    whole = replace(report, ranks=[replace(rank, exposed_by_cause_ns=None) for rank in report.ranks])
    names = [trace.name for trace in step_by_cause(whole).data]  # type: ignore[attr-defined]
    assert "communication exposed" in names
    assert not looks.intersection(names)


def test_waits_are_the_collectives_own() -> None:
    report = report_of("tp-async")
    found = across_figures.waits(report)
    assert found is not None
    assert found.ranks == [0, 1]
    for row, rank in enumerate(found.ranks):
        for number, ns in zip(found.ids[row].tolist(), found.ns[row].tolist(), strict=True):
            one = report.collectives[number]
            assert (one.rank, one.skew_wait_ns) == (rank, ns)
    for column in range(found.ids.shape[1]):  # one call: the same collective on both ranks, one of them last
        pair = [report.collectives[number] for number in found.ids[:, column].tolist()]
        assert pair[0].module == pair[1].module
        assert min(one.skew_wait_ns or 0 for one in pair) == 0
    assert len(across_figures.wait_map(found).data) == 1  # type: ignore[arg-type]


def test_hiding_by_layer_is_all_time_of_collectives_with_a_layer() -> None:
    report = report_of("tp-async")
    for purpose in (None, "dgrad"):
        figure = hiding_by_layer(report, purpose)
        assert figure is not None
        mine = [c for c in report.collectives if c.layer is not None and purpose in (None, c.purpose)]
        shown = sum(sum(trace.y) for trace in figure.data)  # type: ignore[attr-defined]
        assert abs(shown * 1e6 * windows_of(report) - sum(c.dur_ns for c in mine)) < 1
    assert hiding_by_layer(report, "no such purpose") is None
