"""What the ranges of a step cover: every GEMM of a linear, the attention core, the collectives, AdamW."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
from workloads_ranks import SCHEDULES, config_of

from sp_profiler.record.annotate import Range, parse_range
from workloads.communication import Communicator
from workloads.config import WorkloadConfig
from workloads.data import batches
from workloads.train import build

GEMMS = ("aten::mm", "aten::addmm", "aten::bmm")
LINEARS = ("q", "k", "v", "o", "gate", "up", "down")


@dataclass(frozen=True)
class Span:
    name: str
    start: Decimal
    end: Decimal
    thread: Any

    @property
    def range(self) -> Range | None:
        return parse_range(self.name)

    def holds(self, other: Span) -> bool:
        return self.thread == other.thread and self.start <= other.start and other.end <= self.end


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A gloo world of this process alone: the order of a schedule does not depend on its size."""
    store = tmp_path_factory.mktemp("store") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def spans_of(config: WorkloadConfig, group: Any, folder: Path) -> list[Span]:
    """The complete events of one training step, in order of start."""
    config = config.canonical()
    device = torch.device("cpu")
    communicator = Communicator("dp" if config.mode == "ddp" else "tp", [0], 0, group)
    workload = build(config, communicator, device)
    warm, tokens = batches(config, 2, 0, device)
    workload.step(warm)
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        workload.step(tokens)
    path = folder / "trace.json"
    recorded.export_chrome_trace(str(path))
    events = json.loads(path.read_text(), parse_float=Decimal)["traceEvents"]
    spans = [
        Span(e["name"], e["ts"], e["ts"] + e["dur"], e["tid"])
        for e in events
        if e.get("ph") == "X" and e.get("cat") in ("cpu_op", "user_annotation")
    ]
    return sorted(spans, key=lambda span: (span.start, -span.end))


def ranges_of(spans: list[Span], *what: str) -> list[tuple[Span, Range]]:
    pairs = [(span, span.range) for span in spans]
    return [(span, r) for span, r in pairs if r is not None and (not what or r.what in what)]


@pytest.fixture(scope="module", params=SCHEDULES, ids=lambda s: "-".join(s.values()))
def step(request: pytest.FixtureRequest, one_rank: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    config = config_of(1, dtype="f32", num_microbatches=1, **request.param)
    return config, spans_of(config, one_rank, tmp_path_factory.mktemp("trace"))


def test_every_gemm_of_a_linear_has_its_role(step: Any) -> None:
    """One GEMM a range; each linear has one forward, one dgrad and one wgrad."""
    config, spans = step
    marks = ranges_of(spans, "fwd", "dgrad", "wgrad")
    found: dict[str, list[str]] = defaultdict(list)
    for gemm in (span for span in spans if span.name in GEMMS):
        around = [r for mark, r in marks if mark.holds(gemm)]
        assert len(around) == 1, f"{gemm.name} lies in {len(around)} ranges"
        assert around[0].module is not None
        found[around[0].module].append(around[0].what)
    blocks = range(config.layers)
    modules = [f"layers.{i}.{'attention' if n in 'qkvo' else 'mlp'}.{n}" for i in blocks for n in LINEARS]
    assert sorted(found) == sorted([*modules, "head"])
    assert {tuple(sorted(roles)) for roles in found.values()} == {("dgrad", "fwd", "wgrad")}


def test_layers_are_named(step: Any) -> None:
    for _, r in ranges_of(step[1]):
        module = r.module or ""
        if module.startswith("layers."):
            assert r.layer == int(module.split(".")[1])


def test_attention_is_marked_in_forward_and_backward(step: Any) -> None:
    config, spans = step
    marks = ranges_of(spans, "attention")
    cores = [span for span in spans if span.name.startswith("aten::_scaled_dot_product")]
    backward = [span for span in cores if "backward" in span.name]
    assert len(backward) == config.layers
    assert len(cores) > len(backward)
    for core in cores:
        assert sum(mark.holds(core) for mark, _ in marks) == 1
    assert {r.module for _, r in marks} == {f"layers.{i}.attention.core" for i in range(config.layers)}


def test_the_optimizer_is_marked(step: Any) -> None:
    _, spans = step
    ((mark, _),) = ranges_of(spans, "optimizer")
    updates = [span for span in spans if span.name == "aten::_fused_adamw_"]
    assert updates
    assert all(mark.holds(update) for update in updates)


def test_events_of_a_thread_form_a_tree(step: Any) -> None:
    """No range begins inside one event and ends outside of it, or "innermost" would mean nothing."""
    _, spans = step
    assert_tree(spans)


def assert_tree(spans: list[Span]) -> None:
    by_thread: dict[Any, list[Span]] = defaultdict(list)
    for span in spans:
        by_thread[span.thread].append(span)
    for thread_spans in by_thread.values():
        open_spans: list[Span] = []
        for span in thread_spans:
            while open_spans and open_spans[-1].end <= span.start:
                open_spans.pop()
            assert not open_spans or span.end <= open_spans[-1].end, span.name
            open_spans.append(span)


BACKWARD = {
    # mode, save, comm: the ranges of a column linear's backward, in order; * asynchronous
    ("ddp", None, None): "dgrad wgrad",
    ("tp", None, "sync"): "dgrad wgrad all_reduce",
    ("tp", None, "async"): "dgrad all_reduce* wgrad wait",
    ("sp", "full", "sync"): "dgrad wgrad reduce_scatter",
    ("sp", "full", "async"): "dgrad reduce_scatter* wgrad wait",
    ("sp", "shard", "sync"): "all_gather dgrad wgrad reduce_scatter",
    ("sp", "shard", "async"): "all_gather* dgrad wait reduce_scatter* wgrad wait",
}


def test_order_of_a_column_linears_backward(step: Any) -> None:
    config, spans = step
    for name in ("attention.q", "mlp.gate"):
        words = []
        for _, r in ranges_of(spans):
            if r.module == f"layers.1.{name}" and r.what != "fwd" and r.fields.get("phase") != "forward":
                words.append(r.fields["op"] + "*" * bool(r.is_async) if r.what == "comm" else r.what)
        canonical = config.canonical()
        assert " ".join(words) == BACKWARD[canonical.mode, canonical.save, canonical.comm]


def test_every_asynchronous_collective_has_its_wait(step: Any) -> None:
    _, spans = step
    launched = [(r.fields["group"], r.seq) for _, r in ranges_of(spans, "comm") if r.is_async]
    waited = [(r.fields["group"], r.seq) for _, r in ranges_of(spans, "wait")]
    assert sorted(launched) == sorted(waited)
    assert len(set(launched)) == len(launched)


def test_ddp_starts_its_buckets_under_backward(one_rank: Any, tmp_path: Path) -> None:
    spans = spans_of(config_of(1, mode="ddp", dtype="f32"), one_rank, tmp_path)
    launches = [span for span, _ in ranges_of(spans, "comm")]
    last_gemm = max(span.start for span, _ in ranges_of(spans, "wgrad"))
    assert sum(span.start < last_gemm for span in launches) == len(launches) - 1
    first_wait = min(span.start for span, _ in ranges_of(spans, "wait"))
    assert first_wait > max(last_gemm, *(span.end for span in launches))


def test_accumulation_reduces_in_the_last_micro_batch_only(one_rank: Any, tmp_path: Path) -> None:
    config = config_of(1, mode="ddp", dtype="f32", num_microbatches=2)
    spans = spans_of(config, one_rank, tmp_path)
    wgrads = [span for span, r in ranges_of(spans, "wgrad") if r.module == "head"]
    assert len(wgrads) == 2
    assert min(span.start for span, _ in ranges_of(spans, "comm")) > wgrads[1].start


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: "-".join(s.values()))
def test_a_repeated_block_lies_in_its_range(schedule: dict[str, str], one_rank: Any, tmp_path: Path) -> None:
    """Inside a node of backward; the repetition stops early, and what it leaves open is closed."""
    config = config_of(1, dtype="f32", recompute="full", **schedule)
    spans = spans_of(config, one_rank, tmp_path)
    assert_tree(spans)
    blocks = ranges_of(spans, "recompute")
    assert [(r.module, r.layer) for _, r in blocks] == [("layers.1", 1), ("layers.0", 0)]
    first_backward = min(span.start for span, _ in ranges_of(spans, "dgrad"))
    forward = [(span, r) for span, r in ranges_of(spans, "fwd") if r.layer is not None]
    for layer in range(config.layers):
        once, again = [
            [r.module for span, r in forward if r.layer == layer and (span.start > first_backward) == late]
            for late in (False, True)
        ]
        assert again == once
        assert len(once) == len(LINEARS)
    for span, _ in forward:
        around = [r for mark, r in blocks if mark.holds(span)]
        assert len(around) == (span.start > first_backward)
    phases = {
        (r.fields["phase"], any(mark.holds(span) for mark, _ in blocks))
        for span, r in ranges_of(spans, "comm")
        if r.fields["purpose"] == "activation" and r.layer is not None
    }
    assert phases == (set() if config.mode == "ddp" else {("forward", False), ("backward", True)})


def test_a_repeated_core_is_marked_as_attention(one_rank: Any, tmp_path: Path) -> None:
    config = config_of(1, dtype="f32", recompute="selective", mode="tp")
    spans = spans_of(config, one_rank, tmp_path)
    assert_tree(spans)
    cores = ranges_of(spans, "recompute")
    assert [r.module for _, r in cores] == ["layers.1.attention.core", "layers.0.attention.core"]
    again = [span for span, _ in ranges_of(spans, "attention") if any(mark.holds(span) for mark, _ in cores)]
    assert len(again) == config.layers
    assert not [span for span, _ in ranges_of(spans, "fwd") if any(mark.holds(span) for mark, _ in cores)]
