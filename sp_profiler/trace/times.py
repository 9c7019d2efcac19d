"""The text of a time in µs becomes int64 nanoseconds without passing through a float.

float64 has a step of 0.25 µs at epoch µs; the text has up to three decimals and more. So times stay
text until here: up to three decimals are exact, more are rounded half to even.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from sp_profiler.trace.tables import Int64

OUT_OF_RANGE = 1 << 64
"""What `text_to_ns` answers for anything at or beyond 10^20 ns; larger than any time."""

_NUMBER = re.compile(rb"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?")
_QUOTED_NUMBER = re.compile(rb'"\s*([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)\s*"')
_NON_FINITE = re.compile(rb'"?\s*[+-]?(?:inf(?:inity)?|nan)(?:\(\w*\))?\s*"?', re.IGNORECASE)
_DECIMALS = 3  # of a nanosecond in µs
_SAFE_DIGITS = 19  # any number of so many digits fits into uint64
_INT64_MAX = (1 << 63) - 1
_KEPT_DIGITS = 64  # digits beyond these only matter as "not zero" when rounding


@dataclass(frozen=True)
class Irregular:
    """One time that is not a plain number. `kind`: missing | quoted | non-finite | not-a-number."""

    index: int
    kind: str


def text_to_ns(text: bytes) -> int | None:
    """Exact nanoseconds of a JSON number in µs, ties to even; None when the text is no JSON number."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    sign, whole, fraction, exponent = match.groups(default=b"")
    digits = (whole + fraction).lstrip(b"0")
    if not digits:
        return 0
    # The value is digits * 10^shift nanoseconds. `int` refuses thousands of digits, so a monstrous
    # exponent is cut to one that decides the same.
    power = int(exponent or b"0") if len(exponent) < 12 else (-(10**12) if exponent[:1] == b"-" else 10**12)
    shift = power - len(fraction) + _DECIMALS
    if len(digits) + shift > 20:
        magnitude = OUT_OF_RANGE
    elif len(digits) + shift < 0:
        magnitude = 0  # below 0.1 ns
    else:
        magnitude = _scaled(digits, shift)
    return -magnitude if sign else magnitude


def _scaled(digits: bytes, shift: int) -> int:
    if shift >= 0:
        return int(digits) * 10**shift
    if len(digits) > _KEPT_DIGITS:
        rest = digits[_KEPT_DIGITS:]
        digits = digits[:_KEPT_DIGITS] + (b"1" if rest.strip(b"0") else b"0")
        shift += len(rest) - 1
    quotient, remainder = divmod(int(digits), 10**-shift)
    twice, unit = 2 * remainder, 10**-shift
    return quotient + (twice > unit or (twice == unit and quotient % 2 == 1))


def times_to_ns(texts: Sequence[msgspec.Raw]) -> tuple[Int64, list[Irregular], list[tuple[int, int]]]:
    """Nanoseconds of many times at once.

    Returns the times (0 where there is none), the irregular ones, and those outside int64 as pairs of
    index and exact value. A quoted number counts as irregular but its value is given.
    """
    count = len(texts)
    values = np.zeros(count, dtype=np.int64)
    irregular: list[Irregular] = []
    outside: list[tuple[int, int]] = []
    if count == 0:
        return values, irregular, outside
    plain = _plain_times(b",".join(texts), values)
    for index in np.flatnonzero(~plain).tolist():
        ns, kind = _one_time(bytes(texts[index]))
        if kind is not None:
            irregular.append(Irregular(index, kind))
        if -(1 << 63) <= ns < 1 << 63:
            values[index] = ns
        else:
            outside.append((index, ns))
    return values, irregular, outside


def _plain_times(joined: bytes, values: Int64) -> np.ndarray:
    """Fill in every time that is digits with up to three decimals; returns which ones those are."""
    count = len(values)
    text = np.frombuffer(joined, dtype=np.uint8)
    commas = np.flatnonzero(text == ord(","))
    if len(commas) != count - 1:  # some text holds a comma, so it is no number
        return np.zeros(count, dtype=np.bool_)
    ends = np.append(commas, len(text))
    starts = np.insert(commas + 1, 0, 0)
    dots = np.flatnonzero(text == ord("."))
    dot_rows = np.searchsorted(ends, dots)
    decimals = np.zeros(count, dtype=np.int64)
    decimals[dot_rows] = ends[dot_rows] - dots - 1
    digits = ends - starts
    digits[dot_rows] -= 1
    plain = (decimals <= _DECIMALS) & (digits > 0) & (digits <= _SAFE_DIGITS)
    odd = (text < ord("0")) | (text > ord("9"))
    odd[commas] = False
    odd[dots] = False
    odd[dots[1:][dot_rows[1:] == dot_rows[:-1]]] = True  # a second point in one number
    plain[np.searchsorted(ends, np.flatnonzero(odd))] = False
    if not plain.all():
        rows = np.flatnonzero(plain)
        spans = zip(starts[rows].tolist(), ends[rows].tolist(), strict=True)
        joined = b",".join([joined[start:end] for start, end in spans])
    if plain.any():
        numbers = np.fromstring(joined.replace(b".", b"").decode(), dtype=np.uint64, sep=",")
        scale = 10 ** (_DECIMALS - decimals[plain]).astype(np.uint64)
        fits = numbers <= _INT64_MAX // scale
        plain[plain] = fits
        values[plain] = (numbers[fits] * scale[fits]).astype(np.int64)
    return plain


def _one_time(text: bytes) -> tuple[int, str | None]:
    """Nanoseconds and what is irregular, of a time that is not plain digits."""
    text = text.strip()
    ns = text_to_ns(text)
    if ns is not None:
        return ns, None
    quoted = _QUOTED_NUMBER.fullmatch(text)
    if quoted is not None:
        ns = text_to_ns(quoted[1].lstrip(b"+"))
        if ns is not None:
            return ns, "quoted"
    if _NON_FINITE.fullmatch(text):
        return 0, "non-finite"
    return 0, "missing" if text in (b"", b"null", b'""') else "not-a-number"
