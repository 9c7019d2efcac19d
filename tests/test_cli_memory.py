"""`sp-profile memory`: what it takes, what it shows first, what it writes, how it fails."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import polars as pl
import pytest
from conftest import REPOSITORY
from snapshot_helpers import MIB, Allocator, backward, forward, optimizer, snapshot, write

import sp_profiler
from sp_profiler.cli.main import main
from sp_profiler.errors import EXIT_INPUT, EXIT_OK, EXIT_USAGE, InputError, UsageError
from sp_profiler.report.memory_schema import SCHEMA_PATH, schema

DEMO = REPOSITORY / "traces" / "demo" / "tp-async"


def out_of_memory(asked: int = 60) -> dict[str, Any]:
    """40 MiB of state and 30 of an activation on a device of 100."""
    device = Allocator(capacity=100 * MIB)
    device.alloc(40 * MIB, optimizer())
    kept = device.alloc(30 * MIB, forward(line=10))
    assert kept is not None
    assert device.alloc(asked * MIB, forward("attention", 33)) is None
    return snapshot(device)


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_the_first_lines_say_who_held_the_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "memory", write(tmp_path / "oom_rank2.pickle", out_of_memory()))
    assert (code, err) == (EXIT_OK, "")
    first = out.splitlines()
    assert first[0] == "oom_rank2.pickle"
    assert first[1].startswith(
        "Rank 2 ran out of memory on a request of 60.0 MiB by me/model.py:33 attention; 70.0 MiB"
    )
    assert "40.0 MiB (57 %) by me/train.py:99 main" in first[1]
    assert "parameters and optimizer state" in first[2]
    assert "too little even in one piece, by 30.0 MiB" in first[3]
    assert "Who held the memory when it ran out" in out


def test_ranks_stand_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(3):
        write(tmp_path / f"rank{rank}.pickle", out_of_memory(60 + rank))
    code, out, _ = run(capsys, "memory", tmp_path)
    assert code == EXIT_OK
    assert out.splitlines()[0] == tmp_path.name
    assert "So did ranks 1-2." in out
    assert [word for word in out.split() if word.startswith("rank")].count("rank") >= 3
    code, text, _ = run(capsys, "memory", tmp_path / "*.pickle", "--json")
    ranks = json.loads(text)["memory"]["ranks"]
    assert [one["rank"] for one in ranks] == [0, 1, 2]
    assert [one["out_of_memory"][0]["asked_bytes"] for one in ranks] == [60 * MIB, 61 * MIB, 62 * MIB]


def test_the_rank_may_stand_in_the_folders_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (0, 1):
        (tmp_path / f"rank{rank}").mkdir()
        write(tmp_path / f"rank{rank}" / "oom.pickle", out_of_memory())
    _, text, _ = run(capsys, "memory", tmp_path, "--json")
    assert [one["rank"] for one in json.loads(text)["memory"]["ranks"]] == [0, 1]


@pytest.mark.parametrize("arguments", [["memory"], ["analyze"]])
def test_json_follows_its_schema(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    path = write(tmp_path / "a.pickle", out_of_memory())
    code, text, _ = run(capsys, *arguments, path, "--json")
    assert code == EXIT_OK
    document = json.loads(text)
    jsonschema.validate(document, schema())
    assert (document["schema"], document["schema_version"]) == ("sp-profile/memory", 1)
    assert document["memory"]["source"] == "snapshot"
    assert document["memory"]["peak_bytes"] == 70 * MIB
    assert document["memory"]["ranks"][0]["out_of_memory"][0]["reason"] == "full"


def test_the_schema_that_ships_is_that_of_the_classes() -> None:
    assert json.loads(SCHEMA_PATH.read_text()) == schema()


@pytest.mark.parametrize("form", [(), ("--format", "markdown"), ("--format", "html", "-o", "out.html")])
def test_an_empty_snapshot_is_not_sent_to_the_profiler(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: tuple[str, ...]
) -> None:
    path, page = write(tmp_path / "a.pickle", {"segments": [], "device_traces": []}), tmp_path / "out.html"
    code, out, _ = run(capsys, "memory", path, *(str(page) if one == page.name else one for one in form))
    assert code == EXIT_OK
    out += page.read_text() if page.exists() else ""
    assert "it holds neither segments nor a history" in out
    assert "profile_memory" not in out


def test_analyze_sends_a_snapshot_on_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "dump", out_of_memory())  # no ending: known by its first bytes
    code, out, err = run(capsys, "analyze", path)
    assert code == EXIT_OK
    assert err == (
        "sp-profile analyze: a memory snapshot holds no communication: this is what sp-profile memory shows\n"
    )
    assert out == run(capsys, "memory", path)[1]


def test_analyze_does_not_mix_them_with_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.pickle", out_of_memory())
    code, _, err = run(capsys, "analyze", DEMO, path)
    assert code == EXIT_USAGE
    assert "a.pickle is a memory snapshot: sp-profile memory takes it" in err


def test_what_takes_traces_alone_names_who_takes_snapshots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "oom.pickle", out_of_memory())
    for command in ("validate", "analyze --baseline"):
        asked = [path] if command == "validate" else [path, DEMO]
        code, out, err = run(capsys, *command.split(), *asked)
        assert (code, out) == (EXIT_INPUT, "")
        assert f"{path} is a memory snapshot, no trace: sp-profile memory" in err
        assert err.count("\n") == 1
    for function in (sp_profiler.analyze, sp_profiler.load):
        with pytest.raises(InputError, match=r"is a memory snapshot, no trace: .* sp_profiler.memory\(\)"):
            function(path)


def test_a_program_gets_what_the_command_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write(tmp_path / "rank0.pickle", out_of_memory())
    second = write(tmp_path / "rank1.pickle", out_of_memory())
    memory = sp_profiler.memory([first, second])
    assert memory is not None
    assert [(one.rank, one.peak_bytes) for one in memory.ranks] == [(0, 70 * MIB), (1, 70 * MIB)]
    _, out, _ = run(capsys, "memory", first, second, "--json")
    assert json.loads(out)["memory"]["peak_bytes"] == memory.peak_bytes
    with pytest.raises(UsageError, match="holds 2 runs"):
        sp_profiler.memory([DEMO, DEMO.parent / "sp-basic"])


def test_snapshots_belong_to_the_run_beside_whose_traces_they_lie(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mixed"
    shutil.copytree(DEMO, folder)
    (folder / "memory").mkdir()
    write(folder / "memory" / "rank7.pickle", out_of_memory())
    code, text, _ = run(capsys, "memory", folder, "--json")
    assert code == EXIT_OK
    document = json.loads(text)
    assert document["name"] == "mixed"
    assert 7 in [one["rank"] for one in document["memory"]["ranks"]]
    jsonschema.validate(document, schema())
    files = [path for path in folder.iterdir() if path.name.startswith("rank")]
    code, text, _ = run(capsys, "memory", *files, folder / "memory" / "rank7.pickle", "--json")
    assert [one["rank"] for one in json.loads(text)["memory"]["ranks"]][-1] == 7


def test_traces_without_memory_events_are_told_how_to_record_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events}))
    code, out, _ = run(capsys, "memory", path)
    assert code == EXIT_OK
    assert "profile_memory=True" in out
    _, text, _ = run(capsys, "memory", path, "--json")
    document = json.loads(text)
    assert document["memory"] is None
    assert "no-memory-events" in [entry["code"] for entry in document["data_quality"]]


def test_every_format_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "rank0.pickle", out_of_memory())
    out = tmp_path / "out"
    formats = ("json", "html", "markdown", "csv", "parquet")
    code, shown, _ = run(capsys, "memory", path, "--format", *formats, "-o", out)
    assert code == EXIT_OK
    assert shown.splitlines()[-1] == f"written: {out}"
    jsonschema.validate(json.loads((out / "memory.json").read_text()), schema())
    for name in ("memory.html", "memory.md"):
        text = (out / name).read_text().replace("<b>", "").replace("</b>", "")
        assert "ran out of memory on a request of 60.0 MiB" in text
    assert pl.read_csv(out / "memory_peaks.csv")["peak_bytes"].to_list() == [70 * MIB]
    assert pl.read_parquet(out / "memory_blocks.parquet")["bytes"].to_list() == [40 * MIB, 30 * MIB]
    code, _, err = run(capsys, "memory", path, "--format", "json", "-o", out)
    assert code == EXIT_USAGE
    assert "exists already" in err


def test_one_file_has_the_name_that_was_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "rank0.pickle", out_of_memory())
    target = tmp_path / "x.json"
    assert run(capsys, "memory", path, "--format", "json", "-o", target)[0] == EXIT_OK
    assert json.loads(target.read_text())["name"] == "rank0.pickle"
    code, _, err = run(capsys, "memory", path, "--format", "json", "-o", path, "--force")
    assert code == EXIT_USAGE
    assert "is to be read" in err


def test_several_runs_get_a_folder_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run_name in ("a", "b"):
        (tmp_path / run_name).mkdir()
        write(tmp_path / run_name / "rank0.pickle", out_of_memory())
    both = (tmp_path / "a", tmp_path / "b")
    code, _, err = run(capsys, "memory", *both, "--json")
    assert code == EXIT_USAGE
    assert "need -o DIR" in err
    assert run(capsys, "memory", *both, "--format", "json", "-o", tmp_path / "out")[0] == EXIT_OK
    assert (tmp_path / "out" / "a" / "memory.json").is_file()
    assert (tmp_path / "out" / "b" / "memory.json").is_file()


def test_a_bad_snapshot_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "rank0.pickle"
    bad.write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    for command in ("memory", "analyze"):
        code, out, err = run(capsys, command, bad)
        assert (code, out) == (EXIT_INPUT, "")
        assert err.splitlines()[-1].startswith(
            f"sp-profile {command}: {bad} is refused: it asks for the global"
        )
    code, _, err = run(capsys, "memory", tmp_path / "none.pickle")
    assert code == EXIT_INPUT
    assert "none.pickle does not exist" in err


def test_one_bad_rank_does_not_keep_the_others_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "rank0.pickle", out_of_memory())
    (tmp_path / "rank1.pickle").write_bytes(b"\x80\x04]")
    code, out, err = run(capsys, "memory", tmp_path)
    assert code == EXIT_OK
    assert "Rank 0 ran out of memory" in out
    assert "rank1.pickle: is cut off" in err
    code, _, err = run(capsys, "memory", tmp_path, "--strict")
    assert code == EXIT_INPUT
    assert "--strict refuses" in err


def test_a_folder_with_neither_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "memory", tmp_path)
    assert code == EXIT_INPUT
    assert "holds no trace files" in err
    assert "no memory snapshots (.pickle" in err


def test_several_snapshots_of_one_rank_are_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (1, 2):
        write(tmp_path / f"rank0_step_{step}.pickle", out_of_memory())
    _, text, _ = run(capsys, "memory", tmp_path, "--json")
    assert "snapshot-same-rank" in [entry["code"] for entry in json.loads(text)["data_quality"]]


def test_a_snapshot_of_nothing_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, "memory", write(tmp_path / "a.pickle", snapshot()), "--json")
    assert code == EXIT_OK
    document = json.loads(text)
    assert document["memory"] is None
    assert [entry["code"] for entry in document["data_quality"]] == ["snapshot-empty"]


def test_names_in_a_snapshot_cannot_act_on_a_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device = Allocator(capacity=20 * MIB)
    device.alloc(8 * MIB, [{"name": "f\x1b[31m", "filename": "/home/<script>.py", "line": 1}])
    assert device.alloc(30 * MIB, backward()) is None
    path = write(tmp_path / "a.pickle", snapshot(device))
    _, out, _ = run(capsys, "memory", path)
    assert "\x1b" not in out
    assert "\\x1b" in out
    run(capsys, "memory", path, "--format", "html", "-o", tmp_path / "a.html")
    assert "<script>.py" not in (tmp_path / "a.html").read_text()
