"""`sp-profile analyze`: traces in, reports out."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sp_profiler.cli import ledger
from sp_profiler.cli.baseline import load_baseline
from sp_profiler.cli.fleet import add_fleet, fleet_options
from sp_profiler.cli.fleet import analyzed as fleet_analyzed
from sp_profiler.cli.options import add_reading, add_window, reading, window_rule
from sp_profiler.cli.output import add_output, formats_of, places_of, settle_output
from sp_profiler.cli.progress import analyzed
from sp_profiler.errors import EXIT_OK, SpProfilerError, UsageError

if TYPE_CHECKING:
    from sp_profiler.analysis.contention import Baseline
    from sp_profiler.analysis.steps import WindowRule
    from sp_profiler.fleet.run import Options
    from sp_profiler.report.model import Report
    from sp_profiler.trace.tables import RunFiles


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `analyze`."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="trace file, folder, glob, or URL of one (s3://, https://); a folder of folders that hold"
        " run.json: each is its own run",
    )
    add_window(parser)
    parser.add_argument(
        "--baseline",
        metavar="RUN",
        help="a run, or its report.json, that lends GEMM durations where this one has too few to tell what "
        "overlap costs (a synchronous run lends those without communication beside them)",
    )
    parser.add_argument(
        "--critical-path",
        action="store_true",
        help="also the critical path of one step, found by HTA (extra 'hta')",
    )
    ledger.add_strict(parser)
    add_reading(parser)
    add_fleet(parser)
    add_output(parser, "report")


def run(args: argparse.Namespace) -> int:
    """Analyse every run that the paths hold; returns the worst exit code."""
    from sp_profiler.cli import memory
    from sp_profiler.report.format import visible
    from sp_profiler.trace.find import find_runs

    settle_output(args)
    if memory.takes(args.paths):
        return memory.show_snapshots(args)
    rule = window_rule(args.window, args.steps)
    how = reading(args)
    fleet = fleet_options(args)
    lent = None if args.baseline is None else load_baseline(args.baseline)
    runs = distinct(find_runs(args.paths))
    if fleet is not None and fleet.work is not None and len(runs) > 1:
        raise UsageError(
            f"--work is the folder of one run, and {len(runs)} are named: analyze them one by one"
        )
    places = _places(args, runs)
    reports: list[Report] = []
    code = EXIT_OK
    for files, place in zip(runs, places, strict=True):
        try:
            report = _analyze_one(files, how, rule, args.strict, lent, fleet)
            if not (len(runs) == 1 and ledger.is_shown(args)):
                ledger.warn("analyze", report.data_quality)
            if args.critical_path:
                report = _with_critical_path(report)
            reports.append(report)
            _save(report, args, place, len(runs))
        except SpProfilerError as error:
            if len(runs) == 1:
                raise
            print(f"sp-profile analyze: {visible(f'{files.name}: {error}')}", file=sys.stderr)
            code = max(code, error.exit_code)
    if reports:
        if len(runs) > 1 and args.out is not None:
            _save_comparison(reports, args)
        _show(reports, args, len(runs))
    return code


def distinct(runs: list[RunFiles]) -> list[RunFiles]:
    """The runs, each with a name of its own, and none that of a file beside their folders."""
    from sp_profiler.report.save import COMPARISON_FILES
    from sp_profiler.trace.find import distinct_names

    names = distinct_names((one.name for one in runs), taken=COMPARISON_FILES)
    return [replace(one, name=name) for one, name in zip(runs, names, strict=True)]


def _places(args: argparse.Namespace, runs: list[RunFiles]) -> list[Path | None]:
    from sp_profiler.report.save import COMPARISON_FILES, file_names

    traces = (trace for run in runs for trace in run.files)
    return places_of(args, [run.name for run in runs], file_names, traces, COMPARISON_FILES)


def _with_critical_path(report: Report) -> Report:
    from sp_profiler.interop.hta import with_critical_path

    return with_critical_path(report)


def _analyze_one(
    files: RunFiles,
    how: dict[str, Any],
    rule: WindowRule,
    strict: bool,
    lent: Baseline | None,
    fleet: Options | None,
) -> Report:
    refuse = partial(ledger.refuse, files.name) if strict else None
    if fleet is None:
        report = analyzed(files, rule, baseline=lent, on_loaded=refuse, **how)
    else:
        report = fleet_analyzed(files, rule, fleet, baseline=lent, on_loaded=refuse, **how)
    if refuse is not None:
        refuse(report.data_quality)
    return report


def _save(report: Report, args: argparse.Namespace, place: Path | None, runs: int) -> None:
    from sp_profiler.report.save import is_one_file, save, save_as

    formats = formats_of(args)
    if place is None:
        return
    if is_one_file(args.out, formats, runs):
        save_as(report, formats[0], place, force=args.force)
    else:
        save(report, formats, place, force=args.force)


def _save_comparison(reports: list[Report], args: argparse.Namespace) -> None:
    """The side-by-side page and table beside the folders of the runs."""
    from sp_profiler.report import comparison

    links = None if "html" in formats_of(args) else [None] * len(reports)
    comparison.save(reports, Path(args.out), comparison.TITLE, links)


def _show(reports: list[Report], args: argparse.Namespace, runs: int) -> None:
    """Print the result: the summary, or the text format that was asked for without a file."""
    formats = formats_of(args)
    several = runs > 1
    if args.out is None and formats:
        sys.stdout.write(_text(reports, formats[0], several))
        return
    from rich.console import Console

    from sp_profiler.report import terminal

    console = Console()
    if several:
        terminal.print_comparison(reports, console)
    else:
        terminal.print_report(reports[0], console)
    if args.out is not None:
        print(f"written: {_first_file(Path(args.out), formats, runs)}")


def _text(reports: list[Report], output: str, several: bool) -> str:
    if several:
        from sp_profiler.report import comparison

        return comparison.render(reports, output)
    from sp_profiler.report import save

    return save.as_text(reports[0], output)


def _first_file(out: Path, formats: list[str], runs: int) -> Path:
    """What to open first of what was written: the page, where there is one."""
    from sp_profiler.report.save import COMPARISON_FILES, SINGLE_FILE

    if not out.is_dir():
        return out
    names = (
        [COMPARISON_FILES[0]]
        if runs > 1
        else [SINGLE_FILE[one] for one in ("html", *formats) if one in SINGLE_FILE]
    )
    return next((out / name for name in names if (out / name).is_file()), out)
