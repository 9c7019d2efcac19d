"""`sp-profile memory`: who held the memory. Traces, snapshots or both in, the section alone out."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sp_profiler.cli import ledger
from sp_profiler.cli.options import add_reading, reading
from sp_profiler.cli.output import add_output, formats_of, places_of, prints_text, settle_output
from sp_profiler.cli.progress import analyzed
from sp_profiler.errors import EXIT_OK, SpProfilerError, UsageError

if TYPE_CHECKING:
    from sp_profiler.snapshot.find import Source
    from sp_profiler.snapshot.section import Section


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `memory`."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="trace, snapshot of torch.cuda.memory._dump_snapshot, folder of either, or glob; files named"
        " together are ranks of one run",
    )
    ledger.add_strict(parser)
    add_reading(parser)
    add_output(parser, "section")


def run(args: argparse.Namespace) -> int:
    """Show the memory of every run that the paths hold; returns the worst exit code."""
    settle_output(args)
    return show(args, "memory")


def takes(paths: Sequence[str]) -> bool:
    """Whether all of these are snapshots. Raises UsageError when only some are: `analyze` cannot mix them."""
    from sp_profiler.snapshot.read import is_snapshot

    snapshots = [path for path in paths if os.path.isfile(path) and is_snapshot(path)]
    if snapshots and len(snapshots) < len(paths):
        raise UsageError(
            f"{snapshots[0]} is a memory snapshot: sp-profile memory takes it, also beside traces"
        )
    return bool(snapshots)


def show_snapshots(args: argparse.Namespace) -> int:
    """What `analyze` does with snapshots, which hold no communication to measure."""
    what = "memory snapshots hold" if len(args.paths) > 1 else "a memory snapshot holds"
    print(
        f"sp-profile analyze: {what} no communication: this is what sp-profile memory shows", file=sys.stderr
    )
    return show(args, "analyze")


def show(args: argparse.Namespace, command: str) -> int:
    """Read, analyse, write and print; errors of one of several runs do not keep the others back."""
    from sp_profiler.report.format import visible
    from sp_profiler.snapshot.find import find_sources

    how = reading(args)
    sources = find_sources(args.paths)
    places = _places(args, sources)
    sections: list[Section] = []
    code = EXIT_OK
    for source, place in zip(sources, places, strict=True):
        try:
            section = _section(source, how, args.strict)
            if not ledger.is_shown(args):
                ledger.warn(command, section.ledger)
            _write(section, args, place, len(sources))
            sections.append(section)
        except SpProfilerError as error:
            if len(sources) == 1:
                raise
            print(f"sp-profile {command}: {visible(f'{source.name}: {error}')}", file=sys.stderr)
            code = max(code, error.exit_code)
    _print(sections, args)
    return code


def _section(source: Source, how: dict[str, Any], strict: bool) -> Section:
    """The memory of one run; InputError when `--strict` refuses its files."""
    from sp_profiler.snapshot.section import section_of

    section = section_of(source, partial(analyzed, **how))
    if strict:
        ledger.refuse(source.name, section.ledger)
    return section


def _places(args: argparse.Namespace, sources: Sequence[Source]) -> list[Path | None]:
    from sp_profiler.report.memory_save import file_names

    if args.out is None and len(sources) > 1 and formats_of(args) == ["json"]:
        raise UsageError(f"{len(sources)} runs as JSON need -o DIR to be written to")
    inputs = (file for source in sources for file in source.files)
    return places_of(args, [source.name for source in sources], file_names, inputs)


def _write(section: Section, args: argparse.Namespace, place: Path | None, runs: int) -> None:
    from sp_profiler.report.memory_save import render
    from sp_profiler.report.save import is_one_file, write

    if place is None:
        return
    formats = formats_of(args)
    files = {
        name: content
        for output in formats
        for name, content in render(section.memory, section.name, section.ledger, output).items()
    }
    single = is_one_file(args.out, formats, runs)
    for name, content in files.items():
        write(place if single else place / name, content)


def _print(sections: Sequence[Section], args: argparse.Namespace) -> None:
    """Each section on the terminal, or as the text format that was asked for without a file."""
    from sp_profiler.report.memory_save import render
    from sp_profiler.report.memory_terminal import render_terminal

    for place, one in enumerate(sections):
        if prints_text(args):
            (text,) = render(one.memory, one.name, one.ledger, formats_of(args)[0]).values()
            sys.stdout.write(text if isinstance(text, str) else text.decode("utf-8"))
            continue
        if place:
            print()
        render_terminal(one.memory, one.name, ledger=one.ledger)
    if args.out is not None and sections:
        print(f"written: {args.out}")
