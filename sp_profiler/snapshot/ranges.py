"""`record_function` ranges of a snapshot (`global_record_annotations=True`), laid over its events."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from sp_profiler.classify.tables import Phase
from sp_profiler.record.annotate import parse_range
from sp_profiler.snapshot.tables import Annotations, Ints
from sp_profiler.snapshot.worker.protocol import NONE
from sp_profiler.trace.tables import Int8

_STEP = re.compile(r"^ProfilerStep#(\d{1,9})$")
_NAMED_PHASES = (
    (re.compile(r"^Optimizer\.|\boptim(?:izer)?\b", re.I), Phase.OPTIMIZER),
    (re.compile(r"\bbackward\b", re.I), Phase.BACKWARD),
    (re.compile(r"\bforward\b", re.I), Phase.FORWARD),
)
_OWN_PHASES = {
    "fwd": Phase.FORWARD,
    "dgrad": Phase.BACKWARD,
    "wgrad": Phase.BACKWARD,
    "recompute": Phase.BACKWARD,
    "optimizer": Phase.OPTIMIZER,
}


@dataclass(frozen=True)
class Ranges:
    """What the innermost range that tells it says of each event; one value per event of a device."""

    phase: Int8
    step: Ints
    module: Ints  # code into `modules`
    layer: Ints
    collective: Ints  # 1 inside of an `sp::comm` range
    modules: list[str]
    step_starts: Ints  # positions of the first event of each profiled step, in order


def paint(annotations: Annotations, time_us: Ints, texts: list[str]) -> Ranges:
    """Lay the ranges over events with these times (which never decrease).

    Starts and ends are matched by name, the latest start first. A range without an end is left out.
    """
    count = len(time_us)
    phase = np.full(count, Phase.UNKNOWN, dtype=np.int8)
    step, module, layer = (np.full(count, NONE, dtype=np.int64) for _ in range(3))
    collective = np.zeros(count, dtype=np.int64)
    modules: dict[str, int] = {}
    starts: list[int] = []
    for name, start_us, end_us in _matched(annotations, texts):
        here = slice(*np.searchsorted(time_us, (start_us, end_us)).tolist())
        numbered = _STEP.match(name)
        own = parse_range(name)
        if numbered:
            step[here] = int(numbered[1])
            starts.append(here.start)
        elif own is not None:
            named = own.fields.get("phase") if own.what == "comm" else None
            phase[here] = _phase_named(named) if named else _OWN_PHASES.get(own.what, phase[here])
            collective[here] = own.what == "comm"
            if own.module is not None:
                module[here] = modules.setdefault(own.module, len(modules))
            if own.layer is not None:
                layer[here] = own.layer
        else:
            found = _phase_named(name)
            phase[here] = phase[here] if found == Phase.UNKNOWN else found
    return Ranges(
        phase, step, module, layer, collective, list(modules), np.unique(np.array(starts, dtype=np.int64))
    )


def _phase_named(name: str) -> Phase:
    return next((phase for pattern, phase in _NAMED_PHASES if pattern.search(name)), Phase.UNKNOWN)


def _matched(annotations: Annotations, texts: list[str]) -> list[tuple[str, int, int]]:
    """(name, start, end) in µs, outer ranges before inner ones."""
    open_: dict[int, list[int]] = {}
    found: list[tuple[str, int, int]] = []
    order = np.argsort(annotations.time_us, kind="stable")
    rows = zip(
        annotations.name[order].tolist(),
        annotations.time_us[order].tolist(),
        annotations.is_end[order].tolist(),
        strict=True,
    )
    for name, time_us, is_end in rows:
        if not is_end:
            open_.setdefault(name, []).append(time_us)
        elif open_.get(name):
            found.append((texts[name], open_[name].pop(), time_us))
    return sorted(found, key=lambda one: (one[1], -one[2]))
