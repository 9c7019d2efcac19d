"""The README and the docs are true: their examples run, their links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = [
    REPOSITORY / "README.md",
    *sorted((REPOSITORY / "docs").glob("*.md")),
    REPOSITORY / "traces/README.md",
]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def test_the_python_example_runs_as_it_stands() -> None:
    (example,) = blocks(REPOSITORY / "README.md", "python")
    result = subprocess.run(
        [sys.executable, "-c", example],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    first, figures, table = result.stdout.split("\n", 2)
    assert first.startswith("wgrad hides")
    assert all(float(figure) > 0 for figure in figures.split())
    assert "dgrad" in table


def test_analysis_needs_neither_torch_nor_a_screen() -> None:
    program = (
        "import sys; sys.modules['torch'] = None; import sp_profiler; "
        "print(sp_profiler.analyze('traces/demo/sp-recompute').totals.wgrad_overlapped_ns)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert int(result.stdout) > 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_in_the_docs_is_python(page: Path) -> None:
    for block in blocks(page, "python"):
        compile(block.replace("...)", ")"), page.name, "exec")
