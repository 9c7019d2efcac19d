"""`sp-profile sweep`: every combination of schemes and sizes measured, as tables and charts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sp_profiler.cli.options import add_many, complete_with
from sp_profiler.errors import EXIT_OK, EXIT_WORKLOAD, UsageError

if TYPE_CHECKING:
    from sp_profiler.cli.live import Live
    from sp_profiler.record.launch import OnProgress
    from sp_profiler.sweeps.model import Cell, Sweep
    from sp_profiler.sweeps.request import SweepRequest

CHOICES = {
    "--modes": (("ddp", "tp", "sp", "ring", "rsa", "ulysses", "usp"), "workloads (tp sp)"),
    "--comm": (("sync", "async"), "collectives waited for at once, or under computation (both)"),
    "--save": (("full", "shard"), "what sp keeps for backward: gathered inputs or shards (both)"),
    "--recompute": (("none", "selective", "full"), "activations run again in backward (none)"),
    "--projections": (("separate", "fused"), "q, k, v and gate, up: five linears or two (separate)"),
    "--norm": (("eager", "fused"), "RMSNorm in float32, or one operator (eager)"),
    "--layout": (("contiguous", "zigzag", "striped"), "tokens of a rank of a ring (the mode's own)"),
    "--inside": (("tp", "sp"), "how ranks share a model inside a part of the sequence (tp)"),
    "--dtype": (("f32", "bf16", "f16", "f64"), "of weights and activations (f32)"),
}
NUMBERS = {
    "--layers": "decoder blocks (2 4)",
    "--seq-len": "tokens per sequence (256)",
    "--ranks": "processes, 1 to 8 (2)",
    "--hidden": "hidden size (256)",
    "--heads": "attention heads (8)",
    "--kv-heads": "key/value heads (half the heads)",
    "--ffn": "feed-forward size (8/3 of hidden, rounded up)",
    "--vocab": "vocabulary (1024)",
    "--micro-batch": "sequences per micro-batch; see --batch-policy (2)",
    "--num-microbatches": "micro-batches per step (1)",
    "--ulysses": "usp: ranks that exchange heads for tokens (2)",
    "--tp": "context parallelism: ranks that share one model (1)",
}
_NAMES = {"--modes": "mode", "--tp": "model_ranks"}
"""Options whose name in the workload is another."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sweep`. Where several values are taken, every combination is a cell."""
    schemes = parser.add_argument_group("schemes, one value or several (what a mode does not use is ignored)")
    for flag, (choices, text) in CHOICES.items():
        add_many(schemes, flag, choices=choices, help=text)
    schemes.add_argument("--no-causal", dest="causal", action="store_false", help="attention without a mask")
    schemes.add_argument(
        "--attention-only", action="store_true", help="context parallelism: attention without a model"
    )
    sizes = parser.add_argument_group("sizes, one value or several")
    for flag, text in NUMBERS.items():
        add_many(sizes, flag, int, metavar="N", help=text)
    sizes.add_argument(
        "--batch-policy",
        choices=("fixed-per-rank", "fixed-global"),
        default="fixed-per-rank",
        help="--micro-batch is that of a rank, so that ddp trains more tokens (default), or of all together",
    )
    _add_measuring(parser)
    _add_output(parser)


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    measuring = parser.add_argument_group("measuring")
    measuring.add_argument("--repeat", type=int, default=5, metavar="N", help="timed repeats of a cell (5)")
    measuring.add_argument("--steps", type=int, default=3, metavar="N", help="steps of a repeat (3)")
    measuring.add_argument(
        "--warmup", type=int, default=2, metavar="N", help="steps before the timed ones (2)"
    )
    measuring.add_argument("--active-steps", type=int, default=2, metavar="N", help="profiled steps (2)")
    measuring.add_argument("--seed", type=int, default=0, metavar="N", help="of weights and data (0)")
    measuring.add_argument(
        "--backend", choices=("auto", "nccl", "gloo"), default="auto", help="nccl on GPUs, else gloo (auto)"
    )
    measuring.add_argument(
        "--timeout", type=float, default=300.0, metavar="SECONDS", help="end a cell without progress (300)"
    )
    measuring.add_argument(
        "--hardware", metavar="NAME", help="a device whose data sheet is known: step times by theory beside"
    )
    measuring.add_argument(
        "--efficiency", type=float, metavar="SHARE", help="of its peak that GEMMs and attention reach (1)"
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    output = parser.add_argument_group("output")
    output.add_argument(
        "-o", "--out", metavar="DIR", help="folder of the sweep: a new one, or one to resume or extend"
    )
    baseline = output.add_argument(
        "--baseline", metavar="SCHEME", help="what the others are relative to, such as tp-sync (the first)"
    )
    complete_with(baseline, ("ddp", "tp-sync", "tp-async", "sp-basic", "sp-recompute"))
    output.add_argument("--retry-failed", action="store_true", help="run cells that failed before once more")
    output.add_argument(
        "--dry-run", action="store_true", help="list the cells, with what theory says of them"
    )
    output.add_argument(
        "--show", metavar="DIR", help="make tables and charts of what this folder holds; nothing is run"
    )
    output.add_argument("--json", action="store_true", help="print sweep.json")


def run(args: argparse.Namespace) -> int:
    """Run, write, print; EXIT_WORKLOAD where a cell failed, though the table is whole."""
    if args.show is not None:
        return _show_folder(args)
    request = request_of(args)
    if args.dry_run:
        return _dry_run(request, args)
    root = _folder(args)
    sweep = _measured(request, root)
    _print(sweep, root, args.json)
    return EXIT_WORKLOAD if sweep.failed else EXIT_OK


def request_of(args: argparse.Namespace) -> SweepRequest:
    """The request that the options spell. Raises UsageError."""
    from sp_profiler.sweeps.request import SweepRequest

    varied: dict[str, tuple[Any, ...]] = {}
    for flag in (*CHOICES, *NUMBERS):
        name = flag.lstrip("-").replace("-", "_")
        values = getattr(args, name)
        if values is not None:
            varied[_NAMES.get(flag, name)] = tuple(values)
    return SweepRequest(
        varied=varied,
        causal=args.causal,
        attention_only=args.attention_only,
        batch_policy=args.batch_policy,
        repeats=args.repeat,
        warmup=args.warmup,
        steps_per_repeat=args.steps,
        profiled_steps=args.active_steps,
        seed=args.seed,
        backend=args.backend,
        timeout_s=args.timeout,
        baseline=args.baseline,
        hardware=args.hardware,
        efficiency=args.efficiency,
        retry_failed=args.retry_failed,
    )


def _folder(args: argparse.Namespace) -> Path:
    from sp_profiler.record.location import RUNS_FOLDER, run_folder_name
    from sp_profiler.record.runfolder import unused

    if args.out is not None:
        if not args.out:
            raise UsageError("--out is empty: name a folder")
        return Path(args.out)
    return unused(Path(RUNS_FOLDER) / run_folder_name("sweep", datetime.now(UTC)))


def _measured(request: SweepRequest, root: Path) -> Sweep:
    """Run the cells; also when Ctrl-C ends that, the tables of what was found by then are written."""
    from sp_profiler.cli.live import Live
    from sp_profiler.cli.run import command_line
    from sp_profiler.sweeps.run import run_sweep
    from sp_profiler.sweeps.save import save
    from sp_profiler.sweeps.store import SWEEP_FILE, read_sweep

    with Live() as live:
        try:
            sweep = run_sweep(request, root, command=command_line(), watcher=_watcher(live))
        except KeyboardInterrupt:
            if (root / SWEEP_FILE).is_file():
                save(read_sweep(root), root)
                live.say(f"what was measured is in {root}; the same command goes on from there")
            raise
    save(sweep, root)
    return sweep


def _watcher(live: Live) -> Any:
    from sp_profiler.report.format import duration
    from sp_profiler.sweeps.run import Watcher

    class Shown(Watcher):
        def say(self, sentence: str) -> None:
            live.say(sentence)

        @contextmanager
        def running(self, cell: Cell, place: int, count: int, steps: int) -> Iterator[OnProgress]:
            ranks = int(cell.workload["ranks"])
            with live.task(f"{place}/{count} {cell.name}", ranks, steps) as on_progress:
                yield on_progress

        def done(self, cell: Cell, place: int, count: int) -> None:
            told = duration(cell.step.median_ns) + " a step" if cell.step is not None else "no step time"
            if cell.status != "ok":
                told = f"{cell.status}: {cell.reason}"
            live.say(f"{place} of {count}: {cell.name}: {told}")

    return Shown()


def _dry_run(request: SweepRequest, args: argparse.Namespace) -> int:
    from sp_profiler.cli.run import command_line
    from sp_profiler.record.workload import Backend
    from sp_profiler.sweeps.assemble import assemble
    from sp_profiler.sweeps.run import planned, settings_of
    from sp_profiler.sweeps.store import SweepFolder
    from sp_profiler.sweeps.terminal import print_planned

    grid = planned(request)
    found = SweepFolder(Path(args.out)).found() if args.out else {}
    sweep = assemble(
        grid.cells,
        settings_of(request, Backend(request.backend, None)),
        command=command_line(),
        skipped=grid.skipped,
        baseline=request.baseline,
        hardware=request.hardware,
    )
    if args.json:
        sys.stdout.write(sweep.to_json())
    else:
        print_planned(sweep, {name: one.cell.status for name, one in found.items()})
    return EXIT_OK


def _show_folder(args: argparse.Namespace) -> int:
    """Tables and charts of a folder anew, from its cells as they are now."""
    from sp_profiler.sweeps.run import reassembled
    from sp_profiler.sweeps.save import save

    if args.out is not None:
        raise UsageError("--show names the folder: leave --out away")
    root = Path(args.show)
    sweep = reassembled(root, args.baseline)
    save(sweep, root)
    _print(sweep, root, args.json)
    return EXIT_OK


def _print(sweep: Sweep, root: Path, as_json: bool) -> None:
    from sp_profiler.cli.run import shown
    from sp_profiler.sweeps.terminal import print_sweep

    if as_json:
        sys.stdout.write(sweep.to_json())
        return
    print_sweep(sweep)
    print(f"\ncharts: {shown(root / 'sweep.html')}")
