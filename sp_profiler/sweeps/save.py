"""A sweep as files: what each is called and what is in it."""

from __future__ import annotations

from pathlib import Path

from sp_profiler.report.save import write
from sp_profiler.sweeps.model import Sweep

FILES = ("sweep.json", "sweep.md", "sweep.csv", "sweep.parquet", "sweep.html")


def save(sweep: Sweep, folder: Path) -> list[Path]:
    """Write all of them, in place of those there are. Raises UsageError for one that cannot be written."""
    from sp_profiler.sweeps import html, json, markdown, tables

    contents: dict[str, str | bytes] = {
        "sweep.json": json.render(sweep),
        "sweep.md": markdown.render(sweep),
        "sweep.csv": tables.csv_text(sweep),
        "sweep.parquet": tables.parquet_bytes(sweep),
        "sweep.html": html.render(sweep),
    }
    for name, content in contents.items():
        write(folder / name, content)
    return [folder / name for name in contents]
