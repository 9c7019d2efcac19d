"""What tests of plans share: schemes that several of them ask for are executed once."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sp_profiler.planning import build
from sp_profiler.planning.step import ExecutedStep, execute
from workloads.config import WorkloadConfig


@functools.cache
def _executed(config: WorkloadConfig) -> ExecutedStep:
    return execute(config)


@contextmanager
def executions_shared() -> Iterator[None]:
    """Plans made meanwhile execute each configuration once, for all tests of the session together."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "execute", lambda config: _executed(config.canonical()))
        yield


def execute_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that change what an execution does."""
    monkeypatch.setattr(build, "execute", execute)
