"""Memory of several runs side by side: what each keeps for backward, and the blocks that only some have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sp_profiler.analysis.memory.kept import keeps_most, top_border
from sp_profiler.analysis.memory.results import BorderFigures, Memory
from sp_profiler.report.compare_table import ordered, run_label
from sp_profiler.report.format import by_number, counted, listed, size, visible
from sp_profiler.report.memory_view import border_blocks
from sp_profiler.report.model import Report
from sp_profiler.report.view_ranks import Listing

MOST_ROWS = 12
_OF_TENSORS = 2  # place of its column
_SAME = 0.001  # of the larger: less is rounding and small buffers


def listings(reports: Sequence[Report]) -> list[Listing]:
    """The tables that hold anything."""
    made = (side_by_side(reports), gathered(reports))
    return [replace(one, first_dropped=()) for one in made if one.rows]


def border_of(report: Report) -> BorderFigures | None:
    """The border of the rank that keeps most; None where memory was not recorded."""
    most = None if report.memory is None else keeps_most(report.memory.ranks)
    return None if most is None else top_border(most)


def side_by_side(reports: Sequence[Report]) -> Listing:
    """A row per run; no rows where none has a memory section."""
    rows: list[list[Any]] = []
    for report in ordered(reports) if any(report.memory for report in reports) else ():
        memory, border = report.memory, border_of(report)
        saved = None if memory is None else memory.saved_bytes
        theory = None if memory is None else memory.theory_bytes
        rows.append(
            [
                run_label(report),
                None if memory is None else memory.peak_bytes,
                None if memory is None else _peak_of_tensors(memory),
                None if border is None else border.bytes,
                None if border is None else border.by_category.get("activation", 0),
                None if border is None else border.by_category.get("communication", 0),
                saved,
                theory,
                None if saved is None or theory is None else saved - theory,
            ]
        )
    columns = (
        ("Run", "text", ""),
        ("Peak", "bytes", ""),
        ("Peak of tensors", "bytes", ""),
        ("Kept for backward", "bytes", ""),
        ("Activations", "bytes", ""),
        ("Gathered", "bytes", ""),
        ("By hooks", "bytes", ""),
        ("By theory", "bytes", ""),
        ("Difference", "bytes", ""),
    )
    if not any(row[_OF_TENSORS] for row in rows):
        columns = (*columns[:_OF_TENSORS], *columns[_OF_TENSORS + 1 :])
        rows = [[*row[:_OF_TENSORS], *row[_OF_TENSORS + 1 :]] for row in rows]
    note = (
        "Of the rank with most. Peak: as the allocator counts it in the trace, on CPU without parameters and "
        "with what unprofiled threads freed; peak of tensors: of all that live in a step, by their storages. "
        "Kept for backward: blocks alive at the border of forward and backward and freed in backward, by the "
        "trace; gathered: the part born in collectives. By hooks: saved tensors, beside the closed form."
    )
    return Listing("memory-runs", "Memory side by side", columns, rows, note)


def _peak_of_tensors(memory: Memory) -> int | None:
    return max((one.peak_bytes for one in memory.saved if one.peak_bytes is not None), default=None)


def _modules(memory: Memory) -> dict[str, int]:
    """Bytes of the gathered blocks that cross the border, by module."""
    out: dict[str, int] = {}
    for block in border_blocks(memory):
        if block.category == "communication":
            key = block.module or block.made_by or block.operator or "(no module)"
            out[key] = out.get(key, 0) + block.bytes
    return out


def summary(report: Report) -> dict[str, Any] | None:
    """What the tables show of one run, for programs; None where it has no memory section."""
    memory, border = report.memory, border_of(report)
    if memory is None:
        return None
    return {
        "peak_bytes": memory.peak_bytes,
        "peak_of_tensors_bytes": _peak_of_tensors(memory),
        "peak_by_category": memory.peak_by_category,
        "across_border_bytes": None if border is None else border.bytes,
        "across_border_by_category": None if border is None else border.by_category,
        "gathered_by_module": None if border is None else _modules(memory),
        "saved_bytes": memory.saved_bytes,
        "theory_bytes": memory.theory_bytes,
    }


def gathered(reports: Sequence[Report]) -> Listing:
    """Blocks born in collectives and kept for backward, module by module: who has them, who does not."""
    runs = [(run_label(r), r.memory) for r in ordered(reports) if r.memory is not None and border_of(r)]
    kept = [(name, _modules(memory)) for name, memory in runs]
    sums: dict[str, int] = {}
    for _, modules in kept:
        for module, count in modules.items():
            sums[module] = max(sums.get(module, 0), count)
    shown = sorted(sums, key=lambda module: -sums[module])[:MOST_ROWS]
    rows: list[list[Any]] = [
        [m, *(modules.get(m, 0) for _, modules in kept)] for m in sorted(shown, key=by_number)
    ]
    if rows:
        rows.append(["all", *(sum(modules.values()) for _, modules in kept)])
    columns = (("Gathered input of", "text", ""), *((name, "bytes", "") for name, _ in kept))
    more = len(sums) - len(shown)
    note = "Blocks that a collective filled in forward and that live until backward"
    note += f"; the {MOST_ROWS} largest, {counted(more, 'more module')} in all." if more else "."
    return Listing("memory-gathered", "Gathered blocks kept for backward", columns, rows, note)


def answers(reports: Sequence[Report]) -> list[str]:
    """Of each family the run that keeps least beside the one that keeps most, and by what they differ."""
    families: dict[str, list[tuple[str, BorderFigures]]] = {}
    for report in ordered(reports):
        border = border_of(report)
        if border is not None:
            mode = str((report.run.workload or {}).get("mode") or "runs")
            families.setdefault(mode, []).append((visible(run_label(report)), border))
    return [said for family in families.values() if (said := _answer(family))]


def _answer(family: Sequence[tuple[str, BorderFigures]]) -> str:
    (most, above), (least, below) = max(family, key=_bytes), min(family, key=_bytes)
    fewer = above.bytes - below.bytes
    if fewer <= _SAME * above.bytes:
        return ""
    parts = [
        f"{size(abs(change))} {'less' if change > 0 else 'more'} of {what}"
        for key, what in (("communication", "gathered inputs"), ("activation", "activations"))
        if (change := above.by_category.get(key, 0) - below.by_category.get(key, 0))
    ]
    why = f": {listed(parts)}" if parts else ""
    return f"{least} keeps {size(fewer)} less for backward than {most} ({size(above.bytes)}){why}."


def _bytes(pair: tuple[str, BorderFigures]) -> int:
    return pair[1].bytes
