"""The dense model on one device that parallel workloads must equal, written without the workloads' code."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.config import WorkloadConfig

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class DenseRun:
    """First step: logits of each micro-batch, mean loss, gradients. Then: all losses, final weights."""

    logits: list[Tensor]
    gradients: Weights
    losses: list[float]
    weights: Weights


def dense_run(
    weights: Weights, steps: list[Tensor], config: WorkloadConfig, dtype: torch.dtype, *, kernels: str
) -> DenseRun:
    """Train from `weights`; `steps` holds tokens [micro-batches, S+1, B].

    `kernels`: "plain" writes out softmax and AdamW, for the fp64 reference; "torch" takes torch's, as a
    dense model in practice would, for the error that a dtype has by itself.
    """
    parameters = {name: weight.to(dtype).clone().requires_grad_() for name, weight in weights.items()}
    fused = torch.optim.AdamW(parameters.values(), lr=config.learning_rate, fused=True)
    moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in parameters.items()}
    first_logits: list[Tensor] = []
    first_gradients: Weights = {}
    losses = []
    for number, step in enumerate(steps):
        for parameter in parameters.values():
            parameter.grad = None
        total = 0.0
        for tokens in step:
            logits = _logits(parameters, tokens[:-1], config, kernels)
            high = logits.to(torch.promote_types(dtype, torch.float32))
            loss = F.cross_entropy(high.flatten(0, 1), tokens[1:].flatten()) / len(step)
            loss.backward()
            total += loss.item()
            if number == 0:
                first_logits.append(logits.detach())
        losses.append(total)
        if number == 0:
            first_gradients = {name: _gradient(p).clone() for name, p in parameters.items()}
        if kernels == "torch":
            fused.step()
        else:
            _adamw(parameters, moments, number + 1, config.learning_rate)
    return DenseRun(first_logits, first_gradients, losses, {n: p.detach() for n, p in parameters.items()})


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


@torch.no_grad()
def _adamw(
    parameters: Weights, moments: dict[str, tuple[Tensor, Tensor]], step: int, learning_rate: float
) -> None:
    """Loshchilov and Hutter 2019 (arXiv 1711.05101), algorithm 2, with torch's defaults."""
    beta1, beta2, epsilon, decay = 0.9, 0.999, 1e-8, 0.01
    for name, parameter in parameters.items():
        gradient = _gradient(parameter)
        first, second = moments[name]
        first.mul_(beta1).add_((1 - beta1) * gradient)
        second.mul_(beta2).add_((1 - beta2) * gradient**2)
        update = (first / (1 - beta1**step)) / ((second / (1 - beta2**step)).sqrt() + epsilon)
        parameter.sub_(learning_rate * (update + decay * parameter))


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    high = x.to(torch.promote_types(x.dtype, torch.float32))
    return (high / (high.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight).to(x.dtype)


def _rotate(x: Tensor) -> Tensor:
    """[B, a, S, d], by position and frequency, as rotations in the complex plane."""
    half = x.shape[-1] // 2
    high = x.to(torch.promote_types(x.dtype, torch.float32))
    frequencies = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.outer(torch.arange(x.shape[-2], dtype=torch.float64), frequencies)
    turn = torch.polar(torch.ones_like(angles), angles)
    turned = torch.complex(high[..., :half], high[..., half:]) * turn.to(high.dtype.to_complex())
    return torch.cat((turned.real, turned.imag), -1).to(x.dtype)


def _attention(q: Tensor, k: Tensor, v: Tensor, kernels: str) -> Tensor:
    """[B, a, S, d] with as many key/value heads as query heads."""
    if kernels == "torch":
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(-1) @ v


def _logits(weights: Weights, tokens: Tensor, config: WorkloadConfig, kernels: str) -> Tensor:
    assert config.kv_heads is not None
    group = config.heads // config.kv_heads
    x = weights["embedding.weight"][tokens]  # [S, B, H]
    for i in range(config.layers):

        def linear(name: str, x: Tensor, i: int = i) -> Tensor:
            return F.linear(x, weights[f"layers.{i}.{name}.weight"])

        def heads(name: str, x: Tensor, linear=linear) -> Tensor:  # [S, B, a*d] -> [B, a, S, d]
            return linear(f"attention.{name}", x).unflatten(-1, (-1, config.head_dim)).permute(1, 2, 0, 3)

        normed = _norm(x, weights[f"layers.{i}.attention_norm.weight"])
        q, k, v = _rotate(heads("q", normed)), _rotate(heads("k", normed)), heads("v", normed)
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        out = _attention(q, k, v, kernels).permute(2, 0, 1, 3).flatten(2)
        x = x + linear("attention.o", out)
        normed = _norm(x, weights[f"layers.{i}.mlp_norm.weight"])
        x = x + linear("mlp.down", F.silu(linear("mlp.gate", normed)) * linear("mlp.up", normed))
    return F.linear(_norm(x, weights["norm.weight"]), weights["head.weight"])
