"""Another value for some fields of a frozen dataclass, many times faster than `dataclasses.replace`.

A trace has thousands of collectives, and each is made anew when its place or its purpose is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")


def changer(cls: type[T], *names: str) -> Callable[..., T]:
    """A function `(one, *values) -> one with these values for the fields `names``.

    The fields of `cls` are all that its instances have, and its constructor does nothing but set them: it is
    not called. Raises ValueError for a name that is no field, and for a class of another kind.
    """
    known = {field.name for field in fields(cls)}  # type: ignore[arg-type]
    if not known.issuperset(names):
        raise ValueError(f"{cls.__name__} has no fields {sorted({*names} - known)}")
    if hasattr(cls, "__post_init__") or hasattr(cls, "__slots__"):
        raise ValueError(f"the constructor of {cls.__name__} does more than to set the instance's fields")

    def changed(one: T, *values: Any) -> T:
        other = object.__new__(cls)
        held = other.__dict__  # a frozen instance refuses its attributes to be set, not its dictionary
        held.update(one.__dict__)
        held.update(zip(names, values, strict=True))
        return other

    return changed
