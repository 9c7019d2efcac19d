"""What a report's main sentences say of context parallelism, from its numbers only.

Times are means per step and rank, as in all sentences; what belongs to one pass is said to.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from sp_profiler.analysis.context_parallel.results import ContextParallel
from sp_profiler.report.context import (
    PHASES,
    Exposure,
    Family,
    PhaseBalance,
    balances,
    copy_sums,
    families,
    larger,
    middle,
    phase_place,
    plural,
)
from sp_profiler.report.format import counted, duration, listed, percent, visible
from sp_profiler.report.sentences import Basis

_NAMED = 3  # families told of in sentences; of the others there are tables

PART_TEXTS = {
    "communication": ("are communication with every peer there", "communication with every peer there"),
    "imbalance": (
        "wait for a peer that had more attention to compute",
        "waiting for a peer that had more attention to compute",
    ),
    "skew": (
        "wait for a peer that came late for another reason",
        "waiting for a peer that came late for another reason",
    ),
    "unknown": (
        "have a cause that is not known, because their ranks were not matched",
        "of a cause that is not known, because its ranks were not matched",
    ),
}
"""What an exposed part is, said of "2 ms" and of "all of it"."""


def sentences(found: ContextParallel | None, basis: Basis) -> list[str]:
    """Of each kind of scheme how much is hidden, what the rest is, and how evenly the work is divided."""
    told: list[str] = []
    kinds = families(found)
    for family in kinds[:_NAMED]:
        parts = (
            _hiding(family, basis),
            _sizes(family, basis),
            _balance(family, basis),
            _copies(family, basis),
        )
        told += [sentence for sentence in parts if sentence]
    if len(kinds) > _NAMED:
        names = [family.name for family in kinds[_NAMED:]]
        told.append(f"The tables tell of {counted(len(names), 'more scheme')}: {listed(names)}.")
    return told


def _hiding(family: Family, basis: Basis) -> str:
    if family.first.scheme == "unknown":
        return f"{family.name}: {visible(family.first.evidence)}"
    told = [text for way in family.by_way if (text := _way(family, way, basis))]
    if told:
        return f"{family.name}: {'. '.join([told[0], *(_sentence(text) for text in told[1:])])}."
    return (
        f"{family.name} was found, but none of its transfers could be measured: "
        "the data-quality ledger says why."
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _way(family: Family, way: str, basis: Basis) -> str:
    """What is hidden of the time of its hops (or all-to-alls, ...), phase by phase, and what the rest is."""
    phases = sorted({hop.phase for hop in family.by_way[way]}, key=phase_place)
    known = [(phase, family.exposure(phase, way).hidden_ratio) for phase in phases]
    told = [(phase, ratio) for phase, ratio in known if ratio is not None]
    if not told:
        return ""
    whole = family.exposure(way=way)
    if len({ratio for _, ratio in told}) == 1 and told[0][1] in (0, 1):
        share = f"{'all' if told[0][1] else 'nothing'} of its {plural(way)}' time"
    else:
        (phase, ratio), *rest = told
        said = [f"{percent(ratio)} of its {phase} {plural(way)}' time"]
        share = listed([*said, *(f"{percent(ratio)} of {phase}'s" for phase, ratio in rest)])
    return f"computation hides {share}{_exposed(whole, basis)}"


def _exposed(whole: Exposure, basis: Basis) -> str:
    if not whole.exposed_ns:
        return ", nothing stays exposed"
    stay = f"{duration(basis.mean(whole.exposed_ns))} of it{basis.per} stay exposed"
    return f"; {stay}{parts_clause(whole.parts, basis)}"


def parts_clause(parts: Mapping[str, int], basis: Basis) -> str:
    """ ", of which 1.2 ms wait for ... and 0.3 ms are communication"."""
    present = sorted(((ns, key) for key, ns in parts.items() if ns), key=lambda part: -part[0])
    if len(present) == 1:
        return f", all of it {PART_TEXTS[present[0][1]][1]}"
    named = [f"{duration(basis.mean(ns))} {PART_TEXTS[key][0]}" for ns, key in present]
    return f", of which {listed(named)}"


def _sizes(family: Family, basis: Basis) -> str:
    """Which of transfer and attention was the longer. Not of CPU runs: there it says nothing of a network."""
    if basis.is_cpu or not family.is_ring:
        return ""
    told: list[tuple[str, int, int, str]] = []
    for phase in PHASES:
        sums = [one for one in family.hop_sums if (one.way, one.phase) == ("hop", phase) and one.larger]
        transfer, attention = middle(s.transfer_ns for s in sums), middle(s.attention_ns for s in sums)
        if transfer is not None and attention is not None:
            told.append((phase, transfer, attention, larger(transfer, attention) or ""))
    if not told:
        return ""
    (phase, hop_ns, block_ns, _), *rest = told
    said = f"A {phase} hop takes {duration(hop_ns)} and the block it can run under {duration(block_ns)}"
    more = [f"a {phase} hop {duration(one)} and {duration(two)}" for phase, one, two, _ in rest]
    verdict = _verdict({phase: which for phase, _, _, which in told})
    return f"{', '.join([said, *more])} (medians): {verdict}."


def _verdict(by_phase: Mapping[str, str]) -> str:
    """Whether hops can be hidden whole."""
    fits = [phase for phase, which in by_phase.items() if which != "transfer"]
    if not fits:
        return "neither can be hidden whole" if len(by_phase) > 1 else "it cannot be hidden whole"
    if len(fits) == len(by_phase):
        return "both can be hidden whole" if len(by_phase) > 1 else "it can be hidden whole"
    return f"only the {fits[0]} hop can be hidden whole"


def _balance(family: Family, basis: Basis) -> str:
    told = [one for one in balances(family) if one.measured_ratio is not None or one.ideal_ratio is not None]
    if not told:
        return ""
    measured = [one for one in told if one.measured_ratio is not None]
    counting = _counted(family, told)
    if not measured:
        return f"How even the work of its ranks is was not measured; {counting}."
    if basis.is_cpu:
        shared = f"{_even(measured)} where ranks share the cores"
        return f"Its ranks' work was {shared}{f'; {counting}' if counting else ''}."
    text = f"Its ranks' work is {_even(measured)}"
    text += f" ({counting})" if counting else ""
    lost = [f"{duration(one.lost_ns)} of a {one.phase} pass" for one in measured if one.lost_ns]
    if not lost:
        return f"{text}."
    what = "ring step" if family.is_ring else "pass"
    return f"{text}: where every {what} lasts as long as on its slowest rank, a rank loses {listed(lost)}."


def _even(measured: list[PhaseBalance]) -> str:
    shown = [(one.phase, percent(one.measured_ratio)) for one in measured]
    if len({text for _, text in shown}) == 1:
        return f"{shown[0][1]} even" if len(shown) > 1 else f"{shown[0][1]} even in {shown[0][0]}"
    (phase, text), *rest = shown
    return listed([f"{text} even in {phase}", *(f"{text} in {phase}" for phase, text in rest)])


def _counted(family: Family, told: list[PhaseBalance]) -> str:
    """What counting gives for the layout, the same in both phases."""
    ratios = [one.ideal_ratio for one in told if one.ideal_ratio is not None]
    if not ratios:
        return ""
    layout = f" for {family.first.layout}" if family.first.layout else ""
    return f"counting gives {percent(median(ratios))}{layout}"


def _copies(family: Family, basis: Basis) -> str:
    sums = copy_sums(family)
    took = sum(one.copy_ns for one in sums)
    if not took:
        return ""
    count = sum(one.copies for one in sums)
    return (
        f"{counted(count, 'copy', 'copies')} that bring heads and tokens into the order of the all-to-alls "
        f"take {duration(basis.mean(took))}{basis.per}: they are neither attention nor communication."
    )
