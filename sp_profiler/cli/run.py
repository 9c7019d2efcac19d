"""`sp-profile run`: a shipped workload, the demo, or the user's own command, profiled and reported on."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sp_profiler.cli.options import add_format, complete_with
from sp_profiler.errors import EXIT_OK, SpProfilerError, UsageError, WorkloadError

if TYPE_CHECKING:
    from sp_profiler.cli.live import Live
    from sp_profiler.ledger import LedgerEntry
    from sp_profiler.record.progress import Progress
    from sp_profiler.record.runfolder import PendingFolder
    from sp_profiler.report.model import Report
    from sp_profiler.trace.tables import TraceSet
    from workloads.config import WorkloadConfig

WORKLOADS = ("ddp", "tp", "sp", "ring", "ulysses", "rsa", "usp", "demo", "demo-long-context")

SIZES = {
    "--layers": "decoder blocks (2)",
    "--seq-len": "tokens per sequence (256)",
    "--hidden": "hidden size (256)",
    "--heads": "attention heads (8)",
    "--kv-heads": "key/value heads (half the heads)",
    "--ffn": "feed-forward size (8/3 of hidden, rounded up)",
    "--vocab": "vocabulary (1024)",
    "--micro-batch": "sequences per micro-batch (2)",
    "--num-microbatches": "micro-batches per step: gradient accumulation (1)",
}

SCHEDULE_OPTIONS = ("comm", "save", "projections", "norm", "recompute")
CONTEXT_OPTIONS = ("layout", "causal", "ulysses", "model_ranks", "inside", "attention_only")

DEFAULT_TIMEOUT_S = 300.0
TRACES = "rank-*.pt.trace.json.gz"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `run`; what follows `--` reaches `run` as `args.rest`."""
    parser.usage = "sp-profile run WORKLOAD [options]\n       sp-profile run [options] -- COMMAND ..."
    workload = parser.add_argument(
        "workload",
        nargs="?",
        metavar="WORKLOAD",
        help="ddp, tp, sp (data, tensor, sequence parallel); ring, rsa, ulysses, usp (context parallel: "
        "ring attention, ring self-attention, Ulysses, Ulysses in a ring); several runs side by side: "
        "demo (tp and sp, without and with overlap), demo-long-context (schemes of context parallelism)",
    )
    complete_with(workload, WORKLOADS)
    parser.add_argument("--ranks", type=int, metavar="N", help="processes, 1 to 8 (2)")
    sizes = parser.add_argument_group("model")
    for flag, text in SIZES.items():
        sizes.add_argument(flag, type=int, metavar="N", help=text)
    sizes.add_argument(
        "--dtype", choices=("f32", "bf16", "f16", "f64"), help="of weights and activations (f32)"
    )
    schedule = parser.add_argument_group("schedule (options a workload does not use are ignored)")
    schedule.add_argument(
        "--comm",
        choices=("sync", "async"),
        help="whether collectives are waited for at once: those of backward, and all of attention (sync)",
    )
    schedule.add_argument(
        "--save",
        choices=("full", "shard"),
        help="what sp keeps for backward: the gathered input or its shard (full)",
    )
    schedule.add_argument(
        "--projections",
        choices=("separate", "fused"),
        help="q, k, v and gate, up: five linears or two (separate)",
    )
    schedule.add_argument(
        "--norm", choices=("eager", "fused"), help="RMSNorm: as usual in float32, or one operator (eager)"
    )
    schedule.add_argument(
        "--recompute",
        choices=("none", "selective", "full"),
        help="forward work done again in backward to save memory: no, attention cores or whole blocks (none)",
    )
    _add_context_arguments(parser)
    running = parser.add_argument_group("running")
    running.add_argument(
        "--backend",
        choices=("auto", "nccl", "gloo"),
        default="auto",
        help="nccl on GPUs, gloo without (auto)",
    )
    running.add_argument("--warmup", type=int, metavar="N", help="steps before the profiled ones (2)")
    running.add_argument("--active-steps", type=int, metavar="N", help="profiled steps (3)")
    running.add_argument("--seed", type=int, metavar="N", help="of weights and data (0)")
    running.add_argument(
        "--no-saved-tensors",
        dest="saved_tensors",
        action="store_false",
        help="leave out the step before the others that measures what is kept for backward",
    )
    running.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help=f"end the run after so long without progress ({DEFAULT_TIMEOUT_S:g}; a COMMAND: never)",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--out", metavar="DIR", help="folder of the run (a new one in ./sp-profile-runs)")
    output.add_argument("--force", action="store_true", help="write into --out although it is not empty")
    add_format(output, "more files beside report.json and report.html")
    output.add_argument(
        "--json", action="store_true", help="print the report as JSON; a COMMAND then prints to stderr"
    )


def _add_context_arguments(parser: argparse.ArgumentParser) -> None:
    context = parser.add_argument_group("context parallelism (ring, ulysses, rsa, usp)")
    context.add_argument(
        "--layout",
        choices=("contiguous", "zigzag", "striped"),
        help="tokens of a rank of a ring (ring, usp: zigzag with a causal mask; else contiguous)",
    )
    context.add_argument(
        "--causal",
        action=argparse.BooleanOptionalAction,
        help="whether a token sees only those before it (--causal)",
    )
    context.add_argument(
        "--ulysses", type=int, metavar="N", help="usp: ranks that exchange heads for tokens (2)"
    )
    context.add_argument(
        "--tp",
        type=int,
        dest="model_ranks",
        metavar="N",
        help="ranks that share one model inside each part of the sequence (1)",
    )
    context.add_argument("--inside", choices=("tp", "sp"), help="how those share it (tp)")
    context.add_argument(
        "--attention-only",
        action="store_const",
        const=True,
        help="attention of --layers layers over random q, k, v; no model, nothing is trained",
    )


def run(args: argparse.Namespace) -> int:
    """Run what was asked for; returns the exit code."""
    if args.timeout is not None and not args.timeout > 0:  # nan is not above 0 either
        raise UsageError(f"--timeout {args.timeout:g} must be above 0")
    if args.out == "":
        raise UsageError("--out is empty: name a folder")
    if args.rest:
        if args.workload is not None:
            raise UsageError(
                f"give a workload or a command after '--', not both ('{args.workload}' and '--')"
            )
        return _run_command(args)
    choices = ", ".join(WORKLOADS)
    if args.workload is None:
        raise UsageError(f"what to run? One of {choices}, or a command of your own after '--'")
    if args.workload not in WORKLOADS:
        raise UsageError(
            f"unknown workload '{args.workload}', expected one of {choices}; your own script is run by "
            f"sp-profile run -- {args.workload} ..."
        )
    if args.workload.startswith("demo"):
        from sp_profiler.cli.demo import DEMOS, run_demo

        return run_demo(args, DEMOS[args.workload])
    return _run_workload(args)


def workload_config(args: argparse.Namespace, mode: str, **fixed: Any) -> WorkloadConfig:
    """The configuration that the options spell; `fixed` wins over them. Raises UsageError."""
    from sp_profiler.record.workload import MAX_RANKS, require_torch
    from workloads.config import WorkloadConfig

    if args.ranks is not None and not 1 <= args.ranks <= MAX_RANKS:
        raise UsageError(f"--ranks {args.ranks} is not between 1 and {MAX_RANKS}")
    flags = [flag.lstrip("-").replace("-", "_") for flag in SIZES]
    names = (
        *flags,
        "ranks",
        "dtype",
        *SCHEDULE_OPTIONS,
        *CONTEXT_OPTIONS,
        "warmup",
        "active_steps",
        "seed",
    )
    given = {name: value for name in names if (value := getattr(args, name)) is not None}
    config = WorkloadConfig(**{**given, "mode": mode, **fixed})
    require_torch()
    return config


def folder_for(args: argparse.Namespace, label: str) -> PendingFolder:
    """The folder to be made: `--out`, or a new one named by time and label."""
    from sp_profiler.record.location import RUNS_FOLDER, run_folder_name
    from sp_profiler.record.runfolder import PendingFolder, unused

    if args.out is not None:
        return PendingFolder(Path(args.out), force=args.force)
    return PendingFolder(unused(Path(RUNS_FOLDER) / run_folder_name(label, datetime.now(UTC))))


def command_line() -> list[str]:
    """What the user typed, for run.json."""
    return ["sp-profile", *sys.argv[1:]]


def _run_workload(args: argparse.Namespace) -> int:
    from sp_profiler.cli.live import Live
    from sp_profiler.record.workload import choose_backend, record_workload
    from workloads.config import scheme_name

    config = workload_config(args, args.workload)
    label = scheme_name(config)
    with folder_for(args, label) as pending, Live() as live:
        backend = choose_backend(args.backend, config.ranks)
        if backend.note:
            live.say(backend.note)
        with live.task(label, config.ranks, config.warmup + config.active_steps) as on_progress:
            try:
                record_workload(
                    config,
                    backend,
                    folder=pending.path,
                    logs=pending.logs,
                    timeout_s=args.timeout or DEFAULT_TIMEOUT_S,
                    command=command_line(),
                    on_progress=on_progress,
                    saved_tensors=args.saved_tensors,
                )
            except WorkloadError as error:
                raise with_logs(error, pending) from None
        with publish_on_error(pending):
            report = write_report(pending, args.formats)
        folder = pending.publish()
    show(report, folder, args.json)
    return EXIT_OK


@contextmanager
def publish_on_error(pending: PendingFolder) -> Iterator[None]:
    """Keep what was recorded when its analysis fails, and let the error go on to be told.

    Expected are SpProfilerError (traces that cannot be used) and OSError (a full disk); after a defect of
    ours the recording is kept too, for it may have cost hours. When the user interrupts nothing is kept.
    """
    try:
        yield
    except Exception as error:
        why, where = type(error).__name__, shown(pending.publish())
        print(f"sp-profile run: no report could be made ({why}); the traces are in {where}", file=sys.stderr)
        raise


def with_logs(error: WorkloadError, pending: PendingFolder) -> WorkloadError:
    """The same error, saying where the logs were kept."""
    kept = pending.keep_logs()
    return error if kept is None else WorkloadError(f"{error}\nlogs: {shown(kept)}")


def write_report(pending: PendingFolder, formats: list[str], *, part: str = "") -> Report:
    """Analyse what `pending` (or its subfolder `part`) holds, write the reports there, return the report.

    The report speaks of the folder by the name it is about to get. Raises SpProfilerError.
    """
    from sp_profiler.analysis.steps import WindowRule
    from sp_profiler.engine import analyze_run
    from sp_profiler.report.save import save
    from sp_profiler.trace.find import find_runs
    from sp_profiler.trace.load import load_run

    folder = pending.path / part
    traces = load_run(find_runs([str(folder)])[0])
    report = analyze_run(_moved(traces, folder, pending.target / part), WindowRule(rule="step"))
    save(report, list(dict.fromkeys(["json", "html", *formats])), folder, force=True)
    return report


def _moved(traces: TraceSet, source: Path, target: Path) -> TraceSet:
    """The same traces, lying in `target`."""
    place = shown(target)

    def ledger(entries: Iterable[LedgerEntry]) -> tuple[LedgerEntry, ...]:
        return tuple(replace(e, file=e.file and e.file.replace(str(source), place)) for e in entries)

    moved = (
        replace(trace, path=trace.path.replace(str(source), place), ledger=ledger(trace.ledger))
        for trace in traces.traces
    )
    return replace(traces, name=target.name, root=place, traces=tuple(moved), ledger=ledger(traces.ledger))


def show(report: Report, folder: Path, as_json: bool) -> None:
    """The result on stdout: the summary and where the page is, or JSON."""
    from rich.console import Console

    from sp_profiler.report import json, terminal

    if as_json:
        sys.stdout.write(json.render(report))
        return
    terminal.print_report(report, Console())
    print(f"\nreport: {shown(folder / 'report.html')}")


def shown(path: Path) -> str:
    """A path for people: relative to where they are when it lies below."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _run_command(args: argparse.Namespace) -> int:
    """Run the user's command; its exit code is ours, whatever becomes of the report."""
    from sp_profiler.cli.live import Live
    from sp_profiler.record import progress
    from sp_profiler.record.launch import run_command

    scripts = [Path(part).stem for part in args.rest if part.endswith(".py")]
    label = (scripts or [Path(args.rest[0]).name])[0]
    with folder_for(args, label) as pending, Live(bar=False) as live:
        env = _command_environment(args, pending)
        try:
            code = run_command(
                args.rest,
                env=env,
                timeout_s=args.timeout,
                on_progress=lambda states: None,
                quiet_stdout=args.json,
            )
        except BaseException:  # Ctrl-C or --timeout: what was recorded by then may have cost hours
            _keep_traces(pending, args, live)
            raise
        captures = _captures(pending, args)
        if not captures:
            live.say(_why_no_trace(code, progress.read(Path(env[progress.FOLDER_VARIABLE]))))
            return code
        try:
            reports = [_report_on_command(pending, part, args, live) for part in captures]
        finally:  # also when Ctrl-C ends the analysis
            folder = pending.publish()
    for part, report in zip(captures[1:], reports[1:], strict=True):
        print(f"further {'traces' if report is None else 'report'}: {shown(folder / part)}", file=sys.stderr)
    if reports[0] is None:
        print(f"traces: {shown(folder / captures[0])}", file=sys.stderr)
        return code
    show(reports[0], folder / captures[0], args.json)
    return code


def _captures(pending: PendingFolder, args: argparse.Namespace) -> list[str]:
    """The subfolders with traces ("" is the folder itself), first capture first; all know the command."""
    from sp_profiler.record import runfile
    from sp_profiler.record.location import capture_folders

    parts = [part for part in capture_folders(pending.path) if any((pending.path / part).glob(TRACES))]
    command = ["sp-profile", "run", "--", *args.rest]
    for part in parts:
        runfile.update(pending.path / part, lambda content: {**content, "command": command})
    return parts


def _keep_traces(pending: PendingFolder, args: argparse.Namespace, live: Live) -> None:
    """Publish what an interrupted command recorded, if it recorded anything."""
    if _captures(pending, args):
        folder = shown(pending.publish())
        live.say(f"what was recorded is in {folder}: sp-profile analyze {folder} reports on it")


def _why_no_trace(code: int, states: Mapping[int, Progress]) -> str:
    none = f"the command failed (exit code {code}) and left no trace" if code else "the command left no trace"
    if states:
        return f"{none}: it ended before sp_profiler.capture() had recorded a step"
    if code:  # nobody knows what it would have recorded
        return none
    return (
        f"{none}: put `with sp_profiler.capture() as prof:` around its training "
        "loop and call `prof.step()` after each step"
    )


def _command_environment(args: argparse.Namespace, pending: PendingFolder) -> dict[str, str]:
    from sp_profiler.record.progress import FOLDER_VARIABLE

    states = pending.logs / "progress"
    states.mkdir()
    env = {**os.environ, "SP_PROFILE_OUT": str(pending.path), FOLDER_VARIABLE: str(states)}
    if args.warmup is not None:
        env["SP_PROFILE_WARMUP"] = str(args.warmup)
    if args.active_steps is not None:
        env["SP_PROFILE_ACTIVE"] = str(args.active_steps)
    return env


def _report_on_command(
    pending: PendingFolder, part: str, args: argparse.Namespace, live: Live
) -> Report | None:
    """The report of a command's traces; None, after a warning, when it cannot be made."""
    try:
        return write_report(pending, args.formats, part=part)
    except SpProfilerError as error:
        live.say(f"no report could be made: {error}")
    except Exception as error:  # noqa: BLE001 - a defect of ours must not hide the traces or the exit code
        traceback.print_exc()  # its only trace: the command's own exit code is ours
        live.say(f"no report could be made: {type(error).__name__}: {error}")
    return None
