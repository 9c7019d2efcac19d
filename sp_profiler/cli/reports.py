"""From what a person names to a report: a run's folder, traces (file, folder, glob), or a report.json."""

from __future__ import annotations

import argparse
import gzip
import mmap
import os
import re
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sp_profiler.cli import ledger
from sp_profiler.cli.options import add_reading, add_window, reading, window_rule
from sp_profiler.errors import InputError, UsageError
from sp_profiler.report.format import counted
from sp_profiler.trace.places import join, kind_of, open_binary, opened
from sp_profiler.trace.remote import Remote, as_remote

if TYPE_CHECKING:
    from sp_profiler.report.model import Report
    from sp_profiler.trace.tables import RunFiles

Source = str | os.PathLike[str]

REPORT = "report.json"
WHAT_IT_TAKES = "a run's folder, traces (file, folder, glob) or a report.json"
_SCHEMA = re.compile(rb'"schema"\s*:\s*"(sp-profile/[a-z-]+)"')
_SCHEMA_NAME = "sp-profile/report"
_HEAD_BYTES = 4096
_GZIP = b"\x1f\x8b"


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """The options that `report_from` reads: windows, `--strict`, cache and limits."""
    add_window(parser)
    ledger.add_strict(parser)
    add_reading(parser)


def report_from(path: str, args: argparse.Namespace) -> Report:
    """The report of the one run that `path` names: analysed from its traces, else read from its report.json.

    A folder's traces come before the report.json beside them, which may be of other windows. `args` holds the
    options of `add_report_options`. What was lost or repaired is told on stderr. Raises UsageError when the
    path holds several runs, or windows are asked of a report.json; InputError, naming the path, when it holds
    nothing that can be used, or `--strict` refuses it.
    """
    file = report_file(path)
    if file is not None:
        report = _read(file, args)
    else:
        try:
            return _analyzed(path, args)
        except InputError:
            file = hidden_report(path)
            if file is None:
                raise
        report = _read(file, args)
    if args.strict:
        ledger.refuse(file, report.data_quality)
    ledger.warn(args.command, report.data_quality)
    return report


def report_of_source(source: Report | Source | Sequence[Source]) -> Report:
    """The same for a call from Python: a report as it is, else what the path or the trace files hold."""
    from sp_profiler import analyze
    from sp_profiler.report.model import Report

    if isinstance(source, Report):
        return source
    if not isinstance(source, (str, os.PathLike)):
        return analyze(source)
    path = os.fspath(source)
    file = report_file(path)
    if file is not None:
        return read_file(file)
    try:
        return analyze(path)
    except InputError:
        file = hidden_report(path)
        if file is None:
            raise
        return read_file(file)


def _analyzed(path: str, args: argparse.Namespace) -> Report:
    from sp_profiler.trace.find import find_runs

    window_rule(args.window, args.steps)  # what cannot be meant is refused before files are looked for
    runs = find_runs([path])
    if len(runs) > 1:
        raise UsageError(f"{path} holds {counted(len(runs), 'run')}: name one of them")
    return report_of(runs[0], args)


def report_of(files: RunFiles, args: argparse.Namespace) -> Report:
    """The report of a run from its traces, as `report_from` makes it."""
    from sp_profiler.cli.progress import analyzed

    rule = window_rule(args.window, args.steps)
    how = reading(args)
    refuse = partial(ledger.refuse, files.name) if args.strict else None
    report = analyzed(files, rule, on_loaded=refuse, **how)
    if refuse is not None:
        refuse(report.data_quality)
    ledger.warn(args.command, report.data_quality)
    return report


def report_file(path: str) -> str | None:
    """The report.json that is named, on disk or by URL. Raises InputError for another file of ours."""
    path = as_remote(path)
    if kind_of(path) != "file":
        return None
    found = _SCHEMA.search(_head(path))
    if found is None:
        return None
    name = found[1].decode()
    if name != _SCHEMA_NAME:
        raise InputError(f"{path} is a {name}: expected {WHAT_IT_TAKES}")
    return path


def hidden_report(path: str) -> str | None:
    """A report where no trace was found: in the folder that is named, or a file that says so further down.

    Raises UsageError for a folder of folders with a report each.
    """
    path = as_remote(path)
    kind = kind_of(path)
    if kind == "file":
        return path if _mentions_schema(path) else None
    if kind is None:
        return None
    if kind_of(join(path, REPORT)) == "file":
        return join(path, REPORT)
    below = [] if isinstance(path, Remote) else sorted(Path(path).glob(f"*/{REPORT}"))
    if below:
        raise UsageError(f"{path} holds {counted(len(below), 'report')}: name one, such as {below[0].parent}")
    return None


def _mentions_schema(path: str) -> bool:
    """Whether a file whose members another program has reordered still says that it is a report."""
    if isinstance(path, Remote):
        return False  # to look would be to fetch all of it again
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            names = {found[1].decode() for found in _SCHEMA.finditer(text)}
    except (OSError, ValueError):  # ValueError: an empty file cannot be mapped
        return False
    return names == {_SCHEMA_NAME}


def _head(path: str) -> bytes:
    """The first text of a file, unpacked; empty when it cannot be read, which reading it then reports."""
    try:
        with open_binary(path) as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return b""
    if not head.startswith(_GZIP):
        return head
    try:
        return zlib.decompressobj(47).decompress(head, _HEAD_BYTES)  # 47: gzip or zlib, told by its header
    except zlib.error:
        return b""


def _read(path: str, args: argparse.Namespace) -> Report:
    if args.window != "step" or args.steps is not None:
        asked = "--window" if args.steps is None else "--steps"
        raise UsageError(f"{path} is a report, its windows are chosen: {asked} needs the traces")
    return read_file(path)


def read_file(path: str) -> Report:
    """The report in a file, packed or not. Raises InputError, naming it, when it cannot be used."""
    from sp_profiler.report.json import read_report

    with opened(path) as file:
        content = file.read()
    try:
        text = gzip.decompress(content) if content.startswith(_GZIP) else content
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    return read_report(text, path)
