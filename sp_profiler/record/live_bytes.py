"""Tensor storages that are alive, as operators make them and the last reference lets them go.

Sees what no hook of autograd sees, such as a tensor put on a `ctx` by hand, and works under
FakeTensorMode, where there is no allocator to ask. Does not see what an operator allocates and frees
inside itself, nor what an allocator rounds up or keeps in reserve.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sp_profiler.record.places import NOWHERE, Place
from sp_profiler.record.storages import NamedStorage


@dataclass(frozen=True, kw_only=True)
class LiveStorage(NamedStorage):
    """One storage: `storage` is its `_cdata` while it lives; shape and dtype of the tensor it came with."""

    storage: int


class LiveBytes(TorchDispatchMode):
    """A context that follows every storage made inside it, and those given to `track`.

    Enter it inside FakeTensorMode where both are used. Storages made before and not tracked do not count.
    `place` tells the module at work, as `Places.current` does.
    """

    def __init__(self, place: Callable[[], Place] = lambda: NOWHERE) -> None:
        super().__init__()
        self._place = place
        self._live: dict[int, tuple[LiveStorage, weakref.ref[Any]]] = {}
        self._live_bytes = 0
        self._gone: deque[int] = deque()
        self.peak_bytes = 0
        self.peak_operator: str | None = None
        """The operator at which the peak was reached; None when it was `track`."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = (*args, *kwargs.values()) if kwargs else args
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors_in((result,)):
            self._note(tensor, func, given)
        return result

    @property
    def current_bytes(self) -> int:
        """What is alive now."""
        self._let_go()
        return self._live_bytes

    def track(self, tensors: Iterable[Tensor], operator: str) -> None:
        """Follow storages that exist already, as if `operator` had made them now."""
        for tensor in tensors:
            self._add(tensor, operator, NOWHERE)
        if self._live_bytes > self.peak_bytes:
            self.peak_bytes, self.peak_operator = self._live_bytes, None

    def alive(self) -> list[LiveStorage]:
        """Every storage that is alive, oldest first."""
        self._let_go()
        return [storage for storage, _ in self._live.values()]

    def _note(self, tensor: Tensor, func: Any, given: Iterable[Any]) -> None:
        self._let_go()
        storage = tensor.untyped_storage()
        known = self._live.get(storage._cdata)
        if known is None:
            # A view of what was made before the context began is nothing new; not every operator that
            # returns one says so in its schema.
            if all(other.untyped_storage()._cdata != storage._cdata for other in _tensors_in(given)):
                self._add(tensor, func._schema.name, self._place())
        elif known[0].bytes != (now := storage.nbytes()):  # resized in place
            self._live_bytes += now - known[0].bytes
            self._live[storage._cdata] = (replace(known[0], bytes=now), known[1])
        if self._live_bytes > self.peak_bytes:
            self.peak_bytes, self.peak_operator = self._live_bytes, func._schema.name

    def _add(self, tensor: Tensor, operator: str, place: Place) -> None:
        self._let_go()
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._live:
            return
        dtype = str(tensor.dtype).removeprefix("torch.")
        live = LiveStorage(
            storage=key,
            module=place.module,
            layer=place.layer,
            operator=operator,
            shape=tuple(tensor.shape),
            dtype=dtype,
            bytes=storage.nbytes(),
        )
        # Other threads let go too (those of gloo when a collective is over): they only leave word. They do
        # so before the memory can be given to another storage.
        self._live[key] = (live, weakref.ref(storage, lambda _: self._gone.append(key)))
        self._live_bytes += live.bytes

    def _let_go(self) -> None:
        while self._gone:
            self._live_bytes -= self._live.pop(self._gone.popleft())[0].bytes


def _tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among an operator's arguments or results, also in lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors_in(value)
