"""`sp-profile run demo`: four runs that differ in one thing each, and one page that shows them together."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sp_profiler.cli.live import Live
from sp_profiler.cli.run import (
    DEFAULT_TIMEOUT_S,
    command_line,
    folder_for,
    with_logs,
    workload_config,
    write_report,
)
from sp_profiler.errors import EXIT_OK, WorkloadError

if TYPE_CHECKING:
    from sp_profiler.record.runfolder import PendingFolder
    from sp_profiler.record.workload import Backend
    from sp_profiler.report.model import Report

TITLE = "Tensor and sequence parallelism, without and with overlap"
PAGE = "index.html"
COMPARISON = "comparison.json"


@dataclass(frozen=True)
class Part:
    """One of the four runs: its folder and the schedule it shows."""

    name: str
    mode: str
    save: str | None
    comm: str


PARTS = (
    Part("tp-sync", "tp", None, "sync"),
    Part("tp-async", "tp", None, "async"),
    Part("sp-basic", "sp", "full", "sync"),
    Part("sp-recompute", "sp", "shard", "async"),
)

DEFAULTS = {"warmup": 1, "active_steps": 2}
"""Few steps: the demo is about structure, and its traces ship with the repository."""


def run_demo(args: argparse.Namespace) -> int:
    """Run the four parts one after the other; returns the exit code."""
    from sp_profiler.record.workload import choose_backend

    for name, value in DEFAULTS.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    configs = [workload_config(args, part.mode, save=part.save, comm=part.comm) for part in PARTS]
    with folder_for(args, "demo") as pending, Live() as live:
        backend = choose_backend(args.backend, configs[0].ranks)
        if backend.note:
            live.say(backend.note)
        reports = [
            _run_part(args, part, config, backend, pending, live)
            for part, config in zip(PARTS, configs, strict=True)
        ]
        write_comparison(reports, pending.path)
        folder = pending.publish()
    show_comparison(reports, folder, args.json)
    return EXIT_OK


def _run_part(
    args: argparse.Namespace, part: Part, config: Any, backend: Backend, pending: PendingFolder, live: Live
) -> Report:
    from sp_profiler.record.workload import record_workload

    folder = pending.path / part.name
    folder.mkdir()
    with live.task(part.name, config.ranks, config.warmup + config.active_steps) as on_progress:
        try:
            record_workload(
                config,
                backend,
                folder=folder,
                logs=pending.logs,
                timeout_s=args.timeout or DEFAULT_TIMEOUT_S,
                command=command_line(),
                on_progress=on_progress,
            )
        except WorkloadError as error:
            raise with_logs(WorkloadError(f"{part.name}: {error}"), pending) from None
    report = write_report(pending, args.formats, part=part.name)
    for log in pending.logs.glob("*.log"):
        log.unlink()
    return report


def comparison(reports: Sequence[Report]) -> dict[str, Any]:
    """The runs side by side, as JSON values: what each was and its figures, per rank and in total."""
    from sp_profiler import __version__
    from sp_profiler.report.json import to_plain

    return {
        "schema": "sp-profile/comparison",
        "schema_version": 1,
        "tool": {"name": "sp-profiler", "version": __version__},
        "runs": [
            {
                "name": report.run.name,
                "workload": to_plain(report.run.workload),
                "summary": report.summary,
                "totals": to_plain(report.totals),
                "ranks": to_plain(report.ranks),
            }
            for report in reports
        ],
    }


def write_comparison(reports: Sequence[Report], folder: Path) -> None:
    """`index.html` and `comparison.json` beside the folders of the runs."""
    from sp_profiler.files import write_atomically
    from sp_profiler.report import html

    write_atomically(folder / PAGE, html.render_comparison(reports, TITLE))
    write_atomically(folder / COMPARISON, json.dumps(comparison(reports), indent=1) + "\n")


def show_comparison(reports: Sequence[Report], folder: Path, as_json: bool) -> None:
    """The side-by-side table and where the page is, or JSON, on stdout."""
    from rich.console import Console

    from sp_profiler.cli.run import shown
    from sp_profiler.report import terminal

    if as_json:
        sys.stdout.write(json.dumps(comparison(reports), indent=1) + "\n")
        return
    terminal.print_comparison(reports, Console())
    print(f"\nreport: {shown(folder / PAGE)}")
