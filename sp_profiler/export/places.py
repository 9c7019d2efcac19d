"""Where the exports of traces go, refused before the work where they cannot be meant."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from sp_profiler.errors import UsageError
from sp_profiler.export.copy import is_gzip
from sp_profiler.files import refuse_file_for_folder, refuse_folders_of, refuse_inputs
from sp_profiler.report.format import counted
from sp_profiler.report.save import refuse_existing
from sp_profiler.trace.find import distinct_names
from sp_profiler.trace.tables import RunFiles


def places_of(runs: Sequence[RunFiles], out: str, *, force: bool) -> list[dict[str, Path]]:
    """For each run the file of each of its traces: `out` itself for a single trace, else files in it.

    Several runs, whose names differ, get a folder each. Raises UsageError for a place that cannot be meant,
    that holds what is read, that is taken (unless `force`), or that takes no files.
    """
    if out == "":
        raise UsageError("-o is empty: name a file or a folder")
    place = Path(out)
    traces = [trace for one in runs for trace in one.files]
    if len(traces) == 1 and not out.endswith("/") and not place.is_dir():
        places = [{traces[0]: place}]
    else:
        need = "needs" if len(traces) == 1 else "need"
        refuse_file_for_folder(place, out, f"{counted(len(traces), 'trace')} {need}")
        folders = [place / one.name if len(runs) > 1 else place for one in runs]
        places = [
            {trace: folder / name for trace, name in _file_names(one).items()}
            for one, folder in zip(runs, folders, strict=True)
        ]
    files = [file for one in places for file in one.values()]
    refuse_existing(files, force)
    refuse_inputs(files, traces)
    refuse_folders_of(files)
    return places


def _file_names(files: RunFiles) -> dict[str, str]:
    """For each trace the name of its export: `rank0.pt.trace.json.gz` -> `rank0.perfetto.json.gz`.

    Where two have one name (`rank0/trace.json`, `rank1/trace.json`), all have their folders in it.
    """
    stems = [_stem(os.path.basename(path)) for path in files.files]
    if len(set(stems)) < len(stems):
        stems = [_stem(os.path.relpath(path, files.root)).replace(os.sep, "-") for path in files.files]
    endings = [".gz" if is_gzip(path) else "" for path in files.files]
    names = [f"{stem}.perfetto.json{ending}" for stem, ending in zip(stems, endings, strict=True)]
    return dict(zip(files.files, distinct_names(names), strict=True))


def _stem(name: str) -> str:
    for ending in (".gz", ".json", ".trace", ".pt"):
        name = name.removesuffix(ending)
    return name
