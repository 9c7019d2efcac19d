"""What the two runs were: settings that differ, and what keeps them from being compared in full."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sp_profiler.comparing.model import RunFacts, Setting
from sp_profiler.comparing.side import Side
from sp_profiler.report.compare_table import run_label
from sp_profiler.report.format import counted, percent, rank_list
from sp_profiler.report.model import Report

_ENVIRONMENT = ("versions", "environment", "set_by_tool", "variables")
_RUN = ("world_size", "backend", "device_type")
_KNOWN_SHARE = 0.05  # a share of known roles or purposes that differs by more makes figures of them differ


BASE, HERE = "the base", "this run"
"""What runs are called that nothing tells apart."""


def facts(side: Side, label: str) -> RunFacts:
    run = side.report.run
    return RunFacts(
        name=run.name,
        label=label,
        path=run.path,
        world_size=run.world_size,
        ranks=list(run.ranks),
        ranks_missing=list(run.ranks_missing),
        backend=run.backend,
        device_type=run.device_type,
        window_rule=side.report.window.rule,
        steps=side.step_count,
        windows=side.windows,
    )


def labels(base: Report, here: Report) -> tuple[str, str]:
    """What the runs are called, told apart: the workload, else the name, else the path, else their place."""
    for name in (run_label, lambda report: report.run.name, lambda report: report.run.path):
        one, two = name(base), name(here)
        if one != two:
            return one, two
    return BASE, HERE


def differing(base: Report, here: Report) -> list[Setting]:
    """Settings of workload, environment and run that differ; when it was recorded is none of them."""
    found = _of("workload", base.run.workload or {}, here.run.workload or {})
    found += _of(
        "run", {key: getattr(base.run, key) for key in _RUN}, {key: getattr(here.run, key) for key in _RUN}
    )
    one, two = base.environment, here.environment
    for name in _ENVIRONMENT:
        if isinstance(one.get(name), dict) and isinstance(two.get(name), dict):
            found += _of(name, one[name], two[name])
    found += _of("hardware", {"devices": _devices(one)}, {"devices": _devices(two)})
    found += _of("hardware", {"hosts": _hosts(one)}, {"hosts": _hosts(two)})
    if not (
        base.run.workload and here.run.workload
    ):  # the command is all that tells of a script of the user's
        found += _of("run", {"command": _command(one)}, {"command": _command(two)})
    return found


def _of(where: str, one: Mapping[str, Any], two: Mapping[str, Any]) -> list[Setting]:
    keys = dict.fromkeys([*one, *two])
    return [Setting(where, str(k), one.get(k), two.get(k)) for k in keys if one.get(k) != two.get(k)]


def _devices(environment: Mapping[str, Any]) -> list[str] | None:
    """The names of the devices, each with how often it is there."""
    told = environment.get("hardware")
    if not isinstance(told, list):
        return None
    names = [str(one.get("name") or one.get("kind")) for one in told if isinstance(one, dict)]
    return [f"{names.count(name)} x {name}" for name in sorted(set(names))]


def _hosts(environment: Mapping[str, Any]) -> list[str] | None:
    told = environment.get("hosts")
    return (
        sorted(str(one.get("host")) for one in told if isinstance(one, dict))
        if isinstance(told, list)
        else None
    )


def _command(environment: Mapping[str, Any]) -> str | None:
    command = environment.get("command")
    return " ".join(map(str, command)) if isinstance(command, list) else None


def notes(base: Side, here: Side, names: tuple[str, str]) -> list[str]:
    """What keeps the two from being compared in full, and what the means are over; a sentence each."""
    one, two = names
    names = (one.capitalize() if one == BASE else one, two.capitalize() if two == HERE else two)
    return [
        *_windows(base, here, names),
        *_ranks(base, here),
        *_devices_differ(base, here, names),
        *_layers(base, here),
        *_coverage(base, here),
        *_incomplete(base, here, names),
        *_noise(base, here, names),
    ]


def _windows(base: Side, here: Side, names: tuple[str, str]) -> list[str]:
    if base.is_by_step and here.is_by_step:
        if base.step_count == here.step_count:
            return []
        return [f"{base.step_count} and {here.step_count} steps: means per step and rank are compared."]
    if base.is_by_step == here.is_by_step:
        return ["The runs have no steps: means per rank over the whole traces are compared."]
    whole = names[1] if base.is_by_step else names[0]
    return [
        f"{whole} has no steps, the other has: its whole trace stands beside single steps, "
        "so only ratios and memory can be compared."
    ]


def _ranks(base: Side, here: Side) -> list[str]:
    counts = [len(set(side.report.run.ranks)) for side in (base, here)]
    one, two = ({r for r in side.report.run.ranks if r is not None} for side in (base, here))
    if one == two:
        return []
    said = f"{counted(counts[0], 'rank')} and {counted(counts[1], 'rank')}: means per rank are compared"
    for only, which in ((one - two, "base"), (two - one, "other run")):
        if only:
            said += f"; {'ranks' if len(only) > 1 else 'rank'} {rank_list(sorted(only))} only in the {which}"
    return [f"{said}."]


def _devices_differ(base: Side, here: Side, names: tuple[str, str]) -> list[str]:
    kinds = [side.report.run.device_type for side in (base, here)]
    if kinds == ["cpu", "cpu"]:
        return ["CPU runs: read the differences for structure (what runs under what), not for speed."]
    if "cpu" in kinds and kinds[0] != kinds[1]:
        which = names[kinds.index("cpu")]
        return [f"{which} ran on CPUs, the other on GPUs: differences in time are those of the machines."]
    return []


def _layers(base: Side, here: Side) -> list[str]:
    told = [(side.report.run.workload or {}).get("layers") for side in (base, here)]
    if None not in told:
        count = told
    else:
        numbered = [filter(str.isdigit, side.report.totals.exposed_by_layer_ns) for side in (base, here)]
        count = [len(list(layers)) for layers in numbered]
    if count[0] == count[1] or not all(count):
        return []
    return [f"{count[0]} and {count[1]} layers: figures of a step are of different models."]


def _coverage(base: Side, here: Side) -> list[str]:
    said = []
    for name, what in (
        ("gemm_role_known_ratio", "the role of GEMMs"),
        ("purpose_known_ratio", "the purpose of communication"),
    ):
        one, two = (getattr(side.report.coverage, name) for side in (base, here))
        if one is not None and two is not None and abs(one - two) > _KNOWN_SHARE:
            shares = f"{percent(one)} and {percent(two)}"
            said.append(f"Of {what} {shares} of the time is known: what is unknown hides changes.")
    return said


def _incomplete(base: Side, here: Side, names: tuple[str, str]) -> list[str]:
    said = []
    for side, name in zip((base, here), names, strict=True):
        if side.report.totals.comm_ns and not side.has_all_collectives:
            said.append(f"{name} lists only its most exposed collectives: they are not compared one by one.")
    if (base.report.memory is None) != (here.report.memory is None):
        which = names[0] if base.report.memory is None else names[1]
        said.append(f"{which} has no record of memory, so memory is not compared.")
    return said


def _noise(base: Side, here: Side, names: tuple[str, str]) -> list[str]:
    few = [name for side, name in zip((base, here), names, strict=True) if side.samples_count < 2]
    if not few:
        return []
    what = "has one window of each rank" if len(few) == 1 else "have one window of each rank"
    which = [few[0], *(HERE if name == HERE.capitalize() else name for name in few[1:])]
    return [f"{' and '.join(which)} {what}: noise is not known, what differs in time may be chance."]
