"""One collective, looked at closely: its figures, what hid it, and the same one on other ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from dash import dcc, html

from dashboards import parts
from dashboards.state import State, link
from dashboards.store import Opened, RankRef, Store
from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.lanes import LOOKS, Lanes
from sp_profiler.analysis.results import CollectiveFigures
from sp_profiler.report.format import duration, percent, short_group, size, visible
from sp_profiler.report.palette import ROLE
from sp_profiler.report.sentences import op_name
from sp_profiler.report.why import told_of_cause
from sp_profiler.trace.tables import Int64

_MOST_RANKS = 16
_MOST_NAMES = 5


@dataclass(frozen=True)
class Peers:
    """The same collective on other ranks, by id; `why` says why they cannot be told."""

    ids: list[int]
    why: str = ""


def picked(opened: Opened, state: State) -> CollectiveFigures | None:
    """The collective that the URL names; None where it names none that is there."""
    collectives = opened.report.collectives
    if state.pick is None or state.pick >= len(collectives):
        return None
    return collectives[state.pick]


def rank_of(opened: Opened, one: CollectiveFigures) -> RankRef | None:
    return next((rank for rank in opened.ranks if rank.rank == one.rank), None)


def peers(opened: Opened, one: CollectiveFigures) -> Peers:
    """The collectives of other ranks that are the same call: by group, operation and number.

    Without numbers the order within the group decides, as long as all ranks have equally many.
    """
    table = Collectives.of(opened.report.collectives)
    if one.group is None:
        return Peers([one.id], "the trace does not say which group it belongs to")
    same = table.words("group").where(lambda key: key == one.group) & table.words("op").where(
        lambda op: op == one.op
    )
    rows = np.flatnonzero(same)
    seq = table.numbers("seq").take(rows)
    if one.seq is not None:
        return Peers(_mine_first(one, rows[seq.is_known & (seq.or_zero() == one.seq)]))
    ranks = table.numbers("rank").take(rows).or_zero()
    starts = table.numbers("start_ns").values[rows]
    by_rank = [rows[ranks == rank][np.argsort(starts[ranks == rank])] for rank in np.unique(ranks)]
    if len({len(found) for found in by_rank}) > 1:
        return Peers([one.id], "ranks hold different numbers of these collectives, and none is numbered")
    place = next(int(np.flatnonzero(found == one.id)[0]) for found in by_rank if one.id in found)
    return Peers(_mine_first(one, np.array([found[place] for found in by_rank])))


def _mine_first(one: CollectiveFigures, rows: Int64) -> list[int]:
    return [one.id, *(row for row in rows.tolist() if row != one.id)]


def ran_meanwhile(lanes: Lanes, one: CollectiveFigures) -> tuple[dict[str, int], list[tuple[str, int]]]:
    """What computed on the device while the collective ran: ns by look, and by name the longest."""
    start, end = one.start_ns, one.start_ns + one.dur_ns
    by_look: dict[str, int] = {}
    by_name: dict[str, int] = {}
    for lane in np.flatnonzero(lanes.device == one.device).tolist():
        begin, stop = lanes.rows_within(lane, start, end)
        inside = np.minimum(lanes.end_ns[begin:stop], end) - np.maximum(lanes.start_ns[begin:stop], start)
        for row in (begin + np.flatnonzero(inside > 0)).tolist():
            look = LOOKS[int(lanes.look[row])]
            if look in ROLE or look == "fused":
                ns = int(inside[row - begin])
                name = lanes.text(int(lanes.name[row])) or "unnamed"
                by_look[look] = by_look.get(look, 0) + ns
                by_name[name] = by_name.get(name, 0) + ns
    longest = sorted(by_name.items(), key=lambda item: -item[1])[:_MOST_NAMES]
    return dict(sorted(by_look.items(), key=lambda item: -item[1])), longest


def details(store: Store, opened: Opened, state: State) -> html.Section | None:
    """The panel of the picked collective."""
    one = picked(opened, state)
    if one is None:
        return None
    group = "unknown group" if one.group is None else short_group(one.group)
    title = visible(f"{op_name(one.op)} · {group}")
    close: list[Any] = [html.Button("Close", id={"unpick": "x"}, className="plain")]
    if state.view != "timeline":
        there = link(state, view="timeline", rank=one.rank, t=None, ranks=())
        close.insert(0, dcc.Link("Timeline", href=there, className="plain"))
    rank = rank_of(opened, one)
    lanes = None if rank is None else store.lanes(opened, rank)
    where = f"rank {one.rank}" if one.rank is not None else "rank unknown"
    step = "" if one.step is None else f", step {one.step}"
    children: list[Any] = [
        parts.key_values(_facts(one)),
        *_cause(one),
        *_partner(one),
        *_meanwhile(lanes, one),
    ]
    children += _others(opened, one, state)
    return parts.panel(
        title, f"{where}{step}, #{one.id}", *children, tools=html.Span(close, className="buttons")
    )


def _facts(one: CollectiveFigures) -> list[tuple[str, Any]]:
    launch = None if one.is_async is None else "asynchronous" if one.is_async else "synchronous"
    rate = None if one.busbw_gbps is None else f"{one.busbw_gbps:.1f} GB/s"
    return [
        ("Duration", duration(one.dur_ns)),
        ("Overlapped", f"{duration(one.overlapped_ns)}"),
        ("Exposed", duration(one.exposed_ns)),
        ("Size", size(one.bytes) if one.bytes is not None else None),
        ("busbw", rate if not one.transfer_is_bound else f"{rate}, at least"),
        ("Launch", launch),
        ("Launch to start", None if one.queue_delay_ns is None else duration(one.queue_delay_ns)),
        ("Waited for the last rank", None if one.skew_wait_ns is None else duration(one.skew_wait_ns)),
        ("Transfer", None if one.transfer_ns is None else duration(one.transfer_ns)),
        ("Purpose", one.purpose),
        ("Module", None if one.module is None else visible(one.module)),
        ("Phase", one.phase),
        ("Kernel", None if one.kernel is None else visible(one.kernel)),
        ("Note", None if one.note is None else visible(one.note)),
    ]


def _cause(one: CollectiveFigures) -> list[Any]:
    parts_of = {key: ns for key, ns in (one.exposed_by_cause_ns or {}).items() if ns}
    if not parts_of:
        return []
    items = []
    for key, ns in sorted(parts_of.items(), key=lambda item: -item[1]):
        name, meaning = told_of_cause(key)
        items.append(html.Li([html.B(duration(ns)), f" {name.lower()}: {meaning}"]))
    return [html.H3("Why it is exposed"), html.Ul(items, className="list")]


def _partner(one: CollectiveFigures) -> list[Any]:
    if one.partner is None:
        return [
            html.H3("Partner"),
            html.P("None known: nothing says under what it should hide.", className="note"),
        ]
    partner = one.partner
    whole = f"{partner.what}, {duration(partner.dur_ns)} in {partner.activities} activities"
    module = f" of {visible(partner.module)}" if partner.module else ""
    share = one.hidden_ns / one.hideable_ns if one.hidden_ns is not None and one.hideable_ns else None
    hidden = f"{duration(one.hidden_ns)} of {duration(one.hideable_ns)} that it could hide ({percent(share)})"
    return [html.H3("Partner"), html.P([whole + module, html.Br(), hidden, f"; found by {partner.rule}"])]


def _meanwhile(lanes: Lanes | None, one: CollectiveFigures) -> list[Any]:
    if lanes is None:
        return []
    by_look, longest = ran_meanwhile(lanes, one)
    if not by_look:
        return [html.H3("What hid it"), html.P("Nothing computed on the device meanwhile.", className="note")]
    looks = {**ROLE}
    told = [
        html.Li([
            parts.swatch(looks[look].color, looks[look].pattern) if look in looks else None,
            f" {looks[look].label if look in looks else look}: {duration(ns)}",
        ])
        for look, ns in by_look.items()
    ]  # fmt: skip
    names = html.Ul([html.Li(f"{duration(ns)} {visible(name)}") for name, ns in longest], className="list")
    more = html.Details([html.Summary("Longest kernels"), names])
    return [html.H3("What ran meanwhile"), html.Ul(told, className="legend"), more]


def _others(opened: Opened, one: CollectiveFigures, state: State) -> list[Any]:
    if len(opened.ranks) < 2:
        return []
    found = peers(opened, one)
    if found.why:
        return [html.H3("On other ranks"), html.P(f"Not known: {found.why}.", className="note")]
    if len(found.ids) < 2:
        return [html.H3("On other ranks"), html.P("None of them holds it.", className="note")]
    shift = clock_shifts(opened)
    mine = one.start_ns - shift.get(one.rank, 0)
    all_of = [opened.report.collectives[number] for number in found.ids[:_MOST_RANKS]]
    lines = [_peer(opened, each, each.start_ns - shift.get(each.rank, 0) - mine, each is all_of[0], state)
             for each in sorted(all_of, key=lambda c: (c.rank is None, c.rank or 0))]  # fmt: skip
    head = html.Tr(
        [html.Th("Rank"), *(html.Th(t, className="num") for t in ("Start", "Duration", "Waited", "Exposed"))]
    )
    rest = len(found.ids) - len(all_of)
    more = [html.P(f"and {rest} more ranks", className="note")] if rest else []
    table = html.Table([html.Thead(head), html.Tbody(lines)], className="plain")
    return [html.H3("On other ranks"), html.Div(table, className="scroll"), *more]


def _peer(opened: Opened, each: CollectiveFigures, later_ns: int, is_here: bool, state: State) -> html.Tr:
    rank = "unknown" if each.rank is None else str(each.rank)
    href = link(state, view="timeline", rank=each.rank, pick=each.id, ranks=())
    shown = rank if is_here else dcc.Link(rank, href=href)
    sign = "+" if later_ns > 0 else "−" if later_ns < 0 else ""
    cells = [
        "here" if is_here else f"{sign}{duration(abs(later_ns))}",
        duration(each.dur_ns),
        "–" if each.skew_wait_ns is None else duration(each.skew_wait_ns),
        duration(each.exposed_ns),
    ]
    return html.Tr(
        [html.Td(shown), *(html.Td(cell, className="num") for cell in cells)],
        className="here" if is_here else "",
    )


def clock_shifts(opened: Opened) -> dict[int | None, int]:
    """How far each rank's clock is ahead, where that is corrected."""
    return {
        rank: clock.offset_ns
        for clock in opened.report.clocks or ()
        if clock.applied and clock.offset_ns is not None
        for rank in clock.ranks
    }
