"""From a report to files: which file each format makes, and where it goes."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from sp_profiler.errors import UsageError
from sp_profiler.files import write_atomically
from sp_profiler.report.model import Report

SINGLE_FILE = {"json": "report.json", "html": "report.html", "markdown": "report.md"}
TABLE_FORMATS = ("csv", "parquet")
COMPARISON_FILES = ("index.html", "comparison.json")  # beside the folders of several runs


def file_names(formats: Sequence[str]) -> list[str]:
    """The names of all files that these formats make of one report."""
    names = [SINGLE_FILE[one] for one in formats if one in SINGLE_FILE]
    if any(one in TABLE_FORMATS for one in formats):
        from sp_profiler.report.tables import TABLES

        names += [f"{table}.{one}" for one in formats if one in TABLE_FORMATS for table in TABLES]
    return names


def render(report: Report, output: str) -> dict[str, str | bytes | Iterable[str]]:
    """What one format makes of a report: file name to content, JSON in parts."""
    if output == "json":
        from sp_profiler.report import json

        return {SINGLE_FILE["json"]: json.parts(report)}
    if output == "csv":
        from sp_profiler.report.tables import csv_tables

        return {f"{name}.csv": text for name, text in csv_tables(report).items()}
    if output == "parquet":
        from sp_profiler.report.tables import parquet_tables

        return {f"{name}.parquet": data for name, data in parquet_tables(report).items()}
    renderer = importlib.import_module(f"sp_profiler.report.{output}")
    return {SINGLE_FILE[output]: renderer.render(report)}


def is_one_file(out: str, formats: Sequence[str], runs: int) -> bool:
    """Whether `out` names the file itself: one run in one format, and no folder, there or meant (`x/`)."""
    single = runs == 1 and len(formats) == 1 and formats[0] in SINGLE_FILE
    return single and not out.endswith("/") and not Path(out).is_dir()


def refuse_existing(paths: Sequence[Path], force: bool) -> None:
    """UsageError when one of these files exists; called before the work, not after it."""
    there = [path for path in paths if path.is_file() or path.is_dir()]  # a device or pipe loses nothing
    if there and not force:
        raise UsageError(f"{there[0]} exists already: choose another name or add --force")


def save(report: Report, formats: Sequence[str], folder: Path, *, force: bool) -> list[Path]:
    """Write a report into a folder (made if need be) in each format; returns the files.

    Raises UsageError when a file exists (unless `force`) or cannot be written.
    """
    files = {name: content for one in formats for name, content in render(report, one).items()}
    refuse_existing([folder / name for name in files], force)
    for name, content in files.items():
        write(folder / name, content)
    return [folder / name for name in files]


def save_as(report: Report, output: str, path: Path, *, force: bool) -> list[Path]:
    """Write a report in one single-file format to exactly `path`."""
    refuse_existing([path], force)
    write(path, next(iter(render(report, output).values())))
    return [path]


def write(path: Path, content: str | bytes | Iterable[str]) -> None:
    """Write one file of a report, making its folder if need be. Raises UsageError, naming the file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def as_text(report: Report, output: str) -> str:
    """A report in a text format, to be printed."""
    content = next(iter(render(report, output).values()))
    if isinstance(content, bytes):
        return content.decode("utf-8")
    return content if isinstance(content, str) else "".join(content)
