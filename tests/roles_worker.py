"""One rank that records tiny annotated workloads, a trace each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

from workloads.communication import new_communicator
from workloads.config import COMMS, SAVES, WorkloadConfig
from workloads.data import batches
from workloads.train import build

MODEL = {"layers": 2, "seq_len": 22, "hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 48, "vocab": 36}
SMALL: dict[str, Any] = {"ranks": 2, **MODEL, "micro_batch": 2, "warmup": 1, "active_steps": 1}
# 16 x 2 tokens = 32 = hidden = ffn = vocab: on one rank shapes tell nothing, only the strides do.
SQUARE = {"seq_len": 16, "ffn": 32, "vocab": 32, "kv_heads": 4}
# As many tokens as a column linear has outputs on each of two ranks.
AS_WIDE = {"seq_len": 8, "micro_batch": 2, "ffn": 32, "kv_heads": 4}
RUNS: dict[str, dict[str, Any]] = {
    "ddp": {"mode": "ddp"},
    "ddp-square": {"mode": "ddp", **SQUARE},
    **{f"tp-{comm}": {"mode": "tp", "comm": comm} for comm in COMMS},
    **{f"sp-{s}-{c}": {"mode": "sp", "save": s, "comm": c} for s in SAVES for c in COMMS},
    "tp-async-as-wide": {"mode": "tp", "comm": "async", **AS_WIDE},
    "sp-shard-async-as-wide": {"mode": "sp", "save": "shard", "comm": "async", **AS_WIDE},
    "sp-shard-async-fused": {"mode": "sp", "save": "shard", "comm": "async", "projections": "fused"},
    "tp-async-accumulated": {"mode": "tp", "comm": "async", "num_microbatches": 3, "norm": "fused"},
    "ddp-accumulated": {"mode": "ddp", "num_microbatches": 3},
    "ddp-recompute-full": {"mode": "ddp", "recompute": "full"},
    "tp-async-recompute-full": {"mode": "tp", "comm": "async", "recompute": "full"},
    "tp-sync-recompute-selective": {"mode": "tp", "comm": "sync", "recompute": "selective"},
    "sp-full-sync-recompute-full": {"mode": "sp", "save": "full", "comm": "sync", "recompute": "full"},
    "sp-shard-async-recompute-full": {
        "mode": "sp",
        "save": "shard",
        "comm": "async",
        "projections": "fused",
        "recompute": "full",
    },
    "sp-shard-async-recompute-selective": {
        "mode": "sp",
        "save": "shard",
        "comm": "async",
        "recompute": "selective",
    },
}


def record(config: WorkloadConfig, path: str) -> None:
    description = "dp" if config.mode == "ddp" else "tp"
    communicator = new_communicator(description, range(2))
    workload = build(config, communicator, torch.device("cpu"))
    data = batches(config, 2, communicator.rank if config.dp > 1 else 0, torch.device("cpu"))
    with profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=True,
        schedule=schedule(wait=0, warmup=1, active=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(path),
    ) as profiler:
        for tokens in data:
            workload.step(tokens)
            profiler.step()


def main(rank: int, out: Path) -> None:
    for name, options in RUNS.items():
        record(WorkloadConfig(**{**SMALL, **options}), f"{out}/{name}.rank-{rank:05d}.json")
        dist.barrier()
