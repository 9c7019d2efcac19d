"""Context parallelism of a run: the reduction over all ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sp_profiler.analysis.context_parallel.balance import balance_of
from sp_profiler.analysis.context_parallel.families import EXCHANGES, GATHERS, UNKNOWN
from sp_profiler.analysis.context_parallel.hops import hops_of, pass_hops
from sp_profiler.analysis.context_parallel.lines import PHASES
from sp_profiler.analysis.context_parallel.model import models_of
from sp_profiler.analysis.context_parallel.results import ContextParallel, Hop, LayoutCopies
from sp_profiler.analysis.context_parallel.schemes import schemes_of
from sp_profiler.analysis.context_parallel.split import split
from sp_profiler.analysis.context_parallel.tables import Rows, Shown, kind_of, rows_of, shown_in
from sp_profiler.analysis.context_parallel.told import told_of
from sp_profiler.analysis.joined import Joined
from sp_profiler.analysis.results import RankResult
from sp_profiler.ledger import Ledger, LedgerEntry


def context_parallel(
    results: Sequence[RankResult], run: Joined | None, run_json: Mapping[str, Any] | None
) -> tuple[ContextParallel | None, tuple[LedgerEntry, ...]]:
    """What the ranks show together, None where none shows any, and what could not be looked at.

    `results` with their collectives filled in across ranks; `run` is what was matched.
    """
    shown = _of_one_kind(shown_in(results))
    if not shown:
        return None, ()
    told = told_of(run_json)
    by_group: dict[str, list[Shown]] = {}
    for one in shown:
        by_group.setdefault(one.group, []).append(one)
    schemes, of_group = schemes_of(by_group, told)
    rows = rows_of(shown, results, run)
    hops = pass_hops(rows, shown)
    table = hops_of(hops, rows, split(rows), shown)
    hops_by_group: dict[str, list[Hop]] = {}
    for hop in table:
        hops_by_group.setdefault(hop.group, []).append(hop)
    balance, models = [], []
    for group, members in by_group.items():
        scheme = of_group[group]
        mine = hops_by_group.get(group, [])
        balance += balance_of(group, members, mine, told, scheme.layout, scheme.causal)
        places = [s for s, one in enumerate(shown) if one.group == group]
        models += models_of(group, places, shown, hops, rows)
    found = ContextParallel(schemes, table, models, balance, _layout_copies(shown, rows))
    return found, _notes(found, shown)


def _of_one_kind(shown: list[Shown]) -> list[Shown]:
    """The families of each group that were read as those of most ranks; of another kind, or of another number
    of ring steps, a rank's passes stay unread. All-to-alls and a ring of one group are told apart."""
    found: list[Shown] = []
    groups: dict[tuple[str, bool], list[Shown]] = {}
    for one in shown:
        groups.setdefault((one.group, one.family.kind == EXCHANGES), []).append(one)
    for members in groups.values():
        kind = kind_of(members)
        steps = Counter(_steps(one) for one in members if one.family.kind == kind)
        usual = max(steps, key=lambda many: (steps[many], many))
        found += [
            one if one.family.kind == kind and (kind == GATHERS or _steps(one) == usual) else _unread(one)
            for one in members
        ]
    return found


def _steps(one: Shown) -> int:
    return one.family.passes.attention_ns.shape[1]


def _unread(one: Shown) -> Shown:
    passes = one.family.passes
    lost = passes.is_incomplete | passes.is_whole
    passes = replace(passes, is_whole=np.zeros(len(passes), np.bool_), is_incomplete=lost)
    return replace(one, family=replace(one.family, kind=UNKNOWN, passes=passes))


def _layout_copies(shown: Sequence[Shown], rows: Rows) -> list[LayoutCopies]:
    found: list[LayoutCopies] = []
    for s, one in enumerate(shown):
        if one.family.kind != EXCHANGES:
            continue
        by_phase = {copies.phase: copies for copies in one.family.copies}
        mine = np.flatnonzero((rows.shown == s) & rows.is_whole)
        phase = one.family.passes.phase[rows.of_pass[mine] - rows.first_pass[s]]
        for code in np.unique(phase).tolist():
            at = mine[phase == code]
            copies = by_phase.get(code)
            whole = one.family.passes.is_whole & (one.family.passes.phase == code)
            found.append(
                LayoutCopies(
                    group=one.group,
                    rank=one.rank,
                    device=one.device,
                    phase=PHASES[code],
                    passes=int(whole.sum()),
                    all_to_alls=len(at),
                    comm_ns=int((rows.end_ns - rows.start_ns)[at].sum()),
                    exposed_ns=int(rows.exposed_ns[at].sum()),
                    copies=copies.copies if copies is not None else 0,
                    copy_ns=copies.copy_ns if copies is not None else 0,
                )
            )
    return found


def _notes(found: ContextParallel, shown: Sequence[Shown]) -> tuple[LedgerEntry, ...]:
    """Why figures are null, and what is in none."""
    ledger = Ledger()
    incomplete = sum(int(one.family.passes.is_incomplete.sum()) for one in shown)
    if incomplete:
        text = "passes of attention that the window cuts or that lack transfers: not in context_parallel"
        ledger.add("context-pass-incomplete", "note", text, count=incomplete)
    unmatched = sum(hop.communication_ns is None for hop in found.hops)
    if unmatched:
        text = (
            "hops whose ranks were not all matched: how much of their exposed time is communication, "
            "imbalance or skew is null"
        )
        ledger.add("context-hop-unmatched", "note", text, count=unmatched)
    unknown = sum(scheme.scheme == "unknown" for scheme in found.schemes)
    if unknown:
        text = "groups that carry keys and values of attention in a way that fits no known scheme"
        ledger.add("context-scheme-unknown", "note", text, count=unknown)
    return ledger.entries
