"""What every output shows of a plan: sentences and tables, from the same fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sp_profiler.planning.model import Difference, Plan, Scheme, is_usual
from sp_profiler.report.format import counted, duration, listed, percent, size
from sp_profiler.report.planned.shown import Shown
from sp_profiler.report.view_ranks import Listing

_VARIED = (("layers", "Layers"), ("seq_len", "Tokens"), ("micro_batch", "Batch"), ("tp", "T"))
"""Sizes that stand in the tables where a plan has several of them."""

Column = tuple[str, str, str]


def shown(plan: Plan) -> Shown:
    """Everything that is shown of a plan but its charts."""
    machine = plan.machine
    return Shown(
        title="Plan of parallel schemes",
        chips=[counted(len(plan.schemes), "scheme"), *([] if machine is None else [machine.name])],
        settings=settings(plan),
        sentences=sentences(plan),
        listings=listings(plan),
        assumptions=plan.assumptions,
        machine=_machine(plan),
        sources=[] if machine is None else machine.sources,
        data_quality=plan.data_quality,
        tool=f"{plan.tool.name} {plan.tool.version}, torch {plan.tool.torch}",
    )


def _machine(plan: Plan) -> str | None:
    one = plan.machine
    if one is None:
        return None
    memory = "" if one.memory_gb_per_s is None else f", memory {one.memory_gb_per_s:g} GB/s"
    return (
        f"{one.name}: {one.tflops:g} TFLOP/s × {one.efficiency:g}, {one.bandwidth_gb_per_s:g} GB/s, "
        f"{one.launch_latency_us:g} µs a collective and {one.step_latency_us:g} µs a step{memory}"
    )


def settings(plan: Plan) -> str:
    """The sizes that all schemes share, in one line."""
    names = {  # of one, of several
        "ranks": ("rank", "ranks"), "layers": ("layer", "layers"), "seq_len": ("token", "tokens"),
        "hidden": ("hidden", "hidden"), "heads": ("head", "heads"), "kv_heads": ("KV head", "KV heads"),
        "ffn": ("FFN", "FFN"), "vocab": ("vocabulary", "vocabulary"),
        "micro_batch": ("sequence a micro-batch", "sequences a micro-batch"),
    }  # fmt: skip
    shared = {name: getattr(plan.schemes[0], name) for name in names if not _varies(plan, name)}
    parts = [f"{count} {names[name][count != 1]}" for name, count in shared.items()]
    if plan.schemes[0].num_microbatches > 1:
        parts.append(f"{plan.schemes[0].num_microbatches} micro-batches a step")
    return ", ".join([*parts, plan.schemes[0].dtype])


def _varies(plan: Plan, name: str) -> bool:
    return len({getattr(scheme, name) for scheme in plan.schemes}) > 1


def largest(plan: Plan) -> list[Scheme]:
    """The schemes of the largest size: most ranks, then most layers, then most tokens."""

    def place(scheme: Scheme) -> tuple[int, ...]:
        return scheme.ranks, scheme.layers, scheme.seq_len * scheme.micro_batch

    most = max(map(place, plan.schemes))
    return [scheme for scheme in plan.schemes if place(scheme) == most]


def sentences(plan: Plan) -> list[str]:
    """What a person wants to know first, of the largest size planned."""
    schemes = largest(plan)
    with_size = f"With {counted(schemes[0].layers, 'layer')}"
    named = [scheme for scheme in schemes if is_usual(scheme)] or schemes  # of equals the one with a name
    least = min(named, key=lambda scheme: scheme.saved_bytes)
    most = max(named, key=lambda scheme: scheme.saved_bytes)
    if len(schemes) == 1 or least.saved_bytes == most.saved_bytes:
        first = f"{with_size} {least.label} keeps {size(least.saved_bytes)} a rank for backward."
    else:
        first = (
            f"{with_size} {least.label} keeps least for backward, {size(least.saved_bytes)} a rank; "
            f"{most.label} keeps most, {size(most.saved_bytes)}."
        )
    return [first, *_of_differences(plan, schemes), *_of_times(schemes), _of_theory(plan)]


def _of_differences(plan: Plan, schemes: Sequence[Scheme]) -> list[str]:
    """Only between modes, and where memory differs; the tables have all."""
    told: dict[str, bool] = {}  # the sentence; whether both schemes are usual ones
    for one in plan.differences:
        first, second = plan.schemes[one.first], plan.schemes[one.second]
        changes_scheme = (first.mode, first.save) != (second.mode, second.save)
        are_usual = is_usual(first) and is_usual(second)
        if first in schemes and changes_scheme and one.saved_bytes:
            told.setdefault(_difference(one, first, second), are_usual)
    return sorted(told, key=lambda text: not told[text])[:3]


def _difference(one: Difference, first: Scheme, second: Scheme) -> str:
    less = "less" if one.saved_bytes > 0 else "more"
    sent = second.comm_bytes_per_step - first.comm_bytes_per_step
    if sent == 0 or first.comm_bytes_per_step == 0:
        beside = f"sends {'the same' if sent == 0 else size(second.comm_bytes_per_step)}"
    else:
        share = percent(abs(sent) / first.comm_bytes_per_step)
        beside = f"sends {share} {'more' if sent > 0 else 'less'}"
    return (
        f"{second.label} keeps {size(abs(one.saved_bytes))} {less} than {first.label} and {beside} "
        f"({size(second.comm_bytes_per_step)} a step)."
    )


def _of_times(schemes: Sequence[Scheme]) -> list[str]:
    timed = [(scheme, scheme.time) for scheme in schemes if scheme.time is not None]
    if not timed:
        return []
    scheme, time = min(timed, key=lambda pair: pair[1].step_ns)
    told = [
        f"The shortest step is that of {scheme.label}: about {duration(time.step_ns)}, of which "
        f"{duration(time.exposed_ns)} is exposed communication."
    ]
    for scheme, time in timed:
        if time.hidden_ns:
            hidden, comm = duration(time.hidden_ns), duration(time.comm_ns)
            told.append(f"{scheme.label} hides {hidden} of {comm} of communication.")
    return told


_CHECKED = {
    "saved_bytes": "keeps",
    "parameter_bytes": "holds of parameters",
    "gradient_bytes": "of gradients",
    "optimizer_bytes": "of optimizer state",
    "comm_bytes_per_step": "sends",
}


def _of_theory(plan: Plan) -> str:
    """Whether the closed form says of every scheme what its execution does."""
    differing = {
        name: [s for s in plan.schemes if getattr(s, name) != getattr(s.theory, name)] for name in _CHECKED
    }
    wrong = [(_CHECKED[name], schemes) for name, schemes in differing.items() if schemes]
    if not wrong:
        count = len(plan.schemes)
        whom = {1: "the scheme", 2: "both schemes"}.get(count, f"all {count} schemes")
        return (
            "What the executed schedule keeps, holds (parameters, gradients, optimizer state) and sends "
            f"equals the closed form to the byte for {whom}."
        )
    what, schemes = wrong[0]
    names = listed([f"{s.label} ({counted(s.layers, 'layer')})" for s in schemes[:4]])
    more = f" and {len(schemes) - 4} more" if len(schemes) > 4 else ""
    return f"What the executed schedule {what} differs from the closed form for {names}{more}."


def listings(plan: Plan) -> list[Listing]:
    """Memory, differences, time, terms, in that order; those that hold anything."""
    made = (memory(plan), differences(plan), times(plan), terms(plan))
    return [replace(one, first_dropped=()) for one in made if one.rows]


def _sizes(plan: Plan) -> tuple[list[Column], list[str]]:
    varied = [(name, text) for name, text in _VARIED if _varies(plan, name) or name == "layers"]
    return [(text, "int", "") for _, text in varied], [name for name, _ in varied]


def memory(plan: Plan) -> Listing:
    """Saved, held and sent, with the closed form beside what was executed."""
    columns, names = _sizes(plan)
    rows: list[list[Any]] = [
        [
            scheme.label,
            *(getattr(scheme, name) for name in names),
            scheme.saved_bytes,
            scheme.theory.saved_bytes,
            scheme.parameter_bytes,
            scheme.gradient_bytes,
            scheme.optimizer_bytes,
            scheme.peak_bytes_estimate,
            scheme.comm_bytes_per_step,
            scheme.theory.comm_bytes_per_step,
        ]
        for scheme in plan.schemes
    ]
    head: list[Column] = [
        ("Scheme", "text", ""),
        *columns,
        ("Saved", "mib", "MiB"),
        ("Formula", "mib", "MiB"),
        ("Parameters", "bytes", ""),
        ("Gradients", "bytes", ""),
        ("Optimizer", "bytes", ""),
        ("Peak", "bytes", "estimated"),
        ("Sent", "bytes", "a step"),
        ("Formula", "bytes", "sent"),
    ]
    return Listing("plan-memory", "Memory and communication of one rank", head, rows, "")


def differences(plan: Plan) -> Listing:
    """Pairs of schemes at equal sizes: the first less the second."""
    columns, names = _sizes(plan)
    rows: list[list[Any]] = [
        [
            one.label,
            *(getattr(plan.schemes[one.first], name) for name in names),
            one.saved_bytes,
            one.theory_saved_bytes,
            one.peak_bytes_estimate,
            one.comm_bytes_per_step,
            one.step_ns,
        ]
        for one in plan.differences
    ]
    head: list[Column] = [
        ("First − second", "text", ""),
        *columns,
        ("Saved", "mib", "MiB"),
        ("Formula", "mib", "MiB"),
        ("Peak", "mib", "MiB"),
        ("Sent", "mib", "MiB"),
        ("Step", "ms", "ms"),
    ]
    if plan.machine is None:
        head, rows = head[:-1], [row[:-1] for row in rows]
    note = "The first scheme less the second, at equal sizes."
    return Listing("plan-differences", "Differences", head, rows, note)


def times(plan: Plan) -> Listing:
    """One step on the machine: computation, and communication hidden and exposed."""
    columns, names = _sizes(plan)
    rows: list[list[Any]] = []
    for scheme in plan.schemes:
        time, theory = scheme.time, scheme.theory.time
        if time is None or theory is None:
            continue
        rows.append(
            [
                scheme.label,
                *(getattr(scheme, name) for name in names),
                time.step_ns,
                time.gemm_ns,
                time.attention_ns,
                time.memory_op_ns if plan.machine and plan.machine.memory_gb_per_s else None,
                time.comm_ns,
                time.hidden_ns,
                theory.hidden_ns,
                theory.hideable_ns,
                time.exposed_ns,
            ]
        )
    labels = (
        "Step", "GEMMs", "Attention", "Other", "Communication", "Hidden", "Formula", "Hideable", "Exposed",
    )  # fmt: skip
    head: list[Column] = [("Scheme", "text", ""), *columns, *((label, "ms", "ms") for label in labels)]
    name = "" if plan.machine is None else plan.machine.name
    return Listing("plan-times", f"Estimated step on {name}", head, rows, "Step = computation + exposed.")


def terms(plan: Plan) -> Listing:
    """Saved bytes by term, one column for each scheme of the largest size."""
    schemes = distinct(largest(plan))
    present = [t for t in schemes[0].saved_by_term if any(s.saved_by_term[t] for s in schemes)]
    rows: list[list[Any]] = [[term, *(s.saved_by_term[term] for s in schemes)] for term in present]
    head: list[Column] = [("Term", "text", ""), *((s.label, "mib", "MiB") for s in schemes)]
    title = f"Saved for backward by term, {counted(schemes[0].layers, 'layer')}"
    return Listing("plan-terms", title, head, rows, "")


def distinct(schemes: Sequence[Scheme]) -> list[Scheme]:
    """Of schemes that differ in when they communicate, which changes no memory, the one with a name; at most
    eight."""
    kept: dict[tuple[Any, ...], Scheme] = {}
    for s in schemes:
        key = (s.mode, s.save, s.projections, s.norm, s.recompute, s.seq_len, s.micro_batch)
        if key not in kept or (is_usual(s) and not is_usual(kept[key])):
            kept[key] = s
    return list(kept.values())[:8]
