"""A sweep as one HTML page that works offline."""

from __future__ import annotations

from typing import Any

from sp_profiler.report import quality
from sp_profiler.report.page import render_page
from sp_profiler.report.page_parts import QUIET, ZOOMABLE, Panel, Part, for_page, part_of
from sp_profiler.report.table import Table, listing_table
from sp_profiler.sweeps.figures import charts
from sp_profiler.sweeps.model import Sweep
from sp_profiler.sweeps.tables import listings
from sp_profiler.sweeps.view import chips, machine, title


def render(sweep: Sweep) -> str:
    """Sentences, charts and tables; each cell's own page is linked."""
    part = _part(sweep)
    tables: list[Table] = part.tables
    data: dict[str, Any] = {"plots": part.plots, "tables": [for_page(table) for table in tables]}
    done = [cell for cell in sweep.cells if cell.status == "ok"]
    return render_page(
        "sweep.html.j2",
        data,
        title=title(sweep),
        chips=chips(sweep),
        sentences=sweep.sentences,
        part=part,
        tables=tables,
        pages=[(cell.name, f"cells/{cell.name}/report.html") for cell in done],
        notes=[(cell.name, note) for cell in sweep.cells for note in cell.notes],
        quality=quality.shown(sweep.data_quality),
        machine=machine(sweep),
    )


def _part(sweep: Sweep) -> Part:
    drawn = [
        (
            chart.id,
            chart.figure,
            Panel(chart.title, chart.text, "wide" if chart.id == "exposed" else ""),
            QUIET if chart.id == "exposed" else ZOOMABLE,
        )
        for chart in (charts(sweep) if sweep.cells else [])
    ]
    return part_of(drawn, [listing_table(one) for one in listings(sweep)])
