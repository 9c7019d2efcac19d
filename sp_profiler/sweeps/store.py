"""The folder of a sweep: one folder a cell, whose cell.json is written last; what has one is done.

    sweep.json  sweep.html  sweep.md  sweep.csv  sweep.parquet
    cells/tp-sync-r2-l4-s256-b2/cell.json  run.json  rank-00000.pt.trace.json.gz ...  report.json  report.html
    cells/<of a cell that failed>/cell.json  logs/

A coordinator that is killed so loses the cell in hand and nothing else.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from sp_profiler.errors import InputError, UsageError
from sp_profiler.files import write_atomically
from sp_profiler.report.json import read_document, to_plain
from sp_profiler.sweeps.model import CELL_SCHEMA, SCHEMA, SCHEMA_VERSION, Cell, CellFile, Settings, Sweep

CELLS = "cells"
CELL_FILE = "cell.json"
SWEEP_FILE = "sweep.json"
_LOCK = ".lock"

Kind = TypeVar("Kind", CellFile, Sweep)


class SweepFolder:
    """The folder; `root` is made when it is opened."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def opened(self) -> Iterator[None]:
        """For one coordinator at a time. Raises UsageError: it is another's, holds what is no sweep, or
        cannot be made."""
        if self.root.is_dir() and not (self.root / CELLS).is_dir() and any(self.root.iterdir()):
            raise UsageError(f"{self.root} is not empty and holds no sweep: choose another folder")
        try:
            (self.root / CELLS).mkdir(parents=True, exist_ok=True)
            lock = os.open(self.root / _LOCK, os.O_WRONLY | os.O_CREAT, 0o644)
        except OSError as error:
            raise UsageError(f"cannot write to {self.root}: {error.strerror}") from None
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"another sweep is at work in {self.root}") from None
            yield
        finally:
            os.close(lock)

    def cell_folder(self, name: str) -> Path:
        return self.root / CELLS / name

    def fresh_folder(self, name: str) -> Path:
        """The folder of a cell about to be run, empty."""
        folder = self.cell_folder(name)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def discard(self, name: str) -> None:
        """Of a cell that was interrupted: half of a run would look like one."""
        shutil.rmtree(self.cell_folder(name), ignore_errors=True)

    def keep(self, cell: Cell, settings: Settings) -> Cell:
        """Write the cell down as done; returns it with its log's place in this folder."""
        log = None if cell.log is None else f"{CELLS}/{cell.name}/{cell.log}"
        cell = replace(cell, log=log, relative=None)
        plain = to_plain(CellFile(settings, cell))
        write_atomically(self.cell_folder(cell.name) / CELL_FILE, json.dumps(plain, indent=1) + "\n")
        return cell

    def found(self) -> dict[str, CellFile]:
        """The cells that are done, by name. Raises InputError for a file that is none of ours."""
        files = sorted((self.root / CELLS).glob(f"*/{CELL_FILE}"))
        cells = [_read(path, CellFile, CELL_SCHEMA) for path in files]
        return {one.cell.name: one for one in cells}

    def clear_unfinished(self) -> None:
        """What a coordinator that was killed left of the cell it had in hand."""
        for folder in (self.root / CELLS).iterdir():
            if folder.is_dir() and not (folder / CELL_FILE).exists():
                shutil.rmtree(folder, ignore_errors=True)


def read_sweep(root: Path) -> Sweep:
    """What sweep.json of this folder says. Raises InputError when there is none or it is none of ours."""
    if not (root / SWEEP_FILE).is_file():
        raise InputError(f"{root} holds no {SWEEP_FILE}")
    return _read(root / SWEEP_FILE, Sweep, SCHEMA)


def _read(path: Path, kind: type[Kind], schema: str) -> Kind:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    what = "sweep" if kind is Sweep else "cell of a sweep"
    return read_document(text, str(path), kind, schema, SCHEMA_VERSION, what)
