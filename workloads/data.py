"""Synthetic tokens: sequences that follow a rule, so that the loss falls when training works."""

from __future__ import annotations

import torch
from torch import Tensor

from workloads.config import WorkloadConfig


def batches(config: WorkloadConfig, steps: int, data_rank: int, device: torch.device) -> list[Tensor]:
    """Tokens [num_microbatches, S+1, B] for each step; those of one `data_rank` are the same on every rank.

    Each token is 5 t + 7 modulo the vocabulary after its predecessor t; one in eight is random instead.
    """
    generator = torch.Generator().manual_seed(config.seed * 1_000_003 + data_rank)
    return [_tokens(config, generator).to(device) for _ in range(steps)]


def _tokens(config: WorkloadConfig, generator: torch.Generator) -> Tensor:
    shape = (config.seq_len + 1, config.num_microbatches, config.micro_batch)
    random = torch.randint(config.vocab, shape, generator=generator)
    restart = torch.rand(shape, generator=generator) < 1 / 8
    tokens = random.clone()
    for position in range(1, config.seq_len + 1):
        follows = (5 * tokens[position - 1] + 7) % config.vocab
        tokens[position] = torch.where(restart[position], random[position], follows)
    return tokens.transpose(0, 1).contiguous()
