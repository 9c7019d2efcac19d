"""What all tests share: where the real traces lie, and the groups that may not be skipped in CI."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("SP_PROFILER_SHARED") or REPOSITORY.parent / "shared").resolve()
REQUIRED = tuple(filter(None, os.environ.get("SP_PROFILER_REQUIRE", "").split(",")))
"""Markers of groups whose skipping is a failure, as `.ci/run` names them."""
_skipped: list[str] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    has_torch = importlib.util.find_spec("torch") is not None
    for item in items:
        if item.get_closest_marker("shared") and not (SHARED / "corpus" / "expected.json").is_file():
            item.add_marker(pytest.mark.skip(reason=f"no traces in {SHARED} (set SP_PROFILER_SHARED)"))
        if item.get_closest_marker("gloo") and not has_torch:
            item.add_marker(pytest.mark.skip(reason="torch is not installed"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and any(group in report.keywords for group in REQUIRED):
        _skipped.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _skipped:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        print(f"\nmust not be skipped ({', '.join(REQUIRED)}): {', '.join(_skipped)}")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with `corpus` and `cases`."""
    return SHARED
