"""`sp-profile memory`: who held the memory. Traces, snapshots or both in, the section alone out."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sp_profiler.cli.options import add_reading, reading
from sp_profiler.cli.output import (
    add_output,
    formats_of,
    prints_text,
    refuse_file_for_folder,
    refuse_folders_of,
    settle_output,
)
from sp_profiler.errors import EXIT_OK, InputError, SpProfilerError, UsageError
from sp_profiler.ledger import refused_by_strict

if TYPE_CHECKING:
    from sp_profiler.report.model import Report
    from sp_profiler.snapshot.find import Source
    from sp_profiler.snapshot.section import Section
    from sp_profiler.trace.tables import RunFiles


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `memory`."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="trace, snapshot of torch.cuda.memory._dump_snapshot, folder of either, or glob; files named"
        " together are ranks of one run",
    )
    parser.add_argument("--strict", action="store_true", help="refuse (exit 3) files with losses or repairs")
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
            _warn(section, command, args)
            _write(section, args, place)
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

    section = section_of(source, lambda files: _report(files, how))
    refused = refused_by_strict(section.ledger) if strict else []
    if refused:
        from sp_profiler.cli.analyze import sentence

        raise InputError(f"--strict refuses {source.name}: " + "; ".join(map(sentence, refused)))
    return section


def _report(files: RunFiles, how: dict[str, Any]) -> Report:
    from sp_profiler.cli.progress import Files
    from sp_profiler.engine import analyze_files

    with Files(files) as progress:
        return analyze_files(files, on_file=progress.read, on_rank=progress.analysed, **how)


def _places(args: argparse.Namespace, sources: Sequence[Source]) -> list[Path | None]:
    """Where each section's files go, refusing before the work what would be refused after it."""
    from sp_profiler.report.format import counted
    from sp_profiler.report.memory_save import file_names, is_one_file
    from sp_profiler.report.save import refuse_existing

    formats = formats_of(args)
    if args.out is None:
        if len(sources) > 1 and formats == ["json"]:
            raise UsageError(f"{len(sources)} runs as JSON need -o DIR to be written to")
        return [None] * len(sources)
    out = Path(args.out)
    if is_one_file(args.out, formats, len(sources)):
        places, files = [out], [out]
    else:
        what = f"{counted(len(sources), 'run')} as {', '.join(formats)}"
        refuse_file_for_folder(out, args.out, f"{what} {'need' if len(sources) > 1 else 'needs'}")
        places = [out] if len(sources) == 1 else [out / source.name for source in sources]
        files = [place / name for place in places for name in file_names(formats)]
    refuse_existing(files, args.force)
    inputs = {os.path.realpath(file) for source in sources for file in source.files}
    for file in files:
        if os.path.realpath(file) in inputs:
            raise UsageError(f"{file} is to be read: choose another name for what is written")
    refuse_folders_of(files)
    return list(places)


def _write(section: Section, args: argparse.Namespace, place: Path | None) -> None:
    from sp_profiler.report.memory_save import render
    from sp_profiler.report.save import write

    if place is None:
        return
    formats = formats_of(args)
    files = {
        name: content
        for output in formats
        for name, content in render(section.memory, section.name, section.ledger, output).items()
    }
    single = place == Path(args.out) and len(files) == 1 and not place.is_dir() and not args.out.endswith("/")
    for name, content in files.items():
        write(place if single else place / name, content)


def _warn(section: Section, command: str, args: argparse.Namespace) -> None:
    """Losses and repairs, on stderr, unless the same terminal shows the whole ledger."""
    from sp_profiler.cli.analyze import sentence

    if not prints_text(args) and sys.stdout.isatty() and sys.stderr.isatty():
        return
    for entry in refused_by_strict(section.ledger):
        print(f"sp-profile {command}: {sentence(entry)}", file=sys.stderr)


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
