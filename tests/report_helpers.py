"""A realistic report made by arithmetic alone: a drawn schedule, and its figures counted from it.

Nothing here uses the analyses, so the outputs can be tested without them. The schedule of a step:
per layer a forward GEMM and an exposed all-reduce, then backwards per layer the dgrad GEMM, the
all-reduce of the gradient, and the wgrad GEMM (`sync`: after it; `async`: under it), the optimizer.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from sp_profiler.analysis.results import (
    CollectiveFigures,
    Figures,
    GemmFigures,
    GroupFigures,
    Hiding,
    LeftOut,
    Partner,
    RankFigures,
    Segment,
    StepFigures,
)
from sp_profiler.ledger import LedgerEntry
from sp_profiler.report.model import Coverage, Finding, Report, Run, Timeline, Tool, Window

US = 1_000
MS = 1_000_000
T0 = 1_778_655_624_745_710_730
ROLES = ("fwd", "recompute", "dgrad", "wgrad", "attention", "optimizer", "other", "unknown")
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>window.pwned = 1</script>",
    "<!--<script>",
    "`rm -rf`|a|b",
    "\x1b[31mred\x1b[0m\x9b2J",
    "[red]not red[/red]",
    "two\nlines\r\n# heading",
    "\u202egnp.exe\u2066",
    "\u2028line separator",
    '=HYPERLINK("http://x","y")',
    "{{ 7*7 }}{% raw %}",
    "javascript:alert(1)",
)


@dataclass(frozen=True)
class Act:
    """One drawn activity; times are ns since T0."""

    kind: str  # communication | computation | memory
    role: str
    phase: str
    layer: int | None
    start: int
    end: int
    module: str | None = None
    name: str = "kernel"
    purpose: str | None = None
    partner: tuple[int, int] | None = None  # the wgrad it should hide under


def draw_step(begin: int, comm: str, layers: int, slower: int, name: str | None = None) -> list[Act]:
    acts: list[Act] = []
    now = begin

    def add(length: int, kind: str, role: str, phase: str, layer: int | None, what: str, **more: Any) -> Act:
        module = None if layer is None else f"layers.{layer}.{what}"
        shown = name or {"communication": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"}.get(
            kind, f"{role}_gemm"
        )
        act = Act(kind, role, phase, layer, now, now + length, module, shown, **more)
        acts.append(act)
        return act

    for layer in range(layers):
        now = add(2 * MS + slower, "computation", "fwd", "forward", layer, "mlp.down").end
        now = add(1 * MS, "communication", "unknown", "forward", layer, "mlp.down", purpose="activation").end
    now = add(100 * US, "memory", "unknown", "forward", None, "").end
    for layer in reversed(range(layers)):
        now = add(1 * MS, "computation", "attention", "backward", layer, "attention").end
        now = add(2 * MS, "computation", "dgrad", "backward", layer, "mlp.up").end
        wgrad_begin = now if comm == "async" else now + 3 * MS
        wgrad = (wgrad_begin, wgrad_begin + 2 * MS - slower)
        add(3 * MS, "communication", "unknown", "backward", layer, "mlp.up", purpose="dgrad", partner=wgrad)
        now = wgrad_begin
        add(wgrad[1] - wgrad[0], "computation", "wgrad", "backward", layer, "mlp.up")
        now = max(wgrad[1], acts[-2].end)
    add(1500 * US, "computation", "optimizer", "optimizer", None, "")
    return acts


def union(pieces: list[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for start, end in sorted(pieces):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        elif end > start:
            out.append((start, end))
    return out


def length(pieces: list[tuple[int, int]]) -> int:
    return sum(end - start for start, end in union(pieces))


def common(one: list[tuple[int, int]], two: list[tuple[int, int]]) -> list[tuple[int, int]]:
    pairs = [(max(a, c), min(b, d)) for a, b in union(one) for c, d in union(two)]
    return [(start, end) for start, end in pairs if start < end]


def minus(one: list[tuple[int, int]], two: list[tuple[int, int]]) -> list[tuple[int, int]]:
    out = union(one)
    for c, d in union(two):
        out = [p for a, b in out for p in ((a, min(b, c)), (max(a, d), b)) if p[0] < p[1]]
    return out


def _of(acts: list[Act], kind: str, role: str | None = None) -> list[tuple[int, int]]:
    return [(a.start, a.end) for a in acts if a.kind == kind and role in (None, a.role)]


def _ratio(part: int | None, whole: int | None) -> float | None:
    return part / whole if whole and part is not None else None


def _hiding(acts: list[Act], computation: list[tuple[int, int]]) -> Hiding:
    known = [a for a in acts if a.partner is not None]
    if not known:
        return Hiding()
    hidden = sum(length(common([(a.start, a.end)], [a.partner])) for a in known if a.partner)
    hideable = sum(min(a.end - a.start, a.partner[1] - a.partner[0]) for a in known if a.partner)
    return Hiding(hidden, hideable, _ratio(hidden, hideable))


def _shares(acts: list[Act], key: Any, computation: list[tuple[int, int]]) -> dict[str, int]:
    """Exposed time by key; the drawn collectives never run two at a time, so shares are whole."""
    out: dict[str, int] = {}
    for act in acts:
        if act.kind == "communication":
            name = str(key(act))
            out[name] = out.get(name, 0) + length(minus([(act.start, act.end)], computation))
    return out


def figures(acts: list[Act], window_ns: int) -> dict[str, Any]:
    comm, comp, mem = _of(acts, "communication"), _of(acts, "computation"), _of(acts, "memory")
    dgrad = [(a.start, a.end) for a in acts if a.purpose == "dgrad"]
    overlapped, exposed = length(common(comm, comp)), length(minus(comm, comp))
    by_role = {role: length(common(comm, _of(acts, "computation", role))) for role in ROLES}
    hiding = _hiding(acts, comp)
    busy = length(comm + comp + mem)
    wgrad_overlapped = length(common(dgrad, _of(acts, "computation", "wgrad")))
    gain = min(exposed, (hiding.partner_hideable_ns or 0) - (hiding.partner_hidden_ns or 0))
    return {
        "window_ns": window_ns,
        "comm_ns": length(comm),
        "compute_ns": length(comp),
        "memory_op_ns": length(mem),
        "memory_op_only_ns": length(minus(mem, comm + comp)),
        "busy_ns": busy,
        "idle_ns": window_ns - busy,
        "overlapped_ns": overlapped,
        "exposed_ns": exposed,
        "overlap_ratio": _ratio(overlapped, length(comm)),
        "overlapped_by_role_ns": by_role,
        "exposed_by_group_ns": _shares(acts, lambda a: "tp[0,1]", comp),
        "exposed_by_op_ns": _shares(acts, lambda a: "all_reduce", comp),
        "exposed_by_purpose_ns": _shares(acts, lambda a: a.purpose, comp),
        "exposed_by_phase_ns": _shares(acts, lambda a: a.phase, comp),
        "exposed_by_module_ns": _shares(acts, lambda a: a.module, comp),
        "exposed_by_layer_ns": _shares(acts, lambda a: a.layer, comp),
        "exposed_by_cause_ns": None,
        "exposed_union_by_group_ns": _shares(acts, lambda a: "tp[0,1]", comp),
        "dgrad_comm_ns": length(dgrad),
        "wgrad_overlapped_ns": wgrad_overlapped,
        "wgrad_overlap_ratio": _ratio(wgrad_overlapped, length(dgrad)),
        "partner_hidden_ns": hiding.partner_hidden_ns,
        "partner_hideable_ns": hiding.partner_hideable_ns,
        "hidden_of_hideable": hiding.hidden_of_hideable,
        "partner_unknown": sum(a.kind == "communication" and a.partner is None for a in acts),
        "hiding_by_purpose": {
            purpose: _hiding([a for a in acts if a.purpose == purpose], comp)
            for purpose in dict.fromkeys(a.purpose for a in acts if a.purpose)
        },
        "step_ns_if_all_hidden": window_ns - gain,
        "fused_ns": 0,
        "host_bound_ns": 0,
        "slowdown_ns": None,
        "net_gain_ns": None,
    }


def add_figures(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The sum of figures: maps key by key, ratios anew from the sums."""
    out: dict[str, Any] = {}
    for field in fields(Figures):
        values = [part[field.name] for part in parts]
        if field.name == "hiding_by_purpose":
            out[field.name] = {p: _add_hiding([v[p] for v in values]) for p in values[0]}
        elif isinstance(values[0], dict):
            out[field.name] = {k: sum(v.get(k, 0) for v in values) for k in values[0]}
        elif values[0] is None:
            out[field.name] = None
        else:
            out[field.name] = None if None in values else sum(values)
    out["overlap_ratio"] = _ratio(out["overlapped_ns"], out["comm_ns"])
    out["wgrad_overlap_ratio"] = _ratio(out["wgrad_overlapped_ns"], out["dgrad_comm_ns"])
    out["hidden_of_hideable"] = _ratio(out["partner_hidden_ns"], out["partner_hideable_ns"])
    return out


def _add_hiding(parts: list[Hiding]) -> Hiding:
    if any(part.partner_hideable_ns is None for part in parts):
        return Hiding()
    hidden = sum(part.partner_hidden_ns or 0 for part in parts)
    hideable = sum(part.partner_hideable_ns or 0 for part in parts)
    return Hiding(hidden, hideable, _ratio(hidden, hideable))


def _collectives(
    acts: list[Act], rank: int, step: int, first_id: int, is_async: bool
) -> list[CollectiveFigures]:
    comp = _of(acts, "computation")
    out = []
    for act in (a for a in acts if a.kind == "communication"):
        span = [(act.start, act.end)]
        partner = act.partner
        out.append(
            CollectiveFigures(
                id=first_id + len(out),
                rank=rank,
                device=0,
                stream=7 if not is_async else 20,
                step=step,
                op="all_reduce",
                group="tp[0,1]",
                ranks=[0, 1],
                bytes=6 * 1024 * 1024,
                dtype="bfloat16",
                seq=first_id + len(out),
                is_async=is_async and act.purpose == "dgrad",
                purpose=act.purpose or "unknown",
                purpose_rule="annotation",
                phase=act.phase,
                module=act.module,
                layer=act.layer,
                launch_ns=T0 + act.start - 20 * US,
                start_ns=T0 + act.start,
                dur_ns=act.end - act.start,
                overlapped_ns=length(common(span, comp)),
                exposed_ns=length(minus(span, comp)),
                exposed_share_ns=length(minus(span, comp)),
                partner=Partner("wgrad", act.module, "annotation", partner[1] - partner[0], 1)
                if partner
                else None,
                hidden_ns=length(common(span, [partner])) if partner else None,
                hideable_ns=min(act.end - act.start, partner[1] - partner[0]) if partner else None,
                kernel=act.name,
            )
        )
    return out


def _timeline(acts: list[Act], rank: int, step: int, begin: int, end: int) -> Timeline:
    lanes = {"communication": "stream 20 · communication", "computation": "stream 7", "memory": "stream 7"}
    segments = [
        Segment(lanes[a.kind], a.name, T0 + a.start, T0 + a.end, a.kind, a.role, a.phase, a.module, a.layer)
        for a in sorted(acts, key=lambda a: a.start)
    ]
    exposed = minus(_of(acts, "communication"), _of(acts, "computation"))
    return Timeline(rank, 0, step, T0 + begin, T0 + end, segments, [[T0 + a, T0 + b] for a, b in exposed])


def make_report(
    *,
    comm: str = "async",
    mode: str = "tp",
    save: str | None = None,
    device: str = "cuda",
    ranks: int = 2,
    steps: int = 3,
    layers: int = 2,
    name: str | None = None,
    environment: dict[str, Any] | None = None,
    findings: list[Finding] | None = None,
    summary: list[str] | None = None,
) -> Report:
    """A report whose every figure follows from the drawn schedule; `name` names all kernels and the run."""
    rank_figures: list[RankFigures] = []
    step_figures: list[StepFigures] = []
    collectives: list[CollectiveFigures] = []
    timeline = None
    for rank in range(ranks):
        begin, parts = 0, []
        for step in range(steps):
            acts = draw_step(begin, comm, layers, rank * 50 * US, name)
            end = max(a.end for a in acts) + 40 * US
            parts.append(figures(acts, end - begin))
            step_figures.append(
                StepFigures(**parts[-1], rank=rank, device=0, step=step, start_ns=T0 + begin, end_ns=T0 + end)
            )
            collectives += _collectives(acts, rank, step, len(collectives), comm == "async")
            if rank == 0:
                timeline = _timeline(acts, rank, step, begin, end)
            begin = end
        rank_figures.append(
            RankFigures(
                **add_figures(parts),
                rank=rank,
                device_type=device,
                file=f"rank-{rank:05d}.pt.trace.json.gz",
                left_out=[LeftOut("before-first-window", "computation", 4, 300 * US)],
            )
        )
    totals = add_figures([{f.name: getattr(r, f.name) for f in fields(Figures)} for r in rank_figures])
    totals["step_ns_if_all_hidden"] = max(r.step_ns_if_all_hidden or 0 for r in rank_figures)
    label = name or "-".join(filter(None, (mode, save, comm)))
    return Report(
        tool=Tool("sp-profiler", "0.1.0"),
        environment=environment
        if environment is not None
        else {"variables": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, "versions": {"torch": "2.13.0"}},
        run=Run(
            name=label,
            path=f"runs/{label}",
            world_size=ranks,
            ranks=list(range(ranks)),
            ranks_missing=[],
            backend="gloo" if device == "cpu" else "nccl",
            workload={"mode": mode, "comm": comm, "save": save, "layers": layers, "hidden": 256, "tp": ranks},
            device_type=device,
        ),
        window=Window("step", list(range(steps))),
        totals=Figures(**totals),
        ranks=rank_figures,
        steps=step_figures,
        collectives=collectives,
        groups=[_group(collectives, ranks)],
        gemms=_gemms(steps * ranks * layers, name),
        coverage=Coverage(1.0, 1.0, 1.0),
        summary=["wgrad hides 43 % of the dgrad all-reduce."] if summary is None else summary,
        findings=findings or [],
        data_quality=[
            LedgerEntry("clipped", "note", "12 kernels cross a window.", "rank-00000.json", 12, 4096)
        ],
        timeline=timeline,
    )


def _group(collectives: list[CollectiveFigures], ranks: int) -> GroupFigures:
    return GroupFigures(
        group="tp[0,1]",
        ranks=list(range(ranks)),
        size=ranks,
        backend="nccl",
        collectives=len(collectives),
        bytes=sum(c.bytes or 0 for c in collectives),
        comm_ns=sum(c.dur_ns for c in collectives),
        overlapped_ns=sum(c.overlapped_ns for c in collectives),
        exposed_share_ns=sum(c.exposed_share_ns for c in collectives),
    )


def _gemms(count: int, name: str | None) -> list[GemmFigures]:
    def one(role: str) -> GemmFigures:
        shape = "[512,256]x[256,512]"
        return GemmFigures(name or "aten::mm", shape, "bfloat16", role, count, count * 2 * MS, 134.2)

    return [one("fwd"), one("dgrad"), replace(one("wgrad"), tflops=None)]
