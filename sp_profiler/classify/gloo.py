"""gloo's ranges and the calls that launched them.

gloo traces hold no group, no byte count and no sequence number, only a range `gloo:all_reduce` with the
dimensions of its input on a worker thread. A range belongs to the `sp::comm` range with the expected
name and dimensions whose [launch, end of wait] holds its start, earliest first. Without annotations the
k-th range belongs to the k-th `c10d::*` operator of its name, where counts, order and dimensions agree; a
reduce-scatter of lists shows as several ranges.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass

import numpy as np

from sp_profiler.classify.annotations import COMM
from sp_profiler.classify.collectives import SEND_RECV, tensors, unified_op
from sp_profiler.classify.context import Context
from sp_profiler.classify.dtypes import dtype_bytes, dtype_name
from sp_profiler.classify.groups import parse_group_key
from sp_profiler.record.annotate import Range
from sp_profiler.trace.tables import NONE, Bool, Category, Int64, Trace

PREFIX = "gloo:"
_NEVER = np.iinfo(np.int64).max
# gloo does a reduce-scatter as an all-reduce and a copy; the ring's shift is a zero-split all-to-all.
_LIST_REDUCE_SCATTER = "c10d::reduce_scatter_"
_SHOWN_AS = {"reduce_scatter": ("all_reduce", "reduce_scatter"), SEND_RECV: ("all_to_all", "send", "recv")}


def is_gloo(name: str) -> bool:
    """Whether a range is gloo's."""
    return name.startswith(PREFIX)


def is_point_to_point(name: str) -> bool:
    """`gloo:send`, `gloo:recv`: from post to wait on the calling thread, not the transfer."""
    return name.startswith((PREFIX + "send", PREFIX + "recv"))


def gloo_rows(trace: Trace) -> Int64:
    """Rows of all gloo ranges, on whatever thread, by (start, row)."""
    events = trace.events
    on_cpu = np.isin(events.category, (int(Category.CPU_ANNOTATION), int(Category.CPU_OP)))
    rows = np.flatnonzero(on_cpu & trace.strings.match(events.name, is_gloo)).astype(np.int64)
    return rows[np.argsort(events.start_ns[rows], kind="stable")]


def shown_as(op: str | None) -> tuple[str, ...]:
    """The names under which gloo shows an operation (without `gloo:`)."""
    return _SHOWN_AS.get(op or "", (op or "",))


@dataclass(frozen=True)
class Launched:
    """The launcher of each gloo range: a position in the nest, NONE where nobody knows.

    A send or receive that nothing else claims launched itself: its range runs on the calling thread, from
    the post on.
    """

    position: Int64
    annotated: bool  # launchers are sp::comm ranges, else c10d operators
    itself: Bool  # the range is its own launcher


@dataclass
class _Open:
    """A launched collective that may still belong to a range."""

    position: int
    start_ns: int
    deadline_ns: int
    taken: bool = False


def match_launches(context: Context, rows: Int64) -> Launched:
    """Find the launcher of each gloo range; what is left over on either side goes to the ledger."""
    annotated = len(context.annotations.positions_of(COMM)) > 0
    matched = _match_annotated(context, rows) if annotated else _match_operators(context, rows)
    trace = context.trace
    itself = (matched == NONE) & trace.strings.match(trace.events.name[rows], is_point_to_point)
    return Launched(np.where(itself, context.nest.position[rows], matched), annotated, itself)


def _range_elements(context: Context, row: int) -> int | None:
    events, strings = context.trace.events, context.trace.strings
    given = tensors(strings[int(events.dims[row])], strings[int(events.types[row])])
    return sum(elements for elements, _ in given) if given else None


def expected_elements(found: Range) -> int | None:
    """Elements of the input that gloo shows for an annotated collective; None where fields are missing.

    `bytes` is the full tensor; an all-gather's input is one shard of it.
    """
    width = dtype_bytes(dtype_name(found.fields.get("dtype")))
    if width is None or found.bytes is None:
        return None
    elements = found.bytes // width
    if unified_op(found.fields.get("op")) == "all_gather":
        group = parse_group_key(found.fields.get("group", ""))
        return elements // len(group[1]) if group is not None else None
    return elements


def _open_launches(context: Context) -> tuple[list[_Open], dict[tuple[str, int | None], deque[_Open]]]:
    """All annotated launches in order of start, and the same by (gloo name, elements)."""
    launches: list[tuple[_Open, Range]] = []
    for position in context.annotations.positions_of(COMM).tolist():
        found = context.annotations.range_at(position)
        start, end = context.span_at(position)
        wait = context.waits.of_range(found, start) if found.is_async is not False else None
        deadline = wait[1] if wait is not None else _NEVER if found.is_async else end
        launches.append((_Open(position, start, deadline), found))
    launches.sort(key=lambda pair: (pair[0].start_ns, pair[0].position))
    waiting: dict[tuple[str, int | None], deque[_Open]] = defaultdict(deque)
    for launch, found in launches:
        elements = expected_elements(found)
        for name in shown_as(unified_op(found.fields.get("op"))):
            waiting[(name, elements)].append(launch)
    return [launch for launch, _ in launches], waiting


def _first_open(queue: deque[_Open], start_ns: int) -> _Open | None:
    while queue and (queue[0].taken or queue[0].deadline_ns <= start_ns):
        queue.popleft()
    return queue[0] if queue and queue[0].start_ns <= start_ns else None


def _match_annotated(context: Context, rows: Int64) -> Int64:
    launches, waiting = _open_launches(context)
    events, strings = context.trace.events, context.trace.strings
    matched = np.full(len(rows), NONE, dtype=np.int64)
    for index, row in enumerate(rows.tolist()):
        name = (strings[int(events.name[row])] or "")[len(PREFIX) :]
        elements = _range_elements(context, row)
        # A range whose dimensions were not recorded, or a launch without a byte count, matches by name.
        keys = (
            [key for key in waiting if key[0] == name]
            if elements is None
            else [(name, elements), (name, None)]
        )
        start = int(events.start_ns[row])
        candidates = [
            c for key in keys if key in waiting and (c := _first_open(waiting[key], start)) is not None
        ]
        if candidates:
            chosen = min(candidates, key=lambda launch: (launch.start_ns, launch.position))
            chosen.taken = True
            matched[index] = chosen.position
    left = sum(not launch.taken for launch in launches)
    if left:
        context.ledger.add(
            "comm-range-unmatched",
            "note",
            "sp::comm ranges without a gloo range of their own (expected name, dimensions and time)",
            count=left,
        )
    alone = int((matched == NONE).sum())
    if alone:
        context.ledger.add(
            "gloo-range-unmatched",
            "note",
            "gloo ranges that belong to no sp::comm range: their group, bytes and purpose are unknown",
            count=alone,
        )
    return matched


def _match_operators(context: Context, rows: Int64) -> Int64:
    """The k-th gloo range of a name and the k-th c10d operator that shows as it, when all of them agree."""
    events, strings, nest = context.trace.events, context.trace.strings, context.nest
    matched = np.full(len(rows), NONE, dtype=np.int64)
    operators = (events.category[nest.row] == int(Category.CPU_OP)) & strings.match(
        events.name[nest.row], lambda text: text.startswith("c10d::")
    )
    launches: dict[str, list[int]] = defaultdict(list)
    for position in np.flatnonzero(operators).tolist():
        name = strings[int(events.name[nest.row[position]])] or ""
        op = unified_op(name)
        shown = ("recv" if "recv" in name else "send",) if op == SEND_RECV else shown_as(op)
        launches[shown[0]].append(position)
    ranges: dict[str, list[int]] = defaultdict(list)
    for index, row in enumerate(rows.tolist()):
        ranges[(strings[int(events.name[row])] or "")[len(PREFIX) :]].append(index)
    for name, indices in ranges.items():
        positions = sorted(launches.get(name, ()), key=lambda p: (events.start_ns[nest.row[p]], p))
        positions = _by_range(context, positions, len(indices))
        if len(positions) == len(indices) and all(
            _agree(context, int(nest.row[position]), int(rows[index]))
            for position, index in zip(positions, indices, strict=True)
        ):
            matched[indices] = positions
            _say_pieces(context, positions)
    return matched


def _by_range(context: Context, positions: list[int], count: int) -> list[int]:
    """The launches, each as often as it shows as a range, where `count` ranges are there.

    gloo does a reduce-scatter of lists as one all-reduce for each rank of the group. The operator does not
    say how many those are: the ranges do where they leave the same number for each list.
    """
    events, strings, nest = context.trace.events, context.trace.strings, context.nest
    lists = [p for p in positions if strings[int(events.name[nest.row[p]])] == _LIST_REDUCE_SCATTER]
    pieces, rest = divmod(count - (len(positions) - len(lists)), max(len(lists), 1))
    group = context.book.only_group()
    if not lists or rest or pieces < 2 or (group is not None and group.size not in (None, pieces)):
        return positions
    listed = set(lists)
    return [p for p in positions for _ in range(pieces if p in listed else 1)]


def _say_pieces(context: Context, positions: list[int]) -> None:
    """Enter how many launches show as several ranges."""
    several = len([count for count in Counter(positions).values() if count > 1])
    if several:
        context.ledger.add(
            "list-reduce-scatter",
            "note",
            "gloo does a reduce-scatter of lists as one all-reduce for each rank of the group: each counts "
            "as a collective with its share of the bytes",
            count=several,
        )


def _agree(context: Context, operator: int, row: int) -> bool:
    events, strings = context.trace.events, context.trace.strings
    if events.start_ns[row] < events.start_ns[operator]:
        return False
    given = tensors(strings[int(events.dims[operator])], strings[int(events.types[operator])])
    elements = _range_elements(context, row)
    if elements is None or not given:
        return True
    counts = [count for count, _ in given]
    if strings[int(events.name[operator])] == "c10d::alltoall_":  # outputs and inputs; gloo shows the inputs
        return sum(counts) == 2 * elements or elements in counts
    if strings[int(events.name[operator])] == "c10d::scatter_":  # the output; gloo shows what the root gives
        return elements % max(counts[0], 1) == 0
    return elements in (*counts, sum(counts))
