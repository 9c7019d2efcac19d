"""Reading snapshots: what is read, and what is refused in one sentence and without harm."""

from __future__ import annotations

import gzip
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from snapshot_helpers import MAIN, MIB, Allocator, frame, snapshot, write

from sp_profiler.errors import EXIT_INPUT, InputError
from sp_profiler.snapshot import read as reading
from sp_profiler.snapshot.read import SnapshotLimits, is_snapshot, read_snapshot
from sp_profiler.snapshot.worker.protocol import MAX_DEVICES

PROTO = b"\x80\x04"


def small() -> dict[str, Any]:
    device = Allocator()
    first = device.alloc(3 * MIB)
    device.alloc(1000)
    assert first is not None
    device.free(first)
    return snapshot(device)


@pytest.mark.parametrize("protocol", range(6))
def test_every_protocol_is_read(tmp_path: Path, protocol: int) -> None:
    read = read_snapshot(str(write(tmp_path / "rank3.pickle", small(), protocol)))
    assert read.rank == 3
    (device,) = read.devices
    assert device.events.action.tolist() == [3, 0, 3, 0, 1, 2]  # two segments, two blocks, one freed
    assert device.events.size.tolist() == [20 * MIB, 3 * MIB, 2 * MIB, 1000, 3 * MIB, 3 * MIB]
    assert device.blocks.requested.tolist() == [0, 1000, 0]
    assert device.blocks.size.tolist() == [20 * MIB, 1024, 2 * MIB - 1024]
    assert read.ledger == ()


def test_gzipped_snapshots_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rank0.pickle.gz"
    path.write_bytes(gzip.compress(pickle.dumps(small())))
    assert len(read_snapshot(str(path)).devices[0].events.action) == 6


def test_stacks_and_texts_come_back_as_written(tmp_path: Path) -> None:
    device = Allocator()
    device.alloc(512, [frame("forward", "/home/me/m.py", 7), MAIN], user_metadata="layer 3")
    read = read_snapshot(str(write(tmp_path / "a.pickle", snapshot(device))))
    events = read.devices[0].events
    stacks = read.stacks
    frames = stacks.of(int(events.stack[1])).tolist()
    named = [
        (stacks.texts[stacks.file[f]], int(stacks.line[f]), stacks.texts[stacks.function[f]]) for f in frames
    ]
    assert named == [("/home/me/m.py", 7, "forward"), ("/home/me/train.py", 90, "main")]
    assert stacks.texts[events.label[1]] == "layer 3"


def test_a_list_of_segments_is_a_snapshot_without_history(tmp_path: Path) -> None:
    """`torch.cuda.memory_snapshot()`, and all there was before torch 2.0: no addresses, a `history`."""
    blocks = [
        {"size": 1024, "state": "inactive"},
        {
            "size": 512,
            "state": "active_allocated",
            "history": [{"addr": 0, "real_size": 300, "frames": [MAIN]}],
        },
    ]
    segment = {"device": 1, "address": 4096, "total_size": 1536, "stream": 0, "blocks": blocks}
    read = read_snapshot(str(write(tmp_path / "old.pickle", [segment])))
    assert not read.has_history
    (device,) = read.devices
    assert device.device == 1
    assert device.blocks.address.tolist() == [4096, 5120]
    assert device.blocks.requested.tolist() == [-1, 300]
    assert device.blocks.stack.tolist() == [-1, 0]


def test_the_state_as_the_writer_in_cpp_names_it(tmp_path: Path) -> None:
    content = small()
    content["segments"][0]["blocks"][0]["state"] = "active_pending_free"
    read = read_snapshot(str(write(tmp_path / "a.pickle", content)))
    assert read.devices[0].blocks.state[0] == 1


def test_what_is_malformed_is_left_out_and_counted(tmp_path: Path) -> None:
    content = small()
    trace = content["device_traces"][0]
    trace += [
        {"action": "alloc", "addr": "here", "size": 1, "stream": 0},
        {"action": "alloc", "addr": 1, "size": 1 << 60, "stream": 0},
        {"action": "alloc", "size": 512, "stream": 0},
        "alloc",
        {"action": "levitate", "addr": 1, "size": 1, "stream": 0},
        {"action": ["alloc"], "addr": 1, "size": 1, "stream": 0},
    ]
    content["segments"].append({"device": 0, "address": None, "total_size": 5, "blocks": []})
    read = read_snapshot(str(write(tmp_path / "a.pickle", content)))
    assert len(read.devices[0].events.action) == 6
    counted = {(entry.code, entry.text.split(" ")[0]): entry.count for entry in read.ledger}
    assert counted == {
        ("snapshot-malformed", "events"): 4,
        ("snapshot-malformed", "segments"): 1,
        ("snapshot-unknown-action", "events"): 2,
    }


class Evil:
    """What `pickle.load` would call."""

    def __init__(self, call: Any, *args: Any) -> None:
        self.call = call, args

    def __reduce__(self) -> Any:
        return self.call


def test_nothing_a_pickle_names_is_called(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    for number, evil in enumerate(
        (Evil(os.mkdir, str(proof)), Evil(eval, f"__import__('os').mkdir({str(proof)!r})"))
    ):
        content = {"segments": [evil], "device_traces": []}
        path = write(tmp_path / f"{number}.pickle", content)
        with pytest.raises(
            InputError, match=r"asks for the global (posix\.mkdir|builtins\.eval), which could run code"
        ):
            read_snapshot(str(path))
    assert not proof.exists()


HOSTILE = {
    "global of protocol 0": (b"cos\nsystem\n(S'true'\ntR.", "global os.system"),
    "instance of protocol 0": (b"(ios\nsystem\n.", "global os.system"),
    "global of a name that moves the cursor": (
        PROTO + b"\x8c\x02os\x8c\x06\x1b[2J\n!\x93.",
        r"global os\.\\x1b\[2J\\n!, which",
    ),
    "global from the stack": (PROTO + b"\x8c\x02os\x8c\x06system\x93.", "global os.system"),
    "a harmless global": (pickle.dumps(np.dtype("int64")), "global numpy"),
    "extension registry": (b"\x80\x02\x82\x01.", "damaged"),
    "persistent id": (PROTO + b"\x8c\x01aQ.", "objects outside of the file"),
    "persistent id of protocol 0": (b"Pabc\n.", "objects outside of the file"),
    "out-of-band buffer": (b"\x80\x05\x97.", "damaged"),
    "build on a dict": (PROTO + b"}}b.", "damaged"),
    "build on a list": (PROTO + b"]}b.", "damaged"),
    "new object of a list": (PROTO + b"])\x81.", "damaged"),
    "call of a text": (PROTO + b"\x8c\x01a)R.", "damaged"),
    "stop without a value": (PROTO + b".", "damaged"),
    "pop without a value": (PROTO + b"00.", "damaged"),
    "unknown memo entry": (PROTO + b"h\x05.", "damaged"),
    "text of 4 EiB": (PROTO + b"\x8d" + (1 << 62).to_bytes(8, "little") + b".", "more memory|cut off"),
    "text of 1 TiB": (PROTO + b"\x8d" + (1 << 40).to_bytes(8, "little") + b".", "more memory|cut off"),
    "bytes of 1 TiB": (b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b".", "more memory|cut off"),
    "frame of 1 EiB": (PROTO + b"\x95" + (1 << 60).to_bytes(8, "little") + b".", "more memory|cut off"),
    "memo of 16 GiB": (PROTO + b"]r\xff\xff\xff\x7f.", "more memory"),
    "integer of 1 GiB": (PROTO + b"\x8b" + (1 << 30).to_bytes(4, "little") + b"\xff.", "more memory|cut off"),
    "deep lists": (PROTO + b"]" * 200_000 + b"a" * 199_999 + b".", "no list of segments"),
    "deep tuples as a key": (PROTO + b"})" + b"\x85" * 2_000_000 + b"K\x01s.", "crashes the reader"),
    "a number": (pickle.dumps(5), "no list of segments"),
    "another dict": (pickle.dumps({"weights": [1.0]}), "no list of segments"),
    "a list of numbers": (pickle.dumps([1, 2]), "no list of segments"),
    "empty": (b"", "is empty"),
    "torch.save": (b"PK\x03\x04" + bytes(40), "zip archive, as torch.save"),
    "text": (b"step,loss\n1,0.5\n", "is no pickle"),
    "text that begins with opcodes": (b"hello world\n", "is no pickle"),
    "json": (b'{"traceEvents": []}', "is no pickle"),
    "a byte changed": (
        pickle.dumps({"segments": []}, 4).replace(b"}", b"\xff"),
        r"damaged .*\(UnpicklingError: ",
    ),
    "damaged gzip": (b"\x1f\x8b" + bytes(20), r"damaged .*\(BadGzipFile: "),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_and_foreign_files_are_refused_in_a_sentence(tmp_path: Path, case: str) -> None:
    data, sentence = HOSTILE[case]
    path = tmp_path / "hostile.pickle"
    path.write_bytes(data)
    with pytest.raises(InputError, match=sentence) as caught:
        read_snapshot(str(path))
    assert caught.value.exit_code == EXIT_INPUT
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_fault_of_the_reader_is_told_as_one_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = tmp_path / "worker"
    shutil.copytree(reading._WORKER, worker)
    with (worker / "extraction.py").open("a") as file:
        file.write("\nExtraction.run = lambda self, root: root['none']\n")
    monkeypatch.setattr(reading, "_WORKER", worker)
    sentence = r"a fault of the reader \(KeyError in line \d+ of extraction\.py: 'none'\)\.$"
    with pytest.raises(InputError, match=sentence):
        read_snapshot(str(write(tmp_path / "a.pickle", small())))


def test_hashing_without_end_is_stopped(tmp_path: Path) -> None:
    """A key of 60 nested pairs of the same two things takes 2**60 steps to hash."""
    path = tmp_path / "slow.pickle"
    path.write_bytes(PROTO + b"})" + b"2\x86" * 60 + b"K\x01s.")
    with pytest.raises(InputError, match="takes longer than a snapshot of this size could"):
        read_snapshot(str(path), SnapshotLimits(cpu_s=1))


def test_memory_is_bounded_by_the_size_of_the_file(tmp_path: Path) -> None:
    """30 MB of one-byte opcodes, a list of 56 bytes each, in a process that may have 256 MiB."""
    path = tmp_path / "many.pickle"
    path.write_bytes(PROTO + b"(" + b"]" * 30_000_000 + b"l.")
    with pytest.raises(InputError, match="more memory than a snapshot of this size"):
        read_snapshot(str(path), SnapshotLimits(memory_bytes=256 * MIB))


def test_a_gzip_bomb_is_stopped(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pickle.gz"
    path.write_bytes(gzip.compress(PROTO + b"N0" * 20_000_000))
    with pytest.raises(InputError, match="unpacks to more than"):
        read_snapshot(str(path), SnapshotLimits(inflated_bytes=8 * MIB))


def test_the_bound_on_events_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"more events or blocks than a snapshot of this size could \(a bound of 5\)"
    ):
        read_snapshot(str(write(tmp_path / "a.pickle", small())), SnapshotLimits(events=5))


@pytest.mark.parametrize("protocol", [2, 4])
def test_no_truncation_gets_through(tmp_path: Path, protocol: int) -> None:
    whole = pickle.dumps(small(), protocol=protocol)
    path = tmp_path / "cut.pickle"
    for length in range(1, len(whole), max(len(whole) // 25, 1)):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"cut off|damaged|more memory"):
            read_snapshot(str(path))


def test_what_follows_the_pickle_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps(small()) + b"more")
    assert [entry.code for entry in read_snapshot(str(path)).ledger] == ["snapshot-trailing"]


def test_pipes_and_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_snapshot(str(tmp_path / "none.pickle"))
    fifo = tmp_path / "fifo.pickle"
    os.mkfifo(fifo)
    with pytest.raises(InputError, match="pipe or a device"):
        read_snapshot(str(fifo))


def test_files_are_told_by_name_or_first_bytes(tmp_path: Path) -> None:
    (tmp_path / "dump").write_bytes(pickle.dumps(small()))
    (tmp_path / "trace.json").write_bytes(b'{"traceEvents": []}')
    assert is_snapshot(str(tmp_path / "dump"))
    assert is_snapshot("anything.PKL")
    assert not is_snapshot(str(tmp_path / "trace.json"))
    assert not is_snapshot(str(tmp_path / "none.json"))


def test_parts_that_are_missing_are_counted_and_no_zero(tmp_path: Path) -> None:
    """Segments without a list of blocks, devices without a list of events."""
    content = small()
    content["segments"][0]["blocks"] = None
    content["device_traces"].append("events")
    read = read_snapshot(str(write(tmp_path / "a.pickle", content)))
    lost = [(entry.text.split()[0], entry.count) for entry in read.ledger if entry.severity == "loss"]
    assert lost == [("events", 1), ("blocks", 1)]


def _traces(lists: int, events: int) -> bytes:
    """So many devices that share one list, which holds one event so many times."""
    device = Allocator()
    device.alloc(512)
    event = pickle.dumps(snapshot(device)["device_traces"][0][-1], 2)[2:-1]
    shared = b"q\x00" + event + b"q\xfa0]q\xfb(" + b"h\xfa" * events + b"e0"
    return PROTO + b"]" + shared + b"0}(\x8c\x08segments]\x8c\x0ddevice_traces](" + b"h\xfb" * lists + b"eu."


def test_events_that_are_one_event_again_and_again_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "shared.pickle"
    path.write_bytes(_traces(200, 10_000))
    with pytest.raises(InputError, match="more events or blocks than a snapshot of this size could"):
        read_snapshot(str(path))


def test_devices_that_no_process_has_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "devices.pickle"
    path.write_bytes(_traces(3_000, 1))
    read = read_snapshot(str(path))
    assert len(read.devices) == MAX_DEVICES
    assert [(e.severity, e.count) for e in read.ledger] == [("loss", 3_000 - MAX_DEVICES)]
