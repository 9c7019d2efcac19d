"""`capture` in this process, on the CPU: which steps are recorded, where they go, what survives an error."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sp_profiler.errors import UsageError
from sp_profiler.record import runfile
from sp_profiler.record.export import trace_name

torch = pytest.importorskip("torch", reason="torch is not installed (pip install 'sp-profiler[run]')")

from sp_profiler.record.capture import Capture, capture  # noqa: E402


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OUT", "WAIT", "WARMUP", "ACTIVE", "PROGRESS"):
        monkeypatch.delenv(f"SP_PROFILE_{name}", raising=False)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def work() -> None:
    torch.ones(8, 8) @ torch.ones(8, 8)


def train(prof: Capture, steps: int) -> None:
    for _ in range(steps):
        work()
        prof.step()


def read(path: Path | None) -> dict[str, Any]:
    assert path is not None
    with gzip.open(path) as file:
        return json.load(file)


def steps_in(trace: dict[str, Any]) -> list[str]:
    events = trace["traceEvents"]
    return [event["name"] for event in events if str(event.get("name")).startswith("ProfilerStep#")]


@pytest.mark.parametrize(
    ("wait", "warmup", "active", "made", "recorded"),
    [
        (0, 1, 3, 4, [1, 2, 3]),  # exactly as many steps as needed
        (0, 1, 2, 9, [1, 2]),  # further steps are not recorded
        (2, 1, 1, 4, [3]),
        (0, 0, 2, 2, [0, 1]),
        (0, 1, 3, 3, [1, 2]),  # the script ends early: the range opened for step 3 is not a step
    ],
)
def test_only_the_active_steps_are_in_the_trace(
    tmp_path: Path, wait: int, warmup: int, active: int, made: int, recorded: list[int]
) -> None:
    with capture(tmp_path, wait=wait, warmup=warmup, active=active) as prof:
        train(prof, made)
    assert steps_in(read(prof.path)) == [f"ProfilerStep#{number}" for number in recorded]


def test_every_step_holds_its_work_with_shapes_and_memory(tmp_path: Path) -> None:
    with capture(tmp_path, active=2) as prof:
        train(prof, 3)
    events = read(prof.path)["traceEvents"]
    ranges = [e for e in events if str(e["name"]).startswith("ProfilerStep#")]
    products = [e for e in events if e["name"] == "aten::mm"]
    assert len(products) == 2
    for step, product in zip(ranges, products, strict=True):
        assert step["ts"] <= product["ts"]
        assert product["ts"] + product["dur"] <= step["ts"] + step["dur"]
        assert product["args"]["Input Dims"][:2] == [[8, 8], [8, 8]]
    assert any(e["name"] == "[memory]" for e in events)


def test_the_folder_holds_the_trace_and_run_json_and_nothing_else(tmp_path: Path) -> None:
    with capture(tmp_path / "new" / "run", active=1) as prof:
        train(prof, 2)
    assert prof.path == tmp_path / "new" / "run" / trace_name(0)
    assert sorted(path.name for path in prof.folder.iterdir()) == [trace_name(0), "run.json"]
    trace = read(prof.path)
    assert trace["traceName"] == trace_name(0)
    run = json.loads((prof.folder / "run.json").read_text())
    assert run["schema"] == "sp-profile/run"
    assert run["schedule"] == {"wait": 0, "warmup": 1, "active": 1, "complete": True}
    assert run["versions"]["torch"] == torch.__version__
    assert run["device_type"] == ("cuda" if torch.cuda.is_initialized() else "cpu")
    assert "CUDA_DEVICE_MAX_CONNECTIONS" in run["environment"]


def test_too_few_steps_are_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with capture(tmp_path, warmup=1, active=3) as prof:
        train(prof, 2)
    assert "called prof.step() 2 times, but 4 steps are needed" in capfd.readouterr().err
    assert steps_in(read(prof.path)) == ["ProfilerStep#1"]
    assert json.loads((tmp_path / "run.json").read_text())["schedule"]["complete"] is False


def test_no_step_leaves_no_trace_and_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with capture(tmp_path, warmup=1, active=3) as prof:
        train(prof, 1)
    assert prof.path is None
    assert "nothing was recorded" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_exception_goes_on_and_what_was_recorded_is_written(tmp_path: Path) -> None:
    prof = capture(tmp_path, warmup=1, active=3)

    def script() -> None:
        with prof:
            train(prof, 2)
            work()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        script()
    # step 1 is complete, step 2 was under way
    assert steps_in(read(prof.path)) == ["ProfilerStep#1", "ProfilerStep#2"]


def test_a_failed_export_leaves_no_file_and_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from sp_profiler.record import export

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "_compress", full)
    with capture(tmp_path, active=1) as prof:
        train(prof, 5)
    assert prof.path is None
    assert "cannot write the trace of rank 0" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_existing_trace_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / trace_name(0)).write_bytes(b"old")
    with pytest.raises(UsageError, match="already holds a trace of rank 0"), capture(tmp_path):
        pass
    assert (tmp_path / trace_name(0)).read_bytes() == b"old"


def test_a_second_capture_of_a_process_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    paths: list[Path | None] = []
    for _ in range(2):
        with capture(tmp_path, active=1) as prof:
            train(prof, 2)
        paths.append(prof.path)
    assert paths == [tmp_path / trace_name(0), tmp_path / "capture-2" / trace_name(0)]


def test_captures_do_not_nest(tmp_path: Path) -> None:
    with capture(tmp_path / "a", active=1) as outer:
        with pytest.raises(UsageError, match="already open"), capture(tmp_path / "b"):
            pass
        train(outer, 2)
    assert steps_in(read(outer.path)) == ["ProfilerStep#1"]


def test_step_outside_the_block_is_an_error(tmp_path: Path) -> None:
    prof = capture(tmp_path, active=1)
    with pytest.raises(RuntimeError, match="inside"):
        prof.step()
    with prof:
        train(prof, 2)
    with pytest.raises(RuntimeError, match="inside"):
        prof.step()


def test_the_command_line_sets_folder_and_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SP_PROFILE_OUT", str(tmp_path / "ordered"))
    monkeypatch.setenv("SP_PROFILE_WARMUP", "0")
    monkeypatch.setenv("SP_PROFILE_ACTIVE", "2")
    with capture(tmp_path / "own") as prof:
        train(prof, 4)
    assert prof.folder == tmp_path / "ordered"
    assert steps_in(read(prof.path)) == ["ProfilerStep#0", "ProfilerStep#1"]


def test_what_the_script_says_wins_over_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SP_PROFILE_ACTIVE", "3")
    with capture(tmp_path, active=1) as prof:
        train(prof, 4)
    assert steps_in(read(prof.path)) == ["ProfilerStep#1"]


@pytest.mark.parametrize(("name", "value"), [("active", 0), ("warmup", -1), ("wait", -1)])
def test_impossible_schedules_are_refused(tmp_path: Path, name: str, value: int) -> None:
    with pytest.raises(UsageError, match=f"{name} is {value}"):
        capture(tmp_path, **{name: value})


def test_a_variable_that_is_no_number_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SP_PROFILE_ACTIVE", "many")
    with pytest.raises(UsageError, match="SP_PROFILE_ACTIVE is 'many'"):
        capture(tmp_path)


def test_the_rank_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with capture(tmp_path, active=1) as prof:
        train(prof, 2)
    assert prof.path == tmp_path / "rank-00003.pt.trace.json.gz"
    assert json.loads((tmp_path / "run.json").read_text())["world_size"] == 4


def test_the_default_folder_is_new_and_named_by_time_and_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["/somewhere/my train.py"])
    with capture(active=1) as prof:
        train(prof, 2)
    assert prof.folder.parent == tmp_path / "sp-profile-runs"
    assert prof.folder.name.endswith("Z-my-train")


def test_without_torch_one_sentence_says_what_to_install(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "import sp_profiler\n"
        "with sp_profiler.capture() as prof: prof.step()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert 'pip install "sp-profiler[run]"' in done.stderr.splitlines()[-1]


def facts(host: str, **other: Any) -> dict[str, Any]:
    base = {"world_size": 2, "backend": "gloo", "device_type": "cpu", "groups": [], "environment": {}}
    return {**base, "host": host, "versions": {}, "hardware": [], "schedule": None, **other}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_ranks_may_write_run_json_in_any_order(order: tuple[int, ...]) -> None:
    group = {"key": "tp[0,1]", "description": "tp", "ranks": [0, 1]}
    gpu = {"kind": "cuda", "index": 0, "name": "X"}
    by_rank = {
        0: facts("a", environment={"NCCL_ALGO": "Ring"}, groups=[group], hardware=[gpu]),
        1: facts("a", environment={"NCCL_ALGO": "Tree"}, groups=[group], hardware=[gpu]),
        2: facts("b", hardware=[gpu]),
    }
    run = runfile.new_run()
    for rank in order:
        run = runfile.add_rank(run, rank, by_rank[rank])
    assert run["hosts"] == [{"host": "a", "ranks": [0, 1]}, {"host": "b", "ranks": [2]}]
    assert run["groups"] == [group]
    assert run["environment"] == {"NCCL_ALGO": "Ring"}
    assert [device["host"] for device in run["hardware"]] == ["a", "b"]
