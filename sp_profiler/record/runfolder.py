"""A run's folder appears when it is complete: until then everything lies in a hidden folder beside it."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from sp_profiler.errors import UsageError
from sp_profiler.files import temporary_beside

LOGS = "logs"


class PendingFolder:
    """A folder in the making.

    `path` is the hidden folder to write into: a sibling of the target, or inside a target that is there
    already (it may be a mount, or lie where nothing else can be written). `logs` is a subfolder for what
    matters only on failure.
    End with `publish`, `keep_logs` or `discard`; used as a context manager, leaving without one of
    them discards.
    """

    def __init__(self, target: Path, *, force: bool = False) -> None:
        """Prepare `target`. Raises UsageError when it holds anything (unless `force`) or cannot be made."""
        self.target = Path(os.path.abspath(target))
        if self.target.is_dir() and any(self.target.iterdir()) and not force:
            raise UsageError(f"{target} exists and is not empty: choose another --out or add --force")
        if self.target.exists() and not self.target.is_dir():
            raise UsageError(f"{target} exists and is not a folder: choose another --out")
        self._force = force
        there = self.target.is_dir()
        self.path = temporary_beside(self.target / "run" if there else self.target, "partial")
        self.logs = self.path / LOGS
        try:
            self.logs.mkdir(parents=True)
        except OSError as error:
            raise UsageError(f"cannot write to {self.path.parent}: {error.strerror}") from None

    def __enter__(self) -> PendingFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def discard(self) -> None:
        """Remove the hidden folder, if it is still there."""
        shutil.rmtree(self.path, ignore_errors=True)

    def publish(self) -> Path:
        """Give the folder its name; returns it.

        Where the folder exists already (empty, or `force`), the files move in one by one; old traces
        go first, so that no trace of the run before stays beside the new ones. Without `force`, what
        another run put there meanwhile stays, and the folder gets the next free name (`-2`, `-3`, ...).
        """
        shutil.rmtree(self.logs, ignore_errors=True)
        for unfinished in self.path.rglob(".*.tmp"):  # of a rank that was killed while it wrote
            unfinished.unlink()
        inside = self.path.parent == self.target
        others = inside and any(entry != self.path for entry in self.target.iterdir())
        if (inside and not others) or (self._force and self.target.is_dir()):
            _merge(self.path, self.target)
            self.discard()
            return self.target
        while True:
            try:
                os.rename(self.path, self.target)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EINVAL, errno.ENOTDIR):
                    raise
                self.target = unused(self.target)
            else:
                return self.target

    def keep_logs(self) -> Path | None:
        """Move the logs of a failed run to `<name>.failed`, discard the rest; returns where they are."""
        logs = [path for path in self.logs.glob("*.log") if path.stat().st_size]
        if not logs:
            self.discard()
            return None
        kept = unused(self.target.with_name(self.target.name + ".failed"))
        try:
            kept.mkdir()
        except OSError:  # the end of the log that matters is in the error itself
            self.discard()
            return None
        for path in logs:
            os.replace(path, kept / path.name)
        self.discard()
        return kept


def unused(path: Path) -> Path:
    """`path`, or with -2, -3, ... behind it the first that does not exist."""
    candidate, number = path, 1
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def _merge(source: Path, target: Path) -> None:
    """Move everything in `source` into `target`, run.json last: until then the folder is no run."""
    for stale in (*target.glob("rank-*.pt.trace.json.gz"), target / "run.json"):
        stale.unlink(missing_ok=True)
    for entry in sorted(source.iterdir(), key=lambda entry: entry.name == "run.json"):
        if entry.is_dir() and (target / entry.name).is_dir():
            _merge(entry, target / entry.name)
        else:
            os.replace(entry, target / entry.name)
