"""What all tests share: where the real traces lie, and the groups that may not be skipped in CI."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("SP_PROFILER_SHARED") or REPOSITORY.parent / "shared").resolve()
GROUPS = ("shared", "gloo", "browser", "hta", "gpu")
REQUIRED = tuple(filter(None, os.environ.get("SP_PROFILER_REQUIRE", "").split(",")))
"""Groups (markers) that `.ci/run` names: then whatever is skipped fails the run, unless it is in a group that
is not named (of a test in several groups all must be)."""
_skipped: list[str] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    has_torch = importlib.util.find_spec("torch") is not None
    for item in items:
        if item.get_closest_marker("shared") and not (SHARED / "corpus" / "expected.json").is_file():
            item.add_marker(pytest.mark.skip(reason=f"no traces in {SHARED} (set SP_PROFILER_SHARED)"))
        if item.get_closest_marker("gloo") and not has_torch:
            item.add_marker(pytest.mark.skip(reason="torch is not installed"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    excused = any(group in report.keywords and group not in REQUIRED for group in GROUPS)
    if REQUIRED and report.skipped and not excused:
        _skipped.append(report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if REQUIRED and report.skipped:
        _skipped.append(report.nodeid)  # a whole file: no marker of a group can excuse it


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _skipped:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        print(f"\nmust not be skipped where {', '.join(REQUIRED)} are required: {', '.join(_skipped)}")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with `corpus` and `cases`."""
    return SHARED
