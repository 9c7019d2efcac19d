"""Where in time the exposed and the overlapped nanoseconds lie: cut at causes and roles, sums unchanged."""

from __future__ import annotations

import numpy as np
import pytest
from analysis_helpers import WHOLE, Drawn, comm, compute, draw, fused, gemm, step
from hypothesis import given, settings
from hypothesis import strategies as st

from sp_profiler.analysis.causes import CAUSES
from sp_profiler.analysis.overlap import IdentityError, device_sets
from sp_profiler.analysis.pieces import exposed_pieces, overlapped_pieces, shares_by_cause
from sp_profiler.analysis.rank import analyze_rank
from sp_profiler.analysis.steps import WindowRule, device_windows
from sp_profiler.classify.tables import Role, Step
from sp_profiler.ledger import Ledger
from sp_profiler.trace.tables import NONE

ROLES = [role.name.lower() for role in Role]


def exposed(
    *drawn: Drawn, waits: tuple[int, ...] | None = None
) -> list[tuple[int, int, list[tuple[str, int]]]]:
    """Start, end and (cause, share) of each piece."""
    result = analyze_rank(*draw(*drawn), WHOLE)
    stretches = result.stretches[0]
    pieces = exposed_pieces(stretches, np.array(waits or [0] * len(stretches.id), np.int64))
    parts = list(zip([CAUSES[c] for c in pieces.cause.tolist()], pieces.share_ns.tolist(), strict=True))
    first = pieces.first.tolist()
    return [
        (start, end, parts[first[i] : first[i + 1]])
        for i, (start, end) in enumerate(zip(pieces.start_ns.tolist(), pieces.end_ns.tolist(), strict=True))
    ]


def test_a_piece_ends_where_its_cause_changes() -> None:
    """A collective of 10-40 that waits for its peers until 25; computation 20-22 hides two of them."""
    collective = comm(10, 40, launch=5, is_async=False)
    assert exposed(collective, compute(20, 22), waits=(15,)) == [
        (10, 20, [("peer-skew", 10)]),
        (22, 25, [("peer-skew", 3)]),
        (25, 40, [("synchronous", 15)]),
    ]


def test_collectives_at_once_share_a_piece_and_keep_their_causes() -> None:
    one = comm(0, 30, is_async=False)
    other = comm(10, 21, launch=NONE, stream=21)
    assert exposed(one, other) == [
        (0, 10, [("synchronous", 10)]),
        (10, 21, [("synchronous", 6), ("unknown", 5)]),
        (21, 30, [("synchronous", 9)]),
    ]


def test_nothing_exposed() -> None:
    assert exposed(comm(0, 10), compute(0, 10)) == []
    assert exposed(compute(0, 10)) == []


def overlapped(*drawn: Drawn, steps: tuple[Step, ...] = ()) -> list[tuple[int, int, dict[str, int]]]:
    """Start, end and what each role gets of each piece."""
    trace, classified = draw(*drawn, steps=steps)
    rule = WindowRule()
    result = analyze_rank(trace, classified, rule)
    rows = np.arange(len(classified.activities))
    windows = device_windows(trace, classified, rows, rule, Ledger())
    measured = np.array(
        [[one.overlapped_by_role_ns[role] for role in ROLES] for one in result.steps], np.int64
    )
    pieces = overlapped_pieces(device_sets(classified.activities, rows), windows, measured)
    return [
        (start, end, {ROLES[r]: share[r] for r in range(len(ROLES)) if roles >> r & 1})
        for start, end, roles, share in zip(
            pieces.start_ns.tolist(),
            pieces.end_ns.tolist(),
            pieces.roles.tolist(),
            pieces.share_ns.tolist(),
            strict=True,
        )
    ]


def test_roles_at_once_share_a_piece() -> None:
    """dgrad 0-7 and wgrad 4-20 under a collective of 2-15: three ns are shared, 1.5 each."""
    found = overlapped(comm(2, 15), gemm(0, 7, Role.DGRAD), gemm(4, 20, Role.WGRAD, stream=8))
    assert found == [(2, 4, {"dgrad": 2}), (4, 7, {"dgrad": 2, "wgrad": 1}), (7, 15, {"wgrad": 8})]


def test_pieces_are_cut_at_windows() -> None:
    steps = (step(0, 0, 10), step(1, 10, 30))
    found = overlapped(
        gemm(0, 25, Role.WGRAD, launch=1),
        comm(5, 20, launch=2),
        compute(12, 13, launch=11, stream=9),
        steps=steps,
    )
    assert found == [(5, 12, {"wgrad": 7}), (12, 13, {"wgrad": 1, "other": 0}), (13, 20, {"wgrad": 7})]


def test_a_fused_kernel_is_under_itself() -> None:
    assert overlapped(fused(0, 10, Role.FWD)) == [(0, 10, {"fwd": 10})]


def test_figures_of_other_windows_are_refused() -> None:
    trace, classified = draw(comm(2, 15), gemm(0, 7, Role.DGRAD))
    rows = np.arange(len(classified.activities))
    windows = device_windows(trace, classified, rows, WHOLE, Ledger())
    with pytest.raises(IdentityError):
        overlapped_pieces(
            device_sets(classified.activities, rows), windows, np.ones((1, len(ROLES)), np.int64)
        )


@st.composite
def activities(draw_one: st.DrawFn) -> list[Drawn]:
    found: list[Drawn] = []
    for _ in range(draw_one(st.integers(1, 10))):
        start = draw_one(st.integers(0, 60))
        end = start + draw_one(st.integers(0, 40))
        stream = draw_one(st.integers(1, 4))
        if draw_one(st.booleans()):
            launch = draw_one(st.sampled_from((NONE, 0, start)))
            found.append(
                comm(
                    start,
                    end,
                    launch=launch,
                    stream=stream,
                    is_async=draw_one(st.sampled_from((True, False, None))),
                )
            )
        else:
            found.append(gemm(start, end, draw_one(st.sampled_from(list(Role))), launch=start, stream=stream))
    return found


@settings(max_examples=100, deadline=None)
@given(drawn=activities(), seed=st.integers(0, 2**31))
def test_sums_are_the_figures(drawn: list[Drawn], seed: int) -> None:
    steps = (step(0, 0, 20), step(1, 20, 45), step(2, 45, 100))
    trace, classified = draw(*drawn, steps=steps)
    rule = WindowRule()
    result = analyze_rank(trace, classified, rule)
    stretches = result.stretches[0]
    pieces = exposed_pieces(stretches, np.zeros(len(stretches.id), np.int64))
    assert int((pieces.end_ns - pieces.start_ns).sum()) == result.ranks[0].exposed_ns
    assert (pieces.start_ns[1:] >= pieces.end_ns[:-1]).all()
    assert shares_by_cause(pieces) == {
        k: v for k, v in (result.ranks[0].exposed_by_cause_ns or {}).items() if v
    }
    # Whatever the peers did, only causes change.
    waits = np.random.default_rng(seed).integers(0, 50, len(stretches.id))
    other = exposed_pieces(stretches, waits)
    assert sum(shares_by_cause(other).values()) == result.ranks[0].exposed_ns
    assert int((other.end_ns - other.start_ns).sum()) == result.ranks[0].exposed_ns
    for one in overlapped(*drawn, steps=steps):
        assert one[0] < one[1]
