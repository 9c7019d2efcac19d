"""`sp-profile plan`: what schemes would keep, send and take at any size, without running them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sp_profiler.cli.options import FORMATS, add_many
from sp_profiler.cli.output import add_output, refuse_file_for_folder, refuse_folders_of, settle_output
from sp_profiler.errors import EXIT_OK

if TYPE_CHECKING:
    from sp_profiler.planning.model import Plan
    from sp_profiler.planning.request import PlanRequest

SINGLE_FILE = {"json": "plan.json", "html": "plan.html", "markdown": "plan.md"}

MANY_NUMBERS = {
    "--layers": "decoder blocks (2)",
    "--seq-len": "tokens per sequence (256)",
    "--micro-batch": "sequences per micro-batch (2)",
    "--tp": "ranks that share a model, in ddp ranks that hold one each (2)",
}
NUMBERS = {
    "--hidden": "hidden size (256)",
    "--heads": "attention heads (8)",
    "--kv-heads": "key/value heads (half the heads)",
    "--ffn": "feed-forward size (8/3 of hidden, rounded up)",
    "--vocab": "vocabulary (1024)",
    "--num-microbatches": "micro-batches per step: gradient accumulation (1)",
}
MANY_CHOICES = {
    "--modes": (("ddp", "tp", "sp"), "schemes to plan (tp sp)"),
    "--save": (("full", "shard"), "what sp keeps: gathered inputs or shards (full shard)"),
    "--comm": (
        ("sync", "async"),
        "collectives of backward (tp and sp full sync, sp shard async; with times both)",
    ),
    "--projections": (("separate", "fused"), "q, k, v and gate, up: five linears or two (separate)"),
    "--norm": (("eager", "fused"), "RMSNorm in float32, or one operator (eager)"),
    "--recompute": (("none", "selective", "full"), "activations run again in backward (none)"),
}
RATES = {
    "--flops": ("FLOP/S", "dense peak of a device at --dtype, such as 312e12"),
    "--bandwidth": ("BYTES/S", "of a rank's link in one direction, such as 300e9"),
    "--latency": ("SECONDS", "of each step of a ring, such as 5e-6"),
    "--memory-bandwidth": ("BYTES/S", "of the device's memory: norms, activations, optimizer"),
    "--efficiency": ("SHARE", "of the peak that GEMMs and attention reach (1)"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `plan`. Where several values are taken, every combination is planned."""
    model = parser.add_argument_group("sizes")
    for flag, text in MANY_NUMBERS.items():
        add_many(model, flag, int, metavar="N", help=text)
    for flag, text in NUMBERS.items():
        model.add_argument(flag, type=int, metavar="N", help=text)
    model.add_argument(
        "--dtype", choices=("bf16", "f16", "f32", "f64"), help="of weights and activations (bf16)"
    )
    schemes = parser.add_argument_group("schemes (options a mode does not use are ignored)")
    for flag, (choices, text) in MANY_CHOICES.items():
        add_many(schemes, flag, choices=choices, help=text)
    schemes.add_argument(
        "--no-extrapolate",
        action="store_true",
        help="execute every layer, also where 1, 2 and 3 show that each adds the same",
    )
    times = parser.add_argument_group("time (--hardware, or --flops, --bandwidth and --latency)")
    times.add_argument(
        "--hardware", metavar="NAME", help="a device whose data sheet is known, such as 'H100 SXM'"
    )
    for flag, (unit, text) in RATES.items():
        times.add_argument(flag, type=float, metavar=unit, help=text)
    add_output(parser, "plan", "one format")


def run(args: argparse.Namespace) -> int:
    """Plan, write, print; returns the exit code."""
    formats = settle_output(args)
    files = _files(args, formats)
    request = request_of(args)
    plan = _build(request)
    for path, content in _contents(plan, files).items():
        _write(path, content)
    _show(plan, args, formats)
    return EXIT_OK


def request_of(args: argparse.Namespace) -> PlanRequest:
    """The request that the options spell; what is not given keeps the request's default."""
    from sp_profiler.planning.machines import MachineRequest
    from sp_profiler.planning.request import PlanRequest

    rates = {name: getattr(args, name) for name in map(_attribute, ("--hardware", *RATES))}
    flags = (*MANY_NUMBERS, *NUMBERS, *MANY_CHOICES, "--dtype")
    given = {name: value for name in map(_attribute, flags) if (value := getattr(args, name)) is not None}
    return PlanRequest(**given, machine=MachineRequest(**rates), extrapolate=not args.no_extrapolate)


def _attribute(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


def _build(request: PlanRequest) -> Plan:
    """Build it, with a line of progress where somebody watches."""
    from sp_profiler.planning.request import require_torch

    require_torch()
    from sp_profiler.planning.build import build_plan

    if not sys.stderr.isatty():
        return build_plan(request)
    from rich.console import Console

    with Console(stderr=True).status("planning") as status:
        return build_plan(
            request, lambda place, count, label: status.update(f"planning {place + 1} of {count}: {label}")
        )


def _files(args: argparse.Namespace, formats: list[str]) -> dict[Path, tuple[str, str]]:
    """The files to be written, each with its format and its name in a folder; refused before the work."""
    from sp_profiler.report.planned.tables import TABLES
    from sp_profiler.report.save import is_one_file, refuse_existing

    if args.out is None:
        return {}
    out = Path(args.out)
    if is_one_file(args.out, formats, 1):
        files = {out: (formats[0], SINGLE_FILE[formats[0]])}
    else:
        refuse_file_for_folder(out, args.out, f"a plan as {', '.join(formats)} needs")
        files = {out / SINGLE_FILE[one]: (one, SINGLE_FILE[one]) for one in formats if one in SINGLE_FILE}
        tables = [one for one in formats if one not in SINGLE_FILE]
        files |= {out / f"{table}.{one}": (one, table) for one in tables for table in TABLES}
    refuse_existing(list(files), args.force)
    refuse_folders_of(files)
    return files


def _contents(plan: Plan, files: dict[Path, tuple[str, str]]) -> dict[Path, str | bytes]:
    made: dict[str, Any] = {}
    for form in {form for form, _ in files.values()}:
        made[form] = render(plan, form)
    return {path: made[form][name] for path, (form, name) in files.items()}


def render(plan: Plan, form: str) -> dict[str, str | bytes]:
    """What one format makes of a plan: the file's name (of tables: the table's) to its content."""
    import importlib

    if form in SINGLE_FILE:
        module = importlib.import_module(f"sp_profiler.report.planned.{form}")
        return {SINGLE_FILE[form]: module.render(plan)}
    assert form in FORMATS
    from sp_profiler.report.planned import tables

    return dict(tables.csv_tables(plan) if form == "csv" else tables.parquet_tables(plan))


def _write(path: Path, content: str | bytes) -> None:
    from sp_profiler.report.save import write

    write(path, content)


def _show(plan: Plan, args: argparse.Namespace, formats: list[str]) -> None:
    if formats and args.out is None:
        sys.stdout.write(str(next(iter(render(plan, formats[0]).values()))))
        return
    from sp_profiler.report.planned.terminal import print_plan

    print_plan(plan)
    if args.out is not None:
        print(f"\nwritten: {args.out}")
