"""Memory joined with overlap: what could be freed, what it sends, and whether that could be hidden."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from memory_report_helpers import F, figures_of, make_blocks, saved_of
from report_helpers import MS, T0, make_report

import sp_profiler
from sp_profiler.analysis.memory.opportunities import Run, opportunities
from sp_profiler.analysis.memory.results import MemoryBlock, Opportunity, OutOfMemory
from sp_profiler.analysis.results import CollectiveFigures, GemmFigures
from sp_profiler.report.findings import Facts
from sp_profiler.report.findings import memory as rules
from sp_profiler.report.memory import assemble

MIB = 1024 * 1024
TOKENS, HIDDEN = 2048 * 2, 768
PUBLISHED: dict[str, Any] = {
    "mode": "sp", "ranks": 2, "comm": "sync", "save": "full", "projections": "separate", "norm": "eager",
    "layers": 8, "seq_len": 2048, "hidden": HIDDEN, "heads": 8, "kv_heads": 4, "ffn": 2432, "vocab": 6400,
    "micro_batch": 2, "num_microbatches": 1, "dtype": "bf16",
}  # fmt: skip
"""The size at which SP basic - SP recompute was published: F is 6 MiB, the difference 24 MiB a layer."""


def collective(**more: Any) -> CollectiveFigures:
    """One of the drawn collectives, changed."""
    return replace(make_report(ranks=1, steps=1).collectives[0], **more)


def gather(dur_ns: int = 2 * MS, **more: Any) -> CollectiveFigures:
    told = {"op": "all_gather", "bytes": F, "ranks": [0, 1], "step": 1, "purpose": "activation"}
    return collective(dur_ns=dur_ns, phase="forward", is_async=False, **(told | more))


def dgrad(count: int, mean_ns: int, columns: int = 1024) -> GemmFigures:
    """dgrad GEMMs that make a gradient of F bytes: (tokens, columns) x (columns, hidden)."""
    shape = f"M={TOKENS} N={HIDDEN} K={columns}"
    return GemmFigures("gemm", shape, "bfloat16", "dgrad", count, count * mean_ns, None)


def run(**more: Any) -> Run:
    nothing: dict[str, Any] = {"figures": [], "saved": [], "collectives": [], "gemms": [], "workload": None}
    return Run(**(nothing | {"windows": 1, "is_cpu": False} | more))


def found(run_: Run) -> dict[str, Opportunity]:
    return {one.kind: one for one in opportunities(run_)[0]}


def workload(**more: Any) -> dict[str, Any]:
    return PUBLISHED | more


def test_what_sp_recompute_frees_and_sends_at_the_published_size() -> None:
    """FACTS: (5 - 2/T) F = 24 MiB a layer; the wire goes from 14rF to 19rF, r = 1/2: 15 MiB a layer."""
    one = found(run(workload=workload()))["gathered-input"]
    assert one.bytes == 8 * 5 * F
    assert one.freed_bytes == 8 * 24 * MIB
    assert one.added_comm_bytes == 8 * 5 * F // 2 == 8 * 15 * MIB
    assert one.how == "--save shard --comm async"
    assert one.layers == 8
    assert (one.added_comm_ns, one.hideable_ns, one.would_be_exposed_ns) == (None, None, None)


@pytest.mark.parametrize(("gemm_ms", "exposed_ms"), [(3, 0), (2, 0), (1, 40)])
def test_whether_the_gathers_hide_under_the_dgrad_gemms(gemm_ms: int, exposed_ms: int) -> None:
    """40 gathers of 2 ms in a step, one under each of 40 dgrad GEMMs; two ranks, three steps: 6 windows."""
    gemms = [dgrad(6 * 40, gemm_ms * MS), replace(dgrad(99, MS), role="wgrad")]
    gathers = [gather(ns) for ns in (MS, 2 * MS, 9 * MS)]
    one = found(run(workload=workload(), collectives=gathers, gemms=gemms, windows=6))["gathered-input"]
    assert one.added_comm_ns == 40 * 2 * MS
    assert one.hideable_ns == 40 * min(2, gemm_ms) * MS
    assert one.would_be_exposed_ns == exposed_ms * MS


def test_gemms_of_several_shapes_hide_each_their_own_part() -> None:
    gemms = [dgrad(8 * 3, MS // 2), dgrad(8 * 2, 3 * MS, columns=2048)]
    one = found(run(workload=workload(), collectives=[gather(2 * MS)], gemms=gemms))["gathered-input"]
    assert one.hideable_ns == 24 * MS // 2 + 16 * 2 * MS
    assert one.would_be_exposed_ns == 40 * 2 * MS - one.hideable_ns


def test_too_few_or_too_many_gemms_tell_nothing() -> None:
    """The row linears' dgrad may have the same result: then no one knows which is whose."""
    gemms = [dgrad(41, MS)]
    one = found(run(workload=workload(), collectives=[gather()], gemms=gemms))["gathered-input"]
    assert one.added_comm_ns == 40 * 2 * MS
    assert one.hideable_ns is None
    assert one.would_be_exposed_ns is None


def test_transfer_counts_instead_of_waiting_where_it_is_known() -> None:
    waited = gather(9 * MS, transfer_ns=MS, skew_wait_ns=8 * MS)
    one = found(run(workload=workload(), collectives=[waited], gemms=[]))["gathered-input"]
    assert one.added_comm_ns == 40 * MS


def test_full_recompute_runs_the_collectives_of_forward_again_with_nothing_to_hide_them() -> None:
    """sp, separate: 5 all-gathers and 2 reduce-scatters a block."""
    collectives = [gather(MS), collective(op="reduce_scatter", bytes=F, dur_ns=3 * MS)]
    one = found(run(workload=workload(), collectives=collectives))["block-activations"]
    assert one.added_comm_bytes == 8 * 7 * F // 2
    assert one.added_comm_ns == one.would_be_exposed_ns == 8 * (5 * MS + 2 * 3 * MS)
    assert one.hideable_ns == 0
    block_input = F // 2
    assert one.freed_bytes == one.bytes - 8 * block_input


def test_norms_and_attention_send_nothing() -> None:
    known = found(run(workload=workload()))
    for kind, how in (("norm-input", "--norm fused"), ("attention-core", "--recompute selective")):
        assert (known[kind].added_comm_bytes, known[kind].would_be_exposed_ns) == (0, 0)
        assert known[kind].how == how
    log_sum_exp = 4 * TOKENS * 8 // 2  # fp32, this rank's heads: all that a flash kernel's recompute frees
    assert known["attention-core"].freed_bytes == 8 * log_sum_exp
    # an eager norm keeps 8 bytes an element, a fused one 2; 2 norms a block and the final one
    assert known["norm-input"].freed_bytes == 17 * 6 * TOKENS * HIDDEN // 2


def test_tensor_parallel_ranks_hold_whole_what_sequence_parallel_ones_divide() -> None:
    """FACTS: TP - SP recompute 10F(1-1/T) a block, 4F(1-1/T) for the final norm, 4SB(1-1/T) a norm."""
    one = found(run(workload=workload(mode="tp", save=None)))["replicated-activations"]
    assert one.freed_bytes == 8 * 5 * F + 2 * F + 17 * 4 * TOKENS // 2
    # 14rF -> 19rF a block, twice F at entry and exit, norm gradients all-reduced
    assert one.added_comm_bytes == (8 * 5 * F + 2 * F) // 2 + 17 * HIDDEN * 2


@pytest.mark.parametrize(
    ("options", "gone"),
    [
        ({"save": "shard"}, "gathered-input"),
        ({"norm": "fused"}, "norm-input"),
        ({"recompute": "selective"}, "attention-core"),
        ({"recompute": "full"}, "attention-core"),
        ({"recompute": "full"}, "block-activations"),
        ({"recompute": "full"}, "gathered-input"),
        ({"mode": "sp"}, "replicated-activations"),
        ({"mode": "ddp", "save": None, "comm": None}, "gathered-input"),
    ],
)
def test_nothing_is_advised_that_is_set_already(options: dict[str, Any], gone: str) -> None:
    assert gone not in found(run(workload=workload(**options)))


def test_async_is_not_advised_where_it_is_set() -> None:
    assert found(run(workload=workload(comm="async")))["gathered-input"].how == "--save shard"


def test_cpu_runs_tell_structure_and_no_time() -> None:
    gemms, gathers = [dgrad(40, MS)], [gather()]
    known, ledger = opportunities(run(workload=workload(), gemms=gemms, collectives=gathers, is_cpu=True))
    for one in known:
        if one.added_comm_bytes:
            assert (one.added_comm_ns, one.hideable_ns, one.would_be_exposed_ns) == (None, None, None)
    assert [entry.code for entry in ledger] == ["opportunity-times-not-on-cpu"]
    assert {one.kind: one.freed_bytes for one in known}["gathered-input"] == 8 * 24 * MIB


# --- from the blocks alone -------------------------------------------------------------------------


def foreign(blocks: list[MemoryBlock], **more: Any) -> dict[str, Opportunity]:
    return found(run(figures=[figures_of(blocks)], **more))


def test_gathered_blocks_of_a_foreign_run_free_at_least_all_but_a_shard_each() -> None:
    gathers = [
        gather(MS, module=block.module) for block in make_blocks() if block.category == "communication"
    ]
    gemms = [dgrad(10, 2 * MS)]
    one = foreign(make_blocks(), collectives=gathers, gemms=gemms)["gathered-input"]
    assert one.bytes == 10 * F
    assert one.freed_bytes == 10 * F // 2
    assert one.added_comm_bytes == 10 * F // 2
    assert one.layers == 2
    assert (one.added_comm_ns, one.hideable_ns, one.would_be_exposed_ns) == (10 * MS, 10 * MS, 0)


def test_a_block_that_no_all_gather_fills_is_not_called_gathered() -> None:
    assert "gathered-input" not in foreign(make_blocks())
    assert "gathered-input" not in foreign(make_blocks(), collectives=[gather(bytes=F // 3)])


def test_parameters_that_stay_gathered_are_told_apart() -> None:
    gathers = [gather(MS, purpose="param-gather", module=None)]
    known = foreign(make_blocks(), collectives=gathers)
    assert "gathered-input" not in known
    assert known["gathered-parameters"].bytes == 10 * F
    assert "reshard_after_forward=True" in known["gathered-parameters"].how


def test_stored_attention_scores_are_seen_by_their_softmax() -> None:
    scores = [
        replace(block, made_by="aten::_softmax", module=f"layers.{block.layer}.self_attn", bytes=7 * F)
        for block in make_blocks()
        if block.module and block.module.endswith(".norm")
    ]
    one = foreign([*make_blocks(), *scores])["attention-core"]
    assert (one.bytes, one.freed_bytes, one.layers, one.added_comm_bytes) == (14 * F, 14 * F, 2, 0)
    logits = [replace(block, made_by="aten::_log_softmax") for block in scores]
    assert "attention-core" not in foreign([*make_blocks(), *logits])


def test_whole_layers_free_at_least_all_but_their_largest_block() -> None:
    """A layer keeps 2F of its norm, 5 gathered F and 3F of its MLP: its input, which stays, is at most 3F."""
    again = [gather(MS, layer=layer, module=f"layers.{layer}.x") for layer in range(2)]
    one = foreign(make_blocks(), collectives=again)["block-activations"]
    assert (one.bytes, one.freed_bytes, one.layers) == (20 * F, 14 * F, 2)
    assert (one.added_comm_bytes, one.added_comm_ns, one.would_be_exposed_ns) == (F, 2 * MS, 2 * MS)


def test_layers_that_are_recomputed_already_are_not_advised_again() -> None:
    gemms = [replace(dgrad(4, MS), role="recompute")]
    assert "block-activations" not in foreign(make_blocks(), gemms=gemms)


def test_unknown_sizes_make_the_added_bytes_unknown() -> None:
    one = foreign(make_blocks(), collectives=[gather(bytes=None, layer=0)])["block-activations"]
    assert one.added_comm_bytes is None
    assert one.added_comm_ns is None


def test_a_run_without_borders_has_no_opportunities() -> None:
    figures = replace(figures_of(make_blocks()), borders=[], across_border_bytes=None)
    assert opportunities(run(figures=[figures])) == ([], [])


# --- findings --------------------------------------------------------------------------------------


def facts(opportunity: Opportunity, **more: Any) -> Facts:
    report = make_report()
    memory = assemble([figures_of(make_blocks())], opportunities=[opportunity])
    told: dict[str, Any] = {"is_cpu": False, "memory": memory} | more
    return Facts(report.totals, report.collectives, 6, told.pop("is_cpu"), None, None, None, **told)


BASE = Opportunity("gathered-input", 40 * MIB, 8, 32 * MIB, "--save shard", 15 * MIB, 8 * MS, 6 * MS, 2 * MS)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, "8.00 ms at this run's own speed: 6.00 ms fit under the dgrad GEMMs, 2.00 ms would be exposed"),
        ({"would_be_exposed_ns": 0}, "all of which fits under the dgrad GEMMs"),
        ({"hideable_ns": 0, "would_be_exposed_ns": 8 * MS}, "all of it exposed"),
        ({"hideable_ns": None, "would_be_exposed_ns": None}, "how much of it could be hidden is not known"),
        ({"added_comm_ns": None, "hideable_ns": None}, "this run has no collective of that size"),
        ({"added_comm_bytes": 0, "added_comm_ns": 0}, "It would send nothing more"),
        ({"added_comm_bytes": None}, "What it would send more is not known"),
    ],
)
def test_one_finding_per_opportunity_says_what_it_costs(change: dict[str, Any], says: str) -> None:
    (finding,) = rules.findings(facts(replace(BASE, **change)))
    assert finding.code == "memory-gathered-input"
    assert "32.0 MiB of it (80 %) could be freed" in finding.text
    assert says in finding.text
    assert finding.evidence["freed_bytes"] == 32 * MIB
    assert None not in finding.evidence.values()
    assert finding.advice == "If memory is short: --save shard."


def test_a_cpu_run_says_that_it_tells_nothing_of_speed() -> None:
    unknown = replace(BASE, added_comm_ns=None, hideable_ns=None, would_be_exposed_ns=None)
    (finding,) = rules.findings(facts(unknown, is_cpu=True))
    assert "15.0 MiB more per step and rank; what that takes is not known: CPU runs" in finding.text


def test_what_frees_next_to_nothing_is_no_finding() -> None:
    assert rules.findings(facts(replace(BASE, freed_bytes=MIB))) == []


def test_the_shipped_runs_advise_what_the_others_have() -> None:
    """SP basic could save shards; SP recompute does. Both figures are those of the closed form."""
    demo = Path(__file__).resolve().parent.parent / "traces" / "demo"
    basic = sp_profiler.analyze(demo / "sp-basic")
    recompute = sp_profiler.analyze(demo / "sp-recompute")
    assert basic.memory is not None
    assert recompute.memory is not None
    (one,) = [o for o in basic.memory.opportunities if o.kind == "gathered-input"]
    assert one.added_comm_ns is None  # a CPU run
    least = [memory.across_border_bytes for memory in (basic.memory, recompute.memory)]
    assert one.freed_bytes == (least[0] or 0) - (least[1] or 0)  # what the other run really keeps less
    assert "memory-gathered-input" in [finding.code for finding in basic.findings]
    assert "gathered-input" not in [o.kind for o in recompute.memory.opportunities]


# --- other findings of memory ----------------------------------------------------------------------


def of(memory_figures: list[Any], **more: Any) -> list[Any]:
    report = make_report()
    memory = assemble(memory_figures, **more)
    assert memory is not None
    return rules.findings(Facts(report.totals, report.collectives, 6, False, None, None, None, memory=memory))


def test_other_bytes_than_the_closed_form_are_a_warning_that_names_the_terms() -> None:
    (found,) = of([], saved=[saved_of(0, 512)])
    assert (found.code, found.severity) == ("saved-differs-from-theory", "warning")
    assert found.text.endswith("512 B off its closed form: other bytes in norm.")
    assert found.evidence["terms"] == [{"term": "norm", "bytes": 8 * F + 512, "theory_bytes": 8 * F}]
    assert of([], saved=[saved_of(0)]) == []


def test_what_hides_from_the_hooks_is_a_warning() -> None:
    block = replace(make_blocks()[0], module="layers.1.mlp")
    (found,) = of([], saved=[replace(saved_of(), hidden_bytes=block.bytes, hidden=[block])])
    assert found.code == "kept-past-the-hooks"
    assert (
        "12.0 MiB live at the end of forward although no operator saved them, most in layers.1.mlp"
        in found.text
    )


@pytest.mark.parametrize(
    ("sizes", "grows"), [((5, 6, 7), True), ((5, 6), False), ((5, 7, 6), False), ((5, 5, 6), False)]
)
def test_growth_from_step_to_step_is_a_warning(sizes: tuple[int, ...], grows: bool) -> None:
    one = figures_of(make_blocks())
    borders = [replace(one.borders[0], step=step, bytes=size * MIB) for step, size in enumerate(sizes)]
    found = of([replace(one, borders=borders, blocks=None)])
    assert [f.code for f in found] == (["kept-grows"] if grows else [])


def test_a_failed_allocation_is_the_first_warning() -> None:
    oom = OutOfMemory(
        T0, 5 * MIB, 2 * MIB, 90 * MIB, 100 * MIB, 10 * MIB, 3 * MIB, {"train.py:9 main": 80 * MIB}
    )
    (found,) = of([replace(figures_of(make_blocks()), out_of_memory=[oom], blocks=None)])
    assert (found.code, found.severity) == ("out-of-memory", "warning")
    assert "Rank 0 ran out of memory on a request of 5.00 MiB" in found.text
    assert found.evidence["asked_bytes"] == 5 * MIB
    assert "2.00 MiB were free on the device" in (found.advice or "")
