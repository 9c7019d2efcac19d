"""Runs the cells of a sweep one after the other; what is done already is taken from the folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from sp_profiler.errors import UsageError
from sp_profiler.files import write_atomically
from sp_profiler.record.launch import OnProgress
from sp_profiler.record.processes import interruptible
from sp_profiler.record.workload import Backend, choose_backend, require_torch
from sp_profiler.sweeps.assemble import assemble, baseline_scheme
from sp_profiler.sweeps.cell import CellRun, run_cell
from sp_profiler.sweeps.grid import Grid, cells_of, order_of
from sp_profiler.sweeps.model import Cell, CellFile, Settings, Sweep
from sp_profiler.sweeps.request import SweepRequest, flag
from sp_profiler.sweeps.store import SWEEP_FILE, SweepFolder, read_sweep
from sp_profiler.theory.machine import Machine


class Watcher:
    """Is told how a sweep goes; this one says nothing."""

    def say(self, sentence: str) -> None:
        """A remark for the person who waits."""

    def running(self, cell: Cell, place: int, count: int, steps: int) -> AbstractContextManager[OnProgress]:
        """Around each cell that is run, the `place`-th of `count`; the value is told of its progress."""
        return nullcontext(lambda states: None)

    def done(self, cell: Cell, place: int, count: int) -> None:
        """A cell was run."""


def run_sweep(
    request: SweepRequest, root: Path, *, command: Sequence[str] = (), watcher: Watcher | None = None
) -> Sweep:
    """Run what is asked for and not in the folder yet; sweep.json there is as new as the last cell.

    Raises UsageError for what cannot be run or does not belong into this folder, and lets KeyboardInterrupt
    through, after sweep.json holds what was found. Whatever ends a cell is the cell's status.
    """
    require_torch()
    watcher = watcher or Watcher()
    grid = planned(request)
    backend = choose_backend(request.backend, max(config.ranks for config in grid.configs.values()))
    settings = settings_of(request, backend)
    folder = SweepFolder(root)
    with folder.opened(), interruptible():
        found = folder.found()
        _refuse_other(root, settings, found)
        folder.clear_unfinished()
        work = _Work(request, grid, settings, backend, folder, list(command))
        if backend.note:
            watcher.say(backend.note)
        return work.run(found, watcher)


def planned(request: SweepRequest) -> Grid:
    """The cells that the request makes, none of them run. Raises UsageError."""
    grid = cells_of(request, machine_of(request))
    baseline_scheme(grid.cells, request.baseline)
    return grid


def machine_of(request: SweepRequest) -> Machine | None:
    """What theory takes times of. Raises UsageError for hardware that nobody knows."""
    from sp_profiler.planning.machines import MachineRequest, machine_for

    if request.hardware is None and request.efficiency is not None:
        raise UsageError("--efficiency says what share of a peak GEMMs reach: name the --hardware")
    dtype = str(request.values("dtype")[0])
    try:
        return machine_for(MachineRequest(request.hardware, efficiency=request.efficiency), dtype)
    except UsageError as error:  # what it says of rates is for plans
        raise UsageError(str(error).partition("; or give its")[0]) from None


def settings_of(request: SweepRequest, backend: Backend) -> Settings:
    """How the cells of this request are measured."""
    return Settings(
        repeats=request.repeats,
        steps_per_repeat=request.steps_per_repeat,
        profiled_steps=request.profiled_steps,
        warmup=request.warmup,
        batch_policy="fixed-global" if request.batch_policy == "fixed-global" else "fixed-per-rank",
        backend=backend.name,
        seed=request.seed,
    )


def _refuse_other(root: Path, settings: Settings, found: Mapping[str, CellFile]) -> None:
    """UsageError where cells were measured otherwise: one table must not hold both."""
    for one in found.values():
        for field in dataclasses.fields(Settings):
            before, now = getattr(one.settings, field.name), getattr(settings, field.name)
            if before != now:
                raise UsageError(
                    f"{root} holds cells measured with {flag(field.name)} {before}, not {now}: choose "
                    "another folder"
                )


def reassembled(root: Path, baseline: str | None) -> Sweep:
    """The sweep in a folder, from sweep.json and every cell that is done by now. Raises InputError where the
    folder holds none, UsageError for a baseline that is none of its schemes."""
    before = read_sweep(root)
    done = {name: one.cell for name, one in SweepFolder(root).found().items()}
    cells = {**{cell.name: cell for cell in before.cells}, **done}
    return assemble(
        sorted(cells.values(), key=order_of),
        before.settings,
        command=before.command,
        skipped=before.skipped,
        baseline=baseline or before.baseline,
        hardware=before.hardware,
    )


@dataclass(frozen=True)
class _Work:
    request: SweepRequest
    grid: Grid
    settings: Settings
    backend: Backend
    folder: SweepFolder
    command: list[str]

    def run(self, found: Mapping[str, CellFile], watcher: Watcher) -> Sweep:
        asked = {cell.name: cell for cell in self.grid.cells}
        done = {name: self._known(one.cell, asked.get(name)) for name, one in found.items()}
        if self.request.retry_failed:
            done = {name: c for name, c in done.items() if c.status == "ok" or name not in asked}
        waiting = [cell for cell in self.grid.cells if cell.name not in done]
        sweep = self._write(done)
        for place, cell in enumerate(waiting, 1):
            done[cell.name] = self._run(cell, place, len(waiting), watcher)
            sweep = self._write(done)
            watcher.done(done[cell.name], place, len(waiting))
        return sweep

    def _known(self, cell: Cell, asked: Cell | None) -> Cell:
        """What was measured, with what this request makes of it: theory may have times now."""
        return cell if asked is None else dataclasses.replace(cell, theory=asked.theory, sizes=asked.sizes)

    def _run(self, cell: Cell, place: int, count: int, watcher: Watcher) -> Cell:
        folder = self.folder.fresh_folder(cell.name)
        run = CellRun(
            config=self.grid.configs[cell.name],
            settings=self.settings,
            backend=self.backend,
            folder=folder,
            timeout_s=self.request.timeout_s,
            command=self.command,
        )
        steps = self.settings.warmup + self.settings.repeats * self.settings.steps_per_repeat
        try:
            with watcher.running(cell, place, count, steps) as on_progress:
                result = run_cell(cell, run, on_progress)
            return self.folder.keep(result, self.settings)
        except BaseException:  # Ctrl-C, a full disk: this cell is not done
            self.folder.discard(cell.name)
            raise

    def _write(self, done: Mapping[str, Cell]) -> Sweep:
        asked = {cell.name: cell for cell in self.grid.cells}
        cells = sorted(({**asked, **done}).values(), key=order_of)
        sweep = assemble(
            cells,
            self.settings,
            command=self.command,
            skipped=self.grid.skipped,
            baseline=self.request.baseline or self.grid.cells[0].scheme,
            hardware=self.request.hardware,
        )
        write_atomically(self.folder.root / SWEEP_FILE, sweep.to_json())
        return sweep
