#!/usr/bin/env python3
"""A big trace: our `analyze` beside `json.loads` and HolisticTraceAnalysis, in one go, as ratios.

    benchmarks/analyze.py [--trace BIG.json.gz | --source SMALL.json.gz] [--larger BIGGER.json.gz]
        [--hta-python PYTHON]

Without `--trace` a trace of about 1.4 M events is made from `--source` (default: a file of the shared
corpus). HTA is run by `--hta-python`, a Python in which `pip install traceinsight 'pandas<3.1'` was done,
with its rounding off and the last step included; without it that part is left out. Each part is a
process of its own; CPU seconds and peak memory are the kernel's account of it. HTA reads a folder. Both
decoders are measured where the compiled one is installed. MB/s: of text, by CPU time. `--larger`: another
trace (`big_trace.py` makes it), to see how decoding and analysis grow with the text.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from big_trace import make
from isal import igzip

from sp_profiler.trace.native import PACKAGE, VARIABLE

REPOSITORY = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("SP_PROFILER_SHARED") or REPOSITORY.parent / "shared")
SOURCE = SHARED / "corpus/alltoall_a100_rank0_of_16/rank0.json.gz"

DECODERS = ("python", "native")
INFLATE = (
    "import sys; from isal import igzip\nwith igzip.open(sys.argv[1]) as f:\n while f.read(1 << 22): pass"
)
JSON = "import json, sys; json.loads(open(sys.argv[1], 'rb').read())"
DECODE = "import sys; from sp_profiler.trace.decode import decode_trace; decode_trace(sys.argv[1])"
HTA = """
import os, sys
os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1])
print(analysis.get_comm_comp_overlap(visualize=False))
"""


@dataclass(frozen=True)
class Cost:
    cpu_s: float
    wall_s: float
    rss_bytes: int


def measure(command: list[str], **variables: str) -> Cost:
    """Run a command to its end, with these environment variables; SystemExit when it fails."""
    start = time.monotonic()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=errors, env=os.environ | variables
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            raise SystemExit(f"{command[:4]} failed:\n{errors.read().decode(errors='replace')[-2000:]}")
    return Cost(usage.ru_utime + usage.ru_stime, time.monotonic() - start, usage.ru_maxrss * 1024)


def of_ours(packed: Path) -> dict[str, Cost]:
    """What decoding and analysing a trace costs, with each decoder that is here."""
    costs: dict[str, Cost] = {}
    report = ["-m", "sp_profiler", "analyze", str(packed), "--json", "--no-cache"]
    for decoder in DECODERS if importlib.util.find_spec(PACKAGE) else DECODERS[:1]:
        asked = {VARIABLE: decoder}
        costs[f"decode, {decoder}"] = measure([sys.executable, "-c", DECODE, str(packed)], **asked)
        costs[f"analyze, {decoder}"] = measure([sys.executable, *report], **asked)
    return costs


def text_bytes(packed: Path) -> int:
    """Bytes of the text of a .gz file, read to its end."""
    with igzip.open(packed) as inside:
        return inside.seek(0, os.SEEK_END)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--source", type=Path, default=SOURCE)
    parser.add_argument("--copies", type=int, default=13)
    parser.add_argument("--larger", type=Path)
    parser.add_argument("--hta-python")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "traces"
        folder.mkdir()
        packed = folder / "rank-00000.json.gz"
        if args.trace:
            packed.symlink_to(args.trace.resolve())
        else:
            make(args.source, packed, args.copies)
        plain = Path(scratch) / "plain.json"
        with gzip.open(packed) as inside, plain.open("wb") as out:
            shutil.copyfileobj(inside, out, 1 << 24)
        size = plain.stat().st_size
        print(f"{size / 1e6:.0f} MB of text, {packed.stat().st_size / 1e6:.0f} MB packed")

        python = sys.executable
        costs = {
            "json.loads": measure([python, "-c", JSON, str(plain)]),
            "inflate": measure([python, "-c", INFLATE, str(packed)]),
        }
        plain.unlink()
        costs |= of_ours(packed)
        larger = {} if args.larger is None else of_ours(args.larger)
        if args.hta_python:
            costs["HTA"] = measure([args.hta_python, "-c", HTA, str(folder)])
    base = costs["json.loads"].cpu_s
    for name, cost in costs.items():
        print(
            f"{name:15} {cost.cpu_s:7.2f} s CPU  {cost.cpu_s / base:5.2f}x json.loads  "
            f"{cost.rss_bytes / 1e9:5.2f} GB peak  {cost.rss_bytes / size:5.2f}x size  {cost.wall_s:6.1f} s  "
            f"{size / cost.cpu_s / 1e6:6.0f} MB/s"
        )
    if args.larger is not None:
        times = text_bytes(args.larger) / size
        for name, cost in larger.items():
            cpu, memory = cost.cpu_s / costs[name].cpu_s, cost.rss_bytes / costs[name].rss_bytes
            grown = f"{cpu:5.1f}x CPU, {memory:4.1f}x memory"
            print(f"{times:.1f}x the text: {name:15} {grown} ({cost.cpu_s:.2f} s)")
    theirs = costs.get("HTA")
    for name, ours in costs.items():
        if theirs is not None and name.startswith("analyze"):
            memory = theirs.rss_bytes / ours.rss_bytes
            print(f"HTA / {name}: {theirs.cpu_s / ours.cpu_s:.1f}x CPU, {memory:.1f}x memory")


if __name__ == "__main__":
    main()
