"""What a sweep says in words, most important first: what may be compared, and what came out."""

from __future__ import annotations

from collections.abc import Sequence

from sp_profiler.report.format import counted, duration, listed, percent, size
from sp_profiler.sweeps.model import LARGE_OVERHEAD, Cell, Settings, Skipped


def sentences_of(
    cells: Sequence[Cell], settings: Settings, baseline: str | None, skipped: Sequence[Skipped]
) -> list[str]:
    """At least what was run; the rest where there is something to say."""
    said = [
        _counts(cells),
        _structure(cells),
        unequal_work(cells, settings),
        _against_baseline(cells, baseline),
        _hidden(cells),
        _memory(cells, baseline),
        _overhead(cells),
        _impossible(skipped),
        *_failures(cells),
    ]
    return [sentence for sentence in said if sentence is not None]


def _counts(cells: Sequence[Cell]) -> str:
    done = sum(cell.status == "ok" for cell in cells)
    failed = [cell for cell in cells if cell.is_failed]
    waiting = sum(cell.status == "pending" for cell in cells)
    parts = [f"{done} of {counted(len(cells), 'cell')} measured"]
    parts += [f"{len(failed)} failed"] if failed else []
    parts += [f"{waiting} not run yet"] if waiting else []
    return f"{', '.join(parts)}."


def _structure(cells: Sequence[Cell]) -> str | None:
    kinds = {cell.device_type for cell in cells if cell.device_type is not None}
    if "cpu" not in kinds:
        return None
    return (
        "CPU runs: read them for structure (what runs under what, what is kept and sent), not for speed: "
        "ranks share the cores, so overlap does not shorten the step."
    )


def unequal_work(cells: Sequence[Cell], settings: Settings) -> str | None:
    """The warning that cells of one size train different numbers of tokens in a step."""
    by_place: dict[object, dict[str, int]] = {}
    for cell in cells:
        by_place.setdefault(cell.at_sizes, {})[cell.label] = cell.tokens_per_step
    for tokens in by_place.values():
        least = min(tokens.values())
        more = [label for label, count in tokens.items() if count != least]
        if more:
            times = max(tokens.values()) / least
            rest = listed([label for label in tokens if label not in more][:3])
            advice = (
                ", or use --batch-policy fixed-global" if settings.batch_policy == "fixed-per-rank" else ""
            )
            return (
                f"Unequal work: a step of {listed(more[:3])} trains {times:g} times the tokens of one of "
                f"{rest} (--batch-policy {settings.batch_policy}); compare tokens per second, not step "
                f"times{advice}."
            )
    return None


def _largest(cells: Sequence[Cell]) -> list[Cell]:
    """The cells that ran, of the largest sizes at which most schemes did."""
    places: dict[object, list[Cell]] = {}
    for cell in cells:
        if cell.step is not None:
            places.setdefault(cell.at_sizes, []).append(cell)
    if not places:
        return []
    most = max(len(one) for one in places.values())
    return [one for one in places.values() if len(one) == most][-1]


def _at(cell: Cell) -> str:
    return f"at {counted(int(cell.workload['layers']), 'layer')}"


def _against_baseline(cells: Sequence[Cell], baseline: str | None) -> str | None:
    """Throughput on devices where it means something: on CPUs it does not."""
    shown = _largest(cells)
    base = next((cell for cell in shown if cell.scheme == baseline), None)
    others = [
        (cell.relative.tokens_per_s, cell, cell.relative)
        for cell in shown
        if cell.scheme != baseline and cell.relative is not None and cell.relative.tokens_per_s is not None
    ]
    if base is None or not others or base.device_type == "cpu":
        return None
    rate, best, relative = max(others, key=lambda one: one[0])
    gain = rate - 1
    if relative.step_within_spread and relative.work == 1:
        return f"No scheme is faster than {base.label} {_at(base)} by more than the spread of the repeats."
    word = "more" if gain >= 0 else "fewer"
    lead = "The fastest of the others" if gain < 0 else "Fastest"
    return (
        f"{lead} {_at(base)}: {best.label} trains {percent(abs(gain))} {word} tokens per second than "
        f"{base.label}."
    )


def _hidden(cells: Sequence[Cell]) -> str | None:
    shown = [
        (cell, cell.profile.wgrad_hidden_of_hideable)
        for cell in _largest(cells)
        if cell.profile is not None and cell.profile.wgrad_hidden_of_hideable is not None
    ]
    if not shown:
        return None
    parts = [f"{cell.label} {percent(ratio)}" for cell, ratio in shown[:8]]
    return (
        f"Of what wgrad GEMMs could hide of the gradients' communication {_at(shown[0][0])}, hidden is: "
        f"{', '.join(parts)}."
    )


def _memory(cells: Sequence[Cell], baseline: str | None) -> str | None:
    """What the baseline keeps for backward, and the scheme that keeps least; beside the closed form."""
    shown = [
        (cell.memory.saved_bytes, cell)
        for cell in _largest(cells)
        if cell.memory is not None and cell.memory.saved_bytes is not None
    ]
    of_base = next(((kept, cell) for kept, cell in shown if cell.scheme == baseline), None)
    if of_base is None:
        return None
    kept, base = of_base
    fewest, least = min(shown, key=lambda one: one[0])
    equal = all(cell.theory.saved_bytes in (None, count) for count, cell in shown)
    theory = "as the closed forms have it" if equal else "not all as the closed forms have it (see the table)"
    if fewest == kept:
        return (
            f"No scheme keeps less for backward than {base.label} {_at(base)}, {size(kept)} a rank; {theory}."
        )
    both = f"{base.label} keeps {size(kept)} a rank {_at(base)}, {least.label} {size(fewest)}"
    return f"For backward {both}; {theory}."


def _overhead(cells: Sequence[Cell]) -> str | None:
    factors = [
        (cell.profile.overhead_factor, cell)
        for cell in cells
        if cell.profile is not None and cell.profile.overhead_factor is not None
    ]
    if not factors:
        return None
    least, most = min(factors, key=lambda one: one[0]), max(factors, key=lambda one: one[0])
    low, high = f"{least[0]:.2f}", f"{most[0]:.2f}"
    span = low if low == high else f"{low} to {high}"
    noise = "; below 1 the machine was busier in the timed steps" if least[0] < 1 else ""
    if most[0] < LARGE_OVERHEAD:
        return f"Profiled steps took {span} times the unprofiled ones{noise}."
    step = most[1].step.median_ns if most[1].step is not None else None
    return (
        f"The profiler slows what it measures: profiled steps took {span} times the "
        f"unprofiled ones (most in {most[1].label} of {duration(step)} a step); overlap and exposed times "
        f"are of the profiled steps, step times are not{noise}."
    )


def _impossible(skipped: Sequence[Skipped]) -> str | None:
    none = [one for one in skipped if one.workloads]
    if not none:
        return None
    reasons = list(dict.fromkeys(one.reason for one in none))
    count = sum(len(one.workloads) for one in none)
    more = f" (and {len(reasons) - 2} other reasons)" if len(reasons) > 2 else ""
    return f"{counted(count, 'combination')} cannot be run: {'; '.join(reasons[:2])}{more}."


def _failures(cells: Sequence[Cell]) -> list[str]:
    failed = [cell for cell in cells if cell.is_failed]
    words = {
        "oom": "ran out of memory",
        "crashed": "crashed",
        "timeout": "made no progress",
        "failed": "failed",
    }
    return [f"{cell.name} {words[cell.status]}: {cell.reason} (log: {cell.log})." for cell in failed]
