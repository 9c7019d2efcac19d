"""The comparison of two reports, put together: pure, so equal reports compare equally."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from sp_profiler import __version__
from sp_profiler.comparing import figures, gemms, settings, sites, words
from sp_profiler.comparing.context import context_parallel
from sp_profiler.comparing.figures import largest_first
from sp_profiler.comparing.fleet import fleet_kind_changes
from sp_profiler.comparing.groups import Groups, match_groups
from sp_profiler.comparing.kinds import kind_changes
from sp_profiler.comparing.memory import memory
from sp_profiler.comparing.model import Comparison, Delta, FindingChange, GroupChange, Unit
from sp_profiler.comparing.noise import LEAST_RATIO, delta
from sp_profiler.comparing.reasons import because
from sp_profiler.comparing.side import Side, resolution_ns
from sp_profiler.report.comparison import run_figures
from sp_profiler.report.model import Finding, Report, Tool


def compare(base: Report, here: Report) -> Comparison:
    """What changed from `base` to `here`: every figure of both, judged against the noise of the steps.

    Where the windows of one are steps and of the other the whole trace, times and counts are not comparable:
    their figures are there, with verdict unknown and no difference.
    """
    one, two = Side(base), Side(here)
    names = settings.labels(base, here)
    groups = match_groups(one, two)
    complete = one.has_all_collectives and two.has_all_collectives
    kinds, parts = (
        kind_changes(one, two, groups, because) if complete else fleet_kind_changes(one, two, because)
    )
    site_changes, matched = sites.match(one, two, groups) if complete else (None, None)
    found = Comparison(
        tool=Tool("sp-profiler", __version__),
        runs=[run_figures(base), run_figures(here)],
        base=settings.facts(one, names[0]),
        here=settings.facts(two, names[1]),
        is_different=None,
        summary=[],
        notes=settings.notes(one, two, names),
        settings=settings.differing(base, here),
        totals=figures.totals(one, two),
        step_parts=figures.step_parts(one, two),
        by=figures.by_dimension(one, two, groups),
        hiding_by_purpose=figures.hiding_by_purpose(one, two),
        exposed_parts=parts,
        ranks=figures.ranks(one, two),
        groups=_groups(one, two, groups),
        kinds=kinds,
        sites=site_changes,
        matched=matched,
        gemms=gemms.gemms(one, two),
        contention=gemms.contention(one, two),
        stragglers=_stragglers(one, two),
        memory=memory(base, here),
        context_parallel=context_parallel(one, two),
        coverage=_coverage(base, here),
        findings=_findings(base, here),
    )
    if one.is_by_step != two.is_by_step:
        found = _without_times(found)
    found = replace(found, is_different=_is_different(found))
    return replace(found, summary=words.summary(found))


def deltas(found: Comparison) -> Iterator[Delta]:
    """Every figure of a comparison."""
    yield from found.totals
    yield from found.step_parts
    for one in found.by.values():
        yield from one
    yield from found.hiding_by_purpose
    for rank in found.ranks:
        yield from rank.figures
    for group in found.groups:
        yield from group.figures
    for kind in found.kinds or ():
        yield kind.exposed
        yield from kind.figures
        yield from kind.by_cause
    for site in found.sites or ():
        yield from (site.exposed, site.duration)
    for gemm in found.gemms:
        yield from (gemm.time, gemm.count, gemm.each)
    for one in (found.contention, found.stragglers, found.memory, found.context_parallel, found.coverage):
        yield from one


def _is_different(found: Comparison) -> bool | None:
    """Whether a sentence tells of a change. Single collectives, modules or ranks do not count alone: of a
    hundred figures that did not change one is beyond its noise by chance."""
    if words.changes(found):
        return True
    step = [one for one in found.totals if one.figure in _MAIN]
    main = [*step, *(kind.exposed for kind in found.kinds or ())]
    unsure = any(one.verdict in ("noise-unknown", "unknown") or one.is_moved for one in main)
    return None if unsure else False


_MAIN = ("window_ns", "compute_ns", "overlapped_ns", "exposed_ns", "idle_ns")
"""The figures of a step by which two runs are alike."""


def _groups(base: Side, here: Side, groups: Groups) -> list[GroupChange]:
    """The figures of each process group, or of those under one name together, per step and rank."""
    found = []
    for match in groups.matches:
        both = [_summed(side, keys) for side, keys in ((base, match.base), (here, match.here))]
        there = (bool(match.base), bool(match.here))
        made = []
        for name in dict.fromkeys([*both[0], *both[1]]):
            unit = _unit_of(name)
            made.append(
                delta(
                    f"groups.{name}",
                    match.name,
                    unit,
                    both[0].get(name),
                    both[1].get(name),
                    resolution=resolution_ns(base, here) if unit == "ns" else 1e-9,
                    noise_from="counted" if name in ("collectives", "bytes") else None,
                    is_there=there,
                )
            )
        found.append(GroupChange(match.name, list(match.base), list(match.here), match.by, made))
    return sorted(found, key=lambda one: -max((abs(d.contribution) for d in one.figures), default=0.0))


def _unit_of(name: str) -> Unit:
    if name.endswith("_ns"):
        return "ns"
    if name.startswith("busbw"):
        return "gbps"
    return "bytes" if name == "bytes" else "count"


def _summed(side: Side, keys: tuple[str, ...]) -> dict[str, float | None]:
    mine = [group for group in side.report.groups if group.group in keys]
    found: dict[str, float | None] = {}
    for name in ("collectives", "bytes", "comm_ns", "overlapped_ns", "exposed_share_ns", "skew_wait_ns"):
        values = [getattr(group, name) for group in mine]
        known = bool(values) and None not in values
        found[name] = sum(values) / side.windows if known else None
    rows = [row for group in mine for row in group.bandwidth or ()]
    for op in dict.fromkeys(row.op for row in rows):
        same = [row for row in rows if row.op == op and row.busbw_gbps is not None]
        time = sum(row.transfer_ns for row in same)
        weighted = sum((row.busbw_gbps or 0) * row.transfer_ns for row in same)
        found[f"busbw_gbps {op}"] = weighted / time if time else None
    return {name: round(v) if v is not None and name.endswith("_ns") else v for name, v in found.items()}


def _stragglers(base: Side, here: Side) -> list[Delta]:
    """What the others lost to each rank, per step; its noise is not known."""
    both = [
        {f"rank {one.rank}": round(one.cost_ns / side.step_count) for one in side.report.stragglers or ()}
        for side in (base, here)
    ]
    if base.report.stragglers is None or here.report.stragglers is None:
        return []
    return largest_first(
        [
            delta("stragglers.cost_ns", name, "ns", both[0].get(name, 0), both[1].get(name, 0),
                  resolution=resolution_ns(base, here))
            for name in dict.fromkeys([*both[0], *both[1]])
        ]
    )  # fmt: skip


def _coverage(base: Report, here: Report) -> list[Delta]:
    names = ("gemm_role_known_ratio", "purpose_known_ratio", "comm_metadata_ratio")
    return [
        delta(f"coverage.{name}", "", "ratio", getattr(base.coverage, name), getattr(here.coverage, name),
              resolution=LEAST_RATIO)
        for name in names
    ]  # fmt: skip


def _findings(base: Report, here: Report) -> list[FindingChange]:
    """Findings of a kind that only one run has, or has more of."""
    found: list[FindingChange] = []
    for mine, others, change in ((base, here, "went"), (here, base, "came")):
        left = Counter(one.code for one in others.findings)
        for one in mine.findings:
            if left[one.code]:
                left[one.code] -= 1
            else:
                found.append(_finding(one, came=change == "came"))
    return found


def _finding(one: Finding, *, came: bool) -> FindingChange:
    return FindingChange("came" if came else "went", one.code, one.severity, one.text)


def _without_times(found: Comparison) -> Comparison:
    """Of a run with steps beside one without: times and counts of a window have no common measure."""

    def bare(one: Delta) -> Delta:
        if one.unit not in ("ns", "count") or one.verdict in ("only-base", "only-here"):
            return one
        return replace(one, difference=None, relative=None, noise=None, noise_from=None, verdict="unknown")

    def all_bare(some: list[Delta]) -> list[Delta]:
        return [bare(one) for one in some]

    return replace(
        found,
        totals=all_bare(found.totals),
        step_parts=all_bare(found.step_parts),
        by={name: all_bare(some) for name, some in found.by.items()},
        hiding_by_purpose=all_bare(found.hiding_by_purpose),
        exposed_parts=None,
        ranks=[replace(one, figures=all_bare(one.figures)) for one in found.ranks],
        groups=[replace(one, figures=all_bare(one.figures)) for one in found.groups],
        kinds=None,
        sites=None,
        matched=None,
        gemms=[
            replace(one, time=bare(one.time), count=bare(one.count), each=bare(one.each))
            for one in found.gemms
        ],
        stragglers=all_bare(found.stragglers),
        context_parallel=all_bare(found.context_parallel),
    )
