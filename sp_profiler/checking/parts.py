"""Parts of the communication that a budget may be narrowed to, and what a figure is read of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Scope = Literal["total", "rank", "step"]
SCOPES: tuple[Scope, ...] = ("total", "rank", "step")

PART_MAPS = {
    "group": "exposed_by_group_ns",
    "op": "exposed_by_op_ns",
    "purpose": "exposed_by_purpose_ns",
    "phase": "exposed_by_phase_ns",
    "module": "exposed_by_module_ns",
    "layer": "exposed_by_layer_ns",
    "cause": "exposed_by_cause_ns",
}
"""What exposed time is divided by -> the field that does it."""


@dataclass(frozen=True)
class Within:
    """A part of the communication: `purpose` `dgrad`, `group` `tp[0,1]`, or all groups of a description `tp`.

    `*` in the name stands for any text.
    """

    kind: str
    name: str

    def matches(self, key: str) -> bool:
        if key == self.name:
            return True
        if self.kind == "group" and key.rpartition("[")[0] == self.name:
            return True
        pieces = self.name.split("*")
        if len(pieces) == 1 or not (key.startswith(pieces[0]) and key.endswith(pieces[-1])):
            return False
        at, end = len(pieces[0]), len(key) - len(pieces[-1])
        for piece in pieces[1:-1]:
            found = key.find(piece, at, end)
            if found < 0:
                return False
            at = found + len(piece)
        return at <= end

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"
