"""`sp-profile validate --against hta`: our figures beside HTA's, and what the differences are made of."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Literal

from sp_profiler.errors import EXIT_INPUT, EXIT_OK, SpProfilerError

if TYPE_CHECKING:
    from sp_profiler.interop.hta import Comparison, Difference
    from sp_profiler.trace.tables import RunFiles

_FIGURES = {
    "overlap_ratio": "overlap ratio",
    "compute_ns": "computation",
    "idle_ns": "idle",
    "other_busy_ns": "busy, not computing",
    "span_ns": "span",
}
_ROWS = 20
_PIPE_WIDTH = 140
_COLUMNS: dict[str, Literal["left", "right"]] = {
    "rank": "right",
    "figure": "left",
    "ours": "right",
    "+ launch\nnot seen": "right",
    "+ classi-\nfication": "right",
    "= HTA,\nexact": "right",
    "+ dropped\nstep": "right",
    "+ rounding": "right",
    "= HTA,\ndefault": "right",
}
_EXPLAINED = (
    "Ours and the four differences add up to HTA's default. Launch not seen: where there are several steps "
    "HTA drops kernels whose launch is not in the trace, or comes after the last one. Classification: what "
    "HTA takes for something else, listed below. Dropped step: HTA leaves the last step out by default. "
    "Rounding: HTA rounds to whole µs."
)


def run(args: argparse.Namespace) -> int:
    """Compare every run that the paths hold over the whole trace; exit 3 when HTA cannot look at one."""
    from sp_profiler.interop.hta import HtaError
    from sp_profiler.report.format import visible
    from sp_profiler.trace.find import find_runs

    found: dict[str, Comparison] = {}
    errors: dict[str, str] = {}
    for files in find_runs(args.paths):
        try:
            found[files.name] = _compared(files)
        except (SpProfilerError, HtaError) as error:
            errors[files.name] = str(error)
    if args.json:
        runs = [{"name": name} | asdict(one) for name, one in found.items()]
        runs += [{"name": name, "error": text} for name, text in errors.items()]
        print(json.dumps({"schema": "sp-profile/against", "schema_version": 1, "runs": runs}, indent=1))
    else:
        for name, one in found.items():
            _print(name, one)
    for name, text in errors.items():
        print(f"sp-profile validate: {visible(f'{name}: {text}')}", file=sys.stderr)
    return EXIT_INPUT if errors else EXIT_OK


def _compared(files: RunFiles) -> Comparison:
    from sp_profiler.analysis.steps import WindowRule
    from sp_profiler.engine import analyze_run
    from sp_profiler.interop.hta import compare, look
    from sp_profiler.trace.load import load_run

    traces = load_run(files)
    report = analyze_run(traces, WindowRule("trace"))
    return compare(report, look(traces.traces))


def _print(name: str, compared: Comparison) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from sp_profiler.report.format import milliseconds, visible

    console = Console()
    if not console.is_terminal and console.width < _PIPE_WIDTH:
        console.width = _PIPE_WIDTH
    table = Table(title=Text(visible(f"{name}: ours beside {compared.tool} (ms; ratios as such)")))
    for column, align in _COLUMNS.items():
        table.add_column(column, justify=align, no_wrap=True)
    for one in compared.differences:
        values = (one.ours, one.launch_unseen, one.classification, one.hta_exact, one.dropped_step)
        shown = (_text(one, value) for value in (*values, one.rounding, one.hta))
        table.add_row(str(one.rank), _FIGURES[one.figure], *shown)
    console.print(table)
    console.print(Text(_EXPLAINED))
    if not compared.misclassified:
        console.print(Text("Both take every kernel for the same."))
        return
    kernels = Table(title=Text("Taken for something else by HTA; (…): no device activity for us"))
    for column in ("ours", "HTA", "count", "ms", "name"):
        kernels.add_column(column, overflow="fold")
    for one in compared.misclassified[:_ROWS]:
        kernels.add_row(
            one.ours, one.hta, str(one.count), milliseconds(one.ns), Text(visible(one.name[:160]))
        )
    console.print(kernels)
    if len(compared.misclassified) > _ROWS:
        console.print(Text(f"{len(compared.misclassified) - _ROWS} more names: see --json"))


def _text(one: Difference, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.4f}" if one.figure == "overlap_ratio" else f"{value / 1e6:.3f}"
