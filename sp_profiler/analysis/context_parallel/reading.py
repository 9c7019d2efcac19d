"""How the launches of a ring read: which shift is which hop of which pass, and which block each attention is.

A segment is a run of shifts of one ring with nothing but attention between them. It is read from its
letters alone:

hops    one letter a kernel: k keys and values, d their gradients, u nobody knows, r a reduction of gradients
slots   what is computed before the first kernel and after each: `.` nothing, A attention, S attention with
        a softmax of its own

`kkk` with `.AAA` is the forward of a ring of four. p ranks, p - 1 hops of K, V; p hops of dK, dV.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import gcd

NO_STEP = -1


@dataclass(frozen=True)
class Reading:
    """One entry for each hop (letter), for each slot, and for each pass."""

    kind: str  # ring | ring-self-attention
    of_pass: tuple[int, ...]
    payload: tuple[str, ...]
    hop: tuple[int, ...]  # the ring step beside which it travels
    slot_pass: tuple[int, ...]
    slot_step: tuple[int, ...]  # ring step of the attention in the slot, NO_STEP for none
    slot_is_tail: tuple[bool, ...]  # holds the step after it as well: nothing was launched between the two
    slot_is_border: tuple[bool, ...]  # holds the next pass's step 0 as well
    repeats: tuple[bool, ...]  # a pass of forward that backward repeats
    kernels: int  # for each hop
    steps: int  # ring steps of a pass

    @property
    def passes(self) -> int:
        return len(self.repeats)


def ring_size(segments: Iterable[tuple[str, str]]) -> int | None:
    """How many ranks a ring has whose group nobody names, from most of its forward segments."""
    sizes = Counter(
        len(hops) // max(_kernels(hops, slots), 1) + 1 for hops, slots in segments if set(hops) == {"k"}
    )
    return min(sizes, key=lambda size: (-sizes[size], size)) if sizes else None


@lru_cache(maxsize=8192)
def read(hops: str, slots: str, size: int, is_backward: bool, in_pairs: bool = False) -> Reading | None:
    """Read a segment of a ring of `size` ranks; None where the numbers fit no ring.

    `in_pairs`: sends and receives are kernels of their own.
    """
    if size < 2 or not hops.strip("r"):
        return None
    reading = _self_attention(hops, slots, size)
    if reading is None and "d" not in hops and not (is_backward and _may_be_gradients(hops, size)):
        reading = _forward(hops.replace("u", "k"), slots, size, in_pairs, turn=size - 1)
    if reading is None:
        reading = _together(hops, slots, size) or _backward(
            _told_apart(hops, slots, size), slots, size, in_pairs
        )
    if reading is None and "d" not in hops:  # once more round, back to where each block came from
        reading = _forward(hops.replace("u", "k"), slots, size, in_pairs, turn=size)
    return reading


def _may_be_gradients(hops: str, size: int) -> bool:
    """Backward without a known gradient among its hops: something else than forward's p - 1 of them."""
    return "u" in hops or len(hops) % (size - 1) > 0 or (size == 2 and len(hops) % 2 == 0)


def _runs(hops: str, slots: str) -> list[int]:
    """Lengths of runs of equal letters with nothing computed between."""
    lengths: list[int] = []
    for place, letter in enumerate(hops):
        if place and slots[place] == "." and hops[place - 1] == letter:
            lengths[-1] += 1
        else:
            lengths.append(1)
    return lengths


def _kernels(hops: str, slots: str) -> int:
    """Kernels that together are one hop: those of K and of V, or of send and receive."""
    return gcd(*_runs(hops, slots)) if hops and set(slots) != {"."} else 1


def _self_attention(hops: str, slots: str, size: int) -> Reading | None:
    """K once around, softmax over whole rows, V once around: Li et al. 2021. Backward in reverse, and the
    gradients reduced.

    Told from a ring with two kernels a hop, or from two passes, by the one softmax between the two turns,
    or by the reduction.
    """
    letters = hops.replace("r", "")
    turn = size - 1
    if "d" in letters or not letters or len(letters) % (2 * turn):
        return None
    kept = [i for i, letter in enumerate(hops) if letter != "r"]
    after = [
        _merged(slots, i + 1, (kept[n + 1] if n + 1 < len(kept) else len(hops)) + 1)
        for n, i in enumerate(kept)
    ]
    if "." in after:
        return None
    middle = {n for n in range(len(letters)) if n % (2 * turn) == turn - 1}
    softmax = {n for n, slot in enumerate(after) if slot == "S"}
    if softmax != middle and "r" not in hops:
        return None
    passes = len(letters) // (2 * turn)
    place = dict(zip(kept, range(len(letters)), strict=True))
    of_pass, payload, hop = list[int](), list[str](), list[int]()
    slot_pass, slot_step, tail = [0], [NO_STEP], [False]
    now, first, second = 0, *(("v", "k") if "r" in hops else ("k", "v"))
    reduced: Counter[int] = Counter()
    for i, letter in enumerate(hops):
        if letter == "r":
            of_pass.append(now)
            payload.append(f"d{first}" if reduced[now] == 0 else f"d{second}")
            hop.append(0)
            reduced[now] += 1
            # What follows a reduction still belongs to what went before it.
            slot_pass.append(now)
            slot_step.append(slot_step[-1])
            tail.append(tail[-1])
            continue
        n = place[i]
        now, within = n // (2 * turn), n % (2 * turn)
        turned, at = divmod(within, turn)
        of_pass.append(now)
        payload.append(second if turned else first)
        hop.append(at + turned * size)
        slot_pass.append(now)
        slot_step.append(at + turned * size)
        tail.append(at == turn - 1)
    return Reading(
        "ring-self-attention", tuple(of_pass), tuple(payload), tuple(hop), tuple(slot_pass), tuple(slot_step),
        tuple(tail), (False,) * len(tail), (False,) * passes, 1, 2 * size,
    )  # fmt: skip


def _merged(slots: str, low: int, high: int) -> str:
    held = set(slots[low:high])
    return "S" if "S" in held else "A" if "A" in held else "."


def _forward(hops: str, slots: str, size: int, in_pairs: bool, *, turn: int) -> Reading | None:
    """p - 1 hops of K, V (or p, all the way round). The block after the last hop is launched after the one
    beside it, unless the own block comes before the first hop."""
    if set(hops) != {"k"} or len(hops) % turn:
        return None
    whole = len(hops) // turn
    kernels = gcd(whole, _kernels(hops, slots)) if set(slots) != {"."} else gcd(whole, 2 if in_pairs else 1)
    each = turn * kernels
    early = slots[0] != "."
    of_pass = [n // each for n in range(len(hops))]
    hop = [n % each // kernels for n in range(len(hops))]
    slot_pass = [0, *of_pass]
    slot_step = [0 if early else NO_STEP, *(at + early for at in hop)]
    border = [False] * (len(hops) + 1)
    for n in range(each, len(hops), each) if early else ():
        if slots[-1] == ".":  # nothing is left after the last hop, of other passes too
            slot_pass[n], slot_step[n] = slot_pass[n] + 1, 0
        else:
            border[n] = True
    return Reading(
        "ring",
        tuple(of_pass),
        ("kv",) * len(hops),
        tuple(hop),
        tuple(slot_pass),
        tuple(step if step < size else NO_STEP for step in slot_step),
        (False, *(at == size - 2 and not early and turn < size for at in hop)),
        tuple(border),
        (False,) * (len(hops) // each),
        kernels,
        size,
    )


def _together(hops: str, slots: str, size: int) -> Reading | None:
    """Megatron's backward: p hops, the first of K, V, then dK, dV with them, the last of dK, dV alone."""
    if set(hops) - set("kdu"):
        return None
    kernels = _kernels(hops, slots) if set(slots) != {"."} else 1
    each = size * kernels
    if len(hops) % each:
        return None
    passes = len(hops) // each
    first, rest = "k" * kernels, "d" * (size - 2) * kernels
    if hops not in ((first + rest + "d" * kernels) * passes, (first + rest + first) * passes):
        filled = sum(slot != "." for slot in slots[1:])
        if set(hops) != {"u"} or filled < size * passes - passes:
            return None
    payloads = ("kv", *("kv+dkv",) * (size - 2), "dkv")
    hop = [n % each // kernels for n in range(len(hops))]
    of_pass = [n // each for n in range(len(hops))]
    return Reading(
        "ring",
        tuple(of_pass),
        tuple(payloads[at] for at in hop),
        tuple(hop),
        (0, *of_pass),
        (NO_STEP, *hop),
        (False,) * (len(hops) + 1),
        (False,) * (len(hops) + 1),
        (False,) * passes,
        kernels,
        size,
    )


def _told_apart(hops: str, slots: str, size: int) -> str:
    """Hops of one size in backward: K, V and then, one step behind, dK, dV; each of as many kernels as the
    shortest runs between blocks tell."""
    kernels = _kernels(hops, slots) if hops else 1
    each = (2 * size - 1) * kernels
    if set(hops) != {"u"} or len(hops) % each:
        return hops
    kv, gradients = "k" * kernels, "d" * kernels
    return ((kv + gradients) * (size - 1) + gradients) * (len(hops) // each)


def _backward(hops: str, slots: str, size: int, in_pairs: bool) -> Reading | None:
    """p - 1 hops of K, V and p of dK, dV, which follow their block one step behind; forward's hops may be
    repeated before. Where K and V were gathered, dK and dV alone go round."""
    turn, gradients, blocks = size - 1, hops.count("d"), hops.count("k")
    if set(hops) - set("kd") or not gradients:
        return None
    kernels = _kernels(hops, slots) if set(slots) != {"."} else 2 if in_pairs else 1
    home = size if gradients % (size * kernels) == 0 else turn  # hops until they are home
    if gradients % (home * kernels):
        return None
    passes = gradients // (home * kernels)
    repeated = blocks == 2 * turn * kernels and passes == 1 and hops.startswith("k" * turn * kernels)
    if blocks == passes * size * kernels:
        turn = size  # all the way round
    elif blocks not in (0, passes * turn * kernels) and not repeated:
        return None
    of_pass, payload, hop = list[int](), list[str](), list[int]()
    slot_pass, slot_step, tail = [0], [NO_STEP if slots[0] == "." else 0], [False]
    seen = {"k": 0, "d": 0}
    for letter in hops:
        count = seen[letter] // kernels
        seen[letter] += 1
        if letter == "k":
            now, at = divmod(count, turn)
        else:
            now, at = divmod(count, home)
            now, at = now + repeated, at + 1
        of_pass.append(now)
        payload.append("kv" if letter == "k" else "dkv")
        hop.append(at)
        # A block's gradients are launched after it: as many hops of them as blocks before.
        is_repeat = repeated and now == 0
        done = seen["d"] // kernels - max(now - repeated, 0) * home
        step = at if is_repeat else done
        slot_pass.append(now)
        slot_step.append(step if step < size else NO_STEP)
        tail.append(is_repeat and at == turn - 1)
    return Reading(
        "ring", tuple(of_pass), tuple(payload), tuple(hop), tuple(slot_pass), tuple(slot_step), tuple(tail),
        (False,) * len(tail), (True, False) if repeated else (False,) * passes, kernels, size,
    )  # fmt: skip
