"""What the ledger says of a snapshot."""

from __future__ import annotations

from sp_profiler.analysis.memory.blocks import BEFORE
from sp_profiler.ledger import Ledger
from sp_profiler.snapshot.history import History
from sp_profiler.snapshot.oom import EXPLAINED, failed_allocations
from sp_profiler.snapshot.phases import Phases
from sp_profiler.snapshot.tables import DeviceSnapshot, Snapshot
from sp_profiler.snapshot.worker.protocol import NONE

HOW_TO_RECORD = "torch.cuda.memory._record_memory_history() before the first allocation"


def enter_device(
    snapshot: Snapshot,
    device: DeviceSnapshot,
    history: History,
    phases: Phases,
    assumed_activations: int,
    ledger: Ledger,
) -> None:
    """What was missing, contradicted or assumed on one device."""
    where = f"device {device.device}"
    if len(device.events.action) == 0:
        ledger.add(
            "snapshot-without-history",
            "assumption",
            f"{where} has no history ({HOW_TO_RECORD} records one): the figures are of the moment of the"
            " snapshot, and what the memory was before is not known",
        )
    elif not history.usable:
        ledger.add(
            "snapshot-half-a-history",
            "loss",
            f"the history of {where} lacks its allocations or its frees (skip_actions): the figures are of"
            " the moment of the snapshot",
        )
    else:
        _enter_history(where, device, history, ledger)
    if (history.made == NONE).all() and len(history):
        ledger.add(
            "snapshot-without-stacks",
            "note",
            f"no block of {where} has a stack ({HOW_TO_RECORD} records them): nobody can tell who holds what",
        )
    if phases.assumed:
        ledger.add(
            "snapshot-without-frames",
            "assumption",
            f"allocations of {where} without any frame, where only Python's were recorded (stacks='python'),"
            " are taken as made by autograd's threads in backward",
            count=phases.assumed,
        )
    if phases.borders_dropped:
        ledger.add(
            "snapshot-phases-mixed",
            "note",
            f"forward and backward of {where} alternate too often for a border between them: what crosses it"
            " is not told",
            count=phases.borders_dropped,
        )
    if assumed_activations:
        ledger.add(
            "snapshot-alive-in-forward",
            "assumption",
            f"blocks of {where} born in forward and alive at the end are taken as kept for backward",
            count=assumed_activations,
        )


def _enter_history(where: str, device: DeviceSnapshot, history: History, ledger: Ledger) -> None:
    before = history.birth == BEFORE
    if before.any():
        ledger.add(
            "snapshot-begins-late",
            "note",
            f"blocks of {where}, {int(history.bytes[before].sum())} bytes, that were there when its history"
            " begins: what the memory was before is not known",
            count=int(before.sum()),
        )
    if history.lost or history.appeared or history.sizes_differ:
        ledger.add(
            "snapshot-contradicts",
            "repair",
            f"the history of {where} contradicts itself, or what it held at the end: the end is taken as"
            " true, and of blocks freed before it their allocation",
            count=history.lost + history.appeared + history.sizes_differ,
        )
    times = device.events.time_us
    if (times == NONE).any():
        ledger.add(
            "snapshot-without-times",
            "note",
            f"the history of {where} tells no times (older than torch 2.1): order only",
        )
    elif (times[1:] < times[:-1]).any():
        ledger.add(
            "snapshot-times-decrease",
            "note",
            f"times of {where} that lie before the one of the event before: taken as equal to it",
            count=int((times[1:] < times[:-1]).sum()),
        )
    failed = len(failed_allocations(device))
    if failed > EXPLAINED:
        ledger.add(
            "snapshot-many-failures",
            "note",
            f"only the last {EXPLAINED} failed allocations of {where} are explained",
            count=failed,
        )
