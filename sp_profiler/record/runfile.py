"""run.json: what a run was, beside its traces. Ranks add what they know, `sp-profile run` the rest."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sp_profiler import __version__
from sp_profiler.files import write_atomically

SCHEMA = "sp-profile/run"
SCHEMA_VERSION = 1
RUN_FILE = "run.json"


def utc_now() -> str:
    """`2026-01-31T12:00:00Z`, as files of ours tell when they were begun."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def new_run() -> dict[str, Any]:
    """A run.json of which nothing is known yet."""
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "sp-profiler", "version": __version__},
        "created": utc_now(),
        "command": None,
        "workload": None,
        "world_size": None,
        "backend": None,
        "device_type": None,
        "hosts": [],
        "groups": [],
        "environment": {},
        "set_by_tool": {},
        "versions": {},
        "hardware": [],
        "schedule": None,
        "losses": None,
        "step_times_ns": None,
        "saved_tensors": None,
    }


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep the other ranks out. Some network file systems cannot lock: there the last rank wins."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            pass
        yield
    finally:
        os.close(handle)


def update(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Replace run.json by `change` of its content (of a new one where there is none); returns it."""
    path = folder / RUN_FILE
    with _locked(folder):
        content = json.loads(path.read_text()) if path.exists() else new_run()
        content = change(content)
        write_atomically(path, json.dumps(content, indent=1) + "\n")
    return content


def add_rank(content: Mapping[str, Any], rank: int, facts: Mapping[str, Any]) -> dict[str, Any]:
    """run.json with what one rank knows (`environment.rank_facts`). The order of ranks does not matter.

    Where ranks differ, environment and versions are those of the lowest rank.
    """
    run = dict(content)
    known = [number for host in run["hosts"] for number in host["ranks"]]
    for name in ("world_size", "backend", "device_type", "environment", "versions", "schedule"):
        if not known or rank < min(known):
            run[name] = facts[name]
    hosts = {host["host"]: set(host["ranks"]) for host in run["hosts"]}
    hosts.setdefault(facts["host"], set()).add(rank)
    entries = [{"host": host, "ranks": sorted(ranks)} for host, ranks in hosts.items()]
    run["hosts"] = sorted(entries, key=lambda entry: entry["ranks"])
    groups = {group["key"]: group for group in (*run["groups"], *facts["groups"])}
    run["groups"] = sorted(groups.values(), key=lambda group: (group["ranks"], group["key"]))
    new = [{"host": facts["host"], **entry} for entry in facts["hardware"]]
    devices = [*run["hardware"], *(entry for entry in new if entry not in run["hardware"])]
    run["hardware"] = sorted(devices, key=lambda d: (d["host"], d["kind"], d.get("index", 0)))
    return run


def add_workload(content: Mapping[str, Any], reports: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """run.json with what the ranks of a workload wrote at their end, by rank.

    Losses are those of the lowest rank; step times and saved tensors (None: not measured) are kept by rank;
    the workload's groups replace those torch knows, because they carry the names the annotations use.
    """
    run = dict(content)
    if not reports:
        return run
    first = reports[min(reports)]
    run["losses"] = first.get("losses")
    times = {str(rank): report["step_times_ns"] for rank, report in sorted(reports.items())}
    run["step_times_ns"] = times
    saved = {
        str(rank): found for rank, report in sorted(reports.items()) if (found := report.get("saved_tensors"))
    }
    run["saved_tensors"] = saved or None
    groups = {group["key"]: group for report in reports.values() for group in report.get("groups", [])}
    if groups:
        run["groups"] = sorted(groups.values(), key=lambda group: (group["ranks"], group["key"]))
    return run
