"""`sp-profile validate`: the data-quality ledger of traces, or our figures beside another tool's."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from sp_profiler.cli.analyze import distinct
from sp_profiler.cli.options import add_reading, reading
from sp_profiler.cli.progress import analyzed
from sp_profiler.errors import EXIT_INPUT, EXIT_OK, SpProfilerError
from sp_profiler.ledger import LedgerEntry, refused_by_strict

if TYPE_CHECKING:
    from sp_profiler.report.model import Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `validate`."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help="trace file, folder, glob or URL")
    parser.add_argument("--strict", action="store_true", help="exit 3 on any loss or repair")
    parser.add_argument(
        "--against",
        choices=("hta",),
        help="print our figures beside this tool's for the same files, and why they differ (extra 'hta')",
    )
    add_reading(parser)
    parser.add_argument("--json", action="store_true", help="print the ledger as JSON")


def run(args: argparse.Namespace) -> int:
    """List what was repaired, dropped or assumed; returns 3 when a run cannot be read, or by --strict."""
    from sp_profiler.report.compare_table import ordered
    from sp_profiler.report.format import visible
    from sp_profiler.trace.find import find_runs

    if args.against is not None:
        from sp_profiler.cli import against

        return against.run(args)
    how = reading(args)
    reports: list[Report] = []
    errors: dict[str, str] = {}
    for files in distinct(find_runs(args.paths)):
        try:
            reports.append(analyzed(files, **how))
        except SpProfilerError as error:
            errors[files.name] = str(error)
    ledgers = {report.run.name: tuple(report.data_quality) for report in ordered(reports)}
    if args.json:
        _print_json(ledgers, errors)
    else:
        _print_lines(ledgers)
        for message in errors.values():
            print(f"sp-profile validate: {visible(message)}", file=sys.stderr)
    refused = [name for name, entries in ledgers.items() if args.strict and refused_by_strict(entries)]
    if refused:
        names = ", ".join(map(visible, refused))
        print(f"sp-profile validate: --strict refuses {names}: losses or repairs, as listed", file=sys.stderr)
    return EXIT_INPUT if errors or refused else EXIT_OK


def _print_json(ledgers: dict[str, tuple[LedgerEntry, ...]], errors: dict[str, str]) -> None:
    import json

    runs = [{"name": name, "data_quality": [asdict(e) for e in ledger]} for name, ledger in ledgers.items()]
    runs += [{"name": name, "error": message} for name, message in errors.items()]
    print(json.dumps({"schema": "sp-profile/validate", "schema_version": 1, "runs": runs}, indent=1))


def _print_lines(ledgers: dict[str, tuple[LedgerEntry, ...]]) -> None:
    """A line for each entry, whole whatever the width: severity, code, how often, what, where."""
    from sp_profiler.report.format import visible

    for name, entries in ledgers.items():
        print(f"{visible(name)}:" if entries else f"{visible(name)}: nothing to report")
        for entry in entries:
            print(visible(f"  {entry.severity} {entry.code} ×{entry.count} {entry.text}{_place(entry)}"))


def _place(entry: LedgerEntry) -> str:
    """` (rank0.json, first at byte 12)`, as far as it is known."""
    at = "" if entry.first_offset is None else f"first at byte {entry.first_offset}"
    told = ", ".join(part for part in (entry.file, at) if part)
    return f" ({told})" if told else ""
