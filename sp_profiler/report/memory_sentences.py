"""What the memory of a run says in sentences, most important first, and the words for its parts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from sp_profiler.analysis.memory.blocks import FREED_UNSEEN
from sp_profiler.analysis.memory.from_blocks import ROUNDED
from sp_profiler.analysis.memory.kept import keeps_most, kept_blocks, top_border
from sp_profiler.analysis.memory.results import (
    Memory,
    MemoryFigures,
    SavedTensors,
)
from sp_profiler.report.format import listed, percent, size, visible

CATEGORY_NAMES = {
    "parameter-optimizer": "parameters and optimizer state",
    "gradient": "gradients",
    "activation": "activations",
    "communication": "communication buffers",
    "temporary": "temporaries",
    "before-window": "allocated before the recording",
    "unknown": "of unknown kind",
}
TERM_NAMES = {
    "embedding": "embedding",
    "norm": "norms: inputs, fp32 copies, scales",
    "column-input": "inputs of column linears (q, k, v, gate, up)",
    "row-input": "inputs of row linears (o, down)",
    "rotary": "rotary embedding",
    "attention": "attention core",
    "mlp": "MLP activation function and product",
    "recompute-input": "inputs of what is computed again",
    "logits": "logits and loss",
    "other": "other",
}
OPPORTUNITY_NAMES = {
    "gathered-input": "Gathered inputs of the column linears",
    "gathered-parameters": "Gathered parameters",
    "attention-core": "The attention cores",
    "attention-scores": "The scores of ring self-attention",
    "block-activations": "All activations inside the blocks",
    "norm-input": "The norms",
    "replicated-activations": "Activations that every tensor-parallel rank holds whole",
}
_NAMED_PARTS = 3


def sentences(memory: Memory) -> list[str]:
    """The main sentences: out of memory, kept for backward, peak, measured beside theory."""
    from sp_profiler.report.out_of_memory import oom_sentences  # it names devices as this module does

    told = [*oom_sentences(memory), _kept(memory), _peak(memory), _theory(memory)]
    return [sentence for sentence in told if sentence]


def device_name(one: MemoryFigures, several_devices: bool = False) -> str:
    """`rank 0`, `rank 0 device 1`, `rank 0 CPU`; without a rank `device 1`, `CPU`; where several snapshots
    tell no rank `device 1 of dump.pickle`."""
    if one.rank is None and one.source == "snapshot":
        return (
            f"device {one.device} of {os.path.basename(one.file)}"
            if several_devices
            else f"device {one.device}"
        )
    if one.rank is None:
        return "CPU" if one.device_type == "cpu" else f"device {'?' if one.device is None else one.device}"
    name = f"rank {one.rank}"
    if one.device_type == "cpu":
        return f"{name} CPU" if several_devices else name
    return f"{name} device {one.device}" if several_devices and one.device is not None else name


def several_devices(memory: Memory) -> bool:
    """Whether a rank alone does not tell which of `memory.ranks` is meant."""
    ranks = [one.rank for one in memory.ranks]
    return len(set(ranks)) < len(ranks)


def _kept(memory: Memory) -> str:
    most = keeps_most(memory.ranks)
    if most is None or not most.across_border_bytes:
        return _kept_by_hooks(memory)
    kept = most.across_border_bytes
    text = f"{size(kept)} stay alive from forward to backward on {device_name(most, several_devices(memory))}"
    border = top_border(most)
    gathered = 0 if border is None else border.by_category.get("communication", 0)
    if not gathered:
        return f"{text}."
    what = _gathered(most, memory.gathered_input_bytes)
    return f"{text}, of which {size(gathered)} ({percent(gathered / kept)}) are {what}."


def _gathered(one: MemoryFigures, gathers: Sequence[int]) -> str:
    """What was born in collectives: inputs that were gathered, where all have the size of an all-gather."""
    border = top_border(one)
    kept = [] if border is None else kept_blocks(one, border)
    sizes = {block.bytes for block in kept if block.category == "communication"}
    if sizes and all(any(size <= whole < size + ROUNDED for size in gathers) for whole in sizes):
        return "gathered inputs of linears"
    return "buffers born in collectives"


def _kept_by_hooks(memory: Memory) -> str:
    if memory.saved_bytes is None:
        return ""
    most = max(memory.saved, key=lambda one: one.saved_bytes)
    return f"{_on_rank(most)} keeps {size(most.saved_bytes)} of activations for backward."


def capitalised(name: str) -> str:
    """With a capital first letter, `CPU` as it is."""
    return name[:1].upper() + name[1:]


def _on_rank(one: SavedTensors) -> str:
    return "A rank" if one.rank is None else f"Rank {one.rank}"


def _peak(memory: Memory) -> str:
    peak = memory.peak_bytes
    if peak is None:
        return ""
    at = next((one for one in memory.ranks if one.peak_bytes == peak), None)
    if at is None:
        return ""
    where = device_name(at, several_devices(memory))
    when = f" in {visible(at.peak_phase)}" if at.peak_phase else ""
    when += f" of step {at.peak_step}" if at.peak_step is not None else ""
    above = " above what was there when the recording began" if at.is_relative else ""
    text = f"Memory peaks at {size(peak)}{above} on {where}{when}"
    parts = _largest(at.peak_by_category or {}, CATEGORY_NAMES)
    text = f"{text}: {parts}" if parts else text
    unseen = (at.peak_by_operator or {}).get(FREED_UNSEEN, 0)
    if unseen:
        text += f"; {size(unseen)} of it are free: torch goes on counting what threads free unprofiled"
    return f"{text}."


def _largest(by: Mapping[str, int], names: Mapping[str, str]) -> str:
    parts = sorted(((count, key) for key, count in by.items() if count), key=lambda part: -part[0])
    named = [f"{size(count)} {names.get(key, visible(key))}" for count, key in parts[:_NAMED_PARTS]]
    rest = sum(count for count, _ in parts[_NAMED_PARTS:])
    return listed([*named, f"{size(rest)} else"] if rest else named)


def _theory(memory: Memory) -> str:
    """What hooks counted beside the closed form, with the terms that differ."""
    known = [one for one in memory.saved if one.theory_bytes is not None]
    if not known:
        return ""
    most = max(known, key=lambda one: one.saved_bytes)
    theory = most.theory_bytes or 0
    difference = most.saved_bytes - theory
    who = _on_rank(most)
    if not difference:
        return f"{who} saves {size(most.saved_bytes)} for backward, to the byte what the closed form gives."
    differ = [term for term in most.terms if term.layer is None and term.bytes != (term.theory_bytes or 0)]
    names = listed([f"{size(t.bytes - (t.theory_bytes or 0))} in {visible(t.term)}" for t in differ[:3]])
    more = "more" if difference > 0 else "less"
    why = f": {names}" if names else ""
    return (
        f"{who} saves {size(most.saved_bytes)} for backward, {size(abs(difference))} {more} than the "
        f"{size(theory)} of the closed form{why}."
    )
