"""Memory of both runs: peaks, what is kept for backward, what hooks saw saved.

Sizes are counted, not sampled: they have no noise, and what differs by more than the resolution has changed.
Not so the peak of a CPU trace: which blocks other threads have freed by then is chance, its noise unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sp_profiler.analysis.memory.blocks import FREED_UNSEEN
from sp_profiler.analysis.memory.kept import keeps_most, top_border
from sp_profiler.analysis.memory.results import BorderFigures, Memory, MemoryFigures
from sp_profiler.comparing.figures import largest_first
from sp_profiler.comparing.model import Delta
from sp_profiler.comparing.noise import LEAST_BYTES, SHARE_OF_BYTES, delta
from sp_profiler.report.memory import leading
from sp_profiler.report.model import Report

_SAVED = ("parameter_bytes", "gradient_bytes", "optimizer_bytes", "allocator_peak_bytes")
_NO_MODULE = "(no module)"


def memory(base: Report, here: Report) -> list[Delta]:
    """Every figure of memory that either run tells, largest difference first; empty where neither does."""
    one, two = base.memory, here.memory
    if one is None and two is None:
        return []
    found = [_size("memory.peak_bytes", "", _peak(one), _peak(two))]
    found += _by_key("memory.peak_by_category", _categories(one), _categories(two), fixed=True)
    found += _by_key("memory.ranks.peak_bytes", _peaks(one), _peaks(two), fixed=False)
    if any(top is not None and top.device_type == "cpu" for top in (_top(one), _top(two))):
        found = [_by_chance(peak) for peak in found]
    borders = _border(one), _border(two)
    found.append(_size("memory.across_border_bytes", "", _bytes(borders[0]), _bytes(borders[1])))
    for figure, fixed in (("category", True), ("module", False), ("layer", False), ("operator", False)):
        by = [None if b is None else getattr(b, f"by_{figure}") for b in borders]
        found += _by_key(f"memory.across_border_by_{figure}", *by, fixed=fixed)
    found.append(_size("memory.saved_bytes", "", one and one.saved_bytes, two and two.saved_bytes))
    found.append(_size("memory.theory_bytes", "", one and one.theory_bytes, two and two.theory_bytes))
    found += _by_key("memory.saved.terms", _terms(one), _terms(two), fixed=False)
    for name in ("peak_bytes", *_SAVED):
        found.append(_size(f"memory.saved.{name}", "", _most(one, name), _most(two, name)))
    return largest_first([one for one in found if one.base is not None or one.here is not None])


def _by_chance(one: Delta) -> Delta:
    """A peak whose difference is no sign of a change."""
    return replace(one, noise_from=None, verdict="noise-unknown" if one.verdict == "changed" else one.verdict)


def _size(
    figure: str,
    name: str,
    base: float | None,
    here: float | None,
    is_there: tuple[bool, bool] = (True, True),
) -> Delta:
    resolution = max(LEAST_BYTES, SHARE_OF_BYTES * max(base or 0, here or 0))
    return delta(
        figure,
        name,
        "bytes",
        base,
        here,
        resolution=resolution,
        noise_from="counted",
        is_there=is_there,
    )


def _by_key(
    figure: str, base: Mapping[str, int] | None, here: Mapping[str, int] | None, *, fixed: bool
) -> list[Delta]:
    """`fixed`: the keys are all there are, so one that is absent is 0; else that run has no such thing."""
    if base is None or here is None:
        return []
    return [
        _size(figure, key, base.get(key, 0), here.get(key, 0), (fixed or key in base, fixed or key in here))
        for key in dict.fromkeys([*base, *here])
    ]


def _unseen(one: MemoryFigures) -> int:
    """Bytes that the trace counts although they are free: which they are is chance."""
    return (one.peak_by_operator or {}).get(FREED_UNSEEN, 0)


def peak_of(one: MemoryFigures) -> int | None:
    """The peak without what was free already."""
    return None if one.peak_bytes is None else one.peak_bytes - _unseen(one)


def _top(memory: Memory | None) -> MemoryFigures | None:
    """The device with the highest peak, what was free not counted."""
    first = None if memory is None else leading(memory)
    if memory is None or first is None:
        return None
    alike = [one for one in memory.ranks if one.device_type == first.device_type]
    return max(alike, key=lambda one: peak_of(one) or -1)


def _peak(memory: Memory | None) -> int | None:
    top = _top(memory)
    return None if top is None else peak_of(top)


def _categories(memory: Memory | None) -> dict[str, int] | None:
    top = _top(memory)
    if top is None or not top.peak_by_category:
        return None
    parts = dict(top.peak_by_category)
    if _unseen(top):
        parts["unknown"] = parts.get("unknown", 0) - _unseen(top)
    return {key: count for key, count in parts.items() if count}


def _peaks(memory: Memory | None) -> dict[str, int] | None:
    if memory is None:
        return None
    known = [(one, peak_of(one)) for one in memory.ranks]
    return {_device(one): peak for one, peak in known if peak is not None} or None


def _device(one: MemoryFigures) -> str:
    where = "CPU" if one.device is None else f"device {one.device}"
    return f"{'unknown rank' if one.rank is None else f'rank {one.rank}'} {where}"


def _border(memory: Memory | None) -> BorderFigures | None:
    """Of the rank that keeps most."""
    most = None if memory is None else keeps_most(memory.ranks)
    return None if most is None else top_border(most)


def _bytes(border: BorderFigures | None) -> int | None:
    return None if border is None else border.bytes


def _terms(memory: Memory | None) -> dict[str, int] | None:
    """What hooks saw saved, by term, on the rank that saves most."""
    if memory is None or not memory.saved:
        return None
    most = max(memory.saved, key=lambda one: one.saved_bytes)
    return {term.term: term.bytes for term in most.terms if term.layer is None}


def _most(memory: Memory | None, name: str) -> int | None:
    saved: Sequence[object] = () if memory is None else memory.saved
    return max((value for one in saved if (value := getattr(one, name)) is not None), default=None)
