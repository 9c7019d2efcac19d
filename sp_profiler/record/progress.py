"""How far each rank is: one small file a rank, written by the rank, read by the launcher.

The folder is named by the environment variable SP_PROFILE_PROGRESS; where it is not set nothing is
written. A file is replaced, never rewritten, so a reader sees a whole one or the one before.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

FOLDER_VARIABLE = "SP_PROFILE_PROGRESS"

Phase = Literal["starting", "steps", "writing", "written", "finished", "failed"]


@dataclass(frozen=True)
class Progress:
    """Where one rank is. `steps` counts finished steps, warm-up included; `error` only in `failed`."""

    rank: int
    pid: int
    phase: Phase
    steps: int
    time_ns: int  # wall clock
    error: str | None = None

    @property
    def ended(self) -> bool:
        return self.phase in ("finished", "failed")


def rank_from_environment() -> int:
    """The rank that a launcher gave this process, 0 without one."""
    text = os.environ.get("RANK", "")
    return int(text) if text.isdigit() else 0


def report(
    phase: Phase, *, steps: int | None = None, rank: int | None = None, error: str | None = None
) -> None:
    """Say where this rank is, if anybody asked for it. Without `steps` their number stays as it was.

    A full disk does not end a training run: the failure is told on stderr.
    """
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return
    number = rank_from_environment() if rank is None else rank
    path = Path(folder) / f"rank-{number:05d}.json"
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        before = json.loads(path.read_text())["steps"] if steps is None and path.exists() else 0
        state = Progress(
            number, os.getpid(), phase, before if steps is None else steps, time.time_ns(), error
        )
        temporary.write_text(json.dumps(asdict(state)))
        os.replace(temporary, path)
    except OSError as failure:
        os.write(2, f"sp-profiler: cannot report progress of rank {number}: {failure}\n".encode())


def read(folder: Path) -> dict[int, Progress]:
    """What every rank said last, by rank."""
    states: list[Progress] = []
    for path in sorted(folder.glob("rank-*.json")):
        try:
            states.append(Progress(**json.loads(path.read_text())))
        except FileNotFoundError:  # the run is being cleared away
            continue
    return {state.rank: state for state in states}


def slowest(states: dict[int, Progress], ranks: Sequence[int]) -> int:
    """Steps finished by every one of `ranks`."""
    return min((states[rank].steps if rank in states else 0 for rank in ranks), default=0)
