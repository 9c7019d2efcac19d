"""Damaged snapshots: a sentence or figures that hold together, never a traceback."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import pytest
from snapshot_helpers import MIB, Allocator, backward, forward, snapshot

from sp_profiler.errors import InputError
from sp_profiler.report.memory import assemble, memory_json
from sp_profiler.snapshot.analyze import analyze_snapshot
from sp_profiler.snapshot.read import read_snapshot

BAD: list[Any] = [
    None,
    -1,
    1 << 70,
    1 << 62,
    1 << 41,
    0,
    1.5,
    float("nan"),
    "x",
    "",
    [],
    {},
    (1, 2),
    True,
    b"x",
]


def whole() -> dict[str, Any]:
    device = Allocator(capacity=60 * MIB)
    for line in range(30):
        address = device.alloc((line % 5 + 1) * MIB, forward(line=line))
        if address is not None and line % 2:
            device.free(address, backward())
    begin = device.events[2]["time_us"]
    stages = [("START", begin), ("END", begin + 50)]
    steps = [{"name": "ProfilerStep#1", "stage": stage, "time_us": at, "device": 0} for stage, at in stages]
    return snapshot(device, external_annotations=steps)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every place of the tree, as (container, key)."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in ((value, key), *places(value[key]))]


def damaged(seed: int) -> bytes:
    chance = random.Random(seed)
    content = pickle.loads(pickle.dumps(whole()))  # its frames are those of other tests too
    if seed % 3 == 0:
        data = bytearray(pickle.dumps(content))
        for _ in range(chance.randrange(1, 5)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        return bytes(data)
    for container, key in chance.sample(places(content), chance.randrange(1, 6)):
        if isinstance(container, dict) and chance.random() < 0.2:
            container.pop(key, None)
        else:
            container[key] = chance.choice(BAD)
    return pickle.dumps(content)


@pytest.mark.parametrize("start", range(0, 60, 20))
def test_damage_is_refused_or_counted(tmp_path: Path, start: int) -> None:
    read, refusals = 0, []
    for seed in range(start, start + 20):
        path = tmp_path / f"{seed}.pickle"
        path.write_bytes(damaged(seed))
        try:
            figures, ledger = analyze_snapshot(read_snapshot(str(path)))
        except InputError as error:
            refusals.append(str(error).startswith(str(path)))
            continue
        read += 1
        memory_json(assemble(figures), "damaged", ledger=ledger)
        for one in figures:
            assert sum((one.peak_by_category or {}).values()) == one.peak_bytes
            assert sum((one.peak_by_operator or {}).values()) == one.peak_bytes
    assert read > 5
    assert all(refusals)
