"""Options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from sp_profiler.errors import UsageError

if TYPE_CHECKING:
    from sp_profiler.analysis.steps import WindowRule

FORMATS = ("json", "html", "markdown", "csv", "parquet")


class _Flatten(argparse.Action):
    """Collects `8 16 32`, `8,16,32` and any mixture into one list, refusing what is not allowed."""

    def __init__(
        self, *args: Any, item: Callable[[str], Any], allowed: Sequence[Any] | None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._item = item
        self._allowed = allowed

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: Any = None
    ) -> None:
        flat: list[Any] = []
        for text in (part for value in values for part in value.split(",") if part):
            try:
                flat.append(self._item(text))
            except ValueError:
                parser.error(f"argument {option}: '{text}' is not a valid {self._item.__name__}")
            if self._allowed is not None and flat[-1] not in self._allowed:
                choices = ", ".join(str(choice) for choice in self._allowed)
                parser.error(f"argument {option}: '{text}' is not one of {choices}")
        if not flat:
            parser.error(f"argument {option}: expected at least one value")
        setattr(namespace, self.dest, flat)


def add_many(
    parser: argparse._ActionsContainer,
    flag: str,
    item: Callable[[str], Any] = str,
    *,
    choices: Sequence[Any] | None = None,
    **kwargs: Any,
) -> None:
    """An option of several values, written `--layers 8 16 32` or `--layers 8,16,32`."""
    if choices is not None:
        kwargs.setdefault("metavar", "|".join(str(choice) for choice in choices))
    action = parser.add_argument(flag, nargs="+", action=_Flatten, item=item, allowed=choices, **kwargs)
    if choices is not None:
        complete_with(action, [str(choice) for choice in choices])


def complete_with(action: argparse.Action, words: Sequence[str]) -> None:
    """Let the shell complete the option or argument with these words, where argparse knows no choices."""

    def complete(prefix: str, **_: Any) -> list[str]:
        return [word for word in words if word.startswith(prefix)]

    setattr(action, "completer", complete)  # noqa: B010 - argcomplete's own attribute, unknown to argparse


def add_format(parser: argparse._ActionsContainer, help_text: str) -> None:
    """`--format json html`: the files to write."""
    add_many(parser, "--format", choices=FORMATS, dest="formats", default=[], help=help_text)


def add_window(parser: argparse._ActionsContainer) -> None:
    """`--window` and `--steps`."""
    parser.add_argument(
        "--window",
        choices=("step", "trace"),
        default="step",
        help="measure every profiled step (default), or from the first to the last activity",
    )
    parser.add_argument("--steps", metavar="A:B", help="only steps A up to, but not including, B")


def window_rule(window: Literal["step", "trace"], steps: str | None) -> WindowRule:
    """The `WindowRule` that `--window` and `--steps` spell; UsageError when they cannot be meant."""
    from sp_profiler.analysis.steps import WindowRule

    if steps is None:
        return WindowRule(rule=window)
    first, colon, last = steps.partition(":")
    if not colon or not first.isdecimal() or not last.isdecimal() or int(first) >= int(last):
        raise UsageError(f"--steps {steps} is not a range of steps such as 3:6, the last one excluded")
    if window == "trace":
        raise UsageError("--steps chooses among profiled steps and does not go with --window trace")
    return WindowRule(rule="step", steps=(int(first), int(last)))


LIMITS = ("inflated_bytes", "events", "string_bytes", "distinct_string_bytes", "metadata_bytes", "nesting")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def add_reading(parser: argparse._ActionsContainer) -> None:
    """`--no-cache` and `--limits`."""
    parser.add_argument(
        "--no-cache", action="store_true", help="decode big files anew, and do not keep what was decoded"
    )
    add_many(
        parser,
        "--limits",
        metavar="NAME=N",
        default=[],
        help=f"bounds on what a file may hold, such as events=2000000 ({', '.join(LIMITS)})",
    )


def reading(args: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of `load_run` that `add_reading`'s options spell; UsageError otherwise."""
    from dataclasses import replace

    from sp_profiler.trace.cache import decode_cached
    from sp_profiler.trace.decode import decode_trace
    from sp_profiler.trace.limits import Limits

    limits = Limits()
    for text in args.limits:
        name, _, amount = text.partition("=")
        number = amount.rstrip("".join(_UNITS))
        unit = _UNITS.get(amount[len(number) :])
        if name not in LIMITS or unit is None or not (number.isascii() and number.isdigit()):
            raise UsageError(
                f"--limits {text}: expected NAME=N, NAME one of {', '.join(LIMITS)}, N a number such as 8G"
            )
        limits = replace(limits, **{name: int(number) * unit})
    return {"limits": limits, "decode": decode_trace if args.no_cache else decode_cached}
