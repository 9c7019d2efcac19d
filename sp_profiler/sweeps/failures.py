"""What ended a cell: from the error of its run to a status and one sentence."""

from __future__ import annotations

import re
from pathlib import Path

from sp_profiler.errors import HangError, WorkloadError
from sp_profiler.sweeps.model import Status

_NO_MEMORY = re.compile(
    r"OutOfMemoryError|MemoryError|out of memory|can't allocate memory|cannot allocate memory"
    r"|not enough memory|bad_alloc",
    re.IGNORECASE,
)
_GUESS = " (out of memory?)"
"""What `record.failures` puts behind a SIGKILL, of which it knows no more."""
_KILLED = "was killed by SIGKILL"
_LONGEST = 300


def oom_kills() -> int | None:
    """How many processes the kernel has ended for lack of memory, here or in this control group; None where
    it does not say. Before and after a run they tell what a SIGKILL was."""
    found: list[int] = []
    for path in ("/proc/vmstat", "/sys/fs/cgroup/memory.events"):
        try:
            lines = Path(path).read_text().splitlines()
        except OSError:
            continue
        found += [int(line.split()[1]) for line in lines if line.split()[:1] == ["oom_kill"]]
    return sum(found) if found else None


def classify(error: WorkloadError, kills_before: int | None, kills_after: int | None) -> tuple[Status, str]:
    """The status of a cell that ended with `error`, and why in one sentence."""
    first = str(error).split("\n", 1)[0].strip()
    sentence = first if len(first) <= _LONGEST else first[: _LONGEST - 1] + "…"
    if isinstance(error, HangError):
        return "timeout", sentence
    if _KILLED in sentence:
        by_kernel = kills_before is not None and kills_after is not None and kills_after > kills_before
        if by_kernel:
            return "oom", sentence.replace(_GUESS, "") + ": the kernel had no memory left"
        return "crashed", sentence
    if _NO_MEMORY.search(first):
        return "oom", sentence
    return "crashed", sentence
