"""`sp-profile compare A B`: what changed between two runs, by how much beyond noise, and why."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sp_profiler.cli.options import add_many
from sp_profiler.cli.output import formats_of, places_of, settle_output
from sp_profiler.cli.reports import WHAT_IT_TAKES, add_report_options, report_from
from sp_profiler.errors import EXIT_OK, UsageError

if TYPE_CHECKING:
    from sp_profiler.comparing.model import Comparison
    from sp_profiler.report.model import Report

FORMATS = ("json", "html", "markdown")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `compare`."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="RUN",
        help=f"the base, then the run that is compared with it: each {WHAT_IT_TAKES}",
    )
    add_report_options(parser)
    output = parser.add_argument_group("output")
    add_many(
        output,
        "--format",
        choices=FORMATS,
        dest="formats",
        default=[],
        help="files to write; several at once with -o DIR",
    )
    output.add_argument("-o", "--out", metavar="OUT", help="file (one format), or folder")
    output.add_argument("--force", action="store_true", help="overwrite what exists")
    output.add_argument("--json", action="store_true", help="print the comparison as JSON")


def run(args: argparse.Namespace) -> int:
    """Compare the second run with the first."""
    from sp_profiler.comparing.compare import compare
    from sp_profiler.comparing.save import file_names

    settle_output(args)
    if len(args.paths) != 2:
        raise UsageError(
            f"compare takes two runs, not {len(args.paths)}: name the base, then the run to compare with it"
        )
    inputs = [path for path in args.paths if os.path.isfile(path)]
    (place,) = places_of(args, ["comparison"], file_names, inputs)
    reports = [report_from(path, args) for path in args.paths]
    found = compare(*reports)
    if place is not None:
        _save(found, reports, args, place)
    _show(found, reports, args)
    return EXIT_OK


def _save(found: Comparison, reports: list[Report], args: argparse.Namespace, place: Path) -> None:
    from sp_profiler.comparing.save import SINGLE_FILE, render
    from sp_profiler.report.save import is_one_file, write

    formats = formats_of(args)
    single = is_one_file(args.out, formats, 1)
    for one in formats:
        write(place if single else place / SINGLE_FILE[one], render(found, reports, one))


def _show(found: Comparison, reports: list[Report], args: argparse.Namespace) -> None:
    """The sentences and tables, or the text format that was asked for without a file."""
    from sp_profiler.comparing.save import SINGLE_FILE, render
    from sp_profiler.comparing.terminal import print_comparison

    formats = formats_of(args)
    if args.out is None and formats:
        sys.stdout.write(render(found, reports, formats[0]))
        return
    print_comparison(found)
    if args.out is not None:
        out = Path(args.out)
        names = [SINGLE_FILE[one] for one in ("html", *formats)]
        first = next((out / name for name in names if (out / name).is_file()), out)
        print(f"written: {first if out.is_dir() else out}")
