"""The tables of context parallelism as every format shows them: columns and rows only.

Times of a hop are of one pass: medians, and means of what is hidden and exposed, so that rows of one phase
add up to a pass. The data files hold the sums of every rank. Text from a trace stays as it is: who shows it
escapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sp_profiler.analysis.context_parallel.results import ContextParallel
from sp_profiler.report import context_balance_view
from sp_profiler.report.context import (
    SCHEME_NAMES,
    Family,
    copy_sums,
    exposure,
    families,
    in_runs,
    payload_name,
    plural,
)
from sp_profiler.report.context_cells import (
    BYTES,
    INT,
    MS,
    PARTS,
    PARTS_NOTE,
    RATIO,
    TEXT,
    UNKNOWN_PART,
    US,
    Columns,
    cells,
    part_cells,
    places,
)
from sp_profiler.report.format import counted, rank_list, visible
from sp_profiler.report.table import MOST_ROWS
from sp_profiler.report.view_ranks import Listing

_EXPLAINED = 3  # kinds of schemes of which the evidence is told

TERMINAL_ROWS = 16
"""Rows up to which hops and ring steps are all shown on a terminal."""

IN_TERMINAL = ("context-hops", "context-balance", "context-steps", "context-models", "context-copies")
"""The tables that a run's report shows on a terminal; the others are in its page and files."""


def listings(found: ContextParallel | None) -> list[Listing]:
    """Those that hold anything, most asked first."""
    kinds = families(found)
    made = (
        schemes(kinds),
        hops(kinds),
        context_balance_view.balance(kinds),
        context_balance_view.steps(kinds),
        models(kinds),
        copies(kinds),
        context_balance_view.ranks(kinds),
        hops_by_rank(kinds),
    )
    return [one for one in made if one.rows]


def schemes(kinds: Sequence[Family]) -> Listing:
    """What was found, and why it is taken for that."""
    rows = [
        (
            family,
            [
                SCHEME_NAMES[one.scheme],
                rank_list(list(one.ranks)),
                one.layout,
                {"workload": "run.json", "measured-work": "measured work"}.get(one.layout_rule or ""),
                {True: "causal", False: "none", None: None}[one.causal],
                one.forward_passes,
                one.backward_passes,
                one.incomplete_passes,
                ", ".join(one.groups),
            ],
        )
        for family in kinds
        for one in family.schemes
    ]
    columns = (
        ("Scheme", TEXT, ""),
        ("Ranks", TEXT, ""),
        ("Layout", TEXT, ""),
        ("Layout told by", TEXT, ""),
        ("Mask", TEXT, ""),
        ("Forward passes", INT, ""),
        ("Backward passes", INT, ""),
        ("Incomplete", INT, ""),
        ("Group", TEXT, ""),
    )
    found = [f"{family.name}: {visible(family.first.evidence).rstrip('.')}." for family in kinds[:_EXPLAINED]]
    found += [f"{counted(len(kinds) - _EXPLAINED, 'more kind')} below."] if len(kinds) > _EXPLAINED else []
    note = (
        "A pass is one forward or backward of attention in one layer, counted on the rank with most of them. "
        "Incomplete passes, cut by the window or with hops missing, are in no figure."
    )
    shown, made = cells(kinds[:1], columns, rows, ("Layout", "Layout told by", "Mask", "Incomplete"))
    return Listing(
        "context-schemes", "Context parallelism: what was found", shown, made, " ".join([*found, note])
    )


def hops(kinds: Sequence[Family], most: int = MOST_ROWS) -> Listing:
    """Hop by hop over all ranks: which of transfer and attention is larger, and what is hidden. More than
    `most` are put together to runs of neighbours."""
    drawn = [(family, one) for family in kinds for one in in_runs(family.hop_sums, most // len(kinds))]
    are_runs = any(one.hop != one.last for _, one in drawn)
    columns: Columns = (
        ("Phase", TEXT, ""),
        ("Hop", TEXT if are_runs else INT, ""),
        ("Sends", TEXT, ""),
        ("By", TEXT, ""),
        ("Size", BYTES, ""),
        ("Transfer", MS, "ms"),
        ("Attention", MS, "ms"),
        ("Larger", TEXT, ""),
        ("Transfer longer in", RATIO, "% of passes"),
        ("Hidden", RATIO, "%"),
        ("Exposed", MS, "ms"),
        *PARTS,
        ("Ranks", INT, ""),
    )
    rows = [
        (
            family,
            [
                one.phase, one.name if are_runs else one.hop, payload_name(one.payload), one.way,
                one.bytes, one.transfer_ns, one.attention_ns, one.larger, one.transfer_larger_ratio,
                *part_cells(one.exposure, one.passes), len({(hop.rank, hop.device) for hop in one.hops}),
            ],
        )
        for family, one in drawn
    ]  # fmt: skip
    optional = [UNKNOWN_PART, "Transfer longer in", "Attention", "Larger"]
    ways = list(dict.fromkeys(way for family in kinds for way in family.by_way))
    shown, made = cells(kinds, columns, rows, optional, leave_out=() if len(ways) > 1 else ("By",))
    note = (
        "Transfer (without the wait for the peer) and attention beside it: medians over ranks and passes. "
        f"Hidden and exposed: means of a rank's pass. {PARTS_NOTE} "
        "Empty attention: the schedule has none left for this hop."
    )
    adds = places(shown, "Exposed", *(label for label, *_ in PARTS))
    spare = ["Ranks", "Transfer longer in", *(("Size",) if len(ways) > 1 else ("Sends", "Size"))]
    title = f"{' and '.join(plural(way) for way in ways)} beside attention"
    title = title[:1].upper() + title[1:] + (", neighbours together" if are_runs else "")
    first = places(shown, *spare)
    return Listing("context-hops", title, shown, made, note, "of one pass", adds, first)


def hops_by_rank(kinds: Sequence[Family]) -> Listing:
    """Each hop of each rank, most exposed first; nothing where a family has one rank alone."""
    columns: Columns = (
        ("Phase", TEXT, ""),
        ("Hop", INT, ""),
        ("Sends", TEXT, ""),
        ("Rank", INT, ""),
        ("From", INT, ""),
        ("To", INT, ""),
        ("Size", BYTES, ""),
        ("Took", MS, "ms"),
        ("Transfer", MS, "ms"),
        ("Attention", MS, "ms"),
        ("Larger", TEXT, ""),
        ("Hidden", RATIO, "%"),
        ("Exposed", MS, "ms"),
        *PARTS,
        ("Passes", INT, ""),
        ("Group", TEXT, ""),
    )
    every = [(family, hop) for family in kinds for hop in family.hops]
    every.sort(key=lambda pair: -pair[1].exposed_ns)
    rows = [
        (
            family,
            [
                hop.phase, hop.hop, payload_name(hop.payload), hop.rank, hop.source, hop.target, hop.bytes,
                hop.dur_ns, hop.transfer_ns, hop.attention_ns, hop.larger,
                *part_cells(exposure([hop]), hop.passes), hop.passes, hop.group,
            ],
        )
        for family, hop in every
    ]  # fmt: skip
    shown, made = cells(kinds, columns, rows, (UNKNOWN_PART,))
    note = "Most exposed first. Took: with the wait for the peer. Means and medians of a pass, as above."
    return Listing("context-hops-ranks", "Every hop of every rank", shown, made, note)


def models(kinds: Sequence[Family]) -> Listing:
    """The step model beside the measured pass."""
    columns: Columns = (
        ("Phase", TEXT, ""),
        ("Hops", MS, "ms"),
        ("Attention", MS, "ms"),
        ("Ran", TEXT, ""),
        ("Residual", RATIO, "%"),
        ("Pass, measured", MS, "ms"),
        ("Pass, overlapped", MS, "ms"),
        ("Latency", US, "µs"),
        ("Bandwidth", "number", "GB/s"),
        ("Size", BYTES, ""),
        ("Ring steps", INT, ""),
        ("Group", TEXT, ""),
    )
    every = [(family, one) for family in kinds for one in family.models]
    rows = [
        (
            family,
            [
                one.phase, one.hop_ns, one.attention_ns, one.schedule, one.residual_ratio,
                one.measured_pass_ns, one.model_pass_ns, one.latency_ns,
                None if one.bytes_per_s is None else one.bytes_per_s / 1e9, one.hop_bytes, one.ring_steps,
                one.group,
            ],
        )
        for family, one in every
    ]  # fmt: skip
    shown, made = cells(kinds, columns, rows, ("Ran", "Latency", "Bandwidth"))
    note = (
        "Overlapped, a ring step takes max(bytes / bandwidth + latency, attention); in turn, their sum. "
        "Hops: of all that travels beside one block; where all have one size, latency and bandwidth are not "
        "told apart. Residual: the median of what the model of the schedule that ran and the measured steps "
        "differ by, of the measured. Pass, overlapped: what the model gives where hops are."
    )
    if any(one.is_this_machine_only for _, one in every):
        note += " Of a CPU run the fit is this machine's and says nothing of a network."
    title = "The step model beside the measurement"
    return Listing("context-models", title, shown, made, note, "of one pass", (), [-1, -2, -3])


def copies(kinds: Sequence[Family]) -> Listing:
    """All-to-alls and the copies around them."""
    columns: Columns = (
        ("Phase", TEXT, ""),
        ("All-to-alls", INT, ""),
        ("Took", MS, "ms"),
        ("Exposed", MS, "ms"),
        ("Layout copies", INT, ""),
        ("Copies took", MS, "ms"),
        ("Passes", INT, ""),
        ("Ranks", INT, ""),
    )
    rows = [
        (
            family,
            [
                one.phase, one.all_to_alls, one.comm_ns, one.exposed_ns, one.copies, one.copy_ns, one.passes,
                one.ranks,
            ],
        )
        for family in kinds
        for one in copy_sums(family)
    ]  # fmt: skip
    shown, made = cells(kinds, columns, rows)
    note = (
        "Copies bring heads and tokens into the order of an all-to-all: neither attention nor communication."
    )
    adds = places(shown, "All-to-alls", "Took", "Exposed", "Layout copies", "Copies took")
    title = "All-to-alls and their layout copies"
    basis = "sums over all ranks and steps"
    return Listing("context-copies", title, shown, made, note, basis, adds, [-1, -2])


def in_terminal(found: ContextParallel | None) -> list[Listing]:
    """The tables of a run's report on a terminal: many hops in runs, of many ring steps the least even."""
    kinds = families(found)
    few = {
        "context-hops": lambda: hops(kinds, TERMINAL_ROWS),
        "context-steps": lambda: context_balance_view.steps(kinds, TERMINAL_ROWS),
    }
    chosen = [one for one in listings(found) if one.id in IN_TERMINAL]
    return [replace(few[one.id]() if one.id in few else one, note="") for one in chosen]
