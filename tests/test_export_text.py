"""The text of an exported trace: where ours goes in, what stays, and what is made of damaged files."""

from __future__ import annotations

import gzip
import json
import random
import tracemalloc
from pathlib import Path

import pytest
from conftest import SHARED
from perfetto_check import Export, read_export, text_of
from trace_helpers import HEAD, TAIL, event_text, mixed_writer

from sp_profiler.errors import InputError
from sp_profiler.export.copy import gzipped, with_events
from sp_profiler.export.layout import find_layout
from sp_profiler.export.perfetto import Exported, export_run
from sp_profiler.trace.decode import decode_trace
from sp_profiler.trace.find import find_runs
from sp_profiler.trace.limits import Limits
from sp_profiler.trace.tables import Category

GEMM = event_text(b'"gemm"', b"0", b"10.5")
COMM = event_text(b'"ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)"', b"5", b"10", b'"stream":20')
ADDED = b'{"ph":"M","cat":"sp-profile"}'
CASES = sorted((SHARED / "cases").glob("**/*.json")) + sorted((SHARED / "cases").glob("**/*.gz"))


def spliced(folder: Path, text: bytes, events: tuple[bytes, ...] = (ADDED, ADDED)) -> bytes:
    source = folder / "rank0.json"
    source.write_bytes(text)
    return b"".join(with_events(str(source), find_layout(str(source), Limits()), events, Limits()))


def exported(folder: Path, data: bytes, name: str = "rank0.json") -> tuple[Export, Exported]:
    source = folder / name
    source.write_bytes(data)
    (files,) = find_runs([str(source)])
    done = export_run(files, {str(source): folder / "out.json"})
    return read_export(folder / "out.json"), done


def names(export: Export) -> list[str]:
    return [event["name"] for event in export.original]


# --- intact files --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'{"traceEvents":[' + GEMM, b"]}"),
        (b'{"schemaVersion":1,"traceEvents": [\n' + GEMM + b",\n" + COMM + b"\n  ", b'],"x":["]"]}\n'),
        (b'\n { "a]" : "\\"]" , "traceEvents" : [ ' + GEMM + b" ", b'] ,\n "traceName":"a]b.json" } \n'),
        (b"[" + GEMM + b"," + COMM, b"]"),
        (b" [\n" + GEMM + b"\n", b"]\n\n"),
        (b'{"traceEvents":[{"ph":"M","args":{"x":["]}",{}]}},' + GEMM, b'],"deviceProperties":[]}'),
    ],
)
def test_ours_goes_in_front_of_the_end_of_the_list(tmp_path: Path, before: bytes, after: bytes) -> None:
    text = spliced(tmp_path, before + after)
    assert text == before + b",\n" + ADDED + b",\n" + ADDED + b"\n" + after
    json.loads(text)


def test_an_empty_list_takes_no_comma(tmp_path: Path) -> None:
    text = spliced(tmp_path, b'{"traceEvents":[ ],"a":1}')
    assert text == b'{"traceEvents":[ \n' + ADDED + b",\n" + ADDED + b'\n],"a":1}'


def test_nothing_to_add_leaves_json(tmp_path: Path) -> None:
    assert json.loads(spliced(tmp_path, HEAD + GEMM + TAIL, ())) == json.loads(HEAD + GEMM + TAIL)


def test_odd_events_of_intact_files_stay(tmp_path: Path) -> None:
    """What we cannot use is no damage: other phases, wrong types, no event at all, a quoted time."""
    odd = (
        b'{"ph":"b","id":"0x1","pid":"Spans"}',
        b'{"ph":5}',
        b'{"foo":1}',
        b"{}",
        b'{"ph":"X","ts":"1.5","args":[]}',
    )
    before = HEAD + b",\n".join((GEMM, *odd, COMM))
    assert spliced(tmp_path, before + TAIL) == before + b"\n,\n" + ADDED + b",\n" + ADDED + b"\n]}"


def test_packings_and_encodings(tmp_path: Path) -> None:
    text = HEAD + GEMM + b",\n" + COMM + TAIL
    members = gzip.compress(text[:100]) + gzip.compress(text[100:])
    plain, _ = exported(tmp_path, text)
    for data in (members, b"\xef\xbb\xbf" + text, text.decode().encode("utf-16")):
        export, done = exported(tmp_path, data)
        assert export.document == plain.document
        assert not any(entry.code == "export-written-anew" for entry in done.ledger)
    assert not text_of(tmp_path / "out.json").startswith(b"\xef\xbb\xbf")  # Perfetto refuses it


def test_an_export_is_not_exported_again(tmp_path: Path) -> None:
    exported(tmp_path, HEAD + GEMM + b",\n" + COMM + TAIL)
    with pytest.raises(InputError, match="holds tracks that sp-profile export added: export the original"):
        exported(tmp_path, (tmp_path / "out.json").read_bytes())


def test_memory_does_not_follow_the_size_of_the_text(tmp_path: Path) -> None:
    peaks: list[int] = []
    for many in (6, 18):  # 3 and 9 MB
        source = tmp_path / "rank0.json"
        source.write_bytes(HEAD + (GEMM + b",\n") * 5000 * many + COMM + TAIL)
        tracemalloc.start()
        layout = find_layout(str(source), Limits())
        events = (ADDED for _ in range(10_000 * many))
        for _ in gzipped(with_events(str(source), layout, events, Limits())):
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + (1 << 20)


def test_a_file_that_changes_meanwhile(tmp_path: Path) -> None:
    source = tmp_path / "rank0.json"
    source.write_bytes(HEAD + GEMM + TAIL)
    layout = find_layout(str(source), Limits())
    for other in (HEAD + COMM + COMM + TAIL, HEAD):
        source.write_bytes(other)
        with pytest.raises(InputError, match="changed while it was read"):
            list(with_events(str(source), layout, [], Limits()))


# --- damaged files -------------------------------------------------------------------------------------


def test_a_cut_file_ends_after_its_last_whole_event(tmp_path: Path) -> None:
    whole = HEAD + GEMM + b",\n" + COMM + b",\n"
    for cut in (b"", b'{"ph":"X","cat":"kern', b'{"ph":"X","name":"half', GEMM[:-1], GEMM[:40]):
        export, done = exported(tmp_path, whole + cut)
        assert names(export)[:2] == ["gemm", json.loads(COMM)["name"]]
        text = text_of(tmp_path / "out.json")
        assert GEMM + b",\n" + COMM in text
        assert export.document["distributedInfo"] == {"rank": 0, "world_size": 1}
        codes = {entry.code for entry in done.ledger}
        assert {"truncated-file", "export-written-anew"} <= codes
        assert sum(bar.dur for bar in export.bars("GPU 0", "exposed")) == 4500


def test_cut_gzip(tmp_path: Path) -> None:
    gemms = [event_text(b'"gemm %x"' % (seed * 2654435761 % 2**32), b"%d" % seed) for seed in range(1000)]
    data = gzip.compress(HEAD + b",\n".join([COMM, *gemms]) + TAIL)
    export, done = exported(tmp_path, data[: len(data) // 2])
    assert 100 < len(export.original) < 1000
    assert {"truncated-gzip", "export-written-anew"} <= {entry.code for entry in done.ledger}


@pytest.mark.parametrize(
    ("damaged", "name"),
    [
        (event_text(b'"a "quoted" name"'), 'a "quoted" name'),
        (event_text(args=b'"occupancy":NaN,"stream":7'), "gemm"),
        (event_text(b'"raw\nnewline"'), "raw\nnewline"),
        (event_text(b'"bad \xff utf-8"'), "bad � utf-8"),
        (event_text(args=b'"stream":7,"x": ,"y":1.500'), "gemm"),
    ],
)
def test_damaged_events_are_mended_and_their_neighbours_stay(
    tmp_path: Path, damaged: bytes, name: str
) -> None:
    export, done = exported(tmp_path, HEAD + b",\n".join((GEMM, damaged, COMM)) + TAIL)
    assert names(export) == ["gemm", name, json.loads(COMM)["name"]]
    text = text_of(tmp_path / "out.json")
    assert GEMM + b",\n" in text
    assert b",\n" + COMM in text
    (entry,) = [entry for entry in done.ledger if entry.code == "export-written-anew"]
    assert "with 1 mended" in entry.text
    middle = export.original[1]
    assert (str(middle["ts"]), str(middle["dur"])) == ("5.0", "2.0")
    if "y" in middle["args"]:
        assert str(middle["args"]["y"]) == "1.500"


@pytest.mark.parametrize(
    "between",
    [b",\n" + b"\0" * 5000 + b"\n", b" ", b",,\n", b',"', b',{"ph":"X","na!!!\n,'],
)
def test_what_is_no_event_is_left_out(tmp_path: Path, between: bytes) -> None:
    export, _ = exported(tmp_path, HEAD + GEMM + between + COMM + b",\n" + GEMM + TAIL)
    assert {"gemm", json.loads(COMM)["name"]} <= set(names(export))
    assert names(export)[-1] == "gemm"


def test_damaged_metadata(tmp_path: Path) -> None:
    head = b'{"schemaVersion":1,"distributedInfo":{"rank":0,"world_size":1,"x":nonsense},\n"traceEvents":[\n'
    export, _ = exported(tmp_path, head + GEMM + b",\n" + COMM + b'\n],"traceName":"a.json"}')
    assert export.document["schemaVersion"] == 1
    assert export.document["traceName"] == "a.json"
    assert len(export.original) == 2


def test_several_documents_in_one_file(tmp_path: Path) -> None:
    one = HEAD + GEMM + b",\n" + COMM + TAIL
    export, _ = exported(tmp_path, one + one)
    assert names(export) == ["gemm", json.loads(COMM)["name"]] * 2


@pytest.mark.parametrize("seed", range(8))
def test_any_damage_gives_json_or_a_sentence(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    text = mixed_writer(8).text().encode()
    for number in range(15):
        damaged = bytearray(text)
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(damaged))
            cut = damaged[at : at + chance.choice((0, 1, 1, 40, 400))]
            damaged[at : at + len(cut)] = chance.choice(
                (b"", b'"', b"}", b"]", b"\n", b"\0" * 9, b"\xff", bytes(cut) * 2)
            )
        source = tmp_path / f"rank{number}.json"
        source.write_bytes(damaged)
        try:
            (files,) = find_runs([str(source)])
            export_run(files, {str(source): tmp_path / "out.json"})
        except InputError:
            continue
        export = read_export(tmp_path / "out.json")
        found = sum(event.get("ph") == "X" for event in export.original if isinstance(event, dict))
        assert found >= len(decode_trace(str(source)).events)


@pytest.mark.shared
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.relative_to(SHARED / "cases").as_posix())
def test_cases(path: Path, tmp_path: Path) -> None:
    """Every malformed file seen: refused in a sentence, or JSON with the kernels that the decoder finds."""
    try:
        (files,) = find_runs([str(path)])
        done = export_run(files, {str(path): tmp_path / "out.json"})
    except InputError:
        assert not (tmp_path / "out.json").exists()
        return
    export = read_export(tmp_path / "out.json")
    trace = decode_trace(str(path))
    kernels = sum(
        event.get("ph") == "X" and str(event.get("cat")).lower() == "kernel" for event in export.original
    )
    assert kernels >= int((trace.events.category == Category.KERNEL).sum())
    try:
        json.loads(text_of(path).decode("utf-8-sig"), parse_constant=lambda word: 1 / 0)
    except (ValueError, ZeroDivisionError, OSError, EOFError):
        assert any(entry.code == "export-written-anew" for entry in done.ledger)
