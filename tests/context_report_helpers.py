"""Context parallelism by arithmetic alone: a ring whose every hop follows from its schedule.

Nothing here uses the analyses. Rank i posts hop s when it has finished ring step s - 1; the hop ends when it
and the rank before it have both come, and the transfer is over. `async`: ring step s is computed meanwhile;
`sync`: before. Backward is a ring like forward, with attention and hops of twice the length, that sends
dK and dV too.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from io import StringIO
from typing import Any

from report_helpers import US, make_report
from rich.console import Console

from sp_profiler.analysis.context_parallel.results import (
    Balance,
    ContextParallel,
    Hop,
    LayoutCopies,
    Scheme,
    StepModel,
)
from sp_profiler.report import context_view
from sp_profiler.report.context_sentences import sentences
from sp_profiler.report.model import Report
from sp_profiler.report.sentences import Basis
from sp_profiler.report.view_ranks import Listing


def scores(layout: str, ranks: int, tokens: int, *, causal: bool = True) -> list[list[int]]:
    """Scores of rank i in ring step s, counted one by one from the tokens that each rank holds."""
    n, p = tokens, ranks
    if layout == "contiguous":
        held = [list(range(i * n, (i + 1) * n)) for i in range(p)]
    elif layout == "zigzag":
        half = n // 2
        held = [
            [*range(i * half, (i + 1) * half), *range((2 * p - 1 - i) * half, (2 * p - i) * half)]
            for i in range(p)
        ]
    else:
        held = [list(range(i, n * p, p)) for i in range(p)]
    return [
        [sum(key <= query or not causal for query in held[i] for key in held[(i - s) % p]) for s in range(p)]
        for i in range(p)
    ]


@dataclass(frozen=True)
class Ring:
    """The ring that is drawn; times are of forward."""

    ranks: int = 4
    layout: str = "zigzag"
    comm: str = "async"
    tokens: int = 16  # of a rank
    causal: bool = True
    score_ns: int = 10_000
    transfer_ns: int = 400 * US
    passes: int = 6
    late: int | None = None  # a rank that comes late into every pass ...
    late_ns: int = 300 * US  # ... by this much
    scheme: str = "ring"
    matched: bool = True
    first_rank: int = 0
    sizes: dict[str, int] = field(default_factory=lambda: {"kv": 8 << 20, "dkv": 16 << 20})

    @property
    def members(self) -> list[int]:
        return list(range(self.first_rank, self.first_rank + self.ranks))

    @property
    def group(self) -> str:
        return f"cp[{','.join(map(str, self.members))}]"


def attention_ns(ring: Ring, phase: str) -> list[list[int]]:
    factor = ring.score_ns * (1 if phase == "forward" else 2)
    return [[count * factor for count in row] for row in _scores(ring)]


def _scores(ring: Ring) -> list[list[int]]:
    return scores(ring.layout, ring.ranks, ring.tokens, causal=ring.causal)


def draw_hops(ring: Ring, phase: str) -> list[Hop]:
    """The hops of a phase, every pass like the other."""
    work, p = attention_ns(ring, phase), ring.ranks
    transfer = ring.transfer_ns * (1 if phase == "forward" else 2)
    now = [ring.late_ns if i == ring.late else 0 for i in range(p)]
    hops: list[Hop] = []
    for s in range(p - 1):
        begin = now if ring.comm == "async" else [now[i] + work[i][s] for i in range(p)]
        both = [max(begin[i], begin[i - 1]) for i in range(p)]
        end = [both[i] + transfer for i in range(p)]
        for i in range(p):
            beside = work[i][s] if ring.comm == "async" else 0
            hidden = min(beside, end[i] - begin[i])
            waited = max(0, both[i] - begin[i] - beside)
            exposed = end[i] - begin[i] - hidden
            known = ring.matched
            hops.append(
                Hop(
                    group=ring.group,
                    rank=ring.members[i],
                    device=0,
                    phase=phase,
                    payload="kv" if phase == "forward" else "dkv",
                    hop=s,
                    passes=ring.passes,
                    source=ring.members[i - 1],
                    target=ring.members[(i + 1) % p],
                    bytes=ring.sizes["kv" if phase == "forward" else "dkv"],
                    dur_ns=end[i] - begin[i],
                    transfer_ns=transfer if known else None,
                    attention_ns=work[i][s],
                    larger=_larger(transfer, work[i][s]) if known else None,
                    passes_transfer_larger=(ring.passes if transfer > work[i][s] else 0) if known else None,
                    hidden_ns=hidden * ring.passes,
                    exposed_ns=exposed * ring.passes,
                    communication_ns=(exposed - waited) * ring.passes if known else None,
                    imbalance_ns=(waited if s else 0) * ring.passes if known else None,
                    skew_ns=(0 if s else waited) * ring.passes if known else None,
                )
            )
        after = [begin[i] + work[i][s] for i in range(p)] if ring.comm == "async" else end
        now = [max(after[i], end[i]) for i in range(p)]
    return hops


def _larger(transfer: int, attention: int) -> Any:
    return "equal" if transfer == attention else "transfer" if transfer > attention else "attention"


def draw_balance(ring: Ring, phase: str, hops: list[Hop]) -> Balance:
    work = attention_ns(ring, phase)
    slowest = [max(column) for column in zip(*work, strict=True)]
    own = [sum(row) for row in work]
    ratio = sum(own) / (ring.ranks * sum(slowest))
    causes: dict[str, list[int] | None] = {}
    for name in ("imbalance_ns", "communication_ns", "skew_ns"):
        by_rank: dict[int | None, int] = defaultdict(int)
        for hop in hops:
            by_rank[hop.rank] += getattr(hop, name) or 0
        causes[name] = [by_rank[rank] for rank in ring.members] if ring.matched else None
    limits = {"contiguous": ring.ranks / (2 * ring.ranks - 1), "zigzag": 1.0, "striped": 1.0}
    return Balance(
        group=ring.group,
        phase=phase,
        ranks=ring.members,
        work_ns=[list[int | None](row) for row in work],
        scores=_scores(ring),
        measured_ratio=ratio,
        ideal_ratio=ratio,
        limit_ratio=limits[ring.layout] if ring.causal else 1.0,
        lost_ns=[sum(slowest) - mine for mine in own],
        **causes,
    )


def draw(*rings: Ring, is_cpu: bool = False) -> ContextParallel:
    """What a report says of these rings."""
    schemes, hops, models, balance = [], [], [], []
    for ring in rings:
        schemes.append(
            Scheme(
                scheme=ring.scheme,  # type: ignore[arg-type]
                ranks=ring.members,
                groups=[ring.group],
                evidence="send/recv to the next rank of the group, attention beside each.",
                layout=ring.layout,
                layout_rule="workload",
                causal=ring.causal,
                forward_passes=ring.passes,
                backward_passes=ring.passes,
                incomplete_passes=0,
            )
        )
        for phase in ("forward", "backward"):
            drawn = draw_hops(ring, phase)
            hops += drawn
            balance.append(draw_balance(ring, phase, drawn))
            models.append(_model(ring, phase, drawn, is_cpu))
    return ContextParallel(schemes, hops, models, balance, [])


def _model(ring: Ring, phase: str, hops: list[Hop], is_cpu: bool) -> StepModel:
    middle = sorted(hop.attention_ns or 0 for hop in hops)[len(hops) // 2]
    hop_ns = hops[0].transfer_ns
    measured = sum(max(hop.dur_ns, hop.attention_ns or 0) for hop in hops if hop.rank == ring.first_rank)
    model = None if hop_ns is None else (ring.ranks - 1) * max(hop_ns, middle)
    residual = None if model is None else abs(model - measured) / measured
    steps = ring.passes * ring.ranks * ring.ranks
    return StepModel(
        group=ring.group,
        phase=phase,
        ring_steps=steps,
        hop_bytes=hops[0].bytes,
        hop_ns=hop_ns,
        latency_ns=None,
        bytes_per_s=None,
        attention_ns=middle,
        measured_pass_ns=measured,
        model_pass_ns=model,
        residual_ratio=residual,
        is_this_machine_only=is_cpu,
    )


def exchanges(group: str, members: list[int], passes: int = 6) -> tuple[list[Hop], list[LayoutCopies]]:
    """All-to-alls of 200 us, one beside another rank's lateness of 30 us, and two copies of 50 us a pass."""
    hops = [
        Hop(
            group=group,
            rank=rank,
            device=0,
            phase=phase,
            payload=payload,
            hop=number,
            passes=passes,
            source=None,
            target=None,
            bytes=4 << 20,
            dur_ns=200 * US,
            transfer_ns=170 * US,
            attention_ns=None,
            larger=None,
            passes_transfer_larger=None,
            hidden_ns=0,
            exposed_ns=passes * 200 * US,
            communication_ns=passes * 170 * US,
            imbalance_ns=0,
            skew_ns=passes * 30 * US,
        )
        for rank in members
        for phase, payloads in EXCHANGED.items()
        for number, payload in enumerate(payloads)
    ]
    copies = [
        LayoutCopies(
            group=group,
            rank=rank,
            device=0,
            phase=phase,
            passes=passes,
            all_to_alls=4 * passes,
            comm_ns=4 * passes * 200 * US,
            exposed_ns=4 * passes * 200 * US,
            copies=2 * passes,
            copy_ns=2 * passes * 50 * US,
        )
        for rank in members
        for phase in EXCHANGED
    ]
    return hops, copies


EXCHANGED = {"forward": ("q", "k", "v", "out"), "backward": ("dout", "dqkv", "dqkv", "dqkv")}


def ulysses(ranks: int = 4) -> ContextParallel:
    """Four all-to-alls in forward and four in backward, all of them exposed."""
    members = list(range(ranks))
    group = f"cp[{','.join(map(str, members))}]"
    found = draw(Ring(ranks=ranks))
    hops, copies = exchanges(group, members)
    scheme = replace(found.schemes[0], scheme="ulysses", layout=None, layout_rule=None)
    return ContextParallel([scheme], hops, [], [], copies)


def usp() -> ContextParallel:
    """Two rings of two ranks, and all-to-alls between their neighbours."""
    found = draw(Ring(ranks=2, layout="contiguous"), Ring(ranks=2, layout="contiguous", first_rank=2))
    inside = [exchanges("ulysses[0,2]", [0, 2]), exchanges("ulysses[1,3]", [1, 3])]
    groups = [*(group for scheme in found.schemes for group in scheme.groups), "ulysses[0,2]", "ulysses[1,3]"]
    scheme = replace(found.schemes[0], scheme="usp", ranks=[0, 1, 2, 3], groups=groups)
    hops = [*found.hops, *(hop for hops, _ in inside for hop in hops)]
    copies = [one for _, copies in inside for one in copies]
    return replace(found, schemes=[scheme], hops=hops, layout_copies=copies)


def with_context(found: ContextParallel | None, **more: Any) -> Report:
    """A drawn report that has this section; `more` as of `make_report`."""
    ranks = sorted({rank for scheme in found.schemes for rank in scheme.ranks}) if found else [0, 1]
    return replace(make_report(ranks=len(ranks), **more), context_parallel=found)


RINGS = {
    "even": Ring(),
    "sync": Ring(comm="sync"),
    "contiguous": Ring(layout="contiguous"),
    "striped": Ring(layout="striped", transfer_ns=3000 * US),
    "late": Ring(late=2, late_ns=2000 * US),
    "unmatched": Ring(transfer_ns=3000 * US, matched=False),
    "no mask": Ring(causal=False),
}


def said(found: ContextParallel | None, *, is_cpu: bool = False) -> list[str]:
    report = make_report(ranks=4)
    windows = len(report.steps)
    return sentences(found, Basis(report.totals, report.ranks, report.collectives, 3, windows, is_cpu))


def table(found: ContextParallel, name: str) -> Listing:
    (one,) = [one for one in context_view.listings(found) if one.id == name]
    return one


def column(one: Listing, label: str) -> list[Any]:
    (place,) = [place for place, (name, *_) in enumerate(one.columns) if name == label]
    return [row[place] for row in one.rows]


def printed(print_it: Any, *args: Any, width: int = 120, terminal_like: bool = False) -> str:
    console = Console(file=StringIO(), width=width, force_terminal=terminal_like, color_system=None)
    print_it(*args, console=console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def runs() -> list[Report]:
    """As `sp-profile run demo-long-context` has them, in another order."""
    kinds = (("contiguous", "async"), ("zigzag", "async"), ("zigzag", "sync"))
    reports = [
        named(with_context(draw(Ring(layout=layout, comm=comm))), "ring", layout, comm)
        for layout, comm in kinds
    ]
    return [named(with_context(ulysses()), "ulysses", None, "sync"), *reports]


def named(report: Report, mode: str, layout: str | None, comm: str) -> Report:
    workload = {"mode": mode, "layout": layout, "comm": comm, "causal": True, "tp": 1, "cp": 4}
    return replace(report, run=replace(report.run, workload=workload))
