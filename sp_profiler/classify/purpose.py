"""The purpose of a collective (DESIGN: Purpose of a collective), with the rule that decided.

Our annotation says it; without one it is `unknown`, which never counts as dgrad.
"""

from __future__ import annotations

from sp_profiler.record.annotate import PURPOSES, Range

UNKNOWN_PURPOSE = "unknown"


def decide_purpose(annotation: Range | None) -> tuple[str, str]:
    """Purpose and deciding rule (`annotation`, `none`)."""
    stated = annotation.fields.get("purpose") if annotation is not None else None
    if stated in PURPOSES and stated != UNKNOWN_PURPOSE:
        return stated, "annotation"
    return UNKNOWN_PURPOSE, "none"
