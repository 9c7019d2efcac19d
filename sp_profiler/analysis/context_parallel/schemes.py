"""Which scheme each set of ranks runs, and the sentence that says why it is taken for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from sp_profiler.analysis.context_parallel.balance import contiguous_by_work, ring_ranks, work_of
from sp_profiler.analysis.context_parallel.families import (
    EXCHANGES,
    GATHERS,
    RING,
    SELF_ATTENTION,
    UNKNOWN,
    Family,
)
from sp_profiler.analysis.context_parallel.lines import BACKWARD, FORWARD, RECOMPUTE
from sp_profiler.analysis.context_parallel.results import Scheme, SchemeName
from sp_profiler.analysis.context_parallel.tables import Shown, kind_of
from sp_profiler.analysis.context_parallel.told import Told

_NAMES: dict[str, SchemeName] = {
    RING: "ring",
    SELF_ATTENTION: "ring-self-attention",
    EXCHANGES: "ulysses",
    GATHERS: "all-gather",
    UNKNOWN: "unknown",
}
_WORDS = {
    "send_recv": "send/recv",
    "all_to_all": "all-to-all",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
}


def schemes_of(by_group: Mapping[str, Sequence[Shown]], told: Told) -> tuple[list[Scheme], dict[str, Scheme]]:
    """The schemes, sorted by their groups, and the scheme of each group."""
    found: list[Scheme] = []
    of_group: dict[str, Scheme] = {}
    for groups in _joined(by_group):
        one = _scheme([(group, by_group[group]) for group in groups], told)
        found.append(one)
        of_group.update(dict.fromkeys(groups, one))
    return found, of_group


def _joined(by_group: Mapping[str, Sequence[Shown]]) -> list[list[str]]:
    """Groups that form one scheme: a ring inside the all-to-alls of another group (USP), seen on any rank."""
    parent = {group: group for group in by_group}

    def root(group: str) -> str:
        while parent[group] != group:
            group = parent[group]
        return group

    by_place: dict[tuple[int, int], list[Shown]] = {}
    for members in by_group.values():
        for one in members:
            by_place.setdefault((one.result, one.device), []).append(one)
    for mates in by_place.values():
        for outer in (one for one in mates if one.family.kind == EXCHANGES):
            for inner in (one for one in mates if one.family.kind in (RING, SELF_ATTENTION)):
                if _lies_inside(inner, outer):
                    first, second = sorted((root(inner.group), root(outer.group)))
                    parent[second] = first
    sets: dict[str, list[str]] = {}
    for group in sorted(by_group):
        sets.setdefault(root(group), []).append(group)
    return [sets[first] for first in sorted(sets)]


def _lies_inside(inner: Shown, outer: Shown) -> bool:
    """Whether most passes of a ring run between the first and the last all-to-all of a pass."""
    mine, around = inner.family.passes, outer.family.passes
    if len(mine) == 0 or len(around) == 0:
        return False
    order = np.argsort(around.begin_ns, kind="stable")
    at = np.searchsorted(around.begin_ns[order], mine.begin_ns, side="right") - 1
    inside = (at >= 0) & (mine.end_ns <= around.end_ns[order][np.maximum(at, 0)])
    return bool(inside.sum() * 2 > len(mine))


def _scheme(groups: Sequence[tuple[str, Sequence[Shown]]], told: Told) -> Scheme:
    kinds = {kind_of(members) for _, members in groups}
    inner = next((members for _, members in groups if kind_of(members) in (RING, SELF_ATTENTION)), None)
    name: SchemeName = "usp" if len(kinds) > 1 else _NAMES[next(iter(kinds))]
    leading = [
        members for _, members in groups if inner is None or kind_of(members) in (RING, SELF_ATTENTION)
    ]
    layout, rule, causal = _layout(leading, told, name)
    passes = {phase: max(_count(one, phase) for members in leading for one in members) for phase in range(3)}
    ranks = {rank for _, members in groups for rank in _ranks(members)}
    return Scheme(
        scheme=name,
        ranks=sorted(ranks),
        groups=[group for group, _ in groups],
        evidence=_evidence(name, groups),
        layout=layout,
        layout_rule=rule,
        causal=causal,
        forward_passes=passes[FORWARD],
        backward_passes=passes[BACKWARD],
        incomplete_passes=max(_incomplete(one) for members in leading for one in members),
        recompute_passes=passes[RECOMPUTE],
        ring_ranks=inner[0].family.size if inner is not None else None,
    )


def _ranks(members: Sequence[Shown]) -> set[int]:
    named = {rank for one in members for rank in one.family.ranks}
    return named or {one.rank for one in members if one.rank is not None}


def _count(one: Shown, phase: int) -> int:
    passes = one.family.passes
    return int((passes.is_whole & (passes.phase == phase)).sum())


def _incomplete(one: Shown) -> int:
    return int(one.family.passes.is_incomplete.sum())


def _layout(
    leading: Sequence[Sequence[Shown]], told: Told, name: SchemeName
) -> tuple[str | None, str | None, bool | None]:
    """Layout, the rule that told it, and whether a mask is causal."""
    kind = kind_of(leading[0])
    if told.kind == kind and (told.layout is not None or told.causal is not None):
        has_layout = told.layout is not None and name in ("ring", "usp", "ring-self-attention")
        return (told.layout if has_layout else None), "workload" if has_layout else None, told.causal
    if kind != RING:
        return None, None, None
    works = [
        (work_of(members, ranks, FORWARD), len(ranks))
        for members in leading
        if (ranks := ring_ranks(members))
    ]
    if works and all(contiguous_by_work(work, size) for work, size in works):
        return "contiguous", "measured-work", True
    return None, None, None


# --- evidence ----------------------------------------------------------------------------------------


def _evidence(name: SchemeName, groups: Sequence[tuple[str, Sequence[Shown]]]) -> str:
    if name != "usp":
        return _sentence(groups[0][1])
    outer = next(members for _, members in groups if kind_of(members) == EXCHANGES)
    inner = next(members for _, members in groups if kind_of(members) in (RING, SELF_ATTENTION))
    return f"{_sentence(outer)}; inside them {_lowered(_sentence(inner))}"


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


def _sentence(members: Sequence[Shown]) -> str:
    kind = kind_of(members)
    one = max(
        (m for m in members if m.family.kind == kind),
        key=lambda m: (len(m.family.transfers), _blocks(m)[0], -(m.rank or 0)),
    )
    family = one.family
    word = _WORDS.get(family.op, family.op)
    size = f"{family.size} ranks" if family.size else "its ranks"
    counts = _per_phase(one)
    if kind == RING:
        return f"On rank {_rank(one)} {_ends(family, word, size)}: {counts}{_beside(one)}"
    if kind == SELF_ATTENTION:
        return f"Keys go round {size} before one softmax over whole rows, then values do ({word}): {counts}"
    if kind == EXCHANGES:
        return f"Every attention of rank {_rank(one)} stands between all-to-alls over {size}: {counts}"
    if kind == GATHERS:
        return f"Keys and values of {size} are gathered before attention: {counts}"
    if not family.unread:
        return (
            f"{word} operations carry what attention needs, but on rank {_rank(one)} they are neither all "
            "from one rank and to one rank, nor as many to each of two"
        )
    return (
        f"{word} operations carry what attention needs, but their number fits no scheme: {family.unread} "
        f"runs of them on rank {_rank(one)}"
    )


def _ends(family: Family, word: str, size: str) -> str:
    """Whom the shifts of a ring go to and come from."""
    if family.both_ways:
        return f"{word} go both ways, to ranks {' and '.join(map(str, family.both_ways))}, of {size}"
    source, target = next((pair for pair in family.ends if None not in pair), (None, None))
    if source is not None:
        return f"every {word} is from rank {source} and to rank {target} of {size}"
    return f"{word}, of which the trace does not say with whom, are as many as a ring of {size} has"


def _blocks(one: Shown) -> tuple[int, int]:
    """Ring steps of a rank's whole passes that have attention, and all of them."""
    passes = one.family.passes
    attention = passes.attention_ns[passes.is_whole]
    return int((attention > 0).sum()), attention.size


def _beside(one: Shown) -> str:
    filled, steps = _blocks(one)
    if filled == steps:
        return ", with attention between one and the next"
    return f", with attention in {filled} of {steps} ring steps" if filled else ""


def _rank(one: Shown) -> str:
    return "?" if one.rank is None else str(one.rank)


def _per_phase(one: Shown) -> str:
    """How many transfers a whole pass has, by phase and payload."""
    family = one.family
    parts = []
    for phase, name in ((FORWARD, "forward"), (BACKWARD, "backward")):
        whole = np.flatnonzero(family.passes.is_whole & (family.passes.phase == phase))
        if len(whole) == 0:
            continue
        mine = family.transfers.of_pass == whole[0]
        counts = Counter(family.transfers.payloads[code] for code in family.transfers.payload[mine].tolist())
        words = ", ".join(f"{count} of {payload}" for payload, count in counts.items())
        parts.append(f"{words} in each {name}")
    return " and ".join(parts) or "no pass is whole"
