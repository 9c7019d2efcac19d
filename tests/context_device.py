"""Several ranks' devices, played through: what a schedule launches, when it runs, and what is known of it.

    machine = Machine(ranks=2)
    for rank in machine.ranks:
        work = rank.batch(CP, sends={peer: [1024]}, receives={peer: [1024]}, truth=...)
        rank.attention(500_000)
        rank.wait(work)
    machine.play()                       # streams, arrivals, ends
    machine.write(folder)                # rank0.json ... as torch.profiler writes them
    machine.truth                        # one Transfer for each communication kernel

The rules are those of CUDA streams and of torch's NCCL process groups, nothing of the profiler's: kernels of
one stream follow each other; a collective begins after what was launched before it on the stream that it was
issued from; `wait` makes that stream wait; a transfer begins when the last of its ranks has arrived and takes
latency + bytes / bandwidth. Times are int ns on one time axis (each rank's file may have a clock of its own).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from context_facts import MAIN, Kernel, Style, Transfer, Work
from context_rank import DELAY_NS, Rank

from sp_profiler.trace.write import TraceWriter

_LATENCY_NS, _BYTES_PER_NS = 8_000, 40


class Machine:
    """All ranks. Write the ranks' programs, `play`, then `write`."""

    def __init__(
        self, ranks: int, style: Style | None = None, *, bytes_per_ns: float = _BYTES_PER_NS
    ) -> None:
        self.style = style or Style()
        self.bytes_per_ns = bytes_per_ns
        self.ranks = [Rank(self.style, number) for number in range(ranks)]
        self.truth: list[Transfer] = []

    def play(self) -> Machine:
        """Give every kernel its time. Raises AssertionError where ranks wait for each other for ever."""
        arrived: dict[Any, dict[int, int]] = defaultdict(dict)
        parties = self._parties()
        todo = [list(rank.launched) for rank in self.ranks]
        while any(todo):
            before = sum(map(len, todo))
            for queue in todo:
                queue[:] = [one for one in queue if not self._settle(one, arrived, parties)]
            assert sum(map(len, todo)) < before, "the schedule deadlocks"
        return self

    def _parties(self) -> dict[Any, int]:
        found: dict[Any, int] = defaultdict(int)
        for rank in self.ranks:
            for one in rank.launched:
                for key in one.meetings if isinstance(one, Work) else ():
                    found[key] += 1
        for key, count in found.items():
            assert count == key[-1], f"{count} of {key[-1]} ranks come to {key}"
        return found

    def _settle(
        self, one: Work | Kernel, arrived: dict[Any, dict[int, int]], parties: dict[Any, int]
    ) -> bool:
        if isinstance(one, Kernel):
            needed = [one.before, *one.after]
            if any(other is not None and other.end_ns is None for other in needed):
                return False
            free = [other.end_ns or 0 for other in needed if other is not None]
            one.start_ns = max([one.launch_ns + DELAY_NS, *free])
            one.end_ns = one.start_ns + one.dur_ns
            return True
        if one.start_ns is None:
            needed = [one.before, one.after]
            if any(other is not None and other.end_ns is None for other in needed):
                return False
            free = [other.end_ns or 0 for other in needed if other is not None]
            one.start_ns = max([one.launch_ns + DELAY_NS, *free])
            for key in one.meetings:
                arrived[key][one.rank] = one.start_ns
        if any(len(arrived[key]) < parties[key] for key in one.meetings):
            return False
        one.last_ns = max(max(arrived[key].values()) for key in one.meetings)
        one.transfer_ns = _LATENCY_NS + int(one.bytes / self.bytes_per_ns)
        one.end_ns = one.last_ns + one.transfer_ns
        return True

    def write(
        self,
        folder: Path,
        *,
        only: Sequence[int] | None = None,
        clocks: Mapping[int, int] | None = None,
        cut_ns: int | Mapping[int, int] = 0,
        hosts: bool = False,
    ) -> Path:
        """The ranks' files. `only`: the ranks whose files are there; `clocks`: ns that a clock is ahead;
        `cut_ns`: the profiler began then (by rank): nothing from before is in the files. Fills `truth`.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.truth.clear()
        for rank in self.ranks:
            if only is None or rank.number in only:
                ahead, host = (clocks or {}).get(rank.number, 0), f"host-{rank.number}" if hosts else None
                cut = _after_a_launch(rank, cut_ns if isinstance(cut_ns, int) else cut_ns.get(rank.number, 0))
                _write(rank, len(self.ranks), folder / f"rank{rank.number}.json", ahead, cut, host)
                self.truth += [_truth(rank, work, ahead, cut) for work in rank.works if work.seen(cut)]
        return folder


def _after_a_launch(rank: Rank, cut_ns: int) -> int:
    """The end of the first launch of communication behind a cut: no batch is cut in two."""
    behind = [work.launch_ns for work in rank.works if work.launch_ns >= cut_ns > 0]
    return min(behind) + 4_500 if behind else cut_ns


def _truth(rank: Rank, work: Work, ahead: int, cut_ns: int) -> Transfer:
    assert work.start_ns is not None
    assert work.end_ns is not None
    assert work.transfer_ns is not None
    kernels = [one for one in rank.kernels if (one.start_ns or 0) >= cut_ns]
    hidden = _covered(work.start_ns, work.end_ns, kernels)
    said, beside = work.said, None
    if said.step is not None and said.number is not None:
        beside = sum(one.dur_ns for one in kernels if one.step == (said.number, said.step))
    return Transfer(
        rank=work.rank,
        stream=work.stream,
        said=said,
        op=work.op,
        group=work.group,
        peers=work.peers if work.op == "send_recv" else (),
        source=work.source,
        target=work.target,
        bytes=work.bytes,
        dtype=work.dtype,
        start_ns=work.start_ns + ahead,
        end_ns=work.end_ns + ahead,
        wait_call_ns=None if work.wait_call_ns is None else work.wait_call_ns + ahead,
        wait_ns=work.last_ns - work.start_ns,
        transfer_ns=work.transfer_ns,
        meetings=tuple(work.meetings),
        attention_ns=beside,
        hidden_ns=hidden,
        exposed_ns=work.end_ns - work.start_ns - hidden,
        exposed_waiting_ns=work.last_ns - work.start_ns - _covered(work.start_ns, work.last_ns, kernels),
        launched=work.launch_ns >= cut_ns,
    )


def _covered(start: int, end: int, kernels: Sequence[Kernel]) -> int:
    """How much of [start, end) any of the kernels covers."""
    total, reached = 0, start
    for one in sorted(kernels, key=lambda one: one.start_ns or 0):
        assert one.start_ns is not None
        assert one.end_ns is not None
        low, high = max(one.start_ns, reached), min(one.end_ns, end)
        if low < high:
            total += high - low
            reached = high
    return total


def _write(rank: Rank, world: int, path: Path, ahead: int, cut_ns: int, host: str | None) -> None:
    writer = TraceWriter(rank.number, world, tid=MAIN, host_name=host)

    def us(ns: int) -> Decimal:
        return Decimal(ns + ahead) / 1000

    add = {"cpu_op": writer.cpu_op, "range": writer.range, "runtime": writer.runtime}
    for start, kind, name, dur, options in sorted(rank.host, key=lambda event: (event[0], -event[3])):
        if start >= cut_ns and (rank.style.host or kind == "runtime"):
            add[kind](name, us(start), Decimal(dur) / 1000, **options)
    for one in rank.launched:
        if isinstance(one, Kernel) and not one.name:
            continue  # a mark in a stream
        assert one.start_ns is not None
        assert one.end_ns is not None
        if one.start_ns < cut_ns:
            continue
        is_work = isinstance(one, Work)
        launch: dict[str, Any] = {
            "launch": us(one.launch_ns),
            "launch_dur": 2,
            "launch_name": rank.style.launch_nccl if is_work else rank.style.launch_name,
            "launch_tid": one.tid,
        }
        if one.launch_ns < cut_ns:
            launch = {"correlation": 900_000 + len(writer.events)}
        name, args = (one.kernel, one.args) if is_work else (one.name, {})
        dur = Decimal(one.end_ns - one.start_ns) / 1000
        writer.kernel(name, us(one.start_ns), dur, stream=one.stream, **launch, **args)
    writer.write(path)
