"""`sp-profile doctor`: says what is there, works without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sp_profiler.cli import doctor
from sp_profiler.cli.main import main

TRACES = str(Path(__file__).resolve().parent.parent / "traces" / "demo" / "tp-async")


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where only the base package is installed."""
    absent = ("torch", "dash", "pandas")
    installed = doctor.package_version
    monkeypatch.setattr(doctor, "package_version", lambda name: None if name in absent else installed(name))
    monkeypatch.setattr(
        doctor, "base_versions", lambda: {"python": "3.11.7", "torch": None, "driver": None, "os": "Linux"}
    )

    def probe() -> dict[str, Any]:
        raise AssertionError("torch was asked for although it is not installed")

    monkeypatch.setattr(doctor, "probe_torch", probe)


def test_without_torch_it_says_what_to_install(no_torch: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert 'pip install "sp-profiler[run]"' in printed
    assert "not installed" in printed


def test_json_names_every_extra_and_backend(no_torch: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert set(facts["extras"]) == {"run", "dashboard", "hta", "cluster", "remote"}
    assert facts["extras"]["run"] == {
        "packages": {"torch": None},
        "installed": False,
        "for": "record the shipped workloads",
    }
    assert facts["backends"] == {"gloo": False, "nccl": False}
    assert "CUDA_DEVICE_MAX_CONNECTIONS" in facts["environment"]
    assert {entry["remedy"] for entry in facts["missing"]} >= {
        'pip install "sp-profiler[run]"',
        'pip install "sp-profiler[hta]"',
    }


def test_a_broken_torch_is_told_and_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def probe() -> dict[str, Any]:
        raise RuntimeError("ImportError: libcudart.so.12: cannot open shared object file")

    monkeypatch.setattr(doctor, "package_version", lambda name: "2.0")
    monkeypatch.setattr(doctor, "probe_torch", probe)
    facts = doctor.examine()
    assert "libcudart.so.12" in facts["missing"][0]["what"]


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "package_version", lambda name: None)
    (tmp_path / "sp-profile-runs").write_text("a file is in the way")
    assert doctor.examine()["runs_folder"]["writable"] is False


def test_it_sees_this_machines_torch() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed (pip install 'sp-profiler[run]')")
    command = [sys.executable, "-m", "sp_profiler", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    facts = json.loads(done.stdout)
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["backends"]["gloo"] is torch.distributed.is_gloo_available()
    assert facts["profiler"] is True


def test_the_decoder_in_use_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SP_PROFILE_DECODER", "python")
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["decoder"] == {
        "used": "python",
        "why": "SP_PROFILE_DECODER=python",
    }
    monkeypatch.setenv("SP_PROFILE_DECODER", "quick")
    assert main(["doctor"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "SP_PROFILE_DECODER=quick: the decoders are python and native" in told


def test_a_decoder_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sp_profiler.trace.native.PACKAGE", "sp_profiler_no_such_package")
    monkeypatch.setenv("SP_PROFILE_DECODER", "native")
    assert main(["analyze", TRACES, "--no-cache"]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "the compiled decoder (sp-profiler-native) is not installed" in told
    monkeypatch.delenv("SP_PROFILE_DECODER")
    assert main(["analyze", TRACES, "--no-cache"]) == 0
