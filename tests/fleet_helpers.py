"""A Dask cluster of two workers on the loopback, engines by name, and processes that must be gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

GONE_S = 20.0


@contextmanager
def local_cluster(workers: int = 2) -> Iterator[Any]:
    """A `LocalCluster` of single-threaded worker processes."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, dashboard_address=":0", host="127.0.0.1"
    ) as cluster:
        yield cluster


def address(cluster: Any) -> str:
    """As `--engine` spells it."""
    return cluster.scheduler_address.replace("tcp://", "dask://")


def wait_until(is_so: Callable[[], bool], what: str, limit_s: float = GONE_S) -> None:
    """Return when it is so; fail when it never is."""
    deadline = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline, f"{what} did not happen in {limit_s:g} s"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """Whether there is a process of this number that has not ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def all_gone(pids: list[int]) -> None:
    """Fail when one of these processes does not end."""
    wait_until(lambda: not any(map(is_running, pids)), f"the end of {pids}")
