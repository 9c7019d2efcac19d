"""`--format`, `-o`, `--force` and `--json`, as every command that turns files into reports takes them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from sp_profiler.cli.options import add_format
from sp_profiler.errors import UsageError
from sp_profiler.files import refuse_file_for_folder, refuse_folders_of, refuse_inputs

TEXT_FORMATS = ("json", "markdown")
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


def places_of(
    args: argparse.Namespace,
    names: Sequence[str],
    file_names: Callable[[Sequence[str]], list[str]],
    inputs: Iterable[str],
    beside: Sequence[str] = (),
) -> list[Path | None]:
    """Where the files of each run go, refusing before the work what would be refused after it.

    `names`: of the runs; several get a folder each, `beside` which the files of this name lie. `file_names`:
    of the files that formats make of one run. `inputs`: the files that are read. None without `-o`. Raises
    UsageError for a place that cannot be meant, that is taken (unless `--force`), or that takes no files.
    """
    from sp_profiler.report.format import counted
    from sp_profiler.report.save import is_one_file, refuse_existing

    if args.out is None:
        return [None] * len(names)
    formats, out, several = formats_of(args), Path(args.out), len(names) > 1
    if is_one_file(args.out, formats, len(names)):
        places, files = [out], [out]
    else:
        what = f"{counted(len(names), 'run')} as {', '.join(formats)}"
        refuse_file_for_folder(out, args.out, f"{what} {'need' if several else 'needs'}")
        places = [out / name for name in names] if several else [out]
        files = [place / name for place in places for name in file_names(formats)]
        files += [out / name for name in beside] if several else []
    refuse_existing(files, args.force)
    refuse_inputs(files, inputs)
    refuse_folders_of(files)
    return list(places)
