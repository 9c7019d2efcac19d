"""What was assumed between ranks, and why figures that need several of them are null."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.joined import NO_GROUP, Joined
from sp_profiler.analysis.results import RankResult
from sp_profiler.ledger import Ledger, LedgerEntry, Severity

_NAMED = 5  # hosts named in a text


def notes(run: Joined, results: Sequence[RankResult]) -> tuple[LedgerEntry, ...]:
    """The ledger of the stage. `results` hold the collectives with what was found."""
    ledger = Ledger()
    if len(run.traced) > 1:
        _say_matching(run, ledger)
        _say_clocks(run, ledger)
    else:
        text = (
            "one rank alone: skew_wait is null, transfer is the whole duration (an upper bound), "
            "and bandwidths are lower bounds"
        )
        ledger.add("skew-needs-ranks", "note", text)
    peers = [number for number, key in enumerate(run.ends.keys) if not key.is_known]
    text = (
        "send/recv in groups of more than two name no peer: nobody knows who waited for whom, "
        "skew_wait is null and bandwidths are lower bounds"
    )
    _count(run, ledger, peers, "p2p-peers-unknown", "note", text)
    _say_bandwidth(run, ledger, results)
    return ledger.entries


def _say_bandwidth(run: Joined, ledger: Ledger, results: Sequence[RankResult]) -> None:
    """Collectives whose transfer is known and bandwidth is not (of CPU runs that is said elsewhere)."""
    missing = without_factor = 0
    for place, i in enumerate(run.taking):
        if run.arrivals[place].is_cpu:
            continue
        rows = Collectives.of(results[i].collectives)
        moved = (rows.numbers("transfer_ns").or_zero() != 0) & ~rows.words("op").where(
            lambda op: op == "barrier"
        )
        algbw, busbw = rows.numbers("algbw_gbps").is_known, rows.numbers("busbw_gbps").is_known
        missing += int((moved & ~algbw).sum())
        without_factor += int((moved & algbw & ~busbw).sum())
    if missing:
        text = "algbw and busbw are null where the size is not known"
        ledger.add("bandwidth-unknown", "note", text, count=missing)
    if without_factor:
        text = "busbw is null where the group's size, or a factor for the operation, is not known"
        ledger.add("busbw-unknown", "note", text, count=without_factor)


def _say_matching(run: Joined, ledger: Ledger) -> None:
    matched, keys = run.matched, run.ends.keys
    for number in matched.inconsistent:
        name = keys[number].label or NO_GROUP
        text = f"Seq of group {name} contradicts operations, sizes or times: matched by order instead"
        _count(run, ledger, [number], "seq-inconsistent", "assumption", text)
    ordered = [n for n in matched.by_order if n not in matched.inconsistent and not keys[n].is_assumed]
    text = "collectives without Seq were matched by their order, checked by operation, size and time"
    _count(run, ledger, ordered, "matched-by-order", "note", text)
    assumed = [n for n, key in enumerate(keys) if key.is_assumed and key.is_known]
    text = "no metadata names the group of these collectives: all ranks that show the operation were taken"
    _count(run, ledger, assumed, "group-assumed", "assumption", text)
    text = "groups without a rank list have more ranks than members: several share a name, none is matched"
    _count(run, ledger, matched.ambiguous, "group-ambiguous", "note", text)
    impossible = int((run.instances.impossible[:-1] & run.shown).sum())
    if impossible:
        text = "in some matched collectives a rank leaves before another arrives: their skew_wait is null"
        ledger.add("skew-impossible", "note", text, count=impossible)
    lacking = len(run.lacking)
    if lacking:
        text = "some ranks' traces lack collectives (see unmatched); their transfer is an upper bound"
        ledger.add("collectives-unmatched", "note", text, count=lacking)
    apart = int((run.instances.apart[:-1] & run.shown).sum())
    if apart:
        text = "collectives end at different times on different ranks although the clocks are aligned"
        ledger.add("ends-disagree", "note", text, count=apart)


def _say_clocks(run: Joined, ledger: Ledger) -> None:
    clocks = run.clocks.clocks
    applied = [clock for clock in clocks if clock.applied]
    if applied:
        named = "; ".join(
            f"{clock.host or _ranks(clock.ranks)} {clock.offset_ns:+} ns"
            for clock in applied[:_NAMED]
            if clock.offset_ns is not None
        )
        named += f" and {len(applied) - _NAMED} more" if len(applied) > _NAMED else ""
        text = f"clocks of hosts were aligned by the ends of their collectives: {named}"
        ledger.add("clock-offset-applied", "assumption", text, count=len(applied))
    if run.clocks.assumed_one_host:
        text = "nothing names a host; base times are equal and ends agree, so ranks share a clock"
        ledger.add("one-host-assumed", "assumption", text)
    apart = int((np.unique(run.clocks.component) != 0).sum())
    if apart:
        text = "no collective connects these clocks with the first host's: their offset is null"
        ledger.add("clock-unconnected", "note", text, count=apart)


def _ranks(ranks: Sequence[int]) -> str:
    more = ", ..." if len(ranks) > _NAMED else ""
    return f"ranks {', '.join(map(str, ranks[:_NAMED]))}{more}"


def _count(
    run: Joined, ledger: Ledger, keys: Sequence[int], code: str, severity: Severity, text: str
) -> None:
    rows = int((np.isin(run.key_of_row, np.array(keys, np.int64)) & run.chosen).sum()) if keys else 0
    if rows:
        ledger.add(code, severity, text, count=rows)
