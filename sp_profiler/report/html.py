"""The report as one HTML file, and several runs side by side on one page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from sp_profiler.ledger import LedgerEntry
from sp_profiler.report import context_compare, figures, memory_compare, quality, rank_figures, view
from sp_profiler.report.answers import family_answer
from sp_profiler.report.backward import common_layer, layer_backward
from sp_profiler.report.compare_table import compare_table, ordered, run_label
from sp_profiler.report.context_html import context_comparison, context_part
from sp_profiler.report.evidence import readable
from sp_profiler.report.format import counted, rank_list
from sp_profiler.report.memory_html import memory_comparison, memory_part
from sp_profiler.report.model import Report
from sp_profiler.report.page import render_page
from sp_profiler.report.page_parts import QUIET, ZOOMABLE, for_page, plot
from sp_profiler.report.why import cause_rows

_EMBEDDED = ("tool", "run", "window", "totals", "coverage", "summary", "findings", "data_quality")
"""What of the report the page carries exactly; its tables hold the rest, as far as they go."""


def render(report: Report) -> str:
    """The page of one run. Works offline; nothing in it comes from anywhere else."""
    plots: dict[str, Any] = {}
    if report.ranks:
        plots["step-time"] = plot(figures.step_time(report), QUIET)
    if report.totals.comm_ns:
        plots["hidden-under"] = plot(figures.hidden_under(report), QUIET)
        plots["collectives"] = plot(figures.collectives(report), QUIET)
    spread = rank_figures.rank_spread(report)
    if spread is not None:
        plots["rank-spread"] = plot(spread, QUIET)
    if report.timeline is not None:
        plots["timeline"] = plot(figures.timeline(report.timeline), ZOOMABLE)
    tables = view.tables(report)
    memory, context = memory_part(report.memory), context_part(report)
    data = {
        "report": {name: getattr(report, name) for name in _EMBEDDED},
        "plots": plots | context.plots | memory.plots,
        "tables": [for_page(table) for table in (*tables, *context.tables, *memory.tables)],
    }
    return render_page(
        "report.html.j2",
        data,
        report=report,
        title=report.run.name,
        chips=chips(report),
        cards=view.cards(report),
        causes=cause_rows(report),
        more=view.more_figures(report),
        per=view.per_text(report),
        tables=tables,
        plots=plots,
        memory=memory,
        context=context,
        caption=figures.caption(report.timeline) if report.timeline else "",
        quality=_quality(report),
        settings=settings(report),
        spread=rank_figures.caption(report),
        evidence=lambda finding: readable("", finding.evidence),
        left_out=[(rank, entry) for rank in report.ranks for entry in rank.left_out],
        bars_left_out=figures.bars_left_out(report),
        kinds_cut=max(len(figures.by_kind(report)) - figures.MOST_BARS, 0),
    )


def render_comparison(
    reports: Sequence[Report], title: str, links: Sequence[str | None] | None = None
) -> str:
    """Several runs on one page: the table, and of each family one layer's backward on one time scale.

    Runs of one mode (tp, sp, ...) are drawn one above the other. `links` are relative URLs of the runs'
    own pages, by default `<run name>/report.html`.
    """
    given = [_link(r.run.name) for r in reports] if links is None else list(links)
    link_of = {id(report): link for report, link in zip(reports, given, strict=True)}
    reports = ordered(reports)
    pairs, plots = [], {}
    for number, (mode, family) in enumerate(_families(reports).items()):
        names = [run_label(report) for report in family]
        figure = layer_backward(family, names)
        if figure is None:
            continue
        key = f"backward-{number}"
        plots[key] = plot(figure, ZOOMABLE)
        drawn = [r.timeline for r in family if r.timeline is not None]
        told = figures.reading([s for t in drawn for s in t.segments])
        pairs.append(
            {
                "key": key,
                "mode": mode,
                "names": names,
                "layer": common_layer(family),
                "caption": "; ".join(["one layer's backward on one time scale", *told]),
            }
        )
    memory, context = memory_comparison(reports), context_comparison(reports)
    return render_page(
        "comparison.html.j2",
        {
            "plots": plots | context.plots | memory.plots,
            "tables": [for_page(table) for table in (*context.tables, *memory.tables)],
        },
        title=title,
        table=compare_table(reports),
        answers=[
            *(text for family in _families(reports).values() for text in family_answer(family)),
            *context_compare.answers(reports),
            *memory_compare.answers(reports),
        ],
        memory=memory,
        context=context,
        runs=list(
            zip(reports, [run_label(r) for r in reports], [link_of[id(r)] for r in reports], strict=True)
        ),
        pairs=pairs,
        plots=plots,
        cpu=bool(reports) and all(r.run.device_type == "cpu" for r in reports),
    )


def _link(name: str) -> str:
    """A relative link whatever the run is called: the name can be no scheme and leaves no folder."""
    return f"./{quote(os.fsencode(name), safe='')}/report.html"


def _families(reports: Sequence[Report]) -> dict[str, list[Report]]:
    out: dict[str, list[Report]] = {}
    for report in reports:
        out.setdefault(str((report.run.workload or {}).get("mode") or "runs"), []).append(report)
    return out


def _quality(report: Report) -> dict[str, list[LedgerEntry]]:
    """Entries of the ledger as screens show them: what changed something, and notes."""
    entries = quality.shown(report.data_quality)
    notes = [entry for entry in entries if entry.severity == "note"]
    return {"told": [entry for entry in entries if entry.severity != "note"], "notes": notes}


_SETTINGS = {
    "mode": "Mode", "ranks": "Ranks", "comm": "Communication", "save": "Saved activations",
    "projections": "Projections", "norm": "Norm", "layers": "Layers", "seq_len": "Sequence length",
    "hidden": "Hidden size", "heads": "Heads", "kv_heads": "KV heads", "ffn": "FFN size",
    "vocab": "Vocabulary", "micro_batch": "Micro-batch", "num_microbatches": "Micro-batches",
    "dtype": "Type", "warmup": "Warm-up steps", "active_steps": "Recorded steps",
    "learning_rate": "Learning rate", "bucket_mib": "Bucket, MiB", "seed": "Seed",
    "layout": "Layout of the sequence", "causal": "Causal mask", "ulysses": "Ulysses ranks",
    "inside": "Model divided by", "attention_only": "Attention only",
    "tp": "Tensor-parallel ranks", "dp": "Data-parallel ranks", "cp": "Parts of the sequence",
    "set_by_tool": "Set by sp-profile", "environment": "Environment variables",
}  # fmt: skip


def settings(report: Report) -> dict[str, list[tuple[str, Any]]]:
    """What is known of the run: single values (`facts`), and longer ones that unfold (`more`)."""
    workload = report.run.workload or {}
    facts = [(_named(key), item) for key, item in workload.items() if isinstance(item, str | int | float)]
    more = []
    for key, item in report.environment.items():
        if item is None or item in ({}, [], ""):
            continue
        if isinstance(item, str | int | float):
            facts.append((_named(key), item))
        elif isinstance(item, dict):
            known = [f"{name}: {part}" for name, part in item.items() if part is not None]
            more += [(_named(key), known)] if known else []
        else:
            more.append((_named(key), [str(part) for part in item]))
    return {"facts": facts, "more": more}


def _named(key: str) -> str:
    return _SETTINGS.get(key) or key.replace("_", " ").capitalize()


def chips(report: Report) -> list[str]:
    """Short facts beside the title."""
    run, workload = report.run, report.run.workload or {}
    present = len(set(run.ranks))
    chips = [f"{present} of {run.world_size} ranks" if run.ranks_missing else counted(present, "rank")]
    chips += [str(run.backend)] if run.backend else []
    chips += ["CPU"] if run.device_type == "cpu" else []
    named = [workload.get(key) for key in ("mode", "layout", "save", "comm")]
    chips += [" · ".join(str(part) for part in named if part)] if any(named) else []
    if report.window.steps:
        chips.append(f"{counted(len(report.window.steps), 'step')} ({rank_list(list(report.window.steps))})")
    else:
        chips.append("whole trace")
    return chips
