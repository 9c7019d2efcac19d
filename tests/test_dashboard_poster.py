"""The bars that stand in a view until plotly has drawn them."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("dash", reason="the extra 'dashboard' is not installed")

from dashboards import poster
from sp_profiler.report import figures
from sp_profiler.report.format import duration
from sp_profiler.report.page_parts import QUIET, plot
from sp_profiler.report.palette import TIME

DOWN = {"type": "category", "autorange": "reversed"}


def drawn(names: list[str], parts: list[tuple[str, list[float]]], whole: list[float]) -> Any:
    shown = [(TIME[look], values) for look, values in parts]
    figure = figures.stacked_bars(names, shown, whole, unit=1e6, text=duration, x_title="ms per step")
    made = plot(figure, QUIET)
    return poster.bars(made["data"], made["layout"])


def told(made: Any) -> Any:
    return json.loads(getattr(made, "data-bars"))


def rows(made: Any) -> dict[str, list[tuple[float, str]]]:
    """By name: how much of the axis each part takes, in percent, and what is written in it."""
    return {name: [(part[0], part[4]) for part in parts] for name, parts in told(made)["rows"]}


def test_parts_are_as_long_as_their_values() -> None:
    # rank 0: 6 ms compute + 4 ms idle; rank 1: 10 ms compute + 10 ms idle, the longest: 95 % of the axis.
    made = drawn(["rank 0", "rank 1"], [("compute", [6e6, 1e7]), ("idle", [4e6, 1e7])], [1e7, 2e7])
    found = rows(made)
    assert found["rank 0"] == [(28.5, "60 %"), (19.0, "40 %")]
    assert found["rank 1"] == [(47.5, "50 %"), (47.5, "50 %")]


def test_ticks_stand_at_round_values() -> None:
    made = drawn(["rank 0"], [("compute", [1.9e7])], [1.9e7])  # the axis ends at 20 ms
    assert told(made)["ticks"] == [["0", 0], ["5", 25], ["10", 50], ["15", 75], ["20", 100]]
    assert told(made)["title"] == "ms per step"


def test_a_part_of_nothing_is_left_out() -> None:
    made = drawn(["rank 0", "rank 1"], [("compute", [1e6, 1e6]), ("idle", [0.0, 1e6])], [1e6, 2e6])
    assert [len(parts) for parts in rows(made).values()] == [1, 2]


def test_names_are_text_again() -> None:
    name = figures.label("<b>tp</b> & dp")  # as plotly wants it
    made = drawn([name], [("compute", [1e6])], [1e6])
    assert list(rows(made)) == ["<b>tp</b> & dp"]


@pytest.mark.parametrize(
    "data",
    [
        [],
        [{"type": "scatter", "x": [1], "y": [1]}],
        [{"type": "bar", "orientation": "v", "x": ["a"], "y": [1]}],
        [{"type": "bar", "orientation": "h", "x": [-1.0, 2.0], "y": ["a", "b"]}],
        [{"type": "bar", "orientation": "h", "x": [0.0], "y": ["a"]}],
    ],
)
def test_other_figures_have_none(data: list[dict[str, Any]]) -> None:
    assert poster.bars(data, {"barmode": "stack", "yaxis": DOWN}) is None


def test_only_stacks_from_the_top_down() -> None:
    data = [{"type": "bar", "orientation": "h", "x": [1.0], "y": ["a"]}]
    assert poster.bars(data, {"barmode": "stack", "yaxis": DOWN}) is not None
    assert poster.bars(data, {"barmode": "overlay", "yaxis": DOWN}) is None
    assert poster.bars(data, {"barmode": "stack", "yaxis": {"type": "category"}}) is None  # upwards
