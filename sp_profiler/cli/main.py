# PYTHON_ARGCOMPLETE_OK
"""`sp-profile`: reads the command line, runs one command, turns errors into one sentence and an exit code.

A command is a module of this package with `add_arguments(parser)` and `run(args) -> int`. Only the
module of the chosen command is imported, so that `--help` stays quick. What follows a lone `--` of
`run` is never parsed: it reaches the command as `args.rest`.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from sp_profiler import __version__
from sp_profiler.errors import (
    EXIT_INPUT,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    SpProfilerError,
    WorkloadError,
)

COMMANDS = {
    "run": "train a workload (or your own script) under the profiler and report on it",
    "sweep": "measure every combination of schemes and sizes: step time, memory, overlap; tables and charts",
    "analyze": "report on traces: overlapped and exposed communication, by GEMM role, group, layer",
    "compare": "two runs: what changed beyond noise, by how much and why; single collectives to whole steps",
    "check": "fail where a run breaks its budgets or is worse than a baseline: for CI, with JUnit XML",
    "memory": "who held the memory: peaks, what is kept for backward, why it ran out; traces and snapshots",
    "dashboard": "runs and traces in the browser: timeline, overlap, ranks, memory; compare two",
    "plan": "what schemes would keep, send and take at any size: executed without data, on any laptop",
    "export": "traces with tracks of what was found in them, to be opened in ui.perfetto.dev",
    "validate": "list what was repaired, dropped or assumed while reading traces",
    "doctor": "show what is installed, which GPUs and backends there are, and what is missing",
}

EPILOG = (
    "exit codes: 0 ok, 1 a budget is broken, 2 usage, 3 unusable input, 4 workload failed, 130 interrupted"
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: error: {_on_screen(message)} (see '{self.prog} --help')\n")


def _sentence_case(title: str) -> str:
    return title[:1].upper() + title[1:]


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """The parser with the options of `command`; of all commands when it is None."""
    from rich_argparse import RichHelpFormatter

    class Formatter(RichHelpFormatter):
        group_name_formatter = staticmethod(_sentence_case)
        usage_markup = False
        text_markup = False
        help_markup = False

    parser = _Parser(
        prog="sp-profile",
        description="Is the communication of parallel training hidden, behind which GEMM, what is exposed?",
        epilog=EPILOG,
        formatter_class=Formatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"sp-profile {__version__}")
    # `prog`: to find it out by itself argparse formats a usage line, for which rich is loaded.
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=_Parser, prog=parser.prog
    )
    for name, summary in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            formatter_class=Formatter,
            allow_abbrev=False,
        )
        if command is None or command == name:
            importlib.import_module(f"sp_profiler.cli.{name}").add_arguments(sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code (argparse's own exits raise SystemExit)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    rest: list[str] = []
    at = arguments.index("--") if "--" in arguments else len(arguments)
    completing = "_ARGCOMPLETE" in os.environ
    chosen = next((a for a in arguments[:at] if a in COMMANDS), "")
    if chosen == "run":
        arguments, rest = arguments[:at], arguments[at + 1 :]
    parser = build_parser(None if completing else chosen)
    if completing:
        import argcomplete

        argcomplete.autocomplete(parser)
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.prog = f"{parser.prog} {args.command}"  # whose help tells the options there are
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    args.rest = rest
    try:
        if any("://" in one for one in arguments):
            importlib.import_module("sp_profiler.cli.urls").settle_urls(args)
        return importlib.import_module(f"sp_profiler.cli.{args.command}").run(args)
    except SpProfilerError as error:
        print(f"sp-profile {args.command}: {_on_screen(error)}", file=sys.stderr)
        return error.exit_code


def _on_screen(message: object) -> str:
    """A message as it may be printed: a file's name can hold what acts on a terminal."""
    from sp_profiler.report.format import visible

    lines = str(message).split("\n") if isinstance(message, WorkloadError) else [str(message)]
    return "\n".join(visible(line.expandtabs()) for line in lines)  # of a log every line is one


def entry_point() -> NoReturn:
    """What the installed `sp-profile` calls: Ctrl-C and a closed pipe end quietly, others in one line."""
    _mend_standard_streams()
    try:
        try:
            code = main()
        except SystemExit as leaving:  # argparse: --help, --version, a usage error
            code = leaving.code
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("sp-profile: interrupted", file=sys.stderr)
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away (`| head`).
        _drop_output()
        code = EXIT_OK
    except MemoryError:
        print("sp-profile: there is not enough memory for this", file=sys.stderr)
        _drop_output()
        code = EXIT_INPUT
    except OSError as error:
        if isinstance(error, FileNotFoundError) and error.filename is None:
            what = "the current folder no longer exists: change to another one"  # so os.getcwd() puts it
        else:
            what = f"{error.filename or 'the output cannot be written'}: {error.strerror}"
        print(f"sp-profile: {_on_screen(what)}", file=sys.stderr)
        _drop_output()
        code = EXIT_USAGE
    sys.exit(code)


def _mend_standard_streams() -> None:
    """Open what the caller closed, and let no character be one the terminal's encoding lacks.

    A stream that stays closed would give its number, and what is printed there, to the next file opened.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
        if getattr(sys, name) is None:
            stream = os.fdopen(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False)
            setattr(sys, name, stream)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """What is still to be printed goes nowhere, also at exit: nobody takes it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    entry_point()
