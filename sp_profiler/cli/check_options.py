"""The budgets that options of `sp-profile check` spell, read as the tables of its files are."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sp_profiler.checking.figures import FIGURES, Figure
from sp_profiler.checking.parts import SCOPES
from sp_profiler.cli.options import add_many
from sp_profiler.cli.reports import WHAT_IT_TAKES
from sp_profiler.errors import UsageError

if TYPE_CHECKING:
    from sp_profiler.checking.settings import Settings

_UNITS = {"ns": "MS", "bytes": "GIB", "ratio": "RATIO", "gbps": "GBPS", "count": "N"}


def add_budgets(group: argparse._ArgumentGroup) -> None:
    for figure in FIGURES.values():
        group.add_argument(
            f"--{figure.option}",
            dest=figure.option,
            metavar=_UNITS[figure.unit],
            help=_help(figure),
        )
    for bound, word in (("max", "most"), ("min", "least")):
        group.add_argument(
            f"--{bound}",
            action="append",
            default=[],
            metavar="FIGURE=LIMIT",
            help=f"at {word} so much of a figure or of any field of the report, such as "
            + ("totals.idle_ns='3 ms'" if bound == "max" else "totals.wgrad_overlapped_ns=1"),
        )
    group.add_argument(
        "--scope",
        choices=SCOPES,
        help="judge the run as a whole (default), or the worst of its ranks or steps",
    )
    add_many(
        group,
        "--max-ledger",
        metavar="NAME=N",
        default=[],
        help="at most N entries of a severity (loss, repair, assumption, note) or code in the ledger",
    )
    group.add_argument("--no-loss", action="store_true", help="the same as --max-ledger loss=0")
    add_many(
        group,
        "--fail-on",
        metavar="CODE|SEVERITY",
        default=[],
        help="no finding of this code, or of this severity (info, advice, warning) or a worse one",
    )
    group.add_argument(
        "--allow-unknown",
        action="store_true",
        help="a figure that nobody could look at is no failure",
    )


def _help(figure: Figure) -> str:
    mean = " per step and rank" if figure.is_mean else ""
    return f"{'upper' if figure.worse == 'higher' else 'lower'} limit of {figure.about}{mean}"


def add_baseline(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--baseline",
        metavar="RUN",
        help=f"the run to compare with: {WHAT_IT_TAKES}; its report.json is enough",
    )
    add_many(
        group,
        "--tolerance",
        metavar="[FIGURE=]5%",
        default=[],
        help="how much worse figures may be (default 5%%): all, or one, which is then compared too, as "
        "FIGURE=10%% or FIGURE=0.2ms",
    )
    add_many(
        group,
        "--compare",
        metavar="FIGURE",
        default=[],
        help="which figures to compare, instead of the usual",
    )
    group.add_argument(
        "--no-noise", action="store_true", help="count a regression also within the spread of the steps"
    )


def options(args: argparse.Namespace) -> Settings:
    """The options as a table, read as those of files are."""
    from sp_profiler.checking.asked import Asked

    given = vars(args)
    table: dict[str, Any] = {
        figure.option: given[figure.option] for figure in FIGURES.values() if given[figure.option] is not None
    }
    for key in ("scope", "baseline"):
        if given[key] is not None:
            table[key] = given[key]
    if args.max_ledger:
        table["max-ledger"] = dict(_count(text) for text in args.max_ledger)
    if args.fail_on:
        table["fail-on"] = args.fail_on
    table |= {"no-loss": args.no_loss, "allow-unknown": args.allow_unknown}
    asked = Asked("options", lambda key: f"--{key}", Path())
    settings = asked.settings(table).with_(
        tolerance_origin="--tolerance",
        compared=args.compare or None,
        compared_origin="--compare" if args.compare else "--baseline",
        use_noise=False if args.no_noise else None,
        **_tolerances(args.tolerance),
    )
    for bound in ("max", "min"):
        for text in given[bound]:
            figure, limit = _pair(text, f"--{bound}", "totals.exposed_ns=3ms")
            settings.entries.extend(
                asked.entry({"figure": figure, bound: limit}, f"{bound} {figure}", settings)
            )
    return settings


def _pair(text: str, option: str, example: str) -> tuple[str, str]:
    """`FIGURE=LIMIT`, at the last `=`: paths may hold more of them."""
    name, equals, value = text.rpartition("=")
    if not equals or not name or not value:
        raise UsageError(f"{option} {text}: expected FIGURE=LIMIT, such as {example}")
    return name, value


def _count(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not name or not number.isascii() or not number.isdigit():
        raise UsageError(f"--max-ledger {text}: expected NAME=N, such as loss=0")
    return name, int(number)


def _tolerances(given: list[str]) -> dict[str, Any]:
    """`5%` is of all figures, `step-ms=2%` and `step-ms=0.2ms` of one, and both of one together."""
    whole: str | None = None
    single: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.rpartition("=")
        if not equals:
            if whole is not None:
                raise UsageError(f"--tolerance {whole} and {text} are both of all figures: keep one")
            whole = text
        elif isinstance(single.get(name), list):
            raise UsageError(f"--tolerance {text}: {name} has a share and an amount already")
        elif name in single:
            single[name] = [single[name], value]
        else:
            single[name] = value
    return {"tolerance": whole, "tolerances": single}
