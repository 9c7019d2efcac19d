#!/usr/bin/env python3
"""Record the runs that ship in traces/demo: `python scripts/record_demo.py [FOLDER]`.

Runs `sp-profile run demo` and keeps of each run what cannot be made again: run.json and the traces.
What names the machine is replaced (host name, kernel build; the command's own paths), and the traces
are compressed as well as gzip can. Nothing else is changed: every event is as it was recorded.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
HOST = "demo-host"
LIMIT_BYTES = 2_000_000


def without_machine(run: dict[str, Any]) -> dict[str, Any]:
    """run.json without the name of the machine."""
    run["command"] = ["sp-profile", "run", "demo"]
    run["hosts"] = [{"host": HOST, "ranks": [rank for entry in run["hosts"] for rank in entry["ranks"]]}]
    run["hardware"] = [{**device, "host": HOST} for device in run["hardware"]]
    run["versions"]["os"] = run["versions"]["os"].split()[0]
    return run


def repack(source: Path, target: Path) -> None:
    """Copy a trace with another host name, best compression, and no time stamp in the gzip header."""
    with gzip.open(source) as file:
        text = file.read()
    text, count = re.subn(rb'("host_name": )"(?:[^"\\]|\\.)*"', rb'\1"%s"' % HOST.encode(), text)
    if count != 1:
        raise SystemExit(f"{source}: {count} host names instead of one")
    json.loads(text)
    target.write_bytes(gzip.compress(text, compresslevel=9, mtime=0))


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else REPOSITORY / "traces" / "demo"
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "demo"
        subprocess.run([sys.executable, "-m", "sp_profiler", "run", "demo", "--out", str(out)], check=True)
        shutil.rmtree(target, ignore_errors=True)
        for run_file in sorted(out.glob("*/run.json")):
            folder = target / run_file.parent.name
            folder.mkdir(parents=True)
            run = without_machine(json.loads(run_file.read_text()))
            (folder / "run.json").write_text(json.dumps(run, indent=1) + "\n")
            for trace in sorted(run_file.parent.glob("rank-*.pt.trace.json.gz")):
                repack(trace, folder / trace.name)
    total = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    print(f"{target}: {total / 1e6:.2f} MB")
    if total > LIMIT_BYTES:
        raise SystemExit(f"the recorded runs exceed {LIMIT_BYTES / 1e6:g} MB")


if __name__ == "__main__":
    main()
