"""What one rank keeps from forward for backward, exactly: every storage once, named.

The autograd engine offers each tensor that an operator saves to `torch.autograd.graph.saved_tensors_hooks`.
What is put on a `ctx` by hand passes these hooks by: see `live_bytes`.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from sp_profiler.record.places import Place, Places
from sp_profiler.record.storages import NamedStorage

CHECKPOINT = "checkpoint"
"""Operator of what `torch.utils.checkpoint` keeps: the inputs of the part that it will run again."""

_CHECKPOINT_MODULE = "torch.utils.checkpoint"
_next_number: Any = getattr(torch._C, "_autograd")._get_sequence_nr  # noqa: B009 - its stub lacks it
_NO_NUMBER = 2**63
"""Leaves' accumulators are no operators; their sequence number is beyond this."""


@dataclass(frozen=True, kw_only=True)
class SavedTensor(NamedStorage):
    """A storage kept for backward, as the first operator that saved it gave it."""

    term: str


@dataclass(frozen=True)
class SavedReport:
    """Everything saved, in the order of forward."""

    tensors: tuple[SavedTensor, ...]

    @property
    def saved_bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors)

    def to_json(self) -> dict[str, Any]:
        """`saved_bytes` and `tensors`; equal ones together: `bytes` is of all `count`, so bytes add up."""
        counts: dict[SavedTensor, int] = {}
        for tensor in self.tensors:
            counts[tensor] = counts.get(tensor, 0) + 1
        entries = [
            {"term": tensor.term, **tensor.to_json(), "bytes": tensor.bytes * count, "count": count}
            for tensor, count in counts.items()
        ]
        return {"saved_bytes": self.saved_bytes, "tensors": entries}


class _Kept:
    """What the engine holds in place of a saved tensor; it dies with the node that saved it."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@dataclass(frozen=True)
class _Saving:
    """One tensor saved by one operator. Holds nothing alive: what is freed again is not counted."""

    kept: weakref.ref[_Kept]
    place: Place
    operator: str | None
    number: int  # sequence number of the operator's node
    shape: tuple[int, ...]
    dtype: str


class SavedTensors:
    """A context around a forward of `model`; `report()` tells, after it, what is kept for backward.

    Eagerly, on ranks and under FakeTensorMode alike. Storages of parameters and buffers do not count,
    also where a view of one was saved. What was saved for a node that no longer exists at the end of the
    context does not count either. Inside a non-reentrant checkpoint only the inputs of the checkpointed
    part are kept, with the operator `checkpoint`. The context changes neither results nor what is kept.
    """

    def __init__(self, model: nn.Module, *, places: Places | None = None) -> None:
        """`places` follows the modules of `model`, where that is done already."""
        self._model = model
        self._places = places or Places(model)
        self._owns_places = places is None
        self._hooks = saved_tensors_hooks(self._pack, _unpack)
        self._names = _NodeNames()
        self._savings: list[_Saving] = []
        self._own: set[int] = set()
        self._report: SavedReport | None = None
        self.storages: frozenset[int] = frozenset()
        """`_cdata` of the storages reported, as of the end of the context."""

    def __enter__(self) -> SavedTensors:
        self._own = _storages_of_model(self._model)
        if self._owns_places:
            self._places.__enter__()
        self._names.__enter__()
        self._hooks.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hooks.__exit__(kind, error, trace)
        self._names.__exit__(kind, error, trace)
        if self._owns_places:
            self._places.__exit__(kind, error, trace)
        found = dict(self._kept_storages(self._own | _storages_of_model(self._model)))
        self.storages = frozenset(found)
        self._report = SavedReport(tuple(found.values()))

    def report(self) -> SavedReport:
        """What was kept when the context ended. Raises RuntimeError inside of it."""
        if self._report is None:
            raise RuntimeError("what is saved is known when the `with SavedTensors(...)` block has ended")
        return self._report

    def _pack(self, tensor: Tensor) -> _Kept:
        # An operator that saves its own result would be kept alive by it, were it not detached.
        kept = _Kept(tensor.detach() if tensor.grad_fn is not None else tensor)
        number = _next_number() - 1  # the node was made just before it saves
        operator = _operator_of(sys._getframe(1))
        dtype = str(tensor.dtype).removeprefix("torch.")
        saving = _Saving(
            weakref.ref(kept), self._places.current, operator, number, tuple(tensor.shape), dtype
        )
        self._savings.append(saving)
        return kept

    def _kept_storages(self, own: set[int]) -> Iterator[tuple[int, SavedTensor]]:
        """Each storage with the first operator that saved it. `kept` keeps the storage's id unique."""
        seen = set(own)
        for saving in self._savings:
            kept = saving.kept()
            if kept is None:
                continue
            storage = kept.tensor.untyped_storage()
            if storage._cdata in seen:
                continue
            seen.add(storage._cdata)
            operator = saving.operator or self._names.by_number.get(saving.number, "unknown")
            yield (
                storage._cdata,
                SavedTensor(
                    term=term_of(saving.place, operator),
                    module=saving.place.module,
                    layer=saving.place.layer,
                    operator=operator,
                    shape=saving.shape,
                    dtype=saving.dtype,
                    bytes=storage.nbytes(),
                ),
            )


def term_of(place: Place, operator: str) -> str:
    """The term of the memory equation: a checkpoint's inputs, attention by its operator, else as the
    module states; `other` where nothing tells."""
    if operator == CHECKPOINT:
        return "recompute-input"
    if operator.startswith(("ScaledDotProduct", "FlashAttn")):
        return "attention"
    if operator == "EmbeddingBackward0":
        return "embedding"
    return place.term or "other"


def storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Bytes of each distinct storage by its `_cdata`, which is unique as long as the tensors live."""
    found = (tensor.untyped_storage() for tensor in tensors)
    return {storage._cdata: storage.nbytes() for storage in found}


def _storages_of_model(model: nn.Module) -> set[int]:
    return {*storages(model.parameters()), *storages(model.buffers())}


def _unpack(kept: _Kept) -> Tensor:
    return kept.tensor


def _operator_of(caller: FrameType) -> str | None:
    """The node's name where the Python frame that saves tells it: custom functions and checkpoints.

    A custom function saves when its forward has returned, from inside `Function.apply`, and other nodes
    may have been made since its own.
    """
    if caller.f_globals.get("__name__") == _CHECKPOINT_MODULE:
        return CHECKPOINT
    function = caller.f_locals.get("cls")
    if isinstance(function, type) and issubclass(function, torch.autograd.Function):
        return CHECKPOINT if function.__module__ == _CHECKPOINT_MODULE else f"{function.__name__}Backward"
    return None


class _NodeNames(TorchFunctionMode):
    """Names of autograd nodes by sequence number, read off the results of torch's functions.

    Names only: a node that is kept would keep what it saved.
    """

    def __init__(self) -> None:
        super().__init__()
        self.by_number: dict[int, str] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, Tensor):
                self._learn(value.grad_fn)
        return result

    def _learn(self, root: Any) -> None:
        waiting = [root]
        while waiting:
            node = waiting.pop()
            if node is None:
                continue
            number = node._sequence_nr()
            if number < _NO_NUMBER and number not in self.by_number:
                self.by_number[number] = node.name()
                waiting.extend(following for following, _ in node.next_functions)
