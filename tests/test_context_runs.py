"""`sp-profile run` of context parallelism: the demo's runs and their page, and what single runs leave.

The demo's ranks are real and talk over gloo, but are forks (`context_run_worker`): starting 24 processes that
import torch would take longer than all they do.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from cli_helpers import cli, load, names
from context_run_worker import run_in_forks
from workloads_reference import dense_run

from sp_profiler.cli.demo import DEMOS
from sp_profiler.cli.main import main
from sp_profiler.theory.ring import causal_balance
from workloads.config import WorkloadConfig
from workloads.context.parallel import Undivided
from workloads.data import batches
from workloads.model import Decoder, weighted_modules
from workloads.weights import initial_weight

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(600)]

DEMO = DEMOS["demo-long-context"]
PARTS = [part.name for part in DEMO.parts]
RINGS = [name for name in PARTS if not name.startswith("ulysses")]
SEQ_LEN, RANKS = 512, 4


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the demo, run once, with half of its tokens."""
    folder = tmp_path_factory.mktemp("runs") / "demo"
    with mock.patch("sp_profiler.record.workload.run_job", run_in_forks):
        assert main(["run", "demo-long-context", "--seq-len", str(SEQ_LEN), "--out", str(folder)]) == 0
    return folder


def report(demo: Path, part: str) -> dict[str, Any]:
    return load(demo / part / "report.json")


def test_one_page_shows_all_runs(demo: Path) -> None:
    assert names(demo) == sorted(["comparison.json", "index.html", *PARTS])
    for part in PARTS:
        assert {"report.html", "report.json", "run.json"} <= set(names(demo / part))
    assert [run["name"] for run in load(demo / "comparison.json")["runs"]] == PARTS
    page = (demo / "index.html").read_text()
    assert DEMO.title in page
    for label in ("Ring zigzag sync", "Ring striped async", "Ulysses async", "USP 2 zigzag async"):
        assert label in page
    for part in PARTS:
        assert f'href="{part}/report.html"' in page


def test_sync_overlaps_nothing_and_async_something(demo: Path) -> None:
    for part in PARTS:
        for rank in report(demo, part)["ranks"]:
            assert rank["comm_ns"] > 0
            if part.endswith("-sync"):
                assert rank["overlapped_ns"] == 0
            else:
                assert rank["overlapped_ns"] > 0, (part, rank["rank"])
        kv = report(demo, part)["totals"]["hiding_by_purpose"].get("kv")
        assert (kv is not None) == (part in RINGS)
        if kv is not None:
            assert (kv["partner_hidden_ns"] > 0) == part.endswith("-async"), part
            assert kv["partner_hideable_ns"] > 0


def test_shifts_are_matched_with_those_of_both_neighbours(demo: Path) -> None:
    """Each says from whom to whom it goes, so that it is known who waited for whom."""
    for part in PARTS:
        found = report(demo, part)
        assert found["unmatched"] == []
        assert "p2p-peers-unknown" not in {entry["code"] for entry in found["data_quality"]}
        shifts = [one for one in found["collectives"] if one["op"] == "send_recv"]
        assert bool(shifts) == (part in RINGS)
        for one in found["collectives"]:
            assert one["skew_wait_ns"] is not None
            assert one["skew_wait_ns"] + one["transfer_ns"] == one["dur_ns"]
            assert not one["transfer_is_bound"]
        # whoever came last waited for nobody
        last = {}
        for one in shifts:
            key = (one["group"], one["seq"], one["step"])
            last[key] = min(last.get(key, one["skew_wait_ns"]), one["skew_wait_ns"])
        assert set(last.values()) <= {0}


def test_every_byte_kept_for_backward_is_that_of_the_closed_form(demo: Path) -> None:
    for part in PARTS:
        memory = report(demo, part)["memory"]
        assert memory["saved_bytes"] == memory["theory_bytes"] > 0
        assert len(memory["saved"]) == RANKS
        for rank in memory["saved"]:
            assert rank["hidden_bytes"] == 0
            for term in rank["terms"]:
                assert term["bytes"] == term["theory_bytes"], (part, rank["rank"], term["term"])


def test_all_parts_train_the_model_that_one_device_trains(demo: Path) -> None:
    """The losses of the dense model, from the weights and the data that the options spell."""
    losses = {part: load(demo / part / "run.json")["losses"] for part in PARTS}
    assert losses["ring-zigzag-sync"] == losses["ring-zigzag-async"]  # bit by bit
    exact = dense_losses(WorkloadConfig.from_dict(load(demo / PARTS[0] / "run.json")["workload"]))
    assert exact[-1] < exact[0]
    for part in PARTS:
        assert losses[part] == pytest.approx(exact, rel=1e-5), part


def dense_losses(config: WorkloadConfig) -> list[float]:
    device = torch.device("cpu")
    layout = Undivided(device, torch.float32)
    modules = weighted_modules(Decoder(config, layout, device, torch.float32))
    weights = {piece.name: initial_weight(piece, config.seed) for _, m in modules for piece in m.pieces}
    data = batches(config, config.warmup + config.active_steps, 0, device)
    return dense_run(weights, data, config, torch.float32, kernels="torch").losses


def test_run_json_tells_the_scheme_and_its_groups(demo: Path) -> None:
    ring, usp = (load(demo / part / "run.json") for part in ("ring-zigzag-async", "usp-async"))
    assert [(group["key"]) for group in ring["groups"]] == ["cp[0,1,2,3]", "dp_cp[0,1,2,3]"]
    assert {group["key"] for group in usp["groups"]} == {
        "dp_cp[0,1,2,3]",
        "cp_ring[0,2]",
        "cp_ring[1,3]",
        "cp_ulysses[0,1]",
        "cp_ulysses[2,3]",
    }
    told = ring["workload"]
    assert (told["mode"], told["layout"], told["comm"], told["causal"]) == ("ring", "zigzag", "async", True)
    assert (told["ranks"], told["tp"], told["dp"], told["cp"]) == (RANKS, 1, 1, RANKS)
    assert (usp["workload"]["ulysses"], usp["workload"]["layout"]) == (2, "zigzag")


def test_counting_gives_the_balance_of_each_layout(demo: Path) -> None:
    for layout in ("contiguous", "zigzag", "striped"):
        (scheme,) = report(demo, f"ring-{layout}-async")["context_parallel"]["schemes"]
        assert (scheme["scheme"], scheme["layout"], scheme["causal"]) == ("ring", layout, True)
        for balance in report(demo, f"ring-{layout}-async")["context_parallel"]["balance"]:
            exact = causal_balance(layout, ranks=RANKS, tokens=SEQ_LEN // RANKS)
            assert balance["ideal_ratio"] == pytest.approx(float(exact), abs=1e-12)


def run_alone(folder: Path, *arguments: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A small run by forks, without output: its run.json and its report."""
    sizes = ["--layers", "1", "--seq-len", "64", "--hidden", "32", "--heads", "4", "--vocab", "64"]
    steps = ["--warmup", "1", "--active-steps", "1", "--ranks", "4"]
    with mock.patch("sp_profiler.record.workload.run_job", run_in_forks):
        assert main(["run", *arguments, *sizes, *steps, "--out", str(folder)]) == 0
    return load(folder / "run.json"), load(folder / "report.json")


def test_tensor_parallelism_inside_each_part_of_the_sequence(tmp_path: Path) -> None:
    run, found = run_alone(
        tmp_path / "out", "ring", "--tp", "2", "--inside", "sp", "--save", "shard", "--comm", "async"
    )
    told = run["workload"]
    assert (told["tp"], told["cp"], told["inside"], told["save"]) == (2, 2, "sp", "shard")
    pairs = {"tp": ("[0,1]", "[2,3]"), "cp": ("[0,2]", "[1,3]"), "dp_cp": ("[0,2]", "[1,3]")}
    keys = {f"{name}{ranks}" for name, groups in pairs.items() for ranks in groups}
    assert {group["key"] for group in run["groups"]} == keys
    purposes: dict[str, set[str]] = {}
    for one in found["collectives"]:
        purposes.setdefault(one["group"].partition("[")[0], set()).add(one["purpose"])
    assert purposes == {
        "tp": {"activation", "input-regather", "dgrad", "param-grad"},
        "cp": {"kv", "dkv"},
        "dp_cp": {"param-grad"},
    }
    assert found["memory"]["saved_bytes"] == found["memory"]["theory_bytes"]


def test_attention_alone_trains_nothing(tmp_path: Path) -> None:
    run, found = run_alone(tmp_path / "out", "usp", "--attention-only", "--no-causal", "--ulysses", "2")
    assert run["losses"] is None
    assert len(run["step_times_ns"]["0"]) == 2
    assert run["workload"]["attention_only"] is True
    assert "vocab" not in run["workload"]
    assert {one["purpose"] for one in found["collectives"]} == {"kv", "dkv", "layout"}
    memory = found["memory"]
    assert memory["saved_bytes"] == memory["theory_bytes"] > 0
    assert {term["term"] for rank in memory["saved"] for term in rank["terms"]} == {"attention"}


def test_from_the_command_line_to_the_report(tmp_path: Path) -> None:
    """The launcher, and all that lies between it and a rank."""
    done = cli(
        "run", "ulysses", "--attention-only", "--layers", "1", "--seq-len", "32", "--hidden", "32",
        "--heads", "4", "--warmup", "1", "--active-steps", "1", "--json", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "sp-profile-runs").iterdir()
    assert folder.name.endswith("Z-ulysses-sync-attention")
    found = json.loads(done.stdout)
    assert found["run"]["workload"]["cp"] == 2
    assert [one["op"] for one in found["collectives"] if one["rank"] == 0] == ["all_to_all"] * 8


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ring", "--ranks", "1"], "ring divides the sequence among at least 2 ranks, not 1"),
        (["ring", "--seq-len", "250"], "--seq-len 250 cannot be divided among 2 ranks in 4 chunks"),
        (
            ["ulysses", "--ranks", "4", "--kv-heads", "2"],
            "--kv-heads 2 of a rank cannot be divided among the 4 ranks of ulysses",
        ),
        (["usp", "--ranks", "4", "--ulysses", "3"], "4 ranks cannot be divided into rings by --ulysses 3"),
        (["tp", "--layout", "zigzag"], "--layout is for ring, rsa, usp, not for tp"),
        (["sp", "--no-causal"], "--no-causal is for ring, ulysses, rsa, usp, not for sp"),
        (["demo-long-context", "--ranks", "3"], "cannot be divided among 3 ranks"),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert said in printed.err
    assert list(tmp_path.iterdir()) == []
