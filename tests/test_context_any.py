"""Whatever ranks launch: context parallelism is found or not, and what is found adds up."""

from __future__ import annotations

from typing import Any

from across_helpers import group_of
from analysis_helpers import WHOLE, Drawn, comm, compute, draw, gemm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sp_profiler.analysis.across import across_ranks
from sp_profiler.analysis.context_parallel.across import context_parallel
from sp_profiler.analysis.rank import analyze_rank
from sp_profiler.classify.tables import Phase, Role
from sp_profiler.trace.tables import NONE

GROUPS = (group_of(0, 1, 2, description="cp"), group_of(0, 1, description="ring"), None)
OPS = (
    ("send_recv", "kv"), ("send_recv", "dkv"), ("send_recv", "unknown"), ("all_to_all", "layout"),
    ("all_gather", "kv"), ("reduce_scatter", "dkv"), ("send_recv", "pipeline"), ("all_reduce", "dgrad"),
)  # fmt: skip


@st.composite
def activities(pick: st.DrawFn) -> list[Drawn]:
    rows: list[Drawn] = []
    start = 0
    for _ in range(pick(st.integers(0, 30))):
        start += pick(st.integers(0, 40))
        launch = pick(st.sampled_from([NONE, start, start // 2, start // 2]))
        more: dict[str, Any] = {
            "phase": pick(st.sampled_from(list(Phase)[:3])),
            "recomputed": pick(st.booleans()),
        }
        what = pick(st.integers(0, 3))
        end = start + pick(st.integers(0, 60))
        if what == 0:
            rows.append(compute(start, end, Role.ATTENTION, launch, **more))
        elif what == 1:
            name = pick(st.sampled_from(["softmax", "direct_copy", "norm"]))
            rows.append(compute(start, end, Role.OTHER, launch, name=name, **more))
        elif what == 2 and pick(st.booleans()):
            rows.append(gemm(start, end, Role.FWD, launch, **more))
        else:
            op, purpose = pick(st.sampled_from(OPS))
            ends = {name: pick(st.sampled_from([None, 0, 1, 2, 7])) for name in ("source", "target")}
            peers = tuple(sorted({end for end in ends.values() if end is not None}))
            size = pick(st.sampled_from([None, 100, 200]))
            facts = {"op": op, "purpose": purpose, "group": pick(st.sampled_from(GROUPS)), "bytes": size}
            rows.append(comm(start, end, launch, peers=peers, **facts, **ends, **more))
    return rows


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(activities(), min_size=1, max_size=3))
def test_figures_add_up_whatever_is_launched(ranks: list[list[Drawn]]) -> None:
    results = [analyze_rank(*draw(*rows, rank=rank), WHOLE) for rank, rows in enumerate(ranks)]
    across = across_ranks(results)
    found, _ = context_parallel(across.results, across.joined, None)
    if found is None:
        return
    names = [group for one in found.schemes for group in one.groups]
    assert len(names) == len(set(names))
    for one in found.hops:
        assert one.group in names
        assert one.passes > 0
        assert min(one.hidden_ns, one.exposed_ns, one.dur_ns) >= 0
        parts = [one.communication_ns, one.imbalance_ns, one.skew_ns]
        known = [part for part in parts if part is not None]
        assert len(known) in (0, 3)
        assert not known or (sum(known) == one.exposed_ns and min(known) >= 0)
    for balance in found.balance:
        assert len(balance.work_ns) == len(balance.ranks)
        for ratio in (balance.measured_ratio, balance.ideal_ratio, balance.limit_ratio):
            assert ratio is None or 0 <= ratio <= 1
        assert balance.lost_ns is None or min(balance.lost_ns) >= 0
    for copies in found.layout_copies:
        assert min(copies.copies, copies.copy_ns, copies.comm_ns) >= 0
