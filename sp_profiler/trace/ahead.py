"""Work done ahead of its use, in a thread of its own: the next block is inflated while one is scanned, the
next file decoded while one is analysed."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

Item = TypeVar("Item")

_LOOK_UP_S = 0.1

_of_thread = threading.local()  # `.unwanted`: events, one of which is set when nobody takes its work any more


def is_unwanted() -> bool:
    """Whether what this thread makes is not taken any more. Who works long in one asks, and ends early."""
    return any(event.is_set() for event in _unwanted_here())


def _unwanted_here() -> tuple[threading.Event, ...]:
    return getattr(_of_thread, "unwanted", ())


def ahead(items: Generator[Item, None, None], count: int) -> Generator[Item, None, None]:
    """The same items, none of them None, in the same order, and the same error in the same place; up to
    `count` are made before they are asked for.

    Closing the generator ends its thread, when the item in work is made or `is_unwanted` was asked.
    """
    unwanted = threading.Event()
    events = (*_unwanted_here(), unwanted)

    def begin() -> None:
        _of_thread.unwanted = events

    with contextlib.closing(items), ThreadPoolExecutor(1, "ahead", begin) as thread:
        waiting = deque(thread.submit(next, items, None) for _ in range(count))
        try:
            while (item := _result(waiting.popleft())) is not None:
                waiting.append(thread.submit(next, items, None))
                yield item
                del item  # before the next one is waited for
        finally:
            unwanted.set()
            for one in waiting:
                one.cancel()


def _result(made: Future[Item]) -> Item:
    """What `made` gives. Ctrl-C interrupts the wait for it: where a library's handler lets system calls go on
    (polars installs one), Python hears of the signal only between two short waits."""
    while not made.done():
        wait((made,), _LOOK_UP_S)
    return made.result()
