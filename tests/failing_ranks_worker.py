"""Ranks of which one fails, or none ends: the others wait for ever."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch.distributed as dist


def main(rank: int, out: Path, what: str) -> None:
    (out / f"pid-{rank}").write_text(str(os.getpid()))
    dist.barrier()
    if what == "killed" and rank == 0:
        os.kill(os.getpid(), 9)
    if what == "raises" and rank == 1:
        raise ValueError("the loss is a fish")
    time.sleep(600)
