"""Tasks for the tests of engines, which workers import by name. Files count how often one was tried."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from sp_profiler.errors import InputError


@dataclass(frozen=True)
class Told:
    """What a task is to do (`what`), and where it counts its tries."""

    number: int
    what: str = "return"
    folder: str = ""

    def tries(self) -> int:
        """How often it was begun."""
        return len(list(Path(self.folder).glob(f"{self.number}-*")))

    def begin(self) -> int:
        count = self.tries()
        Path(self.folder, f"{self.number}-{count}-{os.getpid()}").touch()
        return count


def do(task: Told) -> int:
    """Return twice the number, or do otherwise."""
    before = task.begin() if task.folder else 0
    if task.what == "raise":
        raise ValueError(f"number {task.number}\nsays no")
    if task.what == "refuse":
        raise InputError(f"number {task.number} is no trace")
    if task.what == "raise-once" and before == 0:
        raise OSError("the disk was away")
    if task.what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if task.what == "die-once" and before == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if task.what == "hang":
        time.sleep(600)
    if task.what == "hang-once" and before == 0:
        time.sleep(600)
    if task.what == "wait":  # until the test says so
        while not Path(task.folder, "go").exists():
            time.sleep(0.02)
    if task.what == "print":
        print("noise on stdout")
        os.write(1, b"more of it\n")
    return 2 * task.number


def threads(task: Told) -> str:
    """What libraries that count cores are told."""
    return os.environ.get("OMP_NUM_THREADS", "") + os.environ.get("POLARS_MAX_THREADS", "")


def process(task: Told) -> int:
    """Who does it."""
    return os.getpid()


def sees_main(task: Told) -> str:
    """The file of the program that a worker runs."""
    import __main__

    return str(getattr(__main__, "__file__", ""))
