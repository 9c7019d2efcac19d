"""Rings in bare traces: launches and kernels alone, peers in all the ways in which metadata name them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import sp_profiler
from sp_profiler.trace.write import TraceWriter

GEMM, FORWARD, BACKWARD = "sm90_xmma_gemm_bf16", "flash_fwd_kernel", "flash_bwd_dq_dk_dv_loop_kernel"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
PEERS = {
    "to": lambda i, p, r: {"Dst Rank": r[(i + 1) % p]},
    "own rank and to": lambda i, p, r: {"Src Rank": r[i], "Dst Rank": r[(i + 1) % p]},
    "from and to": lambda i, p, r: {"Src Rank": r[i - 1], "Dst Rank": r[(i + 1) % p]},
    "from": lambda i, p, r: {"Src Rank": r[i - 1], "Dst Rank": r[i]},
    "within the group": lambda i, p, r: {"Src Rank": i, "Dst Rank": (i + 1) % p},
    "nobody": lambda i, p, r: {},
}


def write(folder: Path, ranks: tuple[int, ...], peers: str, *, hop_first: bool) -> Path:
    """Two layers, forward and backward; each hop takes 70 µs beside a block of 90 (backward: 190)."""
    folder.mkdir()
    for place, rank in enumerate(ranks):
        writer, p = TraceWriter(rank, max(ranks) + 1), len(ranks)
        told: dict[str, Any] = PEERS[peers](place, p, ranks)
        at = 1000

        def hop(start: int, dtype: str = "BFloat16", writer: TraceWriter = writer, told: Any = told) -> None:
            writer.collective(
                "recv" if peers == "from" else "send",
                start + 20,
                70,
                launch=start + 18,
                ranks=ranks,
                group="cp",
                description="cp",
                in_elements=1 << 20,
                dtype=dtype,
                stream=24,
                kernel=SEND_RECV,
                **told,
            )

        for _ in range(2):
            writer.kernel(GEMM, at, 50, launch=at - 20)
            for step in range(p):
                at += 100
                writer.kernel(FORWARD, at, 90, launch=at - 2)
                if step < p - 1:
                    hop(at - 21 if hop_first else at)
            at += 100
        for _ in range(2):
            writer.kernel(GEMM, at, 50, launch=at - 20)
            for step in range(p):
                at += 200
                writer.kernel(BACKWARD, at, 190, launch=at - 2)
                if step < p - 1:
                    hop(at)
                if step > 0:
                    hop(at + 75, "Float")
            hop(at + 200, "Float")
            at += 400
        writer.write(folder / f"rank{rank}.json")
    return folder


@pytest.mark.parametrize("ranks", [(0, 1), (0, 1, 2), (4, 5, 6, 7), (0, 2, 4, 6)])
@pytest.mark.parametrize("peers", PEERS)
@pytest.mark.parametrize("hop_first", [False, True])
def test_a_ring_of_kernels(tmp_path: Path, ranks: tuple[int, ...], peers: str, hop_first: bool) -> None:
    report = sp_profiler.analyze(str(write(tmp_path / "run", ranks, peers, hop_first=hop_first)))
    p = len(ranks)
    assert Counter((one.op, one.purpose) for one in report.collectives) == {
        ("send_recv", "kv"): 4 * (p - 1) * p,
        ("send_recv", "dkv"): 2 * p * p,
    }
    assert report.unmatched == []
    found = report.context_parallel
    assert found is not None
    (scheme,) = found.schemes
    assert (scheme.scheme, scheme.ranks) == ("ring", list(ranks))
    assert (scheme.forward_passes, scheme.backward_passes, scheme.incomplete_passes) == (2, 2, 0)
    is_told = peers != "nobody" or p == 2
    for hop in found.hops:
        assert hop.rank is not None
        place = ranks.index(hop.rank)
        ends = (ranks[place - 1], ranks[(place + 1) % p]) if is_told else (None, None)
        assert (hop.source, hop.target) == ends
    assert {one.skew_wait_ns for one in report.collectives} == ({0} if is_told else {None})


@pytest.mark.shared
def test_the_shared_ring_of_two(shared: Path) -> None:
    report = sp_profiler.analyze(str(shared / "cases" / "ring_send_recv"))
    found = report.context_parallel
    assert found is not None
    (scheme,) = found.schemes
    assert (scheme.scheme, scheme.ranks, scheme.groups) == ("ring", [0, 1], ["cp[0,1]"])
    assert scheme.forward_passes == 4
    hops = [one for one in report.collectives if one.op == "send_recv"]
    assert len(hops) == 2 * 4
    for one in hops:
        assert (one.purpose, one.bytes, one.skew_wait_ns, one.transfer_ns) == ("kv", 33_554_432, 0, 700_000)
        assert one.busbw_gbps == pytest.approx(47.935, abs=5e-4)
    for rank in report.ranks:
        figures = (rank.comm_ns, rank.compute_ns, rank.overlapped_ns, rank.exposed_ns)
        assert figures == (6_200_000, 6_600_000, 4_100_000, 2_100_000)
        assert rank.overlapped_by_role_ns["attention"] == 2_800_000
    for hop in found.hops:
        assert (hop.attention_ns, hop.transfer_ns, hop.source, hop.target) == (
            900_000,
            700_000,
            1 - (hop.rank or 0),
            1 - (hop.rank or 0),
        )
