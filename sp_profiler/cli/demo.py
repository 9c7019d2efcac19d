"""`sp-profile run demo`: four runs that differ in one thing each, and one page that shows them together."""

from __future__ import annotations

import argparse
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
    publish_on_error,
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
    from sp_profiler.report import comparison

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
        comparison.save(reports, pending.path, TITLE, [f"{part.name}/report.html" for part in PARTS])
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
                saved_tensors=args.saved_tensors,
            )
        except WorkloadError as error:
            raise with_logs(WorkloadError(f"{part.name}: {error}"), pending) from None
    with publish_on_error(pending):
        report = write_report(pending, args.formats, part=part.name)
    for log in pending.logs.glob("*.log"):
        log.unlink()
    return report


def show_comparison(reports: Sequence[Report], folder: Path, as_json: bool) -> None:
    """The side-by-side table and where the page is, or JSON, on stdout."""
    from rich.console import Console

    from sp_profiler.cli.run import shown
    from sp_profiler.report import comparison, terminal

    if as_json:
        sys.stdout.write(comparison.render(reports, "json"))
        return
    terminal.print_comparison(reports, Console())
    print(f"\nreport: {shown(folder / comparison.PAGE)}")
