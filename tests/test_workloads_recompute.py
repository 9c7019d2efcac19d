"""Recompute as a user meets it: the option, the run folder, the page that says what it frees and costs."""

from __future__ import annotations

import json
from fractions import Fraction
from functools import cache
from pathlib import Path
from unittest import mock

import pytest
import torch
from conftest import REPOSITORY
from context_run_worker import run_in_forks

from sp_profiler.cli.main import main
from workloads.config import RECOMPUTES, WorkloadConfig
from workloads.measure import SavedMeasurement, fake_rank, measure_saved

MIB = 2**20
SCHEMES = {
    "TP": {"mode": "tp"},
    "SP basic": {"mode": "sp", "save": "full"},
    "SP recompute": {"mode": "sp", "save": "shard", "comm": "async"},
}


@cache
def measured(layers: int, scheme: str, recompute: str) -> SavedMeasurement:
    sizes = {"seq_len": 2048, "hidden": 768, "heads": 8, "kv_heads": 4, "vocab": 64, "micro_batch": 2}
    config = WorkloadConfig(
        ranks=2, layers=layers, dtype="bf16", recompute=recompute, **SCHEMES[scheme], **sizes
    )
    with fake_rank(2) as communicator:
        return measure_saved(config, communicator, torch.device("cpu"))


def block(scheme: str, recompute: str) -> tuple[int, Fraction]:
    """Bytes that one block keeps and sends."""
    one, two = (measured(layers, scheme, recompute) for layers in (1, 2))
    norms = Fraction(2 * 768 * 2)  # the all-reduce of two norms' gradients, 2r of them; not in the table
    sent = two.comm_bytes - one.comm_bytes - (norms if scheme != "TP" else 0)
    return two.saved.saved_bytes - one.saved.saved_bytes, sent


def test_the_page_says_what_is_measured() -> None:
    text = (REPOSITORY / "docs" / "recompute.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    table = [row for row in rows if len(row) == 6 and row[0] in SCHEMES]
    assert [(row[0], row[1]) for row in table] == [(s, r) for s in SCHEMES for r in RECOMPUTES]
    for scheme, recompute, saved, _, sent, _ in table:
        kept, wire = block(scheme, recompute)
        assert (f"{kept / MIB:.4f}", str(wire / MIB)) == (saved, sent), (scheme, recompute)


def test_closed_forms_of_the_page() -> None:
    f, r, heads = 6 * MIB, Fraction(1, 2), 8
    for scheme in SCHEMES:
        kept = {recompute: block(scheme, recompute)[0] for recompute in RECOMPUTES}
        sent = {recompute: block(scheme, recompute)[1] for recompute in RECOMPUTES}
        assert kept["none"] - kept["selective"] == 4 * 2048 * 2 * heads // 2
        assert kept["full"] == (f if scheme == "TP" else f // 2)
        assert sent["selective"] == sent["none"]
        assert sent["full"] - sent["none"] == (4 if scheme == "TP" else 7) * r * f


@pytest.mark.gloo
def test_a_run_says_what_it_repeats_and_what_it_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = ["--layers", "1", "--seq-len", "32", "--hidden", "32", "--heads", "4", "--vocab", "64"]
    monkeypatch.chdir(tmp_path)
    with mock.patch("sp_profiler.record.workload.run_job", run_in_forks):
        assert main(["run", "tp", "--recompute", "full", *sizes, "--warmup", "1", "--active-steps", "1"]) == 0
    (folder,) = (tmp_path / "sp-profile-runs").iterdir()
    assert folder.name.endswith("-tp-sync-recompute-full")
    run = json.loads((folder / "run.json").read_text())
    assert run["workload"]["recompute"] == "full"
    assert list(run["saved_tensors"]) == ["0", "1"]
    for saved in run["saved_tensors"].values():
        kept = [tensor for tensor in saved["tensors"] if tensor["term"] == "recompute-input"]
        assert [(tensor["module"], tensor["bytes"]) for tensor in kept] == [("layers.0", 4 * 32 * 2 * 32)]
        assert saved["saved_bytes"] == sum(tensor["bytes"] for tensor in saved["tensors"])
    report = json.loads((folder / "report.json").read_text())
    again = [gemm for gemm in report["gemms"] if gemm["role"] == "recompute"]
    assert again
