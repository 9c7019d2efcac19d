"""How many cores this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Logical cores this process may use (affinity counts, container quotas do not)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
