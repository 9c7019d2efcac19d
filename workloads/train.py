"""Trains a workload for a few steps, profiled when SP_PROFILE_OUT is set.

Run it under torch's launcher: `torchrun --nproc-per-node 2 -m workloads.train config.json`, where
config.json holds the options of `workloads.config.WorkloadConfig`. Besides the trace every rank leaves
`rank-00000.workload.json` in $SP_PROFILE_OUT: losses, step times, process groups. Attention alone is run
in the same way, but trains nothing and has no losses.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sp_profiler.errors import SpProfilerError, UsageError, WorkloadError
from sp_profiler.record.annotate import annotate
from workloads.attention_only import AttentionOnly, AttentionStack
from workloads.communication import Communicator, Intent, Site
from workloads.config import WorkloadConfig
from workloads.context.parallel import Undivided, context_attention, context_parallel
from workloads.data import batches
from workloads.ddp import DataParallel
from workloads.groups import Groups, groups_for, of_context, only, over_data
from workloads.layout import GradientReduction, Layout
from workloads.model import Decoder
from workloads.sequence_parallel import SequenceParallel
from workloads.tensor_parallel import TensorParallel
from workloads.weights import initial_weight, load_weights

TORCH_DTYPES = {"f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


@dataclass(frozen=True)
class Workload:
    """A model with all it needs to train."""

    config: WorkloadConfig
    layout: Layout
    model: Decoder
    optimizer: torch.optim.Optimizer
    reduction: GradientReduction

    def data(self, steps: int, rank: int) -> list[Tensor]:
        """Tokens [num_microbatches, S+1, B] for each step; those of one `rank` are the same on every rank."""
        return batches(self.config, steps, rank, self.device)

    def constants(self) -> Tensor:
        """Tokens for one step, all the same."""
        config = self.config
        shape = (config.num_microbatches, config.seq_len + 1, config.micro_batch)
        return torch.zeros(shape, dtype=torch.int64, device=self.device)

    def tensors(self, batch: Tensor) -> list[Tensor]:
        """What a step is given."""
        return [batch]

    @property
    def device(self) -> torch.device:
        return self.model.cos.device

    def step(self, tokens: Tensor) -> Tensor:
        """One training step on tokens [num_microbatches, S+1, B]; gives the mean loss."""
        self.optimizer.zero_grad(set_to_none=True)
        losses = []
        for i, microbatch in enumerate(tokens):
            loss = self.forward(microbatch, len(tokens))
            self.backward(loss, is_last=i == len(tokens) - 1)
            losses.append(loss.detach())
        self.update()
        return torch.stack(losses).sum()

    def forward(self, microbatch: Tensor, microbatches: int) -> Tensor:
        """What tokens [S+1, B] add to the step's loss."""
        return self.model.loss(microbatch) / microbatches

    def backward(self, loss: Tensor, *, is_last: bool) -> None:
        if is_last:
            self.reduction.before_last_backward()
        loss.backward()

    def update(self) -> None:
        """Complete the gradients, then move the weights."""
        self.reduction.finish()
        with annotate("optimizer"):
            self.optimizer.step()


def layout_for(config: WorkloadConfig, groups: Groups, device: torch.device) -> Layout:
    """The layout of a canonical config: the one place that knows which mode is split how."""
    dtype = TORCH_DTYPES[config.dtype]
    if config.mode == "ddp":
        assert config.bucket_mib is not None
        return DataParallel(only(groups), config.bucket_mib * 2**20, device, dtype)
    if not config.is_context:
        return _model_layout(config, only(groups), device)
    assert config.bucket_mib is not None
    context = of_context(groups)
    inner = Undivided(device, dtype)
    if context.model is not None:
        inner = _model_layout(config, context.model, device)
    bucket_bytes = config.bucket_mib * 2**20
    return context_parallel(
        config.scheme(), context, inner, seq_len=config.seq_len, bucket_bytes=bucket_bytes
    )


def _model_layout(config: WorkloadConfig, communicator: Communicator, device: torch.device) -> Layout:
    """Of the ranks that share one model."""
    dtype = TORCH_DTYPES[config.dtype]
    assert config.comm is not None
    if config.model_scheme == "tp":
        return TensorParallel(communicator, config.comm, device, dtype)
    assert config.save is not None
    return SequenceParallel(communicator, config.save, config.comm, device, dtype)


def build(config: WorkloadConfig, groups: Groups, device: torch.device) -> Workload:
    """Model and optimizer of this rank, ready to train; `groups` are those of the workload's ranks."""
    workload = assemble(config, groups, device)
    load_weights(workload.model, workload.layout, lambda piece: initial_weight(piece, config.seed))
    return workload


def assemble(config: WorkloadConfig, groups: Groups, device: torch.device) -> Workload:
    """The same with uninitialised weights. Works under FakeTensorMode with the fake process group, too."""
    config = config.canonical()
    layout = layout_for(config, groups, device)
    model = Decoder(config, layout, device, TORCH_DTYPES[config.dtype])
    # One kernel for all parameters: deterministic, and a few events in the trace instead of thousands.
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, fused=True)
    return Workload(config, layout, model, optimizer, layout.gradient_reduction(model))


def attention_only(config: WorkloadConfig, groups: Groups, device: torch.device) -> AttentionOnly:
    """Attention of this rank, without the model around it."""
    config = config.canonical()
    attend = context_attention(config.scheme(), of_context(groups), config.seq_len)
    return AttentionOnly(config, AttentionStack(config, attend), device, TORCH_DTYPES[config.dtype])


def choose_device(backend: str, local_rank: int) -> tuple[str, torch.device]:
    """Backend and device: NCCL on GPUs where there are any, else gloo on the CPU; `backend` may force one.

    Raises UsageError when NCCL is asked for and this rank has no GPU.
    """
    if backend == "auto":
        backend = "nccl" if torch.cuda.is_available() else "gloo"
    if backend == "gloo":
        return backend, torch.device("cpu")
    found = torch.cuda.device_count()
    if local_rank >= found:
        raise UsageError(
            f"backend nccl needs a GPU for each rank of this host: rank {local_rank} has none, {found} found"
        )
    return backend, torch.device("cuda", local_rank)


@contextlib.contextmanager
def process_group(backend: str, device: torch.device) -> Iterator[None]:
    """The world's process group, bound to the device, ended on leaving."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        dist.init_process_group(backend, device_id=device)
    else:
        # The ranks of one machine share its cores; more threads each would fight over them.
        torch.set_num_threads(1)
        dist.init_process_group(backend)
    try:
        yield
    finally:
        dist.destroy_process_group()


class StepTimer:
    """Marks starts and ends of steps; on GPUs with events, so that measuring waits for nothing."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._marks: list[Any] = []  # start, end, start, end, ...

    def mark(self) -> None:
        if self._on_gpu:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter_ns())

    def step_times_ns(self) -> list[int]:
        """From each start to its end: what the profiler does between steps is no part of a step."""
        pairs = list(zip(self._marks[::2], self._marks[1::2], strict=True))
        if not self._on_gpu:
            return [end - start for start, end in pairs]
        torch.cuda.synchronize()
        return [round(start.elapsed_time(end) * 1e6) for start, end in pairs]


def train(config: WorkloadConfig, groups: Groups, device: torch.device, profile: Any) -> dict[str, Any]:
    """Runs warm-up and active steps; gives what `rank-00000.workload.json` says of this rank.

    `profile` is a context whose value is told of every step's end through `step()`.
    """
    make = attention_only if config.attention_only else build
    workload: Workload | AttentionOnly = make(config, groups, device)
    data: list[Any] = workload.data(config.warmup + config.active_steps, data_rank(config, groups))
    timer = StepTimer(device)
    losses = []
    with profile as session:
        for batch in data:
            timer.mark()
            losses.append(workload.step(batch))
            timer.mark()
            session.step()
    collectives = sum(len(one.calls) for one in groups.communicators)
    return {
        "rank": dist.get_rank(),
        "device_type": device.type,
        "backend": dist.get_backend(),
        "losses": None if config.attention_only else _mean_losses(losses, over_data(config, groups)),
        "step_times_ns": timer.step_times_ns(),
        "warmup": config.warmup,
        "parameters": sum(parameter.numel() for parameter in workload.model.parameters()),
        "collectives": collectives,
        "groups": [
            {"key": one.key, "description": one.description, "ranks": list(one.ranks)}
            for one in groups.communicators
        ],
    }


def data_rank(config: WorkloadConfig, groups: Groups) -> int:
    """Whose data this rank is given. Ranks that divide a sequence take their tokens of the same one."""
    if config.attention_only:
        return dist.get_rank()
    return only(groups).rank if config.dp > 1 else 0


def _mean_losses(losses: list[Tensor], over: Communicator | None) -> list[float]:
    """Over the ranks that saw different tokens; exchanged once, when nothing is profiled any more."""
    values = torch.stack(losses).double()
    if over is not None:
        intent = Intent(Site("losses"), "other", "optimizer")
        values = over.run("all_reduce", values, intent) / over.size
    return values.tolist()


def measured(config: WorkloadConfig, groups: Groups, device: torch.device) -> dict[str, Any]:
    """What one step keeps and holds, for run.json: a step of a workload of its own, built and let go."""
    from workloads.measure import measure_saved

    result = measure_saved(config, groups, device).to_json()
    # What training finds must not depend on whether this ran; gradient hooks and parameters hold each other.
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return result


class NoProfile:
    """Stands in for the profiler's session where nothing is recorded."""

    def __enter__(self) -> NoProfile:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def step(self) -> None:
        return


def profile_for(config: WorkloadConfig) -> Any:
    """The profiler's session when SP_PROFILE_OUT asks for one."""
    if not os.environ.get("SP_PROFILE_OUT"):
        return NoProfile()
    from sp_profiler.record.capture import capture

    return capture(warmup=config.warmup, active=config.active_steps)


def read_config(path: str) -> WorkloadConfig:
    """Raises UsageError when the file is no JSON object of workload options."""
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the workload's configuration from {path}: {error}") from error
    if not isinstance(values, dict):
        raise UsageError(f"the workload's configuration in {path} is not a JSON object")
    return WorkloadConfig.from_dict(values)


def write_result(result: dict[str, Any], folder: str) -> None:
    """Write `rank-00000.workload.json`, whole or not at all."""
    path = Path(folder) / f"rank-{result['rank']:05d}.workload.json"
    temporary = path.with_suffix(".partial")
    temporary.write_text(json.dumps(result, indent=1), encoding="utf-8")
    temporary.replace(path)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m workloads.train", description=__doc__)
    parser.add_argument("config", help="JSON file with the workload's options")
    parser.add_argument("--backend", choices=("auto", "nccl", "gloo"), default="auto")
    parser.add_argument(
        "--no-saved-tensors",
        action="store_true",
        help="leave out the step before training that measures what is kept for backward",
    )
    options = parser.parse_args(arguments)
    try:
        run_rank(read_config(options.config), options.backend, saved_tensors=not options.no_saved_tensors)
    except SpProfilerError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def run_rank(config: WorkloadConfig, backend: str, *, saved_tensors: bool) -> None:
    """One rank's whole life, from the launcher's environment to its result file.

    `saved_tensors`: measure what is kept for backward, when there is a folder to tell it in.
    """
    folder = os.environ.get("SP_PROFILE_OUT")
    missing = [name for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if name not in os.environ]
    if missing:
        raise UsageError(f"{missing[0]} is not set: start this under torchrun")
    world_size = int(os.environ["WORLD_SIZE"])
    if world_size != config.ranks:
        raise UsageError(f"the configuration is for {config.ranks} ranks, but {world_size} were started")
    backend, device = choose_device(backend, int(os.environ["LOCAL_RANK"]))
    with process_group(backend, device):
        result = run_workload(config, device, saved_tensors=saved_tensors and bool(folder))
    if folder:
        write_result(result, folder)


def run_workload(config: WorkloadConfig, device: torch.device, *, saved_tensors: bool) -> dict[str, Any]:
    """What a rank does in a world that exists: its groups, its steps, its result."""
    groups = groups_for(config)
    saved = measured(config, groups, device) if saved_tensors else None
    result = {**train(config, groups, device, profile_for(config)), "saved_tensors": saved}
    losses = result["losses"] or ()
    bad = [i for i, loss in enumerate(losses) if loss != loss or abs(loss) == float("inf")]
    if bad:
        raise WorkloadError(f"rank {result['rank']}: the loss of step {bad[0]} is not finite")
    return result


if __name__ == "__main__":
    sys.exit(main())
