"""What context parallelism keeps for backward: measured on real ranks, byte for byte the closed form."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from context_saved_worker import CASES, RANKS, SIZES
from gloo_helpers import run_ranks

from sp_profiler.analysis.memory.closed_form import context_shape_of, terms_of, whole
from sp_profiler.analysis.memory.opportunities import Run, opportunities
from sp_profiler.report.memory_saved import saved_tensors
from sp_profiler.theory.context_communication import attention_transfers, sent_bytes
from sp_profiler.theory.context_memory import ContextShape, context_attention_bytes, score_bytes
from sp_profiler.theory.memory import Shape
from sp_profiler.theory.ring import RingSizes, ring_saved_bytes, ring_self_attention_score_bytes
from workloads.config import WorkloadConfig

Ranks = list[dict[str, Any]]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """What each of four gloo ranks measured."""
    out: Path = tmp_path_factory.mktemp("saved")
    run_ranks("context_saved_worker", out, ranks=RANKS)
    return [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(RANKS)]


def shape_of(name: str) -> ContextShape:
    shape = context_shape_of(WorkloadConfig(**CASES[name]).to_dict())
    assert shape is not None
    return shape


def theory(name: str) -> dict[tuple[str, int | None], int]:
    return terms_of(shape_of(name), CASES[name]["layers"])


@pytest.mark.gloo
@pytest.mark.parametrize("name", CASES)
def test_every_rank_keeps_what_the_closed_form_says(real: Ranks, name: str) -> None:
    """Term by term and block by block; nothing is kept without an operator."""
    expected = theory(name)
    for rank in real:
        measured = Counter[tuple[str, int | None]]()
        for tensor in rank[name]["tensors"]:
            measured[tensor["term"], None] += tensor["bytes"]
            if tensor["layer"] is not None:
                measured[tensor["term"], tensor["layer"]] += tensor["bytes"]
        assert dict(measured) == expected
        assert rank[name]["saved_bytes"] == whole(expected) > 0
        assert rank[name]["hidden_bytes"] == 0


@pytest.mark.gloo
@pytest.mark.parametrize("name", CASES)
def test_attention_sends_what_the_closed_form_lists(real: Ranks, name: str) -> None:
    """One by one, of a step; recompute sends forward's again, in backward."""
    config = WorkloadConfig(**CASES[name])
    listed, times = attention_transfers(shape_of(name)), config.layers * config.num_microbatches
    again = listed.again(config.recompute)
    for phase, transfers in (("forward", listed.forward), ("backward", (*again, *listed.backward))):
        expected = Counter({key: times * n for key, n in Counter((t.op, t.bytes) for t in transfers).items()})
        assert sum(expected.values()) > 0
        for rank in real:
            calls = [call for call in rank[name]["calls"] if call["phase"] == phase]
            assert Counter((call["op"], call["bytes"]) for call in calls) == expected


@pytest.mark.gloo
@pytest.mark.parametrize("name", ["ring-zigzag", "rsa", "usp"])
def test_what_could_be_freed_is_what_other_runs_do_not_keep(real: Ranks, name: str) -> None:
    """Selective and full recompute; for ring self-attention a ring, which has no scores."""
    workload = WorkloadConfig(**CASES[name]).to_dict()
    run_json = {"saved_tensors": {str(rank): found[name] for rank, found in enumerate(real)}}
    saved, ledger = saved_tensors(run_json, theory(name))
    assert ledger == []
    found, _ = opportunities(Run([], saved, workload, [], [], 1, is_cpu=True))
    by_kind = {one.kind: one for one in found}
    kept = {key: rank["saved_bytes"] for key, rank in real[0].items()}
    transfers = attention_transfers(shape_of(name))
    for kind, recompute in (("attention-core", "selective"), ("block-activations", "full")):
        assert by_kind[kind].freed_bytes == kept[name] - kept[f"{name}-{recompute}"]
        sends = sent_bytes(transfers.again(recompute)) * workload["layers"]
        assert (by_kind[kind].how, by_kind[kind].added_comm_bytes) == (f"--recompute {recompute}", sends)
    assert ("attention-scores" in by_kind) == (name == "rsa")
    if name == "rsa":
        assert by_kind["attention-scores"].freed_bytes == kept["rsa"] - kept["ring-contiguous"]


@pytest.mark.gloo
def test_nothing_is_advised_that_is_set_already(real: Ranks) -> None:
    for name in ("ring-zigzag-full", "rsa-full"):
        workload = WorkloadConfig(**CASES[name]).to_dict()
        run_json = {"saved_tensors": {"0": real[0][name]}}
        saved, _ = saved_tensors(run_json, theory(name))
        assert {one.kind for one in opportunities(Run([], saved, workload, [], [], 1, is_cpu=True))[0]} == {
            "norm-input"
        }


@pytest.mark.gloo
def test_attention_alone_holds_no_parameters(real: Ranks) -> None:
    for rank in real:
        found = rank["ring-zigzag-alone"]
        assert (found["parameter_bytes"], found["gradient_bytes"], found["optimizer_bytes"]) == (0, 0, 0)
        assert found["peak_bytes"] > found["saved_bytes"]


def test_attention_is_that_of_the_closed_forms_of_rings() -> None:
    local = Shape("ddp", 8, 2, 64, 8, 4, 96, 72)
    sizes = RingSizes(seq_len=32, ranks=4, micro_batch=2, heads=8, kv_heads=4, head_dim=8)
    assert context_attention_bytes(ContextShape("ring", 32, local)) == ring_saved_bytes(sizes)
    rsa = ContextShape("rsa", 32, local)
    assert score_bytes(rsa) == ring_self_attention_score_bytes(sizes) == 2 * 2 * 8 * 8 * 32
    out_and_lse = 2 * 8 * 2 * 64 + 4 * 8 * 2 * 8
    assert context_attention_bytes(rsa) == ring_saved_bytes(sizes) - out_and_lse + score_bytes(rsa)


def test_there_is_none_for_what_run_json_does_not_tell() -> None:
    whole_run = WorkloadConfig(**{**SIZES, "mode": "ring"}).to_dict()
    assert context_shape_of(whole_run) is not None
    for name in ("cp", "tp", "seq_len", "hidden", "ffn", "layers", "dtype"):
        assert context_shape_of({key: item for key, item in whole_run.items() if key != name}) is None
    assert context_shape_of({**whole_run, "seq_len": 33}) is None
    assert context_shape_of({**whole_run, "mode": "tp"}) is None
    assert context_shape_of(None) is None
    with pytest.raises(ValueError, match="no closed form for scheme 'spiral'"):
        ContextShape("spiral", 32, Shape("ddp", 8, 2, 64, 8, 4, 96, 72))
