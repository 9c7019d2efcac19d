"""What a comparison says: the step first, then what changed beyond noise, largest first, and why."""

from __future__ import annotations

from collections.abc import Sequence

from sp_profiler.comparing.groups import NO_GROUP
from sp_profiler.comparing.model import Comparison, Delta, GemmChange, KindChange
from sp_profiler.comparing.names import CAUSE_WORDS, category_name, role_name
from sp_profiler.comparing.reasons import SHARE, number, reasons, signed
from sp_profiler.report.context import SCHEME_NAMES
from sp_profiler.report.format import duration, listed, percent, short_group, size, visible
from sp_profiler.report.sentences import op_name

SAME = "No difference beyond noise."
NOT_SURE = "No difference is sure: for what differs the noise is not known."
NOT_COMPARED = "Whether they differ is not known: the times of one have no counterpart in the other."
_MOST = 12  # sentences about what changed

Said = tuple[float, str]
"""How large, in ns, what a sentence is about is; and the sentence."""


def summary(found: Comparison) -> list[str]:
    """The main sentences; that there is no difference first, where nothing differs."""
    said = changes(found)
    first = [] if said else [_without_changes(found)]
    told = [*first, _step(found), _settings(found), *said, *_findings(found)]
    return [text for text in told if text]


def changes(found: Comparison) -> list[str]:
    """What changed beyond noise, largest first; then memory and what counting says."""
    told = [text for _, text in sorted(_changes(found), key=lambda one: -one[0])]
    step = _total(found, "window_ns")
    if step.is_moved and not told:
        told = [f"The step {rose(step)} {duration(abs(step.difference or 0))} {from_to(step)}."]
    return [*told[:_MOST], *(text for text in (_memory(found), *_context(found)) if text)]


def _without_changes(found: Comparison) -> str:
    """What holds of runs of which no change is sure."""
    if found.is_different is False:
        return SAME
    return NOT_COMPARED if _total(found, "window_ns").verdict == "unknown" else NOT_SURE


def _total(found: Comparison, figure: str) -> Delta:
    return next(one for one in found.totals if one.figure == figure)


def per(found: Comparison) -> str:
    return " per step" if _is_by_step(found) else ""


def _is_by_step(found: Comparison) -> bool:
    return found.base.window_rule == found.here.window_rule == "step"


def from_to(one: Delta) -> str:
    return f"({duration(one.base)} → {duration(one.here)})"


def noise_text(one: Delta, steps: str = "") -> str:
    """Why a difference is not called a change; `steps`: what the noise is from."""
    if one.verdict == "noise-unknown":
        return "the noise is not known"
    if one.noise is not None and one.noise > one.resolution:
        return f"no difference beyond noise (±{duration(one.noise)}{steps})"
    return "no difference worth naming"


def _step(found: Comparison) -> str:
    """How long a step takes in both."""
    one = _total(found, "window_ns")
    if one.difference is None or not one.difference:
        return ""
    what = "A step" if per(found) else "A rank"
    here, base = visible(found.here.label), visible(found.base.label)
    takes = f"{what} of {here} takes {duration(one.here)}"
    if not one.is_moved:
        return f"{takes}, of {base} {duration(one.base)}: {noise_text(one, _steps(found))}."
    share = "" if one.relative is None else f" ({percent(abs(one.relative))})"
    parts = [p for p in found.step_parts if p.is_changed and p.difference][:3]
    why = listed([f"{_part_name(p.name)} {signed(p.difference or 0)}" for p in parts])
    text = f"{takes}, {duration(abs(one.difference))}{share} {'less' if one.difference < 0 else 'more'}"
    return f"{text} than of {base}{f': {why}' if why else ''}."


def _steps(found: Comparison) -> str:
    return f" with {found.base.steps} and {found.here.steps} steps"


def _part_name(name: str) -> str:
    first, _, cause = name.partition(".")
    if cause:
        return f"exposed, {CAUSE_WORDS.get(cause, visible(cause))},"
    return {
        "compute_only": "computation beside no communication",
        "overlapped": "communication that is hidden",
        "memory_op_only": "copies",
        "idle": "idle time",
        "exposed": "exposed communication",
    }.get(first, first)


def _changes(found: Comparison) -> list[Said]:
    kinds = found.kinds or []
    return [
        *_exposed(found),
        *_roles(found, kinds),
        *_causes(found),
        *(_kind(found, kind) for kind in kinds if is_told(kind)),
        *_dimensions(found),
        *_computation(found),
    ]


def _exposed(found: Comparison) -> list[Said]:
    one = _total(found, "exposed_ns")
    if not one.is_moved:
        return []
    why = reasons(found.exposed_parts or [], one.difference or 0)
    text = (
        f"Exposed communication {rose(one)} {duration(abs(one.difference or 0))}{per(found)} {from_to(one)}"
    )
    return [(abs(one.difference or 0) * 1.001, f"{text}{f', because {why}' if why else ''}.")]


def rose(one: Delta) -> str:
    return "rose" if (one.difference or 0) > 0 else "fell"


def _roles(found: Comparison, kinds: Sequence[KindChange]) -> list[Said]:
    """Under what communication is hidden now, and which collectives brought that."""
    said: list[Said] = []
    for one in found.by.get("role", ()):
        if not one.is_moved:
            continue
        what = "hidden" if one.name == "unknown" else f"hidden under {role_name(one.name)}"
        text = f"{duration(abs(one.difference or 0))}{per(found)} {'more' if _up(one) else 'less'} of the "
        text += f"communication is {what} {from_to(one)}"
        brought = [_brought(kind) for kind in kinds if _moves(kind, one)]
        which = f": {'; '.join(brought)}" if brought else ""
        said.append((abs(one.difference or 0), f"{text}{which}."))
    return said


def _up(one: Delta) -> bool:
    return (one.difference or 0) > 0


def _moves(kind: KindChange, role: Delta) -> bool:
    """Whether a kind has a worthwhile part in what is hidden under a role."""
    hidden = next((f for f in kind.figures if f.figure == "hidden_ns" and f.name == role.name), None)
    change, moved = role.difference or 0, 0 if hidden is None else hidden.contribution
    return moved * change > 0 and abs(moved) >= SHARE * abs(change)


def _brought(kind: KindChange) -> str:
    text = f"the {name_of(kind)}"
    if kind.became is not None:
        return f"{text}, {'asynchronous now' if kind.became == 'async' else 'synchronous now'}"
    if kind.exposed.verdict == "only-here":
        return f"{text}, new in this run"
    return f"{text}, gone in this run" if kind.exposed.verdict == "only-base" else text


def name_of(kind: KindChange) -> str:
    """`dgrad all-reduce of group tp[0-3]`."""
    purpose = "" if kind.purpose in ("unknown", "other") else f"{visible(kind.purpose)} "
    group = "an unknown group" if kind.group == NO_GROUP else f"group {short_group(visible(kind.group))}"
    return f"{purpose}{op_name(kind.op)} of {group}"


def _causes(found: Comparison) -> list[Said]:
    """What exposed time is for, where that changed."""
    changed = [one for one in found.by.get("cause", ()) if one.is_moved]
    if not changed:
        return []
    parts = [
        f"{CAUSE_WORDS.get(one.name, visible(one.name))} {signed(one.difference or 0)} {from_to(one)}"
        for one in changed
    ]
    return [(abs(changed[0].difference or 0) * 0.999, f"Exposed time{per(found)}: {', '.join(parts)}.")]


def is_told(kind: KindChange) -> bool:
    """Whether a kind of collectives has a sentence: what it exposes, or what it is, changed."""
    return (
        kind.exposed.is_changed or kind.became is not None or _figure(kind, "count") or _figure(kind, "bytes")
    )


def _figure(kind: KindChange, figure: str) -> bool:
    return any(one.is_moved for one in kind.figures if one.figure == figure)


def _kind(found: Comparison, kind: KindChange) -> Said:
    one = kind.exposed
    where = abs(one.contribution)
    counts = next((f for f in kind.figures if f.figure == "count"), None)
    if one.verdict in ("only-base", "only-here"):
        here = one.verdict == "only-here"
        value, count = (one.here, counts and counts.here) if here else (one.base, counts and counts.base)
        many = (
            ""
            if count is None
            else f", {number(count)} {'per step and rank' if _is_by_step(found) else 'per rank'}"
        )
        text = f"{'New in this run' if here else 'Gone in this run'}: {name_of(kind)}{many}"
        return where, f"{text}; {'they expose' if here else 'they exposed'} {duration(value)}{per(found)}."
    if one.is_moved:
        amount = f"{duration(abs(one.difference or 0))}{per(found)} {from_to(one)}"
        text = f"Exposed {name_of(kind)} {rose(one)} {amount}"
        return where, f"{text}{f', because {kind.because}' if kind.because else ''}."
    turned = listed(_turned(kind, _is_by_step(found)))
    return where / 1000, f"The {name_of(kind)} {turned}; what it exposes {from_to(one)}: {noise_text(one)}."


def _turned(kind: KindChange, by_step: bool) -> list[str]:
    """What a kind of collectives is now that it was not."""
    said = [] if kind.became is None else [f"is {kind.became}hronous now"]
    for one in kind.figures:
        if not one.is_moved:
            continue
        if one.figure == "count":
            often = "a step" if by_step else "a rank"
            said.append(f"runs {number(one.here)} times {often} instead of {number(one.base)}")
        if one.figure == "bytes":
            said.append(f"moves {size(one.here)} at a time instead of {size(one.base)}")
    return said


def _dimensions(found: Comparison) -> list[Said]:
    """Exposed time by purpose where kinds of collectives are not at hand."""
    if found.kinds is not None:
        return []
    said: list[Said] = []
    for one in found.by.get("purpose", ()):
        if one.is_moved:
            text = f"Exposed {_communication(one.name)} {rose(one)} {duration(abs(one.difference or 0))}"
            said.append((abs(one.difference or 0), f"{text}{per(found)} {from_to(one)}."))
        elif one.is_changed:
            new = one.verdict == "only-here"
            text = f"{_communication(one.name).capitalize()} is {'new' if new else 'gone'} in this run"
            value = duration(one.here if new else one.base)
            said.append((abs(one.contribution), f"{text}: {value} exposed{per(found)}."))
    return said


def _communication(purpose: str) -> str:
    known = purpose != "unknown"
    return f"{visible(purpose)} communication" if known else "communication of unknown purpose"


def _computation(found: Comparison) -> list[Said]:
    """Computation and idle time, with the GEMMs that changed most; nothing of CPU runs: they share cores."""
    if found.base.device_type == found.here.device_type == "cpu":
        return []
    said: list[Said] = []
    for figure, name in (("compute_ns", "Computation"), ("idle_ns", "Idle time")):
        one = _total(found, figure)
        if not one.is_moved:
            continue
        text = f"{name} {rose(one)} {duration(abs(one.difference or 0))}{per(found)} {from_to(one)}"
        if figure == "compute_ns":
            words = [_gemm(gemm) for gemm in found.gemms if _has_part(gemm, one)]
            text += f": {listed(words[:3])}" if words else ""
        said.append((abs(one.difference or 0), f"{text}."))
    return said


def _has_part(gemm: GemmChange, whole: Delta) -> bool:
    """Whether GEMMs of one kind have a worthwhile part in the difference of all computation."""
    change, moved = whole.difference or 0, gemm.time.contribution
    return gemm.time.is_changed and moved * change > 0 and abs(moved) >= SHARE / 4 * abs(change)


def _gemm(gemm: GemmChange) -> str:
    name = " ".join(part for part in (role_name(gemm.role), visible(gemm.shape or "")) if part)
    return f"{name} {signed(gemm.time.contribution)}"


def _memory(found: Comparison) -> str:
    """What is kept for backward, and the peak."""
    kept = _sizes(found, "memory.across_border_bytes") or _sizes(found, "memory.saved_bytes")
    peak = _sizes(found, "memory.peak_bytes") or _sizes(found, "memory.saved.peak_bytes")
    said = []
    if kept is not None:
        by = [d for d in found.memory if d.figure == "memory.across_border_by_category" and d.difference]
        why = [f"{size(abs(d.difference or 0))} {_more(d)} of {category_name(d.name)}" for d in by[:3]]
        text = f"{size(abs(kept.difference or 0))} {_more(kept)} stays alive from forward to backward"
        said.append(f"{text} ({size(kept.base)} → {size(kept.here)}{f': {listed(why)}' if why else ''})")
    if peak is not None:
        text = f"memory peaks {size(abs(peak.difference or 0))} {'higher' if _up(peak) else 'lower'}"
        said.append(f"{text} ({size(peak.base)} → {size(peak.here)})")
    text = "; ".join(said)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _more(one: Delta) -> str:
    return "more" if _up(one) else "less"


def _sizes(found: Comparison, figure: str) -> Delta | None:
    return next((d for d in found.memory if d.figure == figure and d.is_moved), None)


def _context(found: Comparison) -> list[str]:
    """Schemes that only one run has, and what counting says of the balance of attention."""
    schemes = [one for one in found.context_parallel if one.figure == "context_parallel.exposed_ns"]
    alone = [one for one in schemes if one.verdict in ("only-base", "only-here")]
    said = [
        f"{'New' if one.verdict == 'only-here' else 'Gone'} in this run: {_scheme(one.name)}, "
        f"{duration(abs(one.contribution))}{per(found)} of its transfers exposed."
        for one in alone
    ]
    return said + [
        f"By counting, attention is {percent(one.here)} even, {percent(one.base)} in the base"
        f" ({visible(one.name)})."
        for one in found.context_parallel
        if one.figure == "context_parallel.ideal_ratio" and one.is_moved
    ]


def _scheme(name: str) -> str:
    """`ring 2` -> `ring attention (2)`."""
    first, _, number = name.partition(" ")
    words = SCHEME_NAMES.get(first, visible(first))
    if first not in ("ulysses", "usp"):  # the others are no names
        words = words[:1].lower() + words[1:]
    return f"{words} ({number})" if number else words


def _settings(found: Comparison) -> str:
    """Settings of the workload and the run that differ; of the environment, how many."""
    main = [one for one in found.settings if one.where in ("workload", "run")]
    others = [one for one in found.settings if one not in main]
    parts = [f"{visible(one.name)} ({_value(one.base)} → {_value(one.here)})" for one in (*main, *others)]
    if not parts:
        return ""
    more = len(parts) - 8
    shown = [*parts[:8], *([f"{more} more"] if more > 0 else [])]
    return f"Settings that differ: {listed(shown)}."


def _value(value: object) -> str:
    text = (
        "not told" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    )
    shown = visible(text)
    return shown if len(shown) <= 60 else f"{shown[:40]}…{shown[-19:]}"


def _findings(found: Comparison) -> list[str]:
    """Findings that came and went, by their codes."""
    came, went = (
        sorted({f.code for f in found.findings if f.change == change}) for change in ("came", "went")
    )
    said = [f"came: {', '.join(came)}"] if came else []
    said += [f"went: {', '.join(went)}"] if went else []
    return [f"Findings that {'; '.join(said)}."] if said else []
