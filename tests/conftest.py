"""What all tests share: where the real traces lie, which may not be skipped in CI, which run side by side."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("SP_PROFILER_SHARED") or REPOSITORY.parent / "shared").resolve()
GROUPS = ("shared", "gloo", "browser", "hta", "native", "gpu")
REQUIRED = tuple(filter(None, os.environ.get("SP_PROFILER_REQUIRE", "").split(",")))
"""Groups (markers) that `.ci/run` names: then whatever is skipped fails the run, unless it is in a group that
is not named (of a test in several groups all must be)."""
_skipped: list[str] = []

# Containers often forbid it: then each of the hundreds of processes of a run compiles our modules anew, and
# every run all files of tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

LONG_S = {
    "ranks": 400,
    "tests/test_dashboard_browser.py": 140,
    "tests/test_fleet_resume.py": 60,
    "tests/test_plan.py": 60,
    "tests/test_dashboard_perfetto.py": 40,
    "tests/test_dashboard_uploads.py": 40,
    "tests/test_fleet_run.py": 40,
    "tests/test_cli_plan.py": 35,
    "tests/test_fleet_across.py": 30,
    "tests/test_fleet_report.py": 25,
    "tests/test_suite.py": 30,
    "tests/test_compare_cli.py": 25,
    "tests/test_plan_page.py": 20,
    "tests/test_native.py": 40,
}
"""Seconds of what takes long though it has few tests (about, on two cores): begun first, so that in the end
nobody waits for one of them alone. Of all others what has more tests comes first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    has_torch = importlib.util.find_spec("torch") is not None
    no_native = _why_not_native()
    for item in items:
        if item.get_closest_marker("shared") and not (SHARED / "corpus" / "expected.json").is_file():
            item.add_marker(pytest.mark.skip(reason=f"no traces in {SHARED} (set SP_PROFILER_SHARED)"))
        if item.get_closest_marker("gloo") and not has_torch:
            item.add_marker(pytest.mark.skip(reason="torch is not installed"))
        if item.get_closest_marker("native") and no_native is not None:
            item.add_marker(pytest.mark.skip(reason=f"{no_native} (pip install ./native)"))


def _why_not_native() -> str | None:
    from sp_profiler.trace.native import why_not_native  # not for all who copy this file

    return why_not_native()


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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Under `--dist loadfile` (`make test`): files side by side, tests that start ranks one after the other.

    Two worlds of ranks at once have too little of two cores for what they measure, and outcomes that several
    files look at would be made twice.
    """
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class RanksApart(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file, _, test = nodeid.partition("::")
            starts_ranks = test.partition("[")[0] in _gloo_tests(config.rootpath / file)
            return "ranks" if starts_ranks else file

        def _assign_work_unit(self, node: Any) -> None:
            waiting = self.workqueue
            longest = max(waiting, key=lambda scope: (LONG_S.get(scope, 0), len(waiting[scope])))
            waiting.move_to_end(longest, last=False)
            super()._assign_work_unit(node)

    return RanksApart(config, log)


@cache
def _gloo_tests(file: Path) -> frozenset[str]:
    """Names of the functions marked `gloo`, from the text: where tests are handed out nothing else is known
    (and from pytest 9.2 on xdist's own mark `xdist_group` does nothing)."""
    tree = ast.parse(file.read_text()).body
    assigned = [ast.unparse(one) for one in tree if isinstance(one, ast.Assign)]
    everywhere = any(text.startswith("pytestmark") and "pytest.mark.gloo" in text for text in assigned)
    return frozenset(
        one.name
        for one in tree
        if isinstance(one, ast.FunctionDef)
        and (everywhere or any("pytest.mark.gloo" in ast.unparse(mark) for mark in one.decorator_list))
    )


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with `corpus` and `cases`."""
    return SHARED
