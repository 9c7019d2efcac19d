"""A tensor's memory, with what tells whose it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class NamedStorage:
    """The storage behind a tensor of `shape` and `dtype`, which may be a part of it.

    `operator` is the one that made or saved it, while the forward of `module` ran; None outside of all.
    """

    module: str | None
    layer: int | None
    operator: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int  # of the whole storage

    def to_json(self) -> dict[str, Any]:
        """The fields as run.json has them, without those that only subclasses have."""
        return {
            "module": self.module,
            "layer": self.layer,
            "operator": self.operator,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "bytes": self.bytes,
        }
