"""Runs drawn to be compared: steps of a GEMM and an all-reduce, written as traces and analysed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import sp_profiler
from sp_profiler.comparing.model import Comparison, Delta, KindChange
from sp_profiler.report.model import Report
from sp_profiler.trace.write import TraceWriter

US = 1_000


@dataclass(frozen=True)
class Drawn:
    """One step of 1000 µs: a GEMM [0, 100 + slower) and collectives (start, dur, elements, description)."""

    collectives: Sequence[tuple[int, int, int, str]] = ((100, 50, 1024, "tp"),)
    slower: int = 0
    op: str = "allreduce"


def write_run(
    folder: Path, steps: Sequence[Drawn], ranks: Sequence[int] = (0,), world: int | None = None
) -> Path:
    """A trace of each rank; `steps` one after the other. Each launches its work at its beginning."""
    folder.mkdir(parents=True, exist_ok=True)
    size = len(ranks) if world is None else world
    for rank in ranks:
        writer = TraceWriter(rank=rank, world_size=size)
        seq = 0
        for number, step in enumerate(steps):
            begin = 1000 * number
            writer.step(number + 1, begin, 1000)
            writer.kernel("sm90_xmma_gemm_bf16", begin, 100 + step.slower, stream=7, launch=begin)
            for start, dur, elements, description in step.collectives:
                seq += 1
                writer.collective(
                    step.op,
                    begin + start,
                    dur,
                    ranks=list(range(size)),
                    in_elements=elements,
                    description=description,
                    seq=seq,
                    launch=begin + 1,
                )
        writer.write(folder / f"rank-{rank:05d}.pt.trace.json")
    return folder


def drawn_report(folder: Path, steps: Sequence[Drawn], ranks: Sequence[int] = (0,)) -> Report:
    return sp_profiler.analyze(write_run(folder, steps, ranks))


def total(found: Comparison, figure: str) -> Delta:
    (one,) = (one for one in found.totals if one.figure == figure)
    return one


def keyed(deltas: Sequence[Delta], name: str) -> Delta:
    (one,) = (one for one in deltas if one.name == name)
    return one


def only_kind(found: Comparison) -> KindChange:
    assert found.kinds is not None
    (one,) = found.kinds
    return one


def figure_of(kind: KindChange, figure: str) -> Delta:
    (one,) = (one for one in kind.figures if one.figure == figure)
    return one
