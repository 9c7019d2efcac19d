"""Context parallelism as the field's libraries launch it, one generator function each.

Forward up to its `yield`, backward after it. What was learnt from each project's code is the order of
launches, what each transfer carries, and on which stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from context_facts import SIDE, Said, Work
from context_kernels import COPY, MERGE, Attention, attend
from context_rank import Rank

Implementation = Callable[[Rank, Attention], Iterator[None]]

_NAMES = {
    "contiguous": "RingFlashAttnFunc",
    "zigzag": "ZigZagRingFlashAttnFunc",
    "striped": "StripeFlashAttnFunc",
}


def ring_flash_attention(
    rank: Rank, at: Attention, *, batches: int = 1, gradients: str = "float32", sync: bool = False
) -> Iterator[None]:
    """ring-flash-attention: K and V in one batch a hop; in backward dK and dV follow in fp32, p hops.

    `batches=2`: K and V each in a batch of their own; `gradients`: their type; `sync`: each hop follows its
    block, and the next block waits for it.
    """
    p, place = at.ranks, at.group.ranks.index(rank.number)
    right, left = at.group.beside(rank.number, 1), at.group.beside(rank.number, -1)
    name = _NAMES[at.layout]

    def shift(payload: str, phase: str, number: int, hop: int, step: int | None, dtype: str) -> list[Work]:
        def one(what: str, tensors: int) -> Work:
            sizes = [at.kv] * tensors
            said = Said(payload, what, phase, number, hop, step)
            return rank.batch(at.group, sends={right: sizes}, receives={left: sizes}, said=said, dtype=dtype)

        step = None if sync else step
        if batches == 1:
            return [one(payload, 2)]
        return [one(payload.replace("kv", letter), 1) for letter in "kv"]

    number = rank.new_pass()
    with rank.function(name) as sequence:
        for step in range(p):
            moving = []
            if step + 1 < p and not sync:
                moving = shift("kv", "forward", number, step + 1, step, "bfloat16")
            attend(rank, at, number, step, at.share(place, step))
            if step + 1 < p and sync:
                moving = shift("kv", "forward", number, step + 1, step, "bfloat16")
            rank.wait(*moving)
    yield
    number, returning = rank.new_pass(), list[Work]()
    with rank.node(name + "Backward", sequence):
        for step in range(p):
            moving = []
            if step + 1 < p and not sync:
                moving = shift("kv", "backward", number, step + 1, step, "bfloat16")
            attend(rank, at, number, step, at.share(place, step), backward=True)
            if step + 1 < p and sync:
                moving = shift("kv", "backward", number, step + 1, step, "bfloat16")
            if returning:
                rank.wait(*returning)
                rank.kernel(MERGE, 5_000, op="aten::add")
            rank.wait(*moving)
            beside = step + 1 if step + 1 < p else None
            returning = shift("dkv", "backward", number, step + 1, beside, gradients)
            if sync:
                rank.wait(*returning)
                returning = []
        rank.wait(*returning)


def transformer_engine(rank: Rank, at: Attention, *, batched: bool | None = None) -> Iterator[None]:
    """TransformerEngine's `p2p`: K and V in one tensor, blocks by turns on two streams.

    Two ranks send and receive in a batch, more one by one (even ranks send first). Backward goes the other
    way round, and the gradients travel with K, V: hop 1 carries K, V, the last dK, dV, those between both.
    """
    p, place = at.ranks, at.group.ranks.index(rank.number)

    def shift(by: int, tensors: int, said: Said) -> list[Work]:
        to, come = at.group.beside(rank.number, by), at.group.beside(rank.number, -by)
        size = at.kv * tensors
        if batched if batched is not None else p == 2:
            return [rank.batch(at.group, sends={to: [size]}, receives={come: [size]}, said=said)]
        if place % 2 == 0:
            return [rank.isend(at.group, to, size, said), rank.irecv(at.group, come, size, said)]
        return [rank.irecv(at.group, come, size, said), rank.isend(at.group, to, size, said)]

    number, moving = rank.new_pass(), list[Work]()
    with rank.function("AttnFuncWithCPAndKVP2P") as sequence:
        for step in range(p):
            with rank.on(SIDE if step % 2 else rank.stream):
                rank.wait(*moving)
                if step + 1 < p:
                    moving = shift(1, 2, Said("kv", "kv", "forward", number, step + 1, step))
                attend(rank, at, number, step, at.share(place, step), merge=False)
        rank.join(SIDE)
        rank.kernel(MERGE, 5_000, op="aten::mul")
    yield
    number, moving = rank.new_pass(), []
    with rank.node("AttnFuncWithCPAndKVP2PBackward", sequence):
        for step in range(p):
            rank.wait(*moving)
            first, last = step == 0, step == p - 1
            payload = "kv" if first else "dkv" if last else "kv+dkv"
            said = Said("kv" if first else "dkv", payload, "backward", number, step + 1, step)
            moving = shift(-1, 2 if first or last else 4, said)
            # In the reverse of forward's order; the own block comes last.
            attend(rank, at, number, step, at.share(place, p - 1 - step), backward=True, merge=False)
            rank.wait(*moving)
            rank.kernel(MERGE, 5_000, op="aten::add_")


def torch_ring(rank: Rank, at: Attention, *, rotate: str = "all_gather") -> Iterator[None]:
    """torch's own context parallelism: K and V gathered once, or handed on by one-sided all-to-alls.

    dK and dV are always handed on, in fp32.
    """
    p, place = at.ranks, at.group.ranks.index(rank.number)
    right, left = (at.group.ranks.index(at.group.beside(rank.number, by)) for by in (1, -1))

    def hand_on(said: Said, dtype: str) -> Work:
        size = 2 * at.kv
        given, taken = ([size if i == end else 0 for i in range(p)] for end in (right, left))
        return rank.collective(
            at.group,
            "all_to_all",
            (size, size),
            said,
            dtype=dtype,
            splits=(given, taken),
            operator="_c10d_functional::all_to_all_single",
        )

    def rotate_kv(phase: str, number: int, step: int) -> Work | None:
        rank.kernel(COPY, 10_000, op="aten::cat")
        if rotate == "all_to_all":
            return hand_on(Said("kv", "kv", phase, number, step + 1, step), "bfloat16")
        if step:
            return None
        operator = "_c10d_functional::all_gather_into_tensor"
        said = Said("kv", "kv", phase, number, None, 0)
        return rank.collective(at.group, "all_gather", (2 * at.kv, 2 * at.kv * p), said, operator=operator)

    def wait(work: Work | None) -> None:
        if work is not None:
            with rank.op("_c10d_functional::wait_tensor"):
                rank.wait(work)

    number, moving = rank.new_pass(), None
    with rank.function("aten::_scaled_dot_product_flash_attention") as sequence:
        for step in range(p):
            wait(moving)
            moving = rotate_kv("forward", number, step) if step + 1 < p else None
            attend(rank, at, number, step, at.share(place, step))
    yield
    number, moving, returning = rank.new_pass(), None, None
    with rank.node("ScaledDotProductFlashAttentionBackward0", sequence):
        for step in range(p):
            wait(moving)
            moving = rotate_kv("backward", number, step) if step + 1 < p else None
            attend(rank, at, number, step, at.share(place, step), backward=True)
            wait(returning)
            rank.kernel(COPY, 10_000, op="aten::cat")
            beside = step + 1 if step + 1 < p else None
            returning = hand_on(Said("dkv", "dkv", "backward", number, step + 1, beside), "float32")
        wait(returning)


def ulysses(rank: Rank, at: Attention, *, inside: Implementation | None = None) -> Iterator[None]:
    """DeepSpeed's: four synchronous all-to-alls around attention over all tokens, with copies around each.

    `inside`: what computes attention between them; else it is computed at once.
    """
    sizes = {"q": at.q, "k": at.kv, "v": at.kv, "out": at.q}
    core = (inside or _whole)(rank, at)

    def exchange(payload: str, phase: str, number: int) -> None:
        rank.kernel(COPY, 20_000, op="aten::contiguous")
        size, said = sizes[payload], Said("layout", payload, phase, number)
        rank.collective(at.group, "all_to_all", (size, size), said, is_async=False)
        rank.kernel(COPY, 20_000, op="aten::contiguous")

    number, sequences = rank.passes, dict[str, int]()
    for payload in ("q", "k", "v"):
        with rank.function("_SeqAllToAll") as sequences[payload]:
            exchange(payload, "forward", number)
    next(core)
    with rank.function("_SeqAllToAll") as sequences["out"]:
        exchange("out", "forward", number)
    yield
    number = rank.passes
    with rank.node("_SeqAllToAllBackward", sequences["out"]):
        exchange("out", "backward", number)
    next(core, None)
    for payload in ("v", "k", "q"):
        with rank.node("_SeqAllToAllBackward", sequences[payload]):
            exchange(payload, "backward", number)


def _whole(rank: Rank, at: Attention) -> Iterator[None]:
    """Attention of a part of the heads over all tokens, on this rank alone."""
    number = rank.new_pass()
    with rank.function("FlashAttnFunc") as sequence:
        attend(rank, at, number, 0, at.ranks * at.share(0, 0))
    yield
    number = rank.new_pass()
    with rank.node("FlashAttnFuncBackward", sequence):
        attend(rank, at, number, 0, at.ranks * at.share(0, 0), backward=True)


def gathered(rank: Rank, at: Attention) -> Iterator[None]:
    """TransformerEngine's `all_gather`: K and V of all ranks before attention; dK and dV reduced after it."""
    p = at.ranks

    def gather(phase: str, number: int) -> None:
        for payload in ("k", "v"):
            said = Said("kv", payload, phase, number)
            rank.collective(at.group, "all_gather", (at.kv, at.kv * p), said, is_async=False)

    number = rank.new_pass()
    with rank.function("AttnFuncWithCPAndKVAllGather") as sequence:
        gather("forward", number)
        attend(rank, at, number, 0, p * at.share(0, 0))
    yield
    number = rank.new_pass()
    with rank.node("AttnFuncWithCPAndKVAllGatherBackward", sequence):
        gather("backward", number)
        attend(rank, at, number, 0, p * at.share(0, 0), backward=True)
        for payload in ("dk", "dv"):
            said = Said("dkv", payload, "backward", number)
            rank.collective(at.group, "reduce_scatter", (at.kv * p, at.kv), said, is_async=False)


def transformer_engine_a2a(rank: Rank, at: Attention) -> Iterator[None]:
    """TransformerEngine's `a2a`: asynchronous all-to-alls of q, k, v, each while the next one's heads are
    brought into order; the copies behind them run on a stream of their own."""
    p = at.ranks

    def exchange(payloads: tuple[str, ...], phase: str, number: int) -> None:
        moving: list[Work] = []
        for payload in payloads:
            rank.kernel(COPY, 20_000, op="aten::contiguous")
            size = at.q if payload in ("q", "out", "dout") else at.kv
            moving.append(
                rank.collective(at.group, "all_to_all", (size, size), Said("layout", payload, phase, number))
            )
        with rank.on(SIDE):
            for work in moving:
                rank.wait(work)
                rank.kernel(COPY, 20_000, op="aten::index_select")
        rank.join(SIDE)

    number = rank.new_pass()
    with rank.function("AttnFuncWithCPAndQKVOA2A") as sequence:
        exchange(("q", "k", "v"), "forward", number)
        attend(rank, at, number, 0, p * at.share(0, 0))
        exchange(("out",), "forward", number)
    yield
    number = rank.new_pass()
    with rank.node("AttnFuncWithCPAndQKVOA2ABackward", sequence):
        exchange(("out", "dout"), "backward", number)
        attend(rank, at, number, 0, p * at.share(0, 0), backward=True)
        exchange(("q", "k", "v"), "backward", number)


def llama3(rank: Rank, at: Attention, *, slices: int = 2) -> Iterator[None]:
    """Meta's: K and V gathered by slices of the heads, each slice under the attention of the one before."""
    p, place = at.ranks, at.group.ranks.index(rank.number)
    part = at.kv // slices
    share = sum((at.share(place, step) for step in range(p)), start=at.share(place, 0) * 0) / slices

    def gather(phase: str, number: int, beside: int | None) -> list[Work]:
        return [
            rank.collective(
                at.group, "all_gather", (part, part * p), Said("kv", payload, phase, number, None, beside)
            )
            for payload in ("k", "v")
        ]

    number = rank.new_pass()
    with rank.function("Llama3FlashAttnVarlenFunc") as sequence:
        moving = gather("forward", number, None)
        for step in range(slices):
            rank.wait(*moving)
            moving = gather("forward", number, step) if step + 1 < slices else []
            attend(rank, at, number, step, share, merge=False)
    yield
    number = rank.new_pass()
    with rank.node("Llama3FlashAttnVarlenFuncBackward", sequence):
        moving = gather("backward", number, None)
        for step in range(slices):
            rank.wait(*moving)
            moving = gather("backward", number, step) if step + 1 < slices else []
            attend(rank, at, number, step, share, backward=True, merge=False)
            for payload in ("dk", "dv"):
                said = Said("dkv", payload, "backward", number)
                rank.collective(at.group, "reduce_scatter", (part * p, part), said, is_async=False)


def usp(rank: Rank, at: Attention) -> Iterator[None]:
    """Ulysses inside, a ring outside (yunchang, xDiT): `at.inner` exchanges heads, `at.group` is the ring."""
    assert at.inner is not None
    width = len(at.inner.ranks)
    part = replace(at, tokens=at.tokens * width, heads=at.heads // width, kv_heads=at.kv_heads // width)
    part = replace(part, block_ns=at.block_ns * width)
    yield from ulysses(rank, replace(at, group=at.inner), inside=lambda r, _: ring_flash_attention(r, part))
