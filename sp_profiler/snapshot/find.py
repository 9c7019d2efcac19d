"""From what the user named to what is shown together: snapshots, traces, or both of one run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sp_profiler.errors import InputError
from sp_profiler.snapshot.read import ENDINGS, is_snapshot
from sp_profiler.trace import places
from sp_profiler.trace.find import distinct_names, find_runs
from sp_profiler.trace.remote import Remote, as_remote
from sp_profiler.trace.tables import RunFiles


@dataclass(frozen=True)
class Source:
    """What belongs to one run. `traces` is None where there are only snapshots."""

    name: str
    traces: RunFiles | None
    snapshots: tuple[str, ...]

    @property
    def files(self) -> tuple[str, ...]:
        return (*(self.traces.files if self.traces is not None else ()), *self.snapshots)


def find_sources(paths: Sequence[str]) -> list[Source]:
    """The runs that `paths` (files, folders, globs, URLs) name, in the order given; names are distinct.

    Files named directly are one run. In a folder, snapshots belong to the run whose traces lie beside them
    or above; those that belong to none are one run together, as are its ranks.

    Raises InputError, naming the path, for what does not exist or holds neither traces nor snapshots.
    """
    sources: list[Source] = []
    named: list[str] = []  # snapshots and traces named directly
    traces: list[str] = []
    for path in map(as_remote, paths):
        is_pattern = places.has_magic(path) and (isinstance(path, Remote) or not os.path.exists(path))
        kind = None if is_pattern else places.kind_of(path)
        if kind == "folder":
            sources += _in_folder(path)
        elif kind == "file" and is_snapshot(path):
            named.append(path)
        elif is_pattern:
            matches = places.matches(path)
            found = [match for match, kind in matches.items() if kind == "file" and is_snapshot(match)]
            named += found
            if len(found) < len(matches) or not matches:
                traces.append(path)
        else:
            traces.append(path)
    runs = find_runs(traces) if traces else []
    return _distinct([*_with_snapshots(runs, _once(named)), *sources])


def _once(paths: Sequence[str]) -> tuple[str, ...]:
    """Each file once, in order, however often it was named."""
    return tuple({places.identity(path): path for path in reversed(paths)}.values())[::-1]


def _with_snapshots(runs: list[RunFiles], snapshots: tuple[str, ...]) -> list[Source]:
    """Snapshots named beside the traces of one run are of that run."""
    if len(runs) == 1 and snapshots:
        return [Source(runs[0].name, runs[0], snapshots)]
    alone = [Source(_name_of(snapshots), None, snapshots)] if snapshots else []
    return [*alone, *(Source(run.name, run, ()) for run in runs)]


def _name_of(files: Sequence[str]) -> str:
    if len(files) == 1:
        return os.path.basename(files[0])
    return (
        os.path.basename(
            os.path.commonpath([os.path.abspath(os.path.dirname(file) or ".") for file in files])
        )
        or "snapshots"
    )


def _in_folder(folder: str) -> list[Source]:
    snapshots: list[str] = []
    for current, folders, names in places.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        snapshots += [
            places.join(current, name)
            for name in sorted(names)
            if name.lower().endswith(ENDINGS) and not name.startswith(".")
        ]
    try:
        runs = find_runs([folder])
    except InputError as error:
        if not snapshots:
            raise InputError(f"{error} It holds no memory snapshots ({', '.join(ENDINGS)}) either.") from None
        runs = []
    sources: list[Source] = []
    left = list(snapshots)
    for run in sorted(runs, key=lambda run: -len(os.path.abspath(run.root))):
        own = [file for file in left if _is_below(file, run.root)]
        left = [file for file in left if file not in own]
        sources.append(Source(run.name, run, tuple(own)))
    order = {run.root: place for place, run in enumerate(runs)}
    sources.sort(key=lambda one: order[one.traces.root] if one.traces is not None else 0)
    if left:
        sources.append(Source(os.path.basename(os.path.abspath(folder)), None, tuple(left)))
    return sources


def _is_below(file: str, folder: str) -> bool:
    return os.path.abspath(file).startswith(os.path.join(os.path.abspath(folder), ""))


def _distinct(sources: list[Source]) -> list[Source]:
    """The sources, each with a name of its own."""
    names = distinct_names(one.name for one in sources)
    return [replace(one, name=name) for one, name in zip(sources, names, strict=True)]
