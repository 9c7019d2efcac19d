"""Child processes that never outlive us: find all descendants, end them, reap them (Linux).

torch's launcher puts every rank into a session of its own, so neither Ctrl-C nor a process group
reaches them; the tree is followed through /proc instead. The launching process becomes a
"subreaper": what loses its parent is handed to it and not to init, and so stays in the tree.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    """One prctl call; elsewhere than on Linux, where it does not exist, nothing happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def die_with_parent(signal_number: int = signal.SIGKILL) -> None:
    """Ask the kernel to signal this process when its parent dies, however the parent dies."""
    _prctl(PR_SET_PDEATHSIG, signal_number)


def _parents() -> dict[int, int]:
    """Parent of every process: pid -> parent pid."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # `pid (name) state ppid ...`, where the name may hold spaces and brackets
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(entry.name)] = int(fields[1])
    return parents


def descendants(root: int) -> set[int]:
    """All children of a process, their children and so on, zombies included."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents().items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    waiting = [root]
    while waiting:
        new = [pid for pid in children.get(waiting.pop(), []) if pid not in found]
        found.update(new)
        waiting.extend(new)
    return found


def _send(pids: set[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _reap(pids: set[int]) -> None:
    """Take the exit status of those that are our own children, so that no zombie stays."""
    for pid in pids:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue


class Tree:
    """A started command with everything it starts in turn.

    Use as a context manager: whatever still runs at its end is ended (SIGTERM, after `grace_s`
    SIGKILL) unless `keep_survivors` was set.
    """

    def __init__(
        self, command: list[str], *, env: dict[str, str], output: Any = None, new_session: bool = True
    ) -> None:
        """Start `command`. `output` (a file) takes stdout and stderr, None leaves them as ours.

        Raises OSError when the command cannot be started.
        """
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._before = descendants(os.getpid())
        self.keep_survivors = False
        self.process = subprocess.Popen(
            command,
            env=env,
            stdout=output,
            stderr=subprocess.STDOUT if output is not None else None,
            stdin=subprocess.DEVNULL if new_session else None,
            start_new_session=new_session,
            preexec_fn=_terminate_with_parent,
        )

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.keep_survivors:
            self.end()
        _prctl(PR_SET_CHILD_SUBREAPER, 0)

    def alive(self) -> set[int]:
        """Every process of the tree that still runs (reaps those that ended)."""
        self.process.poll()
        started = descendants(os.getpid()) - self._before
        _reap(started - {self.process.pid})
        return descendants(os.getpid()) - self._before

    def end(self, grace_s: float = 5.0) -> None:
        """End the whole tree: SIGTERM, then SIGKILL for what is left after `grace_s` seconds.

        A second Ctrl-C while waiting goes straight to SIGKILL.
        """
        alive = self.alive()
        _send(alive, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        try:
            while (alive := self.alive()) and time.monotonic() < deadline:
                time.sleep(0.02)
        finally:
            while alive := self.alive():
                _send(alive, signal.SIGKILL)
                time.sleep(0.02)


def _terminate_with_parent() -> None:
    die_with_parent(signal.SIGTERM)


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP raise KeyboardInterrupt as Ctrl-C does, so that clean-up runs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
