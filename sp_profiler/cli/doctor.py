"""`sp-profile doctor`: what is installed, what the machine has, and what is missing for which command."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from sp_profiler.errors import EXIT_OK, UsageError
from sp_profiler.record.environment import (
    ALWAYS_RECORDED,
    base_versions,
    cpu_hardware,
    may_have_gpu,
    package_version,
    probe_torch,
    recorded_variables,
    shared_memory_bytes,
)
from sp_profiler.record.location import RUNS_FOLDER

EXTRAS = {
    "run": "record the shipped workloads",
    "dashboard": "runs in the browser",
    "hta": "critical path, comparison with HTA",
    "cluster": "many ranks analysed on a Dask cluster",
    "remote": "traces of s3://, gs://, http(s)://",
}

MINIMUM_SHARED_MEMORY_BYTES = 64 * 2**20
"""What containers get by default, and too little for NCCL with several ranks."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `doctor`."""
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(args: argparse.Namespace) -> int:
    """Look, and say what was seen. Something missing is no failure: the exit code is 0."""
    facts = examine()
    if args.json:
        json.dump(facts, sys.stdout, indent=1)
        print()
    else:
        _print(facts)
    return EXIT_OK


def examine() -> dict[str, Any]:
    """Everything `doctor` knows, as JSON values. Works without torch."""
    torch, torch_error = None, None
    if package_version("torch") is not None:
        try:
            torch = probe_torch()
        except RuntimeError as error:
            torch_error = str(error)
    extras = {name: _extra(name) for name in EXTRAS}
    facts: dict[str, Any] = {
        "versions": {**base_versions(), **(torch["versions"] if torch else {})},
        "extras": extras,
        "hardware": [cpu_hardware(), *(torch["gpus"] if torch else [])],
        "backends": torch["backends"] if torch else {"gloo": False, "nccl": False},
        "profiler": torch["profiler"] if torch else False,
        "torch_error": torch_error,
        "decoder": _decoder(),
        "environment": recorded_variables(os.environ),
        "shared_memory_bytes": _shared_memory(),
        "runs_folder": {"path": RUNS_FOLDER, "writable": _writable(Path(RUNS_FOLDER))},
    }
    facts["missing"] = _missing(facts)
    return facts


def _extra(name: str) -> dict[str, Any]:
    """The packages of one extra with their installed versions (None: not installed)."""
    from importlib.metadata import requires

    wanted = f'extra == "{name}"'
    packages: dict[str, str | None] = {}
    for requirement in requires("sp-profiler") or []:
        specifier, _, marker = requirement.partition(";")
        found = re.match(r"[A-Za-z0-9._-]+", specifier.strip())
        if found and wanted in marker.replace("'", '"'):
            packages[found[0]] = package_version(found[0])
    return {"packages": packages, "installed": bool(packages) and all(packages.values()), "for": EXTRAS[name]}


def _decoder() -> dict[str, str | None]:
    """What reads traces, `native` or `python`, and why; None where what is asked for is not there."""
    from sp_profiler.trace.native import decoder_in_use

    try:
        used, why = decoder_in_use()
    except UsageError as error:
        return {"used": None, "why": str(error)}
    return {"used": used, "why": why}


def _shared_memory() -> dict[str, int] | None:
    found = shared_memory_bytes()
    return {"total": found[0], "free": found[1]} if found else None


def _writable(path: Path) -> bool:
    existing = next(place for place in (path, *path.absolute().parents) if place.exists())
    return existing.is_dir() and os.access(existing, os.W_OK)


def _missing(facts: dict[str, Any]) -> list[dict[str, str]]:
    """What does not work here and the way to get it, most important first."""
    missing: list[dict[str, str]] = []

    def add(what: str, remedy: str) -> None:
        missing.append({"what": what, "remedy": remedy})

    if facts["torch_error"]:
        add(f"torch is installed but does not work: {facts['torch_error']}", "reinstall torch")
    for name, extra in facts["extras"].items():
        if not extra["installed"]:
            absent = ", ".join(package for package, version in extra["packages"].items() if version is None)
            add(f"{extra['for']} ({absent})", f'pip install "sp-profiler[{name}]"')
    gpus = [device for device in facts["hardware"] if device["kind"] == "cuda"]
    if may_have_gpu() and facts["versions"]["torch"] and not gpus:
        add("this machine has a GPU that torch cannot use", "install a torch built for its driver")
    if gpus and not facts["backends"]["nccl"]:
        add("torch has GPUs but no NCCL", "install a torch built with NCCL")
    memory = facts["shared_memory_bytes"]
    if gpus and memory and memory["total"] <= MINIMUM_SHARED_MEMORY_BYTES:
        add("/dev/shm is too small for NCCL", "start the container with --shm-size=1g or --ipc=host")
    if not facts["runs_folder"]["writable"]:
        add(f"./{RUNS_FOLDER} cannot be written here", "change the folder, or use --out DIR")
    return missing


def _print(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for row in _rows(facts):
        table.add_row(*row)
    console.print(table)
    if not facts["missing"]:
        console.print("\nNothing is missing.", style="green")
        return
    console.print("\nMissing:")
    for entry in facts["missing"]:
        console.print(f"  {entry['what']}: {entry['remedy']}", markup=False, highlight=False, soft_wrap=True)


def _rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    versions = facts["versions"]
    rows = [(name, str(version)) for name, version in versions.items() if version is not None]
    rows += [("torch", "not installed")] if versions["torch"] is None else []
    for device in facts["hardware"]:
        gib = f", {device['memory_bytes'] / 2**30:.0f} GiB" if device["memory_bytes"] else ""
        if device["kind"] == "cpu":
            rows.append(("CPU", f"{device['name']}, {device['logical_cores']} cores{gib}"))
        else:
            capability = ".".join(map(str, device["capability"]))
            rows.append((f"GPU {device['index']}", f"{device['name']}, capability {capability}{gib}"))
    rows += [] if len(facts["hardware"]) > 1 else [("GPU", "none")]
    decoder = facts["decoder"]
    rows.append(("decoder", f"{decoder['used'] or 'none'} ({decoder['why']})"))
    available = [name for name, there in facts["backends"].items() if there]
    rows.append(("backends", ", ".join(available) or "none"))
    for name, extra in facts["extras"].items():
        parts = [f"{package} {version or '(missing)'}" for package, version in extra["packages"].items()]
        rows.append((f"extra {name}", ", ".join(parts)))
    for name, value in facts["environment"].items():
        if value is not None or name in ALWAYS_RECORDED[:1]:
            rows.append((name, "not set" if value is None else value))
    memory = facts["shared_memory_bytes"]
    if memory:
        rows.append(("/dev/shm", f"{memory['free'] / 2**30:.1f} of {memory['total'] / 2**30:.1f} GiB free"))
    writable = "writable" if facts["runs_folder"]["writable"] else "not writable"
    rows.append((f"./{RUNS_FOLDER}", writable))
    return rows
