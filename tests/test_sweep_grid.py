"""Cells of a sweep: every combination once, and what cannot be or is the same told with its reason."""

from __future__ import annotations

import pytest

from sp_profiler.errors import UsageError
from sp_profiler.sweeps.grid import cells_of
from sp_profiler.sweeps.request import SweepRequest


def test_every_combination_is_one_cell_and_options_without_a_use_multiply_nothing() -> None:
    grid = cells_of(
        SweepRequest(
            {
                "mode": ("ddp", "tp", "sp"),
                "comm": ("sync", "async"),
                "save": ("full", "shard"),
                "layers": (2, 4, 8),
            }
        )
    )
    schemes = [
        "ddp",
        "tp-sync",
        "tp-async",
        "sp-full-sync",
        "sp-full-async",
        "sp-shard-sync",
        "sp-shard-async",
    ]
    assert {cell.scheme for cell in grid.cells} == set(schemes)
    assert {(cell.scheme, cell.sizes["layers"]) for cell in grid.cells} == {
        (scheme, layers) for scheme in schemes for layers in (2, 4, 8)
    }
    assert len(grid.cells) == 21
    (same,) = grid.skipped
    # of 3 x 2 x 2 x 3 = 36 combinations
    assert (same.combinations, same.workloads) == (15, [])
    assert "ddp has no use for --save, --comm" in same.reason
    assert "tp has no use for --save" in same.reason
    assert "sp has no use" not in same.reason


def test_what_cannot_be_is_listed_with_the_workloads_own_reason() -> None:
    grid = cells_of(SweepRequest({"mode": ("ddp", "tp", "sp"), "ranks": (2, 3), "layers": (1, 2)}))
    assert {(cell.scheme, cell.sizes["ranks"]) for cell in grid.cells if cell.sizes["ranks"] == 3} == {
        ("ddp", 3)
    }
    told = {one.what: one for one in grid.skipped if one.workloads}
    assert told["tp"].reason == "--heads 8 is not divisible by --ranks 3 in mode tp"
    assert set(told["tp"].workloads) == {
        f"tp {comm}, ranks 3, micro-batch 2, seq-len 256, layers {layers}"
        for comm in ("sync", "async")
        for layers in (1, 2)
    }
    assert len(told["sp"].workloads) == 8


@pytest.mark.parametrize(
    ("varied", "settings", "said"),
    [
        (
            {"mode": ("tp",), "ranks": (9,)},
            {},
            "none of the combinations can be run: --ranks 9 is not between",
        ),
        ({"mode": ("tp",), "layers": (0,)}, {}, "--layers is 0"),
        ({"mode": ("tp",), "pipeline": (2,)}, {}, "'pipeline' is no option of a sweep"),
        ({"layers": ()}, {}, "--layers names no value"),
        ({}, {"repeats": 0}, "--repeat is 0, expected a whole number of at least 1"),
        ({}, {"steps_per_repeat": 0}, "--steps is 0"),
        ({}, {"warmup": -1}, "--warmup is -1"),
        ({}, {"timeout_s": 0.0}, "--timeout 0 must be above 0"),
        (
            {},
            {"batch_policy": "fixed"},
            "--batch-policy is 'fixed', expected one of fixed-per-rank, fixed-global",
        ),
        ({"layers": tuple(range(1, 2000))}, {}, "combinations are more than the 4096 of one sweep"),
        ({"mode": ("tp",)}, {"attention_only": True}, "--attention-only is for ring"),
        (
            {"mode": ("ddp",), "micro_batch": (3,)},
            {"batch_policy": "fixed-global"},
            "--micro-batch 3 and --num-microbatches 1 cannot be divided among the 2 ranks of ddp",
        ),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(varied: dict, settings: dict, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        cells_of(SweepRequest(varied, **settings))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_fixed_batch_of_a_rank_gives_ddp_more_tokens_and_a_fixed_global_one_does_not() -> None:
    varied = {"mode": ("ddp", "tp"), "comm": ("sync",), "ranks": (4,), "layers": (1,), "micro_batch": (4,)}
    per_rank = {cell.scheme: cell.tokens_per_step for cell in cells_of(SweepRequest(varied)).cells}
    assert per_rank == {"tp-sync": 1024, "ddp": 4096}
    shared = cells_of(SweepRequest(varied, batch_policy="fixed-global"))
    assert {cell.scheme: cell.tokens_per_step for cell in shared.cells} == {"tp-sync": 1024, "ddp": 1024}
    assert {cell.scheme: cell.workload["micro_batch"] for cell in shared.cells} == {"tp-sync": 4, "ddp": 1}
    # cells are compared at what was asked for
    assert {cell.sizes["micro_batch"] for cell in shared.cells} == {4}


def test_where_sequences_cannot_be_divided_micro_batches_are() -> None:
    varied = {"mode": ("ddp",), "micro_batch": (1,), "num_microbatches": (4,), "layers": (1,)}
    (cell,) = cells_of(SweepRequest(varied, batch_policy="fixed-global")).cells
    assert (cell.workload["micro_batch"], cell.workload["num_microbatches"]) == (1, 2)


def test_all_cells_train_the_same_model() -> None:
    """Left to itself a workload has half as many key/value heads as heads where its ranks can share them."""
    varied = {"mode": ("ddp", "tp"), "comm": ("sync",), "heads": (8,), "ranks": (2, 8), "layers": (1,)}
    cells = cells_of(SweepRequest(varied)).cells
    assert len(cells) == 4
    assert {cell.workload["kv_heads"] for cell in cells} == {8}
    assert len({cell.workload["ffn"] for cell in cells}) == 1
    assert {
        cell.workload["kv_heads"] for cell in cells_of(SweepRequest({**varied, "ranks": (2,)})).cells
    } == {4}


def test_long_context_has_its_options_and_others_do_not() -> None:
    varied = {
        "mode": ("tp", "ring", "ulysses", "usp"),
        "comm": ("async",),
        "layout": ("zigzag", "striped"),
        "ulysses": (2, 4),
        "ranks": (4,),
        "layers": (1,),
    }
    grid = cells_of(SweepRequest(varied))
    assert {cell.scheme for cell in grid.cells} == {
        "tp-async",
        "ring-zigzag-async",
        "ring-striped-async",
        "ulysses-async",
        "usp-2-zigzag-async",
        "usp-4-zigzag-async",
        "usp-2-striped-async",
        "usp-4-striped-async",
    }
    assert len({cell.name for cell in grid.cells}) == len(grid.cells)
    assert {cell.tokens_per_step for cell in grid.cells} == {512}


def test_names_tell_every_workload_apart() -> None:
    varied = {
        "mode": ("ddp", "tp", "sp"),
        "projections": ("separate", "fused"),
        "norm": ("eager", "fused"),
        "recompute": ("none", "full"),
        "dtype": ("f32", "bf16"),
        "hidden": (256, 512),
        "kv_heads": (2, 8),
        "num_microbatches": (1, 2),
        "layers": (1,),
    }
    grid = cells_of(SweepRequest(varied))
    workloads = {str(sorted(config.to_dict().items())) for config in grid.configs.values()}
    assert len(grid.cells) == len({cell.name for cell in grid.cells}) == len(workloads) == 7 * 128


def test_the_closed_forms_are_those_of_the_papers() -> None:
    """With T = 2 ranks, separate projections, and F the bytes of one activation [S, B, H]."""
    layers, hidden, vocab, f = 3, 64, 96, 4 * 64 * 2 * 64
    sizes = {"layers": (layers,), "seq_len": (64,), "hidden": (hidden,), "heads": (4,), "vocab": (vocab,)}
    grid = cells_of(SweepRequest({"mode": ("ddp", "tp", "sp"), **sizes}))
    theory = {cell.scheme: cell.theory for cell in grid.cells}
    # tensor parallelism 14 rF a block; sequence parallelism as much, or 19 rF where it gathers again, besides
    # F at the embedding, F at the head, and the all-reduce of the gradients of 2 L + 1 norms
    around = 2 * f // 2 + (2 * layers + 1) * hidden * 4
    for comm in ("sync", "async"):
        assert theory[f"tp-{comm}"].comm_bytes == layers * 14 * f // 2
        assert theory[f"sp-full-{comm}"].comm_bytes == layers * 14 * f // 2 + around
        assert theory[f"sp-shard-{comm}"].comm_bytes == layers * 19 * f // 2 + around
    # keeping shards in place of five gathered inputs
    full, shard = theory["sp-full-sync"].saved_bytes, theory["sp-shard-async"].saved_bytes
    assert (full or 0) - (shard or 0) == layers * (5 - 1) * f
    # ddp all-reduces every parameter once: q and o, k and v of half the heads, three of 192, norms
    block = 2 * hidden**2 + 2 * hidden * hidden // 2 + 3 * hidden * 192 + 2 * hidden
    parameters = layers * block + hidden + 2 * vocab * hidden
    assert theory["ddp"].comm_bytes == parameters * 4
