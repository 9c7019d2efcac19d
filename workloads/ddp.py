"""Data parallelism: every rank has the whole model and its own sequences; gradients are averaged.

Parameters are put into buckets in the reverse of their order of use, which is about the order in which
backward completes their gradients (Li et al. 2020, arXiv 2006.15704). When the last gradient of a
bucket is there, its all-reduce starts and runs under the backward of earlier layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from workloads.communication import Communicator, Complete, Intent, Pending, Site
from workloads.layout import GradientReduction, WholeSequence
from workloads.linear import LocalLinear, Piece, Weighted


@dataclass
class Bucket:
    """Parameters whose gradients are reduced together."""

    site: Site
    parameters: list[nn.Parameter]
    missing: int = 0
    """Gradients that backward still owes."""
    pending: Pending | Complete | None = None


class BucketedAverage:
    """Averages all gradients over the ranks; with several backwards per step, only in the last.

    `comm`: async as above; sync waits for each bucket where it is launched.
    """

    def __init__(
        self, model: nn.Module, communicator: Communicator, bucket_bytes: float, comm: str = "async"
    ) -> None:
        self._communicator = communicator
        self._comm = comm
        self._buckets = _fill_buckets(model, bucket_bytes)
        self._next = len(self._buckets)  # all launched: hooks do nothing until the last backward
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(lambda _, bucket=bucket: self._arrived(bucket))

    def before_last_backward(self) -> None:
        self._next = 0
        for bucket in self._buckets:
            bucket.missing = len(bucket.parameters)

    def _arrived(self, arrived: Bucket) -> None:
        arrived.missing -= 1
        # In bucket order, whatever the order of arrival: all ranks must launch in the same order.
        while self._next < len(self._buckets) and self._buckets[self._next].missing == 0:
            self._launch(self._buckets[self._next])
            self._next += 1

    def _launch(self, bucket: Bucket) -> None:
        flat = torch.cat([_gradient(parameter).flatten() for parameter in bucket.parameters])
        flat.div_(self._communicator.size)  # before the sum, which might overflow in f16
        intent = Intent(bucket.site, "param-grad", "backward")
        bucket.pending = self._communicator.launch(self._comm, "all_reduce", flat, intent)

    def finish(self) -> None:
        for bucket in self._buckets:
            assert bucket.pending is not None, f"{bucket.site.module} was not reduced"
            total = bucket.pending.wait()
            bucket.pending = None
            parts = total.split([parameter.numel() for parameter in bucket.parameters])
            for parameter, part in zip(bucket.parameters, parts, strict=True):
                parameter.grad = part.view_as(parameter)


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _fill_buckets(model: nn.Module, bucket_bytes: float) -> list[Bucket]:
    """Buckets of at least `bucket_bytes`, except the last."""
    buckets: list[Bucket] = []
    parameters: list[nn.Parameter] = []
    layers: set[int | None] = set()
    owners = [module for module in model.modules() if isinstance(module, Weighted)]
    for i, module in enumerate(reversed(owners)):
        parameters.append(module.weight)
        layers.add(module.site.layer)
        filled = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
        if filled >= bucket_bytes or i == len(owners) - 1:
            layer = layers.pop() if len(layers) == 1 else None
            buckets.append(Bucket(Site(f"buckets.{len(buckets)}", layer), parameters))
            parameters, layers = [], set()
    return buckets


class UndividedLinears:
    """For layouts in which every rank has each linear whole."""

    device: torch.device
    dtype: torch.dtype
    model_parts = 1
    model_part = 0

    def column(self, site: Site, pieces: Sequence[Piece]) -> Weighted:
        return LocalLinear(site, pieces, 1, self.device, self.dtype, saved_term="column-input")

    def row(self, site: Site, piece: Piece) -> Weighted:
        return LocalLinear(site, [piece], 1, self.device, self.dtype, saved_term="row-input")

    def replicated(self, site: Site, piece: Piece) -> Weighted:
        return LocalLinear(site, [piece], 1, self.device, self.dtype, saved_term="logits")

    def enter(self, x: Tensor, site: Site) -> Tensor:
        return x

    def leave(self, x: Tensor, site: Site) -> Tensor:
        return x


@dataclass(frozen=True)
class DataParallel(UndividedLinears, WholeSequence):
    """The layout: nothing is divided but the data."""

    communicator: Communicator
    bucket_bytes: float
    device: torch.device
    dtype: torch.dtype

    def gradient_reduction(self, model: nn.Module) -> GradientReduction:
        return BucketedAverage(model, self.communicator, self.bucket_bytes)
