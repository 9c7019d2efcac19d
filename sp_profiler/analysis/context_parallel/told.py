"""What run.json says of a run's context parallelism."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sp_profiler.analysis.context_parallel.families import EXCHANGES, RING, SELF_ATTENTION
from sp_profiler.theory.ring import ring_scores

_MODES = {"ring": RING, "usp": RING, "rsa": SELF_ATTENTION, "ulysses": EXCHANGES}
_LAYOUTS = ("contiguous", "zigzag", "striped")


@dataclass(frozen=True)
class Told:
    """The workload's options. `kind` is the family that it must show; None where run.json says nothing."""

    kind: str | None = None
    layout: str | None = None
    causal: bool | None = None
    seq_len: int | None = None

    def scores(self, size: int, layout: str | None, causal: bool | None) -> list[list[int]] | None:
        """Scores of each of `size` ranks in each ring step; None where length, layout or mask is unknown."""
        if self.seq_len is None or causal is None or self.seq_len % size:
            return None
        tokens = self.seq_len // size
        if layout is None and causal:
            return None
        if layout == "zigzag" and tokens % 2:
            return None
        rows = ring_scores(layout or "contiguous", ranks=size, tokens=tokens, causal=causal)
        return [list(row) for row in rows]


def told_of(run_json: Mapping[str, Any] | None) -> Told:
    """What the `workload` of run.json says, as far as it has the shape of one of ours."""
    workload = (run_json or {}).get("workload")
    if not isinstance(workload, Mapping) or workload.get("mode") not in _MODES:
        return Told()
    layout, causal, length = (workload.get(name) for name in ("layout", "causal", "seq_len"))
    return Told(
        _MODES[workload["mode"]],
        layout if layout in _LAYOUTS else None,
        causal if isinstance(causal, bool) else None,
        length if isinstance(length, int) and not isinstance(length, bool) and length > 0 else None,
    )
