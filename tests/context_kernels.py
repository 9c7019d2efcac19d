"""Attention on a device: its sizes, what the libraries call their kernels, and how long each block takes."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from context_facts import ProcessGroup
from context_rank import Rank

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


def attend(
    rank: Rank,
    at: Attention,
    number: int,
    step: int,
    share: Fraction,
    *,
    backward: bool = False,
    merge: bool = True,
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
    if step and merge:
        rank.kernel(MERGE, 5_000, op="aten::add_" if backward else "aten::sigmoid")
