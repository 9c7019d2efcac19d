"""Context parallelism as a report speaks of it: schemes of one kind together, hops summed over ranks.

Where ranks were not matched, what made a hop wait is not known: such time is a part of its own
(`unknown_ns`), so that the parts of an exposure always sum to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

from sp_profiler.analysis.context_parallel.results import (
    Balance,
    ContextParallel,
    Hop,
    LayoutCopies,
    Scheme,
    StepModel,
)

PHASES = ("forward", "recompute", "backward")
SCHEME_NAMES = {
    "ring": "Ring attention",
    "ring-self-attention": "Ring self-attention",
    "ulysses": "Ulysses",
    "usp": "USP (Ulysses inside, ring outside)",
    "all-gather": "All-gather context parallelism",
    "unknown": "Context parallelism of an unknown scheme",
}
RINGS = ("ring", "ring-self-attention", "usp")
PAYLOADS = {
    "q": "Q", "k": "K", "v": "V", "kv": "K, V", "qkv": "Q, K, V", "out": "out", "dout": "dOut", "dq": "dQ",
    "dk": "dK", "dv": "dV", "dkv": "dK, dV", "kv+dkv": "K, V, dK, dV", "dqkv": "dQ, dK, dV",
}  # fmt: skip
_EXCHANGED = ("q", "qkv", "out", "dout", "dqkv")
"""What only all-to-alls carry, never a ring."""


@dataclass(frozen=True)
class Exposure:
    """Sums over hops, ns: what is hidden, what is exposed, and what the latter is made of."""

    hidden_ns: int
    exposed_ns: int
    communication_ns: int
    imbalance_ns: int
    skew_ns: int
    unknown_ns: int

    @property
    def hidden_ratio(self) -> float | None:
        whole = self.hidden_ns + self.exposed_ns
        return self.hidden_ns / whole if whole else None

    @property
    def parts(self) -> dict[str, int]:
        """Of the exposed time, by what it is; they sum to it."""
        return {
            "communication": self.communication_ns,
            "imbalance": self.imbalance_ns,
            "skew": self.skew_ns,
            "unknown": self.unknown_ns,
        }


def exposure(hops: Iterable[Hop]) -> Exposure:
    """The sums of some hops."""
    hidden = exposed = communication = imbalance = skew = 0
    for hop in hops:
        hidden += hop.hidden_ns
        exposed += hop.exposed_ns
        communication += hop.communication_ns or 0
        imbalance += hop.imbalance_ns or 0
        skew += hop.skew_ns or 0
    unknown = exposed - communication - imbalance - skew
    return Exposure(hidden, exposed, communication, imbalance, skew, unknown)


@dataclass(frozen=True)
class HopSum:
    """One hop of a phase, or a run of them, over all ranks: medians of the ranks' medians, and sums.

    `way`: hop (of a ring), all-to-all or all-gather; `last`: of a run the last hop.
    """

    way: str
    phase: str
    payload: str
    hop: int
    hops: tuple[Hop, ...]
    last: int

    @property
    def name(self) -> str:
        """`3`, of a run `0-7`."""
        return str(self.hop) if self.hop == self.last else f"{self.hop}-{self.last}"

    @cached_property
    def exposure(self) -> Exposure:
        return exposure(self.hops)

    @property
    def passes(self) -> int:
        """Passes of all ranks; each holds all hops of a run."""
        return sum(hop.passes for hop in self.hops) // len({hop.hop for hop in self.hops})

    @property
    def bytes(self) -> int | None:
        return middle(hop.bytes for hop in self.hops)

    @property
    def transfer_ns(self) -> int | None:
        return middle(hop.transfer_ns for hop in self.hops)

    @property
    def attention_ns(self) -> int | None:
        return middle(hop.attention_ns for hop in self.hops)

    @property
    def larger(self) -> str | None:
        return larger(self.transfer_ns, self.attention_ns)

    @property
    def transfer_larger_ratio(self) -> float | None:
        """The part of the passes, where it is known, in which the transfer took longer."""
        known = [hop for hop in self.hops if hop.passes_transfer_larger is not None]
        passes = sum(hop.passes for hop in known)
        return sum(hop.passes_transfer_larger or 0 for hop in known) / passes if passes else None


def middle(values: Iterable[int | None]) -> int | None:
    """The median of what is known."""
    known = [value for value in values if value is not None]
    return round(median(known)) if known else None


def larger(transfer_ns: int | None, attention_ns: int | None) -> str | None:
    if transfer_ns is None or attention_ns is None:
        return None
    if transfer_ns == attention_ns:
        return "equal"
    return "transfer" if transfer_ns > attention_ns else "attention"


@dataclass(frozen=True)
class Family:
    """Schemes of one kind, one for each set of ranks, with all that was measured of them."""

    schemes: tuple[Scheme, ...]
    hops: tuple[Hop, ...]
    models: tuple[StepModel, ...]
    balance: tuple[Balance, ...]
    layout_copies: tuple[LayoutCopies, ...]

    @property
    def first(self) -> Scheme:
        return self.schemes[0]

    @property
    def is_ring(self) -> bool:
        return self.first.scheme in RINGS

    @property
    def short_name(self) -> str:
        """`Ring attention (zigzag)`."""
        name = SCHEME_NAMES[self.first.scheme]
        return f"{name} ({self.first.layout})" if self.first.layout else name

    @property
    def name(self) -> str:
        """`Ring attention (zigzag, causal, 2 x 4 ranks)`."""
        one = self.first
        count = len(one.ranks)
        told = [one.layout] if one.layout else []
        told += ["causal"] if one.causal else ["no mask"] if one.causal is False else []
        sets = f"{len(self.schemes)} × " if len(self.schemes) > 1 else ""
        name = SCHEME_NAMES[one.scheme]
        told.append(f"{sets}{count} {'rank' if count == 1 else 'ranks'}")
        if name.endswith(")"):  # already explained in brackets
            return f"{name[:-1]}; {', '.join(told)})"
        return f"{name} ({', '.join(told)})"

    def way(self, hop: Hop) -> str:
        """How it travels: hop (around a ring), all-to-all or all-gather; transfer where nobody knows."""
        scheme = self.first.scheme
        if scheme == "usp":
            in_ring = hop.group not in self._exchanging or hop.source is not None or hop.target is not None
            return "hop" if in_ring else "all-to-all"
        return _WAYS.get(scheme, "transfer")

    @cached_property
    def _exchanging(self) -> frozenset[str]:
        """Groups that exchange heads for tokens (one may do both)."""
        return frozenset(hop.group for hop in self.hops if hop.payload in _EXCHANGED)

    @cached_property
    def by_way(self) -> dict[str, tuple[Hop, ...]]:
        """Its hops by how they travel; the ring's first."""
        found: dict[str, list[Hop]] = {}
        for hop in self.hops:
            found.setdefault(self.way(hop), []).append(hop)
        return {way: tuple(found[way]) for way in sorted(found, key=lambda way: way != "hop")}

    def exposure(self, phase: str | None = None, way: str | None = None) -> Exposure:
        hops = self.hops if way is None else self.by_way.get(way, ())
        return exposure(hop for hop in hops if phase in (None, hop.phase))

    @cached_property
    def hop_sums(self) -> list[HopSum]:
        """Hops over ranks: forward before backward, in the order of the ring."""
        found: dict[tuple[str, str, str, int], list[Hop]] = {}
        for way, hops in self.by_way.items():
            for hop in hops:
                found.setdefault((way, hop.phase, hop.payload, hop.hop), []).append(hop)
        ways, payloads = list(self.by_way), list(dict.fromkeys(hop.payload for hop in self.hops))
        made = [HopSum(*key, tuple(hops), key[-1]) for key, hops in found.items()]

        def place(one: HopSum) -> tuple[Any, ...]:
            return ways.index(one.way), phase_place(one.phase), one.hop, payloads.index(one.payload)

        return sorted(made, key=place)


def in_runs(sums: Sequence[HopSum], most: int) -> list[HopSum]:
    """The hops as they are where they are at most `most`, else put together to runs of neighbours, as many
    of each phase as of the other."""
    if len(sums) <= most:
        return list(sums)
    kinds: dict[tuple[str, str, str], list[HopSum]] = {}
    for one in sums:
        kinds.setdefault((one.way, one.phase, one.payload), []).append(one)
    each = max(most // len(kinds), 1)
    made: list[HopSum] = []
    for (way, phase, payload), mine in kinds.items():
        length = -(-len(mine) // each)
        for place in range(0, len(mine), length):
            run = mine[place : place + length]
            hops = tuple(hop for one in run for hop in one.hops)
            made.append(HopSum(way, phase, payload, run[0].hop, hops, run[-1].last))
    return made


def phase_place(phase: str) -> tuple[int, str]:
    """A sort key that puts forward first and phases of other names last."""
    return (PHASES.index(phase) if phase in PHASES else len(PHASES), phase)


_WAYS = {"ring": "hop", "ring-self-attention": "hop", "ulysses": "all-to-all", "all-gather": "all-gather"}


def plural(way: str) -> str:
    return f"{way}s"


def payload_name(payload: str) -> str:
    return PAYLOADS.get(payload, payload)


def families(found: ContextParallel | None) -> list[Family]:
    """The schemes that were found, those of one kind (scheme, layout, mask, ranks) together."""
    if found is None:
        return []
    kinds: dict[tuple[str, str | None, bool | None, int], list[Scheme]] = {}
    for one in found.schemes:
        kinds.setdefault((one.scheme, one.layout, one.causal, len(one.ranks)), []).append(one)
    return [_family(found, schemes) for schemes in kinds.values()]


def _family(found: ContextParallel, schemes: Sequence[Scheme]) -> Family:
    groups = {group for scheme in schemes for group in scheme.groups}
    return Family(
        tuple(schemes),
        tuple(one for one in found.hops if one.group in groups),
        tuple(one for one in found.models if one.group in groups),
        tuple(one for one in found.balance if one.group in groups),
        tuple(one for one in found.layout_copies if one.group in groups),
    )


@dataclass(frozen=True)
class PhaseBalance:
    """How evenly a family's attention is divided in a phase: medians over its sets of ranks."""

    phase: str
    balances: tuple[Balance, ...]

    @property
    def measured_ratio(self) -> float | None:
        return _middle_ratio(one.measured_ratio for one in self.balances)

    @property
    def ideal_ratio(self) -> float | None:
        return _middle_ratio(one.ideal_ratio for one in self.balances)

    @property
    def limit_ratio(self) -> float | None:
        return _middle_ratio(one.limit_ratio for one in self.balances)

    @property
    def lost_ns(self) -> float | None:
        """Of a rank and pass, the mean over the ranks of which it is known."""
        known = [ns for one in self.balances for ns in one.lost_ns or ()]
        return sum(known) / len(known) if known else None

    @property
    def least_even(self) -> Balance:
        """The set of ranks with the lowest measured ratio; the first where none is known."""
        known = [one for one in self.balances if one.measured_ratio is not None]
        return min(known, key=lambda one: one.measured_ratio or 0.0) if known else self.balances[0]


def _middle_ratio(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def balances(family: Family) -> list[PhaseBalance]:
    """By phase, forward first."""
    found: dict[str, list[Balance]] = {}
    for one in family.balance:
        found.setdefault(one.phase, []).append(one)
    return [PhaseBalance(phase, tuple(found[phase])) for phase in sorted(found, key=phase_place)]


@dataclass(frozen=True)
class CopySum:
    """The all-to-alls and layout copies of a phase over all ranks."""

    phase: str
    ranks: int
    passes: int
    all_to_alls: int
    comm_ns: int
    exposed_ns: int
    copies: int
    copy_ns: int


def copy_sums(family: Family) -> list[CopySum]:
    """By phase, forward first."""
    found: dict[str, list[LayoutCopies]] = {}
    for one in family.layout_copies:
        found.setdefault(one.phase, []).append(one)
    names = ("passes", "all_to_alls", "comm_ns", "exposed_ns", "copies", "copy_ns")
    return [
        CopySum(
            phase,
            len({(one.rank, one.device) for one in found[phase]}),
            *(sum(getattr(one, name) for one in found[phase]) for name in names),
        )
        for phase in sorted(found, key=phase_place)
    ]
