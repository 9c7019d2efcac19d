"""Every finding leads to what shows its evidence."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dash", reason="the extra 'dashboard' is not installed")

from dashboards import evidence
from dashboards.state import State, parse
from sp_profiler.report import findings
from sp_profiler.report.model import Finding

RULES = Path(findings.__file__).parent


def made_codes() -> Iterator[tuple[str, str]]:
    """The file and the code of every finding that a rule makes; f"memory-{one.kind}" as "memory-kind"."""
    for file in sorted(RULES.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name("finding"), args=[ast.Constant(str(code)), *_]):
                    yield file.stem, code
                case ast.Call(func=ast.Name("finding"), args=[ast.JoinedStr(parts), *_]):
                    yield (
                        file.stem,
                        "".join(
                            str(getattr(one, "value", "")) if isinstance(one, ast.Constant) else "kind"
                            for one in parts
                        ),
                    )
                case ast.Call(func=ast.Name("finding")):
                    raise AssertionError(f"{file.name}:{node.lineno} makes a code that this test cannot read")


def targets(code: str, **given: Any) -> list[State]:
    made = evidence.links(Finding(code, "info", "text", given), State(run="a-run", theme="dark"))
    return [parse(one.href.partition("?")[2]) for one in made]


CODES = sorted(set(made_codes()))


def test_the_rules_are_found() -> None:
    assert len(CODES) > 25
    assert {"peer-skew", "kept-grows", "ring-synchronous", "memory-kind"} <= {code for _, code in CODES}


@pytest.mark.parametrize(("file", "code"), CODES)
def test_every_kind_of_finding_has_a_view(file: str, code: str) -> None:
    given = {"scheme": "ring"} if file.startswith("context") else {"exposed_ns": 1}
    first = targets(code, **given)[0]
    assert first.run == "a-run"
    expected = {"context": "ring", "context_work": "ring", "memory": "memory"}.get(file)
    assert first.view == (expected or first.view)
    assert first.view != "overview"


def test_collectives_lead_to_the_timeline_ranks_to_the_others() -> None:
    examples = [{"id": number, "rank": 1} for number in (17, 5, 17, 9, 2)]
    first, late, *picked = targets("peer-skew", examples=examples, late_rank=7, ranks=[0, 1])
    assert (first.view, first.cause) == ("overlap", "peer-skew")
    assert late.view == "across"
    assert [(one.view, one.pick) for one in picked] == [("timeline", 17), ("timeline", 5), ("timeline", 9)]
    assert [one.pick for one in targets("ends-disagree", largest_ids=[3])] == [None, 3]
    slow = targets("ring-work-uneven", scheme="ring", slowest_rank=3)
    assert [(one.view, one.rank) for one in slow] == [("ring", None), ("timeline", 3)]


def test_purposes_are_filtered_where_a_finding_is_about_one() -> None:
    assert targets("cuda-device-max-connections", mode="tp")[0].purpose == "dgrad"
    assert targets("cuda-device-max-connections-data-parallel", mode="dp")[0].purpose == "param-grad"
