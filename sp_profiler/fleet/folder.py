"""Which work folder a run has, who may use it, and how long it is kept.

A folder belongs to one run (a name and the folder of its traces) and is used by one analysis at a time: the
others are refused. Named with `--work` it is the user's, and never cleaned; otherwise it lies in the user's
cache folder, where folders that were not used for `KEPT_DAYS` are removed when another run is analysed, and
those used longest ago until all fit into `KEPT_BYTES`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sp_profiler.errors import UsageError
from sp_profiler.fleet.work import ASIDE, BROKEN, Work, from_text, replace_whole, to_text
from sp_profiler.trace.cache import WORK_FOLDERS, cache_folder
from sp_profiler.trace.remote import is_remote
from sp_profiler.trace.tables import RunFiles

KEPT_DAYS = 14
KEPT_BYTES = 64 << 30
_ABOUT = "work.json"
_LOCK = "lock"
_OLD_S = 86400


@dataclass(frozen=True)
class About:
    """What a work folder is for. `numbers`: of each file that was ever in the run, which names its tables."""

    name: str
    root: str
    numbers: dict[str, int]


@contextlib.contextmanager
def opened(folder: str | None, files: RunFiles) -> Iterator[Work]:
    """The work folder of a run, made if need be, for this analysis alone.

    Raises UsageError when it is in use, is another run's, holds other files, or cannot be written.
    """
    root = _default(files) if folder is None else Path(folder).absolute()
    try:
        _prepare(root, files)
        with _locked(root):
            (root / _ABOUT).touch()  # used now
            _sweep(root)
            if folder is None:
                _clean(root.parent, root)
            yield Work(str(root))
    except PermissionError as error:
        if error.filename is None or not Path(str(error.filename)).is_relative_to(root):
            raise
        raise UsageError(f"the work folder {root} cannot be written: {error.strerror}") from error


def numbered(work: Work, files: RunFiles) -> dict[str, int]:
    """The number of each file of a run, by its path: the same as long as the work folder is kept."""
    about = _about(Path(work.root))
    numbers = {} if about is None else about.numbers
    places = [str(place_of(path)) for path in files.files]
    for place in places:
        numbers.setdefault(place, len(numbers))
    _tell(Path(work.root), About(files.name, place_of(files.root), numbers))
    return {path: numbers[place] for path, place in zip(files.files, places, strict=True)}


def place_of(path: str) -> str:
    """The path for whoever works in another folder; addresses are the same everywhere."""
    return path if is_remote(path) else os.path.abspath(path)


def _default(files: RunFiles) -> Path:
    cache = cache_folder()
    if cache is None:
        raise UsageError("there is no cache folder to work in (no home): name one with --work")
    told = json.dumps((files.name, place_of(files.root)))
    digest = hashlib.blake2b(told.encode("ascii"), digest_size=10).hexdigest()
    return cache.absolute() / WORK_FOLDERS / digest


def _prepare(root: Path, files: RunFiles) -> None:
    """Make the folder, or refuse what is there."""
    if root.exists() and not root.is_dir():
        raise UsageError(f"the work folder {root} is a file")
    about = _about(root)
    if about is None:
        if root.is_dir() and any(one.name not in (_LOCK, _ABOUT) for one in root.iterdir()):
            raise UsageError(f"{root} is no work folder of ours, but has files: name another one with --work")
        root.mkdir(parents=True, exist_ok=True)
        _tell(root, About(files.name, place_of(files.root), {}))
    elif (about.name, about.root) != (files.name, place_of(files.root)):
        raise UsageError(
            f"the work folder {root} is that of another run ({about.name} in {about.root}): name another one"
        )


def _about(root: Path) -> About | None:
    try:
        return from_text((root / _ABOUT).read_bytes(), About)
    except BROKEN:
        return None


def _tell(root: Path, about: About) -> None:
    replace_whole(root / _ABOUT, lambda file: file.write(to_text(about)))


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system drops when we die. UsageError when another one holds it."""
    with (root / _LOCK).open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read(200).decode("utf-8", "replace").strip() or "another analysis"
            raise UsageError(f"the work folder {root} is in use by {holder}") from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
        file.flush()
        yield


def _sweep(root: Path) -> None:
    """Remove what was written aside by a process that was killed before it could rename it; a worker whose
    coordinator is gone may still write, so only what is old."""
    for path in root.glob(f"*/{ASIDE}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _OLD_S:
                path.unlink()


def _clean(parent: Path, mine: Path) -> None:
    """Remove work folders of the cache that were not used for long, or are too many; what cannot be
    removed stays."""
    folders = sorted(_used(parent), reverse=True)
    total = 0
    for used_s, folder in folders:
        if folder == mine:
            continue
        total += sum(one.stat().st_size for one in folder.rglob("*") if one.is_file())
        if total > KEPT_BYTES or time.time() - used_s > KEPT_DAYS * 86400:
            with contextlib.suppress(OSError, UsageError), _locked(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _used(parent: Path) -> Iterator[tuple[float, Path]]:
    for folder in parent.iterdir():
        with contextlib.suppress(OSError):
            yield (folder / _ABOUT).stat().st_mtime, folder
