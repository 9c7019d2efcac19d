"""What all views are made of: panels, graphs with legends of our own, tables, lists of findings.

Text from a trace reaches the page as text: components never take markup, `visible` writes out what acts on a
screen, and plotly's labels went through `figures.label`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import dash_ag_grid as dag
import dash_mantine_components as dmc
from dash import dcc, html

from dashboards import poster
from dashboards.legend import legend, swatch  # noqa: F401 - a part of every view
from sp_profiler.ledger import LedgerEntry
from sp_profiler.report import quality
from sp_profiler.report.figures import unflattened
from sp_profiler.report.format import counted, short_group, visible
from sp_profiler.report.page import HOT
from sp_profiler.report.page_parts import QUIET, ZOOMABLE, Part
from sp_profiler.report.palette import THEMES
from sp_profiler.report.table import Column, Table
from sp_profiler.report.view import Shown

MOST_CHOICES = 100
"""Lines of an open list; of more, such as a thousand ranks, what is typed finds the others."""

# A figure that does not zoom can still be saved: its only button shows on hover.
GRAPH = QUIET | {"displaylogo": False, "displayModeBar": "hover", "modeBarButtons": [["toImage"]]}
ZOOMED = ZOOMABLE | {"displayModeBar": True, "toImageButtonOptions": {"format": "svg", "scale": 1}}


def attrs(given: dict[str, str]) -> dict[str, Any]:
    """Attributes whose names Python cannot spell (`aria-label`), as a component takes them."""
    return dict(given)


def panel(
    title: str, text: str, *children: Any, width: str = "", tools: Any = None, **more: Any
) -> html.Section:
    """A card with a heading; `text` stands beside it, `tools` at the right."""
    head = html.Div(
        [html.H2([title, html.Small(text)] if text else title), html.Span(className="spacer"), tools],
        className="panel-head",
    )
    return html.Section(
        [head, *children], className=f"panel {width}".strip(), **attrs({"aria-label": title}), **more
    )


def sentences(texts: Sequence[str]) -> html.Section:
    """The main sentences of a report, figures set off; the first one is the largest."""
    return html.Section([html.P(emphasised(text)) for text in texts], className="lead")


def emphasised(text: str) -> list[Any]:
    """A sentence with its figures in bold, as the HTML report has it."""
    shown = visible(text)
    parts: list[Any] = []
    last = 0
    for found in HOT.finditer(shown):
        parts += [shown[last : found.start()], html.B(found[0])]
        last = found.end()
    return [*parts, shown[last:]]


def figure_value(shown: Shown) -> html.Span:
    """A figure with the field of the report that it is, exact."""
    return html.Span(
        shown.text, className="value", **attrs({"data-figure": shown.path, "data-value": shown.raw})
    )


def cards(all_shown: Sequence[Shown]) -> html.Dl:
    """The figures on top."""
    made = []
    for place, shown in enumerate(all_shown):
        inside: list[Any] = [figure_value(shown), html.Div(shown.note, className="note")]
        if shown.share is not None and place:
            bar = html.I(style={"width": f"{min(max(shown.share, 0), 1) * 100:.1f}%"})
            inside.append(html.Div(bar, className="meter", **attrs({"aria-hidden": "true"})))
        made.append(html.Div([html.Dt(shown.label), html.Dd(inside)], className="card"))
    return html.Dl(made, className="cards")


def figures_list(all_shown: Sequence[Shown]) -> html.Dl:
    """Further figures, small."""
    return html.Dl(
        [
            html.Div([html.Dt(shown.label), html.Dd([figure_value(shown), html.Small(shown.note)])])
            for shown in all_shown
        ],
        className="figures",
    )


def graph(name: str, plot: Mapping[str, Any], theme: str, *, label: str = "") -> html.Div:
    """A plot as `page_parts.plot` makes it, in a theme, with its legend above."""
    layout = {**plot["layout"]}
    _merge(layout, unflattened(plot["themes"][theme]))
    is_quiet = plot["config"].get("displayModeBar") is False
    config: Any = (GRAPH if is_quiet else ZOOMED) | {
        "toImageButtonOptions": {"format": "svg", "filename": name}
    }
    if not is_quiet:  # the mode bar has a line of its own
        layout["margin"] = {**layout.get("margin", {}), "t": max(layout.get("margin", {}).get("t", 0), 34)}
    height = layout.get("height", 300)
    return html.Div(
        [
            legend(plot["data"]),
            html.Div(
                [
                    poster.bars(plot["data"], layout) if is_quiet else None,
                    dcc.Graph(
                        id=f"graph-{name}",
                        figure={"data": plot["data"], "layout": layout},
                        config=config,
                        responsive=True,
                        style={"height": f"{height}px"},
                    ),
                ],
                className="drawn",
                style={"minHeight": f"{height}px"},
            ),
        ],
        className="plot",
        style={"minHeight": f"{height}px"},
        role="img",
        **attrs({"aria-label": label or name}),
    )


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, Mapping):
            inner = dict(into.get(key) or {})
            _merge(inner, value)
            into[key] = inner
        else:
            into[key] = value


def part(made: Part, theme: str) -> list[Any]:
    """A section of plots and tables, as the HTML reports have it."""
    if made.told:
        return [notice("Nothing to show", made.told[:1].upper() + made.told[1:])]
    plots = [
        panel(one.title, one.text, graph(name, made.plots[name], theme, label=one.title), width=one.width)
        for name, one in made.panels.items()
    ]
    return [html.Div(plots, className="grid"), *tables("In numbers", made.tables, theme)]


def notice(title: str, *text: Any, kind: str = "") -> html.Section:
    """An empty state, or what went wrong."""
    return html.Section(
        [html.H2(title), *(html.P(one) for one in text)], className=f"notice {kind}".strip(), role="status"
    )


def tables(
    title: str, given: Sequence[Table], theme: str, tools: Mapping[str, Any] | None = None
) -> list[Any]:
    """Tables one at a time, behind tabs: only the one in front is made. `tools` by the id of a table."""
    tools = tools or {}
    if not given:
        return []
    if len(given) == 1:
        return [table_panel(given[0], theme, tools.get(given[0].id))]
    heads = [dmc.TabsTab(one.title, value=one.id) for one in given]
    panels = [
        dmc.TabsPanel(
            [html.P([one.note, " ", tools.get(one.id)], className="note"), grid(one, theme)], value=one.id
        )
        for one in given
    ]
    inside = dmc.Tabs([dmc.TabsList(heads), *panels], value=given[0].id, keepMounted=False)
    return [panel(title, "", inside)]


def table_panel(table: Table, theme: str, tools: Any = None) -> html.Section:
    return panel(table.title, table.note, grid(table, theme), width="wide", tools=tools)


_FEW = 5  # columns that share the whole width; more get what they need
_NUMERIC = ("int", "ms", "us", "ratio", "bytes", "mib", "number")


def grid(table: Table, theme: str, height: int | None = None, **options: Any) -> dag.AgGrid:
    """A table that sorts and filters. Values stay numbers; the page formats them."""
    rows = row_data(table)
    most = 14
    height = height or 40 + 32 * min(max(len(rows), 2), most)
    columns = [column_def(str(place), column) for place, column in enumerate(table.columns)]
    return grid_of(f"grid-{table.id}", columns, rows, theme, height, **options)


def row_data(table: Table) -> list[dict[str, Any]]:
    """The rows as ag-grid takes them: by the place of the column."""
    return [
        {
            str(place): _cell(column, value)
            for place, (column, value) in enumerate(zip(table.columns, row, strict=True))
        }
        for row in table.rows
    ]


def grid_of(
    name: Any,
    columns: list[dict[str, Any]],
    rows: list[dict[str, Any]],
    theme: str,
    height: int,
    **options: Any,
) -> dag.AgGrid:
    inner = {
        "theme": {"function": _grid_theme(theme)},
        "rowHeight": 32,
        "headerHeight": 36,
        "animateRows": False,
        "suppressCellFocus": False,
        "enableCellTextSelection": True,
        "ensureDomOrder": True,
        "tooltipShowDelay": 300,
    } | options.pop("inner", {})
    return dag.AgGrid(
        id=name,
        columnDefs=columns,
        rowData=rows,
        defaultColDef={"sortable": True, "resizable": True, "filter": True, "minWidth": 84},
        columnSize="autoSize" if len(columns) > _FEW else "responsiveSizeToFit",
        dashGridOptions=inner,
        style={"height": f"{height}px", "width": "100%"},
        **options,
    )


def column_def(key: str, column: Column) -> dict[str, Any]:
    """A column of ag-grid: the unit stands in the header, the page's script formats what is in the cells."""
    numeric = column.kind in _NUMERIC
    unit = {"ms": "ms", "us": "µs"}.get(column.kind, column.unit)
    made: dict[str, Any] = {
        "field": key,
        "headerName": f"{column.label} [{unit}]" if unit else column.label,
        "filter": "agNumberColumnFilter" if numeric else "agTextColumnFilter",
        "type": "rightAligned" if numeric else None,
        "sortingOrder": ["desc", "asc", None] if numeric else ["asc", "desc", None],
    }
    if numeric:
        made["valueFormatter"] = {"function": f"cell(params.value, '{column.kind}')"}
        if column.kind in ("ms", "us", "ratio"):  # numbers of filters are in the unit of the header
            made["filterValueGetter"] = {"function": f"inUnit(params.data['{key}'], '{column.kind}')"}
    else:
        made |= {"tooltipField": key, "maxWidth": 340}
    return {name: value for name, value in made.items() if value is not None}


def _cell(column: Column, value: Any) -> Any:
    if isinstance(value, str):
        return visible(short_group(value) if column.label == "Group" else value)
    return value


def _grid_theme(theme: str) -> str:
    look = THEMES[theme]
    soft = "#eef2f8" if theme == "light" else "#1f2732"
    given = {
        "backgroundColor": look["paper"],
        "foregroundColor": look["ink"],
        "borderColor": look["line"],
        "headerBackgroundColor": soft,
        "headerTextColor": look["muted"],
        "oddRowBackgroundColor": look["paper"],
        "rowHoverColor": soft,
        "browserColorScheme": theme,
        "fontFamily": "inherit",
        "fontSize": 13,
        "headerFontSize": 12,
        "wrapperBorderRadius": 8,
        "cellHorizontalPadding": 10,
    }
    return f"themeQuartz.withParams({json.dumps(given)})"


def ledger(entries: Sequence[LedgerEntry]) -> html.Section | None:
    """The data-quality ledger; nothing only where nothing is to be said."""
    shown = quality.shown(entries)
    if not shown:
        return None
    told = [entry for entry in shown if entry.severity != "note"]
    notes = [entry for entry in shown if entry.severity == "note"]
    parts: list[Any] = []
    if told:
        parts.append(html.Ul([_irregular(entry) for entry in told], className="list"))
    if notes:
        summary = html.Summary(f"{counted(len(notes), 'note')}: what is legal, and why some figures are null")
        parts.append(
            html.Details([summary, html.Ul([_irregular(entry) for entry in notes], className="list")])
        )
    text = f"{quality.totals(shown)}: what was repaired, dropped or assumed"
    return panel("Data quality", text, *parts, id="data-quality")


def _irregular(entry: LedgerEntry) -> html.Li:
    facts = [entry.code]
    facts += [f"×{entry.count}"] if entry.count != 1 else []
    facts += [entry.file] if entry.file else []
    facts += [f"first at byte {entry.first_offset}"] if entry.first_offset is not None else []
    return html.Li([tag(entry.severity), visible(entry.text), " ", html.Code(visible(" · ".join(facts)))])


def tag(severity: str) -> html.Span:
    return html.Span(severity, className=f"tag {severity}")


def key_values(pairs: Sequence[tuple[str, Any]]) -> html.Dl:
    """Facts in two columns."""
    return html.Dl(
        [html.Div([html.Dt(name), html.Dd(value)]) for name, value in pairs if value not in (None, "")],
        className="facts",
    )


def safe_name(text: str) -> str:
    """A name for a file that is downloaded."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:80] or "run"
