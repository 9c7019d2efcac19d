"""What the other tests rest on: ranks that fail are told and ended, and in CI nothing is skipped unseen."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
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


# --- skipped tests ------------------------------------------------------------------------------------------

SKIPPED = {
    "test_group": "import pytest\n@pytest.mark.browser\ndef test_page(): pytest.skip('no chromium')\n",
    "test_no_group": "import pytest\n@pytest.mark.skip(reason='no compiler')\ndef test_code(): ...\n",
    "test_whole_file": "import pytest\npytest.importorskip('no_such_module')\n",
}


@pytest.mark.parametrize("side_by_side", [(), ("--numprocesses", "2", "--dist", "loadgroup")], ids=len)
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
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_passes.py").write_text("def test_nothing(): pass\n")
    for name, text in SKIPPED.items():
        (tmp_path / f"{name}.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "ignore", *side_by_side],
        cwd=tmp_path,
        env={**os.environ, "SP_PROFILER_REQUIRE": required},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == (1 if complained else 0), done.stdout + done.stderr
    assert "1 passed, 3 skipped" in done.stdout
    lines = [line for line in done.stdout.splitlines() if line.startswith("must not be skipped")]
    told = [set(line.partition(" are required: ")[2].split(", ")) for line in lines]
    assert told == ([complained] if complained else [])
