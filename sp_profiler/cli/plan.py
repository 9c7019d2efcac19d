"""`sp-profile plan`: what schemes would keep, send and take at any size, without running them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sp_profiler.cli.options import FORMATS, add_many
from sp_profiler.cli.output import add_output, refuse_file_for_folder, refuse_folders_of, settle_output
from sp_profiler.errors import EXIT_OK, UsageError

if TYPE_CHECKING:
    from sp_profiler.planning.long_context.model import LongContextPlan
    from sp_profiler.planning.long_context.request import LongContextRequest
    from sp_profiler.planning.model import Plan
    from sp_profiler.planning.request import PlanRequest
    from sp_profiler.report.planned.shown import AnyPlan

SINGLE_FILE = {"json": "plan.json", "html": "plan.html", "markdown": "plan.md"}

MANY_NUMBERS = {
    "--layers": "decoder blocks (2)",
    "--seq-len": "tokens per sequence (256)",
    "--micro-batch": "sequences per micro-batch (2)",
    "--tp": "ranks that share a model, in ddp ranks that hold one each (2; --long-context: most of a node)",
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
    "--bandwidth": ("BYTES/S", "of a rank's link in one direction, such as 300e9; between nodes"),
    "--latency": ("SECONDS", "of each step of a ring, such as 5e-6"),
    "--memory-bandwidth": ("BYTES/S", "of the device's memory: norms, activations, optimizer"),
    "--efficiency": ("SHARE", "of the peak that GEMMs and attention reach (1)"),
}
CONTEXT_NUMBERS = {
    "--cp": "ranks that share the sequence; needed, as are --seq-len, --hidden and --heads",
    "--ranks-per-node": "ranks of one node (the profile's, else 8)",
}
CONTEXT_RATES = {
    "--intra-bandwidth": ("BYTES/S", "of the link inside a node (that of --bandwidth)"),
    "--intra-latency": ("SECONDS", "of a step inside a node (that of --latency)"),
}
CONTEXT_NEEDS = ("--seq-len", "--hidden", "--heads", "--cp")
NOT_OF_CONTEXT = (*MANY_CHOICES, "--vocab", "--num-microbatches", "--no-extrapolate", "--memory-bandwidth")


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
        "--hardware",
        metavar="NAME",
        help="a device whose data sheet is known, such as 'H100 SXM', or a profile, such as h100-ib",
    )
    for flag, (unit, text) in RATES.items():
        times.add_argument(flag, type=float, metavar=unit, help=text)
    _add_long_context(parser)
    add_output(parser, "plan", "one format")


def _add_long_context(parser: argparse.ArgumentParser) -> None:
    context = parser.add_argument_group(
        "long context (one value of each size; by default 1 layer, 1 sequence, as many KV heads as heads)"
    )
    context.add_argument(
        "--long-context",
        action="store_true",
        help="ring attention, Ulysses and both beside TP and SP: what is kept, sent, hidden, and what to do",
    )
    for flag, text in CONTEXT_NUMBERS.items():
        context.add_argument(flag, type=int, metavar="N", help=text)
    add_many(context, "--ulysses", int, metavar="N", help="Ulysses ranks of hybrids (every divisor of --cp)")
    context.add_argument("--no-causal", action="store_true", help="attention without a causal mask")
    for flag, (unit, text) in CONTEXT_RATES.items():
        context.add_argument(flag, type=float, metavar=unit, help=text)


def run(args: argparse.Namespace) -> int:
    """Plan, write, print; returns the exit code."""
    formats = settle_output(args)
    _refuse_other_kind(args)
    files = _files(args, formats)
    plan = _build_long_context(args) if args.long_context else _build(request_of(args))
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


def _refuse_other_kind(args: argparse.Namespace) -> None:
    """UsageError for options of a plan of long context without it, and the other way round."""
    if not args.long_context:
        given = [
            flag
            for flag in (*CONTEXT_NUMBERS, "--ulysses", "--no-causal", *CONTEXT_RATES)
            if _is_given(args, flag)
        ]
        if given:
            verb = "is" if len(given) == 1 else "are"
            raise UsageError(f"{', '.join(given)} {verb} for plans of long context: add --long-context")
        return
    given = [flag for flag in NOT_OF_CONTEXT if _is_given(args, flag)]
    if given:
        verb = "is" if len(given) == 1 else "are"
        raise UsageError(
            f"{', '.join(given)} {verb} not for --long-context, which plans every scheme at one size"
        )
    missing = [flag for flag in CONTEXT_NEEDS if not _is_given(args, flag)]
    if missing:
        raise UsageError(f"--long-context needs {', '.join(missing)}")
    for flag in MANY_NUMBERS:
        values = getattr(args, _attribute(flag))
        if values is not None and len(values) > 1:
            raise UsageError(f"--long-context plans one size: {flag} takes one value, not {len(values)}")


def _is_given(args: argparse.Namespace, flag: str) -> bool:
    value = getattr(args, _attribute(flag))
    return value is not None and value is not False  # 0 is given, and for who uses it to refuse


def long_context_request_of(args: argparse.Namespace) -> LongContextRequest:
    """The request of a plan of long context; what is not given keeps the request's default."""
    from sp_profiler.planning.long_context.request import LongContextRequest
    from sp_profiler.planning.machines import InsideRequest, MachineRequest

    plain = {name: getattr(args, name) for name in ("hidden", "heads", "kv_heads", "ffn", "dtype")}
    plain |= {name: getattr(args, name) for name in ("cp", "ranks_per_node", "ulysses")}
    single = {name: getattr(args, name) for name in map(_attribute, MANY_NUMBERS)}
    given = plain | {name: values[0] for name, values in single.items() if values is not None}
    return LongContextRequest(
        **{name: value for name, value in given.items() if value is not None},
        causal=not args.no_causal,
        machine=MachineRequest(
            args.hardware, args.flops, args.bandwidth, args.latency, None, args.efficiency
        ),
        inside=InsideRequest(args.intra_bandwidth, args.intra_latency),
    )


def _build_long_context(args: argparse.Namespace) -> LongContextPlan:
    from sp_profiler.planning.long_context.build import build_long_context

    return build_long_context(long_context_request_of(args))


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
    if args.out is None:
        return {}
    from sp_profiler.report.planned import long_context_tables
    from sp_profiler.report.planned import tables as plain_tables
    from sp_profiler.report.save import is_one_file, refuse_existing

    out = Path(args.out)
    if is_one_file(args.out, formats, 1):
        files = {out: (formats[0], SINGLE_FILE[formats[0]])}
    else:
        refuse_file_for_folder(out, args.out, f"a plan as {', '.join(formats)} needs")
        files = {out / SINGLE_FILE[one]: (one, SINGLE_FILE[one]) for one in formats if one in SINGLE_FILE}
        tables = (long_context_tables if args.long_context else plain_tables).TABLES
        files |= {
            out / f"{table}.{one}": (one, table)
            for one in formats
            if one not in SINGLE_FILE
            for table in tables
        }
    refuse_existing(list(files), args.force)
    refuse_folders_of(files)
    return files


def _contents(plan: AnyPlan, files: dict[Path, tuple[str, str]]) -> dict[Path, str | bytes]:
    made: dict[str, Any] = {}
    for form in {form for form, _ in files.values()}:
        made[form] = render(plan, form)
    return {path: made[form][name] for path, (form, name) in files.items()}


def render(plan: AnyPlan, form: str) -> dict[str, str | bytes]:
    """What one format makes of a plan: the file's name (of tables: the table's) to its content."""
    import importlib

    if form in SINGLE_FILE:
        module = importlib.import_module(f"sp_profiler.report.planned.{form}")
        return {SINGLE_FILE[form]: module.render(plan)}
    assert form in FORMATS
    from sp_profiler.report.planned.shown import table_files

    return dict(table_files(plan, form))


def _write(path: Path, content: str | bytes) -> None:
    from sp_profiler.report.save import write

    write(path, content)


def _show(plan: AnyPlan, args: argparse.Namespace, formats: list[str]) -> None:
    if formats and args.out is None:
        sys.stdout.write(str(next(iter(render(plan, formats[0]).values()))))
        return
    from sp_profiler.report.planned.terminal import print_plan

    print_plan(plan)
    if args.out is not None:
        print(f"\nwritten: {args.out}")
