"""What all tests share: where the real traces lie, and the groups that may not be skipped in CI."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("SP_PROFILER_SHARED") or REPOSITORY.parent / "shared").resolve()
GROUPS = ("shared", "gloo", "browser", "hta")
REQUIRED = tuple(filter(None, os.environ.get("SP_PROFILER_REQUIRE", "").split(",")))
"""Groups (markers) whose skipping is a failure, as `.ci/run` names them; a test in several needs them all."""
_skipped: list[str] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    has_torch = importlib.util.find_spec("torch") is not None
    for item in items:
        if item.get_closest_marker("shared") and not (SHARED / "corpus" / "expected.json").is_file():
            item.add_marker(pytest.mark.skip(reason=f"no traces in {SHARED} (set SP_PROFILER_SHARED)"))
        if item.get_closest_marker("gloo") and not has_torch:
            item.add_marker(pytest.mark.skip(reason="torch is not installed"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    groups = [group for group in GROUPS if group in report.keywords]
    if report.skipped and groups and all(group in REQUIRED for group in groups):
        _skipped.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _skipped:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        print(f"\nmust not be skipped ({', '.join(REQUIRED)}): {', '.join(_skipped)}")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with `corpus` and `cases`."""
    return SHARED
