"""`sp_profiler.sweep`: what `sp-profile sweep` does, from Python."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sp_profiler.sweeps.model import Sweep

Several = str | int | Sequence[str] | Sequence[int] | None


def sweep(
    out: str | os.PathLike[str],
    *,
    modes: str | Sequence[str] = ("tp", "sp"),
    causal: bool = True,
    attention_only: bool = False,
    batch_policy: str = "fixed-per-rank",
    repeats: int = 5,
    warmup: int = 2,
    steps_per_repeat: int = 3,
    profiled_steps: int = 2,
    seed: int = 0,
    backend: str = "auto",
    timeout_s: float = 300.0,
    baseline: str | None = None,
    hardware: str | None = None,
    efficiency: float | None = None,
    retry_failed: bool = False,
    **options: Several,
) -> Sweep:
    """Measure every combination of schemes and sizes in fresh processes; needs torch.

    `options` are a workload's (`comm`, `save`, `layers`, `seq_len`, `ranks`, ...), each one value or several.
    What the folder `out` holds of this sweep already is not run again, so that a sweep can be resumed and
    extended. sweep.json, sweep.html and tables are written there; a cell that fails is a cell with a status,
    not an error. Times are int ns, sizes bytes. Raises UsageError for what cannot be run or does not belong
    into the folder, InputError where the folder holds files that are none of ours.
    """
    from sp_profiler.sweeps.request import SweepRequest
    from sp_profiler.sweeps.run import run_sweep
    from sp_profiler.sweeps.save import save

    names = {"tp": "model_ranks"}  # as the command line has it
    varied: dict[str, Several] = {
        "mode": modes,
        **{names.get(key, key): value for key, value in options.items()},
    }
    request = SweepRequest(
        varied={name: _values(value) for name, value in varied.items() if value is not None},
        causal=causal,
        attention_only=attention_only,
        batch_policy=batch_policy,
        repeats=repeats,
        warmup=warmup,
        steps_per_repeat=steps_per_repeat,
        profiled_steps=profiled_steps,
        seed=seed,
        backend=backend,
        timeout_s=timeout_s,
        baseline=baseline,
        hardware=hardware,
        efficiency=efficiency,
        retry_failed=retry_failed,
    )
    made = run_sweep(request, Path(out), command=["sp_profiler.sweep"])
    save(made, Path(out))
    return made


def _values(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)
