"""What all tests share: where the real traces lie, which may not be skipped in CI, which run side by side."""

from __future__ import annotations

import ast
import importlib.util
import os
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
    files look at would be made twice. They are by far the most tests, so xdist starts with them.
    """
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class RanksApart(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file, _, test = nodeid.partition("::")
            starts_ranks = test.partition("[")[0] in _gloo_tests(config.rootpath / file)
            return "ranks" if starts_ranks else file

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
