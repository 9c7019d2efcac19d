"""`sp-profile export` as a user meets it: where files go, what is refused, what is said."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from cli_helpers import DEMO, cli, names, refused, write_trace
from perfetto_check import read_export, text_of

import sp_profiler
from sp_profiler.cli.main import main
from sp_profiler.errors import UsageError


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """The command in this process: exit code, stdout, stderr."""
    code = main(["export", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_one_file(tmp_path: Path) -> None:
    result = cli("export", write_trace(tmp_path), "--format", "perfetto", "-o", tmp_path / "out.json")
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"written: {tmp_path / 'out.json'}\n"
    (bar,) = read_export(tmp_path / "out.json").bars("GPU 0", "exposed")
    assert (bar.start, bar.end) == (100_000, 150_000)
    assert sorted(names(tmp_path)) == ["out.json", "rank-00000.pt.trace.json"]


def test_the_ending_decides_of_packing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = write_trace(tmp_path)
    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(gzip.compress(trace.read_bytes()))
    texts = set()
    for source, out in ((trace, "a.json"), (trace, "a.json.gz"), (packed, "b.json"), (packed, "b.json.gz")):
        assert run(capsys, source, "-o", tmp_path / out)[0] == 0
        assert ((tmp_path / out).read_bytes()[:2] == b"\x1f\x8b") == out.endswith(".gz")
        texts.add(text_of(tmp_path / out))
    assert len(texts) == 1 or len({text.replace(b"rank 0", b"rank unknown") for text in texts}) == 1


def test_every_rank_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, DEMO / "tp-async", "-o", tmp_path / "new")
    assert code == 0
    assert names(tmp_path / "new") == ["rank-00000.perfetto.json.gz", "rank-00001.perfetto.json.gz"]
    assert out.count("written: ") == 2
    for rank in (0, 1):
        export = read_export(tmp_path / "new" / f"rank-0000{rank}.perfetto.json.gz")
        assert list(export.tracks) == [f"sp-profile: rank {rank}, CPU"]


def test_several_runs_get_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run_name in ("one", "two"):
        (tmp_path / run_name).mkdir()
        write_trace(tmp_path / run_name)
    code, _, _ = run(capsys, tmp_path / "one", tmp_path / "two", "-o", tmp_path / "new")
    assert code == 0
    assert names(tmp_path / "new") == ["one", "two"]
    assert names(tmp_path / "new" / "one") == ["rank-00000.perfetto.json"]


def test_ranks_of_one_file_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (0, 1):
        folder = tmp_path / f"rank{rank}"
        folder.mkdir()
        text = write_trace(folder).read_text().replace('"rank":0', f'"rank":{rank}')
        (folder / "trace.json").write_text(text)
        (folder / "rank-00000.pt.trace.json").unlink()
    assert run(capsys, tmp_path, "-o", tmp_path / "new")[0] == 0
    assert names(tmp_path / "new") == ["rank0-trace.perfetto.json", "rank1-trace.perfetto.json"]


def test_exports_beside_traces_are_no_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_trace(tmp_path)
    assert run(capsys, tmp_path, "-o", tmp_path)[0] == 0
    assert run(capsys, tmp_path, "-o", tmp_path, "--force")[0] == 0
    assert names(tmp_path) == ["rank-00000.perfetto.json", "rank-00000.pt.trace.json"]
    assert sp_profiler.analyze(tmp_path).run.ranks == [0]


def test_what_cannot_be_meant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = write_trace(tmp_path)
    before = trace.read_bytes()
    refused(cli("export", trace), 2, "--format perfetto needs -o OUT")
    for arguments, expected, words in (
        ((trace, "-o", "-"), 2, "needs -o OUT"),
        ((trace, "-o", trace, "--force"), 2, "is to be read"),
        ((trace, "-o", trace), 2, "exists already"),
        ((DEMO / "tp-async", "-o", tmp_path / "a.json.gz"), 2, "2 traces need a folder"),
        ((trace, "-o", trace / "x.json"), 2, "is not a folder"),
        ((tmp_path / "nothing.json", "-o", tmp_path / "x.json"), 3, "does not exist"),
        ((trace, "--steps", "3:5", "-o", tmp_path / "x.json"), 2, "none of the steps"),
    ):
        code, out, err = run(capsys, *arguments)
        assert (code, out) == (expected, "")
        assert words in err
    assert trace.read_bytes() == before
    assert names(tmp_path) == ["rank-00000.pt.trace.json"]


def test_a_damaged_trace_is_told_and_refused_by_strict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write_trace(tmp_path)
    trace.write_bytes(trace.read_bytes()[:-30])
    code, _, err = run(capsys, trace, "-o", tmp_path / "out.json")
    assert code == 0
    assert "the file ends before it is complete" in err
    assert "its export was written anew" in err
    read_export(tmp_path / "out.json")
    code, _, err = run(capsys, trace, "-o", tmp_path / "strict.json", "--strict")
    assert code == 3
    assert not (tmp_path / "strict.json").exists()


def test_steps_choose_windows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = DEMO / "tp-sync"
    report = sp_profiler.analyze(source, steps=(2, 3))
    assert run(capsys, source, "--steps", "2:3", "-o", tmp_path)[0] == 0
    for figures in report.ranks:
        export = read_export(tmp_path / f"rank-0000{figures.rank}.perfetto.json.gz")
        assert [bar.name for bar in export.bars("CPU", "steps")] == ["step 2"]
        assert sum(bar.dur for bar in export.bars("CPU", "exposed")) == figures.exposed_ns


def test_from_python(tmp_path: Path) -> None:
    trace = write_trace(tmp_path)
    (written,) = sp_profiler.export_perfetto(trace, tmp_path / "out.json")
    assert written == tmp_path / "out.json"
    read_export(written)
    for out, words in ((tmp_path / "out.json", "exists already"), (trace, "exists already")):
        with pytest.raises(UsageError, match=words):
            sp_profiler.export_perfetto(trace, out)
    with pytest.raises(UsageError, match="is to be read"):
        sp_profiler.export_perfetto(trace, trace, force=True)
    assert len(sp_profiler.export_perfetto(DEMO / "tp-sync", tmp_path / "both", window="trace")) == 2
