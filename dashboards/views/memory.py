"""Memory: who held it over time, the peak, what crosses the border, theory beside measurement."""

from __future__ import annotations

from typing import Any

from dashboards import downloads, parts
from dashboards.state import State
from dashboards.store import Opened, Store
from sp_profiler.report.memory_html import memory_part
from sp_profiler.report.memory_sentences import sentences


def layout(store: Store, opened: Opened, state: State) -> list[Any]:
    report = opened.report
    made = memory_part(report.memory)
    if report.memory is None:
        how = "torch.profiler records it with profile_memory=True; sp-profile run does."
        return [parts.notice("No memory was recorded", made.told, how)]
    told = parts.sentences(sentences(report.memory))
    return [told, *parts.part(made, state.theme or "light"), _exports(opened)]


def _exports(opened: Opened) -> Any:
    names = ("memory_peaks", "memory_borders", "memory_blocks", "saved_tensors")
    links = [downloads.csv_link(opened, name, name) for name in names]
    return parts.panel("Tables", "all rows, as CSV", *links)
