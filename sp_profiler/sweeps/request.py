"""What a sweep is asked for: lists of options, how often to measure, and which batch stays the same."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from sp_profiler.errors import UsageError

BATCH_POLICIES = ("fixed-per-rank", "fixed-global")
MOST_COMBINATIONS = 4096

VARIED = (
    "mode", "save", "comm", "recompute", "projections", "norm", "layout", "ulysses", "inside", "model_ranks",
    "dtype", "hidden", "heads", "kv_heads", "ffn", "vocab", "ranks", "micro_batch", "num_microbatches",
    "seq_len", "layers",
)  # fmt: skip
"""Options of a workload of which a sweep takes several values, in the order of the table."""

DEFAULTS: dict[str, tuple[Any, ...]] = {
    "mode": ("tp", "sp"),
    "comm": ("sync", "async"),
    "save": ("full", "shard"),
    "layers": (2, 4),
}
"""Of options that a sweep is about; the others have the workload's."""


@dataclass(frozen=True)
class SweepRequest:
    """`varied`: option of the workload -> the values asked for; what is not named has a default.

    Raises UsageError for settings that cannot be meant. Whether the combinations can be built is for
    `grid.cells_of` to say.
    """

    varied: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    causal: bool = True
    attention_only: bool = False
    batch_policy: str = "fixed-per-rank"
    repeats: int = 5
    warmup: int = 2
    steps_per_repeat: int = 3
    profiled_steps: int = 2
    seed: int = 0
    backend: str = "auto"
    timeout_s: float = 300.0
    baseline: str | None = None
    hardware: str | None = None
    efficiency: float | None = None
    retry_failed: bool = False

    def __post_init__(self) -> None:
        unknown = [name for name in self.varied if name not in VARIED]
        if unknown:
            raise UsageError(f"'{unknown[0]}' is no option of a sweep, only {', '.join(VARIED)} are")
        for name, values in self.varied.items():
            if not values:
                raise UsageError(f"{flag(name)} names no value")
        if self.batch_policy not in BATCH_POLICIES:
            raise UsageError(
                f"--batch-policy is '{self.batch_policy}', expected one of {', '.join(BATCH_POLICIES)}"
            )
        least = {"repeats": 1, "steps_per_repeat": 1, "profiled_steps": 1, "warmup": 0}
        for name, smallest in least.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < smallest:
                raise UsageError(f"{flag(name)} is {value}, expected a whole number of at least {smallest}")
        if not self.timeout_s > 0:
            raise UsageError(f"--timeout {self.timeout_s:g} must be above 0")
        count = math.prod(len(self.values(name)) for name in VARIED)
        if count > MOST_COMBINATIONS:
            raise UsageError(f"{count} combinations are more than the {MOST_COMBINATIONS} of one sweep")

    def values(self, name: str) -> tuple[Any, ...]:
        """The values of an option, each once; of one that is not named, its default."""
        given = self.varied.get(name, DEFAULTS.get(name))
        return (_default(name),) if given is None else tuple(dict.fromkeys(given))


def _default(name: str) -> Any:
    from workloads.config import WorkloadConfig

    (found,) = [one for one in dataclasses.fields(WorkloadConfig) if one.name == name]
    return found.default


def flag(name: str) -> str:
    """The option that sets it: `--modes`, `--seq-len`, `--tp`."""
    named = {
        "mode": "--modes",
        "model_ranks": "--tp",
        "repeats": "--repeat",
        "steps_per_repeat": "--steps",
        "profiled_steps": "--active-steps",
    }
    return named.get(name) or "--" + name.replace("_", "-")
