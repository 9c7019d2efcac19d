"""Where the evidence of a finding can be looked at: the view, the filter and the collectives that show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dash import dcc

from dashboards.state import State, link
from sp_profiler.report.model import Finding

_MOST = 3  # collectives that a finding links to

_CAUSES = {
    "peer-skew": "peer-skew",
    "synchronous-with-partner": "synchronous",
    "synchronous-without-partner": "synchronous",
    "partner-too-short": "partner-too-short",
    "late-partner": "late-partner",
    "queued": "queued",
    "no-partner": "no-partner",
    "exposed-for-unknown-cause": "unknown",
}
"""Findings about collectives of one cause."""

_PLACES: dict[str, tuple[str, dict[str, str]]] = {
    "launched-after-partner": ("overlap", {}),  # of two causes
    "communication-bound": ("overlap", {}),
    "overlap-slows-gemms": ("overlap", {}),
    "async-without-overlap": ("overlap", {}),
    "nccl-timing-with-one-queue": ("overlap", {}),
    "cuda-device-max-connections": ("overlap", {"purpose": "dgrad"}),
    "cuda-device-max-connections-data-parallel": ("overlap", {"purpose": "param-grad"}),
    "host-bound": ("timeline", {}),
    "feature-without-kernels": ("timeline", {}),
    "ends-disagree": ("across", {}),
    "saved-differs-from-theory": ("memory", {}),
    "kept-past-the-hooks": ("memory", {}),
    "kept-grows": ("memory", {}),
    "out-of-memory": ("memory", {}),
}
"""The view, and its filters, of other findings; of memory and rings their name or evidence tells it."""

_NAMES = {
    "timeline": "timeline",
    "overlap": "collectives",
    "across": "across ranks",
    "memory": "memory",
    "ring": "ring",
}

_LATE = ("late_rank", "waited_most_for_rank")
_IDS = ("longest_collective_ids", "largest_ids")


def links(finding: Finding, state: State) -> list[Any]:
    """Links to what a finding speaks of; `state` names the run and the theme."""
    clean = State(run=state.run, theme=state.theme, base=state.base)
    evidence = finding.evidence
    made: list[Any] = []
    place = _place(finding)
    if place is not None:
        view, filters = place
        made.append(dcc.Link(_NAMES[view], href=link(clean, view=view, **filters)))
    late = next((rank for name in _LATE if isinstance(rank := evidence.get(name), int)), None)
    if late is not None:
        href = link(clean, view="across")
        made.append(dcc.Link(f"rank {late}", href=href, title="what the others lost to it"))
    if isinstance(slow := evidence.get("slowest_rank"), int):
        made.append(dcc.Link(f"rank {slow}", href=link(clean, view="timeline", rank=slow)))
    for number in list(dict.fromkeys(_collectives(evidence)))[:_MOST]:
        href = link(clean, view="timeline", pick=number)
        made.append(dcc.Link(f"#{number}", href=href, title="this collective in the timeline"))
    return made


def _place(finding: Finding) -> tuple[str, dict[str, str]] | None:
    if finding.code in _CAUSES:
        return "overlap", {"cause": _CAUSES[finding.code]}
    if finding.code in _PLACES:
        return _PLACES[finding.code]
    if finding.code.startswith("memory-"):
        return "memory", {}
    return ("ring", {}) if "scheme" in finding.evidence else None


def _collectives(evidence: Mapping[str, Any]) -> Iterator[int]:
    """The ids of the collectives that the evidence names, as it orders them."""
    for one in evidence.get("examples") or ():
        if isinstance(one, Mapping) and isinstance(one.get("id"), int):
            yield one["id"]
    for name in _IDS:
        yield from evidence.get(name) or ()
