"""Results of ranks drawn at random, to be merged: every rule of findings finds something in some of them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
import numpy as np
from report_helpers import make_report

from sp_profiler.analysis.across import AcrossRanks
from sp_profiler.analysis.results import (
    CauseEvidence,
    CollectiveFigures,
    Coverage,
    GemmFigures,
    GroupFigures,
    Known,
    Partner,
    RankResult,
)
from sp_profiler.classify.groups import parse_group_key
from sp_profiler.fleet.assembled import report_of
from sp_profiler.fleet.filled import RankAcross
from sp_profiler.fleet.merge import RankReport, merge, rank_report
from sp_profiler.ledger import LedgerEntry
from sp_profiler.report.build import TraceFacts, build, merge_groups
from sp_profiler.report.model import Report
from sp_profiler.trace.tables import Metadata

_OPS = ("all_reduce", "all_gather", "reduce_scatter", "send_recv", None)
_PURPOSES = ("dgrad", "activation", "param-grad", "param-gather", "kv", "unknown")
_CAUSES = ("peer-skew", "synchronous", "partner-too-short", "late-partner", "queued", "no-partner", "unknown")
_RULES = ("declared-synchronous", "thread-idle", "partner", "wait-not-in-trace", "launch-not-in-trace")
_US = 20_000


@cache
def _drawn() -> Report:
    return make_report(ranks=1, steps=2, layers=1)


def _collective(draw: np.random.Generator, number: int, rank: int, groups: list[str]) -> CollectiveFigures:
    def one(*of: Any) -> Any:
        return of[int(draw.integers(len(of)))]

    group = one(*groups, None)
    start, dur = int(draw.integers(1, 10**6)), int(draw.integers(1, 300)) * _US
    exposed = one(0, dur, dur // 3)
    parts: dict[str, int] = {}
    for cause in draw.permutation(_CAUSES)[: int(draw.integers(1, 4))]:
        parts[str(cause)] = int(draw.integers(1, 40)) * _US
    whole = sum(parts.values())
    share = min(whole, exposed)
    parts = {cause: ns * share // whole for cause, ns in parts.items() if ns * share // whole}
    partner = one(None, "wgrad", "dgrad", "attention")
    lasts = int(draw.integers(1, 300)) * _US
    launch = one(None, start - 500, start - 10)
    evidence = CauseEvidence(
        rule=one(*_RULES),
        queued_behind=one(None, "same-group", "full-device"),
        wait_start_ns=None,
        wait_end_ns=None,
        launched_before_wait=None,
        partner_launch_ns=one(None, start - 700, start + 100),
        partner_start_ns=one(None, start - 600),
        partner_end_ns=one(None, start - 550, start + 10),
    )
    hideable = min(dur, lasts) if partner else None
    return CollectiveFigures(
        id=number,
        rank=rank,
        device=0,
        stream=7,
        step=int(draw.integers(2)),
        op=one(*_OPS),
        group=group,
        ranks=list((parse_group_key(group or "") or ("", ()))[1]),
        bytes=one(None, 1 << 20),
        dtype="bfloat16",
        seq=None,
        is_async=one(None, True, True, False),
        purpose=one(*_PURPOSES),
        purpose_rule="annotation",
        phase=one("forward", "backward"),
        module=one(None, "layers.0.mlp", "layers.1.mlp"),
        layer=one(None, 0, 1),
        launch_ns=launch,
        start_ns=start,
        dur_ns=dur,
        overlapped_ns=dur - exposed,
        exposed_ns=exposed,
        exposed_share_ns=sum(parts.values()),
        partner=Partner(partner, None, "annotation", lasts, 1) if partner else None,
        hidden_ns=None if hideable is None else hideable // one(1, 2, 3),
        hideable_ns=hideable,
        skew_wait_ns=one(None, 0, 500),
        cause=max(parts, key=lambda cause: parts[cause]) if parts else None,
        exposed_by_cause_ns=parts,
        kernel=one("ncclDevKernel_A", "ncclDevKernel_B"),
        cause_evidence=one(evidence, evidence, None),
    )


def random_rank(seed: int, rank: int, groups: list[str], most: int = 14) -> RankResult:
    """One rank with figures that its collectives do not follow from: nothing merges them but sums."""
    draw = np.random.default_rng((seed, rank))
    rows = [_collective(draw, n, rank, groups) for n in range(int(draw.integers(1, most)))]
    (base,), steps = _drawn().ranks, _drawn().steps
    causes: dict[str, int] = {}
    for row in rows:
        for cause, ns in (row.exposed_by_cause_ns or {}).items():
            causes[cause] = causes.get(cause, 0) + ns
    exposed = sum(row.exposed_share_ns for row in rows)
    named = {f"layers.{int(n)}.mlp": int(n) + 1 for n in draw.integers(12, size=5)}
    changed: dict[str, Any] = {
        "exposed_ns": exposed,
        "exposed_by_cause_ns": causes,
        "exposed_by_module_ns": named,
        "exposed_by_group_ns": {groups[int(draw.integers(len(groups)))]: exposed},
        "exposed_union_by_group_ns": {groups[0]: exposed},
    }
    lasts = [int(n) for n in draw.integers(1, 10**6, size=len(steps))]
    return RankResult(
        ranks=(replace(base, rank=rank, file=f"rank{rank}", **changed),),
        steps=tuple(
            replace(s, rank=rank, exposed_ns=ns, exposed_by_module_ns=named)
            for s, ns in zip(steps, lasts, strict=True)
        ),
        collectives=tuple(rows),
        groups=tuple(
            merge_groups(
                GroupFigures(row.group, row.ranks, len(row.ranks), "nccl", 1, row.bytes, row.dur_ns, 0, share)
                for row in rows
                if row.group and (share := row.exposed_share_ns) is not None
            )
        ),
        gemms=tuple(
            GemmFigures(f"gemm{n}", "m=1", "bf16", "wgrad", 2, int(ns), float(draw.random()))
            for n, ns in enumerate(draw.integers(1, 10**6, size=2))
        ),
        gemm_role_known_ratio=None,
        purpose_known_ratio=None,
        comm_metadata_ratio=None,
        ledger=(
            LedgerEntry("same", "note", "said of every rank", f"rank{rank}"),
            LedgerEntry("each-its-own", "assumption", f"{rank % 5} of them", f"rank{rank}", count=rank + 1),
            LedgerEntry("not-analysed-x", "note", "not looked at", f"rank{rank}"),
        ),
        coverage=Coverage(Known(1, 4), Known(3, 4), Known(rank, 2 * rank)),
    )


def facts_of(rank: int) -> TraceFacts:
    return TraceFacts(f"rank{rank}", Metadata(rank, "file-name", None, "nccl", None, 1, 0, True), False)


def across_of(results: list[RankResult]) -> AcrossRanks:
    waited = [c.skew_wait_ns for r in results for c in r.collectives if c.skew_wait_ns is not None]
    return AcrossRanks(tuple(results), None, [], None, {}, sum(waited) if waited else None, 0, None, ())


_RUN_JSON = {
    "workload": {"comm": "async"},
    "environment": {"CUDA_DEVICE_MAX_CONNECTIONS": "8", "NCCL_NVLS_ENABLE": "1"},
    "hardware": [{"name": "H100", "capability": [9, 0]}],
}


def ordinary(results: list[RankResult]) -> Report:
    return build(
        name="run",
        path="run",
        run_json=_RUN_JSON,
        run_ledger=(),
        facts=[facts_of(result.ranks[0].rank or 0) for result in results],
        across=across_of(results),
        rule="step",
        timeline=None,
    )


def leaf(place: int, result: RankResult) -> RankReport:
    return travelled(rank_report(place, facts_of(result.ranks[0].rank or 0), result, RankAcross()))


def travelled(report: RankReport) -> RankReport:
    """As it comes back from the work folder."""
    return msgspec.json.decode(msgspec.json.encode(report), type=RankReport)


def merged_in_some_order(leaves: list[RankReport], draw: np.random.Generator) -> RankReport:
    """Two to four random ones at a time, until one is left."""
    while len(leaves) > 1:
        chosen = draw.permutation(len(leaves))[: int(draw.integers(2, 5))].tolist()
        one = travelled(merge([leaves[place] for place in chosen]))
        leaves = [leaf for place, leaf in enumerate(leaves) if place not in chosen] + [one]
    return leaves[0]


def fleet_report(merged: RankReport, results: list[RankResult]) -> Report:
    return report_of(
        merged,
        name="run",
        path="run",
        run_json=_RUN_JSON,
        run_ledger=(),
        across=replace(across_of(results), results=()),
        contention=None,
        rule="step",
        timeline=None,
        collectives_at="work/collectives",
    )
