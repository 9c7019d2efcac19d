"""Context parallelism as users' traces hold it: each implementation's launches, with the truth.

    drawn = draw(RING, tmp_path)          # the files, and what is true of them
    drawn.transfers                       # one Transfer for each communication kernel of the files
    drawn.attention[rank, number, step]   # ns of attention in a ring step of a pass

An implementation is one generator function: forward up to its `yield`, backward after it. What was learnt
from each project's code is the order of launches, what each transfer carries and on which stream.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from context_device import Machine, ProcessGroup, Rank, Said, Style, Transfer, Work

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_kernel"
COPY = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(int)>(int)"
MERGE = "void at::native::vectorized_elementwise_kernel<4, at::native::sigmoid_kernel_cuda(int)>(int)"
ADAM = "void at::native::multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor<float, 4>>(int)"


@dataclass(frozen=True)
class Attention:
    """What one layer's attention is: elements, and ns of a whole block of scores in forward."""

    group: ProcessGroup
    tokens: int = 1024  # of one rank
    heads: int = 8
    kv_heads: int = 4
    dim: int = 64
    causal: bool = False
    layout: str = "contiguous"
    block_ns: int = 400_000
    inner: ProcessGroup | None = None  # Ulysses' group inside a ring

    @property
    def ranks(self) -> int:
        return len(self.group.ranks)

    @property
    def kv(self) -> int:
        """Elements of one rank's K."""
        return self.tokens * self.kv_heads * self.dim

    @property
    def q(self) -> int:
        return self.tokens * self.heads * self.dim

    def share(self, place: int, step: int) -> Fraction:
        """The part of a block's scores that the mask leaves to the rank at `place` in a ring step."""
        n = self.tokens
        earlier = step <= place  # the block in hand lies before the own one
        if not self.causal:
            return Fraction(1)
        if self.layout == "contiguous":
            return Fraction(n + 1, 2 * n) if step == 0 else Fraction(int(earlier))
        if self.layout == "zigzag":
            return Fraction(n + 1, 2 * n) if step == 0 else Fraction(1, 2)
        return Fraction(n + 1 if earlier else n - 1, 2 * n)


@dataclass(frozen=True)
class Kernels:
    """What a library calls its operators and kernels; of backward with each kernel's part of the time."""

    forward_op: str
    forward: str
    backward_op: str
    backward: tuple[tuple[str, Fraction], ...]


_TRAITS = "kernel_traits<128, 64, 128, 8, cutlass::bfloat16_t>"
_TORCH = f"flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<pytorch_flash::Flash_bwd_{_TRAITS}>"
_CUDNN = "cudnn_generated_fort_native_sdpa_sm90_flash_{}prop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0"
_CUTLASS = (
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttn{}Sm90<2>>>(flash::Params)"
)
_EFFICIENT = "fmha_cutlass{}_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::Attention{}Kernel::Params)"
_CK = "void ck_tile::kentry<256, 2, ck_tile::{0}Kernel<ck_tile::BlockFmhaPipeline<128>>>(ck_tile::{0}::Kargs)"


def _one(forward_op: str, forward: str, backward_op: str, backward: str) -> Kernels:
    return Kernels(forward_op, forward, backward_op, ((backward, Fraction(1)),))


LIBRARIES = {
    "flash-2": Kernels(
        "flash_attn::_flash_attn_forward",
        f"void flash::flash_fwd_kernel<Flash_fwd_{_TRAITS}, false, true>(flash::Flash_fwd_params)",
        "flash_attn::_flash_attn_backward",
        (
            (f"void flash::flash_bwd_dot_do_o_kernel<true, Flash_bwd_{_TRAITS}>(int)", Fraction(1, 20)),
            (f"void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<{_TRAITS}>(int)", Fraction(9, 10)),
            (f"void flash::flash_bwd_convert_dq_kernel<Flash_bwd_{_TRAITS}>(int, int)", Fraction(1, 20)),
        ),
    ),
    "flash-split": _one(
        "aten::_flash_attention_forward",
        f"void pytorch_flash::flash_fwd_splitkv_kernel<pytorch_flash::Flash_fwd_{_TRAITS}, true>(int)",
        "aten::_flash_attention_backward",
        f"void pytorch_flash::{_TORCH}(pytorch_flash::Flash_bwd_params)",
    ),
    "flash-3": _one("flash_attn_3::fwd", _CUTLASS.format("Fwd"), "flash_attn_3::bwd", _CUTLASS.format("Bwd")),
    "cudnn": _one("FusedAttnFunc", _CUDNN.format("f"), "FusedAttnFuncBackward", _CUDNN.format("b")),
    "efficient": _one(
        "aten::_efficient_attention_forward",
        _EFFICIENT.format("F", ""),
        "aten::_efficient_attention_backward",
        _EFFICIENT.format("B", "Backward"),
    ),
    "aiter": _one(
        "aiter::fmha_v3_fwd",
        "_ZN5aiter34fmha_fwd_hd128_bf16_causal_a16_rtneE",
        "aiter::fmha_v3_bwd",
        "_ZN5aiter26fmha_bwd_hd128_bf16_a16_ptE",
    ),
    "ck": _one(
        "flash_attn::_flash_attn_forward",
        _CK.format("FmhaFwd"),
        "flash_attn::_flash_attn_backward",
        _CK.format("FmhaBwdDQDKDV"),
    ),
}
_BACKWARD_WORK = Fraction(5, 2)  # of forward's

Implementation = Callable[[Rank, Attention], Iterator[None]]


def attend(
    rank: Rank, at: Attention, number: int, step: int, share: Fraction, *, backward: bool = False
) -> None:
    """One block's kernels, none where the mask leaves nothing, and the merge with what earlier steps gave."""
    library = LIBRARIES[rank.style.forward]
    if not share:
        return
    mine = (number, step)
    whole = at.block_ns * share
    if not backward:
        rank.kernel(library.forward, int(whole), op=library.forward_op, step=mine)
    else:
        with rank.op(library.backward_op):
            for name, part in library.backward:
                rank.kernel(name, int(whole * _BACKWARD_WORK * part), op=None, step=mine)
    if step:
        rank.kernel(MERGE, 5_000, op="aten::add_" if backward else "aten::sigmoid")


# --- rings --------------------------------------------------------------------------------------------


def ring_flash_attention(rank: Rank, at: Attention) -> Iterator[None]:
    """ring-flash-attention: K and V in one batch a hop; in backward dK and dV follow in fp32, p hops."""
    p, place = at.ranks, at.group.ranks.index(rank.number)
    right, left = at.group.beside(rank.number, 1), at.group.beside(rank.number, -1)
    name = {
        "contiguous": "RingFlashAttnFunc",
        "zigzag": "ZigZagRingFlashAttnFunc",
        "striped": "StripeFlashAttnFunc",
    }

    def shift(said: Said, dtype: str) -> Work:
        both = [at.kv, at.kv]
        return rank.batch(at.group, sends={right: both}, receives={left: both}, said=said, dtype=dtype)

    number = rank.new_pass()
    with rank.function(name[at.layout]) as sequence:
        for step in range(p):
            hop = None
            if step + 1 < p:
                hop = shift(Said("kv", "kv", "forward", number, step + 1, step), "bfloat16")
            attend(rank, at, number, step, at.share(place, step))
            if hop is not None:
                rank.wait(hop)
    yield
    number = rank.new_pass()
    gradients: Work | None = None
    with rank.node(name[at.layout] + "Backward", sequence):
        for step in range(p):
            hop = None
            if step + 1 < p:
                hop = shift(Said("kv", "kv", "backward", number, step + 1, step), "bfloat16")
            attend(rank, at, number, step, at.share(place, step), backward=True)
            if gradients is not None:
                rank.wait(gradients)
                rank.kernel(MERGE, 5_000, op="aten::add")
            if hop is not None:
                rank.wait(hop)
            beside = step + 1 if step + 1 < p else None
            gradients = shift(Said("dkv", "dkv", "backward", number, step + 1, beside), "float32")
        assert gradients is not None
        rank.wait(gradients)


# --- others -------------------------------------------------------------------------------------------


def ulysses(rank: Rank, at: Attention) -> Iterator[None]:
    """DeepSpeed's: four synchronous all-to-alls around attention over all tokens, with copies around each."""

    def exchange(payload: str, phase: str, number: int, elements: int) -> None:
        rank.kernel(COPY, 20_000, op="aten::contiguous")
        said = Said("layout", payload, phase, number)
        rank.collective(at.group, "all_to_all", (elements, elements), said, is_async=False)
        rank.kernel(COPY, 20_000, op="aten::contiguous")

    sizes = {"q": at.q, "k": at.kv, "v": at.kv, "out": at.q}
    number = rank.new_pass()
    sequences: dict[str, int] = {}
    for payload in ("q", "k", "v"):
        with rank.function("_SeqAllToAll") as sequences[payload]:
            exchange(payload, "forward", number, sizes[payload])
    with rank.function("FlashAttnFunc") as own:
        attend(rank, at, number, 0, at.ranks * at.share(0, 0))
    with rank.function("_SeqAllToAll") as sequences["out"]:
        exchange("out", "forward", number, sizes["out"])
    yield
    number = rank.new_pass()
    with rank.node("_SeqAllToAllBackward", sequences["out"]):
        exchange("out", "backward", number, sizes["out"])
    with rank.node("FlashAttnFuncBackward", own):
        attend(rank, at, number, 0, at.ranks * at.share(0, 0), backward=True)
    for payload in ("v", "k", "q"):
        with rank.node("_SeqAllToAllBackward", sequences[payload]):
            exchange(payload, "backward", number, sizes[payload])


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


# --- a model around them ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A run: its implementation, sizes, and how it is written down."""

    name: str
    implementation: Implementation
    attention: Attention
    scheme: str
    ranks: int = 4
    layers: int = 2
    steps: int = 1
    backward: bool = True
    tensor: bool = False  # every rank shares its heads with a tensor-parallel neighbour
    style: Style = field(default_factory=Style)
    late: dict[int, int] = field(default_factory=dict)  # ns that a rank's host is late before each layer
    write: dict[str, Any] = field(default_factory=dict)  # options of Machine.write

    def but(self, name: str, **changes: Any) -> Case:
        """The case with something changed."""
        return replace(self, name=name, **changes)


@dataclass(frozen=True)
class Drawn:
    """The files of a case and what is true of them."""

    case: Case
    folder: Path
    transfers: list[Transfer]
    attention: dict[tuple[int, int, int], int]  # ns by rank, pass and ring step, cut ones included

    def of(self, rank: int) -> list[Transfer]:
        """A rank's transfers in order of start."""
        return sorted((t for t in self.transfers if t.rank == rank), key=lambda t: (t.start_ns, t.end_ns))


def draw(case: Case, folder: Path) -> Drawn:
    """Play a case through and write its files."""
    machine = Machine(case.ranks, case.style)
    for rank in machine.ranks:
        for step in range(case.steps):
            with rank.range(f"ProfilerStep#{step}"):
                train(rank, case)
    machine.play().write(folder / case.name, **case.write)
    attention: dict[tuple[int, int, int], int] = defaultdict(int)
    for rank in machine.ranks:
        for kernel in rank.kernels:
            if kernel.step is not None:
                attention[rank.number, *kernel.step] += kernel.dur_ns
    return Drawn(case, folder / case.name, machine.truth, dict(attention))


def train(rank: Rank, case: Case) -> None:
    """Forward through the layers, backward through them, an optimizer's step."""
    running: list[Iterator[None]] = []
    for _ in range(case.layers):
        rank.spend(case.late.get(rank.number, 0))
        linear(rank, 60_000)
        layer = case.implementation(rank, _of_rank(case.attention, rank.number))
        next(layer)
        running.append(layer)
        linear(rank, 120_000)
        if case.tensor:
            reduce(rank, "forward")
    for layer in reversed(running if case.backward else []):
        if case.tensor:
            reduce(rank, "backward")
        linear_backward(rank, 120_000)
        assert next(layer, None) is None
        linear_backward(rank, 60_000)
    with rank.range("Optimizer.step#AdamW.step"):
        rank.kernel(
            "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>(int)",
            50_000,
            op="aten::_fused_adamw_",
        )


def _of_rank(at: Attention, rank: int) -> Attention:
    """The attention in the rank's own group: groups of equal size follow each other."""
    if rank in at.group.ranks:
        return at
    by = rank // at.ranks * at.ranks
    return replace(at, group=replace(at.group, ranks=tuple(r + by for r in at.group.ranks), name=f"1{by}"))


def linear(rank: Rank, dur_ns: int) -> None:
    rank.kernel(GEMM, dur_ns)


def linear_backward(rank: Rank, dur_ns: int) -> None:
    with rank.node("MmBackward0", 0):
        rank.kernel(GEMM, dur_ns)
        rank.kernel(GEMM, dur_ns)


def reduce(rank: Rank, phase: str) -> None:
    """Tensor parallelism beside it: an all-reduce of Megatron's regions."""
    first = rank.number // 2 * 2
    group = ProcessGroup((first, first + 1), f"2{first}", "tp")
    said = Said("activation" if phase == "forward" else "dgrad", phase=phase)
    if phase == "forward":
        with rank.function("_ReduceFromModelParallelRegion"):
            rank.collective(group, "all_reduce", (65_536, 65_536), said, is_async=False)
    else:
        with rank.node("_CopyToModelParallelRegionBackward", 1):
            rank.collective(group, "all_reduce", (65_536, 65_536), said, is_async=False)


def group(ranks: int) -> ProcessGroup:
    return ProcessGroup(tuple(range(ranks)))


RING = Case("ring", ring_flash_attention, Attention(group(4), causal=False), "ring")
RING_CAUSAL = RING.but("ring-causal", attention=Attention(group(4), causal=True))
ZIGZAG = RING.but("zigzag", attention=Attention(group(4), causal=True, layout="zigzag"))
STRIPED = RING.but("striped", attention=Attention(group(4), causal=True, layout="striped"))
ULYSSES = Case("ulysses", ulysses, Attention(group(4)), "ulysses")
GATHERED = Case("all-gather", gathered, Attention(group(4)), "all-gather")
CASES = (RING, RING_CAUSAL, ZIGZAG, STRIPED, ULYSSES, GATHERED)
