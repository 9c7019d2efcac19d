"""Real ranks over gloo: a worker script of this folder as several processes, ended whatever happens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run_ranks(worker: str, out: Path, *, ranks: int = 2, timeout_s: float = 240) -> None:
    """Run `worker RANK STORE OUT` as every rank; fails with the end of their log when one fails."""
    script = Path(__file__).with_name(worker)
    with (out / "log").open("w") as log:
        started = [
            subprocess.Popen(
                [sys.executable, str(script), str(rank), str(out / "store"), str(out)], stdout=log, stderr=log
            )
            for rank in range(ranks)
        ]
        try:
            codes = [rank.wait(timeout=timeout_s) for rank in started]
        finally:
            for rank in started:
                rank.kill()
                rank.wait()
    assert codes == [0] * ranks, (out / "log").read_text()[-4000:]
