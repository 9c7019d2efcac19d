"""What the other tests rest on: ranks that fail are told and ended, and in CI nothing is skipped unseen."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import LONG_S
from gloo_helpers import run_ranks

# --- ranks ------------------------------------------------------------------------------------------------


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("what", "error", "said"),
    [
        ("raises", AssertionError, "ValueError: the loss is a fish"),
        ("killed", AssertionError, "exit codes \\[-9, "),
        ("hangs", TimeoutError, "2 of 2 ranks did not finish in 3 s"),
    ],
)
def test_a_rank_that_does_not_end_well_is_told_and_none_is_left(
    tmp_path: Path, what: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        run_ranks("failing_ranks_worker", tmp_path, what, timeout_s=3 if what == "hangs" else 60)
    for rank in range(2):
        assert not psutil.pid_exists(int((tmp_path / f"pid-{rank}").read_text()))


SIDE_BY_SIDE = ("--numprocesses", "2", "--dist", "loadfile")


def pytest_run(folder: Path, files: dict[str, str], *options: str, required: str = "") -> Any:
    """pytest on these files with the conftest.py of this folder."""
    shutil.copy(Path(__file__).with_name("conftest.py"), folder)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "ignore", *options],
        cwd=folder,
        env={**os.environ, "SP_PROFILER_REQUIRE": required},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


# --- side by side -------------------------------------------------------------------------------------------

WHERE = """
import os, pathlib, pytest
{whole_file}
def note(what):
    pathlib.Path(f"{{pathlib.Path(__file__).stem}}-{{what}}-{{os.environ['PYTEST_XDIST_WORKER']}}").touch()

@pytest.mark.parametrize("number", range(9))
def test_plain(number): note("plain")

@pytest.mark.gloo
@pytest.mark.parametrize("number", range(9))
def test_ranks(number): note("ranks")
"""


def test_a_file_is_run_in_one_place_and_so_are_all_that_start_ranks(tmp_path: Path) -> None:
    whole_file = "pytestmark = [pytest.mark.timeout(60), pytest.mark.gloo]"
    files = {f"test_{name}": WHERE.format(whole_file="") for name in "ab"}
    files["test_whole"] = WHERE.format(whole_file=whole_file)
    done = pytest_run(tmp_path, files, *SIDE_BY_SIDE)
    assert "54 passed" in done.stdout, done.stdout + done.stderr
    ran = dict(path.name.rsplit("-", 1) for path in tmp_path.glob("test_*-gw*"))
    starting = {"test_a-ranks", "test_b-ranks", "test_whole-plain", "test_whole-ranks"}
    assert set(ran) == starting | {"test_a-plain", "test_b-plain"}
    assert len(list(tmp_path.glob("test_*-gw*"))) == 6  # each in one place
    assert set(ran.values()) == {"gw0", "gw1"}
    assert len({ran[name] for name in starting}) == 1


def test_what_takes_long_is_begun_first(tmp_path: Path) -> None:
    """Then what has many tests, whatever the order of names."""
    (tmp_path / "tests").mkdir()
    sizes = {
        "test_few": 1,
        "test_many": 5,
        "test_some": 3,
        "tests/test_plan": 1,
        "tests/test_dashboard_browser": 1,
    }
    text = "import pytest\n@pytest.mark.parametrize('n', range({}))\ndef test_it(n): ...\n"
    files = {name: text.format(size) for name, size in sizes.items()}
    done = pytest_run(tmp_path, files, "-vv", "--numprocesses", "1", "--dist", "loadfile")
    assert "11 passed" in done.stdout, done.stdout + done.stderr
    ran = [line.split("PASSED ")[1].split(".py")[0] for line in done.stdout.splitlines() if "PASSED " in line]
    long = ["tests/test_dashboard_browser", "tests/test_plan"]
    assert list(dict.fromkeys(ran)) == [*long, "test_many", "test_some", "test_few"]


def test_what_is_said_to_take_long_is_there() -> None:
    repository = Path(__file__).resolve().parent.parent
    assert [one for one in LONG_S if one != "ranks" and not (repository / one).is_file()] == []


# --- skipped tests ------------------------------------------------------------------------------------------

SKIPPED = {
    "test_group": "import pytest\n@pytest.mark.browser\ndef test_page(): pytest.skip('no chromium')\n",
    "test_no_group": "import pytest\n@pytest.mark.skip(reason='no compiler')\ndef test_code(): ...\n",
    "test_whole_file": "import pytest\npytest.importorskip('no_such_module')\n",
}


@pytest.mark.parametrize("side_by_side", [(), SIDE_BY_SIDE], ids=["alone", "side by side"])
@pytest.mark.parametrize(
    ("required", "complained"),
    [
        ("", set()),
        ("gloo", {"test_no_group.py::test_code", "test_whole_file.py"}),
        ("gloo,browser", {"test_no_group.py::test_code", "test_whole_file.py", "test_group.py::test_page"}),
    ],
)
def test_what_must_not_be_skipped_fails_the_run(
    tmp_path: Path, required: str, complained: set[str], side_by_side: tuple[str, ...]
) -> None:
    files = {**SKIPPED, "test_passes": "def test_nothing(): pass\n"}
    done = pytest_run(tmp_path, files, *side_by_side, required=required)
    assert done.returncode == (1 if complained else 0), done.stdout + done.stderr
    assert "1 passed, 3 skipped" in done.stdout
    lines = [line for line in done.stdout.splitlines() if line.startswith("must not be skipped")]
    told = [set(line.partition(" are required: ")[2].split(", ")) for line in lines]
    assert told == ([complained] if complained else [])
