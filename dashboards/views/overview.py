"""Overview: the main sentences, the step's time, why communication is exposed, findings, data quality."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from dash import Dash, Input, Output, State, dcc, html, no_update

from dashboards import evidence, parts
from dashboards.state import State as Shown
from dashboards.state import link, parse
from dashboards.store import Opened, Store
from sp_profiler.report import figures, rank_figures, view
from sp_profiler.report.cause_figures import step_by_cause
from sp_profiler.report.format import counted, percent, visible
from sp_profiler.report.html import settings
from sp_profiler.report.model import Finding, Report
from sp_profiler.report.page_parts import QUIET, plot
from sp_profiler.report.palette import THEMES
from sp_profiler.report.why import CauseRow, cause_rows

_SENTENCES = 4  # of a report's that are shown at once


def layout(store: Store, opened: Opened, state: Shown) -> list[Any]:
    report, theme = opened.report, state.theme or "light"
    quality = parts.ledger(report.data_quality)
    left = [*_why(report, state), *([quality] if quality is not None else [])]
    right = _findings(report, state)
    columns = [html.Div(side, className="column") for side in (left, right) if side]
    shown = [
        _if_rest(report),
        parts.cards(view.cards(report)),
        html.Div(_times(opened, theme), className="grid times"),
    ]
    return [*shown, html.Div(columns, className="columns"), html.Div(id=_REST)]


_REST = "overview-rest"


def register(app: Dash, store: Store) -> None:
    @app.callback(Output(_REST, "children"), Input(_REST, "id"), State("url", "search"))
    def _below(_: str, search: str | None) -> Any:
        """What stands below the findings comes after them: the first view does not wait for it."""
        state = parse(search)
        ref = store.ref(state.run)
        found = None if ref is None else store.ask(ref, wait_s=0)
        return rest(found) if isinstance(found, Opened) else no_update


def rest(opened: Opened) -> list[Any]:
    """Further figures, and what is known about the run."""
    report = opened.report
    more = parts.figures_list(view.more_figures(report))
    return [parts.panel("All figures", view.per_text(report), more), _about(report)]


def _if_rest(report: Report) -> html.Div:
    """The main sentences; those after the first ones unfold."""
    first, rest = report.summary[:_SENTENCES], report.summary[_SENTENCES:]
    made: list[Any] = [parts.sentences(first)]
    if rest:
        more = html.Summary(f"{counted(len(rest), 'more sentence')}")
        made.append(html.Details([more, parts.sentences(["", *rest])], className="more"))
    return html.Div(made)


_made: WeakKeyDictionary[Opened, dict[str, list[Any]]] = WeakKeyDictionary()


def prepare(opened: Opened) -> None:
    """Make the bars of a run that was just read, in both themes: its first view does not wait for them."""
    for theme in THEMES:
        _times(opened, theme)


def _times(opened: Opened, theme: str) -> list[Any]:
    made = _made.setdefault(opened, {})
    if theme not in made:
        made[theme] = _bars(opened.report, theme)
    return made[theme]


def _bars(report: Report, theme: str) -> list[Any]:
    per = view.per_text(report)
    left_out = figures.bars_left_out(report)
    per += f"; {left_out}" if left_out else ""
    made = []
    spread = rank_figures.rank_spread(report)
    if spread is not None:
        points = parts.graph("rank-spread", plot(spread, QUIET), theme, label="Exposed communication by rank")
        made.append(
            parts.panel("Exposed communication by rank", rank_figures.caption(report), points, width="wide")
        )
    if report.ranks:
        bars = parts.graph("step-time", plot(step_by_cause(report), QUIET), theme, label="Time by rank")
        made.append(parts.panel("Time by rank", f"{per}; exposed time by its cause", bars, width="wide"))
    if report.totals.comm_ns:
        under = parts.graph("hidden-under", plot(figures.hidden_under(report), QUIET), theme)
        made.append(parts.panel("What communication runs under", "by role, and the exposed rest", under))
        kinds = parts.graph("collectives", plot(figures.collectives(report), QUIET), theme)
        made.append(parts.panel("Collectives", "by operation, group and purpose", kinds))
    return made


def _why(report: Report, state: Shown) -> list[Any]:
    rows = cause_rows(report)
    if not rows:
        return []
    text = f"{view.per_text(report)}; the causes sum to all exposed time"
    causes = html.Ul([_cause(row, state) for row in rows], className="causes")
    return [
        parts.panel("Why communication is exposed", text, causes, width="" if report.findings else "wide")
    ]


def _cause(row: CauseRow, state: Shown) -> html.Li:
    name = dcc.Link(row.name, href=link(state, view="overlap", cause=row.key), title="these collectives")
    value = html.Span(
        row.text, className="num", **parts.attrs({"data-figure": row.path, "data-value": row.raw})
    )
    return html.Li(
        [
            html.Span([name, html.Small(row.meaning)]),
            value,
            html.Span(row.percent, className="num"),
            html.Small(row.change, className="change"),
        ]
    )


def _findings(report: Report, state: Shown) -> list[Any]:
    if not report.findings:
        return []
    count = counted(len(report.findings), "finding")
    items = html.Ul([_finding(one, state) for one in report.findings], className="list")
    return [parts.panel("Findings", count, items, width="wide")]


def _finding(finding: Finding, state: Shown) -> html.Li:
    facts = "\n".join(f"{visible(key)}: {visible(item)}" for key, item in finding.evidence.items())
    made: list[Any] = [parts.tag(finding.severity), visible(finding.text), _links(finding, state)]
    if finding.advice:
        made.append(html.Span([html.B("What to do: "), visible(finding.advice)], className="todo"))
    made.append(html.Details([html.Summary("Evidence"), html.Pre(facts)]))
    return html.Li(made)


def _links(finding: Finding, state: Shown) -> html.Span | None:
    made = evidence.links(finding, state)
    return html.Span(made, className="links") if made else None


def _about(report: Report) -> html.Section:
    known = settings(report)
    facts = [(visible(name), visible(item)) for name, item in known["facts"]]
    cover = report.coverage
    facts += [
        ("GEMM time of known role", percent(cover.gemm_role_known_ratio)),
        ("Communication of known purpose", percent(cover.purpose_known_ratio)),
        ("Communication with metadata", percent(cover.comm_metadata_ratio)),
    ]
    more = [
        html.Details([html.Summary(visible(name)), html.Pre("\n".join(visible(line) for line in lines))])
        for name, lines in known["more"]
    ]
    return parts.panel("About the run", visible(report.run.path), parts.key_values(facts), *more)
