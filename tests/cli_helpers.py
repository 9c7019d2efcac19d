"""The command line as a subprocess: a trace to read, what is on which stream, what was written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from sp_profiler.trace.write import TraceWriter

DEMO = Path(__file__).resolve().parent.parent / "traces" / "demo"


def cli(
    *arguments: object, cwd: Path | None = None, timeout_s: float = 150, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run `sp-profile` with these arguments."""
    return subprocess.run(
        [sys.executable, "-m", "sp_profiler", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "120", **env},
        check=False,
    )


def refused(result: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """One sentence on stderr that holds the words, the code, no traceback, nothing on stdout."""
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    for word in words:
        assert word in result.stderr, result.stderr


def write_trace(folder: Path) -> Path:
    """A file in the folder: GEMM 0–100 µs, all-reduce 50–150 µs, so 50 µs overlapped and 50 µs exposed."""
    writer = TraceWriter(rank=0, world_size=1)
    writer.kernel("sm90_xmma_gemm_bf16", 0, 100, stream=7)
    writer.collective("all_reduce", 50, 100, stream=20)
    path = folder / "rank-00000.pt.trace.json"
    writer.write(path)
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def load(path: Path) -> Any:
    return json.loads(path.read_text())
