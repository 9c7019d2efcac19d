"""Bounds on what one file may make us do, so that no input hangs or exhausts memory."""

from __future__ import annotations

from dataclasses import dataclass

MEBI = 1 << 20
GIBI = 1 << 30


@dataclass(frozen=True)
class Limits:
    """What a file may hold at most; reaching a bound is an `InputError` that names it.

    `nesting` is exact where the reader walks a value itself (metadata, damaged events); in intact
    events the JSON decoder's own recursion bound hands the event over to that walk.
    """

    inflated_bytes: int = 64 * GIBI  # text of the file after unpacking: against gzip bombs
    events: int = 100_000_000  # entries of `traceEvents` that are kept
    string_bytes: int = 16 * MEBI  # one string, and one event that cannot be read at once
    distinct_string_bytes: int = 4 * GIBI  # all distinct strings together
    metadata_bytes: int = 256 * MEBI  # one top-level value besides `traceEvents`
    nesting: int = 200  # lists and objects inside each other
