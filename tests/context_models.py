"""Whole models, trained for a few steps on the ranks of one world, against the dense model on one device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from context_groups import Groups, everywhere
from torch import Tensor
from workloads_ranks import SIZES, Errors, _digest, _distance, weight_of
from workloads_reference import DenseRun, dense_run

from workloads.communication import Communicator
from workloads.config import WorkloadConfig
from workloads.context.parallel import ContextParallel, ContextScheme, Undivided, context_parallel
from workloads.data import batches
from workloads.layout import Layout
from workloads.model import Decoder, weighted_modules
from workloads.sequence_parallel import SequenceParallel
from workloads.tensor_parallel import TensorParallel
from workloads.train import TORCH_DTYPES, Workload
from workloads.weights import load_weights

STEPS = 5


@dataclass(frozen=True)
class ModelCase:
    """`sabotage` gives tokens, targets or positions of the rotary embedding to the wrong rank or place."""

    scheme: ContextScheme
    dtype: str = "f64"
    tp: str | None = None
    """tp or sp: two ranks divide the model inside each part of the sequence."""
    recompute: str = "none"
    microbatches: int = 1
    sabotage: str | None = None


@dataclass(frozen=True)
class ModelOutcome:
    errors: Errors
    dense_errors: Errors
    replicas_equal: bool
    bits: str


def model_cases(world: int) -> list[ModelCase]:
    options: list[dict[str, Any]] = [
        {"scheme": "ring"},
        {"scheme": "ring", "layout": "zigzag"},
        {"scheme": "ring", "layout": "striped"},
        {"scheme": "rsa"},
        {"scheme": "ulysses"},
    ]
    if world == 4:
        options = [options[1], options[3], options[4]]
        options += [{"scheme": "usp", "ulysses": 2, "layout": layout} for layout in ("zigzag", "striped")]
    pairs = [
        tuple(ModelCase(ContextScheme(ranks=world, comm=comm, **o)) for comm in ("sync", "async"))
        for o in options
    ]
    cases = [case for pair in pairs for case in pair]
    lower = [late for _, late in pairs if world == 2 or late.scheme.scheme == "usp"]
    cases += [dataclasses.replace(late, dtype=d) for late in lower for d in ("f32", "bf16")]
    zigzag = next(late for _, late in pairs if late.scheme.layout == "zigzag")
    if world == 2:
        cases += [dataclasses.replace(late, recompute="full") for _, late in pairs]
        cases += [
            dataclasses.replace(zigzag, recompute="selective"),
            dataclasses.replace(zigzag, microbatches=2),
        ]
        cases += [dataclasses.replace(zigzag, sabotage=name) for name in SABOTAGES]
    else:
        cases.append(ModelCase(ContextScheme("ring", 2, "async", "zigzag"), tp="sp"))
        cases.append(ModelCase(ContextScheme("ulysses", 2, "async"), tp="tp"))
    return cases


class WrongTokens(ContextParallel):
    """Tokens and targets of another layout than attention assumes."""

    def own_tokens(self, x: Tensor) -> Tensor:
        return super().own_tokens(x) if x.ndim == 1 else _contiguous(x, self)


class WrongRotary(ContextParallel):
    """Rotary positions counted from 0 on every rank."""

    def own_tokens(self, x: Tensor) -> Tensor:
        return x[: len(self.positions)] if x.ndim == 1 else super().own_tokens(x)


class WrongTargets(ContextParallel):
    """Targets of another layout than the tokens: the second of the two requests of a loss."""

    def own_tokens(self, x: Tensor) -> Tensor:
        is_target = x.ndim > 1 and x.storage_offset() > 0
        return _contiguous(x, self) if is_target else super().own_tokens(x)


def _contiguous(x: Tensor, layout: ContextParallel) -> Tensor:
    return x.chunk(layout.everyone.size)[layout.everyone.rank]


SABOTAGES = {"tokens": WrongTokens, "rotary": WrongRotary, "targets": WrongTargets}


class Models:
    """The work of one rank on whole models."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._tp: dict[int, Communicator] = {}
        self._dense: dict[Any, tuple[DenseRun, DenseRun]] = {}

    def run(self, case: ModelCase) -> ModelOutcome | None:
        """On rank 0 the outcome, elsewhere None."""
        config = self._config(case)
        workload, layout = self._workload(case, config)
        data = batches(config, STEPS, 0, torch.device("cpu"))
        start = self._whole(workload, lambda p: p.detach())[0]
        with torch.no_grad():
            own = [workload.model(layout.own_tokens(tokens[:-1])) for tokens in data[0]]
        logits = [self._logits(x, layout, config) for x in own]
        losses = [workload.step(data[0]).item()]
        first, same_gradients = self._whole(workload, lambda p: p.grad)
        losses += [workload.step(tokens).item() for tokens in data[1:]]
        final, same_weights = self._whole(workload, lambda p: p.detach())
        losses = [sum(step) / len(step) for step in zip(*everywhere(losses), strict=True)]
        if dist.get_rank():
            return None
        measured = DenseRun(logits, first, losses, final)
        key = (case.dtype, case.microbatches)
        if key not in self._dense:
            dtype = TORCH_DTYPES[case.dtype]
            self._dense[key] = (
                dense_run(start, data, config, torch.float64, kernels="plain"),
                dense_run(start, data, config, dtype, kernels="torch"),
            )
        exact, dense = self._dense[key]
        return ModelOutcome(
            _distance(measured, exact),
            _distance(dense, exact),
            same_gradients and same_weights,
            _digest(measured),
        )

    def _config(self, case: ModelCase) -> WorkloadConfig:
        more = {"dtype": case.dtype, "recompute": case.recompute, "num_microbatches": case.microbatches}
        return WorkloadConfig(mode="ddp", ranks=1, **{**SIZES, **more}).canonical()

    def _workload(self, case: ModelCase, config: WorkloadConfig) -> tuple[Workload, ContextParallel]:
        parts = 2 if case.tp else 1
        groups = self._groups.of(case.scheme, parts, delayed=case.scheme.comm == "async")
        device, dtype = torch.device("cpu"), TORCH_DTYPES[case.dtype]
        inner: Layout = Undivided(device, dtype)
        if case.tp:
            tp = self._tp_group(parts)
            inner = (
                TensorParallel(tp, "async", device, dtype)
                if case.tp == "tp"
                else SequenceParallel(tp, "shard", "async", device, dtype)
            )
        layout = context_parallel(case.scheme, groups, inner, seq_len=config.seq_len, bucket_bytes=32768)
        if case.sabotage:
            values = {f.name: getattr(layout, f.name) for f in dataclasses.fields(layout)}
            layout = SABOTAGES[case.sabotage](**values)
        model = Decoder(config, layout, device, dtype)
        optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, fused=True)
        load_weights(model, layout, lambda piece: weight_of(piece, config.seed))
        return Workload(config, layout, model, optimizer, layout.gradient_reduction(model)), layout

    def _tp_group(self, parts: int) -> Communicator:
        if parts not in self._tp:
            ranks = torch.arange(dist.get_world_size()).view(-1, parts).tolist()
            groups = [dist.new_group(one) for one in ranks]
            mine = dist.get_rank() // parts
            self._tp[parts] = Communicator("tp", ranks[mine], dist.get_rank(), groups[mine])
        return self._tp[parts]

    def _whole(self, workload: Workload, of: Callable[[Tensor], Any]) -> tuple[dict[str, Tensor], bool]:
        """Tensors of the whole model, and whether all ranks with the same part hold the same bits."""
        parts = workload.layout.model_parts
        everyone = everywhere([(m.pieces, of(m.weight).clone()) for _, m in weighted_modules(workload.model)])
        whole: dict[str, Tensor] = {}
        equal = all(
            torch.equal(x, y)
            for rank, theirs in enumerate(everyone)
            for (_, x), (_, y) in zip(theirs, everyone[rank % parts], strict=True)
        )
        for modules in zip(*everyone[:parts], strict=True):
            pieces = modules[0][0]
            shapes = [piece.local_shape(parts) for piece in pieces]
            split = [weight.split([shape[0] for shape in shapes]) for _, weight in modules]
            for piece, *of_parts in zip(pieces, *split, strict=True):
                whole[piece.name] = of_parts[0] if piece.split is None else torch.cat(of_parts, piece.split)
        return whole, equal

    def _logits(self, own: Tensor, layout: ContextParallel, config: WorkloadConfig) -> Tensor:
        whole = own.new_empty(config.seq_len, *own.shape[1:])
        for positions, part in everywhere((layout.positions, own)):
            whole[positions] = part
        return whole
