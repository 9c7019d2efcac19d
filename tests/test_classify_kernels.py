"""The one place that decides what a kernel is, against names as real traces spell them."""

from __future__ import annotations

import pytest

from sp_profiler.classify.kernels import activity_facts, function_name, kernel_facts
from sp_profiler.classify.tables import Kind
from sp_profiler.trace.tables import Category

COMMUNICATION = {
    # NCCL and RCCL, of all ages
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)": "all_reduce",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)": "send_recv",
    "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)": "all_gather",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "all_reduce",
    "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "reduce_scatter",
    "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "broadcast",
    "ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "reduce",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)": "send_recv",
    "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)": None,
    "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>) [clone .kd]": None,
    "ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_Sum_bf16(ncclSymkDevWorkArgs)": "all_reduce",
    "ncclSymDevKernel_AllGather_STMC(ncclSymDevArgs)": "all_gather",
    "ncclAllReduceRingLLKernel_sum_f32(ncclColl)": "all_reduce",
    "ncclAllReduceTreeLLKernel_sum_f16(ncclColl)": "all_reduce",
    "ncclAllGatherRingLLKernel_copy_i8(ncclWorkElem)": "all_gather",
    "ncclReduceScatterRingLLKernel_sum_f16(ncclColl)": "reduce_scatter",
    "ncclSendRecvKernel_copy_i8(ncclWorkElem)": "send_recv",
    "mscclKernel_Sum_half_Simple(ncclDevComm*, mscclAlgo*)": None,
    "void mscclpp::allreduceAllPairs<float>(float*)": "all_reduce",
    "oneccl_allreduce_kernel": "all_reduce",
    # symmetric memory
    "void multimem_all_reduce_kernel<c10::BFloat16, 16>(...)": "all_reduce",
    "void c10d::symmetric_memory::(anonymous namespace)::multimem_one_shot_all_reduce_kernel"
    "<c10::BFloat16, 16, 8>(...)": "all_reduce",
    "void c10d::symmetric_memory::(anonymous namespace)::multimem_all_gather_kernel<16>(...)": "all_gather",
    "void one_shot_all_reduce_kernel<float, 16, 8, true>(...)": "all_reduce",
    "void two_shot_all_reduce_kernel<c10::BFloat16,16>(...)": "all_reduce",
    "void two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 8>(...)": "all_reduce",
    "void c10d::symmetric_memory::barrier_kernel(unsigned int**, unsigned long, int, int)": "barrier",
    "void c10d::intra_node_comm::hybridCubeMeshAllReduceKernel<8>(...)": "all_reduce",
    # NVSHMEM, DeepEP
    "nvshmemi_alltoall_kernel": "all_to_all",
    "barrier_on_stream_kernel_threadgroup(int, nvshmem_team_t)": "barrier",
    "void deep_ep::internode::dispatch<true, 8, false>(int4*)": "all_to_all",
    "void deep_ep::internode::dispatch<...>": "all_to_all",
    "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>(...)": "all_to_all",
    "void deep_ep::internode_ll::dispatch<true, false, 7168>(void*)": "all_to_all",
    "void deep_ep::intranode::notify_dispatch<8>(int const*)": "all_to_all",
    "_ZN7deep_ep9internode8dispatchILb1EEEvPi": "all_to_all",
    "void deep_ep::internode_ll::clean_low_latency_buffer<32>(int*, int)": None,
    "void tensorrt_llm::kernels::moe_alltoall::moeA2ADispatchKernel<1>(int)": "all_to_all",
    "(anonymous namespace)::barrier_kernel(unsigned int**, unsigned long, int, int)": "barrier",
    "(anonymous namespace)::put_signal_kernel(unsigned int**, unsigned long, int, int)": None,
    "(anonymous namespace)::wait_signal_kernel(unsigned int**, unsigned long, int, int)": None,
    # TransformerEngine userbuffers
    "void userbuffers_fp16_sum_inplace_gpu_rr_ag<8>(...)": "all_gather",
    "void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>(int)": "reduce_scatter",
    "void userbuffers_fp16_sum_inplace_gpu_rr<8>(int)": "all_reduce",
    "kuserbuffers_pushsend(int*, int*, int4*, int4*, int)": "send_recv",
    "kuserbuffers_pullrecv(int, int, int, int*, int*, int4*, int4*, int)": "send_recv",
    # inference engines
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)": "all_reduce",
    "void sglang::cross_device_reduce_2stage<half, 4>(RankData*)": "all_reduce",
    "void aiter::cross_device_reduce_2stage<__hip_bfloat16, 8>(RankData*)": "all_reduce",
    "void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot>(...)": "all_reduce",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(Pattern)1>(P)": (
        "all_reduce"
    ),
    "void flashinfer::trtllm_mnnvl_allreduce::twoshot_allreduce_kernel<8, __nv_bfloat16>(...)": "all_reduce",
    "void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_twoshot_sync<...>(...)": "all_reduce",
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8, true>(...)": "all_reduce",
    "void tensorrt_llm::kernels::reduce_fusion::lamport_style_one_shot_all_reduce_norm_kernel<...>(...)": (
        "all_reduce"
    ),
}

FUSED = (
    "void cutlass::device_kernel<bytedance::flux::Sm90AGGemmKernel<int> >(...)",
    "void cutlass::Kernel2<bytedance::flux::GemmRsKernel<int>>(...)",
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int>, "
    "cutlass::gemm::PersistentAsyncInputScheduler<int> > >(...)",
    "void tensorrt_llm::kernels::GemmAllReduceKernel<float>(int)",
    "kernel_consumer_gemm_persistent",
    "kernel_gemm_rs_producer_persistent",
    "ag_gemm_kernel",
)

GEMM = (
    "hipblaslt_gemm",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_segment_k_off",
    "ampere_sgemm_128x128_tn",
    "volta_sgemm_32x32_sliced1x4_tn",
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nt",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8>(Params)",
    "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4>(Params)",
    "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT",
    "Cijk_Ailk_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT16x16x256_MI16x16x1_SN",
    "void wvSplitK_hf_sml_<__hip_bfloat16, 64, 2, 16, 8, 2, 1>(int, int)",
    "void gemmSN_TN_kernel<float, 128, 16, 2, 4, 8, 9, false, cublasGemvTensorStridedBatched<float>>(P)",
    "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, float>(P)",
    "void deep_gemm::fp8_gemm_kernel<int>(int)",
    "triton_tem_fused_addmm_relu_3",
    "triton_mm",
    "matmul_kernel",
    "wgrad_gemm_kernel",
)

ATTENTION = (
    "flash_fwd_kernel",
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128>>(P)",
    "void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128>>(P)",
    "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<int>>>(P)",
    "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<int>::Params)",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7x64x128x128x128_kernel0_0",
    "void ck_tile::kentry<256, 1, ck_tile::FmhaFwdKernel<int>>(P)",
    "attn_fwd",
    "void vllm::paged_attention_v2_kernel<int>(P)",
)

OTHER_COMPUTATION = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, ncclSum> >(R)",
    "void at::native::vectorized_gather_kernel<16, long>(char*)",
    "void at::native::_scatter_gather_elementwise_kernel<128, 4, at::native::"
    "_cuda_scatter_gather_internal_kernel<true, at::native::OpaqueType<4> > >(int)",
    "void at::native::(anonymous namespace)::indexSelectLargeIndex<long, long, 1, -2, true>(T)",
    "void at::native::batch_norm_gather_stats_and_invstd_kernel<float>(T)",
    "void SyncBatchNormBackwardKernel<float>(T)",
    "check_nccl_flags_kernel",
    "my_nccl_like_helper",
    "void warpAllReduceSum<float>(float*)",
    "void blockAllReduceSum(float*)",
    "moe_reduce_kernel",
    "void deep_ep::layout::get_dispatch_layout<256, 32, 4>(long const*, int*)",
    # Inductor names kernels after the operators it fused, collectives and attention among them
    "triton_poi_fused_all_gather_into_tensor_cat_wait_tensor_3",
    "triton_red_fused_all_reduce_native_layer_norm_0",
    "triton_per_fused__scaled_dot_product_efficient_attention_mm_2",
    # these quote GEMM words only
    "void fbgemm_gpu::permute_2D_data_kernel<true>(int)",
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<gemm_like>>(int)",
    "void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensorStridedBatched<float const>>>(P)",
    "SubTensorOpWithScalar1d",
    "void vllm::reshape_and_cache_flash_kernel<int>(P)",
    # convolutions are no GEMM of a linear
    "void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, false, true, true>(int)",
    "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc",
    "igemm_wrw_gtcx3_nhwc_bf16_bx0_ex1_bt64x64x64_wt32x32x8",
    "void cutlass_cudnn_train::Kernel<cutlass_tensorop_s16816wgrad_optimized>(P)",
    "_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weightINS_47GridwiseGemm",
)


@pytest.mark.parametrize(("name", "op"), COMMUNICATION.items())
def test_communication(name: str, op: str | None) -> None:
    facts = kernel_facts(name)
    assert (facts.kind, facts.op) == (Kind.COMMUNICATION, op)
    assert not facts.is_gemm
    assert not facts.is_attention


@pytest.mark.parametrize("name", FUSED)
def test_fused(name: str) -> None:
    assert kernel_facts(name).kind == Kind.FUSED


@pytest.mark.parametrize("name", GEMM)
def test_gemm(name: str) -> None:
    facts = kernel_facts(name)
    assert (facts.kind, facts.is_gemm, facts.is_attention) == (Kind.COMPUTATION, True, False)


@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name: str) -> None:
    facts = kernel_facts(name)
    assert (facts.kind, facts.is_gemm, facts.is_attention) == (Kind.COMPUTATION, False, True)


@pytest.mark.parametrize("name", OTHER_COMPUTATION)
def test_other_computation(name: str) -> None:
    facts = kernel_facts(name)
    assert (facts.kind, facts.is_gemm, facts.is_attention) == (Kind.COMPUTATION, False, False)


def test_parts_of_a_gemm_optimizer_and_compiled_kernels() -> None:
    part = kernel_facts("void splitKreduce_kernel<32, 16, int, float>(cublasSplitKParams<float>)")
    assert (part.is_gemm, part.is_gemm_part) == (False, True)
    adam = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::{}<4>>(T)"
    assert kernel_facts(adam.format("FusedAdamMathFunctor")).is_optimizer
    assert not kernel_facts(adam.format("LpNormFunctor")).is_optimizer
    assert kernel_facts("triton_poi_fused_add_0").is_compiled
    assert kernel_facts("triton__0d1d2d3d").is_compiled
    assert not kernel_facts("triton_mm").is_compiled


@pytest.mark.parametrize(
    ("category", "name", "kind"),
    [
        (Category.MEMCPY, "Memcpy PtoP (Device -> Device)", Kind.COMMUNICATION),
        (Category.MEMCPY, "Memcpy HtoD (Pinned -> Device)", Kind.MEMORY),
        (Category.MEMCPY, "Memcpy DtoD (Device -> Device)", Kind.MEMORY),
        (Category.MEMCPY, "CopyDeviceToDevice", Kind.MEMORY),
        (Category.MEMSET, "Memset (Device)", Kind.MEMORY),
        (Category.KERNEL, "ok", Kind.COMPUTATION),
        (Category.KERNEL, "", Kind.COMPUTATION),
    ],
)
def test_category(category: Category, name: str, kind: Kind) -> None:
    facts = activity_facts(category, name)
    assert facts is not None
    assert facts.kind == kind


@pytest.mark.parametrize(
    ("category", "name"),
    [
        (Category.DEVICE_SYNC, "Stream Sync"),
        (Category.KERNEL, "Context Sync"),
        (Category.DEVICE_ANNOTATION, "nccl:all_reduce"),
        (Category.CPU_ANNOTATION, "nccl:all_reduce"),
        (Category.RUNTIME, "cudaLaunchKernel"),
    ],
)
def test_no_activity(category: Category, name: str) -> None:
    assert activity_facts(category, name) is None


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("void a::b<c<d>, (e)1>(f::g*, int)", "a::b"),
        ("unsigned int const* at::(anonymous namespace)::k(int)", "at::_anonymous_::k"),
        ("Cijk_Ailk [clone .kd]", "Cijk_Ailk"),
        ("name.kd", "name"),
        ("_ZN2ck4gemm6kernelILi1EEEv", "ck::gemm::kernel"),
        ("_Z6kernelPf", "kernel"),
        ("", ""),
        ("<<<", "<<<"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL (x)", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
        ("void ns::f <int> (int)", "ns::f"),
    ],
)
def test_function_name(name: str, function: str) -> None:
    assert function_name(name) == function
