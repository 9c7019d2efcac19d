"""Numbers and names for people: units chosen for reading, hostile text made visible.

A figure that is not exactly zero is never shown as 0, one below the whole never as 100 %.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

UNKNOWN = "unknown"

_INVISIBLE = frozenset("\u200b\u200c\u200d\u2060\ufeff\u061c\u115f\u1160\u3164\uffa0")


def _digits(value: float) -> str:
    """About three significant digits, without exponents."""
    magnitude = abs(value)
    if magnitude < 10:
        return f"{value:.2f}"
    if magnitude < 1000:
        return f"{value:.1f}"
    return f"{value:,.0f}".replace(",", "\u202f")


def duration(ns: float | None) -> str:
    """`12_100_000` -> `12.1 ms`. None -> `unknown`."""
    if ns is None:
        return UNKNOWN
    magnitude = abs(ns)
    if magnitude == 0:
        return "0 ms"
    if magnitude < 1_000:
        return f"{ns:.0f} ns" if magnitude >= 1 else "<1 ns"
    if magnitude < 1_000_000:
        return f"{_digits(ns / 1e3)} µs"
    if magnitude < 10_000_000_000:
        return f"{_digits(ns / 1e6)} ms"
    return f"{_digits(ns / 1e9)} s"


def milliseconds(ns: float | None) -> str:
    """The number alone, for a column whose header says ms: `0`, `<0.01`, `12.1`."""
    if ns is None:
        return "–"
    if ns == 0:
        return "0"
    value = ns / 1e6
    return _digits(value) if abs(value) >= 0.01 else "<0.01"


def percent(ratio: float | None) -> str:
    """`0.43` -> `43 %`. Only exact zeros and wholes are shown as `0 %` and `100 %`."""
    if ratio is None:
        return UNKNOWN
    value = ratio * 100
    if value in (0, 100):
        return f"{value:.0f} %"
    if 0 < value < 0.1:
        return "<0.1 %"
    if 99 <= value < 100:
        return f"{min(value, 99.9):.1f} %"
    return f"{value:.0f} %" if value >= 10 else f"{value:.1f} %"


def size(count: float | None) -> str:
    """Bytes with binary prefixes: `6291456` -> `6.00 MiB`."""
    return _with_prefix(count, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def sent(count: float | None) -> str:
    """Bytes that travel, with decimal prefixes as rates of links have them: `134217728` -> `134.2 MB`."""
    return _with_prefix(count, 1000, ("B", "kB", "MB", "GB", "TB"))


def _with_prefix(count: float | None, base: int, units: tuple[str, ...]) -> str:
    """In the first of the units, each `base` times the one before, in which fewer than `base` are left."""
    if count is None:
        return UNKNOWN
    value = float(count)
    for unit in units[:-1]:
        if abs(value) < base:
            return f"{value:.0f} {unit}" if unit == units[0] else f"{_digits(value)} {unit}"
        value /= base
    return f"{_digits(value)} {units[-1]}"


def cell_text(kind: str, value: object) -> str:
    """A cell of a table of the report, without its unit (the header has it)."""
    if value is None:
        return "–"
    if kind == "text" or not isinstance(value, (int, float)):
        return str(value)
    if kind == "ms":
        return milliseconds(value)
    if kind == "us":
        return milliseconds(value * 1000)
    if kind == "ratio":
        return percent(value).removesuffix(" %")
    if kind == "bytes":
        return size(value)
    if kind == "mib":
        return f"{value / 2**20:.4f}"
    if kind == "int":
        return str(value)
    return "<0.01" if 0 < abs(value) < 0.01 else _digits(value)


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """`1 step`, `3 steps`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}".replace(",", "\u202f")


def listed(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def rank_list(ranks: Sequence[int | None]) -> str:
    """`0-3, 6`: runs of consecutive ranks are shortened; a rank nobody knows is `unknown`."""
    known = sorted({rank for rank in ranks if rank is not None})
    parts: list[str] = []
    for rank in known:
        if parts and (begin := _begin(parts[-1], rank - 1)) is not None:
            parts[-1] = f"{begin}-{rank}"
        else:
            parts.append(str(rank))
    return ", ".join(parts + ([UNKNOWN] if None in ranks else []))


_LONG_KEY = 200  # characters of a group's key that is shortened wherever it is shown
_RANKS = re.compile(r"\[(\d{1,9}(?:,\d{1,9}){2,})\]\Z")


def short_group(key: str) -> str:
    """A group's key with runs of its ranks shortened, for showing: `tp[0,1,2,3]` -> `tp[0-3]`.

    A long one also where they are steps apart: `dp[0-56:8]`.
    """
    found = _RANKS.search(key)
    if found is None:
        return key
    ranks = [int(rank) for rank in found[1].split(",")]
    if len(key) > _LONG_KEY:
        return f"{key[: found.start()]}[{stretches(ranks)}]"
    if ranks != sorted(set(ranks)):  # an order or a repetition is no range
        return key
    return f"{key[: found.start()]}[{rank_list(ranks).replace(' ', '')}]"


def stretches(ranks: Sequence[int]) -> str:
    """`0-7,16-23`, `0-1016:8`: stretches of at least three ranks that follow each other at equal steps.

    In their order, so that it stands for these ranks and no others.
    """
    parts: list[str] = []
    at = 0
    while at < len(ranks):
        end = at + 1
        step = ranks[end] - ranks[at] if end < len(ranks) else 0
        while end < len(ranks) and ranks[end] - ranks[end - 1] == step:
            end += 1
        if end - at >= 3 and step > 0:
            parts.append(f"{ranks[at]}-{ranks[end - 1]}" + (f":{step}" if step > 1 else ""))
            at = end
        else:
            parts.append(str(ranks[at]))
            at += 1
    return ",".join(parts)


def shown_group(key: str) -> str:
    """A group's key where text is not cut: shortened only when it is long."""
    return short_group(key) if len(key) > _LONG_KEY else key


def _begin(part: str, end: int) -> str | None:
    """Where the run `part` begins when it ends at `end`."""
    begin, _, last = part.partition("-")
    return begin if (last or begin) == str(end) else None


def by_number(text: str) -> list[tuple[int, str]]:
    """A sort key that puts `stream 7` before `stream 20`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]


def visible(text: object) -> str:
    """Text from a trace with everything that acts on a screen written out: `\\x1b`, `\\u202e`, `\\n`.

    Control characters, bidirectional overrides, zero-width characters and lone surrogates would
    otherwise colour a terminal, break a row or reorder the words around them.
    """
    string = str(text)
    if string.isascii() and string.isprintable():
        return string
    return "".join(_visible(char) for char in string)


def _visible(char: str) -> str:
    acts = unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
    if not acts and char not in _INVISIBLE:
        return char
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char)
    code = ord(char)
    return named or (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    )
