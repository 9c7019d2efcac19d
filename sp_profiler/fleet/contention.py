"""What overlapped GEMMs lose, over all ranks of a fleet: exact medians over samples that lie on disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sp_profiler.analysis.contention import NO_SHAPES, Baseline, Side, contention, in_order, slowdowns
from sp_profiler.analysis.results import ContentionFigures, GemmSamples
from sp_profiler.fleet.outcome import Key, load_samples
from sp_profiler.fleet.stages import Stages
from sp_profiler.fleet.work import Work
from sp_profiler.ledger import LedgerEntry

SAMPLES = 8_000_000
"""What one task sorts: more keys than hold so many are given to several tasks."""
_KEPT = "slowdowns"


@dataclass(frozen=True)
class SampleCount:
    """How many GEMMs of one key a rank has."""

    key: Key
    count: int


@dataclass(frozen=True)
class CompareTask:
    """The GEMMs of some keys, of all ranks. `lent`: what the baseline has of these keys."""

    work: Work
    number: int
    keys: frozenset[Key]
    ranks: tuple[int, ...]
    lent: tuple[tuple[Key, tuple[Side, Side]], ...]

    @property
    def name(self) -> str:
        return f"contention/{self.number:05d}"


@dataclass(frozen=True)
class Compared:
    """The comparison of a fleet; None where there was nothing to compare, `ledger` says why."""

    figures: list[ContentionFigures] | None
    ledger: tuple[LedgerEntry, ...] = ()


def counts_of(samples: Sequence[GemmSamples | None]) -> tuple[SampleCount, ...]:
    """What the coordinator must know of a rank's samples, to deal them out."""
    total: dict[Key, int] = {}
    for one in samples:
        if one is not None:
            for key, count in zip(one.keys, np.bincount(one.key, minlength=len(one.keys)), strict=True):
                total[key] = total.get(key, 0) + int(count)
    return tuple(SampleCount(key, count) for key, count in total.items())


def compare(
    stages: Stages,
    counts: Mapping[int, Sequence[SampleCount]],
    has_devices: bool,
    baseline: Baseline | None,
) -> Compared:
    """Compare the GEMMs of all ranks (by their numbers); the tables of ranks are to be there.

    `has_devices`: some rank ran on a device. Afterwards `kept_slowdowns` tells each rank what it lost.
    """
    total: dict[Key, int] = {}
    for of_rank in counts.values():
        for one in of_rank:
            total[one.key] = total.get(one.key, 0) + one.count
    tasks = [
        CompareTask(
            stages.work,
            number,
            keys,
            tuple(rank for rank, of_rank in counts.items() if any(one.key in keys for one in of_rank)),
            tuple((key, sides) for key, sides in (baseline or {}).items() if key in keys),
        )
        for number, keys in enumerate(_dealt(total))
    ]
    found = in_order(one for part in stages.all(compare_some, tasks, list[ContentionFigures]) for one in part)
    slower = [(key, ns) for key, ns in slowdowns(found).items()]
    stages.work.finish(_KEPT, stages.fingerprint, slower)
    if not has_devices:
        return Compared(None)
    return Compared(found) if found else Compared(None, (NO_SHAPES,))


def _dealt(total: Mapping[Key, int]) -> Iterator[frozenset[Key]]:
    """Keys in parts that hold no more than `SAMPLES`, where they are several."""
    part: list[Key] = []
    held = 0
    for key, count in total.items():
        if part and held + count > SAMPLES:
            yield frozenset(part)
            part, held = [], 0
        part.append(key)
        held += count
    if part:
        yield frozenset(part)


def compare_some(task: CompareTask) -> list[ContentionFigures]:
    """The comparison of the GEMMs of some keys."""
    return contention(_chosen(task), dict(task.lent))


def _chosen(task: CompareTask) -> Iterator[GemmSamples]:
    """The samples of these keys, device by device."""
    for rank in task.ranks:
        for one in load_samples(task.work, rank):
            if one is None:
                continue
            wanted = [code for code, key in enumerate(one.keys) if key in task.keys]
            code = np.full(len(one.keys), -1, np.int64)
            code[wanted] = np.arange(len(wanted))
            new = code[one.key]
            mine = new >= 0
            yield GemmSamples(
                tuple(one.keys[place] for place in wanted),
                new[mine],
                one.dur_ns[mine],
                one.overlapped_ns[mine],
                one.window[mine],
            )


@lru_cache(maxsize=2)
def kept_slowdowns(work: Work, fingerprint: str) -> dict[Key, int]:
    """What `compare` found, for the tasks that follow it."""
    kept = work.finished(_KEPT, fingerprint, list[tuple[Key, int]])
    if kept is None:
        raise OSError(f"the table of slowdowns is not in {work.root}")
    return dict(kept)
