"""Context parallelism on real gloo ranks.

One launch per world size runs every scheme. Rank 0 leaves OUT/outcomes.pickle; what is recorded for the
profiler lies in OUT/<scheme>-<comm>.
"""

from __future__ import annotations

import atexit
import pickle
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from context_attention import (
    SITE,
    Attention,
    AttentionCase,
    AttentionOutcome,
    attention_cases,
    broken_cases,
    gradients,
)
from context_groups import Groups
from context_models import ModelCase, ModelOutcome, Models, model_cases
from gloo_helpers import record_steps, run_ranks

from workloads.context.parallel import ContextScheme, context_attention

WORLDS = (2, 3, 4, 8)
MODEL_WORLDS = (2, 4)
RECORDED: list[dict[str, Any]] = [
    {"scheme": "ring", "layout": "zigzag"},
    {"scheme": "rsa"},
    {"scheme": "ulysses"},
    {"scheme": "usp", "ulysses": 2, "layout": "zigzag"},
]
RECORDED_WORLD = 4


def record(groups: Groups, out: Path) -> None:
    """Two steps of each scheme, attention alone, of a size at which transfer and computation take time."""
    for options in RECORDED:
        for comm in ("sync", "async"):
            scheme = ContextScheme(ranks=dist.get_world_size(), comm=comm, **options)
            folder = out / f"{scheme.scheme}-{comm}"
            folder.mkdir(exist_ok=True)
            attention = context_attention(scheme, groups.of(scheme, 1), 512)
            x = [torch.randn(512 // scheme.ranks, 2, heads, 32) for heads in (8, 4, 4, 8)]
            record_steps(
                lambda a=attention, x=x: gradients(lambda *y: a(*y, SITE), *x) and None,
                dist.get_rank(),
                folder,
                active=2,
            )


@dataclass(frozen=True)
class Outcomes:
    attention: dict[AttentionCase, AttentionOutcome]
    models: dict[ModelCase, ModelOutcome]
    folder: Path


@cache
def outcomes(world: int) -> Outcomes:
    """Everything that is run at this world size; the first caller waits for it."""
    folder = Path(tempfile.mkdtemp(prefix="sp-context-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    run_ranks("context_ranks", folder, ranks=world, timeout_s=500)
    attention, models = pickle.loads((folder / "outcomes.pickle").read_bytes())
    return Outcomes(attention, models, folder)


def main(rank: int, out: Path) -> None:
    world = dist.get_world_size()
    groups = Groups()
    attention, models = Attention(groups), Models(groups)
    broken = broken_cases() if world == RECORDED_WORLD else []
    results = {case: attention.run(case) for case in attention_cases(world) + broken}
    trained = {case: models.run(case) for case in model_cases(world)} if world in MODEL_WORLDS else {}
    if world == RECORDED_WORLD:
        record(groups, out)
    if rank == 0:
        (out / "outcomes.pickle").write_bytes(pickle.dumps((results, trained)))
