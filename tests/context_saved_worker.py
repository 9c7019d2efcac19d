"""One of four ranks that measures what tiny workloads with context parallelism keep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from workloads.config import WorkloadConfig
from workloads.groups import Groups, groups_for
from workloads.measure import measure_saved

RANKS = 4
SIZES: dict[str, Any] = {
    "ranks": RANKS,
    "layers": 1,
    "seq_len": 32,
    "hidden": 64,
    "heads": 8,
    "kv_heads": 4,
    "ffn": 96,
    "vocab": 72,
    "dtype": "bf16",
}
SCHEMES: dict[str, dict[str, Any]] = {
    "ring-zigzag": {"mode": "ring", "layers": 2},
    "ring-contiguous": {"mode": "ring", "layout": "contiguous"},
    "ring-striped-async": {"mode": "ring", "layout": "striped", "comm": "async", "dtype": "f32"},
    "ring-no-mask": {"mode": "ring", "causal": False, "kv_heads": 8},
    "ring-tp": {"mode": "ring", "model_ranks": 2, "comm": "async"},
    "ring-sp-basic": {"mode": "ring", "model_ranks": 2, "inside": "sp"},
    "ring-sp-shard": {"mode": "ring", "model_ranks": 2, "inside": "sp", "save": "shard", "comm": "async"},
    "rsa": {"mode": "rsa"},
    "rsa-tp": {"mode": "rsa", "model_ranks": 2, "dtype": "f32"},
    "ulysses": {"mode": "ulysses", "comm": "async"},
    "usp": {"mode": "usp"},
    "usp-all-ulysses": {"mode": "usp", "ulysses": 4},
    "usp-all-ring": {"mode": "usp", "ulysses": 1},
    "ring-accumulated": {"mode": "ring", "num_microbatches": 2},
}
ALONE = {
    f"{name}-alone": {**SCHEMES[name], "attention_only": True}
    for name in ("ring-zigzag", "ring-tp", "rsa", "ulysses", "usp")
}
AGAIN = {
    f"{name}-{recompute}": {**SCHEMES[name], "recompute": recompute}
    for name in ("ring-zigzag", "rsa", "usp")
    for recompute in ("selective", "full")
}
CASES: dict[str, dict[str, Any]] = {
    name: {**SIZES, **options}
    for name, options in {
        **SCHEMES,
        **ALONE,
        **AGAIN,
        "ring-alone-selective": {**ALONE["ring-zigzag-alone"], "recompute": "selective"},
    }.items()
}


def main(rank: int, out: Path) -> None:
    found = {}
    made: dict[Any, Groups] = {}  # making them takes longer than measuring
    for name, options in CASES.items():
        config = WorkloadConfig(**options)
        key = (config.scheme().ring_ranks, config.scheme().ulysses_ranks, config.tp)
        if key not in made:
            made[key] = groups_for(config)
        groups = made[key]
        measured = measure_saved(config, groups, torch.device("cpu"))
        calls = [vars(call) for call in measured.calls if call.purpose in ("kv", "dkv", "layout")]
        found[name] = {**measured.to_json(), "calls": calls}
        assert not any(one.calls for one in groups.communicators)
    (out / f"rank-{rank}.json").write_text(json.dumps(found))
