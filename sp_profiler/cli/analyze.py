"""`sp-profile analyze`: traces in, reports out."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sp_profiler.cli.baseline import load_baseline
from sp_profiler.cli.options import add_reading, add_window, reading, window_rule
from sp_profiler.cli.output import (
    add_output,
    formats_of,
    prints_text,
    refuse_file_for_folder,
    refuse_folders_of,
    settle_output,
)
from sp_profiler.errors import EXIT_OK, InputError, SpProfilerError, UsageError
from sp_profiler.ledger import LedgerEntry, refused_by_strict

if TYPE_CHECKING:
    from sp_profiler.analysis.contention import Baseline
    from sp_profiler.analysis.steps import WindowRule
    from sp_profiler.report.model import Report
    from sp_profiler.trace.tables import RunFiles


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `analyze`."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="trace file, folder or glob; a folder of folders that hold run.json: each is its own run",
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
    parser.add_argument("--strict", action="store_true", help="refuse (exit 3) files with losses or repairs")
    add_reading(parser)
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
    lent = None if args.baseline is None else load_baseline(args.baseline)
    runs = distinct(find_runs(args.paths))
    places = _places(args, runs)
    reports: list[Report] = []
    code = EXIT_OK
    for files, place in zip(runs, places, strict=True):
        try:
            report = _analyze_one(files, how, rule, args.strict, lent)
            if not (len(runs) == 1 and _shows_ledger(args)):
                _warn(report)
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
    """The runs, each with a name of its own: where two share one, the later get a number."""
    from sp_profiler.report.comparison import DATA, PAGE

    taken = {PAGE, DATA}  # lie beside the folders of the runs
    named: list[RunFiles] = []
    for one in runs:
        names = (one.name if count == 1 else f"{one.name}-{count}" for count in itertools.count(1))
        name = next(name for name in names if name not in taken)
        taken.add(name)
        named.append(replace(one, name=name))
    return named


def _places(args: argparse.Namespace, runs: list[RunFiles]) -> list[Path | None]:
    """Where each run's files go, refusing before the work what would be refused after it."""
    from sp_profiler.report.comparison import DATA, PAGE
    from sp_profiler.report.format import counted
    from sp_profiler.report.save import file_names, is_one_file, refuse_existing

    if args.out is None:
        return [None] * len(runs)
    formats = formats_of(args)
    out = Path(args.out)
    if is_one_file(args.out, formats, len(runs)):
        places, files = [out], [out]
    else:
        what = f"{counted(len(runs), 'run')} as {', '.join(formats)}"
        refuse_file_for_folder(out, args.out, f"{what} {'need' if len(runs) > 1 else 'needs'}")
        places = [out] if len(runs) == 1 else [out / run.name for run in runs]
        files = [place / name for place in places for name in file_names(formats)]
        if len(runs) > 1:
            files += [out / PAGE, out / DATA]
    refuse_existing(files, args.force)
    _refuse_traces(files, runs)
    refuse_folders_of(files)
    return list(places)


def _refuse_traces(files: Iterable[Path], runs: Iterable[RunFiles]) -> None:
    """UsageError when a report would take the place of a trace: `--force` cannot mean that."""
    traces = {os.path.realpath(trace) for run in runs for trace in run.files}
    for file in files:
        if os.path.realpath(file) in traces:
            raise UsageError(f"{file} is a trace to be analysed: choose another name for the report")


def _with_critical_path(report: Report) -> Report:
    from sp_profiler.interop.hta import with_critical_path

    return with_critical_path(report)


def _analyze_one(
    files: RunFiles, how: dict[str, Any], rule: WindowRule, strict: bool, lent: Baseline | None
) -> Report:
    from sp_profiler.cli.progress import Files
    from sp_profiler.engine import analyze_files

    with Files(files) as progress:
        report = analyze_files(
            files,
            rule,
            baseline=lent,
            on_file=progress.read,
            on_rank=progress.analysed,
            on_loaded=(lambda ledger: _refuse(files, ledger)) if strict else None,
            **how,
        )
    if strict:
        _refuse(files, report.data_quality)
    return report


def _warn(report: Report) -> None:
    """Losses and repairs, on stderr."""
    for entry in refused_by_strict(report.data_quality):
        print(f"sp-profile analyze: {sentence(entry)}", file=sys.stderr)


def _shows_ledger(args: argparse.Namespace) -> bool:
    """Whether a run's ledger is printed where stderr goes too, so that a warning would say it twice."""
    return not prints_text(args) and sys.stdout.isatty() and sys.stderr.isatty()


def _refuse(files: RunFiles, entries: Iterable[LedgerEntry]) -> None:
    """Raise InputError when `--strict` refuses."""
    refused = refused_by_strict(entries)
    if refused:
        raise InputError(f"--strict refuses {files.name}: " + "; ".join(sentence(entry) for entry in refused))


def sentence(entry: LedgerEntry) -> str:
    """A ledger entry in one line: where, what, how often."""
    from sp_profiler.report.format import visible

    where = f"{entry.file}: " if entry.file else ""
    at = f", first at byte {entry.first_offset}" if entry.first_offset is not None else ""
    times = f" ({entry.count} times{at})" if entry.count > 1 else f" ({at[2:]})" if at else ""
    return visible(f"{where}{entry.text}{times}")


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
    from rich.console import Console

    from sp_profiler.report import comparison, save, terminal

    formats = formats_of(args)
    several = runs > 1
    if args.out is None and formats:
        text = comparison.render(reports, formats[0]) if several else save.as_text(reports[0], formats[0])
        sys.stdout.write(text)
        return
    console = Console()
    if several:
        terminal.print_comparison(reports, console)
    else:
        terminal.print_report(reports[0], console)
    if args.out is not None:
        print(f"written: {_first_file(Path(args.out), formats, runs)}")


def _first_file(out: Path, formats: list[str], runs: int) -> Path:
    """What to open first of what was written: the page, where there is one."""
    from sp_profiler.report.comparison import PAGE
    from sp_profiler.report.save import SINGLE_FILE

    if not out.is_dir():
        return out
    names = [PAGE] if runs > 1 else [SINGLE_FILE[one] for one in ("html", *formats) if one in SINGLE_FILE]
    return next((out / name for name in names if (out / name).is_file()), out)
