"""`sp-profile plan --long-context` as a user meets it, and its page in a real browser."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from unittest import mock

import jsonschema
import polars as pl
import pytest
from browser_helpers import Page
from browser_helpers import page as page  # a fixture
from context_run_worker import run_in_forks

import sp_profiler
from sp_profiler.cli.main import main
from sp_profiler.planning.long_context.model import LongContextPlan
from sp_profiler.report.planned import html, long_context_figures, long_context_view
from sp_profiler.report.planned.json import LONG_CONTEXT_SCHEMA_PATH
from sp_profiler.theory.machine import profiles

SIZES = ("--seq-len", "131072", "--hidden", "4096", "--heads", "32", "--cp", "16")
RATES = ("--flops", "400e12", "--bandwidth", "50e9", "--latency", "10e-6")


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a plan prints."""
    assert main(["plan", "--long-context", *SIZES, *arguments]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence with which a plan is refused."""
    assert main(["plan", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err


def test_the_example_of_facts_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    out = plan(capsys, "--kv-heads", "32", *RATES)
    assert (
        "A zigzag ring of 16 ranks without TP sends 134.2 MB of K and V a hop, 2.01 GB a layer in the" in out
    )
    assert "15 hops of forward: 2.68 ms a hop, 2.69 ms with latency." in out
    assert "a whole block of 8192 tokens takes 2.75 ms, a hop 98 % of it; of causal zigzag 1.37 ms" in out
    assert "the hops are hidden without a mask, not hidden with it" in out
    steps = [out.index(f"{place}. {title}") for place, title in (
        (1, "TP + SP over 8 ranks, inside a node."),
        (2, "Selective recompute of attention, or a flash kernel."),
        (3, "Context parallelism over 16 ranks: USP 4 × 4 zigzag + TP + SP."),
    )]  # fmt: skip
    assert steps == sorted(steps)
    assert (
        "Ulysses + TP + SP: Ulysses cannot divide the 4 heads, which TP over 8 leaves a rank, among 16" in out
    )
    assert "Assumed: A layer's saved bytes are those of Korthikanti" in out
    assert "first 16 of" not in out, "schemes are compared line by line"


def test_with_8_key_value_heads_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    out = plan(capsys, "--kv-heads", "8", *RATES)
    assert "sends 33.6 MB of K and V a hop" in out
    assert "671.1 µs a hop" in out
    assert "the hops are hidden without a mask, hidden with it" in out


def test_without_a_mask(capsys: pytest.CaptureFixture[str]) -> None:
    out = plan(capsys, "--kv-heads", "32", "--no-causal", *RATES)
    assert "a whole block of 8192 tokens takes 2.75 ms, a hop 98 % of it: the hops are hidden." in out
    assert ", no mask," in out


def test_without_rates_no_times_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    out = plan(capsys)
    assert "Without rates there are no times: give --hardware, or --flops, --bandwidth and --latency." in out
    assert " ms" not in out
    assert "they are null" in out
    assert "bytes/s is at most 4096" in out


def test_json_on_the_screen_follows_its_schema(capsys: pytest.CaptureFixture[str]) -> None:
    plain = json.loads(plan(capsys, "--json", *RATES, "--tp", "8", "--layers", "80", "--micro-batch", "2"))
    jsonschema.validate(plain, json.loads(LONG_CONTEXT_SCHEMA_PATH.read_text()))
    sizes = plain["sizes"]
    assert (sizes["tp"], sizes["is_tp_given"], sizes["layers"], sizes["micro_batch"]) == (8, True, 80, 2)
    assert sizes["kv_heads"] == 32, "as many as heads, where none are given"


def test_every_format_in_a_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    formats = ("json", "html", "markdown", "csv", "parquet")
    out = plan(capsys, *RATES, "--format", *formats, "-o", f"{tmp_path}/plan/")
    assert out.endswith(f"written: {tmp_path}/plan/\n")
    folder = tmp_path / "plan"
    tables = {f"{t}.{end}" for t in ("schemes", "transfers", "recommendation") for end in ("csv", "parquet")}
    assert {path.name for path in folder.iterdir()} == {"plan.json", "plan.html", "plan.md"} | tables
    plain = json.loads((folder / "plan.json").read_text())
    rows = list(csv.DictReader(io.StringIO((folder / "schemes.csv").read_text())))
    assert [row["label"] for row in rows] == [scheme["label"] for scheme in plain["schemes"]]
    for row, scheme in zip(rows, plain["schemes"], strict=True):
        ring = scheme["ring"]
        assert row["ring.hop_bytes"] == ("" if ring is None else str(ring["hop_bytes"]))
        assert row["saved_bytes"] == ("" if scheme["failures"] else str(scheme["saved_bytes"]))
        assert bool(row["failures"]) == bool(scheme["failures"])
    read = pl.read_parquet(folder / "transfers.parquet")
    assert read.height == sum(len(scheme["transfers"] or ()) for scheme in plain["schemes"])
    page = (folder / "plan.html").read_text()
    for name in ("context-saved", "context-hops", "context-layer", "context-lengths"):
        assert f'id="plot-{name}"' in page
    for name in ("memory", "wire", "ring-steps", "smallest", "times", "constraints", "transfers"):
        assert f'id="table-context-{name}"' in page
    text = (folder / "plan.md").read_text()
    assert "## Recommendation\n\n1. **TP + SP over 8 ranks, inside a node.**" in text
    assert "| USP 8 × 2 zigzag + TP + SP | Ulysses cannot divide the 4 heads, which TP over 8" in text
    assert "## Assumptions" in text


def test_one_file_is_not_overwritten(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "p.md"
    plan(capsys, *RATES, "--format", "markdown", "-o", str(file))
    said = refused(capsys, "--long-context", *SIZES, *RATES, "--format", "markdown", "-o", str(file))
    assert "exists already" in said


@pytest.mark.parametrize("name", [one.name for one in profiles()])
def test_every_profile_plans(capsys: pytest.CaptureFixture[str], name: str) -> None:
    out = plan(capsys, "--hardware", name, "--kv-heads", "8")
    assert f"Estimated time of one layer on {name}" in out
    assert "Sources: peak: " in out
    assert "sheet" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--long-context", *SIZES, "--cp", "1"],
            "--cp is 1: context parallelism divides the sequence among",
        ),
        (
            ["--long-context", *SIZES, "--seq-len", "0"],
            "--seq-len is 0, expected a whole number of at least 1",
        ),
        (["--long-context", *SIZES, "--cp", "0"], "--cp is 0, expected a whole number of at least 1"),
        (["--long-context", *SIZES, "--heads", "0"], "--heads is 0, expected a whole number of at least 1"),
        (["--long-context", *SIZES, "--latency", "-1"], "--latency is -1, expected a number of at least 0"),
        (["--intra-latency", "0"], "--intra-latency is for plans of long context: add --long-context"),
        (["--ranks-per-node", "0"], "--ranks-per-node is for plans of long context: add --long-context"),
        (["--long-context", *SIZES, "--memory-bandwidth", "0"], "--memory-bandwidth is not for"),
        (["--long-context", "--hidden", "64"], "--long-context needs --seq-len, --heads, --cp"),
        (["--long-context", *SIZES, "--modes", "tp"], "--modes is not for --long-context"),
        (
            ["--long-context", *SIZES, "--vocab", "5", "--no-extrapolate"],
            "--vocab, --no-extrapolate are not for --long-context",
        ),
        (
            ["--long-context", *SIZES, "--memory-bandwidth", "1e12"],
            "--memory-bandwidth is not for --long-context",
        ),
        (["--long-context", *SIZES, "--layers", "2", "4"], "--layers takes one value, not 2"),
        (["--cp", "16"], "--cp is for plans of long context: add --long-context"),
        (
            ["--no-causal", "--intra-bandwidth", "4e11"],
            "--no-causal, --intra-bandwidth are for plans of long",
        ),
        (["--ulysses", "2"], "--ulysses is for plans of long context: add --long-context"),
        (
            ["--long-context", *SIZES, "--hardware", "h100-tin"],
            "unknown hardware 'h100-tin', expected one of a100-",
        ),
        (["--long-context", *SIZES, "--flops", "4e14"], "--bandwidth, --latency are missing"),
        (["--long-context", *SIZES, "--ulysses", "5"], "--ulysses 5 cannot divide --cp 16 into rings"),
        (["--long-context", *SIZES, "--format", "csv"], "--format csv needs -o OUT"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert said in refused(capsys, *arguments)


def test_one_head_is_one_head(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--seq-len", "2048", "--hidden", "64", "--heads", "1", "--cp", "2", "--ranks-per-node", "1"]
    assert main(["plan", "--long-context", *asked]) == 0
    out = capsys.readouterr().out
    assert "hidden 64, 1 head, 1 KV head, FFN 192" in out
    assert "1 rank a node" in out
    assert "divides 1 head and 1 key/value head." in out


def test_it_imports_neither_torch_nor_charts() -> None:
    code = (
        "import sys; from sp_profiler.cli.main import main\n"
        f"main(['plan', '--long-context', *{SIZES!r}])\n"
        "print('torch' in sys.modules, 'plotly' in sys.modules, 'polars' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.endswith("False False False\n")


# --- the page -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made() -> LongContextPlan:
    sizes = {"seq_len": 131072, "hidden": 4096, "heads": 32, "kv_heads": 8, "cp": 16}
    return sp_profiler.plan_long_context(**sizes, hardware="h100-ib")


@pytest.mark.browser
def test_the_page_draws_and_shows_the_recommendation(
    page: Page, made: LongContextPlan, tmp_path: Path
) -> None:
    path = tmp_path / "plan.html"
    path.write_text(html.render(made), encoding="utf-8")
    page.open(path)
    page.wait_for("document.documentElement.dataset.plots")
    assert page.run("document.documentElement.dataset.plots") == "drawn"
    assert page.problems == []
    for name in ("context-saved", "context-hops", "context-layer"):
        assert page.run(f"document.querySelectorAll('#plot-{name} .bars .point path').length") >= 10
    assert page.run("document.querySelectorAll('#plot-context-lengths .scatterlayer .trace').length") == 3
    steps = page.run(
        "[...document.querySelectorAll('[aria-labelledby=head-recommendation] li')].map(r => r.innerText)"
    )
    assert len(steps) == len(made.recommendation)
    assert steps[0].startswith("1. TP + SP over 8 ranks, inside a node.")
    rows = page.run("[...document.querySelectorAll('#table-context-wire tbody tr')].map(r => r.innerText)")
    (row,) = [row for row in rows if row.startswith("ring zigzag\t")]
    assert row.split("\t")[3] == "33.6"


def test_the_lines_cross_where_hops_begin_to_hide(made: LongContextPlan) -> None:
    figure = long_context_figures.lengths(made)
    assert figure is not None
    hop, masked, whole = figure.data
    assert list(hop.x) == list(masked.x) == list(whole.x)
    one = long_context_view.plain_ring(made)
    assert one is not None
    assert one.ring is not None
    assert one.ring.to_hide is not None
    for tokens, sent, attention in zip(hop.x, hop.y, masked.y, strict=True):
        if abs(tokens / one.ring.to_hide.seq_len - 1) > 0.01:
            assert (attention > sent) == (tokens > one.ring.to_hide.seq_len)


def test_sentences_of_a_plan_without_a_ring() -> None:
    """131064 tokens cannot be divided among 16 ranks: nothing is told of hops."""
    sizes = {"seq_len": 131064, "hidden": 4096, "heads": 32, "cp": 16}
    told = long_context_view.sentences(sp_profiler.plan_long_context(**sizes))
    assert told[0].startswith("TP + SP, selective recompute over 8 ranks keeps")
    assert told[1].startswith("ring contiguous, ring zigzag, ring striped, Ulysses and ")
    assert "cannot be built at these sizes" in told[1]


def test_the_docs_show_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The example of docs/planning.md, its command run anew."""
    text = (Path(__file__).resolve().parent.parent / "docs" / "planning.md").read_text()
    (section,) = re.findall(r"^## Long context\n(.*?)^## ", text, flags=re.MULTILINE | re.DOTALL)
    (command,) = re.findall(r"^```console\n\$ sp-profile (.*?)^```", section, flags=re.MULTILINE | re.DOTALL)
    (shown,) = re.findall(r"^```text\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)
    assert main(command.replace("\\\n", " ").split()) == 0
    printed = {line.rstrip() for line in capsys.readouterr().out.splitlines()}
    lines = shown.splitlines()
    assert len(lines) > 20
    assert [line for line in lines if line not in printed] == []


def test_the_docs_name_every_profile() -> None:
    text = (Path(__file__).resolve().parent.parent / "docs" / "planning.md").read_text()
    (named,) = re.findall(r"or a profile: `([^`]*)`", text, flags=re.DOTALL)
    assert named.split() == [one.name for one in profiles()]


# --- a real run beside its plan -------------------------------------------------------------------------

SMALL = {"seq_len": 64, "hidden": 96, "heads": 8, "kv_heads": 4, "ffn": 256, "micro_batch": 3}


@pytest.mark.gloo
def test_a_real_run_keeps_and_sends_what_its_plan_says(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Four ranks over gloo, a zigzag ring of two with TP + SP inside: saved bytes of a block, and every hop
    and collective of it, to the byte."""
    sizes = [part for name, value in SMALL.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    scheme = ("--layout", "zigzag", "--tp", "2", "--inside", "sp", "--save", "shard", "--comm", "async")
    steps = ("--layers", "2", "--warmup", "1", "--active-steps", "1", "--ranks", "4", "--backend", "gloo")
    more = ("--projections", "fused", "--vocab", "72", "--dtype", "bf16", "--out", str(tmp_path / "run"))
    with mock.patch("sp_profiler.record.workload.run_job", run_in_forks):
        assert main(["run", "ring", *scheme, *sizes, *steps, *more]) == 0
    capsys.readouterr()
    made = sp_profiler.plan_long_context(**SMALL, cp=2, tp=2)
    (planned,) = [one for one in made.schemes if one.label == "ring zigzag + TP + SP"]
    measured = json.loads((tmp_path / "run" / "run.json").read_text())["saved_tensors"]
    assert len(measured) == 4
    for rank in measured.values():
        kept = [tensor["bytes"] for tensor in rank["tensors"] if tensor["layer"] == 0]
        assert sum(kept) == planned.decoder_saved_bytes_per_layer
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    for rank in range(4):
        ran = Counter(
            (one["phase"], one["op"], one["purpose"], one["bytes"])
            for one in report["collectives"]
            if one["rank"] == rank and one["layer"] == 0 and one["phase"] in ("forward", "backward")
        )
        expected: Counter[tuple[str, str, str, int]] = Counter()
        for each in planned.transfers or ():
            expected[each.direction, each.op, each.payload, each.bytes] += each.count
        assert ran == expected
