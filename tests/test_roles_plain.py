"""Roles in models that nobody annotated. The truth is told by the tensors: which GEMM reads a parameter.

A first run looks at every product through a dispatch mode (reads a parameter inside a linear's forward: fwd,
in backward: recomputation; reads one outside of it: dgrad; reads none: wgrad); a second run is profiled. Both
do the same in the same order.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_twin import device_twin

from sp_profiler.classify import classify
from sp_profiler.classify.tables import Classified, Phase, Role
from sp_profiler.trace.decode import decode_trace

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop  # noqa: E402

PRODUCTS = ("aten::mm", "aten::addmm")


class Watch(TorchDispatchMode):
    """Writes down the role of every product."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self.in_forward = self.in_backward = False
        self.roles: list[str] = []
        for linear in (m for m in model.modules() if isinstance(m, nn.Linear)):
            linear.register_forward_pre_hook(partial(self.mark, True))
            linear.register_forward_hook(
                partial(self.mark, False), always_call=True
            )  # a checkpoint stops early

    def mark(self, inside: bool, *_: Any) -> None:
        self.in_forward = inside

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in PRODUCTS:
            operands = args[-2:] if func._schema.name == "aten::mm" else args[1:3]
            reads = any(x.untyped_storage().data_ptr() in self.parameters for x in operands)
            forward = "RECOMPUTE" if self.in_backward else "FWD"
            self.roles.append(forward if self.in_forward else "DGRAD" if reads else "WGRAD")
        return func(*args, **(kwargs or {}))


def run(model: nn.Module, call: Callable[[], Any], steps: int, watch: Watch | None) -> None:
    for _ in range(steps):  # gradient accumulation: sequence numbers go on
        loss = (call() * torch.linspace(-1, 1, 1)).pow(2).sum()
        if watch is not None:
            watch.in_backward = True
        loss.backward()
        if watch is not None:
            watch.in_backward = False


def truth_and_trace(
    model: nn.Module, call: Callable[[], Any], folder: Path, steps: int = 2, shapes: bool = True
) -> tuple[list[str], Path]:
    torch.set_num_threads(1)
    with Watch(model) as watch:
        run(model, call, steps, watch)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=shapes) as profiler:
        run(model, call, steps, None)
    path = folder / "plain.json"
    profiler.export_chrome_trace(str(path))
    return watch.roles, path


def roles_in_order(classified: Classified) -> list[str]:
    """One role for each GEMM operator, in order of launch."""
    activities = classified.activities
    gemms = np.flatnonzero(activities.is_gemm)
    gemms = gemms[np.argsort(activities.launch_ns[gemms], kind="stable")]
    _, first = np.unique(activities.launch_ns[gemms], return_index=True)
    return [Role(role).name for role in activities.role[gemms[first]]]


def rules(classified: Classified) -> set[str]:
    activities = classified.activities
    return {classified.rules[rule] for rule in activities.role_rule[activities.is_gemm]}


def classified_both(path: Path) -> list[Classified]:
    twin = device_twin(path, path.with_name("twin.json"))
    return [classify(decode_trace(str(one))) for one in (path, twin)]


def stack(inputs: int, middle: int, outputs: int, *, bias: bool) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, middle, bias=bias), nn.GELU(), nn.Linear(middle, outputs, bias=bias)
    )


SHAPES = {  # input, sizes of the two linears
    "2-D": ((20,), (12, 16, 24)),
    "3-D": ((4, 5), (12, 16, 24)),
    "tokens == outputs": ((16,), (12, 16, 16)),
    "3-D, tokens == outputs": ((4, 4), (12, 16, 16)),
    "all equal": ((16,), (16, 16, 16)),
    "3-D, all equal": ((4, 4), (16, 16, 16)),
}


@pytest.mark.gloo
@pytest.mark.parametrize("wrap", ["none", "reentrant", "not reentrant"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_linears(tmp_path: Path, shape: str, bias: bool, wrap: str) -> None:
    tokens, sizes = SHAPES[shape]
    model = stack(*sizes, bias=bias)
    x = torch.randn(*tokens, sizes[0], requires_grad=True)

    def call() -> Any:
        return model(x) if wrap == "none" else checkpoint(model, x, use_reentrant=wrap == "reentrant")

    # Stopped early, a recomputation leaves an operator in the trace that never multiplied anything.
    with set_checkpoint_early_stop(False):
        truth, path = truth_and_trace(model, call, tmp_path)
    assert {"FWD", "DGRAD", "WGRAD"} <= set(truth)
    assert ("RECOMPUTE" in truth) == (wrap != "none")
    for classified in classified_both(path):
        assert roles_in_order(classified) == truth
        assert not rules(classified) & {"none", "node-order", "kernel-layout", "other-of-node"}


@pytest.mark.gloo
def test_wgrad_runs_first_without_a_bias_and_second_with_one(tmp_path: Path) -> None:
    """Which is why order in general is no rule."""
    backward = []
    for bias in (False, True):
        model = stack(12, 16, 24, bias=bias)
        x = torch.randn(20, 12, requires_grad=True)
        truth, _ = truth_and_trace(model, partial(model, x), tmp_path, steps=1)
        backward.append(truth[2:])
    assert backward == [["WGRAD", "DGRAD"] * 2, ["DGRAD", "WGRAD"] * 2]


@pytest.mark.gloo
@pytest.mark.parametrize("bias", [False, True])
def test_frozen_weights_and_leaves_without_gradient(tmp_path: Path, bias: bool) -> None:
    """One GEMM in a node: the first layer's wgrad, a frozen layer's dgrad."""
    model = stack(16, 16, 16, bias=bias)
    model[2].weight.requires_grad_(False)  # type: ignore[union-attr]
    x = torch.randn(16, 16)
    truth, path = truth_and_trace(model, partial(model, x), tmp_path, steps=1)
    assert truth == ["FWD", "FWD", "DGRAD", "WGRAD"]
    for classified in classified_both(path):
        assert roles_in_order(classified) == truth


@pytest.mark.gloo
@pytest.mark.parametrize("bias", [False, True])
def test_without_shapes_torchs_own_nodes_are_known(tmp_path: Path, bias: bool) -> None:
    """`record_shapes=False`: both GEMMs of MmBackward0, of AddmmBackward0, are told by its code."""
    model = stack(12, 16, 24, bias=bias)
    x = torch.randn(20, 12, requires_grad=True)
    truth, path = truth_and_trace(model, partial(model, x), tmp_path, shapes=False)
    for classified in classified_both(path):
        assert roles_in_order(classified) == truth
        assert "node-order" in rules(classified)


@pytest.mark.gloo
def test_a_lone_gemm_without_shapes_stays_unknown(tmp_path: Path) -> None:
    model = stack(12, 16, 24, bias=True)
    truth, path = truth_and_trace(model, partial(model, torch.randn(20, 12)), tmp_path, 1, shapes=False)
    for classified in classified_both(path):
        found = roles_in_order(classified)
        assert found == ["FWD", "FWD", "DGRAD", "WGRAD", "UNKNOWN"]
        assert truth[-1] == "WGRAD"


@pytest.mark.gloo
@pytest.mark.parametrize("fused", [True, False])
def test_attention_fused_or_written_out(tmp_path: Path, fused: bool) -> None:
    """q, k, v and output projections are linears, what is between them is attention; so in backward."""
    torch.manual_seed(0)
    q, k, v, o = (nn.Linear(16, 16, bias=False) for _ in range(4))
    model = nn.ModuleList([q, k, v, o])
    x = torch.randn(2, 6, 16, requires_grad=True)

    def heads(y: Any) -> Any:
        return y.unflatten(-1, (4, 4)).transpose(1, 2)

    def call() -> Any:
        a, b, c = heads(q(x)), heads(k(x)), heads(v(x))
        if fused:
            out = nn.functional.scaled_dot_product_attention(a, b, c, is_causal=True)
        else:
            out = torch.softmax(a @ b.transpose(-1, -2) / 2, -1) @ c
        return o(out.transpose(1, 2).flatten(-2))

    truth, path = truth_and_trace(model, call, tmp_path)
    for classified in classified_both(path):
        found = roles_in_order(classified)
        assert [role for role in found if role != "ATTENTION"] == truth
        # Two products in forward, four in backward; fused cores hold no GEMM operator on a CPU.
        assert found.count("ATTENTION") == (0 if fused else 2 * 6)
    on_cpu = classified_both(path)[0].activities
    assert (on_cpu.role == Role.ATTENTION).any()


@pytest.mark.gloo
def test_batched_experts_are_linears_and_interactions_stay_unknown(tmp_path: Path) -> None:
    """`bmm` with a parameter is a linear for each expert; of two activations neither is a wgrad."""
    weight = nn.Parameter(torch.randn(3, 12, 16))
    x, z = torch.randn(3 * 5, 12, requires_grad=True), torch.randn(3 * 7, 12, requires_grad=True)
    for experts in (True, False):
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
            second = weight if experts else z.unflatten(0, (3, 7)).transpose(1, 2)
            torch.bmm(x.unflatten(0, (3, 5)), second).pow(2).sum().backward()
        profiler.export_chrome_trace(str(tmp_path / "plain.json"))
        for classified in classified_both(tmp_path / "plain.json"):
            found = sorted(roles_in_order(classified))
            assert found == (["DGRAD", "FWD", "WGRAD"] if experts else ["FWD", "UNKNOWN", "UNKNOWN"])


@pytest.mark.gloo
def test_convolutions_are_no_linears(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(), nn.Linear(64, 8))
    x = torch.randn(2, 3, 4, 4, requires_grad=True)
    truth, path = truth_and_trace(model, partial(model, x), tmp_path)
    for classified in classified_both(path):
        assert [role for role in roles_in_order(classified) if role != "OTHER"] == truth


@pytest.mark.gloo
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ on a CPU")
@pytest.mark.parametrize("wrap", ["none", "not reentrant"])
def test_compiled(tmp_path: Path, wrap: str) -> None:
    """Graphs of torch.compile call `aten::mm` for products; their node stands for all of them."""
    model = stack(12, 16, 24, bias=False)
    x = torch.randn(20, 12, requires_grad=True)

    def forward(x: Any) -> Any:
        return model(x) if wrap == "none" else checkpoint(model, x, use_reentrant=False)

    compiled = torch.compile(forward)
    compiled(x).pow(2).sum().backward()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        compiled(x).pow(2).sum().backward()
    path = tmp_path / "plain.json"
    profiler.export_chrome_trace(str(path))
    # M=20: (20,12)@(12,16), (20,16)@(16,24); all sizes differ, so shapes are the truth.
    of_shape = {
        (20, 12, 16): "FWD",
        (20, 16, 24): "FWD",
        (20, 24, 16): "DGRAD",
        (20, 16, 12): "DGRAD",
        (16, 20, 12): "WGRAD",
        (24, 20, 16): "WGRAD",
        (12, 20, 16): "WGRAD",
        (16, 20, 24): "WGRAD",
    }
    trace = decode_trace(str(path))
    classified = classify(trace)
    activities = classified.activities
    found: dict[str, int] = {}
    for i in np.flatnonzero(activities.is_gemm).tolist():
        dims = trace.strings[int(trace.events.dims[activities.event[i]])] or ""
        (m, k), (_, n) = json.loads(dims)[:2]
        expected = of_shape[m, k, n]
        if expected == "FWD" and activities.phase[i] == Phase.BACKWARD:
            expected = "RECOMPUTE"
        assert Role(activities.role[i]).name == expected
        found[expected] = found.get(expected, 0) + 1
    assert {"FWD", "DGRAD", "WGRAD"} <= set(found)
    twin = classified_both(path)[1]
    assert "UNKNOWN" not in roles_in_order(twin)
