"""`sp-profile check`: runs against their budgets; exit code 1 with what broke."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from sp_profiler.cli.check_options import add_baseline, add_budgets, options
from sp_profiler.cli.output import SCREEN
from sp_profiler.cli.reports import (
    REPORT,
    WHAT_IT_TAKES,
    add_report_options,
    report_file,
    report_from,
    report_of,
)
from sp_profiler.errors import EXIT_BUDGET, EXIT_OK, InputError, SpProfilerError, UsageError

if TYPE_CHECKING:
    from sp_profiler.checking.budgets import Budgets
    from sp_profiler.checking.result import Check, RunCheck
    from sp_profiler.checking.settings import Settings
    from sp_profiler.report.model import Report

SUMMARY = "GITHUB_STEP_SUMMARY"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `check`."""
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help=f"{WHAT_IT_TAKES}; of several runs each is checked"
    )
    add_budgets(parser.add_argument_group("budgets, together with those of the configuration"))
    add_baseline(parser.add_argument_group("no worse than another run"))
    config = parser.add_argument_group("configuration")
    config.add_argument(
        "--config",
        metavar="FILE",
        help="TOML file with budgets; by default [tool.sp_profile.check] of the nearest pyproject.toml",
    )
    config.add_argument("--no-config", action="store_true", help="only the budgets of the options")
    _add_output(parser.add_argument_group("output"))
    add_report_options(parser)


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--junit", metavar="FILE", help="write JUnit XML")
    group.add_argument("--markdown", metavar="FILE", help="write Markdown")
    group.add_argument(
        "--github-summary",
        action="store_true",
        help=f"append the Markdown to ${SUMMARY}, the page of the job",
    )
    group.add_argument("--force", action="store_true", help="overwrite what exists")
    group.add_argument("--json", action="store_true", help="print the verdicts as JSON")


def run(args: argparse.Namespace) -> int:
    """Check every run in the paths: 1 where a budget is broken, the error's code for what is unusable."""
    from sp_profiler.checking.runs import check_of, check_run, unusable
    from sp_profiler.checking.settings import budgets_of, joined
    from sp_profiler.report.format import visible

    places = _places(args)
    file = _config(args)
    budgets = budgets_of(joined(file, options(args)))
    baseline = None if budgets.baseline is None else _baseline(budgets, args)
    wants_files = bool(places) or args.github_summary
    sources = _found(args, or_raise=not wants_files)
    runs: list[RunCheck] = []
    code = EXIT_OK
    for source in sources:
        began = time.perf_counter()
        try:
            report = source.read()
            runs.append(check_run(report, budgets, baseline, seconds=time.perf_counter() - began))
        except SpProfilerError as error:
            if len(sources) == 1 and not wants_files:
                raise
            told = str(error) if source.path in str(error) else f"{source.name}: {error}"
            print(f"sp-profile check: {visible(told)}", file=sys.stderr)
            runs.append(unusable(source.name, source.path, str(error)))
            code = max(code, error.exit_code)
    check = check_of(_distinct(runs), budgets)
    _write(check, args, places)
    _show(check, args)
    return code if code or check.holds else EXIT_BUDGET


def _distinct(runs: list[RunCheck]) -> list[RunCheck]:
    """The runs, each under a name of its own."""
    from sp_profiler.trace.find import distinct_names

    names = distinct_names(one.name for one in runs)
    return [replace(one, name=name) for one, name in zip(runs, names, strict=True)]


# --- what is checked -------------------------------------------------------------------------------------


def _config(args: argparse.Namespace) -> Settings | None:
    from sp_profiler.checking.api import settings_from

    if args.config is None:
        return settings_from(not args.no_config)
    if args.no_config:
        raise UsageError("--config and --no-config cannot be meant together")
    return settings_from(args.config)


def _baseline(budgets: Budgets, args: argparse.Namespace) -> Report:
    path = budgets.baseline or ""
    windows = {} if report_file(path) is None else {"window": "step", "steps": None}  # a report has its own
    try:
        return report_from(path, argparse.Namespace(**{**vars(args), **windows}))
    except SpProfilerError as error:
        raise type(error)(f"the baseline: {error}") from None


@dataclass(frozen=True)
class _Source:
    """A run to be read."""

    name: str
    path: str
    read: Callable[[], Report]


def _found(args: argparse.Namespace, *, or_raise: bool) -> list[_Source]:
    """The runs in the paths. Where none can be told: an error, or one that cannot be read, to be reported."""
    from sp_profiler.trace.remote import as_remote

    try:
        return list(_sources(args))
    except InputError as error:
        if or_raise:
            raise
        paths = [as_remote(path) for path in args.paths]  # of URLs without what lets somebody in
        return [replace(_broken(paths[0], error), name=" ".join(paths))]


def _broken(path: str, error: InputError) -> _Source:
    """What stands in place of a run that cannot be used."""
    from sp_profiler.trace.remote import as_remote

    def read() -> Report:
        raise error

    return _Source(as_remote(path), as_remote(path), read)


def _why_not(path: str) -> InputError | None:
    """Why a path by itself names no run; None where it does."""
    from sp_profiler.trace.find import find_runs

    try:
        find_runs([path])
    except InputError as error:
        return error
    return None


def _sources(args: argparse.Namespace) -> Iterator[_Source]:
    """The runs in the paths: reports by themselves, traces as `analyze` takes them together."""
    from sp_profiler.trace.find import find_runs

    traces: list[str] = []
    for path in args.paths:
        reports = list(_reports(path))
        if not reports:
            traces.append(path)
        for name in reports:
            yield _Source(name, name, lambda name=name: report_from(name, args))
    try:
        runs = find_runs(traces) if traces else []
    except InputError:
        broken = {path: error for path in traces if (error := _why_not(path)) is not None}
        traces = [path for path in traces if path not in broken]
        if not broken or len(broken) == len(args.paths):
            raise
        yield from (_broken(path, error) for path, error in broken.items())
        runs = find_runs(traces) if traces else []
    if len(traces) == len(runs) == 1:
        yield _Source(runs[0].name, runs[0].root, lambda: report_from(traces[0], args))
        return
    for files in runs:
        yield _Source(files.name, files.root, lambda files=files: report_of(files, args))


def _reports(path: str) -> Iterator[str]:
    """The reports that a path names; none where it names traces."""
    from sp_profiler.trace.find import find_runs

    file = report_file(path)
    if file is not None:
        yield file
    elif os.path.isdir(path):
        try:
            find_runs([path])
        except InputError:
            alone = Path(path) / REPORT
            found = [alone] if alone.is_file() else sorted(Path(path).glob(f"*/{REPORT}"))
            yield from map(str, found)


# --- what is told ----------------------------------------------------------------------------------------


def _places(args: argparse.Namespace) -> dict[str, Path]:
    """The files to write, refused before the work where they cannot be written after it."""
    from sp_profiler.files import refuse_folders_of, refuse_inputs
    from sp_profiler.report.save import refuse_existing

    given = {name: getattr(args, name) for name in ("junit", "markdown") if getattr(args, name) is not None}
    for name, path in given.items():
        if path == "":
            raise UsageError(f"--{name} is empty: name a file")
    screens = [f"--{name}" for name, path in given.items() if path in SCREEN]
    if len([*screens, *(["--json"] if args.json else [])]) > 1:
        raise UsageError(
            f"{screens[0]} and {screens[1] if len(screens) > 1 else '--json'} both print to the screen"
        )
    places = {name: Path(path) for name, path in given.items() if path not in SCREEN}
    files = list(places.values())
    if len({os.path.realpath(file) for file in files}) < len(files):
        raise UsageError("--junit and --markdown name the same file")
    if args.github_summary and not os.environ.get(SUMMARY):
        raise UsageError(f"--github-summary is for a job of GitHub Actions: ${SUMMARY} is not set")
    refuse_existing(files, args.force)
    inputs = [path for path in (*args.paths, args.baseline, args.config) if path is not None]
    refuse_inputs(files, inputs)
    refuse_folders_of(files)
    return places


def _rendered(check: Check, name: str) -> str:
    from sp_profiler.checking import junit, markdown

    return junit.render(check, datetime.now(UTC)) if name == "junit" else markdown.render(check)


def _write(check: Check, args: argparse.Namespace, places: dict[str, Path]) -> None:
    from sp_profiler.report.save import write

    for name, place in places.items():
        write(place, _rendered(check, name))
    if args.github_summary:
        _append(Path(os.environ[SUMMARY]), _rendered(check, "markdown"))


def _append(file: Path, text: str) -> None:
    """Other steps of the job have written there already."""
    try:
        with file.open("a", encoding="utf-8") as out:
            out.write(f"\n{text}")
    except OSError as error:
        raise UsageError(f"${SUMMARY}, {file}: {error.strerror}") from None


def _show(check: Check, args: argparse.Namespace) -> None:
    from sp_profiler.checking import json, terminal

    if args.json:
        sys.stdout.write(json.render(check))
        return
    for name in ("junit", "markdown"):
        if getattr(args, name) in SCREEN:
            sys.stdout.write(_rendered(check, name))
            return
    terminal.print_check(check)
