"""How each named figure is read from a report: numbers with their places, or why there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from sp_profiler.analysis.causes import CAUSES
from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.columns import Words
from sp_profiler.analysis.memory.results import MemoryFigures
from sp_profiler.analysis.results import Figures, GroupFigures
from sp_profiler.checking.parts import PART_MAPS, Scope, Within
from sp_profiler.checking.result import Where
from sp_profiler.report.format import counted, rank_list
from sp_profiler.report.model import Report, windows_by_rank, windows_of

_MEMORY = ("memory-not-followed", "no-memory-events", "memory-not-recorded", "memory")
_BANDWIDTH = ("cpu-run-no-speed", "bandwidth-unknown", "bandwidth")


@dataclass(frozen=True)
class Reading:
    """A value in base units and where it was read. None: `reason` says why nobody could look.

    `looked_for` are words that entries of the ledger about it hold. `note` is said beside the value. `reason`
    of a lower bound says why it is one.
    """

    value: float | int | str | bool | None
    where: Where | None = None
    reason: str | None = None
    looked_for: tuple[str, ...] = ()
    note: str = ""
    at_least: bool = False  # the value is a lower bound: it may be more


@dataclass(frozen=True)
class _Row:
    """Figures with their place and how many windows a mean is taken over."""

    figures: Figures
    windows: int
    where: Where | None


def place(rank: int | None, device: int | None, step: int | None = None, *, several: bool = False) -> Where:
    """Where a reading is from. `several`: the run has ranks of several devices, so these are named."""
    words = f"rank {'unknown' if rank is None else rank}"
    words += f" device {device}" if several and device is not None else ""
    words += f", step {step}" if step is not None else ""
    return Where(rank, device, step, None, words)


def _rows(report: Report, scope: Scope, ranks: Callable[[int | None], bool] | None = None) -> list[_Row]:
    """The rows of a scope; of a part of the ranks the total is their sum, a row for each all the same."""
    several = len({one.device for one in report.ranks}) > 1
    chosen = [one for one in report.ranks if ranks is None or ranks(one.rank)]
    if scope == "step":
        return [
            _Row(one, 1, place(one.rank, one.device, one.step, several=several))
            for one in report.steps
            if ranks is None or ranks(one.rank)
        ]
    if scope == "total" and len(chosen) == len(report.ranks):
        return [_Row(report.totals, windows_of(report), None)]
    counts = windows_by_rank(report)
    return [
        _Row(
            one,
            counts.get((one.rank, one.device), 1),
            place(one.rank, one.device, several=several),
        )
        for one in chosen
    ]


def exposed_time(report: Report, scope: Scope, within: Within | None) -> list[Reading]:
    if scope == "step" and within is None and report.fleet is not None:
        return [
            Reading(one.most_exposed_ns, place(one.most_exposed_rank, None, one.step))
            for one in report.fleet.steps
        ]
    return _exposed(report, scope, within, of=lambda row: row.windows)


def exposed_ratio(report: Report, scope: Scope, within: Within | None) -> list[Reading]:
    return _exposed(report, scope, within, of=lambda row: row.figures.window_ns)


def _exposed(
    report: Report, scope: Scope, within: Within | None, of: Callable[[_Row], int | None]
) -> list[Reading]:
    """Exposed time over what `of` says: windows, or their length."""
    if within is None:
        made = [
            _over(row.figures.exposed_ns, of(row), row.where, ("exposed",)) for row in _rows(report, scope)
        ]
        return made + not_held(report, scope)
    absent = _absent(report, within)
    if absent is not None:
        return [absent]
    groups = [one for one in report.groups if within.kind == "group" and within.matches(one.group)]
    members = {rank for one in groups for rank in one.ranks}
    rows = _rows(report, scope, members.__contains__ if members else None)
    parts = [(_part_of(row.figures, within), of(row), row.where) for row in rows]
    if scope == "total" and len(rows) > 1:
        known = [(part, whole) for part, whole, _ in parts if part is not None and whole is not None]
        return [_over(sum(p for p, _ in known), sum(w for _, w in known), None, ("exposed",))]
    made = [_over(part, whole, where, ("exposed",)) for part, whole, where in parts]
    return made + not_held(report, scope)


def not_held(report: Report, scope: Scope) -> list[Reading]:
    """A reading for the steps that the report of a fleet holds no figures of: they may be the worst."""
    if scope != "step" or report.fleet is None:
        return []
    why = "the report of a run this large holds the figures of its most exposed steps only"
    return [Reading(None, reason=why)]


def _part_of(figures: Figures, within: Within) -> int | None:
    """The exposed time of the part; 0 where the communication is divided and the part has none of it."""
    values = getattr(figures, PART_MAPS[within.kind])
    if values is None or figures.exposed_ns is None:
        return None
    return sum(ns for key, ns in values.items() if within.matches(key))


def _absent(report: Report, within: Within) -> Reading | None:
    """Why there is nothing to read of this part, None where there is: a name that nothing has is no pass."""
    field = PART_MAPS[within.kind]
    values = getattr(report.totals, field)
    if values is None:
        return Reading(None, reason=f"exposed time is not divided by {within.kind}", looked_for=(field,))
    known = {**values}
    if within.kind == "group":
        known |= {one.group: 0 for one in report.groups}
    if within.kind == "purpose":
        known |= dict.fromkeys(report.totals.hiding_by_purpose, 0)
    if within.kind == "cause":
        known |= dict.fromkeys(CAUSES, 0)
    if any(within.matches(key) for key in known):
        return None
    there = ", ".join(sorted(known)[:6]) or "none"
    return Reading(None, reason=f"no communication of {within} is in the windows (there: {there})")


def _over(
    part: float | None, whole: float | None, where: Where | None, looked_for: tuple[str, ...]
) -> Reading:
    if part is None or whole is None:
        return Reading(None, where, "it was not measured", looked_for)
    if not whole:
        return Reading(None, where, "the windows hold no time", looked_for)
    return Reading(part / whole, where)


def step(report: Report, scope: Scope, _: Within | None) -> list[Reading]:
    if scope == "step" and report.fleet is not None:
        return [
            Reading(one.longest_ns, place(one.longest_rank, None, one.step)) for one in report.fleet.steps
        ]
    return [_over(row.figures.window_ns, row.windows, row.where, ("window",)) for row in _rows(report, scope)]


def idle_ratio(report: Report, scope: Scope, _: Within | None) -> list[Reading]:
    made = [
        _over(row.figures.idle_ns, row.figures.window_ns, row.where, ("idle",))
        for row in _rows(report, scope)
    ]
    return made + not_held(report, scope)


def overlap_ratio(report: Report, scope: Scope, _: Within | None) -> list[Reading]:
    made: list[Reading] = []
    for row in _rows(report, scope):
        if row.figures.comm_ns == 0:
            made.append(Reading(None, row.where, "there is no communication in the windows"))
        else:
            made.append(
                _over(row.figures.overlapped_ns, row.figures.comm_ns, row.where, ("overlapped", "comm"))
            )
    return made + not_held(report, scope)


def hidden_of_hideable(report: Report, scope: Scope, within: Within | None) -> list[Reading]:
    return [_hiding(row, within) for row in _rows(report, scope)] + not_held(report, scope)


def wgrad_hidden(report: Report, scope: Scope, _: Within | None) -> list[Reading]:
    """The hiding of the purpose `dgrad`: its partner is the wgrad GEMM of the same linear.

    Where neither an annotation nor the linear names one, an asynchronous collective's partner is what was
    launched before its wait; how many those are is noted.
    """
    made = hidden_of_hideable(report, scope, Within("purpose", "dgrad"))
    note = _other_partners(report) if scope == "total" else ""
    return [replace(one, note=note) for one in made]


def _other_partners(report: Report) -> str:
    """How many dgrad collectives have another partner than a wgrad GEMM, in words; empty where none has."""
    table = Collectives.of(report.collectives)
    partners = table.records("partner")
    known = table.words("purpose").where(lambda word: word == "dgrad") & partners.is_known
    roles = partners.field("what")
    assert isinstance(roles, Words)
    other = int((known & roles.where(lambda role: role != "wgrad")).sum())
    return f"{other} of {int(known.sum())} collectives have another partner than wgrad" if other else ""


def _hiding(row: _Row, within: Within | None) -> Reading:
    looked_for = ("partner-unknown", "partner", "purpose")
    if within is None:
        hidden, hideable = row.figures.partner_hidden_ns, row.figures.partner_hideable_ns
        what = "communication"
    else:
        matched = [one for key, one in row.figures.hiding_by_purpose.items() if within.matches(key)]
        if not matched:
            there = ", ".join(sorted(row.figures.hiding_by_purpose)) or "none"
            why = f"no communication of {within} is in the windows (there: {there})"
            return Reading(None, row.where, why, looked_for)
        known = [
            (one.partner_hidden_ns, one.partner_hideable_ns)
            for one in matched
            if one.partner_hidden_ns is not None and one.partner_hideable_ns is not None
        ]
        hidden = sum(part for part, _ in known) if known else None
        hideable = sum(whole for _, whole in known) if known else None
        what = f"communication of {within}"
    if hidden is None or hideable is None:
        why = f"no {what} has a known partner to hide under"
        return Reading(None, row.where, why, looked_for)
    if not hideable:
        return Reading(None, row.where, f"none of the {what} could be hidden", looked_for)
    return Reading(hidden / hideable, row.where)


def _groups_of(report: Report, within: Within | None) -> list[GroupFigures] | Reading:
    chosen = [one for one in report.groups if within is None or within.matches(one.group)]
    if chosen:
        return chosen
    if within is None:
        return Reading(None, reason="there is no communication in the windows")
    there = ", ".join(one.group for one in report.groups[:6]) or "none"
    return Reading(None, reason=f"there is no {within} (there: {there})")


def skew_ratio(report: Report, _: Scope, within: Within | None) -> list[Reading]:
    groups = _groups_of(report, within)
    if isinstance(groups, Reading):
        return [groups]
    known = [(one.skew_wait_ns, one.comm_ns) for one in groups if one.skew_wait_ns is not None]
    whole = sum(comm for _, comm in known)
    if not known or not whole:
        return [
            Reading(
                None,
                reason="no collective was matched between ranks",
                looked_for=("skew-needs-ranks", "skew_wait"),
            )
        ]
    rest = len(groups) - len(known)
    note = f"{counted(rest, 'group')} without matched collectives not counted" if rest else ""
    return [Reading(sum(wait for wait, _ in known) / whole, note=note)]


def busbw(report: Report, _: Scope, within: Within | None) -> list[Reading]:
    """One reading for each operation of each group."""
    groups = _groups_of(report, within)
    if isinstance(groups, Reading):
        return [groups]
    made: list[Reading] = []
    for one in groups:
        for kind in one.bandwidth or ():
            where = Where(text=f"{kind.op} of {one.group}")
            why = "ranks are missing, so this is a lower bound" if kind.is_bound else "it is not known"
            known = kind.busbw_gbps is not None and not kind.is_bound
            reason = None if known else why
            made.append(
                Reading(
                    kind.busbw_gbps,
                    where,
                    reason,
                    _BANDWIDTH,
                    at_least=kind.is_bound,
                )
            )
    return made or [
        Reading(
            None,
            reason="no bandwidth is known",
            looked_for=_BANDWIDTH,
        )
    ]


def memory(report: Report, _: Scope, __: Within | None) -> list[Reading]:
    """The peak of each rank: on its GPUs where it has any, else on the CPU."""
    section = report.memory
    if section is None or not section.ranks:
        return [
            Reading(
                None,
                reason="the report holds no figures of memory",
                looked_for=_MEMORY,
            )
        ]
    on_gpu = [one for one in section.ranks if one.device_type != "cpu"]
    chosen = on_gpu or section.ranks
    made = [_peak(one) for one in chosen]
    return made + _without(report, (one.rank for one in chosen), "no peak of memory")


def _peak(one: MemoryFigures) -> Reading:
    where = Where(one.rank, one.device, one.peak_step, None, f"rank {one.rank}")
    if one.peak_bytes is None:
        return Reading(None, where, "its peak is not known", ("memory",))
    if one.is_relative:
        why = "it counts from what was allocated when the recording began, which the file does not tell"
        return Reading(one.peak_bytes, where, why, ("memory",), at_least=True)
    return Reading(one.peak_bytes, where)


def saved(report: Report, _: Scope, __: Within | None) -> list[Reading]:
    """What saved-tensor hooks counted; without hooks, what memory events show alive when backward begins."""
    section = report.memory
    hooks = [] if section is None else section.saved
    if hooks:
        made = [
            Reading(one.saved_bytes, Where(one.rank, text=f"rank {one.rank}"), note="from hooks")
            for one in hooks
        ]
        return made + _without(report, (one.rank for one in hooks), "no count of saved tensors")
    devices = [] if section is None else section.ranks
    chosen = [one for one in devices if one.device_type != "cpu"] or devices
    if not chosen:
        return [
            Reading(
                None,
                reason="the report holds no figures of memory",
                looked_for=_MEMORY,
            )
        ]
    made = [_kept(one) for one in chosen]
    return made + _without(report, (one.rank for one in chosen), "no figure of what it keeps")


def _kept(one: MemoryFigures) -> Reading:
    where = Where(one.rank, one.device, None, None, f"rank {one.rank}")
    if one.across_border_bytes is None:
        return Reading(None, where, "what it keeps for backward is not known", ("memory", "border"))
    return Reading(one.across_border_bytes, where, note="from memory events")


def _without(report: Report, known: Iterable[int | None], what: str) -> list[Reading]:
    """A reading for the ranks of the run that have none: a peak elsewhere may be the highest."""
    rest = sorted({r for r in report.run.ranks if r is not None} - {r for r in known if r is not None})
    if not rest or all(rank is None for rank in report.run.ranks):
        return []
    word = "rank" if len(rest) == 1 else "ranks"
    has = "has" if len(rest) == 1 else "have"
    return [Reading(None, reason=f"{word} {rank_list(rest)} {has} {what}", looked_for=("memory",))]


def coverage(report: Report, _: Scope, __: Within | None) -> list[Reading]:
    known = {
        "GEMM time whose role is known": report.coverage.gemm_role_known_ratio,
        "communication time whose purpose is known": report.coverage.purpose_known_ratio,
        "communication time whose operation, group and bytes are known": report.coverage.comm_metadata_ratio,
    }
    made = [Reading(value, Where(text=name)) for name, value in known.items() if value is not None]
    why = "there was neither a GEMM nor communication to know"
    return made or [Reading(None, reason=why)]


def missing_ranks(report: Report, _: Scope, __: Within | None) -> Sequence[Reading]:
    if report.run.world_size is None:
        return [Reading(None, reason="no file tells how many ranks there were", looked_for=("world",))]
    missing = report.run.ranks_missing
    where = Where(text=f"missing: {rank_list(missing)}") if missing else None
    return [Reading(len(missing), where)]
