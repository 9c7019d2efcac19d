"""The JSON contract: valid by the shipped schema, null never NaN, ints stay ints, read back equal."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from jsonschema import Draft202012Validator
from report_helpers import HOSTILE, T0, make_report

from sp_profiler.errors import InputError
from sp_profiler.report import json as report_json


def valid(text: str) -> dict:
    plain = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} in a report"))
    Draft202012Validator(report_json.schema()).validate(plain)
    return plain


def test_shipped_schema_is_the_generated_one() -> None:
    shipped = report_json.SCHEMA_PATH.read_text(encoding="utf-8")
    assert shipped == report_json.render_schema()
    Draft202012Validator.check_schema(json.loads(shipped))


@pytest.mark.parametrize("comm", ["sync", "async"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_report_validates_and_keeps_the_identity(comm: str, device: str) -> None:
    plain = valid(report_json.render(make_report(comm=comm, device=device)))
    for entry in [plain["totals"], *plain["ranks"], *plain["steps"]]:
        parts = entry["compute_ns"] + entry["exposed_ns"] + entry["memory_op_only_ns"] + entry["idle_ns"]
        assert parts == entry["window_ns"]
        assert sum(entry["overlapped_by_role_ns"].values()) == entry["overlapped_ns"]
        assert sum(entry["exposed_by_purpose_ns"].values()) == entry["exposed_ns"]


def test_schema_comes_first_and_nanoseconds_stay_integers() -> None:
    plain = valid(report_json.render(make_report()))
    assert list(plain)[:2] == ["schema", "schema_version"]
    first = plain["collectives"][0]
    assert type(first["start_ns"]) is int
    assert first["start_ns"] > T0 > 2**53  # not a float's value on the way


def test_schema_refuses_what_the_contract_refuses() -> None:
    plain = json.loads(report_json.render(make_report()))
    validator = Draft202012Validator(report_json.schema())
    for spoil in (
        lambda p: p.pop("collectives"),
        lambda p: p["totals"].update(comm_ns=1.5),
        lambda p: p["totals"].update(overlap_ratio=1.01),
        lambda p: p["data_quality"][0].update(severity="fatal"),
        lambda p: p.update(schema="other"),
        lambda p: p["ranks"][0].pop("left_out"),
    ):
        spoilt = json.loads(json.dumps(plain))
        spoil(spoilt)
        assert not validator.is_valid(spoilt)


def test_not_finite_numbers_become_null() -> None:
    report = make_report(environment={"losses": [1.5, float("nan"), float("inf")]})
    assert valid(report_json.render(report))["environment"]["losses"] == [1.5, None, None]


def test_equal_reports_give_equal_text() -> None:
    assert report_json.render(make_report()) == report_json.render(make_report())


def test_read_back_is_equal() -> None:
    report = make_report()
    assert report_json.read_report(report_json.render(report)) == report


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": "sp-profile/run"}', '{"schema": "sp-profile/report"}']
)
def test_what_is_no_report_is_refused_by_name(text: str) -> None:
    with pytest.raises(InputError, match=r"some/report\.json"):
        report_json.read_report(text, "some/report.json")


def test_a_report_with_a_wrong_type_is_refused() -> None:
    plain = json.loads(report_json.render(make_report()))
    plain["totals"]["comm_ns"] = "many"
    with pytest.raises(InputError, match="comm_ns"):
        report_json.read_report(json.dumps(plain))


@pytest.mark.parametrize("name", [*HOSTILE, "\ud800", "nul\0"])
def test_hostile_names_are_inert_and_exact(name: str) -> None:
    text = report_json.render(make_report(name=name))
    assert text.isascii()  # no escape sequence, no override reaches a terminal
    assert all(char == "\n" or char.isprintable() for char in text)
    assert valid(text)["gemms"][0]["name"] == name


def test_null_stays_null() -> None:
    report = make_report()
    report = replace(report, totals=replace(report.totals, comm_ns=None, overlap_ratio=None))
    assert valid(report_json.render(report))["totals"]["comm_ns"] is None
