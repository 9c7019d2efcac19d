"""What commands say of the data-quality ledger: warnings, and the refusal of `--strict`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

from sp_profiler.cli.output import prints_text
from sp_profiler.errors import InputError
from sp_profiler.ledger import LedgerEntry, refused_by_strict


def add_strict(parser: argparse.ArgumentParser) -> None:
    """`--strict`."""
    parser.add_argument("--strict", action="store_true", help="refuse (exit 3) files with losses or repairs")


def refuse(name: str, entries: Iterable[LedgerEntry]) -> None:
    """Raise InputError when `--strict` refuses the run of this name."""
    refused = refused_by_strict(entries)
    if refused:
        raise InputError(f"--strict refuses {name}: " + "; ".join(map(sentence, refused)))


def warn(command: str, entries: Iterable[LedgerEntry]) -> None:
    """Losses and repairs, on stderr."""
    for entry in refused_by_strict(entries):
        print(f"sp-profile {command}: {sentence(entry)}", file=sys.stderr)


def is_shown(args: argparse.Namespace) -> bool:
    """Whether a run's ledger is printed where stderr goes too, so that a warning would say it twice."""
    return not prints_text(args) and sys.stdout.isatty() and sys.stderr.isatty()


def sentence(entry: LedgerEntry) -> str:
    """A ledger entry in one line: where, what, how often."""
    from sp_profiler.report.format import visible

    is_named = entry.file is None or entry.text.startswith(entry.file)  # as errors name their file
    where = "" if is_named else f"{entry.file}: "
    at = f", first at byte {entry.first_offset}" if entry.first_offset is not None else ""
    times = f" ({entry.count} times{at})" if entry.count > 1 else f" ({at[2:]})" if at else ""
    return visible(f"{where}{entry.text}{times}")
