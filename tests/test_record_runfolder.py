"""The folder of a run in the making: it appears when it is complete, and takes the place of nothing."""

from __future__ import annotations

from pathlib import Path

from cli_helpers import names

from sp_profiler.record.runfolder import PendingFolder, unused


def test_a_folder_appears_only_when_it_is_published(tmp_path: Path) -> None:
    with PendingFolder(tmp_path / "run") as pending:
        (pending.path / "run.json").write_text("{}")
        (pending.logs / "rank-00000.log").write_text("words")
        assert not (tmp_path / "run").exists()
        assert pending.publish() == tmp_path / "run"
    assert names(tmp_path) == ["run"]
    assert names(tmp_path / "run") == ["run.json"]


def test_a_folder_that_is_not_published_leaves_nothing(tmp_path: Path) -> None:
    with PendingFolder(tmp_path / "run") as pending:
        (pending.path / "run.json").write_text("{}")
    assert names(tmp_path) == []


def test_logs_of_a_failed_run_are_kept_beside(tmp_path: Path) -> None:
    (tmp_path / "run.failed").mkdir()  # of an earlier failure: not touched
    with PendingFolder(tmp_path / "run") as pending:
        (pending.path / "rank-00000.pt.trace.json.gz").write_bytes(b"half")
        (pending.logs / "rank-00000.log").write_text("words")
        (pending.logs / "launcher.log").write_text("")
        assert pending.keep_logs() == tmp_path / "run.failed-2"
    assert names(tmp_path) == ["run.failed", "run.failed-2"]
    assert names(tmp_path / "run.failed-2") == ["rank-00000.log"]


def test_force_replaces_the_run_and_nothing_else(tmp_path: Path) -> None:
    for name in ("notes.txt", "run.json", "rank-00000.pt.trace.json.gz", "rank-00001.pt.trace.json.gz"):
        (tmp_path / name).write_text("old")
    with PendingFolder(tmp_path, force=True) as pending:
        (pending.path / "run.json").write_text("new")
        (pending.path / "rank-00000.pt.trace.json.gz").write_text("new")
        pending.publish()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "notes.txt": "old",
        "run.json": "new",
        "rank-00000.pt.trace.json.gz": "new",
    }


def test_two_runs_of_one_name_at_once_both_stay(tmp_path: Path) -> None:
    with PendingFolder(tmp_path / "run") as one:
        one.path = one.path.rename(tmp_path / ".run.1.partial")  # in life the other is another process
        with PendingFolder(tmp_path / "run") as other:
            (one.path / "run.json").write_text("one")
            (other.path / "run.json").write_text("other")
            assert one.publish() == tmp_path / "run"
            assert other.publish() == tmp_path / "run-2"
    assert (tmp_path / "run" / "run.json").read_text() == "one"
    assert (tmp_path / "run-2" / "run.json").read_text() == "other"
    assert names(tmp_path) == ["run", "run-2"]


def test_a_folder_that_is_there_is_filled_from_within(tmp_path: Path) -> None:
    """It may be a mount: nothing can be renamed into it from outside."""
    with PendingFolder(tmp_path) as pending:
        assert pending.path.parent == tmp_path
        (pending.path / "run.json").write_text("{}")
        (pending.path / ".rank-00000.pt.trace.json.gz.7.gz.tmp").write_text("half")
        assert pending.publish() == tmp_path
    assert names(tmp_path) == ["run.json"]


def test_what_came_into_an_empty_folder_meanwhile_stays(tmp_path: Path) -> None:
    target = tmp_path / "run"
    target.mkdir()
    with PendingFolder(target) as pending:
        (pending.path / "run.json").write_text("ours")
        (target / "run.json").write_text("theirs")
        assert pending.publish() == tmp_path / "run-2"
    assert names(target) == ["run.json"]
    assert (target / "run.json").read_text() == "theirs"
    assert (tmp_path / "run-2" / "run.json").read_text() == "ours"


def test_unused_counts_up(tmp_path: Path) -> None:
    assert unused(tmp_path / "a") == tmp_path / "a"
    (tmp_path / "a").mkdir()
    (tmp_path / "a-2").mkdir()
    assert unused(tmp_path / "a") == tmp_path / "a-3"
