"""Decoded events become numpy columns, chunk by chunk, so that no Python object outlives its chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sp_profiler.errors import InputError
from sp_profiler.ledger import Ledger, Severity
from sp_profiler.trace.limits import Limits
from sp_profiler.trace.schema import (
    BEGIN_END_PHASES,
    FLOW_PHASES,
    MAX_DURATION_NS,
    MAX_TIME_NS,
    MEMORY_NAMES,
    NO_ARGS,
    NO_EVENT,
    OUT_OF_MEMORY,
    PHASES,
    Args,
    Event,
    is_sync_name,
    keeps_concrete_inputs,
)
from sp_profiler.trace.tables import (
    NONE,
    Category,
    CollectiveArgs,
    Events,
    Flows,
    Int32,
    Int64,
    MemoryEvents,
    Strings,
)
from sp_profiler.trace.times import times_to_ns
from sp_profiler.trace.values import (
    CategoryCodes,
    CollectiveRows,
    Interner,
    Judged,
    StringPool,
    compact_json,
    int_column,
    to_int,
    word_text,
)

OffsetOf = Callable[[int], int]
"""Byte offset, in the uncompressed text, of the event with this index in its chunk."""

_ON_DEVICE = (
    Category.KERNEL,
    Category.MEMCPY,
    Category.MEMSET,
    Category.DEVICE_SYNC,
    Category.DEVICE_ANNOTATION,
)
_STRING_COLUMNS = ("name", "pid", "tid", "dims", "strides", "types", "concrete")

Fault = tuple[str, Severity, str]
"""Code, severity and sentence of an entry in the ledger."""

_START_FAULTS: dict[str, Fault] = {
    "missing": ("bad-event", "loss", "an event has no start time; it was left out"),
    "not-a-number": ("bad-event", "loss", "the start time of an event is not a number; it was left out"),
    "non-finite": (
        "non-finite-time",
        "loss",
        "the start time of an event is infinite or not a number; it was left out",
    ),
    "range": (
        "time-out-of-range",
        "loss",
        "the start time of an event lies more than 146 years from zero; it was left out",
    ),
}
_DURATION_FAULTS: dict[str, Fault] = {
    "missing": ("missing-duration", "repair", "an event has no duration; it counts as 0"),
    "not-a-number": ("missing-duration", "repair", "the duration of an event is no number; it counts as 0"),
    "non-finite": (
        "non-finite-duration",
        "repair",
        "the duration of an event is infinite or not a number; it counts as 0",
    ),
    "negative": ("negative-duration", "repair", "the duration of an event is negative; it counts as 0"),
    "range": (
        "overflow-duration",
        "repair",
        "the duration of an event exceeds 30 days, an overflow of the recorder; it counts as 0",
    ),
}
_QUOTED: Fault = (
    "quoted-number",
    "repair",
    "a time is written as a string; it was read as the number in it",
)
_NOT_READ: Fault = (
    "phase-not-read",
    "note",
    "begin and end events (ph B, E) are not read; Kineto writes complete events (ph X)",
)
_UNKNOWN_PHASE: Fault = (
    "bad-event",
    "loss",
    "the phase (ph) of an event is none that exists; it was left out",
)
_NO_PHASE: Fault = ("bad-event", "loss", "an event has no phase (ph)")


class _Faults:
    """Faults of the events in one chunk, counted by kind. Finding an offset means walking the chunk, so
    it is done once per kind and only for the first chunk that holds the kind.
    """

    def __init__(self) -> None:
        self._found: dict[Fault, tuple[int, int]] = {}  # the smallest index, and how many

    def add(self, fault: Fault, index: int) -> None:
        first, count = self._found.get(fault, (index, 0))
        self._found[fault] = (min(first, index), count + 1)

    def enter(self, ledger: Ledger, known: set[Fault], offset_of: OffsetOf) -> None:
        for (code, severity, text), (first, count) in self._found.items():
            fault = (code, severity, text)
            offset = None if fault in known else offset_of(first)
            ledger.add(code, severity, text, count=count, offset=offset)
            known.add(fault)


class Columns:
    """Collects the events of one file. `add` in file order, then `finish` once."""

    def __init__(self, path: str, limits: Limits, ledger: Ledger) -> None:
        self.count = 0
        self._path = path
        self._limits = limits
        self._ledger = ledger
        self._pool = StringPool(path, limits)
        self._words = Interner(self._pool, word_text)
        self._json_texts = Interner(self._pool, compact_json)
        self._categories = CategoryCodes()
        self._known_faults: set[Fault] = set()
        self._keeps_concrete = Judged(self._pool, keeps_concrete_inputs)
        self._parts: dict[str, list[NDArray[Any]]] = {}
        self._collectives = CollectiveRows()

    def add(
        self,
        events: Sequence[Event],
        offset_of: OffsetOf,
        not_empty: Callable[[], Sequence[bool]] | None = None,
    ) -> None:
        """Append events; `offset_of(i)` is the byte offset of `events[i]`, asked only for faults.

        `not_empty()` tells which of them hold something, read or not; without it those without a known
        key are empty objects.
        """
        faults = _Faults()
        phases = [event.ph for event in events]
        complete = [index for index, phase in enumerate(phases) if phase == "X"]
        flows: list[int] = []
        memory: list[int] = []
        verdicts: list[Sequence[bool]] = []  # asked for once

        def holds_something(index: int) -> bool:
            if not verdicts and not_empty is not None:
                verdicts.append(not_empty())
            return bool(verdicts) and verdicts[0][index]

        if len(complete) < len(events):
            flows = [index for index, phase in enumerate(phases) if phase in FLOW_PHASES]
            memory = [
                index
                for index, phase in enumerate(phases)
                if phase == "i" and events[index].name in MEMORY_NAMES
            ]
            for index, phase in enumerate(phases):
                if phase in BEGIN_END_PHASES:
                    faults.add(_NOT_READ, index)
                elif phase and phase not in PHASES:
                    faults.add(_UNKNOWN_PHASE, index)
                elif not phase and (events[index] != NO_EVENT or holds_something(index)):
                    faults.add(_NO_PHASE, index)
        self.count_events(len(complete) + len(flows) + len(memory))
        self._add_complete(events, complete, faults)
        self._add_flows(events, flows, faults)
        self._add_memory(events, memory, faults)
        faults.enter(self._ledger, self._known_faults, offset_of)

    def count_events(self, more: int) -> None:
        """Count events that are kept. Raises InputError where there are more than the limits allow."""
        self.count += more
        if self.count > self._limits.events:
            raise InputError(
                f"{self._path} holds more than {self._limits.events} events, the limit for one trace."
            )

    # --- what a scanner needs that makes columns by itself ---------------------------------------

    def word_code(self, value: Any) -> int:
        """The code of a name, pid or tid."""
        return int(self._words.codes([value])[0])

    def category_code(self, value: Any) -> int:
        return int(self._categories.codes([value])[0])

    def json_code(self, text: bytes) -> int:
        """The code of JSON text, as written."""
        return int(self._json_texts.codes([text])[0])

    def collective_code(self, args: Args | None) -> int:
        """The row of the NCCL metadata in the arguments of an event; NONE without."""
        return int(self._collective_rows([args or NO_ARGS])[0])

    # --- complete events -----------------------------------------------------------------------

    def _add_complete(self, events: Sequence[Event], rows: list[int], faults: _Faults) -> None:
        chosen, rows, start = self._with_start(events, rows, faults)
        if not chosen:
            return
        duration = _durations(chosen, rows, faults)
        args = [event.args or NO_ARGS for event in chosen]
        external = int_column([a.external_id for a in args])
        if (external == NONE).any():
            old = int_column([a.old_external_id for a in args])
            external = np.where(external == NONE, old, external)
        name = self._words.codes([event.name for event in chosen])
        self.append(
            start_ns=start,
            dur_ns=duration,
            category=self._categories.codes([event.cat for event in chosen]),
            name=name,
            pid=self._words.codes([event.pid for event in chosen]),
            tid=self._words.codes([event.tid for event in chosen]),
            device=int_column([a.device for a in args], np.int32),
            stream=int_column([a.stream for a in args]),
            correlation=int_column([a.correlation for a in args]),
            external_id=external,
            sequence=int_column([a.sequence for a in args]),
            fwd_thread=int_column([a.fwd_thread for a in args]),
            dims=self._json_texts.codes([bytes(a.dims) for a in args]),
            strides=self._json_texts.codes([bytes(a.strides) for a in args]),
            types=self._json_texts.codes([bytes(a.types) for a in args]),
            concrete=self._concrete_inputs(name, args),
            collective=self._collective_rows(args),
        )

    def _concrete_inputs(self, name: Int32, args: Sequence[Args]) -> Int32:
        """Values of the inputs of collectives' operators; other operators' are many and not asked for."""
        column = np.full(len(args), NONE, dtype=np.int32)
        rows = np.flatnonzero(self._keeps_concrete.of(name))
        column[rows] = self._json_texts.codes([bytes(args[row].concrete) for row in rows.tolist()])
        return column

    def _collective_rows(self, args: Sequence[Args]) -> Int32:
        rows = np.full(len(args), NONE, dtype=np.int32)
        carries = [
            index
            for index, one in enumerate(args)
            if one.collective_name is not None
            or one.group_ranks is not None
            or one.group_name is not None
            or one.group_description is not None
        ]
        for index in carries:
            rows[index] = self._collectives.row(args[index])
        return rows

    # --- flows and memory instants -------------------------------------------------------------

    def _add_flows(self, events: Sequence[Event], rows: list[int], faults: _Faults) -> None:
        chosen, _, times = self._with_start(events, rows, faults)
        if not chosen:
            return
        self.append(
            flow_kind=self._words.codes([e.name if e.cat is None else e.cat for e in chosen]),
            flow_is_start=np.array([event.ph == "s" for event in chosen], dtype=np.bool_),
            flow_id=int_column([event.id for event in chosen]),
            flow_pid=self._words.codes([event.pid for event in chosen]),
            flow_tid=self._words.codes([event.tid for event in chosen]),
            flow_ts_ns=times,
        )

    def _add_memory(self, events: Sequence[Event], rows: list[int], faults: _Faults) -> None:
        chosen, _, times = self._with_start(events, rows, faults)
        if not chosen:
            return
        args = [event.args or NO_ARGS for event in chosen]
        addresses = [value & (1 << 64) - 1 if isinstance(value := a.address, int) else 0 for a in args]
        self.append(
            memory_ts_ns=times,
            memory_address=np.array(addresses, dtype=np.uint64),
            memory_bytes=int_column([0 if a.bytes is None else a.bytes for a in args]),
            memory_total_allocated=int_column([a.total_allocated for a in args]),
            memory_total_reserved=int_column([a.total_reserved for a in args]),
            memory_device_type=int_column([a.device_type for a in args], np.int32),
            memory_device_id=int_column([a.device_id for a in args], np.int32),
            memory_tid=self._words.codes([event.tid for event in chosen]),
            memory_failed=np.array([event.name == OUT_OF_MEMORY for event in chosen], dtype=np.bool_),
        )

    def _with_start(
        self, events: Sequence[Event], rows: list[int], faults: _Faults
    ) -> tuple[list[Event], list[int], Int64]:
        """The events in `rows` that have a usable start, their rows, and the starts."""
        chosen = list(events) if len(rows) == len(events) else [events[row] for row in rows]
        start, irregular, outside = times_to_ns([event.ts for event in chosen])
        kinds = {one.index: one.kind for one in irregular}
        kinds |= {index: "range" for index, _ in outside}
        kinds |= dict.fromkeys(
            np.flatnonzero((start > MAX_TIME_NS) | (start < -MAX_TIME_NS)).tolist(), "range"
        )
        if not kinds:
            return chosen, rows, start
        lost: set[int] = set()
        for index, kind in kinds.items():
            faults.add(_QUOTED if kind == "quoted" else _START_FAULTS[kind], rows[index])
            if kind != "quoted":
                lost.add(index)
        kept = [index for index in range(len(chosen)) if index not in lost]
        return [chosen[index] for index in kept], [rows[index] for index in kept], start[kept]

    # --- the end -------------------------------------------------------------------------------

    def append(self, **columns: NDArray[Any]) -> None:
        """Append a part of some columns, all of one length."""
        for name, column in columns.items():
            self._parts.setdefault(name, []).append(column)

    def _take(self, name: str, dtype: Any) -> NDArray[Any]:
        """The whole column; its parts are freed."""
        parts = self._parts.pop(name, [])
        return np.concatenate(parts, dtype=dtype) if parts else np.zeros(0, dtype=dtype)

    def finish(
        self, base_time_ns: int
    ) -> tuple[Strings, Events, tuple[CollectiveArgs, ...], Flows, MemoryEvents]:
        """All tables of the file; `base_time_ns` is added to every time."""
        strings, new_code = self._pool.sorted()

        def codes(name: str) -> Int32:
            return new_code[self._take(name, np.int32)]

        def times(name: str) -> Int64:
            return self._take(name, np.int64) + base_time_ns

        text_columns = {name: codes(name) for name in _STRING_COLUMNS}
        category = self._take("category", np.int8)
        sync = strings.match(text_columns["name"], is_sync_name) & (category == Category.KERNEL)
        category[sync] = Category.DEVICE_SYNC
        on_device = np.isin(category, [int(c) for c in _ON_DEVICE])
        device = _else_number(self._take("device", np.int32), text_columns["pid"], strings, on_device)
        stream = _else_number(self._take("stream", np.int64), text_columns["tid"], strings, on_device)
        numbers = {
            name: self._take(name, np.int64)
            for name in ("dur_ns", "correlation", "external_id", "sequence", "fwd_thread")
        }
        events = Events(
            category=category,
            start_ns=times("start_ns"),
            device=device,
            stream=stream,
            collective=self._take("collective", np.int32),
            **text_columns,
            **numbers,
        )
        flows = Flows(
            kind=codes("flow_kind"),
            is_start=self._take("flow_is_start", np.bool_),
            id=self._take("flow_id", np.int64),
            pid=codes("flow_pid"),
            tid=codes("flow_tid"),
            ts_ns=times("flow_ts_ns"),
        )
        memory = MemoryEvents(
            ts_ns=times("memory_ts_ns"),
            address=self._take("memory_address", np.uint64),
            bytes=self._take("memory_bytes", np.int64),
            total_allocated=self._take("memory_total_allocated", np.int64),
            total_reserved=self._take("memory_total_reserved", np.int64),
            device_type=self._take("memory_device_type", np.int32),
            device_id=self._take("memory_device_id", np.int32),
            tid=codes("memory_tid"),
            failed=self._take("memory_failed", np.bool_),
        )
        return strings, events, self._collectives.all(), flows, memory


def _durations(events: Sequence[Event], rows: list[int], faults: _Faults) -> Int64:
    """Durations, 0 where the file says nothing sensible. `rows`: the events' places in their chunk."""
    duration, irregular, outside = times_to_ns([event.dur for event in events])
    kinds = {one.index: one.kind for one in irregular}
    kinds |= {index: "negative" if value < 0 else "range" for index, value in outside}
    kinds |= dict.fromkeys(np.flatnonzero(duration < 0).tolist(), "negative")
    kinds |= dict.fromkeys(np.flatnonzero(duration > MAX_DURATION_NS).tolist(), "range")
    for index, kind in kinds.items():
        if kind == "quoted":
            faults.add(_QUOTED, rows[index])
        else:
            faults.add(_DURATION_FAULTS[kind], rows[index])
            duration[index] = 0
    return duration


def _else_number(
    column: NDArray[Any], words: Int32, strings: Strings, rows: NDArray[np.bool_]
) -> NDArray[Any]:
    """The column on device rows, else NONE; where it says nothing, the number that ends the word.

    Old files give a device only as the event's pid, and a stream only as its tid ("stream 7").
    """
    column = np.where(rows, column, NONE).astype(column.dtype)
    missing = rows & (column == NONE)
    if missing.any():
        largest = np.iinfo(column.dtype).max
        number = np.full(len(strings.pool) + 1, NONE, dtype=column.dtype)
        for code in np.unique(words[missing & (words != NONE)]).tolist():
            digits = strings.pool[code].removeprefix("stream ")
            value = to_int(digits)
            number[code] = value if value is not None and 0 <= value <= largest else NONE
        column[missing] = number[words[missing]]
    return column
