"""Tiny traces drawn by hand, already classified: the tests of the analyses start from these.

    result = analyze(gemm(0, 10), comm(5, 15))        # C [5, 15), K [0, 10): 5 overlapped, 5 exposed

Times are plain integers, in ns. Every activity is a row in order of start, as `classify` gives it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sp_profiler.analysis.rank import analyze_rank
from sp_profiler.analysis.results import RankFigures, RankResult, StepFigures
from sp_profiler.analysis.steps import WindowRule
from sp_profiler.classify.tables import (
    OUTSIDE_STEPS,
    UNKNOWN_STEP,
    Activities,
    Classified,
    Collective,
    Group,
    Kind,
    Phase,
    Role,
    Step,
)
from sp_profiler.trace.tables import (
    NONE,
    Category,
    Events,
    Flows,
    MemoryEvents,
    Metadata,
    Strings,
    Trace,
)

WHOLE = WindowRule("trace")
TP = Group("tp[0,1]", "tp", (0, 1), 2, "nccl")
DP = Group("dp[0,2]", "dp", (0, 2), 2, "nccl")


@dataclass(frozen=True)
class Drawn:
    """One activity. `launch` decides its step; `columns` are those of Activities, `facts` of Collective."""

    kind: Kind
    start: int
    end: int
    launch: int = NONE
    category: Category = Category.KERNEL
    name: str = "kernel"
    module: str | None = None
    columns: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] | None = None
    op: tuple[str, str, str] | None = None  # launching operator: name, Input Dims, Input type


def gemm(start: int, end: int, role: Role = Role.UNKNOWN, launch: int = NONE, **more: Any) -> Drawn:
    """A GEMM. Further columns: device, stream, node, range_start_ns, layer...; also op, name, module."""
    extra = {key: more.pop(key) for key in ("op", "name", "module") if key in more}
    columns = {"role": role, "is_gemm": True} | more
    return Drawn(Kind.COMPUTATION, start, end, launch, columns=columns, **extra)


def compute(start: int, end: int, role: Role = Role.OTHER, launch: int = NONE, **more: Any) -> Drawn:
    """A computation that is no GEMM."""
    return gemm(start, end, role, launch, **({"is_gemm": False} | more))


def memory(start: int, end: int, launch: int = NONE, **columns: Any) -> Drawn:
    return Drawn(Kind.MEMORY, start, end, launch, Category.MEMCPY, columns=columns)


_FACTS: dict[str, Any] = {
    "op": "all_reduce",
    "group": TP,
    "bytes": 1024,
    "dtype": "bfloat16",
    "seq": None,
    "is_async": None,
    "purpose": "unknown",
    "purpose_rule": "none",
    "layer": None,
    "partner_what": None,
    "launch_end_ns": None,
    "wait_start_ns": None,
    "wait_end_ns": None,
    "thread_sat_idle": False,
    "peers": (),
    "source": None,
    "target": None,
}


def comm(start: int, end: int, launch: int = NONE, **more: Any) -> Drawn:
    """A collective. `more`: facts of Collective, `module`, and columns of Activities such as `device`."""
    facts = _FACTS | {key: more.pop(key) for key in list(more) if key in _FACTS}
    module = more.pop("module", None)
    columns = {"stream": 20, "layer": NONE if facts["layer"] is None else facts["layer"]} | more
    return Drawn(
        Kind.COMMUNICATION, start, end, launch, name="nccl", module=module, columns=columns, facts=facts
    )


def fused(start: int, end: int, role: Role = Role.UNKNOWN, **more: Any) -> Drawn:
    """A GEMM fused with its collective."""
    drawn = comm(start, end, **more)
    columns = drawn.columns | {"role": role, "is_gemm": True}
    return replace(drawn, kind=Kind.FUSED, name="fused", columns=columns)


def step(number: int, start: int, end: int) -> Step:
    return Step(number, start, end)


def draw(
    *drawn: Drawn, steps: tuple[Step, ...] = (), cpu: bool = False, rank: int | None = 0
) -> tuple[Trace, Classified]:
    """A trace and its classification."""
    rows = sorted(drawn, key=lambda one: one.start)
    names = sorted({one.module for one in rows if one.module is not None})
    trace = _trace(rows, cpu, rank)
    pool = trace.strings.pool
    columns: dict[str, list[Any]] = {column: [] for column in Activities.__annotations__}
    collectives: list[Collective] = []
    for row, one in enumerate(rows):
        values = {
            "event": row,
            "name": pool.index(one.name),
            "device": 0,
            "stream": 7,
            "start_ns": one.start,
            "end_ns": one.end,
            "kind": one.kind,
            "role": Role.UNKNOWN,
            "role_rule": 0,
            "phase": Phase.UNKNOWN,
            "launch_ns": one.launch,
            "step": _launching_step(one.launch, steps),
            "module": NONE if one.module is None else names.index(one.module),
            "layer": NONE,
            "is_gemm": False,
            "range_start_ns": NONE,
            "node": NONE,
            "recomputed": False,
            "collective": NONE if one.facts is None else len(collectives),
        } | one.columns
        for column, cells in columns.items():
            cells.append(values[column])
        if one.facts is not None:
            launch = None if one.launch == NONE else one.launch
            collectives.append(Collective(activity=row, module=one.module, launch_ns=launch, **one.facts))
    activities = Activities(**{name: _column(Activities, name, cells) for name, cells in columns.items()})
    groups = tuple({c.group.key: c.group for c in collectives if c.group}.values())
    return trace, Classified(
        activities, tuple(collectives), groups, tuple(sorted(steps, key=lambda s: s.start_ns)), tuple(names),
        ("none",), cpu, None, (),
    )  # fmt: skip


def _launching_step(launch: int, steps: tuple[Step, ...]) -> int:
    if launch == NONE:
        return UNKNOWN_STEP
    inside = [one.number for one in steps if one.start_ns <= launch < one.end_ns]
    return inside[-1] if inside else OUTSIDE_STEPS


_TYPES = {"Int8": np.int8, "Int32": np.int32, "Int64": np.int64, "Bool": np.bool_}


def _column(table: type, name: str, cells: list[Any]) -> np.ndarray:
    return np.array(cells, _TYPES.get(table.__annotations__[name], np.int64))


def _trace(rows: list[Drawn], cpu: bool, rank: int | None) -> Trace:
    """The events of the activities, and after them the operators that launched them."""
    pool: list[str] = []

    def code(text: str | None) -> int:
        if text is None:
            return NONE
        if text not in pool:
            pool.append(text)
        return pool.index(text)

    columns: dict[str, list[int]] = {name: [] for name in Events.__annotations__}

    def add(**values: int) -> None:
        for name, cells in columns.items():
            cells.append(values.get(name, NONE))

    for i, one in enumerate(rows):
        category = Category.CPU_OP if cpu else one.category
        described = dict(zip(("dims", "types"), map(code, one.op[1:]), strict=True)) if cpu and one.op else {}
        add(
            category=category, name=code(one.name), start_ns=one.start, dur_ns=one.end - one.start,
            device=0, stream=7, external_id=1000 + i if one.op else NONE, **described,
        )  # fmt: skip
    for i, one in enumerate(rows):
        if one.op and not cpu:
            name, dims, types = map(code, one.op)
            start = max(one.launch, 0)
            described = {"name": name, "dims": dims, "types": types, "external_id": 1000 + i}
            add(category=Category.CPU_OP, start_ns=start, dur_ns=1, **described)
    events = Events(**{name: _column(Events, name, cells) for name, cells in columns.items()})
    none32, none64 = np.zeros(0, np.int32), np.zeros(0, np.int64)
    return Trace(
        path="rank-00000.json",
        metadata=Metadata(rank, "distributedInfo", 2, "nccl", None, 1, 0, not cpu),
        strings=Strings(pool),
        events=events,
        collectives=(),
        flows=Flows(none32, np.zeros(0, np.bool_), none64, none32, none32, none64),
        memory=MemoryEvents(
            none64,
            np.zeros(0, np.uint64),
            none64,
            none64,
            none64,
            none32,
            none32,
            none32,
            np.zeros(0, np.bool_),
        ),
        ledger=(),
        uncompressed_bytes=0,
    )


def analyze(
    *drawn: Drawn,
    steps: tuple[Step, ...] = (),
    cpu: bool = False,
    rule: WindowRule | None = None,
) -> RankResult:
    """Draw and analyse, with the default windows unless a rule is given."""
    return analyze_rank(*draw(*drawn, steps=steps, cpu=cpu), rule or WindowRule())


def only_rank(result: RankResult) -> RankFigures:
    assert len(result.ranks) == 1
    return result.ranks[0]


def windows_of(result: RankResult) -> list[tuple[int | None, int | None, int | None]]:
    return [(one.step, one.start_ns, one.end_ns) for one in result.steps]


def codes(result: RankResult) -> set[str]:
    return {entry.code for entry in result.ledger}


def assert_identity(figures: RankFigures | StepFigures) -> None:
    """DESIGN: always."""
    assert figures.compute_ns is not None
    assert figures.exposed_ns is not None
    assert figures.memory_op_only_ns is not None
    assert figures.idle_ns is not None
    assert figures.overlapped_ns is not None
    assert figures.idle_ns >= 0
    busy = figures.compute_ns + figures.exposed_ns + figures.memory_op_only_ns
    assert busy == figures.busy_ns
    assert busy + figures.idle_ns == figures.window_ns
    assert figures.overlapped_ns + figures.exposed_ns == figures.comm_ns
    assert sum(figures.overlapped_by_role_ns.values()) == figures.overlapped_ns
    for name in ("group", "op", "purpose", "phase", "module", "layer"):
        assert sum(getattr(figures, f"exposed_by_{name}_ns").values()) == figures.exposed_ns
