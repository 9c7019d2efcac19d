"""The workload as the launcher starts it: torchrun, a configuration file, result files."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from workloads_ranks import SIZES

from sp_profiler.errors import EXIT_USAGE, UsageError
from sp_profiler.record.annotate import Range, parse_range
from sp_profiler.trace.decode import decode_trace
from workloads.config import WorkloadConfig
from workloads.data import batches
from workloads.measure import fake_rank, measure_saved
from workloads.train import StepTimer, choose_device, main

SMALL = {**SIZES, "seq_len": 64, "hidden": 64, "ffn": 192, "warmup": 1, "active_steps": 2}
GLOO_NAMES = {"reduce_scatter": "gloo:all_reduce"}
"""How gloo shows an op, where that differs from gloo:<op>."""


def torchrun(
    folder: Path, *, profile: bool, arguments: tuple[str, ...] = (), **options: Any
) -> subprocess.CompletedProcess[str]:
    config = folder / "config.json"
    config.write_text(json.dumps(WorkloadConfig(ranks=2, **{**SMALL, **options}).to_dict()))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("SP_PROFILE_OUT", None)
    if profile:
        environment["SP_PROFILE_OUT"] = str(folder)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = subprocess.Popen(
        [*launcher, "-m", "workloads.train", str(config), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=240)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture(scope="module")
def sp_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sp")
    done = torchrun(folder, profile=True, mode="sp", save="shard", comm="async")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.gloo
def test_each_rank_tells_its_losses_times_and_groups(sp_run: Path) -> None:
    reports = [json.loads((sp_run / f"rank-{rank:05d}.workload.json").read_text()) for rank in range(2)]
    assert [report["rank"] for report in reports] == [0, 1]
    for report in reports:
        assert (report["device_type"], report["backend"], report["warmup"]) == ("cpu", "gloo", 1)
        assert len(report["losses"]) == len(report["step_times_ns"]) == 3
        assert all(isinstance(time, int) and time > 0 for time in report["step_times_ns"])
        assert report["groups"] == [{"key": "tp[0,1]", "description": "tp", "ranks": [0, 1]}]
        # 12 + 2 forward, 24 + 1 backward, entry, exit and norms: 41 collectives a step
        assert report["collectives"] == 3 * 41
    assert reports[0]["losses"] == reports[1]["losses"]
    assert reports[0]["losses"][-1] < reports[0]["losses"][0]


@pytest.mark.gloo
def test_each_rank_tells_what_it_keeps_for_backward(sp_run: Path) -> None:
    """Measured before training, as the plan has it; collectives and losses are those of training alone."""
    config = WorkloadConfig(ranks=2, **SMALL, mode="sp", save="shard", comm="async")
    with fake_rank(2) as communicator:
        planned = measure_saved(config, communicator, torch.device("cpu"))
    want = json.loads(json.dumps(planned.to_json()))
    least = want.pop("peak_bytes")
    for rank in range(2):
        report = json.loads((sp_run / f"rank-{rank:05d}.workload.json").read_text())
        assert report["saved_tensors"].pop("peak_bytes") >= least
        assert report["saved_tensors"] == want
        assert report["saved_tensors"]["hidden_bytes"] == 0
        assert report["saved_tensors"]["saved_bytes"] == sum(
            tensor["bytes"] for tensor in report["saved_tensors"]["tensors"]
        )


@pytest.mark.gloo
def test_measuring_can_be_left_out_and_changes_nothing(sp_run: Path, tmp_path: Path) -> None:
    """Bitwise the same losses, the same collectives with the same numbers in the trace."""
    options = {"mode": "sp", "save": "shard", "comm": "async"}
    done = torchrun(tmp_path, profile=True, arguments=("--no-saved-tensors",), **options)
    assert done.returncode == 0, done.stderr

    def told(folder: Path) -> tuple[dict[str, Any], list[str]]:
        report = json.loads((folder / "rank-00001.workload.json").read_text())
        trace = decode_trace(str(folder / "rank-00001.pt.trace.json.gz"))
        names = (trace.strings[code] or "" for code in trace.events.name)
        return report, [name for name in names if name.startswith("sp::")]

    (measured, its_ranges), (plain, ranges) = told(sp_run), told(tmp_path)
    assert plain.pop("saved_tensors") is None
    assert measured.pop("saved_tensors")
    assert (plain["losses"], plain["collectives"]) == (measured["losses"], measured["collectives"])
    assert ranges == its_ranges
    assert len([name for name in ranges if name.startswith("sp::comm")]) == 2 * 41


@pytest.mark.gloo
def test_every_gloo_range_lies_in_a_collective_of_ours(sp_run: Path) -> None:
    """DESIGN, CPU runs: by gloo's name and dimensions, between launch and end of wait, earliest first."""
    for rank in range(2):
        trace = decode_trace(str(sp_run / f"rank-{rank:05d}.pt.trace.json.gz"))
        events, strings = trace.events, trace.strings
        ours: list[tuple[int, int, str, int]] = []
        waits: dict[tuple[str, int], int] = {}
        gloo: list[tuple[int, int, str, int]] = []
        comms: list[tuple[int, int, Range]] = []
        for row in range(len(events)):
            name = strings[events.name[row]] or ""
            start, end = int(events.start_ns[row]), int(events.end_ns[row])
            if name.startswith("gloo:"):
                (dims, *_) = json.loads(strings[events.dims[row]] or "[]")
                gloo.append((start, end, name, math.prod(dims)))
            elif (r := parse_range(name)) is not None and r.what == "comm":
                comms.append((start, end, r))
            elif r is not None and r.what == "wait":
                assert r.seq is not None
                waits[r.fields["group"], r.seq] = end
        for start, end, r in comms:
            assert r.seq is not None
            assert r.bytes is not None
            last = waits[r.fields["group"], r.seq] if r.is_async else end
            op = r.fields["op"]
            elements = r.bytes // 4 // (2 if op == "all_gather" else 1)  # f32; gloo shows the input
            ours.append((start, last, GLOO_NAMES.get(op, f"gloo:{op}"), elements))
        assert len(gloo) == len(ours) == 2 * 41
        for (launch, last, name, elements), (start, end, gloo_name, gloo_elements) in zip(
            sorted(ours), sorted(gloo), strict=True
        ):
            assert (gloo_name, gloo_elements) == (name, elements)
            assert launch <= start <= end <= last


@pytest.mark.gloo
def test_losses_of_ddp_are_the_mean_over_the_ranks(tmp_path: Path) -> None:
    """The mean is exchanged when the profile is closed: the trace holds the gradients' buckets alone."""
    done = torchrun(tmp_path, profile=True, mode="ddp", learning_rate=1e-30)
    assert done.returncode == 0, done.stderr
    reports = [json.loads((tmp_path / f"rank-{rank:05d}.workload.json").read_text()) for rank in range(2)]
    assert reports[0]["losses"] == reports[1]["losses"]
    assert reports[0]["groups"] == [{"key": "dp[0,1]", "description": "dp", "ranks": [0, 1]}]
    trace = decode_trace(str(tmp_path / "rank-00001.pt.trace.json.gz"))
    names = [trace.strings[code] or "" for code in trace.events.name]
    comms = [r for name in names if (r := parse_range(name)) is not None and r.what == "comm"]
    assert {r.fields["purpose"] for r in comms} == {"param-grad"}
    assert 3 * len(comms) == 2 * reports[0]["collectives"]


@pytest.mark.gloo
def test_it_trains_alone_and_without_a_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    for name, value in {**environment, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SP_PROFILE_OUT", raising=False)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**SMALL, "ranks": 1, "mode": "tp"}))
    threads = torch.get_num_threads()
    try:
        assert main([str(path), "--backend", "gloo"]) == 0
    finally:
        torch.set_num_threads(threads)
    assert [item.name for item in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    ("content", "environment", "sentence"),
    [
        (None, {}, "cannot read the workload's configuration from"),
        ("[]", {}, "is not a JSON object"),
        ('{"layer": 2}', {}, "unknown workload option 'layer'"),
        ('{"hidden": 250}', {}, "--hidden 250 is not divisible by --heads 8"),
        ("{}", {}, "RANK is not set: start this under torchrun"),
        (
            "{}",
            {"RANK": "0", "WORLD_SIZE": "3", "LOCAL_RANK": "0"},
            "the configuration is for 2 ranks, but 3 were started",
        ),
    ],
)
def test_what_cannot_start_says_why(
    content: str | None,
    environment: dict[str, str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content)
    assert main([str(path)]) == EXIT_USAGE
    assert sentence in capsys.readouterr().err


def test_device_follows_the_backend() -> None:
    assert choose_device("gloo", 0) == ("gloo", torch.device("cpu"))
    if not torch.cuda.is_available():
        assert choose_device("auto", 3) == ("gloo", torch.device("cpu"))
        with pytest.raises(UsageError, match="rank 0 has none, 0 found"):
            choose_device("nccl", 0)


def test_data_depend_on_seed_and_data_rank_alone() -> None:
    config = WorkloadConfig(vocab=50, seq_len=40, num_microbatches=3)
    device = torch.device("cpu")
    first, second = batches(config, 2, 0, device)
    assert first.shape == (3, 41, 2)
    assert torch.equal(first, batches(config, 1, 0, device)[0])
    assert not torch.equal(first, second)
    assert not torch.equal(first, batches(config, 1, 1, device)[0])
    follows = (5 * first[:, :-1] + 7) % 50 == first[:, 1:]
    assert 0.7 < follows.double().mean() < 1
    assert first.min() >= 0
    assert first.max() < 50


def test_step_times_leave_out_what_lies_between_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([100, 130, 1000, 1020])
    monkeypatch.setattr("workloads.train.time.perf_counter_ns", lambda: next(ticks))
    timer = StepTimer(torch.device("cpu"))
    for _ in range(4):
        timer.mark()
    assert timer.step_times_ns() == [30, 20]
