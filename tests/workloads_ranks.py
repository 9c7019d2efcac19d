"""Runs many workloads in one set of gloo ranks, and measures how far each is from the dense model.

One launch per world size: starting the processes costs more than all the workloads together.
"""

from __future__ import annotations

import hashlib
import math
import pickle
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from gloo_helpers import run_ranks
from torch import Tensor
from workloads_reference import DenseRun, Weights, dense_run

from workloads import sequence_parallel
from workloads.communication import Call, Communicator, Intent, Pending, Transport
from workloads.config import COMMS, NORMS, PROJECTIONS, RECOMPUTES, SAVES, WorkloadConfig
from workloads.data import batches
from workloads.linear import Piece
from workloads.model import weighted_modules
from workloads.train import TORCH_DTYPES, Workload, build
from workloads.weights import initial_weight, load_weights

STEPS = 10
EARLY_STEPS = 3
"""Of variants: Adam's moments are in use then, and where blocks are run again each step has to equal, bit by
bit, that of the run that keeps them."""
SIZES = {
    "layers": 2,
    "seq_len": 16,
    "hidden": 32,
    "heads": 8,
    "kv_heads": 4,
    "ffn": 48,
    "vocab": 40,
    # With fewer tokens some gradients are next to zero; AdamW turns their rounding into whole steps, and
    # even the dense f32 model ends 100 times further from the reference.
    "micro_batch": 4,
}
SCHEDULES: list[dict[str, Any]] = [
    {"mode": "ddp"},
    *({"mode": "tp", "comm": comm} for comm in COMMS),
    *({"mode": "sp", "comm": comm, "save": save} for save in SAVES for comm in COMMS),
]


@dataclass(frozen=True)
class Case:
    """One workload to train. `sabotage` breaks it in a way that parity must notice."""

    config: WorkloadConfig
    sabotage: str | None = None
    delayed: bool = False
    """Asynchronous collectives deliver their result at `wait` and not before."""

    @property
    def steps(self) -> int:
        """Every schedule trains for long, on two ranks in every dtype and on four in f64; its variants and
        other forms of its linears and norms until they would differ."""
        c = self.config
        is_variant = c.recompute != "none" or c.num_microbatches > 1 or self.delayed
        is_plain = (c.projections, c.norm) == (PROJECTIONS[0], NORMS[0])
        return STEPS if is_plain and not is_variant else EARLY_STEPS


@dataclass(frozen=True)
class Errors:
    """Relative L2 distances from the fp64 reference: first step; after all steps of AdamW."""

    logits: float
    loss: float
    gradients: dict[str, float]
    final_loss: float
    weights: float


@dataclass(frozen=True)
class Outcome:
    errors: Errors
    dense_errors: Errors
    """Of the dense model in the same dtype."""
    replicas_equal: bool
    """What every rank has whole is bitwise the same on all of them, gradients and final weights."""
    digest: str
    """Of the bits of all gradients of the first step, all losses and the final weights."""
    early: str
    """The same of the first `EARLY_STEPS` steps."""
    calls: tuple[list[Call], ...]
    """Collectives of the first step, for each rank."""


class Delayed(Transport):
    """Runs asynchronous collectives at once, but hands over the result only at `wait`."""

    def all_reduce(self, output: Tensor, source: Tensor, group: Any, is_async: bool) -> Any:
        if not is_async:
            return super().all_reduce(output, source, group, False)
        result = source.clone()
        super().all_reduce(result, result, group, False)
        return _Delivery(output, result, source)

    def all_gather(self, output: Tensor, source: Tensor, group: Any, is_async: bool) -> Any:
        return self._delay(super().all_gather, output, source, group, is_async)

    def reduce_scatter(self, output: Tensor, source: Tensor, group: Any, is_async: bool) -> Any:
        return self._delay(super().reduce_scatter, output, source, group, is_async)

    def _delay(self, run: Any, output: Tensor, source: Tensor, group: Any, is_async: bool) -> Any:
        if not is_async:
            return run(output, source, group, False)
        result = torch.empty_like(output)
        run(result, source, group, False)
        output.zero_()
        return _Delivery(output, result, source)


class _Delivery:
    def __init__(self, output: Tensor, result: Tensor, source: Tensor) -> None:
        self._output, self._result = output, result
        self._source, self._sent = source, source.clone()

    def wait(self) -> None:
        assert torch.equal(self._source, self._sent), "the input changed while the collective was in flight"
        self._output.copy_(self._result)


@contextmanager
def sabotaged(name: str | None) -> Iterator[None]:
    """Break the workloads in one known way."""
    if name is None:
        yield
        return
    target, attribute, broken = {
        "no norm reduction": (sequence_parallel.NormGradients, "finish", lambda self: None),
        "no wait": (Pending, "wait", lambda self: self._output),
        "leave reduces": (sequence_parallel.LeaveFunction, "backward", staticmethod(_leave_reducing)),
        "entry does not gather": (sequence_parallel.EnterFunction, "backward", staticmethod(_enter_zeros)),
    }[name]
    with mock.patch.object(target, attribute, broken):
        yield


def _leave_reducing(ctx: Any, dy: Tensor) -> Any:
    intent = Intent(sequence_parallel.Site("head"), "dgrad", "backward")
    return ctx.communicator.run("reduce_scatter", dy, intent), None, None


def _enter_zeros(ctx: Any, dy: Tensor) -> Any:
    communicator, _ = ctx.about
    parts = [dy if i == communicator.rank else torch.zeros_like(dy) for i in range(communicator.size)]
    return torch.cat(parts), None, None


def weight_of(piece: Piece, seed: int) -> Tensor:
    """As the workload's own, but with norm weights that are not 1: a forgotten one must show."""
    weight = initial_weight(piece, seed)
    if weight.ndim == 1:
        weight = weight + 0.2 * torch.sin(torch.arange(len(weight)) + float(len(piece.name)))
    return weight


class Ranks:
    """The work of one rank on a list of cases."""

    def __init__(self, rank: int, world: int) -> None:
        self._rank, self._world = rank, world
        self._dense: dict[Any, tuple[DenseRun, DenseRun]] = {}

    def run(self, case: Case) -> Outcome | None:
        """On rank 0 the outcome, elsewhere None."""
        config = case.config.canonical()
        communicator = Communicator(
            "dp" if config.mode == "ddp" else "tp",
            range(self._world),
            self._rank,
            dist.group.WORLD,
            Delayed() if case.delayed else None,
        )
        with sabotaged(case.sabotage):
            workload = build(config, communicator, torch.device("cpu"))
            load_weights(workload.model, workload.layout, lambda piece: weight_of(piece, config.seed))
            data_rank = self._rank if config.mode == "ddp" else 0
            data = batches(config, case.steps, data_rank, torch.device("cpu"))
            start = self._whole(workload, lambda parameter: parameter.detach())[0]
            with torch.no_grad():
                logits = [workload.model(tokens[:-1]) for tokens in data[0]]
            communicator.calls.clear()
            losses = [workload.step(data[0]).item()]
            calls = list(communicator.calls)
            gradients, same_gradients = self._whole(workload, _gradient)
            losses += [workload.step(tokens).item() for tokens in data[1:EARLY_STEPS]]
            early_weights, _ = self._whole(workload, lambda parameter: parameter.detach())
            losses += [workload.step(tokens).item() for tokens in data[EARLY_STEPS:]]
            weights, same_weights = self._whole(workload, lambda parameter: parameter.detach())
        all_calls: list[Any] = [None] * self._world
        dist.all_gather_object(all_calls, calls)
        all_losses: list[Any] = [None] * self._world
        dist.all_gather_object(all_losses, losses)
        if config.mode == "ddp":
            losses = [sum(step) / self._world for step in zip(*all_losses, strict=True)]
        if self._rank:
            return None
        measured = DenseRun(logits, gradients, losses, weights)
        exact, dense = self._reference(config, start, case.steps)
        return Outcome(
            _distance(measured, exact),
            _distance(dense, exact),
            same_gradients
            and same_weights
            and (config.mode == "ddp" or all_losses == [losses] * self._world),
            _digest(measured),
            _digest(DenseRun(logits, gradients, losses[:EARLY_STEPS], early_weights)),
            tuple(all_calls),
        )

    def _whole(self, workload: Workload, of: Callable[[Tensor], Tensor]) -> tuple[Weights, bool]:
        """Tensors of the whole model, from every rank's part; and whether replicas agree bitwise."""
        modules = [module for _, module in weighted_modules(workload.model)]
        pieces = [piece for module in modules for piece in module.pieces]
        shapes = [piece.local_shape(workload.layout.model_parts) for piece in pieces]
        mine = torch.cat([of(module.weight).flatten() for module in modules])
        everyone = [torch.empty_like(mine) for _ in range(self._world)]
        dist.all_gather(everyone, mine)
        parts = [flat.split([math.prod(shape) for shape in shapes]) for flat in everyone]
        whole: Weights = {}
        equal = True
        for piece, shape, *of_ranks in zip(pieces, shapes, *parts, strict=True):
            if piece.split is None:
                equal = equal and all(torch.equal(of_ranks[0], other) for other in of_ranks)
                whole[piece.name] = of_ranks[0].view(shape).clone()
            else:
                whole[piece.name] = torch.cat([part.view(shape) for part in of_ranks], piece.split)
        return whole, equal

    def _reference(self, config: WorkloadConfig, start: Weights, count: int) -> tuple[DenseRun, DenseRun]:
        """Dense runs over all the data of a step: in fp64, and in the workload's dtype."""
        key = (config.dtype, config.num_microbatches, config.mode == "ddp", count)
        if key not in self._dense:
            data_ranks = range(self._world) if config.mode == "ddp" else range(1)
            parts = [batches(config, count, data_rank, torch.device("cpu")) for data_rank in data_ranks]
            steps = [torch.cat(step) for step in zip(*parts, strict=True)]
            dtype = TORCH_DTYPES[config.dtype]
            self._dense[key] = (
                dense_run(start, steps, config, torch.float64, kernels="plain"),
                dense_run(start, steps, config, dtype, kernels="torch"),
            )
        return self._dense[key]


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _relative(measured: Tensor, exact: Tensor) -> float:
    exact = exact.double()
    return ((measured.double() - exact).norm() / exact.norm()).item()


def _distance(measured: DenseRun, exact: DenseRun) -> Errors:
    pairs = list(zip(measured.logits, exact.logits, strict=False))
    names = sorted(exact.weights)
    assert sorted(measured.weights) == sorted(measured.gradients) == names
    return Errors(
        logits=max(_relative(logits, reference) for logits, reference in pairs),
        loss=abs(measured.losses[0] / exact.losses[0] - 1),
        gradients={n: _relative(measured.gradients[n], exact.gradients[n]) for n in names},
        final_loss=abs(measured.losses[-1] / exact.losses[-1] - 1),
        weights=_relative(
            torch.cat([measured.weights[n].flatten() for n in names]),
            torch.cat([exact.weights[n].flatten() for n in names]),
        ),
    )


def _digest(run: DenseRun) -> str:
    digest = hashlib.sha256(repr(run.losses).encode())
    for tensors in (run.gradients, run.weights):
        for name in sorted(tensors):
            digest.update(tensors[name].contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def main(rank: int, out: Path, cases: list[Case]) -> None:
    """Rank 0 leaves the outcome of every case in OUT/outcomes.pickle."""
    ranks = Ranks(rank, dist.get_world_size())
    outcomes = {case: ranks.run(case) for case in cases}
    if rank == 0:
        (out / "outcomes.pickle").write_bytes(pickle.dumps(outcomes))


def config_of(world: int, **options: Any) -> WorkloadConfig:
    return WorkloadConfig(ranks=world, **{**SIZES, **options})


def whole_cases(world: int) -> list[Case]:
    """Unbroken workloads: every schedule in every dtype, with every projection and norm.

    At two ranks and f64 in all combinations. More ranks than cores are slow, so four ranks take fewer.
    """
    forms = [{"projections": p, "norm": n} for p in PROJECTIONS for n in NORMS]
    plain, fused = forms[0], forms[-1]
    if world == 2:
        by_dtype = {"f64": forms, "f32": [plain, fused], "bf16": [plain, fused]}
    else:
        by_dtype = {"f64": [plain], "f32": [forms[2]], "bf16": [fused]}
    cases = [
        Case(config_of(world, dtype=dtype, **schedule, **form))
        for dtype, chosen in by_dtype.items()
        for form in chosen
        for schedule in SCHEDULES
    ]
    form = plain if world == 2 else fused
    accumulating = [Case(config_of(world, dtype="f64", num_microbatches=2, **s, **form)) for s in SCHEDULES]
    return [*cases, *accumulating, *recomputing_cases(world)]


def recomputing_cases(world: int) -> list[Case]:
    """At two ranks and f64 both kinds of recompute with every schedule, projection and norm."""
    kinds = [kind for kind in RECOMPUTES if kind != "none"]
    forms = [{"projections": p, "norm": n} for p in PROJECTIONS for n in NORMS]
    plain, fused = forms[0], forms[-1]
    if world == 2:
        chosen = [("f64", form, kind) for form in forms for kind in kinds]
        chosen += [("bf16", plain, "full"), ("f32", fused, "selective")]
    else:
        chosen = [("f64", plain, "full")]
    cases = [
        Case(config_of(world, dtype=dtype, recompute=kind, **schedule, **form))
        for dtype, form, kind in chosen
        for schedule in SCHEDULES
    ]
    accumulating = [
        Case(config_of(world, dtype="f64", num_microbatches=2, recompute="full", **s, **plain))
        for s in SCHEDULES
        if world == 2
    ]
    return cases + accumulating


BROKEN = {
    # sabotage: the schedules in which it must show
    "no norm reduction": [s for s in SCHEDULES if s["mode"] == "sp"],
    "leave reduces": [{"mode": "sp", "comm": "sync", "save": "full"}],
    "entry does not gather": [{"mode": "sp", "comm": "sync", "save": "full"}],
    "no wait": [s for s in SCHEDULES if s["mode"] == "ddp" or s["comm"] == "async"],
}


def broken_cases() -> list[Case]:
    """Workloads with one mistake each, in which asynchronous results arrive at `wait` alone."""
    return [
        Case(config_of(2, dtype="f64", **schedule), sabotage=name, delayed=True)
        for name, schedules in BROKEN.items()
        for schedule in schedules
    ]


def delayed_cases() -> list[Case]:
    """The same deliveries without a mistake, also with blocks run again."""
    return [
        Case(config_of(2, dtype="f64", recompute=recompute, **schedule), delayed=True)
        for recompute in ("none", "full")
        for schedule in BROKEN["no wait"]
    ]


@cache
def outcomes(world: int) -> dict[Case, Outcome]:
    """Everything that is run at this world size; the first caller waits for it."""
    cases = whole_cases(world)
    if world == 2:
        cases += broken_cases() + delayed_cases()
    with tempfile.TemporaryDirectory() as folder:
        run_ranks("workloads_ranks", Path(folder), cases, ranks=world, timeout_s=800)
        return pickle.loads((Path(folder) / "outcomes.pickle").read_bytes())
