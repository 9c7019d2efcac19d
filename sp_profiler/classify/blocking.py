"""Whether a collective of a CPU-only file is asynchronous, and when its thread waits for it.

What torch's operators say of themselves is a fact; what the launching thread does is kept apart, as a hint.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from sp_profiler.classify.context import Context
from sp_profiler.classify.tables import Activities, Collective
from sp_profiler.trace.tables import NONE, Category, Int64

_INTEGER = re.compile(r"-?\d+$")
_REDUCER_COPY = "torch.distributed.ddp.reducer::copy_bucket_to_grad"


@lru_cache(maxsize=65536)
def declared_async(operator: str, concrete: str | None) -> bool | None:
    """`async_op` of a c10d operator by its `Concrete Inputs`; None where it does not say.

    Every collective of torch 2.13 ends in (..., bool asyncOp, int timeout): `["","","","","True","-1"]` for
    `c10d::allreduce_`. Older versions lack the first of them for most, `send` and `recv` always do.
    Source: torch/csrc/distributed/c10d/Ops.cpp, checked on a recorded run of each operator.
    """
    if not operator.startswith("c10d::") or concrete is None:
        return None
    try:
        values = json.loads(concrete)
    except ValueError:
        return None
    if not isinstance(values, list) or len(values) < 2 or not _INTEGER.match(str(values[-1])):
        return None
    return {"true": True, "false": False}.get(str(values[-2]).lower())


def thread_sat_idle(context: Context, launcher: int, end_ns: int) -> bool:
    """Whether the launching thread began nothing from its call to the collective's end, and then went on."""
    nest, events = context.nest, context.trace.events
    thread = int(nest.thread[launcher])
    last = int(np.searchsorted(nest.thread, thread, side="right"))
    call_end = context.span_at(launcher)[1]
    following = bisect_left(
        range(last), call_end, lo=launcher + 1, key=lambda p: events.start_ns[nest.row[p]]
    )
    return following < last and int(events.start_ns[nest.row[following]]) >= end_ns


# --- DDP's reducer ---------------------------------------------------------------------------------


def with_reducer_waits(
    context: Context, activities: Activities, collectives: tuple[Collective, ...], launcher: Int64
) -> tuple[Collective, ...]:
    """The collectives with the waits of DDP's reducer. `launcher`: position of each activity's launch.

    At the end of backward the reducer waits for its buckets one by one and copies each into the gradients
    (`copy_bucket_to_grad`); it does nothing else in between. Without copies (`gradient_as_bucket_view`) the
    trace does not show the waits.
    """
    threads: dict[int, _Thread | None] = {}
    waited = list(collectives)
    for i, one in enumerate(collectives):
        position = int(launcher[one.activity])
        if (
            one.purpose_rule != "accumulate-grad"
            or not one.is_async
            or one.wait_start_ns is not None
            or position == NONE
        ):
            continue
        number = int(context.nest.thread[position])
        if number not in threads:
            threads[number] = _thread(context, number)
        thread = threads[number]
        launched = context.span_at(position)[1]
        wait = thread.wait(launched, int(activities.end_ns[one.activity])) if thread is not None else None
        if wait is not None:
            waited[i] = replace(one, wait_start_ns=wait[0], wait_end_ns=wait[1])
    return tuple(waited)


@dataclass(frozen=True)
class _Thread:
    """The operators of one thread in order of start, and the reducer's copies among them."""

    starts: list[int]
    ended: list[int]  # when the first k operators had all ended, k = 1, 2, ...
    copies: list[int]  # places in `starts`

    def wait(self, launched_ns: int, end_ns: int) -> tuple[int, int] | None:
        """The wait for a collective launched and ended at these times: until the copy that follows."""
        first = bisect_left(self.copies, bisect_left(self.starts, launched_ns))
        if first == len(self.copies):
            return None
        place = self.copies[first]
        if end_ns > self.starts[place]:
            # It ended among the copies: in the gap before one, the thread sat in the wait for it. Otherwise
            # it was found done, no earlier than in the gap before the first copy.
            following = bisect_left(self.starts, end_ns)
            if _holds(self.copies, following) and self.ended[following - 1] <= end_ns:
                place = following
        return max(self.ended[place - 1], launched_ns) if place else launched_ns, self.starts[place]


def _holds(places: list[int], place: int) -> bool:
    at = bisect_left(places, place)
    return at < len(places) and places[at] == place


def _thread(context: Context, number: int) -> _Thread | None:
    """The operators of a thread; None where the reducer copies nothing."""
    nest, events = context.nest, context.trace.events
    low, high = (int(np.searchsorted(nest.thread, number, side=side)) for side in ("left", "right"))
    rows = nest.row[low:high]
    rows = rows[events.category[rows] == int(Category.CPU_OP)]
    is_copy = context.trace.strings.match(events.name[rows], _REDUCER_COPY.__eq__)
    if not is_copy.any():
        return None
    ended = np.maximum.accumulate(events.start_ns[rows] + events.dur_ns[rows])
    return _Thread(events.start_ns[rows].tolist(), ended.tolist(), np.flatnonzero(is_copy).tolist())
