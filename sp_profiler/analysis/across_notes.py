"""What was assumed between ranks, and why figures that need several of them are null."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sp_profiler.analysis.clocks import Clocks
from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.joined import NO_GROUP, Joined
from sp_profiler.analysis.results import RankResult
from sp_profiler.ledger import Ledger, LedgerEntry, Severity

_NAMED = 5  # hosts named in a text


@dataclass(frozen=True)
class NoteCounts:
    """What the notes count; of several groups they add up."""

    inconsistent: tuple[tuple[str, int], ...] = ()  # groups whose Seq is contradicted, and their collectives
    ordered: int = 0
    assumed: int = 0
    ambiguous: int = 0
    impossible: int = 0
    lacking: int = 0
    apart: int = 0
    peers_unknown: int = 0


def counts_of(run: Joined) -> NoteCounts:
    matched, keys = run.matched, run.ends.keys
    wrong = matched.inconsistent
    rows = [(keys[number].label or NO_GROUP, _rows(run, [number])) for number in wrong]
    return NoteCounts(
        inconsistent=tuple((name, count) for name, count in rows if count),
        ordered=_rows(run, [n for n in matched.by_order if n not in wrong and not keys[n].is_assumed]),
        assumed=_rows(run, [n for n, key in enumerate(keys) if key.is_assumed and key.is_known]),
        ambiguous=_rows(run, matched.ambiguous),
        impossible=int((run.instances.impossible[:-1] & run.shown).sum()),
        lacking=len(run.lacking),
        apart=int((run.instances.apart[:-1] & run.shown).sum()),
        peers_unknown=_rows(run, [n for n, key in enumerate(keys) if not key.is_known]),
    )


def notes(run: Joined, results: Sequence[RankResult]) -> tuple[LedgerEntry, ...]:
    """The ledger of the stage. `results` hold the collectives with what was found."""
    ledger = Ledger()
    say_all(counts_of(run), run.clocks, len(run.traced) > 1, ledger)
    missing = without_factor = 0
    for place, i in enumerate(run.taking):
        if not run.arrivals[place].is_cpu:
            unknown = bandwidths_unknown(Collectives.of(results[i].collectives))
            missing, without_factor = missing + unknown[0], without_factor + unknown[1]
    say_bandwidth(missing, without_factor, ledger)
    return ledger.entries


def say_all(counts: NoteCounts, clocks: Clocks, several: bool, ledger: Ledger) -> None:
    """What was assumed of matches and clocks. `several`: more than one rank has a trace here."""
    if several:
        _say_matching(counts, ledger)
        _say_clocks(clocks, ledger)
    else:
        text = (
            "one rank alone: skew_wait is null, transfer is the whole duration (an upper bound), "
            "and bandwidths are lower bounds"
        )
        ledger.add("skew-needs-ranks", "note", text)
    text = (
        "send/recv in groups of more than two name no peer: nobody knows who waited for whom, "
        "skew_wait is null and bandwidths are lower bounds"
    )
    _count(counts.peers_unknown, ledger, "p2p-peers-unknown", "note", text)


def bandwidths_unknown(rows: Collectives) -> tuple[int, int]:
    """Of how many collectives the transfer is known and algbw is not, and algbw is and busbw is not."""
    moved = (rows.numbers("transfer_ns").or_zero() != 0) & ~rows.words("op").where(lambda op: op == "barrier")
    algbw, busbw = rows.numbers("algbw_gbps").is_known, rows.numbers("busbw_gbps").is_known
    return int((moved & ~algbw).sum()), int((moved & algbw & ~busbw).sum())


def say_bandwidth(missing: int, without_factor: int, ledger: Ledger) -> None:
    """What `bandwidths_unknown` counted (of CPU runs that is said elsewhere)."""
    if missing:
        text = "algbw and busbw are null where the size is not known"
        ledger.add("bandwidth-unknown", "note", text, count=missing)
    if without_factor:
        text = "busbw is null where the group's size, or a factor for the operation, is not known"
        ledger.add("busbw-unknown", "note", text, count=without_factor)


def _say_matching(counts: NoteCounts, ledger: Ledger) -> None:
    for name, rows in counts.inconsistent:
        text = f"Seq of group {name} contradicts operations, sizes or times: matched by order instead"
        _count(rows, ledger, "seq-inconsistent", "assumption", text)
    text = "collectives without Seq were matched by their order, checked by operation, size and time"
    _count(counts.ordered, ledger, "matched-by-order", "note", text)
    text = "no metadata names the group of these collectives: all ranks that show the operation were taken"
    _count(counts.assumed, ledger, "group-assumed", "assumption", text)
    text = "groups without a rank list have more ranks than members: several share a name, none is matched"
    _count(counts.ambiguous, ledger, "group-ambiguous", "note", text)
    text = "in some matched collectives a rank leaves before another arrives: their skew_wait is null"
    _count(counts.impossible, ledger, "skew-impossible", "note", text)
    text = "some ranks' traces lack collectives (see unmatched); their transfer is an upper bound"
    _count(counts.lacking, ledger, "collectives-unmatched", "note", text)
    text = "collectives end at different times on different ranks although the clocks are aligned"
    _count(counts.apart, ledger, "ends-disagree", "note", text)


def _say_clocks(clocks: Clocks, ledger: Ledger) -> None:
    applied = [clock for clock in clocks.clocks if clock.applied]
    if applied:
        named = "; ".join(
            f"{clock.host or _ranks(clock.ranks)} {clock.offset_ns:+} ns"
            for clock in applied[:_NAMED]
            if clock.offset_ns is not None
        )
        named += f" and {len(applied) - _NAMED} more" if len(applied) > _NAMED else ""
        text = f"clocks of hosts were aligned by the ends of their collectives: {named}"
        ledger.add("clock-offset-applied", "assumption", text, count=len(applied))
    if clocks.assumed_one_host:
        text = "nothing names a host; base times are equal and ends agree, so ranks share a clock"
        ledger.add("one-host-assumed", "assumption", text)
    apart = int((np.unique(clocks.component) != 0).sum())
    if apart:
        text = "no collective connects these clocks with the first host's: their offset is null"
        ledger.add("clock-unconnected", "note", text, count=apart)


def _ranks(ranks: Sequence[int]) -> str:
    more = ", ..." if len(ranks) > _NAMED else ""
    return f"ranks {', '.join(map(str, ranks[:_NAMED]))}{more}"


def _rows(run: Joined, keys: Sequence[int]) -> int:
    """How many rows inside the windows have one of these keys."""
    return int((np.isin(run.key_of_row, np.array(keys, np.int64)) & run.chosen).sum()) if keys else 0


def _count(rows: int, ledger: Ledger, code: str, severity: Severity, text: str) -> None:
    if rows:
        ledger.add(code, severity, text, count=rows)
