"""Memory of real traces: the shipped demo and the corpus, against plain Python over the same events."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY
from memory_helpers import analyzed

from sp_profiler.analysis.memory.results import MemoryFigures

DEMO = REPOSITORY / "traces" / "demo"
BERT = Path("corpus/bert_h100/gaunernst_bert-small-uncased__1016001.json.gz")
RESNET = Path("corpus/resnet_v100_memory/worker0.1623212756351.pt.trace.json.gz")
TYPES = {0: "cpu", 1: "cuda"}


def instants(path: Path) -> dict[tuple[str, int | None], list[dict[str, Any]]]:
    """The args of all `[memory]` events by device, in order of time."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    found = [event for event in events if event.get("name") == "[memory]"]
    by_device: dict[tuple[str, int | None], list[dict[str, Any]]] = defaultdict(list)
    for event in sorted(found, key=lambda event: event["ts"]):
        args = event["args"]
        number = args["Device Id"]
        by_device[TYPES[args["Device Type"]], number if number >= 0 else None].append(args)
    return by_device


def live(figures: MemoryFigures) -> set[tuple[int, int]]:
    """(address, bytes) of what is alive at the end."""
    return {(one.address or 0, one.bytes) for one in figures.unpaired or () if one.kind == "alive-at-end"}


@pytest.mark.shared
def test_bert(shared: Path) -> None:
    figures, ledger = analyzed(str(shared / BERT))
    given = instants(shared / BERT)
    assert sum(one.events for one in figures) == 236
    assert [(one.device_type, one.device, one.events) for one in figures] == [
        ("cuda", 0, 218),
        ("cpu", None, 18),
    ]
    for one in figures:
        args = given[one.device_type, one.device]
        totals = [event["Total Allocated"] for event in args]
        assert (one.totals_checked, one.totals_disagree) == (len(args), 0)
        assert one.curve is not None
        assert one.curve.allocated_bytes == totals
        assert one.peak_bytes == max(totals)
        assert one.start_bytes == totals[0] - args[0]["Bytes"]
        assert one.end_bytes == totals[-1]
        assert 2 * (one.blocks_count or 0) == len(args)  # each allocation has its free
        assert one.unpaired == []
        assert sum((one.peak_by_category or {}).values()) == one.peak_bytes
    gpu = figures[0]
    assert gpu.peak_blocks[0].operator == "aten::addmm"
    assert gpu.peak_blocks[0].module == "Linear_25"
    assert gpu.peak_by_category == {"temporary": 9944576, "before-window": 91360768}
    assert "no-backward-border" in ledger


@pytest.mark.shared
def test_resnet_of_2021(shared: Path) -> None:
    figures, ledger = analyzed(str(shared / RESNET))
    given = instants(shared / RESNET)
    assert [(one.device_type, one.events) for one in figures] == [("cuda", 8280), ("cpu", 2700)]
    for one in figures:
        total = peak = 0
        for event in given[one.device_type, one.device]:
            total += event["Bytes"]
            peak = max(peak, total)
        assert one.is_relative
        assert (one.peak_bytes, one.end_bytes) == (peak, total)
        assert one.blocks is one.unpaired is one.peak_by_category is None
        assert one.totals_checked is None
    assert "memory-without-address" in ledger


@pytest.mark.parametrize("run", ["tp-sync", "tp-async", "sp-basic", "sp-recompute"])
@pytest.mark.parametrize("rank", [0, 1])
def test_the_demo_agrees_with_the_recorder_at_every_event(run: str, rank: int) -> None:
    path = DEMO / run / f"rank-0000{rank}.pt.trace.json.gz"
    (figures,), _ = analyzed(str(path))
    ((_, args),) = instants(path).items()
    totals = [event["Total Allocated"] for event in args]
    assert (figures.totals_checked, figures.totals_disagree) == (len(args), 0)
    assert (figures.peak_bytes, figures.end_bytes) == (max(totals), totals[-1])
    taken: dict[int, int] = {}
    allocated = freed_unseen = 0
    for event in args:
        size = event["Bytes"]
        if size > 0:
            freed_unseen += taken.get(event["Addr"], 0)
            taken[event["Addr"]] = size
            allocated += 1
        else:
            assert taken.pop(event["Addr"]) == -size
    assert figures.blocks_count == allocated
    assert live(figures) == set(taken.items())
    assert figures.end_bytes == sum(taken.values()) + freed_unseen
    assert sum((figures.peak_by_category or {}).values()) == figures.peak_bytes


class TestSchemes:
    """What another scheme keeps for backward, and FACTS' closed forms: F = 0.5 MiB, T = 2, two layers."""

    F = 4 * 256 * 2 * 256

    @staticmethod
    def of(run: str) -> MemoryFigures:
        (figures,), _ = analyzed(str(DEMO / run / "rank-00000.pt.trace.json.gz"))
        return figures

    def test_gathered_inputs_are_the_blocks_that_recompute_does_not_have(self) -> None:
        basic, again = self.of("sp-basic"), self.of("sp-recompute")
        columns = [
            f"layers.{i}.{name}"
            for i in (0, 1)
            for name in ("attention.q", "attention.k", "attention.v", "mlp.gate", "mlp.up")
        ]
        for step in (1, 2):
            kept = [
                (b.module, b.bytes)
                for b in basic.blocks or ()
                if b.category == "communication" and b.crosses_border and b.step == step
            ]
            gathered = [(module, size) for module, size in kept if module != "head"]
            assert sorted(gathered) == sorted((module, self.F) for module in columns)
        others = {
            b.module
            for b in again.blocks or ()
            if b.category == "communication" and b.freed_phase == "backward" and b.phase == "forward"
        }
        assert others == {"head"}

    def test_the_difference_is_that_of_the_closed_form(self) -> None:
        basic, again = self.of("sp-basic"), self.of("sp-recompute")
        assert len(basic.borders) == len(again.borders) == 2
        for one, other in zip(basic.borders, again.borders, strict=True):
            assert one.bytes - other.bytes == (5 - 2 // 2) * self.F * 2
            assert one.by_layer["0"] == one.by_layer["1"]
            assert other.by_layer["0"] == other.by_layer["1"]

    def test_tensor_parallelism_keeps_no_communication(self) -> None:
        for run in ("tp-sync", "tp-async"):
            for border in self.of(run).borders:
                assert set(border.by_category) == {"activation"}

    def test_gradients_of_each_step_are_those_of_the_parameters(self) -> None:
        """Weights' gradients are made by the wgrad GEMMs, one for each linear, and live until zero_grad."""
        figures = self.of("sp-basic")
        gradients = [b for b in figures.blocks or () if b.category == "gradient" and b.step == 1]
        assert {b.freed_phase for b in gradients} == {"optimizer"}
        heads = [b for b in gradients if b.module == "head"]
        assert [b.bytes for b in heads] == [4 * 1024 * 256]


def test_the_figures_in_the_documentation() -> None:
    text = (REPOSITORY / "docs" / "memory.md").read_text(encoding="utf-8")
    for run in ("sp-basic", "sp-recompute"):
        kept = {border.bytes for border in TestSchemes.of(run).borders}
        assert [f"{size:,} B" in text for size in kept] == [True]
