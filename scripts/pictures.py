#!/usr/bin/env python3
"""Make the pictures of the README from the shipped runs: `python scripts/pictures.py` (needs chromium)."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PICTURES = {  # name: page below the output folder, width and height in pixels
    "comparison.png": ("index.html", 1300, 1420),
    "report.png": ("tp-async/report.html", 1300, 1500),
}


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("no chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as scratch:
        pages = Path(scratch) / "reports"
        analyze = ["analyze", "traces/demo", "--format", "html", "-o", str(pages)]
        subprocess.run([sys.executable, "-m", "sp_profiler", *analyze], check=True, cwd=REPOSITORY)
        for name, (page, width, height) in PICTURES.items():
            target = REPOSITORY / "docs" / "images" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            browser = [
                chromium,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--disable-background-networking",
                "--hide-scrollbars",
                f"--user-data-dir={scratch}/profile",
                f"--window-size={width},{height}",
                "--virtual-time-budget=10000",
                f"--screenshot={target}",
                (pages / page).as_uri(),
            ]
            subprocess.run(browser, check=True, stderr=subprocess.DEVNULL, timeout=120)
            print(target.relative_to(REPOSITORY))


if __name__ == "__main__":
    main()
