"""Two runs compared, drawn small: expected ns beside them, runs of other sizes, and what is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from compare_helpers import US, Drawn, drawn_report, figure_of, keyed, only_kind, total
from report_helpers import MS, make_report

import sp_profiler
from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.memory.blocks import FREED_UNSEEN
from sp_profiler.analysis.memory.results import BorderFigures, Memory, MemoryFigures
from sp_profiler.comparing.compare import compare, deltas
from sp_profiler.comparing.model import Comparison, Delta
from sp_profiler.comparing.words import NOT_COMPARED, SAME
from sp_profiler.ledger import LedgerEntry
from sp_profiler.report.memory import assemble
from sp_profiler.report.model import Coverage, Finding, Report, Window


def test_hidden_now_is_told_with_its_part(tmp_path: Path) -> None:
    """An all-reduce of 50 µs after the GEMM of 100, then under it: exposed 50 -> 0 µs of each step."""
    base = drawn_report(tmp_path / "a", [Drawn()] * 3)
    here = drawn_report(tmp_path / "b", [Drawn(collectives=((40, 50, 1024, "tp"),))] * 3)
    found = compare(base, here)
    exposed = total(found, "exposed_ns")
    assert (exposed.base, exposed.here, exposed.difference) == (50 * US, 0, -50 * US)
    assert (exposed.noise, exposed.verdict) == (0, "went")
    overlapped = total(found, "overlapped_ns")
    assert (overlapped.difference, overlapped.verdict) == (50 * US, "came")
    kind = only_kind(found)
    assert (kind.op, kind.group, kind.exposed.difference) == ("all_reduce", "tp[0]", -50 * US)
    assert [(part.reason, part.ns) for part in kind.parts] == [("overlap", -50 * US)]
    assert found.exposed_parts == kind.parts
    assert found.is_different
    assert any("fell" in said and "50.0 µs" in said and "runs under" in said for said in found.summary)
    assert total(found, "compute_ns").verdict == "equal"


def test_more_and_larger_collectives_are_named_by_number_and_size(tmp_path: Path) -> None:
    base = drawn_report(tmp_path / "a", [Drawn(collectives=((100, 50, 1024, "tp"),))] * 2)
    here = drawn_report(
        tmp_path / "b", [Drawn(collectives=((100, 100, 2048, "tp"), (300, 100, 2048, "tp")))] * 2
    )
    kind = only_kind(compare(base, here))
    count, size = figure_of(kind, "count"), figure_of(kind, "bytes")
    assert (count.base, count.here, count.verdict) == (1, 2, "changed")
    assert size.here == 2 * (size.base or 0)
    assert size.verdict == "changed"
    # 1 x 50 -> 2 x 100 µs: count 1 x 75 = 75, duration 1.5 x 50 = 75
    amounts = {part.reason: part.ns for part in kind.parts}
    assert amounts.pop("count") == 75 * US
    assert sum(amounts.values()) == 75 * US
    assert "there are 2 of them instead of 1" in kind.because


def test_a_group_that_only_one_run_has_is_null_there_and_named(tmp_path: Path) -> None:
    base = drawn_report(tmp_path / "a", [Drawn()] * 2)
    both = ((100, 50, 1024, "tp"), (300, 70, 1024, "dp"))
    found = compare(base, drawn_report(tmp_path / "b", [Drawn(collectives=both)] * 2))
    new = keyed(found.by["group"], "dp[0]")
    assert (new.base, new.here, new.difference, new.verdict) == (None, 70 * US, None, "only-here")
    assert found.exposed_parts is not None
    assert [(part.reason, part.ns) for part in found.exposed_parts] == [("came", 70 * US)]
    assert any(said.startswith("New in this run") and "dp[0]" in said for said in found.summary)
    gone = compare(drawn_report(tmp_path / "b", [Drawn(collectives=both)] * 2), base)
    assert keyed(gone.by["group"], "dp[0]").verdict == "only-base"
    assert any(said.startswith("Gone in this run") for said in gone.summary)


def test_spread_between_steps_hides_a_small_difference(tmp_path: Path) -> None:
    def run(name: str, durations: tuple[int, ...]) -> Report:
        steps = [Drawn(collectives=((100, dur, 1024, "tp"),)) for dur in durations]
        return drawn_report(tmp_path / name, steps)

    base = run("a", (50, 90, 70, 60))
    same = compare(base, run("b", (55, 95, 75, 65)))
    assert total(same, "exposed_ns").verdict == "within-noise"
    assert same.is_different is False
    assert same.summary[0] == SAME
    more = compare(base, run("c", (350, 390, 370, 360)))
    assert total(more, "exposed_ns").verdict == "changed"
    # variance of 50, 90, 70, 60 is 291.7: t(6) = 3.707, error sqrt(2 x 291.7 / 4)
    assert total(more, "exposed_ns").noise == pytest.approx(3.707 * (2 * 291.6667e6 / 4) ** 0.5, rel=1e-4)


def test_one_step_each_leaves_noise_unknown_and_says_so(tmp_path: Path) -> None:
    found = compare(
        drawn_report(tmp_path / "a", [Drawn()]),
        drawn_report(tmp_path / "b", [Drawn(collectives=((100, 350, 1024, "tp"),))]),
    )
    exposed = total(found, "exposed_ns")
    assert (exposed.difference, exposed.noise, exposed.verdict) == (300 * US, None, "noise-unknown")
    assert found.is_different is None
    assert any("a and b have one window of each rank: noise is not known" in note for note in found.notes)
    assert SAME not in found.summary


@pytest.mark.parametrize("comm", ["sync", "async"])
def test_a_run_beside_itself_is_the_same(comm: str) -> None:
    report = make_report(comm=comm)
    found = compare(report, report)
    assert found.summary == [SAME]
    assert found.is_different is False
    assert {one.verdict for one in deltas(found)} <= {"equal", "unknown"}
    assert found.settings == []
    assert found.findings == []


def test_the_order_of_ranks_steps_and_collectives_does_not_matter() -> None:
    base, here = make_report(comm="sync"), make_report(comm="async")
    turned = replace(
        here,
        ranks=here.ranks[::-1],
        steps=here.steps[::-1],
        collectives=list(here.collectives)[::-1],
        gemms=here.gemms[::-1],
        groups=here.groups[::-1],
    )
    one, two = compare(base, here), compare(base, turned)
    assert one.summary == two.summary
    assert one.kinds == two.kinds
    assert one.sites == two.sites
    key = lambda d: (d.figure, d.name, str(d))  # noqa: E731
    assert sorted(deltas(one), key=key) == sorted(deltas(two), key=key)
    columns = replace(here, collectives=Collectives.of(here.collectives))
    assert compare(base, columns) == one


def test_from_synchronous_to_asynchronous() -> None:
    found = compare(make_report(comm="sync"), make_report(comm="async"))
    wgrad = keyed(found.by["role"], "wgrad")
    assert wgrad.verdict == "came"
    dgrad = next(kind for kind in found.kinds or () if kind.purpose == "dgrad")
    assert dgrad.became == "async"
    assert sum(part.ns for part in dgrad.parts) == dgrad.exposed.difference
    (hidden,) = [part for part in dgrad.parts if (part.reason, part.under) == ("overlap", "wgrad")]
    assert hidden.ns < 0
    assert "it is asynchronous now" in dgrad.because
    assert "runs under wgrad" in dgrad.because
    assert any("fell" in said and "asynchronous now" in said for said in found.summary)
    activation = next(kind for kind in found.kinds or () if kind.purpose == "activation")
    assert activation.exposed.verdict == "equal"
    assert not any("activation" in said for said in found.summary)
    assert [(s.name, s.base, s.here) for s in found.settings] == [("comm", "sync", "async")]


def test_of_other_sizes_the_means_are_compared() -> None:
    base, here = make_report(ranks=2, steps=3, layers=2), make_report(ranks=4, steps=5, layers=3)
    here = replace(
        here,
        collectives=[replace(c, group="tp[0,1,2,3]", ranks=[0, 1, 2, 3]) for c in here.collectives],
        groups=[replace(group, group="tp[0,1,2,3]") for group in here.groups],
        totals=replace(here.totals, exposed_by_group_ns={"tp[0,1,2,3]": here.totals.exposed_ns or 0}),
    )
    found = compare(base, here)
    (group,) = found.groups
    assert (group.group, group.matched_by) == ("tp", "name")
    assert (group.base_groups, group.here_groups) == (["tp[0,1]"], ["tp[0,1,2,3]"])
    mean = total(found, "window_ns")
    assert mean.here == round((here.totals.window_ns or 0) / 20)
    third = keyed(found.by["layer"], "2")
    assert (third.base, third.verdict) == (None, "only-here")
    new = [rank for rank in found.ranks if rank.rank in (2, 3)]
    assert {one.verdict for rank in new for one in rank.figures if one.here is not None} == {"only-here"}
    told = " ".join(found.notes)
    assert "3 and 5 steps" in told
    assert "2 ranks and 4 ranks" in told
    assert "ranks 2-3 only in the other run" in told
    assert "2 and 3 layers" in told


def test_groups_of_other_names_are_matched_by_what_they_are_for() -> None:
    base, here = make_report(), make_report()
    here = replace(
        here,
        collectives=[replace(c, group="default_pg[0,1]") for c in here.collectives],
        groups=[replace(group, group="default_pg[0,1]") for group in here.groups],
        totals=replace(here.totals, exposed_by_group_ns={"default_pg[0,1]": here.totals.exposed_ns or 0}),
    )
    found = compare(base, here)
    (group,) = found.groups
    assert (group.group, group.matched_by) == ("tensor parallel", "role")
    assert all(kind.group == "tensor parallel" for kind in found.kinds or ())
    assert found.is_different is False


def test_cpu_beside_gpu_is_said() -> None:
    found = compare(make_report(device="cpu"), make_report(device="cuda"))
    assert any("CPUs" in note and "machines" in note for note in found.notes)
    assert total(found, "exposed_ns").difference == 0


def test_steps_beside_a_whole_trace_compare_ratios_only() -> None:
    found = compare(make_report(comm="async"), whole_trace(make_report(steps=1, comm="sync")))
    assert (total(found, "exposed_ns").difference, total(found, "exposed_ns").verdict) == (None, "unknown")
    assert total(found, "overlap_ratio").difference is not None
    assert found.kinds is None
    assert any("has no steps" in note for note in found.notes)


def whole_trace(report: Report) -> Report:
    """A report of the whole trace in place of its one step."""
    steps = [replace(step, step=None) for step in report.steps]
    collectives = [replace(c, step=None) for c in report.collectives]
    return replace(report, window=Window("trace", []), steps=steps, collectives=collectives)


def test_times_that_were_not_compared_are_not_called_the_same() -> None:
    report = make_report(steps=1)
    found = compare(report, whole_trace(report))
    assert found.is_different is None
    assert found.summary[0] == NOT_COMPARED
    assert SAME not in found.summary


def test_runs_of_one_name_are_told_apart_in_the_middle_of_a_sentence_too(tmp_path: Path) -> None:
    report = drawn_report(tmp_path, [Drawn()])
    found = compare(report, report)
    assert any(note.startswith("The base and this run have one window of each rank:") for note in found.notes)


def test_of_whole_traces_no_sentence_speaks_of_steps(tmp_path: Path) -> None:
    once = [Drawn(collectives=((100, 50, 1024, "tp"),))]
    thrice = [Drawn(collectives=tuple((100 * n, 50, 1024, "tp") for n in (1, 2, 3)))]
    other = [Drawn(collectives=((100, 50, 1024, "dp"),), op="allgather")]
    base, more, new = (
        whole_trace(drawn_report(tmp_path / name, drawn))
        for name, drawn in (("base", once), ("more", thrice), ("new", other))
    )
    found = compare(base, more)
    count = figure_of(only_kind(found), "count")
    assert (count.noise, count.noise_from, count.verdict) == (None, "counted", "changed")
    assert found.is_different
    text = " ".join(found.summary)
    assert "runs 3 times a rank instead of 1;" in text
    text = " ".join(compare(base, new).summary)
    assert "all-gather of group dp[0], 1 per rank; they expose 50.0 µs." in text
    assert "step" not in text


def test_layers_that_nobody_named_are_not_counted(tmp_path: Path) -> None:
    drawn = [Drawn(collectives=((100, 50, 1024, "tp"),))]
    base = drawn_report(tmp_path, drawn)
    assert list(base.totals.exposed_by_layer_ns) == ["unknown"]
    layers = replace(base.totals, exposed_by_layer_ns={"0": 30 * US, "1": 20 * US})
    two = replace(base, totals=layers)
    three = replace(base, totals=replace(layers, exposed_by_layer_ns={"0": 1, "1": 1, "2": 1, "unknown": 1}))
    assert not any("layers" in note for note in compare(base, two).notes)
    assert "2 and 3 layers: figures of a step are of different models." in compare(two, three).notes


def test_figures_that_a_run_does_not_tell_are_null_not_zero() -> None:
    base = make_report()
    here = replace(base, totals=replace(base.totals, dgrad_comm_ns=None, wgrad_overlapped_ns=None))
    one = total(compare(base, here), "dgrad_comm_ns")
    assert (one.here, one.difference, one.verdict) == (None, None, "unknown")


def test_a_report_that_lists_some_collectives_is_compared_by_its_totals() -> None:
    base, here = make_report(comm="sync"), make_report(comm="async")
    here = replace(here, collectives=list(here.collectives)[:3])
    found = compare(base, here)
    assert (found.kinds, found.sites, found.exposed_parts) == (None, None, None)
    assert total(found, "exposed_ns").verdict == "changed"
    assert any("lists only its most exposed" in note for note in found.notes)
    assert any("dgrad" in said and "fell" in said for said in found.summary)


def test_single_collectives_are_matched_by_rank_step_and_place() -> None:
    base, here = make_report(comm="sync", steps=3), make_report(comm="async", steps=2)
    found = compare(base, here)
    assert found.matched is not None
    # 2 layers x 2 collectives x 2 ranks in each of 2 and 3 steps
    assert (found.matched.pairs, found.matched.only_base, found.matched.only_here) == (16, 8, 0)
    first = found.matched.largest[0]
    one, two = base.collectives[first.base_id], here.collectives[first.here_id]
    assert (
        (one.rank, one.module, one.purpose)
        == (two.rank, two.module, two.purpose)
        == (
            first.rank,
            first.module,
            first.purpose,
        )
    )
    assert first.base_exposed_ns - first.here_exposed_ns == one.exposed_share_ns - two.exposed_share_ns > 0
    for site in found.sites or ():
        assert (site.pairs, site.only_base) == (4, 2)
        assert site.ordinal == 0


def test_gemms_take_the_noise_of_the_computation() -> None:
    base = make_report()
    here = replace(
        base,
        gemms=[replace(g, total_ns=g.total_ns * 3) if g.role == "fwd" else g for g in base.gemms],
    )
    found = compare(base, here)
    slower = next(gemm for gemm in found.gemms if gemm.role == "fwd")
    assert (slower.time.noise_from, slower.time.verdict) == ("computation", "changed")
    assert slower.each.difference == 4 * MS
    assert {gemm.time.verdict for gemm in found.gemms if gemm.role != "fwd"} == {"equal"}


def test_findings_and_coverage_that_differ() -> None:
    finding = Finding("queued", "advice", "Something waits.", {"collectives": 3})
    base = make_report(findings=[finding])
    here = replace(make_report(), coverage=Coverage(0.4, 1.0, 1.0))
    found = compare(base, here)
    assert [(f.change, f.code) for f in found.findings] == [("went", "queued")]
    assert any("40 %" in note for note in found.notes)
    assert any(said == "Findings that went: queued." for said in found.summary)


def test_parts_of_the_step_sum_to_its_difference() -> None:
    found = compare(make_report(comm="sync"), make_report(comm="async"))
    gap = sum(part.difference or 0 for part in found.step_parts) - (total(found, "window_ns").difference or 0)
    assert abs(gap) <= len(found.step_parts)  # whole ns each


def test_from_python(tmp_path: Path) -> None:
    reports = [drawn_report(tmp_path / name, [Drawn()] * 2) for name in ("a", "b")]
    found = sp_profiler.compare(tmp_path / "a", reports[1])
    assert isinstance(found, Comparison)
    assert found.summary == [SAME]


def test_ledger_differences_are_no_difference_of_the_run() -> None:
    base = make_report()
    here = replace(base, data_quality=[*base.data_quality, LedgerEntry("x", "note", "told")])
    assert compare(base, here).summary == [SAME]


def memory_of(device: str, peak: int, unseen: int = 0, kept: int = 4 << 20) -> Memory:
    """The memory of one rank: a peak of activations, of which some bytes were free, and what is kept."""
    border = BorderFigures(0, 5, kept, 1, {"layers.0": kept}, {"0": kept}, {"activation": kept}, {"mm": kept})
    figures = MemoryFigures(
        "events",
        0,
        device,
        None if device == "cpu" else 0,
        "a.json",
        9,
        peak,
        7,
        peak_by_category={"activation": peak - unseen, "unknown": unseen},
        peak_by_operator={FREED_UNSEEN: unseen, "mm": peak - unseen},
        across_border_bytes=kept,
        borders=[border],
    )
    made = assemble([figures])
    assert made is not None
    return made


def sized(found: Comparison, figure: str) -> Delta:
    (one,) = (one for one in found.memory if one.figure == figure)
    return one


def test_memory_of_a_gpu_is_counted() -> None:
    base = replace(make_report(), memory=memory_of("cuda", 64 << 20))
    here = replace(make_report(), memory=memory_of("cuda", 62 << 20, kept=3 << 20))
    found = compare(base, here)
    peak, kept = sized(found, "memory.peak_bytes"), sized(found, "memory.across_border_bytes")
    assert (peak.difference, peak.noise, peak.noise_from, peak.verdict) == (
        -(2 << 20),
        None,
        "counted",
        "changed",
    )
    assert (kept.difference, kept.verdict) == (-(1 << 20), "changed")
    told = [said for said in found.summary if "stays alive" in said]
    kept_told = "1.00 MiB less stays alive from forward to backward (4.00 MiB → 3.00 MiB: "
    peak_told = "1.00 MiB less of activations); memory peaks 2.00 MiB lower (64.0 MiB → 62.0 MiB)."
    assert told == [kept_told + peak_told]
    tiny = replace(make_report(), memory=memory_of("cuda", (64 << 20) + 1024))
    assert sized(compare(base, tiny), "memory.peak_bytes").verdict == "within-noise"


def test_the_peak_of_a_cpu_trace_is_no_sign_of_a_change() -> None:
    base = replace(make_report(device="cpu"), memory=memory_of("cpu", 24 << 20, unseen=2 << 20))
    same = replace(make_report(device="cpu"), memory=memory_of("cpu", 22 << 20))
    assert sized(compare(base, same), "memory.peak_bytes").verdict == "equal"  # without what was free
    here = replace(make_report(device="cpu"), memory=memory_of("cpu", 20 << 20))
    found = compare(base, here)
    assert sized(found, "memory.peak_bytes").verdict == "noise-unknown"
    assert found.is_different is False


def test_memory_that_one_run_did_not_record_is_not_compared() -> None:
    found = compare(make_report(), replace(make_report(), memory=memory_of("cuda", 64 << 20)))
    peak = sized(found, "memory.peak_bytes")
    assert (peak.base, peak.difference, peak.verdict) == (None, None, "unknown")
    assert any("no record of memory" in note for note in found.notes)


def test_computation_that_takes_longer_is_told_of_gpus_with_its_gemms(tmp_path: Path) -> None:
    base = drawn_report(tmp_path / "a", [Drawn(collectives=((400, 50, 1024, "tp"),))] * 2)
    here = drawn_report(tmp_path / "b", [Drawn(collectives=((400, 50, 1024, "tp"),), slower=200)] * 2)
    found = compare(base, here)
    compute = total(found, "compute_ns")
    assert (compute.difference, compute.verdict) == (200 * US, "changed")
    assert any(
        said.startswith("Computation rose 200.0 µs per step (100.0 µs → 300.0 µs)") for said in found.summary
    )
    assert any(said.startswith("Idle time fell 200.0 µs") for said in found.summary)
