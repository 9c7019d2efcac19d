"""Profile some steps of any training script: `with sp_profiler.capture() as prof: ... prof.step()`.

A thin layer over `torch.profiler.profile` that decides the schedule, writes one trace a rank
(`rank-00000.pt.trace.json.gz`) into a folder all ranks agree on, and adds what a trace does not say
to the run.json beside it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sp_profiler.errors import UsageError
from sp_profiler.record import progress, runfile
from sp_profiler.record.environment import INSTALL_TORCH, rank_facts
from sp_profiler.record.export import export_trace, step_is_empty
from sp_profiler.record.location import choose_folder

if TYPE_CHECKING:
    from torch.profiler import profile

DEFAULT_WAIT = 0
DEFAULT_WARMUP = 1
DEFAULT_ACTIVE = 3

_open_captures: list[Capture] = []
"""At most one: Kineto has one session a process."""


def capture(
    out: str | os.PathLike[str] | None = None,
    *,
    warmup: int | None = None,
    active: int | None = None,
    wait: int | None = None,
    shapes: bool = True,
    memory: bool = True,
    stack: bool = False,
) -> Capture:
    """A context manager that profiles `active` steps after `wait + warmup` steps. Call `.step()` after each.

    The profiler is off for `wait` steps, on but not recording for `warmup`, and records `active` steps,
    each as one range `ProfilerStep#k`; further steps cost nothing. Numbers that are not given come
    from SP_PROFILE_WAIT, SP_PROFILE_WARMUP and SP_PROFILE_ACTIVE (`sp-profile run` sets them), else they
    are 0, 1 and 3. `shapes` records operator shapes (needed to tell GEMM roles), `memory` every
    allocation, `stack` Python stacks (slow, large).

    Traces go to SP_PROFILE_OUT when `sp-profile run` set it, else to `out`, else to a new folder under
    ./sp-profile-runs. CUDA kernels are recorded where torch has a GPU. The trace is written as soon as
    the last step is complete. An exception inside the block goes on; the steps before it are written.

    Raises UsageError: torch is missing, a number is out of range, the folder already holds a trace of
    this rank, or another capture is open in this process.
    """
    return Capture(
        out,
        wait=_number("wait", wait, "SP_PROFILE_WAIT", DEFAULT_WAIT, 0),
        warmup=_number("warmup", warmup, "SP_PROFILE_WARMUP", DEFAULT_WARMUP, 0),
        active=_number("active", active, "SP_PROFILE_ACTIVE", DEFAULT_ACTIVE, 1),
        shapes=shapes,
        memory=memory,
        stack=stack,
    )


def _number(name: str, given: int | None, variable: str, default: int, least: int) -> int:
    text = os.environ.get(variable, "")
    if given is None and text:
        if not text.isdigit():
            raise UsageError(f"{variable} is '{text}', which is not a number of steps")
        name, given = variable, int(text)
    value = default if given is None else given
    if value < least:
        raise UsageError(f"capture: {name} is {value}, it must be at least {least}")
    return value


class Capture:
    """An open or finished recording; made by `capture`.

    `path` is the trace once it is written, None before (and when nothing could be written).
    """

    def __init__(
        self,
        out: str | os.PathLike[str] | None,
        *,
        wait: int,
        warmup: int,
        active: int,
        shapes: bool,
        memory: bool,
        stack: bool,
    ) -> None:
        self._out = out
        self._wait, self._warmup, self._active = wait, warmup, active
        self._shapes, self._memory, self._stack = shapes, memory, stack
        self._steps = 0
        self._complete = False
        self._profile: profile | None = None
        self._folder: Path | None = None
        self.path: Path | None = None

    @property
    def folder(self) -> Path:
        """Where the traces go; known inside and after the block."""
        if self._folder is None:
            raise RuntimeError("the folder of a capture is known once its block is entered")
        return self._folder

    def __enter__(self) -> Capture:
        try:
            import torch
            from torch.profiler import ProfilerActivity, profile, schedule
        except ImportError:
            raise UsageError(f"capture needs torch: {INSTALL_TORCH}") from None
        if _open_captures:
            raise UsageError("capture: another capture is already open in this process")
        self._folder = choose_folder(self._out, _rank())
        cuda = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
        self._profile = profile(
            activities=[ProfilerActivity.CPU, *cuda],
            schedule=schedule(wait=self._wait, warmup=self._warmup, active=self._active, repeat=1),
            on_trace_ready=self._write,
            record_shapes=self._shapes,
            profile_memory=self._memory,
            with_stack=self._stack,
        )
        _open_captures.append(self)
        try:
            self._profile.__enter__()
        except BaseException:
            _open_captures.remove(self)
            raise
        progress.report("steps", steps=0, rank=_rank())
        return self

    def step(self) -> None:
        """Say that a training step is complete."""
        if self._profile is None or self not in _open_captures:
            raise RuntimeError("step() belongs inside the `with capture()` block")
        self._steps += 1
        # The last recorded step ends here: torch waits for the device before it stops recording.
        self._complete = self._complete or self._steps == self._wait + self._warmup + self._active
        self._profile.step()
        progress.report("steps", steps=self._steps, rank=_rank())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._profile is not None
        try:
            self._profile.__exit__(kind, error, trace)
        except Exception as failure:
            if error is None:
                raise
            # The script's own error is the one to see.
            _warn(f"the trace of rank {_rank()} was lost: {failure}")
        finally:
            _open_captures.remove(self)
        if not self._complete and error is None:
            self._say_what_is_missing()

    def _say_what_is_missing(self) -> None:
        recorded = max(self._steps - self._wait - self._warmup, 0)
        planned = self._wait + self._warmup + self._active
        what = f"the trace holds {recorded} of {self._active}" if self.path else "nothing was recorded"
        _warn(
            f"the script called prof.step() {self._steps} times, but {planned} steps are needed "
            f"({self._wait} skipped, {self._warmup} warm-up, {self._active} recorded): {what}; use a smaller "
            "warmup or active, or train longer"
        )

    def _write(self, profile: Any) -> None:
        """Called by torch when recording has stopped. A full disk must not end the training run."""
        rank = _rank()
        progress.report("writing", steps=self._steps, rank=rank)
        recorded = max(self._steps - self._wait - self._warmup, 0)
        last = self._wait + self._warmup + recorded
        # torch opens the range of a step when the one before ends, also when no step follows
        dropped = last if not self._complete and step_is_empty(profile, last) else None
        if dropped is not None and not recorded:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.path = export_trace(profile, self.folder, rank, drop_step=dropped)
            schedule = {"wait": self._wait, "warmup": self._warmup, "active": self._active}
            facts = {**rank_facts(), "schedule": {**schedule, "complete": self._complete}}
            runfile.update(self.folder, lambda run: runfile.add_rank(run, rank, facts))
        except OSError as failure:
            _warn(f"cannot write the trace of rank {rank} to {self.folder}: {failure}")
        progress.report("written", steps=self._steps, rank=rank)


def _rank() -> int:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return progress.rank_from_environment()


def _warn(sentence: str) -> None:
    print(f"sp-profiler: {sentence}", file=sys.stderr, flush=True)
