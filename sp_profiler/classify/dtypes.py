"""Element types as traces spell them: one name, torch's own, and its size."""

from __future__ import annotations

import re
from functools import lru_cache

_SPELLINGS: dict[str, tuple[str, ...]] = {
    "float64": ("double", "float64", "fp64", "f64"),
    "float32": ("float", "float32", "fp32", "f32"),
    "float16": ("half", "float16", "fp16", "f16"),
    "bfloat16": ("bfloat16", "bf16"),
    "int64": ("long", "longint", "int64", "i64", "longlong", "int64_t"),
    "int32": ("int", "int32", "i32", "int32_t"),
    "int16": ("short", "shortint", "int16", "i16", "int16_t"),
    "int8": ("char", "signedchar", "int8", "i8", "int8_t"),
    "uint8": ("byte", "unsignedchar", "uint8", "u8", "uint8_t"),
    "uint16": ("uint16", "u16", "unsignedshort", "uint16_t"),
    "uint32": ("uint32", "u32", "unsignedint", "uint32_t"),
    "uint64": ("uint64", "u64", "unsignedlong", "unsignedlongint", "uint64_t"),
    "bool": ("bool",),
    "complex32": ("complexhalf", "complex32"),
    "complex64": ("complexfloat", "complex64"),
    "complex128": ("complexdouble", "complex128"),
    "float8_e4m3fn": ("float8e4m3fn", "float8e4m3", "float8e4nv"),
    "float8_e5m2": ("float8e5m2", "float8e5"),
    "float8_e4m3fnuz": ("float8e4m3fnuz", "float8e4b8"),
    "float8_e5m2fnuz": ("float8e5m2fnuz", "float8e5b16"),
    "float8_e8m0fnu": ("float8e8m0fnu", "float8e8m0"),
    "float8": ("float8",),  # which one, the trace does not tell
    "float4_e2m1fn_x2": ("float4_e2m1fn_x2",),
    "qint8": ("qint8",),
    "quint8": ("quint8",),
    "bits8": ("bits8",),
    "bits16": ("bits16",),
    "qint32": ("qint32",),
}
_NAMES = {spelling: name for name, spellings in _SPELLINGS.items() for spelling in spellings}
_SIZES = {
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
}
_VENDOR = re.compile(r"^(?:__)?(?:nv|hip|amd)_(?=bf|fp|float)")  # __nv_bfloat16, __hip_fp8_e4m3_fnuz
_EIGHT_BITS = re.compile(r"^(?:float8|fp8|f8)_?(e\d\w*)?$")
_ONE_BYTE = ("bool", "qint8", "quint8", "float4_e2m1fn_x2")


@lru_cache(maxsize=4096)
def dtype_name(spelled: str | None) -> str | None:
    """torch's name of a type (`bfloat16`) for `BFloat16`, `c10::BFloat16`, `torch.bfloat16`, `long int`...

    A spelling nobody knows is returned as written, so that a reader sees it; None stays None.
    """
    if spelled is None or not spelled.strip():
        return None
    text = re.sub(r"^(?:c10::|at::|torch\.|std::)+", "", spelled.strip())
    complex_of = re.fullmatch(r"complex<(?:c10::)?(\w+)>", text)
    if complex_of:
        text = f"complex{complex_of.group(1)}"
    text = _VENDOR.sub("", text.replace(" ", "").lower())
    if eight := _EIGHT_BITS.match(text):
        text = "float8" + (eight[1] or "").replace("_", "")
    return _NAMES.get(text, spelled)


@lru_cache(maxsize=4096)
def dtype_bytes(name: str | None) -> int | None:
    """Bytes of one element of a type as `dtype_name` returns it; None for one nobody knows."""
    if name is None or name not in _SPELLINGS:
        return None
    if name in _SIZES:
        return _SIZES[name]
    if name in _ONE_BYTE or name.startswith("float8"):
        return 1
    return int(re.sub(r"\D", "", name)) // 8
