#!/usr/bin/env python3
"""The sweep of docs/sweep.md: `python benchmarks/sweep.py [FOLDER]` (minutes; resumes where it was ended).

DDP, TP sync and async, SP with both ways to save and to communicate, 2, 4 and 8 layers, on the processes of
this machine. `--docs` puts the tables into docs/sweep.md and the charts into docs/images (needs chromium).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
OPTIONS = [
    "--modes", "ddp", "tp", "sp",
    "--comm", "sync", "async",
    "--save", "full", "shard",
    "--layers", "2", "4", "8",
    "--repeat", "5", "--steps", "1", "--warmup", "1", "--baseline", "tp-sync",
]  # fmt: skip
PAGE = REPOSITORY / "docs" / "sweep.md"
PICTURE = REPOSITORY / "docs" / "images" / "sweep.png"
BEGIN, END = "<!-- begin: benchmarks/sweep.py -->", "<!-- end: benchmarks/sweep.py -->"


def measure(folder: Path) -> int:
    """Run the sweep; returns its exit code. The load before and after tells how calm the machine was."""
    before = os.getloadavg()
    command = ["sweep", *OPTIONS, "--out", str(folder)]
    code = subprocess.run(
        [sys.executable, "-m", "sp_profiler", *command], cwd=REPOSITORY, check=False
    ).returncode
    loads = f"{before[0]:.1f} before, {os.getloadavg()[0]:.1f} after"
    print(f"load average (1 minute): {loads}", file=sys.stderr)
    (folder / "load.txt").write_text(loads + "\n")
    return code


def document(folder: Path) -> None:
    """Put the tables into the page, between its marks, and the charts beside it."""
    text = (folder / "sweep.md").read_text()
    tables = re.sub(r"^# .*\n", "", text, flags=re.MULTILINE, count=1).strip()
    tables = re.sub(r"^## ", "### ", tables, flags=re.MULTILINE)
    load = (folder / "load.txt").read_text().strip()
    part = f"{BEGIN}\n\n{tables}\n\nLoad average of the machine (one minute): {load}.\n\n{END}"
    page = PAGE.read_text()
    PAGE.write_text(page[: page.index(BEGIN)] + part + page[page.index(END) + len(END) :])
    _picture(folder / "sweep.html")


def _picture(page: Path) -> None:
    sys.path.insert(0, str(REPOSITORY / "scripts"))
    from pictures import picture

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("no chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as scratch:
        picture(chromium, scratch, page.as_uri(), PICTURE.name, (1300, 1800))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=REPOSITORY / "sp-profile-runs" / "sweep")
    parser.add_argument("--docs", action="store_true", help="only write docs/sweep.md from FOLDER")
    options = parser.parse_args()
    folder = options.folder.resolve()
    if options.docs:
        document(folder)
        return
    sys.exit(measure(folder))


if __name__ == "__main__":
    main()
