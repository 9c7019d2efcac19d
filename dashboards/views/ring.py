"""Ring: context parallelism: hops, whether attention hides them, balance per rank and ring step."""

from __future__ import annotations

from typing import Any

from dashboards import parts
from dashboards.state import State
from dashboards.store import Opened, Store
from sp_profiler.report.context_html import context_part
from sp_profiler.report.context_sentences import sentences
from sp_profiler.report.model import by_step, windows_of
from sp_profiler.report.sentences import Basis


def layout(store: Store, opened: Opened, state: State) -> list[Any]:
    report = opened.report
    if report.context_parallel is None:
        told = "No context parallelism was found in this run: no ring, no all-to-all around attention."
        how = "sp-profile run ring and sp-profile run ulysses record one."
        return [parts.notice("No context parallelism", told, how)]
    basis = Basis(
        report.totals,
        report.ranks,
        report.collectives,
        len(report.window.steps) if by_step(report) else 0,
        windows_of(report),
        is_cpu=report.run.device_type == "cpu",
    )
    told = parts.sentences(sentences(report.context_parallel, basis))
    return [told, *parts.part(context_part(report), state.theme or "light")]
