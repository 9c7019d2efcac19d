"""`sp-profile compare`: what it takes and refuses, what it says of the demo's runs, what it writes."""

from __future__ import annotations

import gzip
import json
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import DEMO, cli, load, names, refused, write_trace
from jsonschema import Draft202012Validator

from sp_profiler.comparing.document import SCHEMA_PATH, render_schema

SYNC, ASYNC = DEMO / "tp-sync", DEMO / "tp-async"


def compared(*arguments: object) -> dict[str, Any]:
    result = cli("compare", *arguments, "--json")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    plain = json.loads(result.stdout, parse_constant=lambda word: pytest.fail(f"{word} in a comparison"))
    Draft202012Validator(load(SCHEMA_PATH)).validate(plain)
    return plain


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's reports, a folder each without traces."""
    out = tmp_path_factory.mktemp("reports")
    assert cli("analyze", DEMO, "--format", "json", "-o", out / "all").returncode == 0
    return out / "all"


def test_tp_from_synchronous_to_asynchronous_names_that_and_nothing_else() -> None:
    plain = compared(SYNC, ASYNC)
    said = plain["summary"]
    assert plain["is_different"] is True
    assert any(
        "hidden under wgrad" in s and "dgrad all-reduce" in s and "asynchronous now" in s for s in said
    )
    assert any("in synchronous collectives −" in s for s in said)
    assert "Settings that differ: comm (sync → async)." in said
    # The two runs shared two busy cores: step, computation, idle time and waits strayed, and nothing changed.
    assert "no difference beyond noise" in said[0]
    told = " ".join(said[1:])
    for unchanged in ("Computation", "Idle", "activation", "New in this run", "Gone", "MiB", "late peer"):
        assert unchanged not in told
    verdicts = {one["figure"]: one["verdict"] for one in plain["totals"]}
    for figure in ("window_ns", "compute_ns", "idle_ns", "exposed_ns"):
        assert verdicts[figure] == "within-noise"
    assert verdicts["overlapped_ns"] == verdicts["wgrad_overlapped_ns"] == "came"
    assert {kind["purpose"]: kind["became"] for kind in plain["kinds"]} == {
        "dgrad": "async",
        "activation": None,
    }
    memory = [one for one in plain["memory"] if one["verdict"] not in ("equal", "unknown")]
    assert memory == []


def test_sp_from_basic_to_recompute_regathers_and_keeps_less() -> None:
    plain = compared(DEMO / "sp-basic", DEMO / "sp-recompute")
    told = " ".join(plain["summary"])
    assert "New in this run: input-regather all-gather" in told
    assert "4.00 MiB less stays alive from forward to backward" in told
    assert "5.00 MiB less of what collectives gathered" in told
    new = [kind["purpose"] for kind in plain["kinds"] if kind["exposed"]["verdict"] == "only-here"]
    assert new == ["input-regather"]
    assert not [kind for kind in plain["kinds"] if kind["exposed"]["verdict"] == "only-base"]
    for unchanged in ("Computation", "Idle", "activation all-gather", "param-grad", "Gone"):
        assert unchanged not in told
    for kind in plain["kinds"]:
        exposed = kind["exposed"]
        assert sum(part["ns"] for part in kind["parts"]) == (exposed["here"] or 0) - (exposed["base"] or 0)
    exposed = next(one for one in plain["totals"] if one["figure"] == "exposed_ns")
    assert sum(part["ns"] for part in plain["exposed_parts"]) == exposed["difference"]


def test_a_run_beside_itself() -> None:
    result = cli("compare", SYNC, SYNC)
    assert result.returncode == 0
    assert "No difference beyond noise." in result.stdout
    assert "changed" not in result.stdout
    assert compared(SYNC, SYNC)["is_different"] is False


def test_a_report_is_worth_its_traces(reports: Path, tmp_path: Path) -> None:
    by_traces = compared(SYNC, ASYNC)
    report = reports / "tp-async" / "report.json"
    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(gzip.compress(report.read_bytes()))
    turned = tmp_path / "turned.json"
    turned.write_text(json.dumps(load(report), sort_keys=True))
    for here in (report, reports / "tp-async", packed, turned, f"{ASYNC}/*.json.gz"):
        plain = compared(reports / "tp-sync", here)
        for run in (plain, by_traces):
            run["here"].pop("path", None)
            run["here"].pop("name", None)
            run["runs"][1].pop("name", None)
        assert plain == by_traces


@pytest.mark.parametrize("count", [1, 3])
def test_it_takes_two_runs(count: int) -> None:
    refused(cli("compare", *[SYNC] * count), 2, "two runs", str(count))


def test_what_is_no_single_run_is_refused_in_a_sentence(reports: Path, tmp_path: Path) -> None:
    refused(cli("compare", SYNC, tmp_path / "nothing"), 3, "nothing", "does not exist")
    refused(cli("compare", SYNC, tmp_path), 3, str(tmp_path))
    refused(cli("compare", SYNC, DEMO), 2, "4 runs", "name one")
    refused(cli("compare", SYNC, reports), 2, "4 reports", "sp-basic")
    refused(cli("compare", SYNC, reports / "comparison.json"), 3, "sp-profile/comparison")
    (tmp_path / "other.json").write_text('{"a": 1}')
    refused(cli("compare", SYNC, tmp_path / "other.json"), 3, "other.json", "not a trace")
    broken = tmp_path / "report.json"
    broken.write_text('{"schema": "sp-profile/report", "schema_version": 1, "totals": 3}')
    refused(cli("compare", SYNC, broken), 3, "report.json", "contract")
    broken.write_text('{"schema": "sp-profile/report", "schema_version": 99}')
    refused(cli("compare", SYNC, broken), 3, "version 99")
    report = reports / "tp-sync" / "report.json"
    refused(cli("compare", report, SYNC, "--steps", "1:2"), 2, "--steps", "report")
    refused(cli("compare", SYNC, ASYNC, "--steps", "7:9"), 2, "7:9")


def test_steps_and_windows_are_chosen_for_both(tmp_path: Path) -> None:
    one = compared(SYNC, ASYNC, "--steps", "1:2")
    assert (one["base"]["steps"], one["here"]["steps"]) == (1, 1)
    assert any("noise is not known" in note for note in one["notes"])
    assert {d["noise"] for d in one["totals"]} == {None}
    assert "noise-unknown" in {d["verdict"] for d in one["totals"]}
    whole = compared(SYNC, ASYNC, "--window", "trace")
    assert whole["base"]["window_rule"] == "trace"
    assert any("no steps" in note for note in whole["notes"])
    bare = write_trace(tmp_path)
    mixed = compared(bare, SYNC)
    assert any("has no steps" in note for note in mixed["notes"])


def test_files_of_each_format(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = cli("compare", SYNC, ASYNC, "--format", "json", "html", "markdown", "-o", out)
    assert result.returncode == 0, result.stderr
    assert names(out) == ["comparison.html", "comparison.json", "comparison.md"]
    assert f"written: {out / 'comparison.html'}" in result.stdout
    text = (out / "comparison.html").read_text()
    assert 'http-equiv="Content-Security-Policy"' in text
    assert "asynchronous now" in text
    assert 'src="http' not in text
    assert (out / "comparison.md").read_text().startswith("# TP async beside TP sync\n")
    refused(cli("compare", SYNC, ASYNC, "--format", "json", "-o", out / "comparison.json"), 2, "--force")
    single = tmp_path / "one.md"
    assert cli("compare", SYNC, ASYNC, "--format", "markdown", "-o", single).returncode == 0
    printed = cli("compare", SYNC, ASYNC, "--format", "markdown")
    assert printed.stdout == single.read_text()
    refused(cli("compare", SYNC, ASYNC, "--format", "html"), 2, "-o")
    refused(cli("compare", SYNC, ASYNC, "--format", "csv", "-o", out), 2, "csv")


def test_the_schema_is_the_shipped_one_and_holds_for_any_number_of_runs(reports: Path) -> None:
    assert SCHEMA_PATH.read_text(encoding="utf-8") == render_schema()
    validator = Draft202012Validator(load(SCHEMA_PATH))
    Draft202012Validator.check_schema(load(SCHEMA_PATH))
    side_by_side = load(reports / "comparison.json")
    validator.validate(side_by_side)
    assert len(side_by_side["runs"]) == 4
    plain = compared(SYNC, ASYNC)
    for spoil in (
        lambda p: p.pop("runs"),
        lambda p: p.pop("kinds"),
        lambda p: p["totals"][0].update(verdict="better"),
        lambda p: p["totals"][0].update(base="12"),
        lambda p: p.update(schema_version=2),
    ):
        spoilt = json.loads(json.dumps(plain))
        spoil(spoilt)
        assert not validator.is_valid(spoilt)


def test_a_report_of_a_url_and_what_a_url_does_not_give(reports: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "report.json").write_bytes((reports / "tp-async" / "report.json").read_bytes())
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        try:
            for here in (f"{url}/run/report.json", f"{url}/run/"):
                assert compared(SYNC, here)["summary"] == compared(SYNC, ASYNC)["summary"]
            refused(cli("compare", SYNC, f"{url}/none.json"), 3, "none.json", "does not exist")
        finally:
            server.shutdown()
            thread.join()
    refused(cli("compare", SYNC, "foo://x"), 3, "foo://")
