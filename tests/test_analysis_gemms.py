"""GEMMs by shape, dtype and role, and their TFLOP/s."""

from __future__ import annotations

import pytest
from analysis_helpers import WHOLE, analyze, gemm, step

from sp_profiler.analysis.gemms import gemm_dtype
from sp_profiler.analysis.steps import WindowRule
from sp_profiler.classify.shapes import product_of
from sp_profiler.classify.tables import Role

MM = ("aten::mm", "[[128,256],[256,512]]", '["c10::BFloat16","c10::BFloat16"]')


@pytest.mark.parametrize(
    ("operator", "dims", "shape"),
    [
        ("aten::mm", "[[128,256],[256,512]]", "M=128 N=512 K=256"),
        ("aten::addmm", "[[512],[128,256],[256,512],[],[]]", "M=128 N=512 K=256"),
        ("aten::bmm", "[[8,128,256],[8,256,512]]", "B=8 M=128 N=512 K=256"),
        ("aten::baddbmm", "[[8,1,512],[8,128,256],[8,256,512],[],[]]", "B=8 M=128 N=512 K=256"),
        ("aten::linear", "[[4,32,256],[512,256],[512]]", "M=128 N=512 K=256"),
        ("aten::linear", "[[4,32,256],[512,256],[]]", "M=128 N=512 K=256"),
        ("aten::matmul", "[[4,32,256],[256,512]]", "M=128 N=512 K=256"),
        ("aten::matmul", "[[2,1,16,4],[3,4,8]]", "B=6 M=16 N=8 K=4"),
        ("aten::matmul", "[[16,4],[3,4,8]]", "B=3 M=16 N=8 K=4"),
        ("aten::matmul", "[[4],[4,8]]", "M=1 N=8 K=4"),
        ("aten::matmul", "[[16,4],[4]]", "M=16 N=1 K=4"),
        ("aten::_scaled_mm", "[[16,32],[32,8],[],[]]", "M=16 N=8 K=32"),
        ("aten::addbmm", "[[16,8],[3,16,4],[3,4,8],[],[]]", "B=3 M=16 N=8 K=4"),
        ("aten::_grouped_mm", "[[64,32],[4,32,8],[4]]", "M=64 N=8 K=32"),  # tokens by expert
        ("aten::_grouped_mm", "[[32,64],[64,8],[4]]", "M=32 N=8 K=64"),  # its wgrad
        ("aten::_grouped_mm", "[[4,16,32],[4,32,8],[]]", "B=4 M=16 N=8 K=32"),
    ],
)
def test_shapes_of_products(operator: str, dims: str, shape: str) -> None:
    assert str(product_of(operator, dims, None)) == shape


@pytest.mark.parametrize(
    ("operator", "dims"),
    [
        ("aten::convolution", "[[1,3,8,8],[4,3,3,3]]"),
        ("aten::mm", None),
        ("aten::mm", "[[128,256],[256,"),
        ("aten::mm", "[[128,256]]"),
        ("aten::mm", "[[128,256],[512,256]]"),
        ("aten::mm", '[[128,"256"],[256,512]]'),
        ("aten::mm", "{}"),
        ("aten::mm", "[[],[]]"),
    ],
)
def test_what_is_no_known_product_has_no_shape(operator: str, dims: str | None) -> None:
    assert product_of(operator, dims, None) is None


def test_dtype_is_that_of_the_first_matrix_in_torchs_spelling() -> None:
    assert gemm_dtype("aten::mm", MM[2]) == "bfloat16"
    assert gemm_dtype("aten::addmm", '["float","c10::Half","c10::Half"]') == "float16"
    assert gemm_dtype("aten::mm", None) is None
    assert gemm_dtype("aten::mm", "[") is None
    assert gemm_dtype("aten::convolution", '["float"]') is None


def test_tflops_from_shape_and_time() -> None:
    #  2 * 128 * 512 * 256 = 33,554,432 FLOP each; twice in 1000 + 3000 ns: 16.777 TFLOP/s
    result = analyze(
        gemm(0, 1000, Role.FWD, launch=0, name="nvjet", op=MM),
        gemm(2000, 5000, Role.FWD, launch=1, name="nvjet", op=MM),
    )
    (one,) = result.gemms
    assert (one.name, one.shape, one.dtype, one.role) == ("nvjet", "M=128 N=512 K=256", "bfloat16", "fwd")
    assert (one.count, one.total_ns) == (2, 4000)
    assert one.tflops == pytest.approx(2 * 33_554_432 / 4000 / 1e3)


def test_kinds_apart_and_longest_first() -> None:
    result = analyze(
        gemm(0, 10, Role.DGRAD, op=MM),
        gemm(10, 40, Role.WGRAD, op=MM),
        gemm(40, 45),
        gemm(50, 60, is_gemm=False),
    )
    assert [(g.role, g.shape, g.total_ns) for g in result.gemms] == [
        ("wgrad", "M=128 N=512 K=256", 30), ("dgrad", "M=128 N=512 K=256", 10), ("unknown", None, 5),
    ]  # fmt: skip
    assert result.gemms[2].tflops is None


def test_only_gemms_inside_the_windows_count() -> None:
    drawn = (gemm(2, 6, launch=1, op=MM), gemm(12, 20, launch=11, op=MM))
    steps = (step(0, 0, 10), step(1, 10, 20))
    assert [g.count for g in analyze(*drawn, steps=steps, rule=WHOLE).gemms] == [2]
    assert [g.total_ns for g in analyze(*drawn, steps=steps, rule=WindowRule("step", (1, 2))).gemms] == [8]


def test_on_the_cpu_stretches_of_one_operator_are_one_and_speed_is_null() -> None:
    #  one aten::mm of [0,20) whose child ran [8,12): two stretches of the same event
    op = ("aten::mm", *MM[1:])
    result = analyze(
        gemm(0, 8, Role.WGRAD, name="aten::mm", op=op),
        gemm(12, 20, Role.WGRAD, name="aten::mm", op=op, event=0),
        cpu=True,
    )
    (one,) = result.gemms
    assert (one.name, one.shape, one.dtype, one.count, one.total_ns, one.tflops) == (
        "aten::mm", "M=128 N=512 K=256", "bfloat16", 1, 16, None,
    )  # fmt: skip
