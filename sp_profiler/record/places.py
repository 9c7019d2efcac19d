"""Where in a model the program is: the module whose forward runs, followed with forward hooks."""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

_NUMBER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")


@dataclass(frozen=True)
class Place:
    """A module by name (None: outside of every module), its block's number, and the term it states.

    A module states the term of the memory equation for which it keeps tensors in an attribute
    `saved_term`; a module that has none is None here.
    """

    module: str | None
    layer: int | None
    term: str | None


NOWHERE = Place(None, None, None)


class Places:
    """A context in which `current` is the innermost module of `model` whose forward runs.

    Modules are called by their path in the model, or as their own `site` says (the name their ranges
    carry). Forward hooks, so what calls submodules' methods directly counts as the caller's. Forwards
    that a checkpoint repeats in backward and leaves early are followed too.
    """

    def __init__(self, model: nn.Module) -> None:
        self._places = {module: _place(name, module) for name, module in model.named_modules()}
        self._open: list[nn.Module] = []
        self._hooks: ExitStack | None = None

    @property
    def current(self) -> Place:
        return self._places[self._open[-1]] if self._open else NOWHERE

    def __enter__(self) -> Places:
        with ExitStack() as hooks:
            for module in self._places:
                # first in, last out: other hooks of the module belong to it
                before = module.register_forward_pre_hook(self._enter_module, prepend=True)
                after = module.register_forward_hook(self._leave_module, always_call=True)
                hooks.callback(before.remove)
                hooks.callback(after.remove)
            self._hooks = hooks.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._hooks is not None
        self._hooks.close()
        self._open.clear()

    def _enter_module(self, module: nn.Module, _inputs: Any) -> None:
        self._open.append(module)

    def _leave_module(self, module: nn.Module, _inputs: Any, _output: Any) -> None:
        # An exception may have passed by the hooks of modules inside this one.
        while self._open and self._open.pop() is not module:
            continue


def _place(name: str, module: nn.Module) -> Place:
    site = getattr(module, "site", None)
    stated, layer = getattr(site, "module", None), getattr(site, "layer", None)
    if not isinstance(stated, str):
        found = _NUMBER.search(name)
        stated, layer = name, int(found[1]) if found else None
    term = getattr(module, "saved_term", None)
    return Place(stated or "model", layer, term if isinstance(term, str) else None)
