"""The main sentences of a report, most important first, from its numbers only.

Every number is per step: the mean over the windows of all ranks. With another window rule it is the
mean per rank. A figure that is not known is said to be so, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from sp_profiler.analysis.kinds import CollectiveKinds
from sp_profiler.analysis.results import CollectiveFigures, Figures, Hiding, RankFigures, Straggler
from sp_profiler.report.format import counted, duration, listed, percent, visible

_OPS = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "send_recv": "send/recv",
}
_NAMED_PARTS = 3  # purposes named in one sentence; the rest is summed up
_LEADS = 0.1  # from this part of the communication on the headline is about dgrad collectives


def op_name(op: str | None) -> str:
    """`all_reduce` -> `all-reduce`, as the field writes it."""
    return "collective" if op is None else _OPS.get(op, visible(op).replace("_", "-"))


@dataclass(frozen=True)
class Basis:
    """What the sentences are made of. `windows` counts (rank, device, step), the base of every mean."""

    totals: Figures
    ranks: Sequence[RankFigures]
    collectives: Sequence[CollectiveFigures] | CollectiveKinds
    steps: int  # 0: the window is the whole trace
    windows: int
    is_cpu: bool
    skew_wait_ns: int | None = None  # all waits for the last rank; None: no collective was matched
    stragglers: Sequence[Straggler] = ()

    @cached_property
    def kinds(self) -> CollectiveKinds:
        """The collectives by kind."""
        return CollectiveKinds.of(self.collectives)

    @property
    def per(self) -> str:
        return " per step" if self.steps else " per rank" if len(self.ranks) > 1 else ""

    @property
    def whole(self) -> str:
        return "step" if self.steps else "trace"

    def mean(self, ns: int) -> float:
        return ns / max(self.windows, 1)

    @property
    def leads_with_dgrad(self) -> bool:
        dgrad, whole = self.totals.dgrad_comm_ns, self.totals.comm_ns
        return bool(dgrad and whole) and (dgrad or 0) >= _LEADS * (whole or 0)


def collectives_on_ranks(
    collectives: Sequence[CollectiveFigures] | CollectiveKinds, adjective: str = ""
) -> str:
    """`28 collectives on each of 2 ranks`: what ranks do together is a collective of each of them."""
    kinds = CollectiveKinds.of(collectives)
    by_rank = kinds.by_rank() or {}
    noun = f"{adjective} collective".strip()
    if len(by_rank) < 2:
        return counted(len(kinds), noun)
    if len(set(by_rank.values())) == 1:
        return f"{counted(next(iter(by_rank.values())), noun)} on each of {len(by_rank)} ranks"
    return f"{counted(len(kinds), noun)}, {len(by_rank)} ranks together"


def sentences(basis: Basis) -> list[str]:
    """The summary of a report; at least one sentence for any trace."""
    totals = basis.totals
    if not basis.ranks or not totals.window_ns:
        return ["No activity was found in this trace, so no figure is known."]
    if not totals.comm_ns:
        return [_no_communication(basis), _average(basis)]
    parts = (_hiding, _why_exposed, _nothing_overlaps, _under_which_role, _hideable_unknown, _purpose_unknown)
    parts += (_waiting, _if_all_hidden, _net_gain, _average, _cpu_run)
    return [sentence for say in parts if (sentence := say(basis))]


def _no_communication(basis: Basis) -> str:
    beside = sum(rank.cpu_comm_ns or 0 for rank in basis.ranks)
    if beside:
        return (
            f"No communication on a device in this trace; {duration(beside)} of gloo communication "
            "on the CPU is reported apart, because computation on a device says nothing of it."
        )
    if basis.totals.comm_ns is None:
        return "Whether this trace holds communication is not known; the data-quality ledger says why."
    return "No communication in this trace, so there is nothing to hide and nothing exposed."


def _hiding(basis: Basis) -> str:
    totals = basis.totals
    if basis.leads_with_dgrad and totals.wgrad_overlapped_ns is not None:
        clause = _wgrad_clause(basis)
    elif not totals.overlapped_ns:
        clause = "Computation hides nothing of the communication"
    else:
        clause = f"Computation hides {percent(totals.overlap_ratio)} of the communication"
        clause += _of_hideable(basis, totals)
    return f"{clause}; {_exposed_clause(basis)}."


def _wgrad_clause(basis: Basis) -> str:
    totals = basis.totals
    dgrad = basis.kinds.where(lambda kind: kind.purpose == "dgrad")
    names = sorted({op_name(entry.kind.op) for entry in dgrad.entries})
    what = f"the dgrad {names[0]}" if len(names) == 1 else "the dgrad collectives"
    share = percent(totals.wgrad_overlap_ratio) if totals.wgrad_overlapped_ns else "nothing"
    return f"wgrad hides {share} of {what}" + _of_hideable(
        basis, totals.hiding_by_purpose.get("dgrad"), "the dgrad communication that"
    )


def _of_hideable(basis: Basis, hiding: Hiding | Figures | None, what: str = "what") -> str:
    if hiding is None or hiding.partner_hideable_ns is None or not hiding.partner_hideable_ns:
        return ""
    if not hiding.partner_hidden_ns:
        could = duration(basis.mean(hiding.partner_hideable_ns))
        return f", though {could}{basis.per} could be hidden"
    if hiding.partner_hidden_ns == hiding.partner_hideable_ns:
        return ", all that could be hidden"
    return f", {percent(hiding.hidden_of_hideable)} of {what} could be hidden"


def _exposed_clause(basis: Basis) -> str:
    exposed = basis.totals.exposed_ns
    if exposed is None:
        return "how much stays exposed is not known"
    if exposed == 0:
        return "no communication stays exposed"
    clause = f"{duration(basis.mean(exposed))}{basis.per} stay exposed"
    return clause + _parts_clause(basis, basis.totals.exposed_by_purpose_ns)


def _parts_clause(basis: Basis, by_purpose: Mapping[str, int]) -> str:
    parts = sorted(((ns, key) for key, ns in by_purpose.items() if ns), key=lambda part: (-part[0], part[1]))
    if not parts:
        return ""
    if len(parts) == 1:
        return f", all of it in {_purpose(parts[0][1])}"
    named = [f"{duration(basis.mean(ns))} in {_purpose(key)}" for ns, key in parts[:_NAMED_PARTS]]
    rest = sum(ns for ns, _ in parts[_NAMED_PARTS:])
    if rest:
        named.append(f"{duration(basis.mean(rest))} in the remaining ones")
    return f", of which {listed(named)}"


# Of each cause what is said of "2 ms" and of "all of it".
_CAUSES = {
    "peer-skew": ("are spent waiting for a late peer", "is spent waiting for a late peer"),
    "synchronous": ("are in synchronous collectives", "is in synchronous collectives"),
    "partner-too-short": ("outlast the computation they run under", "outlasts the computation it runs under"),
    "late-partner": (
        "come before the computation starts that they should run under",
        "comes before the computation starts that it should run under",
    ),
    "queued": (
        "are in collectives that began late, queued behind others",
        "is in collectives that began late, queued behind others",
    ),
    "no-partner": ("had nothing launched to run under", "had nothing launched to run under"),
    "unknown": ("have a cause that the trace does not tell", ""),
}


def _why_exposed(basis: Basis) -> str:
    """The exposed time by cause (DESIGN section 6), largest first."""
    exposed, causes = basis.totals.exposed_ns, basis.totals.exposed_by_cause_ns
    if not exposed or not causes:
        return ""
    parts = sorted(((ns, key) for key, ns in causes.items() if ns), key=lambda part: (-part[0], part[1]))
    if [key for _, key in parts] == ["unknown"]:
        return "The trace does not tell why any of it is exposed."
    if len(parts) == 1:
        return f"All of the exposed time {_CAUSES[parts[0][1]][1]}."
    named, before = list[str](), ""
    for ns, key in parts:
        said = _CAUSES[key][0]
        if key == "late-partner" and before == "partner-too-short":
            said = "come before that computation starts"
        named.append(f"{duration(basis.mean(ns))} {said}")
        before = key if key == "partner-too-short" else before
    return f"Of the {duration(basis.mean(exposed))} exposed{basis.per}, {listed(named)}."


def _purpose(key: str) -> str:
    if key == "unknown":
        return "collectives of unknown purpose"
    return "collectives of purpose 'other'" if key == "other" else f"{visible(key)} collectives"


def _nothing_overlaps(basis: Basis) -> str:
    if basis.totals.overlapped_ns != 0 or not basis.collectives:
        return ""
    kinds = basis.kinds
    one_each = set((kinds.by_rank() or {}).values()) == {1}
    only = "the only collective" if len(kinds) == 1 else "the only collective of each rank"
    asynchronous = kinds.count(lambda kind: kind.is_async is True)
    if not asynchronous and not kinds.count(lambda kind: kind.is_async is None):
        if one_each:
            return f"Nothing overlaps: {only} is synchronous."
        return f"Nothing overlaps: all {collectives_on_ranks(kinds)} are synchronous."
    though = (
        f", though {asynchronous} {'is' if asynchronous == 1 else 'are'} asynchronous" if asynchronous else ""
    )
    none = f"{only} does not run" if one_each else f"none of the {collectives_on_ranks(kinds)} runs"
    return f"Nothing overlaps: {none} while the device computes{though}."


def _under_which_role(basis: Basis) -> str:
    overlapped = basis.totals.overlapped_ns
    if not overlapped:
        return ""
    parts = [(ns, role) for role, ns in basis.totals.overlapped_by_role_ns.items() if ns]
    parts.sort(key=lambda part: (-part[0], part[1]))
    what = f"{duration(basis.mean(overlapped))} of communication{basis.per} are hidden"
    if len(parts) == 1:
        return f"{what}, all of it under {_role(parts[0][1])}."
    named = [f"{duration(basis.mean(ns))} under {_role(role)}" for ns, role in parts]
    return f"{what}: {listed(named)}."


_ROLES = {
    "fwd": "forward GEMMs",
    "optimizer": "the optimizer",
    "other": "other computation (norms, element-wise, convolutions, ...)",
    "unknown": "computation of unknown role",
}


def _role(role: str) -> str:
    return _ROLES.get(role, role)


def _hideable_unknown(basis: Basis) -> str:
    totals = basis.totals
    if totals.partner_hideable_ns is None:
        return (
            "How much could have been hidden is not known: no collective has a known partner "
            "(the GEMMs it should hide under)."
        )
    if totals.dgrad_comm_ns is None:
        return "How much wgrad hides is not known: of no collective the purpose is known."
    return ""


def _purpose_unknown(basis: Basis) -> str:
    unknown = basis.kinds.where(lambda kind: kind.purpose == "unknown").total("dur_ns")
    whole = basis.kinds.total("dur_ns")
    if not unknown or not whole:
        return ""
    share = percent(unknown / whole)
    return f"The purpose of {share} of the communication time is unknown; it never counts as dgrad."


def _if_all_hidden(basis: Basis) -> str:
    """DESIGN section 4, Hiding. Not said of CPU runs, where overlap does not shorten the step."""
    totals = basis.totals
    if basis.is_cpu or totals.step_ns_if_all_hidden is None or totals.partner_hideable_ns is None:
        return ""
    slowest = max((rank.window_ns or 0 for rank in basis.ranks), default=0)
    count = max(basis.steps, 1)
    now, then = slowest / count, totals.step_ns_if_all_hidden / count
    if then >= now:
        if not totals.exposed_ns:
            return "Everything that could be hidden is hidden."
        return "Everything that could be hidden is hidden; what stays exposed is communication-bound."
    gain = max(0, totals.partner_hideable_ns - (totals.partner_hidden_ns or 0))
    rest = "" if gain >= (totals.exposed_ns or 0) else "; the rest is communication-bound"
    return (
        f"If everything hideable were hidden the {basis.whole} would take {duration(then)} "
        f"instead of {duration(now)}{rest}."
    )


def _waiting(basis: Basis) -> str:
    """What ranks lost to each other, and to whom most (DESIGN: Across ranks)."""
    if not basis.skew_wait_ns:
        return ""
    waited = duration(basis.mean(basis.skew_wait_ns))
    who = f"Ranks wait {waited} per step" if basis.steps else f"A rank waits {waited}"
    said = f"{who} for the last to arrive{_waited_share(basis)}"
    if not basis.stragglers:
        return f"{said}; no rank is later than the others beyond what the clocks can tell."
    worst = basis.stragglers[0]
    whole = worst.cost_ns == basis.skew_wait_ns
    lost = "all of it is" if whole else f"{duration(basis.mean(worst.cost_ns))} of it are"
    times = counted(worst.collectives, "matched collective")
    return f"{said}; {lost} for rank {worst.rank}, which is last in {times}."


def _waited_share(basis: Basis) -> str:
    """What part of the time in collectives the waits are, and how much of them is exposed."""
    waited = basis.skew_wait_ns or 0
    inside = basis.kinds.total("compared_ns")
    exposed = (basis.totals.exposed_by_cause_ns or {}).get("peer-skew", 0)
    said = (
        f", {percent(waited / inside)} of the time in the collectives that could be compared"
        if inside
        else ""
    )
    if not 0 < exposed <= waited:
        return said
    shown = "all" if exposed == waited else duration(basis.mean(exposed))
    return f"{said}{' and' if said else ','} {shown} of it exposed"


def _net_gain(basis: Basis) -> str:
    """What overlap wins after what it costs the GEMMs beside it (DESIGN: Contention)."""
    totals = basis.totals
    if not totals.overlapped_ns or totals.net_gain_ns is None or not totals.slowdown_ns:
        return ""
    lost, gain = duration(basis.mean(totals.slowdown_ns)), basis.mean(totals.net_gain_ns)
    if gain <= 0:
        return f"Overlap slows the GEMMs beside it by {lost}{basis.per}, more than it hides."
    return f"Overlap slows the GEMMs beside it by {lost}{basis.per}: it wins {duration(gain)} in the end."


def _average(basis: Basis) -> str:
    totals = basis.totals
    named = (
        ("computation", totals.compute_ns),
        ("exposed communication", totals.exposed_ns),
        ("copies alone", totals.memory_op_only_ns),
        ("idle", totals.idle_ns),
    )
    parts = [f"{what} {duration(basis.mean(ns))}" for what, ns in named if ns]
    takes = duration(basis.mean(totals.window_ns or 0))
    mean = " on average" if basis.windows > 1 else ""
    count = len({(r.rank, r.file) for r in basis.ranks})
    of = [counted(basis.steps, "step")] if basis.steps and basis.windows > 1 else []
    of += [counted(count, "rank")] if count > 1 else []
    base = f"{'A step takes' if basis.steps else 'The trace spans'} {takes}{mean}"
    base += f" ({' of '.join(of)})" if of else ""
    return f"{base}: {', '.join(parts)}." if parts else f"{base}."


def _cpu_run(basis: Basis) -> str:
    if not basis.is_cpu:
        return ""
    return "This is a CPU run: read it for its structure, what runs under what, not for its speed."
