"""When computation waits for a collective, in device traces of which no range or `Seq` tells.

A collective of torch runs on a stream of its own; `work.wait()` makes the current stream wait for it. Traces
show that as a `record_param_comms` named `wait`, as `_c10d_functional::wait_tensor` and as a
`cudaStreamWaitEvent` (`hipStreamWaitEvent`); none says for which collective. Rules, the first that gives one:

at-once       the next wait of the launching thread, with nothing launched in between; of several in a
              row one for each of as many collectives
in-order      a recorded `wait` of the group: for its oldest collective that nobody waited for yet; of
              sends and receives without metadata, for which none is recorded, a stream's wait
reducer       the waits behind the last bucket that DDP's reducer launched: one for each bucket, in order
copy-out      FSDP2 waits for an all-gather where it copies its parameters out

Every one is checked on the device: the next computation launched behind the wait begins after the collective
ended. If it does not, the wait was another stream's (FSDP, ZeRO launch from streams of their own, and a
collective that is synchronous there blocks no computation), and nothing is told.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from sp_profiler.changed import changer
from sp_profiler.classify.blocked import Asked, ComputeStreams
from sp_profiler.classify.collectives import SEND_RECV, is_collective, unified_op
from sp_profiler.classify.context import Context
from sp_profiler.classify.tables import Activities, Collective, Kind
from sp_profiler.classify.unwaited import Unwaited
from sp_profiler.trace.tables import NONE, Category, Int64

_STREAM_WAIT = re.compile(r"^(?:cu(?:da)?|hip)StreamWaitEvent")
_LAUNCHING = re.compile(r"^_?c10d(?:_functional)?::(?!wait)|^record_param_comms$|^nccl:")
_WAIT_OPERATOR = re.compile(r"^_?c10d_functional::wait")
_COPY_OUT = re.compile(r"^FSDP::all_gather_copy_out(.*)$", re.DOTALL)
_GATHER = re.compile(r"^FSDP::all_gather(?!_copy)(.*)$", re.DOTALL)

Span = tuple[int, int]
_asynchronous = changer(Collective, "is_async")
_waited = changer(Collective, "wait_start_ns", "wait_end_ns", "is_async")


def with_device_waits(
    context: Context, activities: Activities, collectives: tuple[Collective, ...], launch: Int64
) -> tuple[Collective, ...]:
    """The collectives with the waits that the trace shows without naming them.

    `launch`: position of each activity's launch in the nest. What runs on a stream of its own is asynchronous
    even where its metadata call it synchronous (it is, on that stream): FSDP's collectives, and those beside
    which computation runs that was launched behind them.
    """
    if not collectives:
        return collectives
    threads = _Threads(context, launch)
    stream = ComputeStreams(activities)
    found = list(collectives)
    asked: list[Asked] = []
    rows = np.array([one.activity for one in collectives], np.int64)
    position, columns = (
        launch[rows],
        (activities.device, activities.stream, activities.end_ns, activities.step),
    )
    linked = np.flatnonzero((position != NONE) & (activities.kind[rows] == Kind.COMMUNICATION))
    told = zip(
        linked.tolist(),
        position[linked].tolist(),
        threads.of(position[linked]).tolist(),
        threads.call_end(position[linked]).tolist(),
        *(column[rows[linked]].tolist() for column in columns),
        strict=True,
    )
    for i, at, thread, call_end, *places in told:
        one = collectives[i]
        about = Asked(i, at, thread, call_end, one, *places)
        shards = one.purpose_rule == "operator-name" and one.purpose in ("param-gather", "param-grad")
        if stream.is_apart(about) and (shards or (one.is_async is False and stream.ran_beside(about))):
            found[i] = _asynchronous(one, True)
        elif one.is_async is False:
            continue
        if one.wait_start_ns is None and not (shards and one.purpose == "param-grad"):
            asked.append(about)
    for about, wait in _waits(asked, threads, stream):
        reduced = about.one.purpose_rule == "accumulate-grad" and threads.has_reducer
        one = found[about.index]
        found[about.index] = _waited(one, *wait, True if reduced else one.is_async)
    return tuple(found)


@dataclass(frozen=True)
class _Wait:
    start: int
    end: int
    thread: int
    group: str | None  # None: a stream's wait, whose group nobody says


class _Threads:
    """What the threads of the host did: launches, collectives' calls, waits."""

    def __init__(self, context: Context, launch: Int64) -> None:
        self._context = context
        nest, events, strings = context.nest, context.trace.events, context.trace.strings
        name = events.name[nest.row]
        described = np.array([is_collective(a) for a in context.trace.collectives] + [False], np.bool_)
        is_call = strings.match(name, lambda text: _LAUNCHING.match(text) is not None)
        is_wait = _is_wait_record(context)
        self._calls = nest.nearest(is_call & ~is_wait & (described[events.collective[nest.row]] | ~is_wait))
        linked = launch[launch != NONE]
        thread, time = nest.thread[linked], events.start_ns[nest.row[linked]]
        order = np.lexsort((time, thread))
        threads, first = np.unique(thread[order], return_index=True)
        parts = np.split(time[order], first)[1:]
        self._launch_ns: dict[int, Int64] = dict(zip(threads.tolist(), parts, strict=True))
        self.waits = self._find_waits(is_wait)
        self.starts = {t: [w.start for w in waits] for t, waits in self.waits.items()}
        self.has_reducer = any(
            strings.pool[code].startswith(
                ("DistributedDataParallel.", "torch.distributed.ddp.", "torch::distributed::r")
            )
            for code in strings.used(name)
        )

    def of(self, position: Int64) -> Int64:
        return self._context.nest.thread[position]

    def call_end(self, position: Int64) -> Int64:
        """The end of the outermost operator of the collective around each launch."""
        nest, parent = self._context.nest, np.append(self._context.nest.parent, NONE)
        call = outer = self._calls[position]
        while (further := outer != NONE).any():
            call = np.where(further, outer, call)
            outer = self._calls[parent[outer]]
        row = nest.row[np.where(call != NONE, call, position)]
        return self._context.trace.events.end_ns[row]

    def range_key(self, position: int, pattern: re.Pattern[str]) -> str | None:
        """What follows the name of the nearest range of this kind around a position."""
        nest, events = self._context.nest, self._context.trace.events
        while position != NONE:
            text = self._context.trace.strings[int(events.name[nest.row[position]])]
            match = pattern.match(text or "")
            if match is not None:
                return match[1]
            position = int(nest.parent[position])
        return None

    def ranges(self, pattern: re.Pattern[str]) -> list[tuple[int, int, str]]:
        """Start, end and the rest of the name of all ranges of this kind, by start."""
        nest, events, strings = self._context.nest, self._context.trace.events, self._context.trace.strings
        name = events.name[nest.row]
        hits = np.flatnonzero(strings.match(name, lambda text: pattern.match(text) is not None))
        found: list[tuple[int, int, str]] = []
        for position in hits.tolist():
            match = pattern.match(strings[int(name[position])] or "")
            if match is not None:
                found.append((*self._context.span_at(position), match[1]))
        return sorted(found)

    def launched_between(self, thread: int, start: int, end: int) -> int:
        times = self._launch_ns.get(thread)
        return 0 if times is None else int(times.searchsorted(end) - times.searchsorted(start))

    def next_wait(self, thread: int, after: int) -> _Wait | None:
        at = bisect_left(self.starts.get(thread, []), after)
        waits = self.waits.get(thread, [])
        return waits[at] if at < len(waits) else None

    def row_of_waits(self, first: _Wait) -> list[_Wait]:
        """This wait and those that follow it with nothing launched in between."""
        waits = self.waits[first.thread]
        row = [first]
        for place in range(bisect_left(self.starts[first.thread], first.start) + 1, len(waits)):
            wait = waits[place]
            if self.launched_between(first.thread, row[-1].start, wait.start):
                break
            row.append(wait)
        return row

    def stream_waits(self, thread: int, after: int, until: int | None) -> Iterator[_Wait]:
        """Streams' waits of a thread that begin between two times."""
        starts = self.starts.get(thread, [])
        high = len(starts) if until is None else bisect_left(starts, until)
        of_thread = self.waits.get(thread, [])
        every = (of_thread[place] for place in range(bisect_left(starts, after), high))
        return (wait for wait in every if wait.group is None)

    def _find_waits(self, is_wait: np.ndarray) -> dict[int, list[_Wait]]:
        """Recorded waits, and streams' waits outside of them and of the calls of collectives."""
        context, nest, events = self._context, self._context.nest, self._context.trace.events
        streams = events.category[nest.row] == int(Category.RUNTIME)
        streams &= context.trace.strings.match(
            events.name[nest.row], lambda text: _STREAM_WAIT.match(text) is not None
        )
        operators = context.trace.strings.match(
            events.name[nest.row], lambda text: _WAIT_OPERATOR.match(text) is not None
        )
        streams &= (nest.nearest(is_wait | operators)[:-1] == NONE) & (self._calls[:-1] == NONE)
        told = nest.nearest(operators)[np.flatnonzero(is_wait)]
        operators[told[told != NONE]] = False  # the record inside tells more
        waits: dict[int, list[_Wait]] = defaultdict(list)
        for position in np.flatnonzero(is_wait | streams | operators).tolist():
            group = None
            if is_wait[position]:
                args = context.trace.collectives[int(events.collective[nest.row[position]])]
                group = args.group_name or ""
            waits[int(nest.thread[position])].append(
                _Wait(*context.span_at(position), int(nest.thread[position]), group)
            )
        for found in waits.values():
            found.sort(key=lambda wait: wait.start)
        return waits


def _is_wait_record(context: Context) -> np.ndarray:
    """Which positions are the `wait` of a work."""
    told = [
        args.name is not None and unified_op(args.name) is None and args.name.lower() == "wait"
        for args in context.trace.collectives
    ]
    events = context.trace.events
    return np.array([*told, False], np.bool_)[events.collective[context.nest.row]] & (
        events.category[context.nest.row] == int(Category.CPU_OP)
    )


# --- which wait is whose --------------------------------------------------------------------------------


def _waits(asked: Sequence[Asked], threads: _Threads, stream: ComputeStreams) -> list[tuple[Asked, Span]]:
    found: dict[int, Span] = _copied_out([one for one in asked if one.is_sharding], threads, stream)
    others = [one for one in asked if not one.is_sharding]
    reduced = [one for one in others if one.one.purpose_rule == "accumulate-grad" and threads.has_reducer]
    if reduced:
        found |= _reducers(reduced, threads, stream)
        mine = {one.index for one in reduced}
        others = [one for one in others if one.index not in mine]
    found |= _recorded(others, threads, stream)
    return [(one, found[one.index]) for one in asked if one.index in found]


def _recorded(others: Sequence[Asked], threads: _Threads, stream: ComputeStreams) -> dict[int, Span]:
    """Waits at once, and recorded waits in the order of the group's collectives."""
    if not threads.waits:
        return {}
    found, taken = _at_once(others, threads, stream)
    left = [wait for waits in threads.waits.values() for wait in waits]
    left = [wait for wait in left if (wait.thread, wait.start) not in taken]
    return found | _in_order([one for one in others if one.index not in found], left, stream)


def _in_order(others: Sequence[Asked], waits: Sequence[_Wait], stream: ComputeStreams) -> dict[int, Span]:
    """Each wait in order of time is for the oldest collective of its group that fits and was called before.

    What is there is kept apart by all that decides which of them fit, but for their ends.
    """
    others = sorted(others, key=lambda one: one.call_end)
    kinds: dict[str, dict[_Fit, list[int]]] = defaultdict(lambda: defaultdict(list))
    for i, one in enumerate(others):
        kinds[_name_of(one)][_fit(one)].append(i)
    queues = {
        name: [(fit, places, Unwaited([others[i].end for i in places])) for fit, places in group.items()]
        for name, group in kinds.items()
    }
    arriving = {i: queue for group in queues.values() for _, places, queue in group for i in places}
    happened = [(one.call_end, 0, i) for i, one in enumerate(others)]
    happened += [(wait.start, 1, i) for i, wait in enumerate(waits)]
    found: dict[int, Span] = {}
    for _, is_wait, i in sorted(happened):
        if not is_wait:
            arriving[i].arrive()
            continue
        wait = waits[i]
        fitting: list[tuple[int, int, Unwaited]] = []
        for fit, places, queue in queues.get(wait.group or "", ()):
            if wait.group is None and not fit.is_send:
                continue  # a stream's wait may be for anything
            place = queue.first(stream.latest_end(fit.device, wait.start, any_stream=fit.on_any_stream))
            if place is not None:
                fitting.append((places[place], place, queue))
        if fitting:
            oldest, place, queue = min(fitting, key=lambda found: found[0])
            queue.take(place)
            found[others[oldest].index] = wait.start, wait.end
    return found


class _Fit(NamedTuple):
    """What decides, with its end, whether a wait can be for a collective."""

    is_send: bool
    device: int
    on_any_stream: bool


def _fit(one: Asked) -> _Fit:
    return _Fit(one.one.op == SEND_RECV, one.device, one.on_any_stream)


def _at_once(
    others: Sequence[Asked], threads: _Threads, stream: ComputeStreams
) -> tuple[dict[int, Span], set[tuple[int, int]]]:
    """Waits with nothing launched between the collective and them. Several in a row are for as many
    collectives in a row (K and V, each by itself), in their order."""
    found: dict[int, Span] = {}
    taken: set[tuple[int, int]] = set()
    before: dict[tuple[int, str], list[Asked]] = defaultdict(list)
    for one in sorted(others, key=lambda one: one.call_end):
        earlier = before[one.thread, _name_of(one)]
        earlier.append(one)
        wait = threads.next_wait(one.thread, one.call_end)
        if wait is None or threads.launched_between(one.thread, one.call_end, wait.start):
            continue
        row = [w for w in threads.row_of_waits(wait) if w.group is None or w.group == _name_of(one)]
        several = [
            other
            for place, other in enumerate(reversed(earlier[-len(row) :]))
            if threads.launched_between(one.thread, other.call_end, wait.start) == place
            and other.index not in found
        ]
        for whose, its in zip(reversed(several), row, strict=False):
            if (its.thread, its.start) not in taken and stream.blocked(whose, its.start):
                found[whose.index] = (its.start, its.end)
                taken.add((its.thread, its.start))
    return found, taken


def _name_of(asked: Asked) -> str:
    return asked.one.group_name or ""


def _reducers(buckets: Sequence[Asked], threads: _Threads, stream: ComputeStreams) -> dict[int, Span]:
    """The waits that directly follow the last bucket of a backward, one for each of its buckets."""
    found: dict[int, Span] = {}
    by_backward: dict[tuple[int, int], list[Asked]] = defaultdict(list)
    for one in sorted(buckets, key=lambda one: one.call_end):
        by_backward[one.thread, one.step].append(one)
    for (thread, _), mine in by_backward.items():
        run: list[Asked] = []
        for place, one in enumerate(mine):
            run.append(one)
            until = mine[place + 1].call_end if place + 1 < len(mine) else None
            waits = list(islice(threads.stream_waits(thread, one.call_end, until), len(run)))
            if len(waits) < len(run) or threads.launched_between(thread, one.call_end, waits[0].start):
                continue  # backward goes on, or the waits are not in the trace
            for bucket, wait in zip(run, waits, strict=False):
                if stream.blocked(bucket, wait.start):
                    found[bucket.index] = (wait.start, wait.end)
            run = []
    return found


def _copied_out(gathers: Sequence[Asked], threads: _Threads, stream: ComputeStreams) -> dict[int, Span]:
    """FSDP2's all-gathers: the next copy out of the same module."""
    found: dict[int, Span] = {}
    if not gathers:
        return found
    by_module: dict[str, list[Span]] = defaultdict(list)
    for start, end, module in threads.ranges(_COPY_OUT):
        by_module[module].append((start, end))
    for one in gathers:
        module = threads.range_key(one.position, _GATHER)
        spans = by_module.get(module, []) if module is not None else []
        at = bisect_left(spans, (one.call_end, one.call_end))
        if at < len(spans) and stream.blocked(one, spans[at][0]):
            found[one.index] = spans[at]
    return found
