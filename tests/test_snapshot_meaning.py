"""What stacks and lives tell of a snapshot's blocks, and why an allocation failed."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from snapshot_helpers import (
    CALL,
    EMPTY,
    ENGINE,
    MAIN,
    MIB,
    NODE,
    STEP,
    TORCH,
    Allocator,
    backward,
    figures,
    forward,
    frame,
    must,
    native,
    optimizer,
    snapshot,
)

ZERO_GRAD = [frame("zero_grad", f"{TORCH}/optim/optimizer.py", 1000), MAIN]
BUILD = [
    EMPTY,
    frame("__init__", f"{TORCH}/nn/modules/linear.py", 100),
    frame("__init__", "/home/me/model.py", 5),
]


def trained(device: Allocator, steps: int = 2, **more: Any) -> None:
    """A model of 32 MiB; per step 40 MiB of activations, 4 of a temporary, 8 of a gathered input."""
    device.alloc(32 * MIB, BUILD)
    for step in range(steps):
        kept = [must(device.alloc(20 * MIB, forward(line=line), **more)) for line in (10, 20)]
        device.free(must(device.alloc(4 * MIB, forward("gelu", 30))), forward("gelu", 30))
        gather = [frame("all_gather_into_tensor", f"{TORCH}/distributed/distributed_c10d.py", 4000)]
        gathered = must(device.alloc(8 * MIB, gather + forward(line=40)))
        grads = [must(device.alloc(16 * MIB, backward())) for _ in range(2)]
        device.free(must(device.alloc(2 * MIB, backward())), backward())
        for address in (*kept, gathered):
            device.free(address, backward())
        if step == 0:
            device.alloc(64 * MIB, optimizer())
        device.free(
            must(device.alloc(3 * MIB, optimizer("_multi_tensor_adam"))), optimizer("_multi_tensor_adam")
        )
        for address in grads:
            device.free(address, ZERO_GRAD)


def test_blocks_of_training_are_told_apart(tmp_path: Path) -> None:
    device = Allocator()
    trained(device)
    found, ledger = figures(tmp_path, snapshot(device))
    by_size = {block.bytes: block for block in found.blocks or ()}
    assert {size // MIB: block.category for size, block in by_size.items()} == {
        32: "parameter-optimizer",
        64: "parameter-optimizer",
        20: "activation",
        16: "gradient",
        8: "communication",
        4: "temporary",
        3: "temporary",
        2: "temporary",
    }
    assert by_size[20 * MIB].freed_phase == "backward"
    assert by_size[8 * MIB].crosses_border
    assert by_size[8 * MIB].operator == "me/model.py:40 forward"
    assert (found.peak_phase, found.peak_bytes) == ("backward", (32 + 64 + 40 + 8 + 32 + 2) * MIB)
    assert [border.bytes for border in found.borders] == [48 * MIB] * 2
    assert found.borders[0].by_category == {"activation": 40 * MIB, "communication": 8 * MIB}
    assert not [entry for entry in ledger if entry.severity != "note"]


def test_what_is_alive_in_forward_is_assumed_to_be_kept_unless_its_stack_says_otherwise(
    tmp_path: Path,
) -> None:
    """The end lies in forward: a stack whose blocks were temporaries before makes temporaries."""
    device = Allocator()
    trained(device)
    device.alloc(20 * MIB, forward(line=10))
    device.alloc(4 * MIB, forward("gelu", 30))
    device.alloc(6 * MIB, forward("new", 50))
    found, ledger = figures(tmp_path, snapshot(device))
    at_end = {block.bytes // MIB: block.category for block in found.blocks or () if block.death_ns is None}
    assert at_end == {
        32: "parameter-optimizer",
        64: "parameter-optimizer",
        20: "activation",
        4: "temporary",
        6: "activation",
    }
    assumed = [entry for entry in ledger if entry.code == "snapshot-alive-in-forward"]
    assert [entry.count for entry in assumed] == [1]


def test_torchs_own_categories_win(tmp_path: Path) -> None:
    """`export_memory_timeline` writes them into the entries."""
    device = Allocator()
    for category in ("PARAMETER", "optimizer_state", "gradient", "activation", "input"):
        device.alloc(MIB, [frame("x")], category=category.lower())
    found, _ = figures(tmp_path, snapshot(device))
    assert [block.category for block in found.blocks or ()] == [
        "parameter-optimizer", "parameter-optimizer", "gradient", "activation", "unknown",
    ]  # fmt: skip


def test_nothing_is_claimed_where_nothing_tells(tmp_path: Path) -> None:
    device = Allocator()
    device.alloc(MIB, [])
    device.free(must(device.alloc(2 * MIB, [])), [])
    found, ledger = figures(tmp_path, snapshot(device))
    assert found.peak_by_category == {"unknown": 3 * MIB}
    assert found.peak_by_operator == {"(no stack recorded)": 3 * MIB}
    assert (found.across_border_bytes, found.borders) == (None, [])
    assert "snapshot-without-stacks" in [entry.code for entry in ledger]


def test_python_stacks_alone_leave_backward_without_frames(tmp_path: Path) -> None:
    """`stacks="python"`: autograd's threads run no Python."""
    device = Allocator()
    python = [one for one in forward() if one is not EMPTY]
    kept = must(device.alloc(20 * MIB, python))
    grad = must(device.alloc(8 * MIB, []))
    device.free(kept, [])
    device.free(grad, ZERO_GRAD)
    found, ledger = figures(tmp_path, snapshot(device))
    assert {block.bytes // MIB: block.category for block in found.blocks or ()} == {
        20: "activation",
        8: "gradient",
    }
    (assumed,) = [entry for entry in ledger if entry.code == "snapshot-without-frames"]
    assert (assumed.severity, assumed.count) == ("assumption", 1)


def test_frees_that_repeat_the_allocations_stack_tell_no_phase(tmp_path: Path) -> None:
    """Without `context="all"` torch writes the allocation's stack at the free."""
    device = Allocator()
    kept = must(device.alloc(20 * MIB, forward()))
    grad = must(device.alloc(8 * MIB, backward()))
    device.free(kept, forward())
    device.free(grad, backward())
    found, _ = figures(tmp_path, snapshot(device))
    block = next(block for block in found.blocks or () if block.bytes == 20 * MIB)
    assert (block.freed_by, block.freed_phase, block.category) == (None, None, "activation")


SITES: dict[str, tuple[list[Any], str]] = {
    "the user's frame": (forward(line=7), "me/model.py:7 forward"),
    "a library, and who called it": (
        [
            CALL,
            frame("forward", "/venv/lib/python3.11/site-packages/transformers/modeling_llama.py", 9),
            CALL,
            MAIN,
        ],
        "transformers/modeling_llama.py:9 forward, from me/train.py:90 main",
    ),
    "a library alone": (
        [frame("run", "/venv/lib/python3.11/dist-packages/accelerate/launch.py", 3)],
        "accelerate/launch.py:3 run",
    ),
    "torch alone": (
        [
            EMPTY,
            frame("step", f"{TORCH}/optim/adam.py", 3),
            frame("run", "/usr/lib/python3.11/threading.py", 1),
        ],
        "optim/adam.py:3 step",
    ),
    "C++ alone": ([EMPTY, NODE, ENGINE], "torch::autograd::generated::MmBackward0::apply(...)"),
    "frozen modules are nobody's": ([frame("_run", "<frozen runpy>", 88), MAIN], "me/train.py:90 main"),
    "a user's folder named torch": ([frame("f", "/home/me/torch/train.py", 2)], "torch/train.py:2 f"),
    "a compiled graph tells its source": (
        [
            frame("call", "/tmp/torchinductor_me/ab/cab.py", 70)
            | {"fx_original_trace": 'File "/home/me/model.py", line 12, in forward\n    return x @ w'},
            MAIN,
        ],
        "me/model.py:12 forward",
    ),
    "generated code alone": ([frame("call", "/tmp/torchinductor_me/ab/cab.py", 70)], "ab/cab.py:70 call"),
}


@pytest.mark.parametrize("case", SITES)
def test_blocks_are_named_by_the_first_frame_of_the_users_code(tmp_path: Path, case: str) -> None:
    stack, site = SITES[case]
    device = Allocator()
    device.alloc(MIB, stack)
    found, _ = figures(tmp_path, snapshot(device))
    assert found.peak_by_operator == {site: MIB}


CUSTOM = frame("apply", f"{TORCH}/autograd/function.py", 575)
PHASES: dict[str, tuple[list[Any], str | None]] = {
    "module": ([frame("f", "/home/me/m.py"), CALL, MAIN], "forward"),
    "engine": ([EMPTY, ENGINE], "backward"),
    "custom function, forward": ([frame("forward", "/home/me/m.py"), CUSTOM, CALL], "forward"),
    "custom function, backward": ([frame("backward", "/home/me/m.py"), CUSTOM], "backward"),
    "recompute": (
        [frame("f", "/home/me/m.py"), CALL, frame("recompute_fn", f"{TORCH}/utils/checkpoint.py")],
        "backward",
    ),
    "loss.backward": ([frame("_make_grads", f"{TORCH}/autograd/__init__.py"), MAIN], "backward"),
    "optimizer": ([STEP, MAIN], "optimizer"),
    "another library's optimizer": ([frame("step", "/opt/apex/optimizers/fused_adam.py"), MAIN], "optimizer"),
    "clipping": ([frame("_get_total_norm", f"{TORCH}/nn/utils/clip_grad.py"), MAIN], "optimizer"),
    "scheduler.step is none": ([frame("step", "/home/me/schedule.py"), MAIN], None),
    "data": ([frame("to_device", "/home/me/data.py"), MAIN], None),
}


@pytest.mark.parametrize("case", PHASES)
def test_stacks_tell_the_phase(tmp_path: Path, case: str) -> None:
    stack, phase = PHASES[case]
    device = Allocator()
    device.alloc(MIB, stack)
    found, _ = figures(tmp_path, snapshot(device))
    assert [block.phase for block in found.blocks or ()] == [phase]


@pytest.mark.parametrize(
    "innermost",
    [
        frame("all_gather_into_tensor", f"{TORCH}/distributed/distributed_c10d.py"),
        frame("_gather_along_first_dim", "/opt/megatron/core/tensor_parallel/mappings.py"),
        frame("foreach_all_gather", f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_collectives.py"),
        native("c10d::Reducer::initialize_buckets(...)"),
        frame("reduce_scatter", "/home/me/sp.py"),
    ],
    ids=lambda one: one["name"].split("(")[0],
)
def test_buffers_of_collectives(tmp_path: Path, innermost: Any) -> None:
    device = Allocator()
    device.alloc(MIB, [EMPTY, innermost, CALL, MAIN])
    found, _ = figures(tmp_path, snapshot(device))
    assert found.peak_by_category == {"communication": MIB}


@pytest.mark.parametrize("name", ["broadcast_tensors", "pre_all_gather_hook", "gather_rows", "broadcaster"])
def test_what_only_sounds_like_a_collective(tmp_path: Path, name: str) -> None:
    device = Allocator()
    device.alloc(MIB, [EMPTY, frame(name, "/home/me/m.py"), CALL, MAIN])
    found, _ = figures(tmp_path, snapshot(device))
    assert "communication" not in (found.peak_by_category or {})


def test_ranges_tell_step_module_and_phase(tmp_path: Path) -> None:
    """`global_record_annotations=True`; `sp::` ranges and the profiler's steps."""
    device = Allocator()
    first = must(device.alloc(MIB, [MAIN]))
    begin = device.events[-1]["time_us"]
    device.alloc(2 * MIB, [MAIN])
    end = device.events[-1]["time_us"]
    device.free(first, [frame("other")])

    def stage(name: str, at: int, what: str) -> dict[str, Any]:
        return {"name": name, "stage": what, "time_us": at, "device": 0}

    own = "sp::fwd|module=layers.3.mlp|layer=3"
    annotations = [
        stage("ProfilerStep#7", begin + 1, "START"),
        stage(own, begin + 1, "START"),
        stage("never ended", begin + 1, "START"),
        stage(own, end + 1, "END"),
        stage("ProfilerStep#7", end + 1, "END"),
    ]
    found, _ = figures(tmp_path, snapshot(device, external_annotations=annotations))
    blocks = {block.bytes // MIB: block for block in found.blocks or ()}
    inside, outside = blocks[2], blocks[1]
    assert (inside.step, inside.module, inside.layer, inside.phase) == (7, "layers.3.mlp", 3, "forward")
    assert (outside.step, outside.module, outside.phase) == (None, None, None)
    assert found.peak_by_module == {"layers.3.mlp": 2 * MIB, "(no module)": MIB}


def test_the_programs_own_label_stands_for_a_module(tmp_path: Path) -> None:
    """`torch.cuda.memory._set_memory_metadata`."""
    device = Allocator()
    device.alloc(MIB, [MAIN], user_metadata="encoder")
    device.alloc(MIB, [MAIN], user_metadata="")
    found, _ = figures(tmp_path, snapshot(device))
    assert found.peak_by_module == {"(no module)": MIB, "encoder": MIB}


def test_phases_that_alternate_without_end_tell_no_border(tmp_path: Path) -> None:
    device = Allocator()
    for _ in range(2_001):
        device.free(must(device.alloc(512, forward())), backward())
    found, ledger = figures(tmp_path, snapshot(device))
    assert found.borders == []
    assert "snapshot-phases-mixed" in [entry.code for entry in ledger]


def test_what_torchs_memory_profiler_writes(tmp_path: Path) -> None:
    """A snapshot that torch itself makes, on the CPU: the walk back equals the walk forward."""
    torch = pytest.importorskip("torch")
    from torch.cuda._memory_viz import _profile_to_snapshot

    model = torch.nn.Linear(64, 64)
    optimizer_ = torch.optim.Adam(model.parameters())
    options = {"profile_memory": True, "record_shapes": True, "with_stack": True}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **options) as profiled:
        for _ in range(2):
            model(torch.randn(16, 64)).sum().backward()
            optimizer_.step()
            optimizer_.zero_grad()
    content = _profile_to_snapshot(profiled)
    (trace,) = [trace for trace in content["device_traces"] if trace]
    change = [{"alloc": 1, "free_completed": -1}.get(e["action"], 0) * e["size"] for e in trace]
    at_end = sum(b["size"] for s in content["segments"] for b in s["blocks"] if b["state"] != "inactive")
    live = [at_end - sum(change) + total for total in itertools.accumulate(change, initial=0)]
    found, ledger = figures(tmp_path, content)
    assert (found.start_bytes, found.peak_bytes, found.end_bytes) == (live[0], max(live), at_end)
    # weight and bias, and two of Adam's of each
    assert (found.peak_by_category or {})["parameter-optimizer"] >= 2 * 4 * (64 * 64 + 64)
    assert any("test_snapshot_meaning.py" in operator for operator in found.peak_by_operator or ())
    assert not [entry for entry in ledger if entry.severity in ("loss", "repair")]
