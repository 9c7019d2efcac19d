"""Who waits for whom in context parallelism, and how long transfers take: against the schedules' truth."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from context_facts import Transfer
from context_traces import CASES, draw

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
