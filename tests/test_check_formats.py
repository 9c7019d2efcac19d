"""A check as JUnit XML, Markdown, JSON and on a terminal; names that could act on any of them."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree as Xml

import pytest
from check_helpers import with_memory
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from report_helpers import HOSTILE, make_report
from rich.console import Console

from sp_profiler.checking import json as check_json
from sp_profiler.checking import junit, markdown, shown, terminal
from sp_profiler.checking.api import check
from sp_profiler.checking.budgets import Budgets
from sp_profiler.checking.result import Check, RunCheck, Verdict, Where
from sp_profiler.checking.runs import check_of, unusable

WHEN = datetime(2026, 5, 13, 12, 30, 59, 987654, tzinfo=UTC)
REPORT = make_report()


def mixed(**names: str) -> Check:
    """One of each kind: holds, broken, unknown, unknown but allowed; and a run that could not be read."""
    budgets: list[dict[str, Any]] = [
        {"figure": "memory.peak_bytes", "max": 1, "allow-unknown": True},
        {"figure": "memory.saved_bytes", "max": 1},
    ]
    one = check(make_report(**names), max_exposed_ms=0, min_coverage=1, budgets=budgets)
    lost = unusable(names.get("name", "lost"), "runs/lost", f"{names.get('name', 'it')} does not exist")
    return check_of([replace(one, seconds=1.25), lost], Budgets(config="pyproject.toml", baseline="b.json"))


# --- JUnit -----------------------------------------------------------------------------------------------

# What the two schemas in use have in common, as far as a check needs it: Ant's JUnit.xsd (attributes that it
# requires, its order of elements) and Jenkins' junit-10.xsd (`skipped`). Attribute -> the values it may have.
INTEGER, DECIMAL, TEXT = r"\d+", r"\d+\.\d{3}", r"(?s).*"
ATTRIBUTES = {
    "testsuites": {
        "name": TEXT, "tests": INTEGER, "failures": INTEGER, "errors": INTEGER, "skipped": INTEGER,
        "time": DECIMAL,
    },
    "testsuite": {
        "id": INTEGER, "name": r"(?s).+", "package": TEXT, "timestamp": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d",
        "hostname": r".+", "tests": INTEGER, "failures": INTEGER, "errors": INTEGER, "skipped": INTEGER,
        "time": DECIMAL,
    },
    "properties": {},
    "property": {"name": r".+", "value": TEXT},
    "testcase": {"name": r"(?s).+", "classname": r"(?s).+", "time": DECIMAL},
    "failure": {"message": TEXT, "type": r".+"},
    "error": {"message": TEXT, "type": r".+"},
    "skipped": {"message": TEXT},
    "system-out": {},
    "system-err": {},
}  # fmt: skip
CHILDREN = {
    "testsuites": r"(testsuite )*",
    "testsuite": r"properties (testcase )*system-out system-err ",
    "properties": r"(property )*",
    "testcase": r"((failure|error|skipped) )?",
}


def assert_valid(element: Xml.Element) -> None:
    wanted = ATTRIBUTES[element.tag]
    assert set(element.attrib) == set(wanted), element.tag
    for name, pattern in wanted.items():
        assert re.fullmatch(pattern, element.attrib[name]), (element.tag, name, element.attrib[name])
    children = "".join(f"{child.tag} " for child in element)
    assert re.fullmatch(CHILDREN.get(element.tag, ""), children), (element.tag, children)
    for child in element:
        assert_valid(child)


def assert_counts(element: Xml.Element) -> None:
    cases = list(element.iter("testcase"))
    kinds = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    for name, tag in kinds.items():
        assert int(element.attrib[name]) == len(list(element.iter(tag)))
    assert int(element.attrib["tests"]) == len(cases)
    names = [(case.attrib["classname"], case.attrib["name"]) for case in cases]
    assert len(set(names)) == len(names)


def test_junit_has_a_suite_for_each_run_and_a_case_for_each_budget() -> None:
    text = junit.render(mixed(), WHEN)
    assert text.startswith('<?xml version="1.0" encoding="UTF-8"?>\n')
    root = Xml.fromstring(text.encode())
    assert_valid(root)
    assert_counts(root)
    for suite in root:
        assert_counts(suite)
    good, lost = root
    assert good.attrib["timestamp"] == "2026-05-13T12:30:59"
    assert good.attrib["time"] == "1.250"
    states = {case.attrib["name"]: [one.tag for one in case] for case in good.iter("testcase")}
    assert states == {
        "max-exposed-ms": ["failure"],
        "min-coverage": [],
        "max memory.peak_bytes": ["skipped"],
        "max memory.saved_bytes": ["failure"],
    }
    types = [one.attrib["type"] for one in root.iter("failure")]
    assert types == ["broken", "unknown"]
    (error,) = lost.iter("error")
    assert error.attrib["message"] == "it does not exist"
    (broken,) = [one for one in root.iter("failure") if one.attrib["type"] == "broken"]
    assert "where: rank" in (broken.text or "")


@given(st.text(st.characters(codec=None), min_size=1, max_size=40))
def test_any_name_makes_well_formed_xml(name: str) -> None:
    """Also what XML 1.0 has no way to write: control characters, lone surrogates, U+FFFE."""
    verdict = Verdict(
        budget=f"max {name}",
        figure=name,
        bound="max",
        state="broken",
        fails=True,
        value=name,
        limit=1,
        unit="count",
        scope="total",
        text=name,
        where=Where(text=name),
        origin=name,
    )
    run = RunCheck(name=name, path=name, holds=False, verdicts=[verdict], notes=[name])
    whole = check_of([run, unusable(name, name, name)], Budgets())
    root = Xml.fromstring(junit.render(whole, WHEN).encode("utf-8"))
    assert_valid(root)
    printed = root[0].attrib["name"]
    assert all(char.isprintable() or char == "\xa0" for char in printed) or not printed.isascii()
    assert "\x1b" not in printed


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_do_nothing_anywhere(name: str) -> None:
    whole = mixed(name=name)
    root = Xml.fromstring(junit.render(whole, WHEN).encode("utf-8"))
    assert_valid(root)
    text = markdown.render(whole)
    assert re.search(r"(?<!\\)[<>]|(?<!\\)\]\(|[\x1b\u202e\u2028]", text) is None
    assert all(line == "" or line[0] in "#-|_AB" for line in text.splitlines())
    screen = printed(whole)
    assert "\x1b" not in screen
    assert "\u202e" not in screen
    plain = check_json.render(whole)
    assert plain.isascii()
    assert json.loads(plain)["runs"][0]["name"] == name


def every_kind() -> Check:
    """Verdicts of every bound, against a baseline that is worse in all and lacks memory."""
    report = with_memory(4 << 30, 8 << 30, saved=(1 << 30, 2 << 30))
    one = check(
        report,
        baseline=make_report(comm="sync", steps=3),
        max_exposed_ms=0,
        min_coverage=1,
        fail_on=["warning", "queued"],
        max_ledger={"note": 0},
        budgets=[
            {"figure": "run.backend", "equals": "gloo"},
            {"figure": "run.world_size", "equals": 2},
            {"figure": "collectives[*].is_async", "equals": True},
            {"figure": "totals.overlap_ratio", "worse": "lower"},
            {"figure": "totals.fused_ns", "worse": "lower", "tolerance": ["0%", "0 ns"]},
        ],
    )
    return check_of([one], Budgets(baseline="base"))


def test_every_kind_of_verdict_is_shown_everywhere() -> None:
    whole = every_kind()
    verdicts = whole.runs[0].verdicts
    assert {one.bound for one in verdicts} == {"max", "min", "equals", "no-worse", "none-of"}
    assert {one.state for one in verdicts} == {"holds", "broken", "skipped"}
    assert_valid(Xml.fromstring(junit.render(whole, WHEN).encode()))
    for text in (printed(whole), markdown.render(whole).replace("\\", "")):
        for one in verdicts:
            assert one.budget in text
    plain = json.loads(check_json.render(whole))
    Draft202012Validator(check_json.schema()).validate(plain)
    limits = {one.budget: shown.row(one)[3] for one in verdicts}
    assert limits["no finding: queued"] == "none"
    assert limits["equals run.backend"] == "= gloo"
    assert limits["equals collectives[*].is_async"] == "= true"
    assert limits["no worse totals.overlap_ratio"].startswith("≥ ")
    assert limits["no worse totals.fused_ns"] == "≥ 0 ms"
    assert limits["no worse step-ms"].startswith("≤ ")
    assert limits["no worse memory-gib"] == "–"


# --- the others ------------------------------------------------------------------------------------------


def printed(whole: Check) -> str:
    out = io.StringIO()
    terminal.print_check(whole, Console(file=out, width=120))
    return out.getvalue()


def test_markdown_puts_first_what_fails() -> None:
    text = markdown.render(mixed())
    assert text.startswith("## ❌ Communication budgets do not hold\n")
    places = [
        text.index(part) for part in ("- ❌ **max-exposed-ms**", "- ❓ **max memory.saved", "| Budget |")
    ]
    assert places == sorted(places)
    assert "| min-coverage | ✅ holds | 100 % | ≥ 100 % |" in text
    assert "Budgets: pyproject.toml." in text
    assert "Baseline: b.json." in text
    good = check_of([check(REPORT, min_coverage=1)], Budgets())
    assert markdown.render(good).startswith("## ✅ Communication budgets hold\n")


def test_json_follows_its_schema_which_is_the_one_that_ships() -> None:
    shipped = json.loads(check_json.SCHEMA_PATH.read_text())
    assert shipped == check_json.schema(), "run python -m sp_profiler.checking.json, as its docstring says"
    Draft202012Validator.check_schema(shipped)
    plain = json.loads(check_json.render(mixed()))
    Draft202012Validator(shipped).validate(plain)
    assert plain["schema"] == "sp-profile/check"
    assert plain["holds"] is False
    states = [(one["state"], one["fails"]) for one in plain["runs"][0]["verdicts"]]
    assert states == [("broken", True), ("holds", False), ("unknown", False), ("unknown", True)]
    assert plain["runs"][1]["error"] == "it does not exist"
    compared = check_of([check(REPORT, baseline=REPORT)], Budgets())
    Draft202012Validator(shipped).validate(json.loads(check_json.render(compared)))


def test_the_terminal_shows_a_table_then_a_sentence_for_each_that_fails() -> None:
    text = printed(mixed())
    assert "1 of 4 budgets holds, 1 broken and 2 unknown" in text
    table, sentences = text.split("max-exposed-ms: Exposed communication per step and rank is", 1)
    assert "BROKEN" in table
    assert "UNKNOWN" in table
    assert "unknown" in table  # allowed: in small letters
    assert "above the limit of 0 ms" in sentences
    assert "2 of 2 runs do not keep their budgets" in text
