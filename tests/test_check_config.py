"""Budgets from TOML: where files are found, what they may say, how options come on top."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cli_helpers import cli, refused
from report_helpers import make_report

from sp_profiler.checking.budgets import LedgerLimit, Limit, NoFinding, NoWorse
from sp_profiler.checking.config import found_config, named_config, settings_of
from sp_profiler.checking.settings import Settings, budgets_of, joined
from sp_profiler.checking.tolerance import Tolerance
from sp_profiler.errors import UsageError
from sp_profiler.report import json as report_json
from sp_profiler.trace.remote import Remote

HEAD = "[tool.sp_profile.check]\n"


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "run" / "report.json"
    path.parent.mkdir()
    path.write_text(report_json.render(make_report()))
    return path


def read(tmp_path: Path, text: str, name: str = "pyproject.toml") -> Settings:
    path = tmp_path / name
    path.write_text(text)
    return settings_of(named_config(path), path)


def test_everything_a_file_may_say(tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        HEAD
        + """
max-exposed-ratio = 0.2
min_wgrad_hidden = "80%"
no-loss = true
max-ledger = { repair = 3, truncated-gzip = 0 }
fail-on = ["warning", "late-partner"]
[tool.sp_profile.check.purpose.dgrad]
max-exposed-ms = 1.5
[tool.sp_profile.check.group."tp[0,1]"]
max-skew-ratio = "10%"
[[tool.sp_profile.check.budgets]]
figure = "totals.host_bound_ns"
max = "2 ms"
min = 0
allow-unknown = true
[[tool.sp_profile.check.budgets]]
figure = "step-ms"
scope = "rank"
max = 250
[[tool.sp_profile.check.budgets]]
figure = "run.backend"
equals = "nccl"
[[tool.sp_profile.check.budgets]]
figure = "totals.comm_ns"
worse = "higher"
tolerance = "3%"
[tool.sp_profile.check.baseline]
report = "base/report.json"
tolerance = "4%"
tolerances = { memory-gib = "2%", exposed_ms = ["10%", "0.2 ms"] }
noise = false
""",
    )
    budgets = budgets_of(settings)
    limits = {one.name: one for one in budgets.items if isinstance(one, Limit)}
    assert {name: one.value for name, one in limits.items()} == {
        "max-exposed-ratio": 0.2,
        "min-wgrad-hidden": 0.8,
        "purpose dgrad: max-exposed-ms": 1.5e6,
        "group tp[0,1]: max-skew-ratio": 0.1,
        "max totals.host_bound_ns": 2e6,
        "min totals.host_bound_ns": 0,
        "max-step-ms (each rank)": 250e6,
        "equals run.backend": "nccl",
    }
    assert [name for name, one in limits.items() if one.allow_unknown] == [
        "max totals.host_bound_ns",
        "min totals.host_bound_ns",
    ]
    ledger = {one.what: one.most for one in budgets.items if isinstance(one, LedgerLimit)}
    assert ledger == {"repair": 3, "truncated-gzip": 0, "loss": 0}
    assert [one.what for one in budgets.items if isinstance(one, NoFinding)] == ["warning", "late-partner"]
    compared = {one.name: one for one in budgets.items if isinstance(one, NoWorse)}
    assert compared["no worse totals.comm_ns"].tolerance == Tolerance(0.03)
    assert compared["no worse memory-gib"].tolerance == Tolerance(0.02)
    assert compared["no worse exposed-ms"].tolerance == Tolerance(0.1, 200_000)
    assert compared["no worse step-ms"].tolerance == Tolerance(0.04)
    assert budgets.baseline == str(tmp_path / "base" / "report.json")
    assert not budgets.use_noise
    assert limits["max-exposed-ratio"].origin == "pyproject.toml: max-exposed-ratio"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-exposed-ration = 0.2", ["max-exposed-ration", "did you mean max-exposed-ratio?"]),
        ("max-exposed-ratio = 20", ["max-exposed-ratio", "20"]),
        ('max-exposed-ratio = "a lot"', ["max-exposed-ratio", "a lot"]),
        ("max-exposed-ratio = true", ["max-exposed-ratio"]),
        ("max-exposed-ratio = [1]", ["max-exposed-ratio"]),
        ("no-loss = 1", ["no-loss", "true or false"]),
        ("max-ledger = 3", ["max-ledger", "table"]),
        ("max-ledger = { los = 0 }", ["los", "did you mean loss?"]),
        ("max-ledger = { loss = -1 }", ["loss=-1"]),
        ("max-ledger = { loss = true }", ["loss=True"]),
        ('fail-on = ["peer-skw"]', ["peer-skw", "did you mean peer-skew?"]),
        ("fail-on = [3]", ["fail-on"]),
        ('scope = "node"', ["scope", "node"]),
        ("purpose = 3", ["purpose", "table"]),
        ("purpose.dgrad = 3", ["purpose.dgrad", "table"]),
        ("purpose.dgrad.max-step-ms = 3", ["purpose.dgrad.max-step-ms"]),
        ("budgets = 3", ["budgets", "list"]),
        ("budgets = [3]", ["budgets[1]", "table"]),
        ("budgets = [{ max = 3 }]", ["budgets[1]", "figure is missing"]),
        ('budgets = [{ figure = "step-ms" }]', ["budgets[1]", "no bound"]),
        ('budgets = [{ figure = "stepms", max = 3 }]', ["stepms", "did you mean step-ms?"]),
        ('budgets = [{ figure = "totals.exposd_ns", max = 3 }]', ["did you mean exposed_ns?"]),
        ('budgets = [{ figure = "step-ms", mx = 3 }]', ["budgets[1].mx", "did you mean max?"]),
        ('budgets = [{ figure = "skew-ratio", max = 1, scope = "rank" }]', ["skew-ratio", "rank"]),
        ('budgets = [{ figure = "totals.idle_ns", max = 1, scope = "rank" }]', ["ranks[*]"]),
        ('budgets = [{ figure = "step-ms", max = 1, purpose = "dgrad" }]', ["step-ms", "purpose"]),
        ('budgets = [{ figure = "exposed-ms", max = 1, purpose = "a", group = "b" }]', ["go together"]),
        ('budgets = [{ figure = "step-ms", max = 1, tolerance = "5%" }]', ["tolerance", "worse"]),
        ('budgets = [{ figure = "totals.comm_ns", worse = "up" }]', ["worse", "up"]),
        ("baseline = 3", ["baseline", "table"]),
        ('baseline = ""', ["baseline", "empty"]),
        ('baseline = { reprot = "x" }', ["baseline.reprot", "did you mean report?"]),
        ('baseline = { report = "x", figures = ["stepms"] }', ["stepms", "did you mean step-ms?"]),
        ('baseline = { report = "x", tolerance = "2 ms" }', ["tolerance"]),
        ('baseline = { report = "x", tolerances = { "totals.comm_ns" = "2%" } }', ["worse ="]),
        ('budgets = [{ figure = "totals.comm_ns", worse = "higher" }]', ["--baseline"]),
        ('tolerance = "5%"', ["nothing to check"]),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as raised:
        budgets_of(read(tmp_path, HEAD + text))
    for word in words:
        assert word in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "text", ["[tool", "max-exposed-ratio = ", "a = 1\na = 2", "\x00", "x = " + "[" * 10_000]
)
def test_no_toml(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="is no TOML"):
        read(tmp_path, text, "budgets.toml")


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "budgets.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is no TOML"):
        named_config(path)


def test_the_nearest_pyproject_with_a_table_counts(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(HEAD + "max-step-ms = 1")
    (tmp_path / "a" / "pyproject.toml").write_text(HEAD + "max-step-ms = 2")
    (deep / "pyproject.toml").write_text("[tool.other]\nx = 1")  # none of ours: looked past
    found = found_config(deep)
    assert found is not None
    assert found[0] == tmp_path / "a" / "pyproject.toml"
    assert found[1] == {"max-step-ms": 2}


def test_budgets_may_stand_in_the_tools_table_itself(tmp_path: Path) -> None:
    settings = read(tmp_path, "[tool.sp_profile]\nmax-step-ms = 2\n[tool.sp_profile.check]\nno-loss = true")
    assert [one.name for one in settings.items] == ["max-step-ms", "ledger: loss"]
    with pytest.raises(UsageError, match="max-step-ms stands in"):
        read(tmp_path, "[tool.sp_profile]\nmax-step-ms = 2\n[tool.sp_profile.check]\nmax_step_ms = 3")


@pytest.mark.parametrize("name", ["sp-profile", "sp_profiler", "sp-profiler"])
def test_a_table_of_a_similar_name_is_not_passed_over(tmp_path: Path, name: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.{name}.check]\nmax-step-ms = 2")
    with pytest.raises(UsageError, match=r"did you mean \[tool\.sp_profile\.check\]"):
        found_config(tmp_path)


def test_options_replace_what_the_file_says_of_the_same(tmp_path: Path) -> None:
    file = read(tmp_path, HEAD + "max-step-ms = 2\nmax-exposed-ms = 3\nmax-ledger = { loss = 4 }")
    options = read(tmp_path, "max-step-ms = 5\nno-loss = true\nscope = 'rank'", "options.toml")
    both = joined(file, options)
    assert {one.name: getattr(one, "value", None) for one in both.items} == {
        "max-exposed-ms": 3e6,
        "max-step-ms (each rank)": 5e6,
        "ledger: loss": None,
    }


# --- as a command ----------------------------------------------------------------------------------------


def test_the_file_is_found_upward_and_named(report: Path, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(HEAD + "max-exposed-ratio = 0.0001")
    below = tmp_path / "run"
    broken = cli("check", "report.json", cwd=below)
    assert broken.returncode == 1
    assert "max-exposed-ratio" in broken.stdout
    assert f"Budgets: {tmp_path / 'pyproject.toml'}." in broken.stdout
    assert cli("check", "report.json", "--max-exposed-ratio", "1", cwd=below).returncode == 0
    refused(cli("check", "report.json", "--no-config", cwd=below), 2, "nothing to check")
    assert cli("check", "report.json", "--no-config", "--no-loss", cwd=below).returncode == 0


def test_a_named_file_counts_instead(report: Path, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(HEAD + "max-exposed-ratio = 0.0001")
    other = tmp_path / "budgets.toml"
    other.write_text("max-exposed-ratio = 0.9")
    assert cli("check", report, "--config", other, cwd=tmp_path).returncode == 0
    refused(cli("check", report, "--config", tmp_path / "none.toml", cwd=tmp_path), 2, "none.toml")
    refused(cli("check", report, "--config", tmp_path, cwd=tmp_path), 2, str(tmp_path))
    refused(cli("check", report, "--config", other, "--no-config", cwd=tmp_path), 2, "--no-config")
    other.write_text("[tool.other]\nx = 1")
    refused(cli("check", report, "--config", other, cwd=tmp_path), 2, "[tool.sp_profile.check]")


def test_unknown_keys_and_broken_files_are_one_sentence(report: Path, tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(HEAD + "max-expsed-ratio = 0.2")
    refused(cli("check", report, cwd=tmp_path), 2, "pyproject.toml", "did you mean max-exposed-ratio?")
    file.write_text("[tool\n")
    refused(cli("check", report, "--no-loss", cwd=tmp_path), 2, "pyproject.toml", "no TOML")


def test_a_baseline_may_lie_elsewhere_and_its_secrets_are_not_shown(tmp_path: Path) -> None:
    url = "https://user:secret@ci.example.com/main/?sig=abc"
    settings = read(tmp_path, HEAD + f'baseline = "{url}"')
    assert settings.baseline == "https://ci.example.com/main/"
    assert isinstance(settings.baseline, Remote)
    assert settings.baseline.url == url


def test_a_baseline_lies_beside_its_file(report: Path, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    config = tmp_path / "conf" / "gate.toml"
    config.write_text('baseline = "base.json"\n')
    refused(cli("check", report, "--config", config), 3, "base.json")
    os.link(report, tmp_path / "conf" / "base.json")
    result = cli("check", report, "--config", config)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "no worse step-ms" in result.stdout
