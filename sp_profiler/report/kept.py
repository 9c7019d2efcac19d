"""A report and the lanes of its ranks as files of a folder, to be read back in milliseconds.

For our own cache, not for exchange: `report.json` is that. What comes back equals what was kept. The report
is JSON (without its collectives), collectives and lanes are numpy arrays; nothing in the files is code.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.columns import Column, Numbers, Objects, Parts, Records, Words
from sp_profiler.analysis.lanes import Lanes
from sp_profiler.analysis.results import CauseEvidence, CollectiveFigures, Partner
from sp_profiler.report.json import to_plain
from sp_profiler.report.model import Report

BROKEN = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, msgspec.MsgspecError)
"""What reading raises when files are missing, damaged, or of another version."""

_RECORDS = {cls.__name__: cls for cls in (Partner, CauseEvidence)}
_LANE_TEXTS = ("rank", "file", "names", "strings")
_LANE_ARRAYS = tuple(field.name for field in fields(Lanes) if field.name not in _LANE_TEXTS)

Arrays = dict[str, np.ndarray]


def write_report(folder: Path, report: Report) -> None:
    """Keep a report. Raises OSError, and ValueError for text that JSON cannot hold."""
    collectives = Collectives.of(report.collectives)
    arrays: Arrays = {}
    about = {
        name: packed(collectives.column(name), name, arrays)
        for name in (field.name for field in fields(CollectiveFigures))
    }
    texts = {"length": len(collectives), "columns": about}
    (folder / "collectives.json").write_text(json.dumps(texts), encoding="utf-8")
    np.savez(folder / "collectives.npz", **arrays)  # type: ignore[arg-type]
    plain = to_plain(replace(report, collectives=[]))
    (folder / "report.json").write_text(json.dumps(plain), encoding="utf-8")


def read_report(folder: Path) -> Report:
    """The report that `write_report` kept. Raises one of `BROKEN`."""
    report = msgspec.json.decode((folder / "report.json").read_bytes(), type=Report)
    texts = json.loads((folder / "collectives.json").read_text(encoding="utf-8"))
    with np.load(folder / "collectives.npz", allow_pickle=False) as arrays:
        columns = {name: unpacked(about, name, arrays) for name, about in texts["columns"].items()}
    return replace(report, collectives=Collectives(columns, texts["length"]))


def write_lanes(folder: Path, number: int, lanes: Lanes) -> None:
    """Keep the lanes of the `number`-th trace. Raises OSError."""
    np.savez(folder / f"lanes-{number}.npz", **{name: getattr(lanes, name) for name in _LANE_ARRAYS})
    texts = {name: getattr(lanes, name) for name in _LANE_TEXTS}
    (folder / f"lanes-{number}.json").write_text(json.dumps(texts), encoding="utf-8")


def read_lanes(folder: Path, number: int) -> Lanes:
    """The lanes that `write_lanes` kept. Raises one of `BROKEN`."""
    texts = json.loads((folder / f"lanes-{number}.json").read_text(encoding="utf-8"))
    with np.load(folder / f"lanes-{number}.npz", allow_pickle=False) as arrays:
        columns = {name: arrays[name] for name in _LANE_ARRAYS}
    told = {name: tuple(value) if isinstance(value, list) else value for name, value in texts.items()}
    return Lanes(**told, **columns)


def packed(column: Column[Any], name: str, arrays: Arrays) -> dict[str, Any]:
    """What JSON holds of a column; its arrays are put into `arrays`, under names that begin with `name`."""
    if isinstance(column, Numbers):
        arrays[f"{name}:values"] = column.values
        return {"kind": "numbers", "known": _known(column.known, name, arrays)}
    if isinstance(column, Words):
        arrays[f"{name}:codes"] = column.codes
        return {"kind": "words", "table": column.table}
    if isinstance(column, Parts):
        arrays[f"{name}:amount"] = column.amount
        return {"kind": "parts", "names": column.names, "known": _known(column.known, name, arrays)}
    if isinstance(column, Records):
        inner = [packed(one, f"{name}.{place}", arrays) for place, one in enumerate(column.columns)]
        known = _known(column.known, name, arrays)
        return {"kind": "records", "cls": column.cls.__name__, "columns": inner, "known": known}
    return {"kind": "objects", "values": column.tolist()}


def _known(known: np.ndarray | None, name: str, arrays: Arrays) -> bool:
    if known is None:
        return False
    arrays[f"{name}:known"] = known
    return True


def unpacked(about: dict[str, Any], name: str, arrays: Any) -> Column[Any]:
    """The column of which `packed` made `about`, from its arrays."""
    kind = about["kind"]
    known = arrays[f"{name}:known"] if about.get("known") else None
    if kind == "numbers":
        return Numbers(arrays[f"{name}:values"], known)
    if kind == "words":
        return Words(arrays[f"{name}:codes"], tuple(about["table"]))
    if kind == "parts":
        return Parts(tuple(about["names"]), arrays[f"{name}:amount"], known)
    if kind == "records":
        inner: Sequence[dict[str, Any]] = about["columns"]
        columns = tuple(unpacked(one, f"{name}.{place}", arrays) for place, one in enumerate(inner))
        return Records(_RECORDS[about["cls"]], columns, known)
    return Objects(about["values"])
