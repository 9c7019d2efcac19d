"""Who waits for whom in context parallelism, and how long transfers take: against the schedules' truth."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from context_facts import Transfer
from context_traces import CASES, draw

import sp_profiler

# Without metadata, between clocks that nothing connects, and of one neighbour alone nobody knows who waited.
UNKNOWN = {"ring-old", "te-p2p-old", "te-p2p-2-old", "cut-late", "clocks", "ranks-missing"}
BY_NAME = {case.name: case for case in CASES}


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_waits_and_transfers(tmp_path: Path, name: str) -> None:
    drawn = draw(BY_NAME[name], tmp_path)
    report = sp_profiler.analyze(str(drawn.folder))
    found = {(one.rank, one.start_ns, one.dur_ns, one.stream): one for one in report.collectives}
    present = Counter(key for transfer in drawn.transfers for key in transfer.meetings)
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
    assert told >= (0 if name in UNKNOWN else len(drawn.transfers) // 2)


def _is_complete(transfer: Transfer, present: Counter[tuple[object, ...]]) -> bool:
    """Whether all that it waited for is in the files, and the records that say what a batch consists of."""
    return transfer.launched and all(present[key] == key[-1] for key in transfer.meetings)
