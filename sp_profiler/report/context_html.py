"""Context parallelism on a page: the section of a run's report, and of runs side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sp_profiler.report import context_compare, context_figures, context_view
from sp_profiler.report.compare_table import ordered, run_label
from sp_profiler.report.context import Family, balances, families, plural
from sp_profiler.report.figures import MOST_BARS
from sp_profiler.report.format import visible
from sp_profiler.report.model import Report, by_step, windows_of
from sp_profiler.report.page_parts import QUIET, Drawn, Panel, Part, part_of
from sp_profiler.report.table import listing_table


def context_part(report: Report) -> Part:
    """The section of a page; without anything in it where no context parallelism was found."""
    found = report.context_parallel
    if found is None:
        return Part("no context parallelism was found")
    tables = [listing_table(one) for one in context_view.listings(found)]
    return part_of(_figures(report, families(found)), tables)


def _figures(report: Report, kinds: Sequence[Family]) -> Iterator[Drawn]:
    several = len(kinds) > 1
    for number, family in enumerate(kinds):
        of = f"{family.short_name}: " if several else ""
        where = f"-{number}" if several else ""
        for way in family.by_way:
            sums = [one for one in family.hop_sums if one.way == way]
            text = "medians over ranks and passes, lines from the least to the most rank"
            title = f"{of}{plural(way)}{' beside attention' if way == 'hop' else ''}"
            name = f"context-{plural(way)}{where}"
            yield name, context_figures.hops(sums), _capital(Panel(title, text, "wide")), QUIET
        found = balances(family)
        sets = max((len(one.balances) for one in found), default=1)
        text = "of each rank in each ring step; 1 is an even division"
        text += f"; the least even of {sets} sets of ranks" if sets > 1 else ""
        panel = Panel(f"{of}work by rank and ring step", text, "wide")
        yield f"context-work{where}", context_figures.work(found), _capital(panel), QUIET
    transfers = " and ".join(plural(way) for way in dict.fromkeys(w for f in kinds for w in f.by_way))
    ranks = len({hop.rank for family in kinds for hop in family.hops})
    windows = len({step.step for step in report.steps}) or 1
    per = " per step" if by_step(report) else ""
    text = f"by rank, what the exposed time of {transfers} is made of"
    text += f"; the {MOST_BARS} most exposed of {ranks} ranks" if ranks > MOST_BARS else ""
    exposed = context_figures.exposed(kinds, windows, per)
    yield "context-exposed", exposed, Panel(f"Why {transfers} are exposed", text, "wide"), QUIET


def _capital(panel: Panel) -> Panel:
    return Panel(panel.title[:1].upper() + panel.title[1:], panel.text, panel.width)


def context_comparison(reports: Sequence[Report]) -> Part:
    """What runs with context parallelism hide, side by side; nothing where none has it."""
    tables = [listing_table(one) for one in context_compare.listings(reports)]
    known = [(r, one) for r in ordered(reports) if (one := context_compare.time_of(r)) is not None]
    if len(known) < 2:
        return Part(tables=tables)
    figure = context_figures.by_run(
        [visible(run_label(report)) for report, _ in known],
        [one for _, one in known],
        [windows_of(report) for report, _ in known],
    )
    panel = Panel("Hops and other transfers of attention", "how much is hidden, and what the rest is", "wide")
    return part_of([("context-runs", figure, panel, QUIET)], tables)
