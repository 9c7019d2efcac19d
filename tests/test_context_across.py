"""Who waits for whom in context parallelism, and how long transfers take: against the schedules' truth."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from context_facts import Transfer
from context_traces import CASES, draw

import sp_profiler
from sp_profiler.analysis.across import across_ranks
from sp_profiler.analysis.rank import analyze_rank
from sp_profiler.analysis.steps import WindowRule
from sp_profiler.classify import classify
from sp_profiler.trace.decode import decode_trace

# Without metadata, between clocks that nothing connects, and of one neighbour alone nobody knows who waited.
UNKNOWN = {"ring-old", "te-p2p-old", "te-p2p-2-old", "cut-late", "clocks", "ranks-missing"}
BY_NAME = {case.name: case for case in CASES}


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_waits_and_transfers(tmp_path: Path, name: str) -> None:
    drawn = draw(BY_NAME[name], tmp_path)
    traces = [decode_trace(str(path)) for path in sorted(drawn.folder.iterdir())]
    results = [analyze_rank(trace, classify(trace), WindowRule("trace")) for trace in traces]
    collectives = [one for result in across_ranks(results).results for one in result.collectives]
    found = {(one.rank, one.start_ns, one.dur_ns, one.stream): one for one in collectives}
    # Of a batch that was launched before the window nobody knows all that it consists of.
    launched = [transfer for transfer in drawn.transfers if transfer.launched]
    present = Counter(key for transfer in launched for key in transfer.meetings)
    assert len(found) == len(drawn.transfers)
    told = 0
    for transfer in drawn.transfers:
        one = found[transfer.rank, transfer.start_ns, transfer.end_ns - transfer.start_ns, transfer.stream]
        assert (one.overlapped_ns, one.exposed_ns) == (transfer.hidden_ns, transfer.exposed_ns)
        if name in UNKNOWN:
            assert one.skew_wait_ns in (None, transfer.wait_ns)
        elif _is_complete(transfer, present):
            told += 1
            assert one.skew_wait_ns == transfer.wait_ns, transfer
            assert one.transfer_ns == transfer.transfer_ns, transfer
            assert not one.transfer_is_bound
    assert told > 0 or name in UNKNOWN


def _is_complete(transfer: Transfer, present: Counter[tuple[object, ...]]) -> bool:
    """Whether it and all that it waited for are in the files with their launches."""
    return transfer.launched and all(present[key] == key[-1] for key in transfer.meetings)


ALONE = [
    name for name, case in BY_NAME.items() if not case.tensor and name not in UNKNOWN and "cut" not in name
]


@pytest.mark.parametrize("name", ALONE)
def test_what_is_exposed_before_the_last_arrival_is_skew(tmp_path: Path, name: str) -> None:
    """And with attention beside it a hop has it for a partner, as far as the trace shows its wait."""
    drawn = draw(BY_NAME[name], tmp_path)
    report = sp_profiler.analyze(str(drawn.folder))
    found = {(one.rank, one.start_ns, one.dur_ns, one.stream): one for one in report.collectives}
    beside: set[str | None] = set()
    for transfer in drawn.transfers:
        one = found[transfer.rank, transfer.start_ns, transfer.end_ns - transfer.start_ns, transfer.stream]
        assert one.exposed_by_cause_ns is not None
        assert sum(one.exposed_by_cause_ns.values()) == one.exposed_share_ns
        if one.exposed_share_ns == one.exposed_ns:  # no other transfer runs exposed beside it
            assert one.exposed_by_cause_ns.get("peer-skew", 0) == transfer.exposed_waiting_ns
        if transfer.said.purpose in ("kv", "dkv") and transfer.attention_ns:
            beside.add(None if one.partner is None else one.partner.what)
    if drawn.case.style.host:
        assert beside <= {"attention"}
    assert beside or drawn.case.scheme != "ring" or name == "ring-sync"
