"""What run.json says about saved tensors, beside the closed form for the same workload."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sp_profiler.analysis.memory.closed_form import Terms, whole
from sp_profiler.analysis.memory.results import MemoryBlock, SavedPart, SavedTensors, SavedTerm
from sp_profiler.ledger import LedgerEntry


@dataclass(frozen=True)
class _Hidden:
    bytes: int
    operator: str | None = None
    module: str | None = None
    layer: int | None = None


@dataclass(frozen=True)
class _Tensor:
    term: str
    bytes: int  # of all `count`
    operator: str
    module: str | None = None
    layer: int | None = None
    count: int = 1


@dataclass(frozen=True)
class _Entry:
    """One rank's entry of run.json's `saved_tensors`."""

    saved_bytes: int
    tensors: list[_Tensor]
    hidden_bytes: int | None = None
    hidden: list[_Hidden] = field(default_factory=list)
    parameter_bytes: int | None = None
    gradient_bytes: int | None = None
    optimizer_bytes: int | None = None
    peak_bytes: int | None = None
    allocator_peak_bytes: int | None = None


def saved_tensors(
    run_json: Mapping[str, Any] | None, theory: Terms | None
) -> tuple[list[SavedTensors], list[LedgerEntry]]:
    """Every rank's saved tensors by rank, empty where run.json tells of none; what could not be used.

    `theory` is None where no closed form is known for the workload.
    """
    import msgspec

    told = (run_json or {}).get("saved_tensors")
    if told is None:
        return [], []
    try:
        entries = msgspec.convert(told, dict[str, _Entry])
        ranks = {int(rank): entry for rank, entry in entries.items()}
    except (msgspec.ValidationError, ValueError) as error:
        text = f"saved_tensors of run.json cannot be used: {error}"
        return [], [LedgerEntry("saved-tensors-unusable", "loss", text, "run.json")]
    saved = [_of_rank(rank, entry, theory) for rank, entry in sorted(ranks.items())]
    return saved, [entry for one in saved for entry in _unequal(one)]


def _of_rank(rank: int, entry: _Entry, theory: Terms | None) -> SavedTensors:
    measured: dict[tuple[str, int | None], list[int]] = {}
    for tensor in entry.tensors:
        for layer in {None, tensor.layer}:
            sums = measured.setdefault((tensor.term, layer), [0, 0])
            sums[0] += tensor.bytes
            sums[1] += tensor.count
    expected = dict(theory or {})
    keys = sorted({*measured, *(key for key, count in expected.items() if count)}, key=_order)
    return SavedTensors(
        rank=rank,
        saved_bytes=entry.saved_bytes,
        theory_bytes=None if theory is None else whole(theory),
        terms=[
            SavedTerm(
                term,
                layer,
                measured.get((term, layer), [0, 0])[0],
                None if theory is None else expected.get((term, layer), 0),
                measured.get((term, layer), [0, 0])[1],
            )
            for term, layer in keys
        ],
        by_module=_sums((tensor.module or "(no module)", tensor.bytes) for tensor in entry.tensors),
        by_layer=_sums(
            ("none" if tensor.layer is None else str(tensor.layer), tensor.bytes) for tensor in entry.tensors
        ),
        by_operator=_sums((tensor.operator, tensor.bytes) for tensor in entry.tensors),
        hidden_bytes=entry.hidden_bytes,
        hidden=[_hidden(one) for one in entry.hidden],
        peak_bytes=entry.peak_bytes,
        allocator_peak_bytes=entry.allocator_peak_bytes,
        parameter_bytes=entry.parameter_bytes,
        gradient_bytes=entry.gradient_bytes,
        optimizer_bytes=entry.optimizer_bytes,
        parts=[SavedPart(t.term, t.module, t.operator, t.bytes, t.count) for t in entry.tensors],
    )


def _order(key: tuple[str, int | None]) -> tuple[str, int]:
    return key[0], -1 if key[1] is None else key[1]


def _sums(parts: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Added up by name, in the order first met."""
    out: dict[str, int] = {}
    for name, count in parts:
        out[name] = out.get(name, 0) + count
    return out


def _hidden(one: _Hidden) -> MemoryBlock:
    return MemoryBlock(
        bytes=one.bytes,
        category="activation",
        birth_ns=None,
        death_ns=None,
        lifetime_ns=None,
        address=None,
        operator=one.operator,
        phase="forward",
        module=one.module,
        layer=one.layer,
        crosses_border=True,
    )


def _unequal(saved: SavedTensors) -> list[LedgerEntry]:
    """Its tensors must add up to what it says; a file that was edited may not."""
    added = sum(term.bytes for term in saved.terms if term.layer is None)
    if added == saved.saved_bytes:
        return []
    text = (
        f"saved_tensors of rank {saved.rank} in run.json add up to {added} bytes, not to its "
        f"saved_bytes {saved.saved_bytes}"
    )
    return [LedgerEntry("saved-tensors-unequal", "assumption", text, "run.json")]
