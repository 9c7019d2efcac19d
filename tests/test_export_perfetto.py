"""Exported traces against an independent reader, and against the report's figures to the nanosecond."""

from __future__ import annotations

import gzip
import hashlib
import shutil
from collections import Counter, defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from conftest import SHARED
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from perfetto_check import Bar, Export, read_export, text_of

import sp_profiler
from sp_profiler.analysis.results import RankFigures, StepFigures
from sp_profiler.analysis.steps import WindowRule
from sp_profiler.export.perfetto import export_run
from sp_profiler.report.model import Report
from sp_profiler.trace.decode import decode_trace
from sp_profiler.trace.find import find_runs
from sp_profiler.trace.write import TraceWriter

DEMO = Path(__file__).resolve().parent.parent / "traces" / "demo"
CORPUS = sorted(path.relative_to(SHARED / "corpus").as_posix() for path in (SHARED / "corpus").glob("*/*.gz"))
EPOCH_US = 1778655624745710
"""µs of 2026: float64 has steps of 0.25 µs there."""


def exported(source: Path, out: Path, **rule: Any) -> dict[str, Path]:
    """Every trace of a run exported into `out`; the new files by the name of the old."""
    (files,) = find_runs([str(source)])
    places = {path: out / f"{number}.json" for number, path in enumerate(files.files)}
    return export_run(files, places, WindowRule(**rule)).files


def one_export(source: Path, out: Path, **rule: Any) -> Export:
    (path,) = exported(source, out, **rule).values()
    return read_export(path)


def drawn(folder: Path, writer: TraceWriter, name: str = "rank0.json") -> Path:
    return Path(writer.write(folder / name))


# --- what is added -------------------------------------------------------------------------------------


def two_collectives(start_us: int = 0) -> TraceWriter:
    """GEMM 0-100 µs. Collectives 50.001-150 and 120-170.5 on two streams."""
    writer = TraceWriter(rank=0, world_size=2)
    writer.kernel("sm90_xmma_gemm_bf16", start_us, 100, stream=7)
    writer.collective("all_reduce", f"{start_us + 50}.001", "99.999", stream=20)
    return writer.collective("all_gather", start_us + 120, "50.5", stream=21)


def test_tracks_of_a_drawn_trace(tmp_path: Path) -> None:
    export = one_export(drawn(tmp_path, two_collectives()), tmp_path)
    assert list(export.tracks) == ["sp-profile: rank 0, GPU 0"]
    assert list(export.tracks["sp-profile: rank 0, GPU 0"]) == [
        "steps", "exposed", "overlapped by role", "collectives", "collectives (2)",
    ]  # fmt: skip
    exposed = [(bar.start, bar.end) for bar in export.bars("GPU 0", "exposed")]
    assert exposed == [(100_000, 120_000), (120_000, 150_000), (150_000, 170_500)]
    (overlapped,) = export.bars("GPU 0", "overlapped by role")
    assert (overlapped.start, overlapped.end) == (50_001, 100_000)
    first, second = export.bars("GPU 0", "collectives")
    assert (first.start, first.end, second.start, second.end) == (50_001, 150_000, 120_000, 170_500)
    assert first.name.startswith("all_reduce ")
    assert first.name.endswith(" default_pg[0,1]")
    assert (first.args["overlapped_ns"], first.args["exposed_ns"]) == (49_999, 50_000)
    # 120-150 is shared by both: 15 µs each.
    assert (first.args["exposed_share_ns"], second.args["exposed_share_ns"]) == (35_000, 35_500)


def test_many_at_once_are_counted_not_listed(tmp_path: Path) -> None:
    writer = TraceWriter(rank=0)
    for index in range(100):
        writer.collective("all_reduce", index, 200, stream=index)
    export = one_export(drawn(tmp_path, writer), tmp_path)
    most = max(export.bars("GPU 0", "exposed"), key=lambda bar: bar.args["collectives_at_once"])
    assert (most.args["collectives_at_once"], len(most.args["collectives"])) == (100, 16)
    assert sum(most.args["exposed_by_cause_ns"].values()) == most.dur
    assert len(export.tracks["sp-profile: rank 0, GPU 0"]) == 2 + 100


def test_times_of_the_epoch_lose_nothing(tmp_path: Path) -> None:
    export = one_export(drawn(tmp_path, two_collectives(EPOCH_US)), tmp_path)
    base = EPOCH_US * 1000
    exposed = [(bar.start - base, bar.end - base) for bar in export.bars("GPU 0", "exposed")]
    assert exposed == [(100_000, 120_000), (120_000, 150_000), (150_000, 170_500)]
    # Perfetto cannot tell that they only touch, and would drop the second.
    assert {"exposed", "exposed (2)"} < set(export.tracks["sp-profile: rank 0, GPU 0"])


def test_base_time_is_the_files_not_the_events(tmp_path: Path) -> None:
    writer = TraceWriter(rank=0, base_time_ns=10**18)
    writer.kernel("gemm", 5, 10)
    writer.collective("all_reduce", "8.5", 10)
    export = one_export(drawn(tmp_path, writer), tmp_path)
    assert [(bar.start, bar.end) for bar in export.bars("GPU 0", "exposed")] == [(15_000, 18_500)]


def test_names_of_the_trace_stay_text(tmp_path: Path) -> None:
    name = 'nccl"},{"ph":"X\\ \n\t\x01</script>\u2028\U0001f600 AllReduce'
    writer = TraceWriter(rank=0)
    writer.event(
        {"ph": "X", "cat": "kernel", "name": f"ncclDevKernel_{name}", "pid": 0, "tid": 7, "ts": 1, "dur": 5}
        | {
            "args": {
                "stream": 7,
                "device": 0,
                "Process Group Name": '"]}',
                "Process Group Description": '"\\',
            }
        }
    )
    export = one_export(drawn(tmp_path, writer), tmp_path)
    (bar,) = export.bars("GPU 0", "collectives")
    assert bar.args["kernel"] == f"ncclDevKernel_{name}"
    assert len(export.original) == 1


def test_arrows_lead_to_the_partner(tmp_path: Path) -> None:
    """The demo's dgrad all-reduces name wgrad as their partner: arrows lead to its GEMM, not to a reshape."""
    for path in exported(DEMO / "tp-async", tmp_path).values():
        export = read_export(path)
        named = [bar for bar in export.bars("CPU", "collectives") if "partner" in bar.args]
        assert len(export.flows) == len(named) > 0
        starts: dict[Any, list[str]] = defaultdict(list)
        for event in export.original:
            if event["ph"] == "X":
                starts[event["pid"], event["tid"], event["ts"]].append(event["name"])
        for ends in export.flows:
            (theirs,) = [end for end in ends if isinstance(end["pid"], int) and end["pid"] < 900_000_000]
            assert "aten::mm" in starts[theirs["pid"], theirs["tid"], theirs["ts"]]


def test_numbers_that_the_trace_uses_are_not_taken(tmp_path: Path) -> None:
    writer = two_collectives()
    taken = (900_000_001, "900000003", 900_000_005)
    for number in taken:
        writer.event({"ph": "X", "name": "x", "pid": number, "tid": number, "ts": 1, "dur": 1})
    writer.event({"ph": "s", "name": "partner", "cat": "x", "id": 41, "pid": 1, "tid": 1, "ts": 1})
    read_export(exported(drawn(tmp_path, writer), tmp_path)[str(tmp_path / "rank0.json")])


def test_memory_counters(tmp_path: Path) -> None:
    writer = two_collectives()
    writer.memory(10, 512, address=1, total_allocated=1512, device_type=1, device_id=0)
    writer.memory(20, 256, address=2, total_allocated=1768, device_type=1, device_id=0)
    writer.memory(20, -512, address=1, total_allocated=1256, device_type=1, device_id=0)
    export = one_export(drawn(tmp_path, writer), tmp_path)
    counters = export.counters["sp-profile: rank 0, GPU 0"]
    totals = [(now, values["allocated"]) for now, values in counters["bytes"]]
    assert totals == [(10_000, 1512), (20_000, 1256)]  # one point an instant: the last of it
    for now, values in counters["bytes of"]:
        assert sum(values.values()) == dict(totals)[now]


# --- the report's figures ------------------------------------------------------------------------------


def check_figures(export: Export, report: Report, rank: int | None) -> None:
    """Slices against the report: in all, by step, by cause and by role, to the nanosecond."""
    for figures in (one for one in report.ranks if one.rank == rank):
        if figures.window_ns is None:
            continue
        device = f"GPU {figures.device}" if figures.device_type != "cpu" else "CPU"
        steps = [s for s in report.steps if (s.rank, s.device) == (rank, figures.device)]
        exposed, overlapped = export.bars(device, "exposed"), export.bars(device, "overlapped by role")
        assert [bar.dur for bar in export.bars(device, "steps")] == [step.window_ns for step in steps]
        assert sum(bar.dur for bar in exposed) == figures.exposed_ns
        assert sum(bar.dur for bar in overlapped) == figures.overlapped_ns
        assert summed(exposed, "exposed_by_cause_ns") == nonzero(figures.exposed_by_cause_ns)
        assert summed(overlapped, "overlapped_by_role_ns") == nonzero(figures.overlapped_by_role_ns)
        check_steps(exposed, overlapped, export.bars(device, "steps"), steps)
        check_collectives(export, report, figures, device)


def check_steps(
    exposed: list[Bar], overlapped: list[Bar], windows: list[Bar], steps: list[StepFigures]
) -> None:
    for window, step in zip(windows, steps, strict=True):
        inside = [bar for bar in exposed if window.start <= bar.start < window.end]
        assert sum(bar.dur for bar in inside) == step.exposed_ns
        assert summed(inside, "exposed_by_cause_ns") == nonzero(step.exposed_by_cause_ns)
        shares: dict[str, Fraction] = defaultdict(Fraction)
        for bar in (bar for bar in overlapped if window.start <= bar.start < window.end):
            roles = bar.name.split(" + ")
            assert list(bar.args["overlapped_by_role_ns"]) == roles
            for role in roles:
                shares[role] += Fraction(bar.dur, len(roles))
        for role, ns in step.overlapped_by_role_ns.items():
            assert abs(ns - shares[role]) < 1, "each instant belongs to the roles that run, in equal parts"


def check_collectives(export: Export, report: Report, figures: RankFigures, device: str) -> None:
    found = {bar.args["id"]: bar for bar in export.bars(device, "collectives")}
    mine = [c for c in report.collectives if (c.rank, c.device) == (figures.rank, figures.device)]
    assert len(found) == len(mine)
    for one in mine:
        bar = found[one.id]
        assert bar.dur == one.dur_ns
        for name in ("op", "bytes", "group", "purpose", "cause", "hidden_ns", "exposed_ns", "skew_wait_ns"):
            assert bar.args.get(name) == getattr(one, name), name


def summed(bars: list[Bar], name: str) -> dict[str, int]:
    total: Counter[str] = Counter()
    for bar in bars:
        total.update(bar.args[name])
    return nonzero(total)


def nonzero(parts: dict[str, int] | None) -> dict[str, int]:
    return {key: ns for key, ns in (parts or {}).items() if ns}


@pytest.mark.parametrize("name", ["tp-sync", "tp-async", "sp-basic", "sp-recompute"])
def test_demo(name: str, tmp_path: Path) -> None:
    """Two ranks: causes and waits need both."""
    source = DEMO / name
    assert source.is_dir()
    report = sp_profiler.analyze(source)
    files = exported(source, tmp_path)
    assert len(files) == 2
    for path, new in files.items():
        export = read_export(new)
        trace = decode_trace(path)
        check_figures(export, report, trace.rank)
        unchanged(Path(path), new)


def unchanged(old: Path, new: Path) -> None:
    """Without one stretch the new text is the old one, byte for byte; what it holds is checked elsewhere."""
    before, after = text_of(old), text_of(new)
    added = len(after) - len(before)
    cut = _shared_bytes(before, after)
    digest = hashlib.sha256(after[:cut])
    digest.update(after[cut + added :])
    assert digest.digest() == hashlib.sha256(before).digest()
    assert after[cut : cut + added].count(b'"cat":"sp-profile"') == after.count(b'"cat":"sp-profile"') > 0


def _shared_bytes(one: bytes, other: bytes) -> int:
    """How many bytes both begin with."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


@pytest.mark.shared
@pytest.mark.parametrize("name", CORPUS)
def test_corpus(shared: Path, name: str, tmp_path: Path) -> None:
    source = shared / "corpus" / name
    rule = "step" if name.startswith(("resnet_ddp", "toy", "dlrm_v100_8ranks/worker0")) else "trace"
    report = sp_profiler.analyze(source, window=rule)
    (new,) = exported(source, tmp_path, rule=rule).values()
    check_figures(read_export(new), report, report.ranks[0].rank)
    unchanged(source, new)


@pytest.mark.shared
def test_eight_ranks(shared: Path, tmp_path: Path) -> None:
    """Real skew: what a rank waits for stands in the other ranks' files."""
    source = shared / "corpus" / "dlrm_v100_8ranks"
    report = sp_profiler.analyze(source)
    assert any((rank.exposed_by_cause_ns or {}).get("peer-skew") for rank in report.ranks)
    for path, new in exported(source, tmp_path).items():
        check_figures(read_export(new), report, decode_trace(path).rank)


def same_analysis(source: Path, folder: Path) -> None:
    """What reads the new trace finds in it what it finds in the old: our own analysis is the example."""
    folder.mkdir()
    new = exported(source, folder)
    before, after = sp_profiler.analyze(source), sp_profiler.analyze(folder)
    assert len(new) == len(before.run.ranks)
    assert before.totals == after.totals
    assert before.steps == after.steps
    assert list(before.collectives) == list(after.collectives)
    assert (before.memory is None) == (after.memory is None)
    if before.memory is not None and after.memory is not None:
        assert before.memory.peak_by_category == after.memory.peak_by_category
    told = {
        (entry.code, entry.count) for entry in before.data_quality if entry.severity in ("loss", "repair")
    }
    assert told == {
        (entry.code, entry.count) for entry in after.data_quality if entry.severity in ("loss", "repair")
    }


def test_the_new_trace_is_analysed_alike(tmp_path: Path) -> None:
    """Annotated ranks on the CPU, whose communication is told by name."""
    copy = tmp_path / "old"
    copy.mkdir()
    for path in (DEMO / "tp-async").glob("*.gz"):
        shutil.copy(path, copy)
    same_analysis(copy, tmp_path / "new")


@pytest.mark.shared
@pytest.mark.parametrize("name", ["resnet_ddp_mi300x_rank0_of_8", "gloo_rank34_of_300", "bert_h100"])
def test_real_traces_are_analysed_alike(shared: Path, name: str, tmp_path: Path) -> None:
    (source,) = (shared / "corpus" / name).glob("*.gz")
    same_analysis(source, tmp_path / "new")


# --- any small trace -----------------------------------------------------------------------------------

_TIMES = st.integers(0, 60_000)
_ROLES = ("sp::fwd|module=a", "sp::dgrad|module=a", "sp::wgrad|module=a", "aten::add")


@st.composite
def traces(draw: st.DrawFn) -> TraceWriter:
    """Kernels and collectives anywhere on a few streams of up to two devices, some at the same time."""
    start = draw(st.sampled_from((0, 1_000_000_007, EPOCH_US * 1000 + 731)))
    writer = TraceWriter(rank=draw(st.sampled_from((0, None))), world_size=2)

    def micros(ns: int) -> str:
        return f"{ns // 1000}.{ns % 1000:03d}"

    for number in range(draw(st.integers(0, 2))):
        writer.step(number, micros(start + number * 30_000), 30)
    for index in range(draw(st.integers(1, 12))):
        begin, length = draw(_TIMES), draw(st.integers(0, 25_000))
        device, stream = draw(st.integers(0, 1)), draw(st.sampled_from((7, 20, 21)))
        launch = micros(start + draw(st.integers(0, begin)))
        options = {"device": device, "stream": stream, "launch": launch, "external_id": 1000 + index}
        if draw(st.booleans()):
            seconds = {"is_async": draw(st.sampled_from((True, False, None))), "seq": index}
            writer.collective("all_reduce", micros(start + begin), micros(length), **options, **seconds)
        else:
            writer.cpu_op(draw(st.sampled_from(_ROLES)), launch, "0.001", external_id=1000 + index)
            writer.kernel("sm90_gemm", micros(start + begin), micros(length), **options)
    return writer


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(writer=traces(), rule=st.sampled_from(("step", "trace")))
def test_any_small_trace(tmp_path: Path, writer: TraceWriter, rule: str) -> None:
    source = drawn(tmp_path, writer, "a.json")
    (files,) = find_runs([str(source)])
    new = tmp_path / "a.perfetto.json"
    export_run(files, {str(source): new}, WindowRule(rule=rule))  # type: ignore[arg-type]
    report = sp_profiler.analyze(source, window=rule)
    check_figures(read_export(new), report, report.ranks[0].rank)
    unchanged(source, new)


def test_same_file_again_is_the_same(tmp_path: Path) -> None:
    source = drawn(tmp_path, two_collectives(), "rank0.json.gz")
    (files,) = find_runs([str(source)])
    for name in ("a.json.gz", "b.json.gz"):
        export_run(files, {str(source): tmp_path / name})
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.json.gz").read_bytes()).endswith(b"]}")
