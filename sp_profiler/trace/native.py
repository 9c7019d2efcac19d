"""The compiled scanner (`sp-profiler-native`), where it is installed: plain events become columns at once.

It knows the shape of an event and nothing of what the values mean: every distinct text it meets comes back
once and is interned here by the Python decoder's own rules, and an event that is not plain is left to that
decoder. So both read the same from every file.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sp_profiler.errors import UsageError
from sp_profiler.trace.schema import (
    COLLECTIVE_FIELDS,
    IGNORED_PHASES,
    MAX_DURATION_NS,
    MAX_TIME_NS,
    MEMORY_NAMES,
    WITH_CONCRETE_INPUTS,
    Args,
    Event,
)
from sp_profiler.trace.tables import NONE

if TYPE_CHECKING:
    from sp_profiler.trace.columns import Columns

PACKAGE = "sp_profiler_native"
VARIABLE = "SP_PROFILE_DECODER"
INTERFACE = 1
"""What the compiled package must offer; a package of another number counts as absent."""

_INTEGERS = (
    "external_id", "old_external_id", "sequence", "fwd_thread", "device", "stream", "correlation",
    "bytes", "address", "total_allocated", "total_reserved", "device_type", "device_id",
)  # fmt: skip
_TEXTS = ("dims", "strides", "types", "concrete")
_KEY_OF = dict(zip(Args.__struct_fields__, Args.__struct_encode_fields__, strict=True))
_EVENT = msgspec.json.Decoder(Event)

_CODES_OF = {
    "words": ("name", "pid", "tid", "flow_kind", "flow_pid", "flow_tid", "memory_tid"),
    "categories": ("category",),
    "texts": ("dims", "strides", "types", "concrete"),
    "collectives": ("collective",),
}
_INTERNED = {column: kind for kind, columns in _CODES_OF.items() for column in columns}


def decoder_in_use() -> tuple[str, str]:
    """`native` or `python`, and why.

    Raises UsageError where `SP_PROFILE_DECODER` asks for what is not there, or is neither of the two.
    """
    asked = os.environ.get(VARIABLE, "")
    if asked not in ("", "python", "native"):
        raise UsageError(f"{VARIABLE}={asked}: the decoders are python and native")
    if asked == "python":
        return "python", f"{VARIABLE}=python"
    missing = why_not_native()
    if missing is None:
        return "native", f"{PACKAGE} is installed"
    if asked == "native":
        raise UsageError(f"{VARIABLE}=native, but {missing}")
    return "python", missing


def why_not_native() -> str | None:
    """Why the compiled decoder cannot be used here; None where it can."""
    if importlib.util.find_spec(PACKAGE) is None:
        return "the compiled decoder (sp-profiler-native) is not installed"
    try:
        package: Any = importlib.import_module(PACKAGE)
    except ImportError as error:
        return f"the compiled decoder cannot be loaded: {' '.join(str(error).split())}"
    interface = getattr(package, "INTERFACE", None)  # None: a folder that an uninstalled package left
    if interface != INTERFACE:
        return f"the compiled decoder is of another version ({interface}, not {INTERFACE})"
    try:
        package.Scanner(**rules())
    except (TypeError, ValueError):
        return "the compiled decoder was built from other sources: install it again"
    return None


def rules() -> dict[str, Any]:
    """What the scanner is told of events, by the names of its arguments: keys of `args`, words, bounds."""
    return {
        "integers": [_KEY_OF[name] for name in _INTEGERS],
        "texts": [_KEY_OF[name] for name in _TEXTS],
        "collectives": [_KEY_OF[name] for name in COLLECTIVE_FIELDS],
        "memory_names": list(MEMORY_NAMES),
        "concrete_names": list(WITH_CONCRETE_INPUTS),
        "ignored_phases": IGNORED_PHASES,
        "most_time_ns": MAX_TIME_NS,
        "most_duration_ns": MAX_DURATION_NS,
    }


def scanned_chunks(columns: Columns) -> ScannedChunks | None:
    """What scans chunks into these columns; None where the Python decoder reads all."""
    return ScannedChunks(columns) if decoder_in_use()[0] == "native" else None


class ScannedChunks:
    """Puts the plain events at the beginning of a chunk into the columns of one file."""

    def __init__(self, columns: Columns) -> None:
        package: Any = importlib.import_module(PACKAGE)
        self._columns = columns
        self._scanner = package.Scanner(**rules())
        # Of each number that the scanner gives a text, its code; number 0 is "none".
        self._codes = {kind: np.array([NONE], np.int32) for kind in _CODES_OF}
        self._codes["categories"] = np.array([columns.category_code(None)], np.int32)

    def take(self, data: bytes, start: int, end: int) -> int:
        """Read plain events from data[start:end]; answers the end of the last one, `start` without any.

        Raises InputError as the columns do, where a limit is reached.
        """
        found = self._scanner.scan(data, start, end)
        columns = self._columns
        if not found["consumed"]:
            return start
        columns.count_events(found["kept"])
        self._learn("words", found["words"], lambda raw: columns.word_code(msgspec.json.decode(raw)))
        self._learn(
            "categories", found["categories"], lambda raw: columns.category_code(msgspec.json.decode(raw))
        )
        self._learn("texts", found["texts"], columns.json_code)
        self._learn(
            "collectives",
            found["collectives"],
            lambda span: columns.collective_code(_EVENT.decode(data[span[0] : span[1]]).args),
        )
        for name in ("complete", "flows", "memory"):
            part = found[name]
            if len(next(iter(part.values()))):
                columns.append(**{column: self._decoded(column, part[column]) for column in part})
        return start + found["consumed"]

    def _learn(self, kind: str, new: Sequence[Any], code: Callable[[Any], int]) -> None:
        if new:
            codes = np.fromiter(map(code, new), np.int32, len(new))
            self._codes[kind] = np.append(self._codes[kind], codes)

    def _decoded(self, column: str, values: NDArray[Any]) -> NDArray[Any]:
        kind = _INTERNED.get(column)
        if kind is None:
            return values.view(np.bool_) if values.dtype == np.uint8 else values
        codes = self._codes[kind][values]
        return codes.astype(np.int8) if kind == "categories" else codes
