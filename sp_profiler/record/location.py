"""The folder a capture writes to, the same on every rank without a collective."""

from __future__ import annotations

import os
import re
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from sp_profiler.errors import UsageError
from sp_profiler.record.export import trace_name

RUNS_FOLDER = "sp-profile-runs"
OUT_VARIABLE = "SP_PROFILE_OUT"

_LATER = "capture-"

_captures_per_folder: Counter[Path] = Counter()
"""How often this process chose a folder: the n-th capture of a process is the n-th of every rank."""


def run_folder_name(label: str, now: datetime) -> str:
    """`2026-01-31T12-00-00Z-tp-async`, which sorts by time. `now` is in UTC."""
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-.") or "run"
    return f"{now:%Y-%m-%dT%H-%M-%SZ}-{words}"


def choose_folder(out: str | os.PathLike[str] | None, rank: int) -> Path:
    """The absolute folder for a new capture: SP_PROFILE_OUT, else `out`, else a new one by time.

    The second capture of a process into one folder gets the subfolder `capture-2`, and so on. Raises
    UsageError when a trace of this rank, not written by this process, is there already.
    """
    ordered = os.environ.get(OUT_VARIABLE)
    given = ordered or out
    base = Path(given).absolute() if given else Path.cwd() / RUNS_FOLDER / _shared_name()
    _captures_per_folder[base] += 1
    count = _captures_per_folder[base]
    folder = base if count == 1 else base / f"{_LATER}{count}"
    if (folder / trace_name(rank)).exists():
        raise UsageError(f"capture: {folder} already holds a trace of rank {rank}, choose another folder")
    return folder


def capture_folders(base: Path) -> list[str]:
    """The subfolders of `base` that hold captures, in order; the first is `base` itself, "" here."""
    numbers = [path.name.removeprefix(_LATER) for path in base.glob(f"{_LATER}*") if path.is_dir()]
    return ["", *(f"{_LATER}{number}" for number in sorted(int(n) for n in numbers if n.isdecimal()))]


def _shared_name() -> str:
    """A folder name that every rank of a job arrives at, whether or not the others capture too.

    With torch.distributed the first rank to come leaves its proposal in the store of the process group
    (no rank waits for another). Without, ranks of one launcher share its start time.
    """
    script = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] not in ("", "-c", "-m") else "capture"
    proposal = run_folder_name(script, datetime.fromtimestamp(_job_start_s(), UTC))
    import torch.distributed as dist

    # torch keeps the store of the default group under a private name
    getter = getattr(dist.distributed_c10d, "_get_default_store", None) if dist.is_available() else None
    if getter is None or not dist.is_initialized():
        return proposal
    try:
        return bytes(getter().compare_set("sp_profiler/run_folder", "", proposal)).decode()
    except (RuntimeError, ValueError):  # a backend without a store, or a store without this operation
        return proposal


def _job_start_s() -> float:
    """Unix time at which the launcher of this rank started; now, for a script started by hand."""
    stat = Path(f"/proc/{os.getppid()}/stat")
    if "LOCAL_RANK" not in os.environ or not stat.exists():
        return time.time()
    ticks = int(stat.read_text(errors="replace").rpartition(")")[2].split()[19])
    boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
    return int(boot.split()[1]) + ticks // os.sysconf("SC_CLK_TCK")
