"""What the data-quality ledger says about the `[memory]` events of a trace."""

from __future__ import annotations

from sp_profiler.analysis.memory.cpu import CpuSide
from sp_profiler.analysis.memory.order import MOST_BYTES, CheckedTotals, DeviceEvents
from sp_profiler.analysis.memory.pairing import Pairs
from sp_profiler.ledger import Ledger
from sp_profiler.trace.tables import Trace


def no_memory_events(ledger: Ledger) -> None:
    """Say how memory events are recorded."""
    ledger.add(
        "no-memory-events",
        "note",
        "the trace holds no [memory] events, so memory is null; record with "
        "torch.profiler.profile(..., profile_memory=True)",
    )


def enter_rank(trace: Trace, cpu: CpuSide, ledger: Ledger) -> None:
    """What concerns all devices of a trace."""
    if len(cpu.nest.row) == 0:
        ledger.add(
            "memory-without-operators",
            "note",
            "no operator is in the trace: what made a block, its phase and module, and what is kept for"
            " backward are null",
        )
    elif len(cpu.runs.borders_ns) == 0:
        ledger.add(
            "no-backward-border",
            "note",
            "no backward follows forward in the trace, so what is kept for backward is null",
        )
    elif len(cpu.steps) < 2 and len(cpu.runs.after_optimizer_ns) == 0:
        ledger.add(
            "memory-one-step",
            "assumption",
            "one step alone does not show what lives across steps: what was allocated before the recording"
            " and never freed, or in the optimizer's step and not freed, counts as parameter-optimizer",
        )


def enter_device(
    kind: str, number: int, events: DeviceEvents, checked: CheckedTotals | None, pairs: Pairs, ledger: Ledger
) -> None:
    """What concerns one device."""
    name = kind if number < 0 else f"{kind} {number}"
    _enter_totals(name, kind, events, checked, ledger)
    missing = len(pairs.without_address)
    if missing:
        ledger.add(
            "memory-without-address",
            "note",
            f"[memory] events of {name} carry no address, so allocations and frees cannot be paired:"
            " lifetimes, categories and blocks are null"
            + ("" if len(pairs) == 0 else " for them; they are listed as unpaired"),
            count=missing,
        )
    if len(pairs.freed_twice):
        ledger.add(
            "memory-freed-twice",
            "assumption",
            f"an address of {name} is freed although it was not allocated since it was last freed; the free"
            " is listed as unpaired and belongs to no block",
            count=len(pairs.freed_twice),
        )
    again = int(pairs.free_missing.sum())
    if again:
        ledger.add(
            "memory-allocated-twice",
            "assumption",
            f"an address of {name} is allocated while it is still taken: what had it was freed unseen, on a"
            " thread that is not profiled; it counts until then and its lifetime is null"
            + ("; `Total Allocated` goes on counting it" if checked is not None and checked.trusted else ""),
            count=again,
        )
    if pairs.sizes_differ:
        ledger.add(
            "memory-sizes-differ",
            "assumption",
            f"a free on {name} tells other bytes than the allocation of its address; the allocation's count",
            count=pairs.sizes_differ,
        )
    if events.impossible:
        ledger.add(
            "memory-impossible-bytes",
            "loss",
            f"[memory] events of {name} tell more than {MOST_BYTES >> 40} TiB; they were left out",
            count=events.impossible,
        )
    if events.empty:
        ledger.add(
            "memory-zero-bytes",
            "note",
            f"[memory] events of {name} of 0 bytes neither allocate nor free; they were left out",
            count=events.empty,
        )


def _enter_totals(
    name: str, kind: str, events: DeviceEvents, checked: CheckedTotals | None, ledger: Ledger
) -> None:
    if events.moved:
        ledger.add(
            "memory-order",
            "note",
            f"[memory] events of {name} from several threads are stamped in another order than the allocator"
            " counted them in; they were put into that order, which `Total Allocated` tells",
            count=events.moved,
        )
    if checked is None:
        return
    if checked.disagree and checked.first is not None:
        time = int(events.time_ns[checked.first])
        then = "figures follow the file" if checked.trusted else "totals were not used: figures are relative"
        ledger.add(
            "memory-totals-disagree",
            "assumption",
            f"`Total Allocated` of {name} does not follow from the events before it, first at {time} ns:"
            f" events are missing or it counts something else; {then}",
            count=checked.disagree,
        )
    if kind == "cpu" and checked.trusted:
        ledger.add(
            "memory-cpu-since-recording",
            "note",
            "torch counts memory of the CPU from when a profiler first recorded it: what was allocated"
            " before, such as parameters, is in no figure of the CPU",
        )
