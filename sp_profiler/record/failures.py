"""Which rank broke a run, and what it said: from the ranks' own words, their logs and the launcher's."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sp_profiler.record.progress import Progress

LOG_END_LINES = 15

_NOISE = re.compile(
    r"""^USDT:|\[W\d{4} .*CPUAllocator\.cpp|^\s*$|File "<frozen |sp_profiler/record/rank\.py"""
)
_EXIT = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")
_PEER_GONE = re.compile(
    r"Connection (closed by peer|reset by peer|refused)|Broken pipe|Socket closed|remote process exited"
    r"|NCCL communicator was aborted|DistNetworkError|recvVector|Read timeout",
    re.IGNORECASE,
)
_CRASH = "Fatal Python error: "
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)$')


@dataclass(frozen=True)
class Failure:
    """The rank that failed first (None: none is to blame) and what is known about it in words."""

    rank: int | None
    reason: str


def log_path(log_dir: Path, rank: int) -> Path:
    """Where a rank's stdout and stderr go."""
    return log_dir / f"rank-{rank:05d}.log"


def log_end(path: Path, lines: int = LOG_END_LINES) -> str:
    """The last lines of a log, without what torch's profiler writes for tracing tools."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - 65536, 0))
        text = file.read().decode(errors="replace")
    kept = [line for line in text.splitlines() if not _NOISE.search(line)]
    crash = next((at for at, line in enumerate(kept) if line.startswith(_CRASH)), None)
    # what a crash dumps begins with the innermost frame
    return "\n".join(kept[-lines:] if crash is None else kept[crash : crash + lines])


def _exit_words(code: int, who: str = "it") -> str:
    if code >= 0:
        return f"{who} left with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"{who} was killed by {name}{hint}"


def first_failure(states: dict[int, Progress], ranks: int, launcher_log: str, code: int) -> Failure:
    """The rank that broke the run.

    A rank that dies takes the others along: they report that their peer went away, often before the
    launcher looks. So, in this order: a rank killed by a signal other than the launcher's SIGTERM; the
    earliest exception that is not about a lost peer; a rank that never said how it ended; the
    earliest exception of all.
    """
    exits = {int(rank): int(exit_code) for exit_code, rank in _EXIT.findall(launcher_log)}
    for rank, exit_code in sorted(exits.items()):
        if exit_code < 0 and -exit_code != signal.SIGTERM:
            return Failure(rank, _exit_words(exit_code))
    failed = sorted((s for s in states.values() if s.phase == "failed"), key=lambda state: state.time_ns)
    for state in failed:
        if not _PEER_GONE.search(state.error or ""):
            return Failure(state.rank, state.error or "it failed")
    for rank, exit_code in sorted(exits.items()):
        if states.get(rank) is None or not states[rank].ended:
            return Failure(rank, _exit_words(exit_code))
    if failed:
        return Failure(failed[0].rank, failed[0].error or "it failed")
    if len(states) < ranks:
        return Failure(None, f"{_exit_words(code, 'the launcher')} before every rank had started")
    return Failure(None, _exit_words(code, "the launcher"))


@dataclass(frozen=True)
class Place:
    """Where a rank is stuck. `waits`: in a collective, so perhaps only because another rank is late."""

    text: str  # `sleep_forever (train.py:12)`
    waits: bool


def where_it_hangs(log: Path) -> Place | None:
    """The place that the last stack dump in a rank's log shows, None without a dump."""
    if not log.exists():
        return None
    _, dump, text = log.read_text(errors="replace").rpartition("Current thread ")
    frames = [found for line in text.splitlines() if (found := _FRAME.match(line))] if dump else []
    if not frames:
        return None
    innermost = frames[0]
    name = f"{innermost['function']} ({Path(innermost['file']).name}:{innermost['line']})"
    # a handle's wait() is no Python frame: what shows is our own helper that calls it
    waits = any(frame["file"].endswith("workloads/communication.py") for frame in frames[:2])
    return Place(name, waits or any("/torch/distributed/" in frame["file"] for frame in frames))


def describe_hang(places: Mapping[int, Place | None]) -> tuple[int, str]:
    """The rank to look at first, and a clause that names the stuck ranks of `places`.

    A rank in a collective only waits, as long as another one is stuck elsewhere.
    """
    waiting = [rank for rank, place in places.items() if place is not None and place.waits]
    stuck = [rank for rank in places if rank not in waiting] or waiting
    others = [rank for rank in waiting if rank not in stuck]

    def named(ranks: Sequence[int], verb: str) -> str:
        parts = []
        for rank in ranks:
            place = places[rank]
            parts.append(f"rank {rank} {verb}" + (f" in {place.text}" if place is not None else ""))
        return ", ".join(parts)

    clause = named(stuck, "hangs")
    return stuck[0], f"{clause}; {named(others, 'waits for it')}" if others else clause
