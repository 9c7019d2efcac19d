"""Decoded events become numpy columns, chunk by chunk, so that no Python object outlives its chunk."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sp_profiler.errors import InputError
from sp_profiler.ledger import Ledger
from sp_profiler.trace.limits import Limits
from sp_profiler.trace.schema import (
    MAX_DURATION_NS,
    MAX_TIME_NS,
    NO_ARGS,
    NO_EVENT,
    Args,
    Event,
    category_of,
    is_sync_name,
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

OffsetOf = Callable[[int], int]
"""Byte offset, in the uncompressed text, of the event with this index in its chunk."""

_INT64 = range(-(1 << 63), 1 << 63)
_ON_DEVICE = (
    Category.KERNEL,
    Category.MEMCPY,
    Category.MEMSET,
    Category.DEVICE_SYNC,
    Category.DEVICE_ANNOTATION,
)
_FLOW_PHASES = ("s", "f")
_STRING_COLUMNS = ("name", "pid", "tid", "dims", "strides", "types")

_START_FAULTS = {
    "missing": ("bad-event", "loss", "an event has no start time"),
    "not-a-number": ("bad-event", "loss", "the start time of an event is not a number"),
    "non-finite": ("non-finite-time", "loss", "the start time of an event is infinite or not a number"),
    "range": ("time-out-of-range", "loss", "the start time of an event lies more than 146 years from zero"),
}
_DURATION_FAULTS = {
    "missing": ("missing-duration", "an event has no duration; it counts as 0"),
    "not-a-number": ("missing-duration", "the duration of an event is not a number; it counts as 0"),
    "non-finite": (
        "non-finite-duration",
        "the duration of an event is infinite or not a number; it counts as 0",
    ),
    "negative": ("negative-duration", "the duration of an event is negative; it counts as 0"),
    "range": (
        "overflow-duration",
        "the duration of an event exceeds 30 days, an overflow of the recorder; it counts as 0",
    ),
}


class Interner(dict[Any, int]):
    """Codes of values by their text. Equal texts share a code; codes number texts as they are met."""

    def __init__(self, pool: StringPool, text_of: Callable[[Any], str | None]) -> None:
        super().__init__()
        self._pool = pool
        self._text_of = text_of

    def __missing__(self, value: Any) -> int:
        text = self._text_of(value)
        code = self[value] = NONE if text is None else self._pool.code(text)
        return code

    def codes(self, values: Sequence[Any]) -> Int32:
        try:
            return np.fromiter(map(self.__getitem__, values), np.int32, len(values))
        except TypeError:  # an unhashable value: a list where a word should be
            words = [v if isinstance(v, (str, int)) or v is None else _json_text(v) for v in values]
            return np.fromiter(map(self.__getitem__, words), np.int32, len(values))


class StringPool:
    """All distinct strings of a file, within the limits."""

    def __init__(self, path: str, limits: Limits) -> None:
        self.texts: list[str] = []
        self._codes: dict[str, int] = {}
        self._path = path
        self._limits = limits
        self._bytes = 0

    def code(self, text: str) -> int:
        known = self._codes.get(text)
        if known is not None:
            return known
        self._bytes += len(text)
        if len(text) > self._limits.string_bytes:
            raise string_too_long(self._path, self._limits)
        if self._bytes > self._limits.distinct_string_bytes:
            raise InputError(
                f"{self._path} holds more than {self._limits.distinct_string_bytes} bytes of distinct"
                " strings, the limit for one trace."
            )
        self.texts.append(text)
        self._codes[text] = code = len(self.texts) - 1
        return code

    def sorted(self) -> tuple[Strings, Int32]:
        """The pool in alphabetical order, and the new code of every old one (the last: of "none").

        The order in which strings are met depends on how the file was cut into chunks; this does not.
        """
        order = sorted(range(len(self.texts)), key=self.texts.__getitem__)
        new_code = np.full(len(order) + 1, NONE, dtype=np.int32)
        new_code[np.array(order, dtype=np.int64)] = np.arange(len(order), dtype=np.int32)
        return Strings([self.texts[old] for old in order]), new_code


def string_too_long(path: str, limits: Limits) -> InputError:
    return InputError(
        f"{path} holds a string of more than {limits.string_bytes} bytes, the limit for one string."
    )


class Columns:
    """Collects the events of one file. `add` in file order, then `finish` once."""

    def __init__(self, path: str, limits: Limits, ledger: Ledger) -> None:
        self.count = 0
        self._path = path
        self._limits = limits
        self._ledger = ledger
        self._pool = StringPool(path, limits)
        self._words = Interner(self._pool, _word_text)
        self._json_texts = Interner(self._pool, compact_json)
        self._categories = _CategoryCodes()
        self._parts: dict[str, list[NDArray[Any]]] = {}
        self._collectives: dict[CollectiveArgs, int] = {}

    def add(self, events: Sequence[Event], offset_of: OffsetOf) -> None:
        """Append events; `offset_of(i)` is the byte offset of `events[i]`, asked only for faults."""
        phases = [event.ph for event in events]
        complete = [index for index, phase in enumerate(phases) if phase == "X"]
        flows: list[int] = []
        memory: list[int] = []
        if len(complete) < len(events):
            flows = [index for index, phase in enumerate(phases) if phase in _FLOW_PHASES]
            memory = [
                index
                for index, phase in enumerate(phases)
                if phase == "i" and events[index].name == "[memory]"
            ]
            self._other_phases(events, phases, offset_of)
        self.count += len(complete) + len(flows) + len(memory)
        if self.count > self._limits.events:
            raise InputError(
                f"{self._path} holds more than {self._limits.events} events, the limit for one trace."
            )
        self._add_complete(events, complete, offset_of)
        self._add_flows(events, flows, offset_of)
        self._add_memory(events, memory, offset_of)

    def _other_phases(self, events: Sequence[Event], phases: list[str], offset_of: OffsetOf) -> None:
        for index, phase in enumerate(phases):
            if phase in ("B", "E"):
                self._ledger.add(
                    "phase-not-read",
                    "note",
                    "begin and end events (ph B, E) are not read; Kineto writes complete events (ph X)",
                    offset=offset_of(index),
                )
            elif not phase and events[index] != NO_EVENT:
                self._ledger.add("bad-event", "loss", "an event has no phase (ph)", offset=offset_of(index))

    # --- complete events -----------------------------------------------------------------------

    def _add_complete(self, events: Sequence[Event], rows: list[int], offset_of: OffsetOf) -> None:
        chosen = list(events) if len(rows) == len(events) else [events[index] for index in rows]
        start, lost = self._starts(chosen, lambda index: offset_of(rows[index]))
        if lost:
            kept = [index for index in range(len(rows)) if index not in lost]
            rows = [rows[index] for index in kept]
            chosen = [chosen[index] for index in kept]
            start = start[kept]
        if not chosen:
            return
        duration = self._durations(chosen, lambda index: offset_of(rows[index]))
        args = [event.args or NO_ARGS for event in chosen]
        external = int_column([a.external_id for a in args])
        if (external == NONE).any():
            old = int_column([a.old_external_id for a in args])
            external = np.where(external == NONE, old, external)
        self._append(
            start_ns=start,
            dur_ns=duration,
            category=self._categories.codes([event.cat for event in chosen]),
            name=self._words.codes([event.name for event in chosen]),
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
            collective=self._collective_rows(args),
        )

    def _starts(self, events: Sequence[Event], offset_of: OffsetOf) -> tuple[Int64, set[int]]:
        """Start times, and the indices of events that have none."""
        start, irregular, outside = times_to_ns([event.ts for event in events])
        faults = {row.index: row.kind for row in irregular}
        faults |= {index: "range" for index, _ in outside}
        for index in np.flatnonzero((start > MAX_TIME_NS) | (start < -MAX_TIME_NS)).tolist():
            faults[index] = "range"
        lost: set[int] = set()
        for index, kind in sorted(faults.items()):
            if kind == "quoted":
                self._quoted(offset_of(index))
                continue
            code, severity, text = _START_FAULTS[kind]
            self._ledger.add(code, severity, f"{text}; it was left out", offset=offset_of(index))  # type: ignore[arg-type]
            lost.add(index)
        return start, lost

    def _durations(self, events: Sequence[Event], offset_of: OffsetOf) -> Int64:
        """Durations, 0 where the file says nothing sensible."""
        duration, irregular, outside = times_to_ns([event.dur for event in events])
        faults = {row.index: row.kind for row in irregular if row.kind != "quoted"}
        for row in irregular:
            if row.kind == "quoted":
                self._quoted(offset_of(row.index))
        faults |= {index: "negative" if value < 0 else "range" for index, value in outside}
        faults |= dict.fromkeys(np.flatnonzero(duration < 0).tolist(), "negative")
        faults |= dict.fromkeys(np.flatnonzero(duration > MAX_DURATION_NS).tolist(), "range")
        for index, kind in sorted(faults.items()):
            code, text = _DURATION_FAULTS[kind]
            self._ledger.add(code, "repair", text, offset=offset_of(index))
            duration[index] = 0
        return duration

    def _quoted(self, offset: int) -> None:
        self._ledger.add(
            "quoted-number",
            "repair",
            "a time is written as a string; it was read as the number in it",
            offset=offset,
        )

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
            metadata = _collective_args(args[index])
            rows[index] = self._collectives.setdefault(metadata, len(self._collectives))
        return rows

    # --- flows and memory instants -------------------------------------------------------------

    def _add_flows(self, events: Sequence[Event], rows: list[int], offset_of: OffsetOf) -> None:
        chosen, times = self._with_start(events, rows, offset_of)
        if not chosen:
            return
        self._append(
            flow_kind=self._words.codes([e.name if e.cat is None else e.cat for e in chosen]),
            flow_is_start=np.array([event.ph == "s" for event in chosen], dtype=np.bool_),
            flow_id=int_column([event.id for event in chosen]),
            flow_pid=self._words.codes([event.pid for event in chosen]),
            flow_tid=self._words.codes([event.tid for event in chosen]),
            flow_ts_ns=times,
        )

    def _add_memory(self, events: Sequence[Event], rows: list[int], offset_of: OffsetOf) -> None:
        chosen, times = self._with_start(events, rows, offset_of)
        if not chosen:
            return
        args = [event.args or NO_ARGS for event in chosen]
        addresses = [value & (1 << 64) - 1 if isinstance(value := a.address, int) else 0 for a in args]
        self._append(
            memory_ts_ns=times,
            memory_address=np.array(addresses, dtype=np.uint64),
            memory_bytes=int_column([0 if a.bytes is None else a.bytes for a in args]),
            memory_total_allocated=int_column([a.total_allocated for a in args]),
            memory_total_reserved=int_column([a.total_reserved for a in args]),
            memory_device_type=int_column([a.device_type for a in args], np.int32),
            memory_device_id=int_column([a.device_id for a in args], np.int32),
            memory_tid=self._words.codes([event.tid for event in chosen]),
        )

    def _with_start(
        self, events: Sequence[Event], rows: list[int], offset_of: OffsetOf
    ) -> tuple[list[Event], Int64]:
        chosen = [events[index] for index in rows]
        times, lost = self._starts(chosen, lambda index: offset_of(rows[index]))
        if lost:
            kept = [index for index in range(len(chosen)) if index not in lost]
            return [chosen[index] for index in kept], times[kept]
        return chosen, times

    # --- the end -------------------------------------------------------------------------------

    def _append(self, **columns: NDArray[Any]) -> None:
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
        )
        return strings, events, tuple(self._collectives), flows, memory


class _CategoryCodes(dict[Any, int]):
    def __missing__(self, cat: Any) -> int:
        self[cat] = code = int(category_of(cat))
        return code

    def codes(self, cats: Sequence[Any]) -> NDArray[np.int8]:
        try:
            return np.fromiter(map(self.__getitem__, cats), np.int8, len(cats))
        except TypeError:  # unhashable, so no name of a category
            return np.fromiter((category_of(cat) for cat in cats), np.int8, len(cats))


def int_column(values: Sequence[Any], dtype: Any = np.int64) -> NDArray[Any]:
    """Integers as a column; what is no integer of that size becomes NONE."""
    try:
        column = np.frombuffer(array("q", values), dtype=np.int64)
    except (TypeError, OverflowError):
        clean = (number if (number := to_int(value)) is not None else NONE for value in values)
        column = np.fromiter(clean, np.int64, len(values))
    if dtype is np.int64:
        return column
    bounds = np.iinfo(dtype)
    return np.where((column < bounds.min) | (column > bounds.max), NONE, column).astype(dtype)


def to_int(value: Any) -> int | None:
    """The int64 that a JSON value stands for: a number without fraction, or digits in quotes."""
    if isinstance(value, str):
        digits = value.strip()
        value = int(digits) if len(digits) < 20 and digits.removeprefix("-").isdecimal() else None
    elif isinstance(value, float):
        value = int(value) if value.is_integer() else None
    return value if isinstance(value, int) and value in _INT64 else None


def compact_json(text: bytes) -> str | None:
    """JSON text without white space outside strings; None for no text."""
    if not text or text == b"null":
        return None
    if b'"' not in text:
        return b"".join(text.split()).decode()
    try:
        return _json_text(json.loads(text.decode(errors="replace"), strict=False))
    except (ValueError, RecursionError):
        return text.decode(errors="replace")


def _json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _word_text(value: Any) -> str | None:
    return None if value is None else str(value)


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


_TEXT_FIELDS = frozenset(
    ("name", "dtype", "group_name", "group_description", "group_ranks", "in_split", "out_split", "comms_id")
)


def _collective_args(args: Args) -> CollectiveArgs:
    values: dict[str, Any] = {}
    for field in fields(CollectiveArgs):
        value = getattr(args, "collective_name" if field.name == "name" else field.name)
        if field.name in _TEXT_FIELDS:
            values[field.name] = _metadata_text(value)
        elif field.name == "is_async":
            values[field.name] = _to_bool(value)
        else:
            values[field.name] = to_int(value)
    return CollectiveArgs(**values)


def _metadata_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _to_bool(value: Any) -> bool | None:
    if isinstance(value, str):
        return {"true": True, "1": True, "false": False, "0": False}.get(value.lower())
    return bool(value) if isinstance(value, (bool, int)) else None
