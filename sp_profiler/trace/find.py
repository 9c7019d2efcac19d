"""From what the user named (files, folders, globs) to runs: which trace files belong together."""

from __future__ import annotations

import glob
import itertools
import json
import os
import re
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from sp_profiler.errors import InputError
from sp_profiler.ledger import LedgerEntry
from sp_profiler.trace.metadata import rank_from_name, worker_from_name
from sp_profiler.trace.tables import RunFiles

RUN_JSON = "run.json"
_OWN_FILES = (RUN_JSON, "report.json", "plan.json")
_NSIGHT = (".nsys-rep", ".qdrep", ".ncu-rep", ".sqlite")
_TRACE_NAME = re.compile(r"\.pt\.trace\.json(\.gz)?$", re.I)
_EXPORT_NAME = re.compile(r"\.perfetto\.json(\.gz)?$", re.I)
"""What sp-profile export makes of a trace: a copy of it, no rank of the run."""
_JSON_NAME = re.compile(r"\.json(\.gz)?$", re.I)
_SNIFFED_BYTES = 1 << 20
_GZIP_OR_ZLIB_HEADER = 47  # zlib's window-bits value
_BARE_LIST = re.compile(rb"\s*\[\s*\{[^{}]{0,4096}\"ph\"\s*:")


def find_runs(paths: Sequence[str]) -> list[RunFiles]:
    """The runs that `paths` name, in the order given.

    A folder with trace files is one run. A folder without any is searched: every folder below that
    holds trace files is its own run, so ranks of different runs never count as duplicates. Files named
    directly, and files a glob matches, are one run together.

    Raises InputError, in one sentence that names the path, for a missing path or a folder without traces.
    """
    runs: list[RunFiles] = []
    files: list[str] = []
    ignored: list[LedgerEntry] = []
    for path in _expanded(paths, ignored):
        if os.path.isdir(path):
            runs.extend(_runs_below(path))
        else:
            files.append(path)
    once: dict[frozenset[str], RunFiles] = {}  # a folder named twice, or also by one above it, is one run
    for run in (*_runs_of_files(_distinct(files), ignored), *runs):
        once.setdefault(frozenset(map(os.path.realpath, run.files)), run)
    return list(once.values())


def distinct_names(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """The names, each once and none of `taken`: where two are one, the later get a number (`-2`, ...)."""
    used = set(taken)
    given: list[str] = []
    for name in names:
        candidates = (name if count == 1 else f"{name}-{count}" for count in itertools.count(1))
        given.append(next(one for one in candidates if one not in used))
        used.add(given[-1])
    return given


def _runs_of_files(files: list[str], ignored: Sequence[LedgerEntry]) -> list[RunFiles]:
    """Files named by themselves: one run, unless they come from several folders with a run.json each."""
    folders = dict.fromkeys(os.path.dirname(file) or "." for file in files)
    if len(folders) > 1 and all(os.path.isfile(os.path.join(folder, RUN_JSON)) for folder in folders):
        groups = [[file for file in files if (os.path.dirname(file) or ".") == folder] for folder in folders]
    else:
        groups = [files] if files else []
    runs: list[RunFiles] = []
    for group in groups:
        root = os.path.dirname(group[0]) or "."
        run_json, faults = _run_json(root)
        if any((os.path.dirname(file) or ".") != root for file in group):
            root, run_json, faults = os.path.commonpath([os.path.abspath(file) for file in group]), None, ()
        name = os.path.basename(group[0] if len(group) == 1 else os.path.abspath(root))
        runs.append(RunFiles(name, root, tuple(sorted(group)), run_json, (*ignored, *faults)))
    return runs


def _expanded(paths: Sequence[str], ignored: list[LedgerEntry]) -> list[str]:
    """Existing files and folders: globs resolved, the rest checked. Globs pass over what is no trace."""
    found: list[str] = []
    if not paths:
        raise InputError("no trace file or folder was named.")
    for path in paths:
        if os.path.isfile(path) or os.path.isdir(path):
            _refuse_snapshot(path)
            found.append(path)
        elif glob.has_magic(path):
            matches = sorted(glob.glob(path, recursive=True))
            if not matches:
                raise InputError(f"no file matches {path}.")
            # A pattern such as run*/** meets run.json and reports too; named files are never filtered.
            verdicts = {match: os.path.isdir(match) or _is_trace(match) for match in matches}
            ignored.extend(_ignored(match) for match, verdict in verdicts.items() if verdict is False)
            kept = [match for match, verdict in verdicts.items() if verdict]
            inside = {os.path.dirname(match) for match in kept if not os.path.isdir(match)}
            found.extend(match for match in kept if not os.path.isdir(match) or not _covers(match, inside))
            if not kept:
                raise InputError(f"no file that matches {path} is a trace.")
        elif os.path.exists(path):
            raise InputError(f"{path} is a pipe or a device: save the trace to a file and name that.")
        else:
            raise InputError(f"{path or repr(path)} does not exist.")
    return found


def _refuse_snapshot(path: str) -> None:
    """InputError for a memory snapshot: it is of this tool, but no trace."""
    from sp_profiler.snapshot.read import is_snapshot

    if os.path.isfile(path) and is_snapshot(path):
        raise InputError(
            f"{path} is a memory snapshot, no trace: sp-profile memory and sp_profiler.memory() read it."
        )


def _ignored(path: str) -> LedgerEntry:
    return LedgerEntry("ignored-file", "note", "a JSON file beside the traces is no trace", file=path)


def _covers(folder: str, folders: Iterable[str]) -> bool:
    """Whether files below `folder` were matched themselves."""
    top = os.path.join(os.path.abspath(folder), "")
    return any(os.path.join(os.path.abspath(one), "").startswith(top) for one in folders)


def _distinct(files: Sequence[str]) -> list[str]:
    """Each file once, however often it was named."""
    return list({os.path.realpath(file): file for file in reversed(files)}.values())[::-1]


def _runs_below(folder: str) -> list[RunFiles]:
    """The folder as one run when it holds traces, else every folder below that does."""
    run = _run_in(folder)
    if run is not None:
        return [run]
    runs: list[RunFiles] = []
    nsight = _nsight_in(folder)
    exported = False
    for current, folders, names in os.walk(folder, onerror=_unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        exported = exported or any(_EXPORT_NAME.search(name) for name in names)
        if current == folder:
            continue
        run = _run_in(current)
        nsight = nsight or _nsight_in(current)
        if run is not None:
            folders.clear()  # folders inside a run hold its by-products
            runs.append(run)
    if runs:
        return _one_run_of_rank_folders(folder, runs)
    if nsight:
        raise InputError(
            f"{folder} holds only Nsight files ({nsight}), which are not read; record the run with"
            " torch.profiler (export_chrome_trace) or with `sp-profile run -- CMD`."
        )
    if exported:
        raise InputError(
            f"{folder} holds no traces but those that `sp-profile export` wrote, which are passed over in a"
            " folder: name the folder of the originals, or the files themselves."
        )
    raise InputError(f"{folder} holds no trace files (.json or .json.gz with traceEvents).")


def _one_run_of_rank_folders(folder: str, runs: list[RunFiles]) -> list[RunFiles]:
    """`run/rank0/trace.json`, `run/rank1/trace.json`: one run, one folder per rank."""
    ranks = [rank_from_name(run.root) for run in runs]
    is_one = (
        len(runs) > 1
        and None not in ranks
        and len(set(ranks)) == len(ranks)
        and len({os.path.dirname(run.root) for run in runs}) == 1
        and all(run.run_json is None and len(run.files) == 1 for run in runs)
    )
    if not is_one:
        return runs
    files = tuple(file for run in runs for file in run.files)
    entries = tuple(entry for run in runs for entry in run.ledger)
    root = os.path.dirname(runs[0].root)
    run_json, faults = _run_json(root)
    return [RunFiles(os.path.basename(os.path.abspath(root)), root, files, run_json, (*entries, *faults))]


def _unreadable(error: OSError) -> None:
    raise InputError(f"{error.filename} cannot be read: {error.strerror}.")


def _nsight_in(folder: str) -> str | None:
    names = sorted(os.listdir(folder)) if os.access(folder, os.R_OK) else []
    return next((name for name in names if name.lower().endswith(_NSIGHT)), None)


def _run_in(folder: str) -> RunFiles | None:
    """The run whose files lie directly in this folder; None without trace files."""
    try:
        with os.scandir(folder) as entries:
            paths = sorted(entry.path for entry in entries if entry.is_file())
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror}.") from None
    files: list[str] = []
    ledger: list[LedgerEntry] = []
    for path in paths:
        verdict = _is_trace(path)
        if verdict:
            files.append(path)
        elif verdict is False:
            ledger.append(_ignored(path))
    if not files:
        return None
    run_json, faults = _run_json(folder)
    name = os.path.basename(os.path.abspath(folder))
    return RunFiles(name, folder, tuple(_distinct(files)), run_json, (*ledger, *faults))


def _is_trace(path: str) -> bool | None:
    """Whether a file found in a folder is a trace: True, False (it looked like one), None (no question).

    Decided by name where the name is plain, so that an empty or damaged trace is reported when it is
    read instead of being passed over here.
    """
    name = os.path.basename(path)
    if (
        name in _OWN_FILES
        or name.startswith(".")
        or name.endswith(("~", ".tmp"))
        or _EXPORT_NAME.search(name)
    ):
        return None
    is_json = _JSON_NAME.search(name) is not None
    if _TRACE_NAME.search(name):
        return True
    if not is_json and os.path.splitext(name)[1] not in ("", ".gz", ".trace"):
        return None
    head = _head(path)
    if b'"sp-profile/' in head[:256]:
        return None
    if b'"traceEvents"' in head or _BARE_LIST.match(head.removeprefix(b"\xef\xbb\xbf")):
        return True
    if is_json and (rank_from_name(path) is not None or worker_from_name(path) is not None):
        return True
    return False if is_json else None


def _head(path: str) -> bytes:
    """The first text of a file, unpacked as far as it goes; empty when it cannot be read."""
    try:
        with open(path, "rb") as file:
            head = file.read(_SNIFFED_BYTES)
    except OSError:
        return b""
    if head[:2] != b"\x1f\x8b":
        return head
    inflater = zlib.decompressobj(_GZIP_OR_ZLIB_HEADER)
    text = b""
    try:
        for start in range(0, len(head), 1 << 14):
            text += inflater.decompress(head[start : start + (1 << 14)], _SNIFFED_BYTES)
            if len(text) >= _SNIFFED_BYTES:
                break
    except zlib.error:
        return text  # damaged: what came before is enough to tell
    return text


def _run_json(folder: str) -> tuple[dict[str, Any] | None, tuple[LedgerEntry, ...]]:
    """The content of run.json, or None and why."""
    path = os.path.join(folder, RUN_JSON)
    if not os.path.isfile(path):
        return None, ()
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError, RecursionError):
        content = None
    if isinstance(content, dict):
        return content, ()
    return None, (
        LedgerEntry(
            "bad-run-json", "loss", "run.json cannot be read; the run is described by its traces", path
        ),
    )
