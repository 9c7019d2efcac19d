"""The tables of memory as every format shows them: columns and rows only, without colours and without plotly.

Text from a trace stays as it is: who shows it escapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from sp_profiler.analysis.memory.kept import keeps_most, kept_blocks, top_border
from sp_profiler.analysis.memory.reconcile import differences
from sp_profiler.analysis.memory.results import (
    CATEGORIES,
    Memory,
    MemoryBlock,
    MemoryFigures,
    SavedTensors,
)
from sp_profiler.report.memory_sentences import (
    CATEGORY_NAMES,
    TERM_NAMES,
    capitalised,
    device_name,
    several_devices,
)
from sp_profiler.report.out_of_memory import MOST_RANKS, failures, holders, left_out
from sp_profiler.report.view_ranks import Listing

MOST_BLOCKS = 200  # rows of blocks on a page

_TEXT, _BYTES, _INT, _SHARE = "text", "bytes", "int", "ratio"


def listings(memory: Memory) -> list[Listing]:
    """Those that hold anything, most asked first."""
    made = (
        holders(memory),
        failures(memory),
        devices(memory),
        saved_terms(memory),
        opportunities(memory),
        measured_step(memory),
        trace_and_hooks(memory),
        border(memory),
        peak_categories(memory),
        peak_places(memory),
        peak_blocks(memory),
        crossing_blocks(memory),
        saved_places(memory),
        hidden(memory),
        unpaired(memory),
    )
    return [replace(one, first_dropped=()) for one in made if one.rows]


def devices(memory: Memory) -> Listing:
    """Ranks side by side; what hooks counted beside what the trace shows."""
    several = several_devices(memory)
    saved = {one.rank: one for one in memory.saved}
    rows = []
    for one in memory.ranks:
        hooks = saved.get(one.rank)
        rows.append(
            [
                device_name(one, several),
                one.peak_bytes,
                _when(one),
                one.across_border_bytes,
                None if (most := top_border(one)) is None else most.by_category.get("communication", 0),
                one.peak_reserved_bytes,
                one.start_bytes,
                one.end_bytes,
                None if hooks is None else hooks.saved_bytes,
                None if hooks is None else hooks.theory_bytes,
                one.blocks_count,
            ]
        )
    seen = {one.rank for one in memory.ranks}
    rows += [
        [_rank(one.rank), *[None] * 7, one.saved_bytes, one.theory_bytes, None]
        for one in memory.saved
        if one.rank not in seen
    ]
    columns = (
        ("Rank", _TEXT, ""),
        ("Peak", _BYTES, ""),
        ("In", _TEXT, ""),
        ("Kept for backward", _BYTES, ""),
        ("Gathered", _BYTES, ""),
        ("Reserved", _BYTES, ""),
        ("At start", _BYTES, ""),
        ("At end", _BYTES, ""),
        ("By hooks", _BYTES, ""),
        ("By theory", _BYTES, ""),
        ("Blocks", _INT, ""),
    )
    kept = [place for place in range(len(columns)) if any(row[place] is not None for row in rows)]
    note = (
        "Kept for backward: alive at the border of forward and backward, freed in backward. Gathered: the "
        "part of it that was born in collectives. By hooks: saved tensors, each storage once, without "
        "parameters."
    )
    if any(one.is_relative for one in memory.ranks):
        note += " Peaks count from what was allocated when the recording began."
    return Listing(
        "memory-ranks",
        "Memory by rank",
        [columns[place] for place in kept],
        [[row[place] for place in kept] for row in rows],
        note,
    )


def _when(one: MemoryFigures) -> str | None:
    parts = [one.peak_phase] if one.peak_phase else []
    parts += [f"step {one.peak_step}"] if one.peak_step is not None else []
    return ", ".join(parts) or None


def _rank(rank: int | None) -> str:
    return "rank unknown" if rank is None else f"rank {rank}"


def chosen(memory: Memory) -> list[MemoryFigures]:
    """At most `MOST_RANKS` devices beside each other: those with the highest peaks, in their order."""
    most = sorted(memory.ranks, key=lambda one: -(one.peak_bytes or 0))[:MOST_RANKS]
    return [one for one in memory.ranks if any(one is other for other in most)]


def peak_categories(memory: Memory) -> Listing:
    """What the peak is made of, a column per rank."""
    every = [one for one in memory.ranks if one.peak_by_category]
    ranks = [one for one in chosen(memory) if one.peak_by_category]
    several = several_devices(memory)
    keys = _known_first(one.peak_by_category or {} for one in ranks)
    rows: list[list[Any]] = [
        [CATEGORY_NAMES.get(key, key), *((one.peak_by_category or {}).get(key, 0) for one in ranks)]
        for key in keys
    ]
    columns = [("Category", _TEXT, ""), *((device_name(one, several), _BYTES, "") for one in ranks)]
    note = "At each rank's own peak." + left_out(len(ranks), len(every), "those with the highest peaks")
    return Listing("memory-peak", "What the peak is made of", columns, rows, note)


def _known_first(maps: Iterable[Mapping[str, int]]) -> list[str]:
    """The categories with a part in any of the maps, in the order of `CATEGORIES`."""
    present = {key for one in maps for key, count in one.items() if count}
    known = [key for key in CATEGORIES if key in present]
    return [*known, *sorted(present - set(known))]


def peak_places(memory: Memory) -> Listing:
    """The peak of the leading device by operator and by module."""
    top = _peak_of(memory)
    rows: list[list[Any]] = []
    for by, parts in (
        ("operator", (top and top.peak_by_operator) or {}),
        ("module", (top and top.peak_by_module) or {}),
    ):
        rows += _shares(by, parts, None if top is None else top.peak_bytes)
    note = "" if top is None else f"{capitalised(device_name(top, several_devices(memory)))}."
    return Listing("memory-peak-places", "Who holds the peak", _BY, rows, note)


_BY = (("By", _TEXT, ""), ("Where", _TEXT, ""), ("Size", _BYTES, ""), ("Share", _SHARE, "%"))


def _shares(by: str, parts: Mapping[str, int], whole: int | None) -> list[list[Any]]:
    return [
        [by, key, count, count / whole if whole else None]
        for key, count in sorted(parts.items(), key=lambda part: (-part[1], part[0]))
        if count
    ]


def _peak_of(memory: Memory) -> MemoryFigures | None:
    return next((one for one in memory.ranks if one.peak_bytes == memory.peak_bytes), None)


def border(memory: Memory) -> Listing:
    """What crosses the border of the device that keeps most, four groupings that each sum to all of it."""
    most = keeps_most(memory.ranks)
    crossing = None if most is None else top_border(most)
    if most is None or crossing is None:
        return Listing("memory-border", "", _BY, [], "")
    names = {key: CATEGORY_NAMES.get(key, key) for key in crossing.by_category}
    parts = (
        ("category", {names[key]: count for key, count in crossing.by_category.items()}),
        ("layer", crossing.by_layer),
        ("module", crossing.by_module),
        ("operator", crossing.by_operator),
    )
    rows = [row for by, sizes in parts for row in _shares(by, sizes, crossing.bytes)]
    where = capitalised(device_name(most, several_devices(memory)))
    step = "" if crossing.step is None else f", step {crossing.step}"
    return Listing(
        "memory-border",
        "What is kept for backward",
        _BY,
        rows,
        f"{where}{step}: {crossing.blocks} blocks alive when backward begins and freed in it. "
        "Each grouping sums to all of it.",
    )


def saved_terms(memory: Memory) -> Listing:
    """Measured beside theory, term by term, of the rank that saves most."""
    most = most_saved(memory)
    terms = [] if most is None else [term for term in most.terms if term.layer is None]
    rows: list[list[Any]] = []
    for term in sorted(terms, key=lambda term: -term.bytes):
        difference = None if term.theory_bytes is None else term.bytes - term.theory_bytes
        name = TERM_NAMES.get(term.term, term.term)
        rows.append([term.term, name, term.bytes, term.theory_bytes, difference, term.tensors])
    if most is not None and rows:
        whole = None if most.theory_bytes is None else most.saved_bytes - most.theory_bytes
        count = sum(term.tensors for term in terms)
        rows.append(["all", "saved for backward", most.saved_bytes, most.theory_bytes, whole, count])
    columns = (
        ("Term", _TEXT, ""),
        ("What it is", _TEXT, ""),
        ("Measured", _BYTES, ""),
        ("Theory", _BYTES, ""),
        ("Difference", _BYTES, ""),
        ("Tensors", _INT, ""),
    )
    note = "Saved tensors by hooks, each storage once, without parameters; theory: the closed form."
    if most is not None and most.rank is not None:
        note = f"Rank {most.rank}. {note}"
    return Listing("memory-saved", "Measured beside theory, term by term", columns, rows, note)


def most_saved(memory: Memory) -> SavedTensors | None:
    """The rank whose hooks counted most."""
    return max(memory.saved, key=lambda one: one.saved_bytes, default=None)


def saved_places(memory: Memory) -> Listing:
    most = most_saved(memory)
    rows: list[list[Any]] = []
    if most is not None:
        for by, parts in (("module", most.by_module), ("operator", most.by_operator)):
            rows += _shares(by, parts, most.saved_bytes)
    return Listing("memory-saved-places", "Saved tensors by module and operator", _BY, rows, "")


def measured_step(memory: Memory) -> Listing:
    """What the step held in which the hooks were at work, ranks side by side."""
    saved = memory.saved[:MOST_RANKS]
    parts: dict[str, list[int | None]] = {
        "parameters": [one.parameter_bytes for one in saved],
        "gradients": [one.gradient_bytes for one in saved],
        "optimizer state": [one.optimizer_bytes for one in saved],
        "saved for backward": [one.saved_bytes for one in saved],
        "kept beside the saved tensors": [one.hidden_bytes for one in saved],
        "peak of live tensors": [one.peak_bytes for one in saved],
        "peak by the allocator": [one.allocator_peak_bytes for one in saved],
    }
    known = any(one.parameter_bytes is not None for one in saved)
    rows: list[list[Any]] = [
        [what, *sizes] for what, sizes in parts.items() if known and any(size is not None for size in sizes)
    ]
    columns = (("What", _TEXT, ""), *((_rank(one.rank), _BYTES, "") for one in saved))
    note = "A step of its own, before the recorded ones; what is saved and kept is of one micro-batch."
    note += left_out(len(saved), len(memory.saved), "the first ranks")
    return Listing("memory-step", "What a step holds", columns, rows, note)


def trace_and_hooks(memory: Memory) -> Listing:
    """What the trace's border counts and the hooks do not, or the other way round, every byte named."""
    by_rank = {one.rank: one for one in memory.saved}
    rows: list[list[Any]] = []
    for one in memory.ranks:
        saved = by_rank.get(one.rank)
        if saved is not None:
            rows += [
                [_rank(one.rank), part.seen_by, part.operator, part.module, part.count, part.bytes]
                for part in differences(one, saved)
            ]
    columns = (
        ("Rank", _TEXT, ""),
        ("Seen by", _TEXT, ""),
        ("Operator", _TEXT, ""),
        ("Module", _TEXT, ""),
        ("Blocks", _INT, ""),
        ("Size", _BYTES, ""),
    )
    note = (
        "Blocks kept for backward by the trace against saved tensors, paired by size. What only hooks see "
        "was there before forward or outlives backward; what only the trace sees no operator saved."
    )
    if len(rows) > MOST_BLOCKS:
        note += f" The first {MOST_BLOCKS} of {len(rows)}."
    return Listing("memory-difference", "Where trace and hooks differ", columns, rows[:MOST_BLOCKS], note)


def opportunities(memory: Memory) -> Listing:
    rows = [
        [
            one.kind, one.bytes, one.freed_bytes, one.how, one.added_comm_bytes, one.would_be_exposed_ns,
            one.added_comm_ns, one.hideable_ns, one.layers,
        ]
        for one in memory.opportunities
    ]  # fmt: skip
    columns = (
        ("Buffer", _TEXT, ""),
        ("Kept", _BYTES, ""),
        ("Would free", _BYTES, ""),
        ("How", _TEXT, ""),
        ("Sends more", _BYTES, ""),
        ("Would be exposed", "ms", "ms"),
        ("Takes", "ms", "ms"),
        ("Could hide", "ms", "ms"),
        ("Layers", _INT, ""),
    )
    note = (
        "Per rank and step. Sends more: bytes on the wire with ring algorithms. Times are made of this run's "
        "own collectives and GEMMs of these sizes; empty where it has none, and on CPU runs."
    )
    return Listing("memory-opportunities", "What could be freed, and for what", columns, rows, note)


_BLOCK = (
    ("Size", _BYTES, ""),
    ("Category", _TEXT, ""),
    ("Operator", _TEXT, ""),
    ("Module", _TEXT, ""),
    ("Layer", _INT, ""),
    ("Step", _INT, ""),
    ("Born in", _TEXT, ""),
    ("Freed in", _TEXT, ""),
    ("Freed by", _TEXT, ""),
    ("Lived", "ms", "ms"),
)


def block_row(block: MemoryBlock) -> list[Any]:
    return [
        block.bytes, CATEGORY_NAMES.get(block.category, block.category), block.operator, block.module,
        block.layer, block.step, block.phase, block.freed_phase, block.freed_by, block.lifetime_ns,
    ]  # fmt: skip


def peak_blocks(memory: Memory) -> Listing:
    rows = [block_row(block) for block in memory.peak_blocks[:MOST_BLOCKS]]
    note = "The largest, largest first. Lived: empty where birth or free lie outside the recording."
    return Listing("memory-peak-blocks", "Blocks alive at the peak", _BLOCK, rows, note)


def crossing_blocks(memory: Memory) -> Listing:
    """The blocks that cross the border of the device that keeps most."""
    blocks = border_blocks(memory)
    most = keeps_most(memory.ranks)
    note = "" if most is None else f"{capitalised(device_name(most, several_devices(memory)))}, one step."
    if len(blocks) > MOST_BLOCKS:
        note += f" The {MOST_BLOCKS} largest of {len(blocks)}."
    rows = [block_row(block) for block in blocks[:MOST_BLOCKS]]
    return Listing("memory-blocks", "Blocks kept for backward", _BLOCK, rows, note)


def border_blocks(memory: Memory) -> list[MemoryBlock]:
    """Blocks that cross the border `across_border_bytes` is of, largest first; of many only the listed."""
    most = keeps_most(memory.ranks)
    at = None if most is None else top_border(most)
    if most is None or at is None:
        return []
    return kept_blocks(most, at)


def hidden(memory: Memory) -> Listing:
    rows = [[_rank(one.rank), *block_row(block)] for one in memory.saved for block in one.hidden]
    columns = (("Rank", _TEXT, ""), *_BLOCK)
    note = "Alive at the end of forward, seen by no hook: attributes put on ctx by hand, caches, ..."
    return Listing("memory-hidden", "Kept beside the saved tensors", columns, rows, note)


def unpaired(memory: Memory) -> Listing:
    rows: list[list[Any]] = []
    several = several_devices(memory)
    for one in memory.ranks:
        counts: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for entry in one.unpaired or ():
            counts[entry.kind] += 1
            sizes[entry.kind] += entry.bytes
        rows += [[device_name(one, several), kind, counts[kind], sizes[kind]] for kind in sorted(counts)]
    columns = (("Rank", _TEXT, ""), ("What", _TEXT, ""), ("Blocks", _INT, ""), ("Size", _BYTES, ""))
    return Listing("memory-unpaired", "Blocks without their other half", columns, rows, "")
