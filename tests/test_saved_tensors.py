"""What forward keeps for backward: each storage once, named; and what the hooks do not see."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from sp_profiler.record.live_bytes import LiveBytes
from sp_profiler.record.places import Places
from sp_profiler.record.saved_tensors import SavedReport, SavedTensors, storages

EAGER_AND_FAKE = pytest.mark.parametrize("tensors", [nullcontext, FakeTensorMode])


def saved_by(model: nn.Module, forward: Callable[[], Any]) -> tuple[SavedReport, Any]:
    with SavedTensors(model) as saved:
        result = forward()
    return saved.report(), result


def lines(report: SavedReport) -> list[tuple[str | None, str, int]]:
    return [(tensor.module, tensor.operator, tensor.bytes) for tensor in report.tensors]


class Gate(nn.Module):
    """silu(up(x)) * up(x): two operators keep the same tensor, and the transposed weight is a parameter."""

    saved_term = "mlp"

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        up = self.up(x)
        return F.silu(up) * up


@EAGER_AND_FAKE
def test_each_storage_once_with_module_and_operator(
    tensors: Callable[[], AbstractContextManager[Any]],
) -> None:
    with tensors():
        model = nn.Sequential(
            Gate(), nn.ModuleDict({"again": Gate()})["again"][:0] if False else nn.Linear(16, 8)
        )
        report, _ = saved_by(model, lambda: model(torch.zeros(4, 8)))
    assert lines(report) == [
        ("0.up", "MmBackward0", 4 * 8 * 4),  # the input
        ("0", "SiluBackward0", 4 * 16 * 4),  # also kept by the product
        ("0", "MulBackward0", 4 * 16 * 4),  # silu's output
        ("1", "AddmmBackward0", 4 * 16 * 4),
    ]
    assert report.saved_bytes == 4 * (8 + 3 * 16) * 4
    assert [tensor.term for tensor in report.tensors] == ["other", "mlp", "mlp", "other"]
    assert [tensor.layer for tensor in report.tensors] == [0, 0, 0, 1]
    assert {tensor.dtype for tensor in report.tensors} == {"float32"}


def test_the_whole_storage_counts_where_a_part_is_kept() -> None:
    model = nn.Module()
    x = torch.ones(10, 4, requires_grad=True)
    report, _ = saved_by(model, lambda: x.exp()[:2].square())
    (exp,) = report.tensors  # exp keeps its result, square a part of it
    assert (exp.operator, exp.bytes, exp.shape) == ("ExpBackward0", 160, (10, 4))
    report, _ = saved_by(model, lambda: x.detach().clone()[:2].mul(x[:2]))
    (part,) = report.tensors[:1]
    assert (part.operator, part.bytes, part.shape) == ("MulBackward0", 160, (2, 4))


def test_parameters_buffers_and_their_views_do_not_count() -> None:
    class Scaled(nn.Module):
        scale: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(6, 4))
            self.register_buffer("scale", torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.scale) @ self.weight[2:].t().contiguous() * self.weight.view(-1)[0]

    model = Scaled()
    x = torch.ones(3, 4, requires_grad=True)
    report, _ = saved_by(model, lambda: model(x))
    assert lines(report) == [
        ("model", "MmBackward0", 4 * 4 * 4),  # a copy of the weight is no parameter
        ("model", "MmBackward0", 3 * 4 * 4),
        ("model", "MulBackward0", 3 * 4 * 4),
    ]


def test_what_is_dropped_before_the_end_does_not_count() -> None:
    model, x = nn.Module(), torch.ones(64, requires_grad=True)

    def forward() -> Tensor:
        x.exp().sin()  # a branch that nobody uses; exp keeps its own result
        return x.cos()

    report, _ = saved_by(model, forward)
    assert [(t.operator, t.bytes) for t in report.tensors] == [("CosBackward0", 256)]


def test_a_context_keeps_nothing_alive_and_changes_no_result() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    x = torch.randn(4, 8)
    model(x).sum().backward()
    plain = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    with LiveBytes() as live:
        report, out = saved_by(model, lambda: model(x).sum())
        assert live.current_bytes >= report.saved_bytes - 4 * 8 * 4 > 0
        out.backward()
        del out
    assert live.current_bytes == sum(p.numel() * 4 for p in model.parameters())  # the gradients
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(torch.equal(mine, other) for mine, other in zip(gradients, plain, strict=True))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_custom_functions_are_called_by_their_name() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            y = Once.apply(x)  # makes a node of its own before this one saves
            ctx.save_for_backward(x, y)
            return y * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            return 2 * grad

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            return grad

    x = torch.ones(5, requires_grad=True)
    report, _ = saved_by(nn.Module(), lambda: Twice.apply(x))
    assert [(t.operator, t.bytes) for t in report.tensors] == [("TwiceBackward", 20), ("TwiceBackward", 20)]


@EAGER_AND_FAKE
def test_a_checkpoint_keeps_its_inputs(tensors: Callable[[], AbstractContextManager[Any]]) -> None:
    """Also around a module whose hooks are left by an exception when the repetition stops early."""
    with tensors():
        model = nn.Sequential(Gate(), nn.Linear(16, 8))
        x = torch.zeros(4, 8, requires_grad=True)
        with SavedTensors(model) as saved:
            loss = model[1](checkpoint(model[0], x * 2, use_reentrant=False)).sum()
        assert [(t.operator, t.term, t.bytes) for t in saved.report().tensors] == [
            ("checkpoint", "recompute-input", 4 * 8 * 4),
            ("AddmmBackward0", "other", 4 * 16 * 4),
        ]
        with Places(model) as places:
            loss.backward()
            assert places.current.module is None


def test_a_report_needs_the_end_of_forward() -> None:
    saved = SavedTensors(nn.Linear(2, 2))
    with saved, pytest.raises(RuntimeError, match="when the `with SavedTensors"):
        saved.report()


def test_json_adds_up_and_counts_equal_ones_together() -> None:
    model, x = nn.Module(), torch.ones(8, requires_grad=True)
    report, _ = saved_by(model, lambda: (x * 1).exp() + (x * 1).exp() + x.sin())
    assert report.to_json() == {
        "saved_bytes": 96,
        "tensors": [
            {
                "term": "other",
                "module": None,
                "layer": None,
                "operator": name,
                "shape": [8],
                "dtype": "float32",
                "bytes": 32 * count,
                "count": count,
            }
            for name, count in (("ExpBackward0", 2), ("SinBackward0", 1))
        ],
    }


# --- live bytes ------------------------------------------------------------------------------------------


@EAGER_AND_FAKE
def test_live_storages_come_and_go(tensors: Callable[[], AbstractContextManager[Any]]) -> None:
    with tensors():
        before = torch.ones(100)
        with LiveBytes() as live:
            a = before * 2
            view = a[10:].view(9, 10)
            assert live.current_bytes == 400
            before.add_(1)
            unsafe = torch.ops.aten._unsafe_view(before, [10, 10])
            assert live.current_bytes == 400, "views of what was there before are nothing new"
            b = torch.zeros(50, dtype=torch.bfloat16)
            assert [(s.operator, s.bytes, s.shape) for s in live.alive()] == [
                ("aten::mul", 400, (100,)),
                ("aten::zeros", 100, (50,)),
            ]
            del a, b, unsafe
            assert live.current_bytes == 400, "the view holds the storage"
            del view
        assert (live.current_bytes, live.peak_bytes, live.peak_operator) == (0, 500, "aten::zeros")


def test_tracked_storages_count_once_and_end_like_others() -> None:
    x = torch.ones(10)
    live = LiveBytes()
    live.track([x, x[2:]], "given")
    assert (live.current_bytes, live.peak_bytes, live.peak_operator) == (40, 40, None)
    with live:
        y = x + 1
        del x
        assert live.current_bytes == 40
        y.untyped_storage().resize_(0)
        y.resize_(20)
        assert live.current_bytes == 80
    assert live.peak_bytes == 80


def test_storages_that_other_threads_let_go_of_are_counted_right() -> None:
    """Gloo's threads do. Many threads and no lock: each byte is subtracted once, and ids are used again."""
    with LiveBytes() as live:
        for _ in range(50):
            shared = [[torch.zeros(n + 1) for n in range(20)] for _ in range(4)]
            assert live.current_bytes >= 4 * 4 * 210
            threads = [threading.Thread(target=part.clear) for part in shared]
            for thread in threads:
                thread.start()
            made = [torch.ones(3) for _ in range(20)]
            for thread in threads:
                thread.join()
            assert live.current_bytes == 20 * 12
            assert len(live.alive()) == 20
            del made
        assert live.current_bytes == 0


class Hides(torch.autograd.Function):
    """Keeps the square on `ctx` by hand, where no hook sees it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.full = x.square()
        return ctx.full.sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * ctx.full


@EAGER_AND_FAKE
def test_what_is_put_on_ctx_escapes_the_hooks_but_not_the_live_bytes(
    tensors: Callable[[], AbstractContextManager[Any]],
) -> None:
    class Hiding(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Hides.apply(x)

    with tensors():
        model = nn.Sequential(nn.Linear(4, 6), Hiding())
        places = Places(model)
        x = torch.ones(3, 4)
        with LiveBytes(lambda: places.current) as live, places, SavedTensors(model, places=places) as saved:
            loss = model(x)
        known = {*saved.storages, *storages([loss])}
        (hidden,) = [storage for storage in live.alive() if storage.storage not in known]
        assert (hidden.module, hidden.layer, hidden.operator) == ("1", 1, "aten::pow")
        assert (hidden.bytes, hidden.shape, hidden.dtype) == (72, (3, 6), "float32")
        del loss
        gc.collect()
        assert live.current_bytes == 0
