"""`sp-profile check` as a command: exit codes, runs, files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest
from cli_helpers import DEMO, cli, names, refused, write_trace
from report_helpers import make_report

from sp_profiler.checking.figures import FIGURES
from sp_profiler.cli.main import main
from sp_profiler.report import json as report_json
from sp_profiler.report.model import Report


def save(folder: Path, report: Report, name: str = "report.json") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(report_json.render(report))
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own, above which no pyproject.toml has budgets."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_0_when_all_hold_1_when_any_breaks(here: Path) -> None:
    run = DEMO / "tp-async"
    good = cli("check", run, "--min-wgrad-hidden", "0.8", "--max-memory-gib", "1", "--no-loss")
    assert (good.returncode, good.stderr) == (0, "")
    assert "all 3 budgets hold" in good.stdout
    bad = cli("check", run, "--min-wgrad-hidden", "0.9", "--max-memory-gib", "1", "--no-loss")
    assert (bad.returncode, bad.stderr) == (1, "")
    assert "2 of 3 budgets hold, 1 broken" in bad.stdout
    assert "0 of 1 budgets hold, 1 broken" in cli("check", run, "--min-wgrad-hidden", "0.9").stdout
    (line,) = [line for line in bad.stdout.splitlines() if line.startswith("min-wgrad-hidden:")]
    assert "below the limit of 90 %; look at rank" in line
    assert "collective" in line


USAGE: list[tuple[list[str], tuple[str, ...]]] = [
    (["--max-exposed-ratio", "20"], ("--max-exposed-ratio", "20 %")),
    (["--max-step-ms", "long"], ("--max-step-ms", "long")),
    (["--max", "totals.exposd_ns=3"], ("did you mean exposed_ns?",)),
    (["--max", "step-ms"], ("FIGURE=LIMIT",)),
    (["--min", "=3"], ("FIGURE=LIMIT",)),
    (["--max-ledger", "los=0"], ("did you mean loss?",)),
    (["--max-ledger", "loss"], ("NAME=N",)),
    (["--fail-on", "warnin"], ("did you mean warning?",)),
    (["--no-loss", "--tolerance", "5%"], ("--baseline",)),
    (["--baseline", "report.json", "--tolerance", "5%", "6%"], ("keep one",)),
    (["--baseline", "report.json", "--tolerance", "x=5%"], ("--tolerance", "'x' is no figure")),
    (["--baseline", "report.json", "--tolerance", "step-ms=5%", "step-ms=1ms", "step-ms=2ms"], ("already",)),
    (["--baseline", "report.json", "--compare", "stepms"], ("--compare", "did you mean step-ms?")),
    (["--no-loss", "--steps", "1:2"], ("--steps",)),
    (["--no-loss", "--github-summary"], ("GITHUB_STEP_SUMMARY",)),
    (["--no-loss", "--junit", ""], ("--junit is empty",)),
    (["--no-loss", "--junit", "x", "--markdown", "./x"], ("same file",)),
    (["--no-loss", "--junit", "-", "--json"], ("--junit and --json",)),
    (["--no-loss", "--junit", "report.json", "--force"], ("is to be read",)),
    (["--no-loss", "--junit", "report.json"], ("exists already",)),
    (["--no-loss", "--junit", "report.json/x.xml"], ("is not a folder",)),
]


@pytest.mark.parametrize(("options", "words"), USAGE, ids=lambda value: " ".join(value)[:60])
def test_2_for_what_cannot_be_meant(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    words: tuple[str, ...],
) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    save(here, make_report())
    assert main(["check", "report.json", *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (sentence,) = err.splitlines()
    for word in words:
        assert word in sentence
    assert names(here) == ["report.json"]


def test_2_without_any_budget_with_an_example(here: Path) -> None:
    save(here, make_report())
    refused(cli("check", "report.json"), 2, "nothing to check", "--max-exposed-ratio 0.2", "pyproject.toml")
    refused(cli("check", "report.json", "--max-exposed-ration", "1"), 2, "--max-exposed-ration")


def test_3_for_what_cannot_be_read(here: Path) -> None:
    report = save(here, make_report())
    refused(cli("check", here / "none", "--no-loss"), 3, "none")
    refused(cli("check", report, "--baseline", here / "none"), 3, "the baseline", "none")
    other = here / "other.json"
    other.write_text('{"schema": "sp-profile/plan"}')
    refused(cli("check", other, "--no-loss"), 3, "other.json", "sp-profile/plan")
    other.write_text('{"schema": "sp-profile/report", "schema_version": 99}')
    refused(cli("check", other, "--no-loss"), 3, "other.json", "99")
    (here / "empty").mkdir()
    refused(cli("check", here / "empty", "--no-loss"), 3, "empty")
    refused(cli("check", report, "--baseline", DEMO), 2, "the baseline", "4 runs")


def test_figures_nobody_could_look_at_fail_unless_allowed(here: Path) -> None:
    trace = write_trace(here)
    asked = ("check", trace, "--min-wgrad-hidden", "0", "--max-memory-gib", "1", "--max-skew-ratio", "1")
    result = cli(*asked)
    assert result.returncode == 1
    assert "0 of 3 budgets hold, 3 unknown" in result.stdout
    assert "profile_memory=True" in result.stdout
    assert "one rank alone" in result.stdout or "no collective was matched" in result.stdout
    assert cli(*asked, "--allow-unknown").returncode == 0


def test_every_run_is_checked_and_any_that_breaks_fails(here: Path) -> None:
    files = ("--junit", "out/j.xml", "--markdown", "out/m.md")
    result = cli("check", DEMO, "--max", "totals.overlapped_ns=0", "--json", *files)
    assert result.returncode == 1
    holds = {run["name"]: run["holds"] for run in json.loads(result.stdout)["runs"]}
    assert holds == {"tp-sync": True, "sp-basic": True, "tp-async": False, "sp-recompute": False}
    suites = {s.attrib["name"]: s.attrib["failures"] for s in Xml.parse(here / "out" / "j.xml").getroot()}
    assert suites == {"tp-sync": "0", "sp-basic": "0", "tp-async": "1", "sp-recompute": "1"}
    assert (here / "out" / "m.md").read_text().startswith("## ❌")


def test_reports_folders_of_reports_and_traces_go_together(here: Path) -> None:
    save(here / "runs" / "a", make_report(name="a"))
    save(here / "runs" / "b", make_report(name="a", comm="sync"))
    result = cli("check", "runs", DEMO / "tp-sync", "--no-loss", "--json")
    assert result.returncode == 0, result.stderr
    assert [run["name"] for run in json.loads(result.stdout)["runs"]] == ["a", "a-2", "tp-sync"]


def test_files_named_together_are_ranks_of_one_run(here: Path) -> None:
    files = sorted((DEMO / "tp-sync").glob("rank-*"))
    result = cli("check", *files, "--max-missing-ranks", "0", "--json")
    assert result.returncode == 0, result.stdout
    assert len(json.loads(result.stdout)["runs"]) == 1
    one = cli("check", files[0], "--max-missing-ranks", "0")
    assert one.returncode == 1
    assert "missing: 1" in one.stdout


def test_the_report_of_a_run_analysed_rank_by_rank_reads_the_same(here: Path) -> None:
    """What such a report does not hold, the memory events, is unknown and says how to get it."""
    run, fleet = DEMO / "tp-async", here / "fleet.json"
    how = ("--engine", "in-process", "--work", "work", "--format", "json", "-o", fleet)
    made = cli("analyze", run, *how, cwd=here)
    assert made.returncode == 0, made.stderr
    asked = (
        "--min-wgrad-hidden",
        "1",
        "--max-exposed-ms",
        "0",
        "--max-skew-ratio",
        "0",
        "--max-memory-gib",
        "1",
    )
    both = [json.loads(cli("check", path, *asked, "--json").stdout)["runs"][0] for path in (run, fleet)]
    values = [{one["budget"]: (one["state"], one["value"]) for one in run["verdicts"]} for run in both]
    assert values[0].pop("max-memory-gib")[0] == "holds"
    assert values[1].pop("max-memory-gib") == ("unknown", None)
    assert values[0] == values[1]
    (memory,) = [one["text"] for one in both[1]["verdicts"] if one["budget"] == "max-memory-gib"]
    assert "memory-not-followed" in memory


def test_one_unusable_run_keeps_none_back_and_is_told_everywhere(here: Path) -> None:
    good = save(here, make_report(), "good.json")
    bad = here / "bad.json"
    bad.write_text('{"schema": "sp-profile/report"}')
    result = cli("check", bad, good, "--no-loss", "--junit", "j.xml", "--json")
    assert result.returncode == 3
    assert len(result.stderr.strip().splitlines()) == 1
    assert "bad.json" in result.stderr
    first, second = json.loads(result.stdout)["runs"]
    assert (first["holds"], second["holds"]) == (False, True)
    assert "schema version" in first["error"]
    root = Xml.parse(here / "j.xml").getroot()
    assert (root.attrib["errors"], root.attrib["failures"]) == ("1", "0")


def test_a_path_without_a_run_keeps_none_of_the_others_back(here: Path) -> None:
    save(here, make_report(), "good.json")
    result = cli("check", "nothing", DEMO / "tp-sync", "good.json", "--no-loss", "--junit", "j.xml", "--json")
    assert result.returncode == 3
    assert result.stderr.strip().splitlines() == ["sp-profile check: nothing does not exist."]
    found = {run["name"]: (run["holds"], run["error"]) for run in json.loads(result.stdout)["runs"]}
    assert found.pop("nothing") == (False, "nothing does not exist.")
    assert list(found.values()) == [(True, None), (True, None)]
    root = Xml.parse(here / "j.xml").getroot()
    assert (root.attrib["tests"], root.attrib["errors"]) == ("3", "1")
    result = cli("check", "nothing", "nowhere", "--no-loss")
    assert result.returncode == 3
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_single_unusable_run_still_gets_its_files(here: Path) -> None:
    bad = here / "bad.json"
    bad.write_text('{"schema": "sp-profile/report"}')
    for path, word in (("nothing.json", "does not exist"), ("bad.json", "schema version")):
        result = cli("check", path, "--no-loss", "--junit", "j.xml", "--force")
        assert result.returncode == 3
        assert len(result.stderr.strip().splitlines()) == 1
        root = Xml.parse(here / "j.xml").getroot()
        assert root.attrib["errors"] == "1"
        (error,) = root.iter("error")
        assert word in error.attrib["message"]


def test_files_are_overwritten_only_when_forced(here: Path) -> None:
    report = save(here, make_report())
    asked = ("check", report, "--no-loss", "--junit", "j.xml", "--markdown", "m.md")
    assert cli(*asked).returncode == 0
    before = (here / "j.xml").read_bytes()
    refused(cli(*asked), 2, "j.xml", "--force")
    assert (here / "j.xml").read_bytes() == before
    assert cli(*asked, "--force").returncode == 0


def test_the_summary_of_a_github_job_is_appended(here: Path) -> None:
    report = save(here, make_report())
    summary = here / "summary.md"
    summary.write_text("an earlier step\n")
    result = cli("check", report, "--no-loss", "--github-summary", GITHUB_STEP_SUMMARY=str(summary))
    assert result.returncode == 0, result.stderr
    text = summary.read_text()
    assert text.startswith("an earlier step\n\n## ✅")
    assert result.stdout.startswith(f"{make_report().run.name}: the budget holds")
    gone = cli("check", report, "--no-loss", "--github-summary", GITHUB_STEP_SUMMARY=str(here / "no" / "x"))
    assert gone.returncode == 2
    assert "GITHUB_STEP_SUMMARY" in gone.stderr
    assert "Traceback" not in gone.stderr


def test_text_formats_print_to_the_screen(here: Path) -> None:
    report = save(here, make_report())
    assert cli("check", report, "--no-loss", "--markdown", "-").stdout.startswith("## ✅")
    Xml.fromstring(cli("check", report, "--no-loss", "--junit", "-").stdout.encode())
    assert names(here) == ["report.json"]


def test_a_regression_against_a_baseline_breaks(here: Path) -> None:
    asynchronous = save(here, make_report(comm="async"), "async.json")
    sync = save(here, make_report(comm="sync"), "sync.json")
    good = cli("check", asynchronous, "--baseline", sync, "--tolerance", "5%")
    assert good.returncode == 0, good.stdout
    bad = cli("check", sync, "--baseline", asynchronous, "--tolerance", "5%")
    assert bad.returncode == 1
    for name in ("step-ms", "exposed-ms", "wgrad-hidden"):
        assert f"no worse {name}:" in bad.stdout
    assert "worse than the baseline's" in bad.stdout
    wide = ("--compare", "step-ms", "--tolerance", "1%", "step-ms=90%")
    assert cli("check", sync, "--baseline", asynchronous, *wide).returncode == 0
    amount = ("--compare", "step-ms", "--tolerance", "step-ms=1%", "step-ms=1s")
    assert cli("check", sync, "--baseline", asynchronous, *amount).returncode == 0


def test_lost_data_is_told_on_stderr_and_strict_refuses_it(here: Path) -> None:
    import gzip

    trace = write_trace(here)
    whole = gzip.compress(trace.read_bytes())
    path = here / "cut-rank-00000.json.gz"
    path.write_bytes(whole[: len(whole) - 30])
    result = cli("check", path, "--no-loss")
    assert result.returncode == 1
    assert "cut-rank-00000.json.gz" in result.stderr
    assert "ledger: loss" in result.stdout
    refused(cli("check", path, "--no-loss", "--strict"), 3, "--strict", "cut-rank-00000.json.gz")


def test_each_figure_has_an_option_and_the_help_names_it(here: Path) -> None:
    text = " ".join(cli("check", "--help").stdout.split())
    for figure in FIGURES.values():
        assert f"--{figure.option} " in text
    page = (Path(__file__).resolve().parent.parent / "docs" / "check.md").read_text()
    assert {f"| `--{figure.option}` |" in page for figure in FIGURES.values()} == {True}


def test_a_name_that_acts_on_a_terminal_does_not(here: Path) -> None:
    folder = here / "\x1b[31mrun"
    save(folder, make_report(name="\x1b[31mname"))
    result = cli("check", folder, "--max-exposed-ms", "0", "--junit", "j.xml")
    assert result.returncode == 1
    assert "\x1b" not in result.stdout + result.stderr
    assert b"\x1b" not in (here / "j.xml").read_bytes()
    assert os.path.getsize(here / "j.xml")
