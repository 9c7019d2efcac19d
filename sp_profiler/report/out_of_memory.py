"""An allocation that failed, for people: who held the memory, why it did not fit, what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sp_profiler.analysis.memory.results import Memory, MemoryFigures, OutOfMemory
from sp_profiler.report.format import counted, listed, percent, rank_list, size, visible
from sp_profiler.report.memory_sentences import CATEGORY_NAMES, device_name, several_devices
from sp_profiler.report.view_ranks import Listing

_NAMED_FRAMES = 3
_NAMED_CATEGORIES = 3
_HOLDERS = 15
MOST_RANKS = 8
"""Columns of ranks beside each other."""
_MENTIONED = 0.01  # of what was asked: less explains nothing


def failed(memory: Memory) -> list[tuple[MemoryFigures, OutOfMemory]]:
    """The last failed allocation of each device (a program may have survived those before), the first one in
    time leading: the others may only have followed."""
    found = [(one, one.out_of_memory[-1]) for one in memory.ranks if one.out_of_memory]
    return sorted(found, key=lambda pair: (pair[1].time_ns is None, pair[1].time_ns or 0))


def oom_sentences(memory: Memory) -> list[str]:
    """What a reader asks after an out-of-memory error, most important first; nothing where none was."""
    devices = failed(memory)
    if not devices:
        return []
    one, oom = devices[0]
    told = [_who_held(one, oom, several_devices(memory)), _what_for(oom), _why(oom), _others(devices[1:])]
    return [sentence for sentence in told if sentence]


def _who_held(one: MemoryFigures, oom: OutOfMemory, several: bool) -> str:
    times = len(one.out_of_memory)
    who = device_name(one, several)
    text = f"{who[:1].upper()}{who[1:]} ran out of memory"
    if times > 1:
        text += f" {times} times, at last"
    text += f" on a request of {size(oom.asked_bytes)}"
    if oom.asked_by is not None:
        text += f" by {visible(oom.asked_by)}"
    if oom.allocated_bytes is None:
        return f"{text}."
    text += f"; {size(oom.allocated_bytes)} were held"
    frames = _parts(oom.by_frame, oom.allocated_bytes, _NAMED_FRAMES, "by ")
    return f"{text}: {frames}." if frames else f"{text}."


def _what_for(oom: OutOfMemory) -> str:
    if not oom.by_category or oom.allocated_bytes is None or set(oom.by_category) == {"unknown"}:
        return ""
    named = {CATEGORY_NAMES.get(key, key): held for key, held in oom.by_category.items()}
    return f"By kind: {_parts(named, oom.allocated_bytes, _NAMED_CATEGORIES)}."


def _parts(held: Mapping[str, int], whole: int, count: int, preposition: str = "") -> str:
    """`3.00 GiB (60 %) by train.py:9 main, ...`, the rest together."""
    largest = [(name, part) for name, part in held.items() if part][:count]
    named = [f"{size(part)} ({percent(part / whole)}) {preposition}{visible(name)}" for name, part in largest]
    rest = whole - sum(part for _, part in largest)
    return listed([*named, f"{size(rest)} elsewhere"] if rest else named)


def _why(oom: OutOfMemory) -> str:
    """Why it did not fit, and what helps against that."""
    free, unused = oom.device_free_bytes, oom.reserved_unused_bytes
    there = [] if free is None else [f"{size(free)} were free on the device"]
    if unused is not None:
        there.append(f"{size(unused)} reserved by the allocator but unused{_pieces(oom)}")
    text = listed(there)
    if not text:
        return ""
    waiting = oom.awaiting_free_bytes or 0
    if waiting > oom.asked_bytes * _MENTIONED:
        text += (
            f"; {size(waiting)} of what was held were freed already but still in use on another stream"
            " (record_stream, asynchronous collectives)"
        )
    return f"{text[:1].upper()}{text[1:]}: {_advice(oom)}"


def _pieces(oom: OutOfMemory) -> str:
    usable, largest = oom.largest_usable_bytes, oom.largest_unused_bytes
    if usable is not None and largest is not None and usable < largest:
        return f" (the largest piece {size(largest)}, of its stream and pool {size(usable)})"
    return "" if not largest else f" (the largest piece {size(largest)})"


def _advice(oom: OutOfMemory) -> str:
    free, unused = oom.device_free_bytes or 0, oom.reserved_unused_bytes or 0
    if oom.reason == "fragmentation":
        if oom.expandable_segments:
            return "enough together, but in pieces, although segments are expandable."
        return (
            "enough together, but in pieces (fragmentation); PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
            " lets the allocator join them."
        )
    if oom.reason == "full":
        return f"too little even in one piece, by {size(oom.asked_bytes - free - unused)}; less must be held."
    if oom.reason == "limit":
        return (
            "the device had enough, so this process may not have more"
            " (torch.cuda.set_per_process_memory_fraction, or a pool of its own)."
        )
    return "not enough is told to say why that did not do."


def _others(devices: Sequence[tuple[MemoryFigures, OutOfMemory]]) -> str:
    if not devices:
        return ""
    ranks = sorted({one.rank for one, _ in devices if one.rank is not None})
    if ranks:
        return f"So did {'rank' if len(ranks) == 1 else 'ranks'} {rank_list(ranks)}."
    return f"So did {counted(len(devices), 'other device')}."


def failures(memory: Memory) -> Listing:
    """Every allocation that failed."""
    several = several_devices(memory)
    rows = [
        [
            device_name(one, several), oom.asked_by, oom.asked_bytes, oom.device_free_bytes,
            oom.allocated_bytes, oom.reserved_bytes, oom.reserved_unused_bytes, oom.largest_unused_bytes,
            oom.reason,
        ]
        for one in memory.ranks
        for oom in one.out_of_memory
    ]  # fmt: skip
    columns = (
        ("Rank", "text", ""),
        ("Asked by", "text", ""),
        ("Asked", "bytes", ""),
        ("Free on device", "bytes", ""),
        ("Allocated", "bytes", ""),
        ("Reserved", "bytes", ""),
        ("Reserved, unused", "bytes", ""),
        ("Largest piece", "bytes", ""),
        ("Why", "text", ""),
    )
    return Listing("memory-oom", "Out of memory", columns, rows, "Each allocation that failed.")


def holders(memory: Memory) -> Listing:
    """Who held the memory of each device when it last ran out, by first user frame; ranks side by side."""
    every = failed(memory)
    devices = every[:MOST_RANKS]
    several = several_devices(memory)
    totals: dict[str, int] = {}
    for _, oom in devices:
        for frame, held in oom.by_frame.items():
            totals[frame] = max(held, totals.get(frame, 0))
    frames = sorted(totals, key=lambda frame: (-totals[frame], frame))[:_HOLDERS]
    rows = [[frame, *(oom.by_frame.get(frame) for _, oom in devices)] for frame in frames]
    columns = (("Held by", "text", ""), *((device_name(one, several), "bytes", "") for one, _ in devices))
    note = f"By the first frame of your code, at the last failed allocation; the {_HOLDERS} largest."
    note += left_out(len(devices), len(every), "the first to fail")
    return Listing("memory-oom-holders", "Who held the memory when it ran out", columns, rows, note)


def left_out(shown: int, count: int, which: str) -> str:
    """The sentence, for the end of a note, where not all devices have a column; nothing where all have."""
    return "" if shown == count else f" {shown} of {count} devices, {which}; all are in the data files."
