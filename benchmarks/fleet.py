#!/usr/bin/env python3
"""What many ranks cost: 64, 256 and 1,024 of them, in one process and through workers of a Dask cluster.

    benchmarks/fleet.py [--ranks 64 256 1024] [--engines in-process dask] [--workers 2] [--steps 4]

Writes a run of which all is known (tests/fleet_truth.py: tensor-parallel groups of 8, data-parallel groups
across hosts, the group of all; clocks of hosts up to a second apart; two late ranks), analyses it with
`sp-profile analyze --engine`, and checks every figure of the report against the truth, and the reports of the
engines against each other. The cluster is a scheduler and workers in processes of their own, started anew for
each run. CPU seconds are the kernel's account of all processes together. Peak memory is VmHWM of
/proc/PID/status: of the process that the user starts (the coordinator), and of the largest process of the
cluster. `--steps 40` makes traces ten times as large; `--missing`, `--cut`, `--garbage` name ranks that fail.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "tests"))

from fleet_truth import Truth, write_fleet  # noqa: E402

from sp_profiler.report.json import read_report  # noqa: E402

_COORDINATOR = """
import re, sys
from pathlib import Path
from sp_profiler.cli.main import main
code = main(sys.argv[2:])
Path(sys.argv[1]).write_text(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
sys.exit(code)
"""
_CLUSTER = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    how = {"threads_per_worker": 1, "processes": True, "host": "127.0.0.1", "dashboard_address": None}
    with LocalCluster(n_workers=int(sys.argv[1]), **how) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""
_OF_ONE_RUN = ("environment", "tool")
_LOOK_S = 0.5


@dataclass
class Cost:
    """Seconds and bytes of one analysis."""

    cpu_s: float = 0.0
    coordinator_cpu_s: float = 0.0
    wall_s: float = 0.0
    coordinator_bytes: int = 0
    worker_bytes: int = 0
    work_bytes: int = 0
    work_files: int = 0


@dataclass
class Cluster:
    """A scheduler with workers; what its processes took is known when it has ended."""

    address: str
    peak_bytes: int = 0
    cpu_s: float = 0.0
    _ended: threading.Event = field(default_factory=threading.Event)

    def watch(self, pid: int) -> None:
        """Look at the memory of all processes below `pid`, again and again."""
        while not self._ended.wait(_LOOK_S):
            self.peak_bytes = max([self.peak_bytes, *map(_peak_bytes, _below(pid))])


def _peak_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def _below(pid: int) -> set[int]:
    """The processes that descend from one, with it."""
    parents: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(place.parent.name)] = int(place.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {pid}
    while more := {one for one, parent in parents.items() if parent in found} - found:
        found |= more
    return found


@contextmanager
def local_cluster(workers: int) -> Iterator[Cluster]:
    """A cluster on this machine, in processes that are not ours."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "cluster.py"
        program.write_text(_CLUSTER)
        process = subprocess.Popen(
            [sys.executable, str(program), str(workers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            raise SystemExit("the cluster did not start")
        cluster = Cluster(address.replace("tcp://", "dask://"))
        watcher = threading.Thread(target=cluster.watch, args=(process.pid,))
        watcher.start()
        try:
            yield cluster
        finally:
            cluster._ended.set()
            watcher.join()
            process.stdin.close()
            _, _, usage = os.wait4(process.pid, 0)
            process.returncode = 0
            process.stdout.close()
            cluster.cpu_s = usage.ru_utime + usage.ru_stime


def analyze(run: Path, engine: str, scratch: Path, *options: str) -> tuple[Cost, Path]:
    """Analyse the run in a process of its own; what that took, and the report."""
    report, told = scratch / "report.json", scratch / "peak.txt"
    command = [sys.executable, "-c", _COORDINATOR, str(told), "analyze", str(run), "--engine", engine]
    command += ["--work", str(scratch / "work"), "--format", "json", "-o", str(report), "--force", *options]
    begin = time.monotonic()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            raise SystemExit(f"analyze failed:\n{errors.read().decode(errors='replace')[-2000:]}")
    sizes = [path.stat().st_size for path in (scratch / "work").rglob("*") if path.is_file()]
    took = usage.ru_utime + usage.ru_stime
    peak = int(told.read_text()) * 1024
    return Cost(took, took, time.monotonic() - begin, peak, 0, sum(sizes), len(sizes)), report


def measured(run: Path, engine: str, workers: int, scratch: Path) -> tuple[Cost, Path]:
    """The same on an engine, started for it."""
    scratch.mkdir()
    if engine != "dask":
        return analyze(run, engine, scratch)
    with local_cluster(workers) as cluster:
        cost, report = analyze(run, cluster.address, scratch)
    cost.worker_bytes = cluster.peak_bytes
    cost.cpu_s += cluster.cpu_s
    return cost, report


def _line(engine: str, ranks: int, cost: Cost) -> str:
    workers = f"{cost.worker_bytes / 1e6:6,.0f} MB" if cost.worker_bytes else "      - "
    return (
        f"  {engine:12} {ranks:5} ranks  {cost.cpu_s:7.1f} s CPU  {cost.cpu_s / ranks:6.3f} s a rank  "
        f"coordinator {cost.coordinator_cpu_s:6.1f} s {cost.coordinator_bytes / 1e6:6,.0f} MB  "
        f"largest worker {workers}  work folder {cost.work_bytes / ranks / 1e6:6.2f} MB a rank in "
        f"{cost.work_files:,} files  {cost.wall_s:6.0f} s wall"
    )


def _comparable(report: Path) -> dict[str, object]:
    """A report without what differs from one work folder, or one moment, to another."""
    plain = {key: value for key, value in json.loads(report.read_text()).items() if key not in _OF_ONE_RUN}
    text = json.dumps(plain).replace(str(report.parent), "")
    return json.loads(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--engines", nargs="+", default=["in-process", "dask"], help="dask, or as --engine")
    parser.add_argument("--workers", type=int, default=2, help="of the cluster, with a thread each")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--missing", type=int, nargs="*", default=[], help="ranks without a file")
    parser.add_argument("--cut", type=int, nargs="*", default=[], help="ranks whose file is cut off")
    parser.add_argument("--garbage", type=int, nargs="*", default=[], help="ranks whose file is none")
    asked = parser.parse_args()
    for ranks in asked.ranks:
        with ExitStack() as stack:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            run = scratch / "run"
            begin = time.process_time()
            truth: Truth = write_fleet(
                run, ranks, steps=asked.steps, layers=asked.layers, missing=asked.missing,
                garbage=asked.garbage, cut=dict.fromkeys(asked.cut, asked.steps // 2),
            )  # fmt: skip
            size = sum(path.stat().st_size for path in run.iterdir())
            print(
                f"{ranks} ranks x {len(truth.collectives):,} collectives, {size / 1e6:,.1f} MB packed, "
                f"written in {time.process_time() - begin:.1f} s CPU",
                flush=True,
            )
            reports: dict[str, dict[str, object]] = {}
            for engine in asked.engines:
                cost, report = measured(run, engine, asked.workers, scratch / engine.replace(":", "-"))
                truth.check(read_report(report.read_bytes(), str(report)))
                reports[engine] = _comparable(report)
                print(_line(engine, ranks, cost), flush=True)
            first, *others = reports.values()
            if any(other != first for other in others):
                raise SystemExit("the engines' reports differ")
            print(f"  every figure is the truth's{', and all engines agree' if others else ''}", flush=True)


if __name__ == "__main__":
    main()
