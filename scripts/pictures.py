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


DASHBOARD = {  # name: query, width and height
    "dashboard-overview.png": ("view=overview&theme=dark", 1300, 1100),
    "dashboard-timeline.png": ("view=timeline&theme=light&ranks=1&pick={pick}", 1300, 1370),
}
RUN = "traces/demo/tp-async"


def picture(chromium: str, scratch: str, url: str, name: str, size: tuple[int, int]) -> None:
    """One page as a picture of the README."""
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
        f"--window-size={size[0]},{size[1]}",
        "--virtual-time-budget=15000",
        f"--screenshot={target}",
        url,
    ]
    subprocess.run(browser, check=True, stderr=subprocess.DEVNULL, timeout=180)
    print(target.relative_to(REPOSITORY))


def best_hidden() -> int:
    """The collective of rank 0 of which its partner hides most."""
    import sp_profiler

    report = sp_profiler.analyze(REPOSITORY / RUN)
    return max((c for c in report.collectives if c.rank == 0), key=lambda c: c.hidden_ns or 0).id


def dashboard_pictures(chromium: str, scratch: str) -> None:
    command = [sys.executable, "-m", "sp_profiler", "dashboard", RUN, "--port", "0"]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            url = next(word for word in server.stdout.readline().split() if word.startswith("http"))
            for name, (query, width, height) in DASHBOARD.items():
                picture(chromium, scratch, f"{url}?{query.format(pick=best_hidden())}", name, (width, height))
        finally:
            server.terminate()


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("no chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as scratch:
        pages = Path(scratch) / "reports"
        analyze = ["analyze", "traces/demo", "--format", "html", "-o", str(pages)]
        subprocess.run([sys.executable, "-m", "sp_profiler", *analyze], check=True, cwd=REPOSITORY)
        for name, (page, width, height) in PICTURES.items():
            picture(chromium, scratch, (pages / page).as_uri(), name, (width, height))
        dashboard_pictures(chromium, scratch)


if __name__ == "__main__":
    main()
