"""`sp-profile export`: traces with tracks of what was found in them, for other viewers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sp_profiler.cli import ledger
from sp_profiler.cli.options import add_reading, add_window, reading, window_rule
from sp_profiler.errors import EXIT_OK, SpProfilerError, UsageError

if TYPE_CHECKING:
    from sp_profiler.analysis.steps import WindowRule
    from sp_profiler.trace.tables import RunFiles

FORMATS = ("perfetto",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `export`."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="trace file, folder or glob; every rank becomes a file of its own",
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="perfetto",
        help="perfetto (default): the trace with tracks of what is exposed, what is overlapped by role, each"
        " collective, and memory, to be opened in ui.perfetto.dev",
    )
    add_window(parser)
    ledger.add_strict(parser)
    add_reading(parser)
    output = parser.add_argument_group("output")
    output.add_argument(
        "-o", "--out", metavar="OUT", help="file (one trace; packed where it ends in .gz), or folder"
    )
    output.add_argument("--force", action="store_true", help="overwrite what exists")


def run(args: argparse.Namespace) -> int:
    """Export every trace that the paths hold; returns the worst exit code."""
    from sp_profiler.cli.analyze import distinct
    from sp_profiler.report.format import visible
    from sp_profiler.trace.find import find_runs

    rule = window_rule(args.window, args.steps)
    how = reading(args)
    runs = distinct(find_runs(args.paths))
    places = _places(args, runs)
    code = EXIT_OK
    for files in runs:
        try:
            for written in _export(files, places[files.name], rule, args.strict, how):
                print(f"written: {written}")
        except SpProfilerError as error:
            if len(runs) == 1:
                raise
            print(f"sp-profile export: {visible(f'{files.name}: {error}')}", file=sys.stderr)
            code = max(code, error.exit_code)
    return code


def _export(
    files: RunFiles, places: dict[str, Path], rule: WindowRule, strict: bool, how: dict[str, Any]
) -> Sequence[Path]:
    from sp_profiler.cli.progress import Files
    from sp_profiler.export.perfetto import export_run

    refuse = partial(ledger.refuse, files.name) if strict else None
    with Files(files) as bar:
        done = export_run(
            files, places, rule, on_file=bar.read, on_rank=bar.analysed, on_loaded=refuse, **how
        )
    ledger.warn("export", done.ledger)
    return list(done.files.values())


def _places(args: argparse.Namespace, runs: Sequence[RunFiles]) -> dict[str, dict[str, Path]]:
    """The file of each trace by run and trace, refusing before the work what would be refused after it."""
    from sp_profiler.cli.output import (
        SCREEN,
        refuse_file_for_folder,
        refuse_folders_of,
        refuse_inputs,
    )
    from sp_profiler.export.perfetto import file_names
    from sp_profiler.report.format import counted
    from sp_profiler.report.save import refuse_existing

    if args.out is None or args.out in SCREEN:
        raise UsageError(f"--format {args.format} needs -o OUT to be written to")
    if args.out == "":
        raise UsageError("-o is empty: name a file or a folder")
    out = Path(args.out)
    traces = [trace for one in runs for trace in one.files]
    if len(traces) == 1 and not args.out.endswith("/") and not out.is_dir():
        places = {runs[0].name: {traces[0]: out}}
    else:
        refuse_file_for_folder(
            out, args.out.removesuffix(".gz"), f"{counted(len(traces), 'trace')} {_need(traces)}"
        )
        folders = {one.name: out / one.name if len(runs) > 1 else out for one in runs}
        places = {
            one.name: {path: folders[one.name] / name for path, name in file_names(one).items()}
            for one in runs
        }
    written = [place for one in places.values() for place in one.values()]
    refuse_existing(written, args.force)
    refuse_inputs(written, traces)
    refuse_folders_of(written)
    return places


def _need(traces: Sequence[str]) -> str:
    return "need" if len(traces) > 1 else "needs"
