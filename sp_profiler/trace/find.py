"""From what the user named (files, folders, globs) to runs: which trace files belong together."""

from __future__ import annotations

import itertools
import json
import os
import re
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from sp_profiler.errors import InputError
from sp_profiler.ledger import LedgerEntry
from sp_profiler.trace import places
from sp_profiler.trace.metadata import rank_from_name, worker_from_name
from sp_profiler.trace.remote import Remote, RemoteDenied, as_remote
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
    """The runs that `paths` name, in the order given: files, folders, globs, or URLs of any of these.

    A folder with trace files is one run. A folder without any is searched: every folder below that
    holds trace files is its own run, so ranks of different runs never count as duplicates. Files named
    directly, and files a glob matches, are one run together.

    Raises InputError, in one sentence that names the path, for a missing path or a folder without traces.
    """
    runs: list[RunFiles] = []
    files: list[str] = []
    ignored: list[LedgerEntry] = []
    for path, kind in _expanded([as_remote(path) for path in paths], ignored).items():
        if kind == "folder":
            runs.extend(_runs_below(path))
        else:
            files.append(path)
    once: dict[frozenset[str], RunFiles] = {}  # a folder named twice, or also by one above it, is one run
    for run in (*_runs_of_files(_distinct(files), ignored), *runs):
        once.setdefault(frozenset(map(places.identity, run.files)), run)
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
    folders = dict.fromkeys(map(places.parent, files))
    if len(folders) > 1 and all(_has_run_json(folder) for folder in folders):
        groups = [[file for file in files if places.parent(file) == folder] for folder in folders]
    else:
        groups = [files] if files else []
    runs: list[RunFiles] = []
    for group in groups:
        root = places.parent(group[0])
        if any(places.parent(file) != root for file in group):
            root, run_json, faults = _common_folder(group), None, ()
        else:
            run_json, faults = _run_json(root)
        name = os.path.basename(group[0]) if len(group) == 1 else places.name_of(root)
        runs.append(RunFiles(name, root, tuple(sorted(group)), run_json, (*ignored, *faults)))
    return runs


def _common_folder(files: Sequence[str]) -> str:
    """The folder above them all."""
    if not any(isinstance(file, Remote) for file in files):
        return os.path.commonpath([os.path.abspath(file) for file in files])
    columns = zip(*(file.split("/")[:-1] for file in files), strict=False)
    return "/".join(parts[0] for parts in itertools.takewhile(lambda parts: len(set(parts)) == 1, columns))


def _has_run_json(folder: str) -> bool:
    path = places.join(folder, RUN_JSON)
    if not isinstance(path, Remote):
        return os.path.isfile(path)
    try:
        return _content(path) is not None
    except OSError:
        return False


def _expanded(paths: Sequence[str], ignored: list[LedgerEntry]) -> dict[str, places.Kind]:
    """Existing files and folders: globs resolved, the rest checked. Globs pass over what is no trace."""
    found: dict[str, places.Kind] = {}
    if not paths:
        raise InputError("no trace file or folder was named.")
    for path in paths:
        kind = None if isinstance(path, Remote) and places.has_magic(path) else places.kind_of(path)
        if kind is not None:
            _refuse_snapshot(path, kind)
            _refuse_same_name(path, found)
            found[path] = kind
        elif places.has_magic(path):
            matches = places.matches(path)
            if not matches:
                raise InputError(f"no file matches {path}.")
            # A pattern such as run*/** meets run.json and reports too; named files are never filtered.
            verdicts = {match: kind == "folder" or _is_trace(match) for match, kind in matches.items()}
            ignored.extend(_ignored(match) for match, verdict in verdicts.items() if verdict is False)
            kept = [match for match, verdict in verdicts.items() if verdict]
            inside = {os.path.dirname(match) for match in kept if matches[match] != "folder"}
            for match in kept:
                if matches[match] != "folder":
                    found[match] = "file"
                elif not _covers(match, inside):
                    found[match] = "folder"
            if not kept:
                raise InputError(f"no file that matches {path} is a trace.")
        elif places.exists(path):
            raise InputError(f"{path} is a pipe or a device: save the trace to a file and name that.")
        else:
            raise InputError(f"{path or repr(path)} does not exist.")
    return found


def _refuse_same_name(path: str, found: Iterable[str]) -> None:
    """InputError for URLs that are one when what may be secret in them is left out."""
    same = next((one for one in found if one == path), path)
    if places.identity(same) != places.identity(path):
        raise InputError(
            f"{path} is named twice with different queries (what follows the ?), which are not kept: download"
            " the files and name those."
        )


def _refuse_snapshot(path: str, kind: places.Kind) -> None:
    """InputError for a memory snapshot: it is of this tool, but no trace."""
    from sp_profiler.snapshot.read import is_snapshot

    if kind == "file" and is_snapshot(path):
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
    return list({places.identity(file): file for file in reversed(files)}.values())[::-1]


def _runs_below(folder: str) -> list[RunFiles]:
    """The folder as one run when it holds traces, else every folder below that does."""
    run = _run_in(folder)
    if run is not None:
        return [run]
    runs: list[RunFiles] = []
    nsight: str | None = None
    exported = False
    for current, folders, names in places.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        exported = exported or any(_EXPORT_NAME.search(name) for name in names)
        nsight = nsight or _nsight_in(names)
        if current == folder:
            continue
        run = _run_in(current)
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
    root = places.parent(runs[0].root)
    run_json, faults = _run_json(root)
    return [RunFiles(places.name_of(root), root, files, run_json, (*entries, *faults))]


def _nsight_in(names: Sequence[str]) -> str | None:
    return next((name for name in sorted(names) if name.lower().endswith(_NSIGHT)), None)


def _run_in(folder: str) -> RunFiles | None:
    """The run whose files lie directly in this folder; None without trace files."""
    files: list[str] = []
    ledger: list[LedgerEntry] = []
    for path in places.files_in(folder):
        verdict = _is_trace(path)
        if verdict:
            files.append(path)
        elif verdict is False:
            ledger.append(_ignored(path))
    if not files:
        return None
    run_json, faults = _run_json(folder)
    return RunFiles(places.name_of(folder), folder, tuple(_distinct(files)), run_json, (*ledger, *faults))


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
        with places.open_binary(path) as file:
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


def _content(path: str) -> bytes | None:
    """What a file holds; None where there is none. A store may answer who cannot list it with a refusal."""
    if not isinstance(path, Remote) and not os.path.isfile(path):
        return None
    try:
        with places.open_binary(path) as file:
            return file.read()
    except (FileNotFoundError, RemoteDenied):
        return None


def _run_json(folder: str) -> tuple[dict[str, Any] | None, tuple[LedgerEntry, ...]]:
    """The content of run.json, or None and why."""
    path = places.join(folder, RUN_JSON)
    try:
        text = _content(path)
        if text is None:
            return None, ()
        content = json.loads(text.decode("utf-8"))
    except (OSError, ValueError, RecursionError):
        content = None
    if isinstance(content, dict):
        return content, ()
    return None, (
        LedgerEntry(
            "bad-run-json", "loss", "run.json cannot be read; the run is described by its traces", path
        ),
    )
