"""The runs that the dashboard shows: found on disk, analysed once, kept where decoded traces are kept.

A run is known by an id that is made here; what a URL says is looked up among those ids and never becomes a
path. Runs are read one after the other in a thread of their own, so that the page can say how far it is.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import queue
import re
import shutil
import tempfile
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as StillReading
from dataclasses import astuple, dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sp_profiler
from sp_profiler.analysis.lanes import Lanes
from sp_profiler.analysis.steps import WindowRule
from sp_profiler.engine import analyze_files
from sp_profiler.errors import InputError, SpProfilerError
from sp_profiler.report.kept import BROKEN, read_lanes, read_report, write_lanes, write_report
from sp_profiler.report.model import Report
from sp_profiler.trace.cache import SMALLEST_BYTES, cache_folder, content_key, decode_cached, keep
from sp_profiler.trace.decode import DEFAULT_LIMITS, decode_trace
from sp_profiler.trace.limits import Limits
from sp_profiler.trace.tables import RunFiles

if TYPE_CHECKING:
    from dashboards.uploads import Uploads

VERSION = 1
"""Part of every key: to be raised when the format of what is kept changes."""

_MOST_ROWS = 6_000_000  # of lanes held in memory, about 40 bytes each
_MOST_OPEN = 12  # reports held in memory

Stamp = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class RunRef:
    """A run that can be opened. `id` stands in URLs."""

    id: str
    files: RunFiles

    @property
    def name(self) -> str:
        return self.files.name


@dataclass(frozen=True)
class RankRef:
    """A trace of an open run: its place among the kept lanes, and where its collectives begin."""

    number: int
    rank: int | None
    file: str
    first_collective: int


@dataclass(frozen=True, eq=False)
class Opened:
    """A run that was read. `ranks` are in the order of the report."""

    ref: RunRef
    report: Report
    ranks: tuple[RankRef, ...]
    folder: Path


@dataclass(frozen=True)
class Reading:
    """A run that is being read: `done` of `total` files."""

    done: int
    total: int


@dataclass(frozen=True)
class Failed:
    """A run that cannot be read, and why, in the words that the command line uses."""

    text: str


class Store:
    """All runs of one dashboard. Safe to use from several threads."""

    def __init__(
        self,
        find: Callable[[], Sequence[RunFiles]],
        rule: WindowRule | None = None,
        *,
        limits: Limits = DEFAULT_LIMITS,
        decode: Callable[..., Any] = decode_cached,
        uploads: Uploads | None = None,
    ) -> None:
        self.on_read: Callable[[Opened], None] | None = None
        """Told of each run once it can be shown: what its first view needs can be made meanwhile."""
        self._find = find
        self.rule = rule or WindowRule()
        self.limits = limits
        self.uploads = uploads
        self._decode = decode
        self._lock = threading.RLock()
        self._runs: dict[str, RunRef] = {}
        self._open: OrderedDict[str, tuple[Stamp, Future[Opened]]] = OrderedDict()
        self._progress: dict[str, int] = {}
        self._lanes: OrderedDict[tuple[str, int], Lanes] = OrderedDict()
        self._tasks: queue.SimpleQueue[tuple[RunRef, Future[Opened]]] = queue.SimpleQueue()
        # A daemon: Ctrl-C ends the dashboard also in the middle of a run of many ranks.
        threading.Thread(target=self._read_all, name="reader", daemon=True).start()
        self.trouble = ""  # why no run could be found
        self.refresh()

    def decode(self, path: str, limits: Limits = DEFAULT_LIMITS) -> Any:
        """Decode a trace as the user asked for; of uploads nothing stays in the cache."""
        return (decode_trace if self._is_upload(path) else self._decode)(path, limits)

    def _is_upload(self, path: str) -> bool:
        return self.uploads is not None and self.uploads.holds(path)

    def refresh(self) -> None:
        """Look again which runs there are."""
        try:
            found = list(self._find())
            trouble = ""
        except SpProfilerError as error:
            found, trouble = [], str(error)
        found += [] if self.uploads is None else self.uploads.runs()
        runs: dict[str, RunRef] = {}
        for files in found:
            ref = RunRef(_id_of(files), files)
            runs[ref.id] = ref
        with self._lock:
            self._runs, self.trouble = runs, trouble

    def runs(self) -> list[RunRef]:
        with self._lock:
            return list(self._runs.values())

    def ref(self, run_id: str | None) -> RunRef | None:
        """The run of this id; without one the first run; None when there is no such run."""
        with self._lock:
            if run_id is None:
                return next(iter(self._runs.values()), None)
            return self._runs.get(run_id)

    def ask(self, ref: RunRef, wait_s: float = 1.5) -> Opened | Reading | Failed:
        """The run, if it can be had within `wait_s`; reading it goes on meanwhile."""
        future = self._future(ref)
        try:
            return future.result(timeout=wait_s)
        except StillReading:
            return Reading(self._progress.get(ref.id, 0), 2 * len(ref.files.files))
        except SpProfilerError as error:
            return Failed(self._told(str(error)))
        except OSError as error:
            return Failed(self._told(f"{error.filename or ref.name}: {error.strerror or error}"))

    def _told(self, text: str) -> str:
        return text if self.uploads is None else self.uploads.named(text)

    def _future(self, ref: RunRef) -> Future[Opened]:
        stamp = _stamp(ref.files)
        with self._lock:
            known = self._open.get(ref.id)
            if known is not None and (known[0] == stamp or not known[1].done()):
                self._open.move_to_end(ref.id)
                return known[1]
            self._drop_lanes(ref.id)
            future: Future[Opened] = Future()
            self._tasks.put((ref, future))
            self._open[ref.id] = stamp, future
            while len(self._open) > _MOST_OPEN:
                oldest = next(iter(self._open))
                self._open.pop(oldest)
                self._drop_lanes(oldest)
            return future

    def lanes(self, opened: Opened, rank: RankRef) -> Lanes:
        """The lanes of one trace of an open run. Raises InputError when they are no longer on disk."""
        key = (opened.ref.id, rank.number)
        with self._lock:
            if key in self._lanes:
                self._lanes.move_to_end(key)
                return self._lanes[key]
        try:
            found = read_lanes(opened.folder, rank.number)
        except BROKEN:
            with self._lock:
                self._open.pop(opened.ref.id, None)
            raise InputError("what was kept of this run is gone: load the page again") from None
        with self._lock:
            self._lanes[key] = found
            while sum(map(len, self._lanes.values())) > _MOST_ROWS and len(self._lanes) > 1:
                self._lanes.popitem(last=False)
        return found

    def _drop_lanes(self, run_id: str) -> None:
        for key in [key for key in self._lanes if key[0] == run_id]:
            del self._lanes[key]

    # --- reading -----------------------------------------------------------------------------------------

    def _read_all(self) -> None:
        """One run after the other, as they are asked for."""
        while True:
            ref, future = self._tasks.get()
            try:
                opened = self._read(ref)
            except BaseException as error:  # noqa: BLE001 - whoever waits for the run is told
                future.set_exception(error)
            else:
                future.set_result(opened)
                self._tell(opened)

    def _tell(self, opened: Opened) -> None:
        if self.on_read is None:
            return
        try:
            self.on_read(opened)
        except Exception:  # noqa: BLE001 - the view that needs it will fail in the same way, and say so
            traceback.print_exc()

    def _read(self, ref: RunRef) -> Opened:
        self._progress[ref.id] = 0
        cached = self._cached_entry(ref.files)
        if cached is not None:
            try:
                opened = _opened(ref, read_report(cached), cached)
                os.utime(cached)
            except BROKEN:
                pass  # not there yet, or damaged: made below
            else:
                return opened
            try:
                keep(cached, partial(self._analyse, ref))
                return _opened(ref, read_report(cached), cached)
            except BROKEN as error:
                if isinstance(error, SpProfilerError):
                    raise
        folder = _scratch() / f"{ref.id}-{len(os.listdir(_scratch()))}"
        folder.mkdir()
        self._analyse(ref, folder)
        return _opened(ref, read_report(folder), folder)

    def _cached_entry(self, files: RunFiles) -> Path | None:
        """Where this run is kept between two starts; None for what is read as fast as an entry."""
        folder = cache_folder()
        sizes = [os.path.getsize(file) for file in files.files if os.path.isfile(file)]
        is_kept = self._decode is decode_cached and not self._is_upload(files.root)
        if folder is None or not is_kept or sum(sizes) < SMALLEST_BYTES:
            return None
        told = (
            VERSION,
            sp_profiler.__version__,
            _code_stamp(),
            os.path.abspath(files.root),
            repr(files.run_json),
            [astuple(entry) for entry in files.ledger],
            astuple(self.rule),
            astuple(self.limits),
            [(file, content_key(file, self.limits)) for file in files.files],
        )
        digest = hashlib.blake2b(repr(told).encode("utf-8", "surrogatepass"), digest_size=20)
        return folder / f"run-{digest.hexdigest()}"

    def _analyse(self, ref: RunRef, folder: Path) -> None:
        """Read the run and keep it in the folder."""
        self._progress[ref.id] = 0
        files: list[str] = []

        def keep_lanes(lanes: Lanes) -> None:
            if lanes.file not in files:
                files.append(lanes.file)
            write_lanes(folder, files.index(lanes.file), lanes)

        def advance(_: str) -> None:
            self._progress[ref.id] += 1

        report = analyze_files(
            ref.files,
            self.rule,
            limits=self.limits,
            decode=self.decode,
            on_file=advance,
            on_rank=advance,
            keep_lanes=keep_lanes,
        )
        write_report(folder, report)
        (folder / "files.txt").write_text("\0".join(files), encoding="utf-8", errors="surrogateescape")


def _opened(ref: RunRef, report: Report, folder: Path) -> Opened:
    files = (folder / "files.txt").read_text(encoding="utf-8", errors="surrogateescape").split("\0")
    number = {file: place for place, file in enumerate(files)}
    ranks: list[RankRef] = []
    first = 0
    counts = _collectives_by_rank(report)
    for one in report.ranks:
        if all(known.file != one.file for known in ranks) and one.file in number:
            ranks.append(RankRef(number[one.file], one.rank, one.file, first))
            first += counts.get(one.rank, 0)
    return Opened(ref, report, tuple(ranks), folder)


def _collectives_by_rank(report: Report) -> dict[int | None, int]:
    """How many collectives each rank has: in the report they follow each other in the order of ranks."""
    from sp_profiler.analysis.collective_table import Collectives

    return Collectives.of(report.collectives).counts("rank")


def _id_of(files: RunFiles) -> str:
    """Letters, digits and dashes: readable, and the same at every start."""
    told = "\0".join((os.path.realpath(files.root), *sorted(map(os.path.basename, files.files))))
    digest = hashlib.blake2b(told.encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
    name = re.sub(r"[^A-Za-z0-9]+", "-", files.name).strip("-")[:40] or "run"
    return f"{name}-{digest}"


def _stamp(files: RunFiles) -> Stamp:
    """Changes when a file is written anew."""
    told = []
    for file in files.files:
        try:
            about = os.stat(file)
            told.append((file, about.st_size, about.st_mtime_ns))
        except OSError:
            told.append((file, -1, -1))
    return tuple(told)


@cache
def _code_stamp() -> str:
    """Changes with any file of the library: in a clone an analysis may change without its version."""
    package = Path(sp_profiler.__file__).parent
    files = sorted(package.rglob("*.py"))
    told = [
        (str(file.relative_to(package)), os.stat(file).st_size, os.stat(file).st_mtime_ns) for file in files
    ]
    return hashlib.blake2b(repr(told).encode(), digest_size=8).hexdigest()


@cache
def _scratch() -> Path:
    """A folder for runs that are not kept; removed at exit."""
    folder = Path(tempfile.mkdtemp(prefix="sp-profile-dashboard-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
