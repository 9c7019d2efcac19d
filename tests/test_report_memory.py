"""The memory section: assembled from all ranks, said in sentences, listed, beside theory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from memory_report_helpers import PARAMETERS, F, figures_of, make_blocks, make_memory, saved_of

from sp_profiler.analysis.memory.blocks import FREED_UNSEEN
from sp_profiler.analysis.memory.kept import kept_blocks, top_border
from sp_profiler.analysis.memory.reconcile import Difference, differences
from sp_profiler.analysis.memory.results import MemoryFigures, OutOfMemory, SavedPart
from sp_profiler.report import memory_view
from sp_profiler.report.memory import assemble, leading, listed_within, of_run
from sp_profiler.report.memory_sentences import sentences
from sp_profiler.report.out_of_memory import holders

WORKLOAD: dict[str, Any] = {
    "mode": "sp", "ranks": 2, "comm": "sync", "save": "full", "layers": 2, "seq_len": 64, "hidden": 64,
    "heads": 8, "kv_heads": 4, "ffn": 192, "vocab": 64, "micro_batch": 2, "dtype": "f32",
}  # fmt: skip


# --- assembling ------------------------------------------------------------------------------------


def test_the_device_with_the_highest_peak_leads_and_a_gpu_before_any_cpu() -> None:
    gpu = figures_of(make_blocks(), rank=1)
    higher = replace(figures_of(make_blocks(layers=3), layers=3), rank=2)
    cpu = replace(gpu, rank=0, device_type="cpu", device=None, peak_bytes=10**15)
    memory = assemble([higher, cpu, gpu])
    assert memory is not None
    assert (memory.rank, memory.peak_bytes) == (2, higher.peak_bytes)
    assert [one.rank for one in memory.ranks] == [0, 1, 2]
    assert leading(memory) is higher
    assert memory.peak_blocks == higher.peak_blocks
    only_cpu = assemble([cpu])
    assert only_cpu is not None
    assert only_cpu.peak_bytes == 10**15


def test_hooks_alone_make_a_section_and_nothing_makes_none() -> None:
    assert assemble([]) is None
    memory = assemble([], saved=[saved_of(0), saved_of(1, F)])
    assert memory is not None
    assert (memory.source, memory.peak_bytes, memory.saved_bytes) == ("hooks", None, 25 * F)
    assert sentences(memory)[0] == "Rank 1 keeps 150.0 MiB of activations for backward."


def relative() -> MemoryFigures:
    """A device whose file has neither addresses nor totals."""
    unknown = ("peak_by_category", "peak_by_operator", "peak_by_module", "across_border_bytes", "blocks")
    unknown += (
        "across_border_by_module",
        "across_border_by_layer",
        "blocks_count",
        "unpaired_count",
        "unpaired",
    )
    nothing: dict[str, Any] = dict.fromkeys(unknown)
    return replace(
        figures_of(make_blocks()), is_relative=True, borders=[], peak_blocks=[], peak_bytes=7 * F, **nothing
    )


def test_figures_without_addresses_are_shown_as_relative_and_nothing_as_zero() -> None:
    memory = assemble([relative()])
    assert memory is not None
    told = sentences(memory)
    assert told == [
        "Memory peaks at 42.0 MiB above what was there when the recording began on rank 0 in backward "
        "of step 1."
    ]
    (ranks,) = memory_view.listings(memory)
    assert "count from what was allocated when the recording began" in ranks.note
    assert "Kept for backward" not in [label for label, _, _ in ranks.columns]


# --- sentences -------------------------------------------------------------------------------------


def test_what_stays_alive_is_said_first_with_its_gathered_part() -> None:
    """Per layer 2F of the norm, 5F gathered, 3F of the MLP."""
    told = sentences(replace(make_memory(), gathered_input_bytes=[F]))
    assert told[0] == (
        "120.0 MiB stay alive from forward to backward on rank 0, of which 60.0 MiB (50 %) are gathered "
        "inputs of linears."
    )
    assert "60.0 MiB (50 %) are buffers born in collectives." in sentences(make_memory())[0]
    other = replace(make_memory(), gathered_input_bytes=[F + 1])
    assert "60.0 MiB (50 %) are buffers born in collectives." in sentences(other)[0]
    without = sentences(replace(make_memory("tp", None), gathered_input_bytes=[F]))
    assert without[0] == "108.0 MiB stay alive from forward to backward on rank 0."


def test_the_peak_is_said_with_what_it_is_made_of() -> None:
    memory = make_memory()
    parts = memory.peak_by_category or {}
    assert sum(parts.values()) == memory.peak_bytes
    text = sentences(memory)[1]
    assert text.startswith("Memory peaks at 264.0 MiB on rank 0 in backward of step 1: 120.0 MiB parameters")


def test_the_peak_says_what_of_it_is_free() -> None:
    """On CPU torch goes on counting what gloo's threads free."""
    memory = make_memory()
    (top, *rest) = memory.ranks
    unseen = replace(top, peak_by_operator={**(top.peak_by_operator or {}), FREED_UNSEEN: 3 << 20})
    text = sentences(replace(memory, ranks=[unseen, *rest]))[1]
    assert text.endswith("; 3.00 MiB of it are free: torch goes on counting what threads free unprofiled.")
    assert "are free" not in sentences(memory)[1]


def test_measured_and_theory_are_compared_to_the_byte() -> None:
    equal, more = make_memory(saved=[saved_of()]), make_memory(saved=[saved_of(0, 512), saved_of(1)])
    assert sentences(equal)[-1] == (
        "Rank 0 saves 144.0 MiB for backward, to the byte what the closed form gives."
    )
    assert sentences(more)[-1] == (
        "Rank 0 saves 144.0 MiB for backward, 512 B more than the 144.0 MiB of the closed form: "
        "512 B in norm."
    )


# --- tables ----------------------------------------------------------------------------------------


def listing(memory: Any, name: str) -> list[list[Any]]:
    (one,) = [one for one in memory_view.listings(memory) if one.id == name]
    assert all(len(row) == len(one.columns) for row in one.rows)
    return one.rows


def test_every_grouping_of_the_border_sums_to_all_of_it() -> None:
    memory = make_memory()
    rows = listing(memory, "memory-border")
    for by in ("category", "layer", "module", "operator"):
        assert sum(row[2] for row in rows if row[0] == by) == memory.across_border_bytes, by
        assert sum(row[3] for row in rows if row[0] == by) == pytest.approx(1)


def test_terms_stand_beside_theory_and_add_up() -> None:
    rows = listing(make_memory(saved=[saved_of(0, 512)]), "memory-saved")
    *terms, whole = rows
    assert [row[0] for row in terms] == ["column-input", "norm", "mlp"]  # largest first, layers not repeated
    for place in (2, 3, 4, 5):
        assert sum(row[place] for row in terms) == whole[place]
    assert whole[2:5] == [24 * F + 512, 24 * F, 512]


def test_ranks_stand_beside_each_other() -> None:
    memory = make_memory(ranks=12)
    (peaks,) = [one for one in memory_view.listings(memory) if one.id == "memory-peak"]
    assert [label for label, _, _ in peaks.columns[1:]] == [f"rank {rank}" for rank in range(8)]
    for place in range(1, 9):
        assert sum(row[place] for row in peaks.rows) == memory.peak_bytes


def test_blocks_kept_for_backward_are_those_that_the_border_counts() -> None:
    """A block that crosses and is not freed in backward is none of them."""
    stuck = replace(make_blocks()[1], death_ns=None, lifetime_ns=None, freed_phase=None)
    one = figures_of(make_blocks())
    with_stuck = replace(one, blocks=[stuck, *(one.blocks or [])])
    border = top_border(one)
    assert border is not None
    kept = kept_blocks(with_stuck, border)
    assert (len(kept), sum(block.bytes for block in kept)) == (border.blocks, border.bytes)
    assert stuck not in kept


def test_devices_of_one_rank_are_told_apart() -> None:
    gpu = figures_of(make_blocks())
    memory = assemble([gpu, replace(gpu, device=1), replace(gpu, device_type="cpu", device=None)])
    unknown = assemble([replace(gpu, rank=None), replace(gpu, rank=None, device_type="cpu", device=None)])
    assert [row[0] for row in listing(unknown, "memory-ranks")] == ["device 0", "CPU"]
    assert [row[0] for row in listing(memory, "memory-ranks")] == [
        "rank 0 device 0",
        "rank 0 device 1",
        "rank 0 CPU",
    ]


# --- trace against hooks ---------------------------------------------------------------------------


def parts_of(figures: MemoryFigures) -> list[SavedPart]:
    border = top_border(figures)
    assert border is not None
    return [SavedPart("t", b.module, "Op", b.bytes, 1) for b in kept_blocks(figures, border)]


def test_every_byte_that_one_side_counts_alone_is_named() -> None:
    figures = replace(figures_of(make_blocks()), device_type="cpu")
    parts = parts_of(figures)
    dropped, kept = parts[0], parts[1:]
    tokens = SavedPart("embedding", "embedding", "EmbeddingBackward0", 4112, 1)
    saved = replace(saved_of(), parts=[*kept, tokens], saved_bytes=sum(p.bytes for p in kept) + 4112)
    found = differences(figures, saved)
    assert found == [
        Difference("trace", "aten::silu", dropped.module, dropped.bytes, 1),
        Difference("hooks", "EmbeddingBackward0", "embedding", 4112, 1),
    ]
    signs = {"trace": 1, "rounding": 1, "hooks": -1}
    assert sum(signs[one.seen_by] * one.bytes for one in found) == (
        (figures.across_border_bytes or 0) - saved.saved_bytes
    )


def test_what_the_allocator_rounds_up_is_told_as_that_on_a_gpu_only() -> None:
    figures = figures_of(make_blocks())
    saved = replace(saved_of(), parts=[replace(part, bytes=part.bytes - 100) for part in parts_of(figures)])
    count = len(saved.parts)
    assert differences(figures, saved) == [Difference("rounding", None, None, 100 * count, count)]
    on_cpu = differences(replace(figures, device_type="cpu"), saved)
    assert {one.seen_by for one in on_cpu} == {"trace", "hooks"}


def test_equal_parts_of_several_tensors_are_split() -> None:
    figures = replace(figures_of(make_blocks()), device_type="cpu")
    gathered = SavedPart("column-input", None, "ColumnFunctionBackward", 10 * F, 10)
    others = [part for part in parts_of(figures) if part.bytes != F]
    assert differences(figures, replace(saved_of(), parts=[gathered, *others])) == []


# --- run.json --------------------------------------------------------------------------------------


def run_json(tensors: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    whole = sum(tensor["bytes"] for tensor in tensors)
    return {"workload": WORKLOAD, "saved_tensors": {"0": {"saved_bytes": whole, "tensors": tensors} | more}}


def of(told: dict[str, Any] | None) -> Any:
    return of_run([], told, [], [], 1, is_cpu=False)


def test_saved_tensors_of_run_json_stand_beside_the_closed_form_per_layer_and_in_all() -> None:
    size = 5 * 4 * 64 * 2 * 64  # five gathered inputs of F = 4 S B H
    tensors = [
        {"term": "column-input", "module": f"layers.{layer}.x", "layer": layer, "operator": "Op",
         "bytes": size - layer, "count": 5, "shape": [1], "dtype": "float32"}
        for layer in (0, 1)
    ]  # fmt: skip
    memory = of(run_json(tensors, hidden_bytes=7, peak_bytes=10**6)).memory
    (saved,) = memory.saved
    terms = {(term.term, term.layer): term for term in saved.terms}
    assert terms["column-input", 0].bytes == terms["column-input", 0].theory_bytes == size
    assert (terms["column-input", 1].bytes, terms["column-input", 1].theory_bytes) == (size - 1, size)
    assert (terms["column-input", None].bytes, terms["column-input", None].theory_bytes) == (
        2 * size - 1,
        2 * size,
    )
    assert terms["column-input", None].tensors == 10
    assert (terms["mlp", None].bytes, terms["mlp", None].theory_bytes) == (0, 2 * 3 * 4 * 128 * 192 // 2)
    assert saved.theory_bytes == sum(t.theory_bytes for t in saved.terms if t.layer is None)
    assert (saved.hidden_bytes, saved.peak_bytes) == (7, 10**6)


@pytest.mark.parametrize(
    "broken",
    [
        [],
        {"0": []},
        {"0": {"saved_bytes": "many", "tensors": []}},
        {"zero": {"saved_bytes": 0, "tensors": []}},
    ],
)
def test_saved_tensors_that_cannot_be_read_are_a_loss_and_no_zero(broken: Any) -> None:
    kept = of({"workload": WORKLOAD, "saved_tensors": broken})
    assert kept.memory is None
    assert [(entry.code, entry.severity) for entry in kept.ledger] == [("saved-tensors-unusable", "loss")]


def test_tensors_that_do_not_add_up_are_told() -> None:
    told = run_json([{"term": "mlp", "operator": "Op", "bytes": 5}])
    told["saved_tensors"]["0"]["saved_bytes"] = 6
    (entry,) = of(told).ledger
    assert (entry.code, entry.severity) == ("saved-tensors-unequal", "assumption")


@pytest.mark.parametrize(
    "workload", [None, {}, {"mode": "ring"}, WORKLOAD | {"dtype": "f3"}, WORKLOAD | {"layers": 0}]
)
def test_without_a_closed_form_theory_is_unknown(workload: Any) -> None:
    told = run_json([{"term": "mlp", "operator": "Op", "bytes": 5}]) | {"workload": workload}
    (saved,) = of(told).memory.saved
    assert saved.theory_bytes is None
    assert [term.theory_bytes for term in saved.terms] == [None]


def test_parameters_alive_at_the_end_are_counted_as_unpaired() -> None:
    rows = listing(make_memory(), "memory-unpaired")
    assert rows == [[f"rank {rank}", "alive-at-end", 1, PARAMETERS] for rank in (0, 1)]


# --- many ranks --------------------------------------------------------------------------------------


def test_the_leading_device_lists_all_blocks_and_the_others_share() -> None:
    """12 blocks on the device that leads; 10 for 2, 10 and 10: 2, 4 and 4, the largest in their order."""
    blocks = make_blocks("tp", None, 2)
    assert len(blocks) == 12
    made = [
        replace(figures_of(blocks[:n], rank=rank), blocks_count=n) for rank, n in enumerate((12, 2, 10, 10))
    ]
    found, entries = listed_within(made, most=10)
    assert [len(one.blocks or ()) for one in found] == [12, 2, 4, 4]
    assert found[0] is made[0]
    listed = found[3].blocks or []
    assert listed == [block for block in made[3].blocks or [] if block in listed]
    assert min(b.bytes for b in listed) >= max(b.bytes for b in blocks[:10] if b not in listed)
    (entry,) = entries
    assert (entry.code, entry.count) == ("memory-blocks-not-listed", 12)
    assert found[3].blocks_count == made[3].blocks_count == 10
    assert listed_within(made, most=22) == (made, [])


def test_columns_that_are_left_out_are_counted() -> None:
    memory = make_memory(ranks=11)
    table = memory_view.peak_categories(memory)
    assert len(table.columns) == 1 + 8
    assert table.note.endswith("8 of 11 devices, those with the highest peaks; all are in the data files.")
    saved = replace(memory, saved=[replace(saved_of(rank), parameter_bytes=F) for rank in range(9)])
    assert "8 of 9 devices, the first ranks" in memory_view.measured_step(saved).note
    assert memory_view.peak_categories(make_memory()).note == "At each rank's own peak."


def test_devices_that_failed_later_than_the_eighth_are_counted() -> None:
    failed = OutOfMemory(1, F, F, F, F, F, F, {"train.py:1 main": F}, {})
    one = figures_of(make_blocks())
    memory = assemble(
        [replace(one, rank=rank, out_of_memory=[replace(failed, time_ns=rank)]) for rank in range(9)]
    )
    assert memory is not None
    table = holders(memory)
    assert len(table.columns) == 1 + 8
    assert "8 of 9 devices, the first to fail" in table.note
