"""What a stack of frames tells: whose code asked for the memory, in which phase, and for what.

All rules are over distinct frames and distinct stacks, of which a million events hold a few thousand.
docs/snapshots.md lists them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from sp_profiler.classify.tables import Phase
from sp_profiler.snapshot.tables import Ints, Stacks
from sp_profiler.snapshot.worker.protocol import NONE
from sp_profiler.trace.tables import Bool, Int8, Int32

SHOWN_FRAMES = 40

# Whose frame it is; the first frame of the least of these names a stack.
USER, LIBRARY, TORCH, GENERATED, NATIVE, PLUMBING = range(6)

_TORCH_FILE = re.compile(
    r"/torch/(?:(?:_\w+|ao|amp|autograd|backends|cuda|distributed|fx|func|jit|nn|optim|profiler|random|utils)/"
    r"|_\w+\.py$|(?:functional|overrides|random|serialization|storage)\.py$)"
)
_INSTALLED = re.compile(r"/(?:site|dist)-packages/(?P<package>[^/]+)")
_STANDARD_LIBRARY = re.compile(r"/lib/python3(?:\.\d+)?/(?!site-packages/|dist-packages/)")
_GENERATED = re.compile(r"/torchinductor_|/torch_compile_debug/|^<eval_with_key>|^<string>|^<fx")
_NATIVE_FILE = re.compile(r"\.(?:c|cc|cpp|cxx|cu|h|hpp|cuh|so(?:\.\d+)*)$")
_PLUMBING = re.compile(
    r"^(?:unwind|torch::unwind|torch::CapturedTraceback|gather_with_cpp|c10::cuda::CUDACachingAllocator|c10::CUDA"
    r"|c10::StorageImpl|c10::GetAllocator|at::detail::empty|at::detail::make_tensor|_start$|__libc_start|Py|_Py"
    r"|clone$|start_thread|execute_native_thread|c10::impl::|c10::detail::|c10::Dispatcher)"
)
# A Python frame as torch.profiler names it, in snapshots that its memory profiler writes.
_PROFILED = re.compile(r"(?P<file>[^()\n]+)\((?P<line>\d{1,9})\): (?P<function>.+)")
_ORIGIN = re.compile(r'File "([^"\n]+)", line (\d+), in ([^\n,]+)')

# What a frame says of the phase and the purpose of what is allocated below it.
_ENGINE = re.compile(
    r"torch::autograd::(?:python::)?(?:Python)?Engine::|torch::autograd::Node::operator\(\)"
    r"|torch::autograd::generated::\w+::apply|torch::autograd::(?:AccumulateGrad|CopySlices|PyNode)::"
    r"|THPEngine_run_backward"
)
_COLLECTIVE_NATIVE = re.compile(r"\bc10d::|\bncclComm|torch::nccl")
_COLLECTIVE_FILE = re.compile(
    r"/torch/distributed/(?:distributed_c10d|_functional_collectives|_symmetric_memory/|nn/functional"
    r"|fsdp/_fully_shard/_fsdp_collectives|tensor/_collective_utils)"
)
_COLLECTIVE_NAME = re.compile(
    r"^_?(?:\w*_)?(?:all_?gather|all_?reduce|reduce_?scatter|all_?to_?all|broadcast)(?:_\w+)?$|^_?gather_along_"
    r"|^_?reduce_scatter_along|^_?split_along|^(?:alloc|init)_all_gather_outputs$"
    r"|^_alloc_padded_unsharded_flat_param$",
    re.I,
)
_NO_COLLECTIVE = re.compile(r"broadcast_(?:tensors|to|shapes)|hook|pre_|post_|wrapper", re.I)
_BUILDING = ("__init__", "reset_parameters", "_apply", "to", "cuda", "to_empty", "load_state_dict")
_RECOMPUTES = ("unpack_hook", "recompute_fn", "backward")
_BACKWARD_BODY = ("backward", "vjp", "decorate_bwd", "wrapper")

_BACKWARD_BIT, _OPTIMIZER_BIT, _FORWARD_BIT, _COLLECTIVE_BIT, _BUILDING_BIT, _ZERO_GRAD_BIT = (
    1 << bit for bit in range(6)
)


@dataclass(frozen=True)
class Told:
    """What each stack tells; one value per stack of the snapshot.

    `site` is a code into `sites`: the user's frame, after the frame of a library that it called where the
    library asked for the memory (`modeling_llama.py:120 forward, from train.py:57 main`).
    """

    sites: list[str]
    site: Int32
    phase: Int8
    is_collective: Bool
    is_building: Bool  # of a module: parameters and buffers
    is_zero_grad: Bool
    has_python: Bool
    has_native: Bool


def tell(stacks: Stacks) -> Told:
    """What all stacks of a snapshot tell."""
    owners = np.array([_owner(*frame) for frame in _frames(stacks)], dtype=np.int64)
    bits = np.array([_bits(*frame) for frame in _frames(stacks)], dtype=np.int64)
    count = len(stacks)
    if count == 0:
        none = np.zeros(0, dtype=np.bool_)
        return Told([], np.zeros(0, np.int32), np.zeros(0, np.int8), none, none, none, none, none)
    starts = np.concatenate(([0], stacks.ends[:-1]))
    per_frame = bits[stacks.frames] | _custom_backward(stacks)
    of_stack = np.bitwise_or.reduceat(per_frame, starts)
    phase = np.full(count, Phase.UNKNOWN, dtype=np.int8)
    for bit, value in (
        (_FORWARD_BIT, Phase.FORWARD),
        (_BACKWARD_BIT, Phase.BACKWARD),
        (_OPTIMIZER_BIT, Phase.OPTIMIZER),
    ):
        phase[(of_stack & bit) != 0] = value
    sites, site = _sites(stacks, starts, owners)
    native = owners[stacks.frames] >= NATIVE
    return Told(
        sites,
        site,
        phase,
        (of_stack & _COLLECTIVE_BIT) != 0,
        (of_stack & _BUILDING_BIT) != 0,
        (of_stack & _ZERO_GRAD_BIT) != 0,
        np.logical_or.reduceat(~native, starts),
        np.logical_or.reduceat(native, starts),
    )


class StackNames:
    """Stacks of a snapshot as a reader sees them; each frame is named once."""

    def __init__(self, stacks: Stacks) -> None:
        self._stacks = stacks
        self._frames: dict[int, tuple[bool, str]] = {}
        self._stacks_shown: dict[int, list[str]] = {}

    def shown(self, stack: int) -> list[str]:
        """The frames of a stack, outermost first: Python's, or C++'s where there is no other."""
        known = self._stacks_shown.get(stack)
        if known is not None:
            return known
        frames = [self._named(frame) for frame in self._stacks.of(stack).tolist()]
        python = [name for is_python, name in frames if is_python]
        kept = python or [name for _, name in frames if name]
        self._stacks_shown[stack] = kept[:SHOWN_FRAMES][::-1]
        return self._stacks_shown[stack]

    def _named(self, frame: int) -> tuple[bool, str]:
        known = self._frames.get(frame)
        if known is None:
            parts = _parts(self._stacks, frame)
            owner = _owner(*parts)
            name = "" if owner == PLUMBING else _long_name(*parts)
            known = self._frames[frame] = (owner < NATIVE, name)
        return known


def _frames(stacks: Stacks) -> list[tuple[str, int, str, str]]:
    return [_parts(stacks, frame) for frame in range(len(stacks.file))]


def _parts(stacks: Stacks, frame: int) -> tuple[str, int, str, str]:
    def text(code: int) -> str:
        return "" if code == NONE else stacks.texts[code]

    file, line, function = (
        text(int(stacks.file[frame])),
        int(stacks.line[frame]),
        text(int(stacks.function[frame])),
    )
    profiled = _PROFILED.match(function) if file == "none" else None
    if profiled is not None:
        file, line, function = profiled["file"], int(profiled["line"]), profiled["function"]
        file = f"/{file}" if file.startswith("torch/") else file
    return file, line, function, text(int(stacks.origin[frame]))


def _owner(file: str, line: int, function: str, origin: str) -> int:
    """Whose code a frame is."""
    if _ORIGIN.search(origin):
        return USER  # a compiled graph that tells where its source stood
    if file in ("", "??", "none") or "::" in function or _NATIVE_FILE.search(file):
        return PLUMBING if _PLUMBING.match(function) else NATIVE
    if _GENERATED.search(file):
        return GENERATED
    installed = _INSTALLED.search(file)
    if _TORCH_FILE.search(file) or (installed is not None and installed["package"] == "torch"):
        return TORCH
    if installed is not None:
        return LIBRARY
    return GENERATED if file.startswith("<") or _STANDARD_LIBRARY.search(file) else USER


def _bits(file: str, line: int, function: str, origin: str) -> int:
    """What a frame says on its own."""
    bits = _phase_bits(file, function)
    native = file in ("", "??") or "::" in function
    if native:
        return bits | (_COLLECTIVE_BIT if _COLLECTIVE_NATIVE.search(function) else 0)
    if function.rpartition(".")[2] == "zero_grad":
        bits |= _ZERO_GRAD_BIT
    named = _COLLECTIVE_NAME.search(function) and not _NO_COLLECTIVE.search(function)
    if _COLLECTIVE_FILE.search(file) or named:
        bits |= _COLLECTIVE_BIT
    of_modules = "/torch/nn/modules/" in file or file.endswith("/torch/nn/parameter.py")
    if (of_modules and function in _BUILDING) or file.endswith("/torch/nn/init.py"):
        bits |= _BUILDING_BIT
    return bits


def _phase_bits(file: str, function: str) -> int:
    if _ENGINE.search(function):
        return _BACKWARD_BIT
    if function.rpartition(".")[2] == "step" and "optim" in file.lower():
        return _OPTIMIZER_BIT
    if "/torch/optim/" in file and not function.endswith("__init__"):
        return _OPTIMIZER_BIT
    if file.endswith(("/torch/nn/utils/clip_grad.py", "/torch/amp/grad_scaler.py")):
        return _OPTIMIZER_BIT
    if file.endswith(("/torch/_tensor.py", "/torch/autograd/__init__.py")) and function in (
        "backward",
        "grad",
        "_make_grads",
    ):
        return _BACKWARD_BIT
    if function == "_engine_run_backward":
        return _BACKWARD_BIT
    if file.endswith("/torch/utils/checkpoint.py") and function in (
        "unpack_hook",
        "recompute_fn",
        "backward",
    ):
        return _BACKWARD_BIT  # recomputation, which backward sets off
    if file.endswith("/torch/nn/modules/module.py") and function.endswith("_call_impl"):
        return _FORWARD_BIT
    if file.endswith("/torch/nn/functional.py") or function == "forward":
        return _FORWARD_BIT
    return 0


def _custom_backward(stacks: Stacks) -> Ints:
    """Per place in `stacks.frames`: the backward bit where autograd calls the body of a custom function.

    Forward and backward of a custom function both pass a frame `apply` of torch/autograd/function.py; what
    it calls tells them apart.
    """
    frames = _frames(stacks)
    is_apply = np.array([f.endswith("/torch/autograd/function.py") and n == "apply" for f, _, n, _ in frames])
    is_body = np.array([n in _BACKWARD_BODY for _, _, n, _ in frames])
    marked = np.zeros(len(stacks.frames), dtype=np.int64)
    if len(stacks.frames) > 1:
        inner, outer = stacks.frames[:-1], stacks.frames[1:]
        same = np.ones(len(inner), dtype=np.bool_)
        same[stacks.ends[:-1] - 1] = False
        marked[1:][same & is_body[inner] & is_apply[outer]] = _BACKWARD_BIT
    return marked


def _sites(stacks: Stacks, starts: Ints, owners: Ints) -> tuple[list[str], Int32]:
    """For each stack whose code asked: distinct names, and each stack's code among them."""
    of_frame = owners[stacks.frames]
    far = len(stacks.frames)
    places = np.arange(far)
    first = {
        owner: np.minimum.reduceat(np.where(of_frame == owner, places, far), starts)
        for owner in (USER, LIBRARY, TORCH, GENERATED, NATIVE)
    }
    names: dict[str, int] = {}
    site = np.empty(len(starts), dtype=np.int32)
    known: dict[tuple[int, int], int] = {}
    for stack in range(len(starts)):
        place, caller = _asking(stack, first, far)
        inner = int(stacks.frames[place]) if place < far else int(stacks.frames[starts[stack]])
        outer = int(stacks.frames[caller]) if caller < far else NONE
        code = known.get((inner, outer))
        if code is None:
            name = _short_name(*_parts(stacks, inner))
            if outer != NONE:
                name += f", from {_short_name(*_parts(stacks, outer))}"
            code = known[inner, outer] = names.setdefault(name, len(names))
        site[stack] = code
    return list(names), site


def _asking(stack: int, first: dict[int, Ints], far: int) -> tuple[int, int]:
    """The places of the frame that names a stack and, of a library's frame, of the user's that called it."""
    user, library = int(first[USER][stack]), int(first[LIBRARY][stack])
    if user < far:
        return (library, user) if library < user else (user, far)
    return next((int(first[owner][stack]) for owner in first if first[owner][stack] < far), far), far


def _short_name(file: str, line: int, function: str, origin: str) -> str:
    """`model/attention.py:88 forward`."""
    sources = _ORIGIN.findall(origin)
    if sources:
        file, text, function = sources[-1]
        line = int(text[:9])
    if file in ("", "??", "none"):
        return function or "?"
    return f"{'/'.join(file.split('/')[-2:])}:{line} {function}"


def _long_name(file: str, line: int, function: str, origin: str) -> str:
    short = _short_name(file, line, function, origin)
    return short if file in ("", "??", "none") or _ORIGIN.search(origin) else f"{file}:{line} {function}"
