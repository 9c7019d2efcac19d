"""One rank that measures tiny workloads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from workloads.communication import new_communicator
from workloads.config import RECOMPUTES, WorkloadConfig
from workloads.measure import measure_saved

MODEL: dict[str, Any] = {
    "ranks": 2,
    "layers": 2,
    "seq_len": 32,
    "hidden": 48,
    "heads": 4,
    "kv_heads": 2,
    "ffn": 96,
    "vocab": 72,
    "micro_batch": 2,
    "dtype": "bf16",
}
SCHEMES: dict[str, dict[str, Any]] = {
    "ddp": {"mode": "ddp"},
    "tp": {"mode": "tp", "comm": "async"},
    "tp-fused": {"mode": "tp", "comm": "sync", "projections": "fused", "norm": "fused"},
    "sp-basic": {"mode": "sp", "save": "full", "comm": "sync"},
    "sp-shard": {"mode": "sp", "save": "shard", "comm": "async"},
    "sp-shard-fused": {"mode": "sp", "save": "shard", "comm": "sync", "projections": "fused", "dtype": "f32"},
    "sp-accumulated": {"mode": "sp", "save": "full", "comm": "async", "num_microbatches": 3},
}
CASES: dict[str, dict[str, Any]] = {
    f"{name}-{recompute}": {**MODEL, **scheme, "recompute": recompute}
    for name, scheme in SCHEMES.items()
    for recompute in RECOMPUTES
}


def main(rank: int, out: Path) -> None:
    found = {}
    for name, options in CASES.items():
        config = WorkloadConfig(**options)
        communicator = new_communicator("dp" if config.mode == "ddp" else "tp", range(2))
        measured = measure_saved(config, communicator, torch.device("cpu"))
        assert not communicator.calls
        sent = [str(measured.comm_bytes), [vars(call) for call in measured.calls]]
        found[name] = {"json": measured.to_json(), "sent": sent}
    (out / f"rank-{rank}.json").write_text(json.dumps(found))
