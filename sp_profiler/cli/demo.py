"""`sp-profile run demo` and `demo-long-context`: runs that differ in little, and one page for all of them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
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
from sp_profiler.errors import EXIT_OK, UsageError, WorkloadError

if TYPE_CHECKING:
    from sp_profiler.record.runfolder import PendingFolder
    from sp_profiler.record.workload import Backend
    from sp_profiler.report.model import Report


@dataclass(frozen=True)
class Part:
    """One of the runs: its folder, its mode and the options it shows."""

    name: str
    mode: str
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Demo:
    """Runs to compare. `sizes` are used where the user gives none."""

    name: str
    title: str
    parts: tuple[Part, ...]
    sizes: Mapping[str, Any]


_FEW_STEPS = {"warmup": 1, "active_steps": 2}
"""Demos are about structure; the traces of one ship with the repository."""

DEMOS = {
    "demo": Demo(
        "demo",
        "Tensor and sequence parallelism, without and with overlap",
        (
            Part("tp-sync", "tp", {"comm": "sync"}),
            Part("tp-async", "tp", {"comm": "async"}),
            Part("sp-basic", "sp", {"save": "full", "comm": "sync"}),
            Part("sp-recompute", "sp", {"save": "shard", "comm": "async"}),
        ),
        _FEW_STEPS,
    ),
    "demo-long-context": Demo(
        "demo-long-context",
        "Context parallelism: rings of three layouts, Ulysses, and both together",
        (
            Part("ring-zigzag-sync", "ring", {"layout": "zigzag", "comm": "sync"}),
            Part("ring-zigzag-async", "ring", {"layout": "zigzag", "comm": "async"}),
            Part("ring-contiguous-async", "ring", {"layout": "contiguous", "comm": "async"}),
            Part("ring-striped-async", "ring", {"layout": "striped", "comm": "async"}),
            Part("ulysses-async", "ulysses", {"comm": "async"}),
            Part("usp-async", "usp", {"layout": "zigzag", "ulysses": 2, "comm": "async"}),
        ),
        {**_FEW_STEPS, "ranks": 4, "layers": 1, "seq_len": 1024, "micro_batch": 1},
    ),
}


def run_demo(args: argparse.Namespace, demo: Demo) -> int:
    """Run the parts one after the other; returns the exit code."""
    from sp_profiler.record.workload import choose_backend
    from sp_profiler.report import comparison

    _refuse_varied(args, demo)
    for name, value in demo.sizes.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    configs = [workload_config(args, part.mode, **_fixed(demo, part)) for part in demo.parts]
    with folder_for(args, demo.name) as pending, Live() as live:
        backend = choose_backend(args.backend, configs[0].ranks)
        if backend.note:
            live.say(backend.note)
        reports = [
            _run_part(args, part, config, backend, pending, live)
            for part, config in zip(demo.parts, configs, strict=True)
        ]
        pages = [f"{part.name}/report.html" for part in demo.parts]
        comparison.save(reports, pending.path, demo.title, pages)
        folder = pending.publish()
    show_comparison(reports, folder, args.json)
    return EXIT_OK


def _varied(demo: Demo) -> list[str]:
    """The options in which the parts differ."""
    return list(dict.fromkeys(name for part in demo.parts for name in part.options))


def _refuse_varied(args: argparse.Namespace, demo: Demo) -> None:
    """UsageError for an option that the parts set: taken, it would undo the demo; left out, mislead."""
    given = [f"--{name}" for name in _varied(demo) if getattr(args, name) is not None]
    if given:
        raise UsageError(
            f"the runs of {demo.name} differ in {', '.join(given)}: choose a workload to set it yourself"
        )


def _fixed(demo: Demo, part: Part) -> dict[str, Any]:
    """What the demo varies between its parts; what a part does not name is the default."""
    return {**dict.fromkeys(_varied(demo)), **part.options}


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
