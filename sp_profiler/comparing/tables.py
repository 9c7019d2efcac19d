"""A comparison in tables, the same on all screens: columns and rows only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sp_profiler.comparing import names
from sp_profiler.comparing.model import Comparison, Delta, GemmChange, KindChange, SiteChange
from sp_profiler.comparing.words import is_told
from sp_profiler.report.format import short_group
from sp_profiler.report.palette import MEMORY
from sp_profiler.report.sentences import op_name
from sp_profiler.report.view_ranks import Listing

_KIND_OF_UNIT = {
    "ns": ("ms", "ms"), "bytes": ("bytes", ""), "ratio": ("ratio", "%"), "count": ("number", ""),
    "gbps": ("number", "GB/s"),
}  # fmt: skip


MAIN = (
    "change-parts", "change-exposed-parts", "change-kinds", "change-figures", "change-ratios", "change-role",
    "change-layer", "change-sites", "change-gemms", "change-memory",
    "change-memory-across-border-by-category", "change-context", "change-context-ratios", "change-ranks",
    "change-findings", "change-settings",
)  # fmt: skip
"""The tables to show where there is room for some only."""


@dataclass(frozen=True)
class Section:
    """A table, and which of its rows tell of a change beyond noise."""

    listing: Listing
    changed: Sequence[bool]

    @property
    def only_changed(self) -> Listing:
        rows = [row for row, changed in zip(self.listing.rows, self.changed, strict=True) if changed]
        return replace(self.listing, rows=rows)


def delta_section(
    name: str,
    title: str,
    deltas: Iterable[Delta],
    told: Callable[[Delta], str],
    note: str = "",
    what: str = "What",
) -> Section:
    """A table of deltas of one unit, in their order; figures that neither run tells are left out."""
    shown = [one for one in deltas if one.base is not None or one.here is not None]
    kind, unit = _KIND_OF_UNIT[shown[0].unit] if shown else ("ms", "ms")
    if kind == "number" and all(_is_whole(value) for one in shown for value in (one.base, one.here)):
        kind = "int"
    columns = (
        (what, "text", ""),
        ("Base", kind, unit),
        ("This run", kind, unit),
        ("Difference", kind, unit),
        ("Change", "ratio", "%"),
        ("Noise", kind, unit),
        ("Verdict", "text", ""),
    )
    rows = [
        [
            told(one),
            *(_whole(value) if kind == "int" else value for value in (one.base, one.here, one.difference)),
            one.relative,
            one.noise,
            names.VERDICTS[one.verdict],
        ]
        for one in shown
    ]
    return Section(
        Listing(name, title, columns, rows, note, first_dropped=(5, 4)), [d.is_changed for d in shown]
    )


def _is_whole(value: float | None) -> bool:
    return value is None or value == int(value)


def _whole(value: float | None) -> float | None:
    """A count as people write it: 14, not 14.0."""
    return value if value is None or value != int(value) else int(value)


def _counts(*columns: Iterable[float | None]) -> str:
    """The kind of columns of counts: int where all are whole."""
    return "int" if all(_is_whole(value) for column in columns for value in column) else "number"


def sections(found: Comparison) -> list[Section]:
    """All tables that hold anything, what matters most first."""
    basis = "Means per step and rank." if found.base.window_rule == "step" else "Means per rank."
    times = [one for one in found.totals if one.unit == "ns"]
    made = [
        delta_section("change-parts", "Parts of the step", found.step_parts, part_name,
                      f"{basis} The differences sum to the step's."),
        _exposed_parts(found),
        _kinds(found, basis),
        delta_section("change-figures", "Figures", times, figure_name, basis),
        delta_section("change-ratios", "Ratios", [d for d in found.totals if d.unit == "ratio"], figure_name),
        *(_dimension(found, key, title, basis) for key, title in names.DIMENSIONS.items()),
        *_hiding(found, basis),
        _gemms(found, basis),
        *_memory(found),
        *_context(found),
        _contention(found),
        _ranks(found),
        *_groups(found),
        _sites(found),
        _pairs(found),
        delta_section("change-stragglers", "What the others lost to a rank", found.stragglers,
                      lambda d: d.name, "Per step."),
        delta_section("change-coverage", "What is known", found.coverage, figure_name),
        _findings(found),
        _settings(found),
    ]  # fmt: skip
    return [one for one in made if one.listing.rows]


def figure_name(one: Delta) -> str:
    return names.figure_name(one.figure)


def part_name(one: Delta) -> str:
    """`exposed.peer-skew` -> `Exposed: spent waiting for a late peer`."""
    first, _, cause = one.name.partition(".")
    if cause:
        return f"Exposed: {names.CAUSE_WORDS.get(cause, cause)}"
    return names.STEP_PARTS.get(first, first)


def kind_name(kind: KindChange) -> str:
    """`all-reduce · tp[0,1] · dgrad`."""
    return f"{op_name(kind.op)} · {short_group(kind.group)} · {kind.purpose}"


def gemm_name(gemm: GemmChange) -> str:
    return " ".join(str(part) for part in (gemm.role, gemm.shape or "unknown shape", gemm.dtype) if part)


def category_label(one: Delta) -> str:
    return MEMORY[one.name].label if one.name in MEMORY else one.name


def _exposed_parts(found: Comparison) -> Section:
    """What the difference in exposed time is made of."""
    parts = found.exposed_parts or []
    rows: list[list[Any]] = [[names.reason_name(part.reason, part.under), part.ns] for part in parts]
    whole = sum(part.ns for part in parts)
    if rows:
        rows.append(["Exposed communication", whole])
    exposed = next((one for one in found.totals if one.figure == "exposed_ns"), None)
    is_changed = exposed is not None and exposed.is_changed
    columns = (("Because of", "text", ""), ("Difference", "ms", "ms"))
    note = "Means per step and rank; the parts sum to the difference exactly."
    title = "What the difference in exposed time is made of"
    return Section(Listing("change-exposed-parts", title, columns, rows, note), [is_changed] * len(rows))


def _kinds(found: Comparison, basis: str) -> Section:
    kinds = found.kinds or []
    rows: list[list[Any]] = []
    for kind in kinds:
        counts = next((one for one in kind.figures if one.figure == "count"), None)
        one = kind.exposed
        told = one.is_changed or one.verdict == "noise-unknown"  # else there is nothing to explain
        because = kind.because if told else f"now {kind.became}hronous" if kind.became else ""
        rows.append(
            [
                kind_name(kind),
                None if counts is None else _whole(counts.base),
                None if counts is None else _whole(counts.here),
                one.base,
                one.here,
                one.difference,
                one.noise,
                names.VERDICTS[one.verdict],
                because,
            ]
        )
    number = _counts(row[1] for row in rows), _counts(row[2] for row in rows)
    columns = (
        ("Collectives", "text", ""),
        ("Base count", number[0], ""),
        ("Count", number[1], ""),
        ("Base exposed", "ms", "ms"),
        ("Exposed", "ms", "ms"),
        ("Difference", "ms", "ms"),
        ("Noise", "ms", "ms"),
        ("Verdict", "text", ""),
        ("Why", "text", ""),
    )
    listing = Listing(
        "change-kinds", "Collectives, by kind", columns, rows, basis, first_dropped=(8, 6, 1, 2)
    )
    return Section(listing, [is_told(kind) for kind in kinds])


def _dimension(found: Comparison, key: str, title: str, basis: str) -> Section:
    def told(one: Delta) -> str:
        if key == "role":
            return names.role_name(one.name)
        if key == "cause":
            return names.CAUSE_WORDS.get(one.name, one.name)
        return short_group(one.name) if key == "group" else op_name(one.name) if key == "op" else one.name

    shown = [one for one in found.by.get(key, ()) if one.base or one.here]
    label = {"group": "Group"}.get(key, "What")
    return delta_section(f"change-{key}", title, shown, told, basis, label)


def _hiding(found: Comparison, basis: str) -> list[Section]:
    times = [one for one in found.hiding_by_purpose if one.unit == "ns"]
    ratios = [one for one in found.hiding_by_purpose if one.unit == "ratio"]

    def told(one: Delta) -> str:
        return f"{one.name}: {figure_name(one).lower()}"

    return [
        delta_section("change-hiding", "Hidden of hideable, by purpose", times, told, basis),
        delta_section("change-hiding-ratios", "Hidden of hideable, as shares", ratios, told),
    ]


def _gemms(found: Comparison, basis: str) -> Section:
    def other(one: Sequence[str], two: Sequence[str]) -> str:
        return "" if not one or not two or one == two else "other kernels"

    rows: list[list[Any]] = [
        [
            gemm_name(gemm), _whole(gemm.count.base), _whole(gemm.count.here), gemm.time.base, gemm.time.here,
            gemm.time.difference, gemm.each.relative, gemm.time.noise, names.VERDICTS[gemm.time.verdict],
            other(gemm.base_kernels, gemm.here_kernels),
        ]
        for gemm in found.gemms
    ]  # fmt: skip
    number = _counts(row[1] for row in rows), _counts(row[2] for row in rows)
    columns = (
        ("GEMM", "text", ""), ("Base count", number[0], ""), ("Count", number[1], ""), ("Base", "ms", "ms"),
        ("This run", "ms", "ms"), ("Difference", "ms", "ms"), ("Each", "ratio", "%"), ("Noise", "ms", "ms"),
        ("Verdict", "text", ""), ("Kernels", "text", ""),
    )  # fmt: skip
    note = f"{basis} The noise is that of all computation, of which they are parts."
    listing = Listing("change-gemms", "GEMMs", columns, rows, note, first_dropped=(9, 7, 1, 2))
    return Section(listing, [g.time.is_changed or g.count.is_changed for g in found.gemms])


def _memory(found: Comparison) -> list[Section]:
    whole = ("memory.peak_bytes", "memory.across_border_bytes", "memory.saved_bytes", "memory.theory_bytes")
    words = {
        "memory.peak_bytes": "Peak", "memory.across_border_bytes": "Kept for backward",
        "memory.saved_bytes": "Saved for backward, by hooks",
        "memory.theory_bytes": "Saved, by the closed form",
    }  # fmt: skip
    grouped = {
        "memory.peak_by_category": "Peak memory by category",
        "memory.across_border_by_category": "Kept for backward, by category",
        "memory.across_border_by_module": "Kept for backward, by module",
        "memory.across_border_by_layer": "Kept for backward, by layer",
        "memory.across_border_by_operator": "Kept for backward, by operator",
        "memory.saved.terms": "Saved for backward, by term",
        "memory.ranks.peak_bytes": "Peak memory of each rank",
    }
    known = {*whole, *grouped}
    note = "Of the rank with most; without what the trace counts although it was free."
    main = [d for figure in whole for d in found.memory if d.figure == figure]
    rest = [d for d in found.memory if d.figure not in known]

    def told(one: Delta) -> str:
        return words.get(one.figure) or f"By hooks: {figure_name(one).lower()}"

    made = [delta_section("change-memory", "Memory", [*main, *rest], told, note)]
    for figure, title in grouped.items():
        name = f"change-{figure.replace('.', '-').replace('_', '-')}"
        mine = [d for d in found.memory if d.figure == figure]
        made.append(delta_section(name, title, mine, category_label))
    return made


def _context(found: Comparison) -> list[Section]:
    def told(one: Delta) -> str:
        return f"{one.name}: {figure_name(one).lower()}"

    made = []
    for unit, name, title in (
        ("ratio", "change-context-ratios", "Context parallelism, as shares"),
        ("ns", "change-context", "Context parallelism"),
        ("bytes", "change-context-bytes", "Context parallelism, bytes of a hop"),
    ):
        mine = [d for d in found.context_parallel if d.unit == unit]
        made.append(delta_section(name, title, mine, told, "Sums are per step and rank, hops medians."))
    return made


def _contention(found: Comparison) -> Section:
    mine = [one for one in found.contention if one.figure == "contention.slowdown_ratio"]
    note = "Median while overlapped over median while not."
    return delta_section("change-contention", "GEMMs beside communication", mine, lambda d: d.name, note)


_OF_RANK = ("window_ns", "compute_ns", "overlapped_ns", "exposed_ns", "idle_ns")


def _ranks(found: Comparison) -> Section:
    """The figures of each rank that matter most, ranks that differ most first."""
    several = len({one.device for one in found.ranks}) > 1
    pairs = [
        (f"{rank.rank}{f' device {rank.device}' if several else ''}: {figure_name(one).lower()}", one)
        for rank in found.ranks
        for one in rank.figures
        if one.figure in _OF_RANK
    ]
    told = {id(one): name for name, one in pairs}
    note = "Means per step of the rank."
    return delta_section("change-ranks", "Rank by rank", [one for _, one in pairs],
                         lambda d: told[id(d)], note, "Rank")  # fmt: skip


def _groups(found: Comparison) -> list[Section]:
    made = []
    for unit, title in (("ns", "Groups"), ("count", "Collectives of groups"), ("bytes", "Bytes of groups"),
                        ("gbps", "Bandwidth of groups")):  # fmt: skip
        deltas = [one for group in found.groups for one in group.figures if one.unit == unit]
        made.append(delta_section(f"change-groups-{unit}", title, deltas, _of_group))
    return made


def _of_group(one: Delta) -> str:
    return f"{short_group(one.name)}: {figure_name(one).lower()}"


def _site_name(site: SiteChange) -> str:
    where = site.module or (f"layer {site.layer}" if site.layer is not None else "no module")
    number = f" #{site.ordinal + 1}" if site.ordinal else ""
    return f"{where}{number} · {op_name(site.op)} · {site.purpose}"


def _sites(found: Comparison) -> Section:
    told = {id(site.exposed): _site_name(site) for site in found.sites or ()}
    note = "The same collective of the program in both runs: mean exposed time of one."
    mine = [site.exposed for site in found.sites or ()]
    return delta_section("change-sites", "Collectives, one by one", mine, lambda d: told[id(d)], note)


def _pairs(found: Comparison) -> Section:
    matched = found.matched
    rows: list[list[Any]] = [
        [
            f"{op_name(one.op)} · {one.purpose} · {one.module or 'no module'}",
            one.rank,
            one.ordinal_of_step + 1 if one.ordinal_of_step >= 0 else None,
            one.base_exposed_ns,
            one.here_exposed_ns,
            one.here_exposed_ns - one.base_exposed_ns,
            one.here_dur_ns - one.base_dur_ns,
            one.base_id,
            one.here_id,
        ]
        for one in (matched.largest if matched is not None else ())
    ]
    columns = (
        ("Collective", "text", ""), ("Rank", "int", ""), ("Step", "int", ""), ("Base exposed", "ms", "ms"),
        ("Exposed", "ms", "ms"), ("Difference", "ms", "ms"), ("Of duration", "ms", "ms"),
        ("Id in base", "int", ""), ("Id", "int", ""),
    )  # fmt: skip
    note = "" if matched is None else (
        f"{matched.pairs} found in both runs, {matched.only_base} only in the base, "
        f"{matched.only_here} only in this run; those that differ most. Steps are counted from 1."
    )  # fmt: skip
    listing = Listing("change-pairs", "Single collectives of both runs", columns, rows, note)
    return Section(listing, [False] * len(rows))


def _findings(found: Comparison) -> Section:
    rows: list[list[Any]] = [[one.change, one.code, one.severity, one.text] for one in found.findings]
    columns = (("Finding", "text", ""), ("Code", "text", ""), ("Severity", "text", ""), ("Text", "text", ""))
    listing = Listing(
        "change-findings", "Findings that came and went", columns, rows, "", first_dropped=(3, 2)
    )
    return Section(listing, [True] * len(rows))


def _settings(found: Comparison) -> Section:
    rows: list[list[Any]] = [
        [f"{one.where}: {one.name}", *(None if v is None else str(v) for v in (one.base, one.here))]
        for one in found.settings
    ]
    columns = (("Setting", "text", ""), ("Base", "text", ""), ("This run", "text", ""))
    return Section(Listing("change-settings", "Settings that differ", columns, rows, ""), [True] * len(rows))
