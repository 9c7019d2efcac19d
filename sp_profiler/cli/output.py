"""`--format`, `-o`, `--force` and `--json`, as every command that turns files into reports takes them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from sp_profiler.cli.options import add_format
from sp_profiler.errors import UsageError
from sp_profiler.files import refuse_unwritable

TEXT_FORMATS = ("json", "markdown")
FILE_ENDINGS = (".html", ".json", ".md", ".csv", ".parquet")
SCREEN = ("-", "/dev/stdout")
"""Names that as `-o` mean what leaving it out means."""


def add_output(parser: argparse.ArgumentParser, printed: str, single: str = "one run, one format") -> None:
    """The options. `printed`: what `--json` prints; `single`: when `-o` may name a file."""
    output = parser.add_argument_group("output")
    add_format(output, "files to write; several at once with -o DIR")
    output.add_argument("-o", "--out", metavar="OUT", help=f"file ({single}), or folder")
    output.add_argument("--force", action="store_true", help="overwrite what exists")
    output.add_argument("--json", action="store_true", help=f"print the {printed} as JSON")


def formats_of(args: argparse.Namespace) -> list[str]:
    """The formats asked for, each once; `--json` asks for one."""
    return list(dict.fromkeys(["json"] if args.json else args.formats))


def settle_output(args: argparse.Namespace) -> list[str]:
    """`formats_of`, after `-o -` became no `-o`; UsageError for options that cannot be meant together."""
    if args.out in SCREEN:
        args.out = None
    formats = formats_of(args)
    if args.json and args.out is not None:
        raise UsageError("--json prints to the screen: use --format json with -o")
    if args.json and set(args.formats) - {"json"}:
        raise UsageError(f"--json prints to the screen and goes with no --format {' '.join(args.formats)}")
    if args.out == "":
        raise UsageError("-o is empty: name a file or a folder")
    if args.out is None:
        silent = [one for one in formats if one not in TEXT_FORMATS]
        if silent:
            raise UsageError(f"--format {' '.join(silent)} needs -o OUT to be written to")
        if len(formats) > 1:
            raise UsageError("several formats need -o DIR to be written to")
    elif not formats:
        raise UsageError("-o OUT needs --format, such as --format json html")
    return formats


def prints_text(args: argparse.Namespace) -> bool:
    """Whether a text format goes to stdout in place of the summary."""
    return bool(formats_of(args)) and args.out is None


def refuse_file_for_folder(out: Path, given: str, what: str) -> None:
    """UsageError when what needs a folder was given a file's name. `what`: `2 runs as html need`."""
    if (out.exists() and not out.is_dir()) or named_as_file(given):
        raise UsageError(f"{out} {'is' if out.exists() else 'names'} a file, but {what} a folder")


def named_as_file(out: str) -> bool:
    """Whether it looks like one of our files (`demo.html`): no folder, and not meant as one (`x/`)."""
    is_folder = out.endswith("/") or Path(out).is_dir()
    return not is_folder and Path(out).suffix.lower() in FILE_ENDINGS


def refuse_folders_of(files: Iterable[Path]) -> None:
    """Refuse, before the work, folders in which these files could not be written.

    Into a pipe or a device, which exists and is no file, is written as it is.
    """
    for folder in dict.fromkeys(file.parent for file in files if file.is_file() or not file.exists()):
        refuse_unwritable(folder)
