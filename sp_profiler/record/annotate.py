"""The range grammar: `sp::<what>|key=value|...`, defined, written and parsed here and nowhere else.

Ranges are emitted with `torch.profiler.record_function` *inside* autograd functions, because a range
around `.backward()` does not cover the kernels that the engine launches.

====== ==================================================================================
what   meaning and fields (all ranges may carry `module` and `layer`)
====== ==================================================================================
fwd    the GEMM of a linear's forward
dgrad  the GEMM that makes the gradient of a linear's input
wgrad  the GEMM that makes the gradient of a linear's weight
attention  the attention core, forward or backward
recompute  forward work done again in backward
optimizer  the optimizer's step
comm   one collective, from its launch to the return of the launching call (a synchronous one: to
       its end). Fields: op, group, bytes, dtype, async (0|1), seq, purpose, partner, phase
wait   waiting for an asynchronous collective. Fields: op, group, seq
====== ==================================================================================

`group` is the group's key: its description and ranks, `tp[0,1]`. `seq` counts the collectives of a
group from 0 on each rank, so that (group, seq) names a collective and its wait. `partner` is the
`what` of the range (same module) under which the collective should hide: `wgrad`, `dgrad`,
`attention`. `bytes` is the full tensor: of an all-reduce the buffer, of an all-gather the output, of a
reduce-scatter the input; one rank's buffer of an all-to-all and of a send_recv. `phase` is `forward`,
`backward` or `optimizer` (from the end of backward on). A send_recv, which may be both at once as in the
shift of a ring, carries `src` and `dst`, the global ranks it receives from and sends to.

Text is escaped as in URLs, so that a value may hold the separators; quotes and backslashes are
escaped too, because the trace writer of some torch versions leaves them bare in its JSON.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import unquote

PREFIX = "sp::"
_RESERVED = re.compile(r'[\x00-\x1f\x7f"%=\\|]')
COMPUTE_RANGES = ("fwd", "dgrad", "wgrad", "attention", "recompute", "optimizer")
RANGES = (*COMPUTE_RANGES, "comm", "wait")
PURPOSES = (
    "activation",
    "dgrad",
    "input-regather",
    "param-grad",
    "param-gather",
    "kv",
    "dkv",
    "layout",
    "pipeline",
    "expert",
    "other",
    "unknown",
)


@dataclass(frozen=True)
class Range:
    """A parsed range name. `fields` holds every key as written, unescaped."""

    what: str
    fields: dict[str, str] = field(default_factory=dict)

    @property
    def module(self) -> str | None:
        return self.fields.get("module")

    @property
    def layer(self) -> int | None:
        return self._integer("layer")

    @property
    def bytes(self) -> int | None:
        return self._integer("bytes")

    @property
    def seq(self) -> int | None:
        return self._integer("seq")

    @property
    def source(self) -> int | None:
        """The global rank that a send_recv receives from."""
        return self._integer("src")

    @property
    def target(self) -> int | None:
        """The global rank that a send_recv sends to."""
        return self._integer("dst")

    @property
    def is_async(self) -> bool | None:
        value = self._integer("async")
        return None if value is None else bool(value)

    def _integer(self, key: str) -> int | None:
        text = self.fields.get(key, "")
        # More than 18 digits do not fit into int64, and nobody wrote them in earnest.
        return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def _escape(value: object) -> str:
    text = str(int(value)) if isinstance(value, bool) else str(value)
    # Called for every range of every step; hardly any value holds one.
    return _RESERVED.sub(lambda found: f"%{ord(found[0]):02X}", text) if _RESERVED.search(text) else text


def format_range(what: str, **fields: object) -> str:
    """The name of a range. Fields that are None are left out; `async_` is written `async`.

    Raises ValueError for a `what` outside the grammar and for a key that is not an identifier.
    """
    if what not in RANGES:
        raise ValueError(f"unknown range '{what}', expected one of {', '.join(RANGES)}")
    for key in fields:
        if not key.isidentifier():
            raise ValueError(f"the key '{key}' of a range must be an identifier")
    parts = [f"{key.rstrip('_')}={_escape(value)}" for key, value in fields.items() if value is not None]
    return "|".join([PREFIX + what, *parts])


@lru_cache(maxsize=65536)
def parse_range(name: str) -> Range | None:
    """The range that a name spells, or None when it is not one of ours (never raises)."""
    if not name.startswith(PREFIX):
        return None
    what, *parts = name[len(PREFIX) :].split("|")
    if what not in RANGES:
        return None
    pairs = (part.split("=", 1) for part in parts)
    return Range(what, {pair[0]: unquote(pair[1]) for pair in pairs if len(pair) == 2})


def annotate(what: str, **fields: object) -> AbstractContextManager[object]:
    """A context manager that marks the work inside it for the profiler (needs torch).

    Example: `with annotate("wgrad", module="layers.0.mlp.down", layer=0): ...`
    """
    from torch.profiler import record_function

    return record_function(format_range(what, **fields))
