"""The workflow in docs/check.md works: its commands are run as they stand, only smaller.

Ranks are forks (`forked_command`): the launcher is tested elsewhere, and its imports take most of the time.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest

from sp_profiler.checking.config import settings_of
from sp_profiler.checking.settings import budgets_of

yaml = pytest.importorskip("yaml", reason="PyYAML comes with the extra 'cluster'")
PAGE = (Path(__file__).resolve().parent.parent / "docs" / "check.md").read_text()
SMALL = "--ranks 2 --layers 1 --hidden 128 --seq-len 128 --active-steps 2 --warmup 1"


def block(language: str) -> str:
    (text,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    return text


def jobs() -> dict[str, Any]:
    return yaml.safe_load(block("yaml"))["jobs"]


def scripts(job: dict[str, Any]) -> list[str]:
    """What the steps of a job run, but for the installation."""
    return [step["run"] for step in job["steps"] if not step.get("run", "pip ").startswith("pip ")]


def run(script: str, folder: Path, summary: Path) -> subprocess.CompletedProcess[str]:
    """A step as the runner does it, with our command on the path."""
    tools = folder / "bin"
    if not tools.exists():
        tools.mkdir()
        command = Path(__file__).with_name("forked_command.py")
        (tools / "sp-profile").write_text(f'#!/bin/sh\nexec "{sys.executable}" "{command}" "$@"\n')
        (tools / "sp-profile").chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "SIZE": SMALL,
        "GITHUB_STEP_SUMMARY": str(summary),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def test_the_workflow_is_one() -> None:
    for job in jobs().values():
        assert job["runs-on"]
        assert all(("run" in step) != ("uses" in step) for step in job["steps"])
        assert "SIZE" in job["env"]
        (upload,) = [step for step in job["steps"] if "upload-artifact" in step.get("uses", "")]
        assert upload["if"] == "always()"
        folders = {line.split("/")[0] for line in upload["with"]["path"].split()}
        assert folders == {"junit", "runs"}
    ours = [script for job in jobs().values() for script in scripts(job)]
    assert sum("sp-profile run" in script for script in ours) == 2
    assert sum("sp-profile check" in script for script in ours) == 3


@pytest.mark.gloo
@pytest.mark.timeout(600)
def test_its_commands_hold_on_two_cpu_processes_and_break_where_they_should(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    profile, sync, asynchronous = scripts(jobs()["structure"])
    for script in (profile, sync, asynchronous):
        result = run(script, tmp_path, summary)
        assert result.returncode == 0, result.stdout + result.stderr
    for name in ("tp-sync", "tp-async"):
        root = Xml.parse(tmp_path / "junit" / f"{name}.xml").getroot()
        assert (root.attrib["tests"], root.attrib["failures"], root.attrib["errors"]) == ("5", "0", "0")
    assert summary.read_text().count("## ✅ Communication budgets hold") == 2

    # The gate closes: what is asked of the synchronous run does not hold of the other, and vice versa.
    for script, other in ((sync, "runs/tp-async"), (asynchronous, "runs/tp-sync")):
        swapped = re.sub(r"runs/tp-\w+", other, script).replace("--junit", "--force --junit")
        result = run(swapped, tmp_path, summary)
        assert result.returncode == 1, result.stdout + result.stderr
        assert "4 of 5 budgets hold, 1 broken" in result.stdout

    # The second job, against the report of the run itself: no worse. Its own step trains once more.
    _, gate = scripts(jobs()["speed"])
    baseline = tmp_path / "ci" / "baseline" / "report.json"
    baseline.parent.mkdir(parents=True)
    shutil.copy(tmp_path / "runs" / "tp-async" / "report.json", baseline)
    result = run(gate, tmp_path, summary)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "no worse step-ms" in result.stdout
    assert "no worse saved-gib" in result.stdout
    worse = run(
        gate.replace("tp-async", "tp-sync").replace("--junit junit/speed", "--junit junit/worse"),
        tmp_path,
        summary,
    )
    assert worse.returncode == 1, worse.stdout + worse.stderr
    assert "no worse wgrad-hidden:" in worse.stdout


def test_the_example_of_a_file_is_one(tmp_path: Path) -> None:
    content = tomllib.loads(block("toml"))
    settings = settings_of(content["tool"]["sp_profile"]["check"], tmp_path / "pyproject.toml")
    assert len(budgets_of(settings).items) == 20


def test_the_python_example_holds() -> None:
    repository = Path(__file__).resolve().parent.parent
    code = block("python")
    subprocess.run([sys.executable, "-c", code], cwd=repository, check=True, timeout=120)
