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
from sp_profiler.cli.output import SCREEN
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
        help="trace file, folder, glob or URL; every rank becomes a file of its own",
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
    from sp_profiler.export.places import places_of
    from sp_profiler.report.format import visible
    from sp_profiler.trace.find import find_runs

    if args.out is None or args.out in SCREEN:
        raise UsageError(f"--format {args.format} needs -o OUT to be written to")
    rule = window_rule(args.window, args.steps)
    how = reading(args)
    runs = distinct(find_runs(args.paths))
    code = EXIT_OK
    for files, places in zip(runs, places_of(runs, args.out, force=args.force), strict=True):
        try:
            for written in _export(files, places, rule, args.strict, how):
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
