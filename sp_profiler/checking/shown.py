"""What every screen shows of a check: words and rows, not yet escaped."""

from __future__ import annotations

from sp_profiler.checking.quantities import shown
from sp_profiler.checking.result import Check, RunCheck, State, Verdict, count
from sp_profiler.report.format import counted, listed

HEADER = ("Budget", "Verdict", "Value", "Limit")
_OTHER_STATES: tuple[State, ...] = ("broken", "unknown", "skipped")
WORDS = {"holds": "holds", "broken": "BROKEN", "unknown": "UNKNOWN", "skipped": "skipped"}


def row(verdict: Verdict) -> list[str]:
    """The cells of `HEADER`; what is unknown but allowed is in small letters."""
    word = WORDS[verdict.state]
    word = word if verdict.fails or not word.isupper() else word.lower()
    return [verdict.budget, word, _amount(verdict.value, verdict), _limit(verdict)]


def _amount(value: object, verdict: Verdict) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if verdict.unit == "text" or not isinstance(value, (int, float)):
        return f"{value}"
    return shown(value, verdict.unit)


def _limit(verdict: Verdict) -> str:
    if verdict.bound == "none-of":
        return "none"
    if verdict.bound == "equals":
        sign = "="
    else:
        sign = "≥" if verdict.bound == "min" or verdict.worse == "lower" else "≤"
    amount = _amount(verdict.limit, verdict)
    return amount if amount == "–" else f"{sign} {amount}"


def headline(run: RunCheck) -> str:
    """`3 of 5 budgets hold, 1 broken and 1 unknown`; of what could not be read, why."""
    if run.error is not None:
        return f"cannot be used: {run.error}"
    whole = len(run.verdicts)
    parts = [f"{number} {state}" for state in _OTHER_STATES if (number := count(run, state))]
    if not parts:
        return "the budget holds" if whole == 1 else f"all {counted(whole, 'budget')} hold"
    held = count(run, "holds")
    return f"{held} of {whole} budgets {'holds' if held == 1 else 'hold'}, {listed(parts)}"


def sources(check: Check) -> list[str]:
    """Where budgets and the baseline are from."""
    told = [f"Budgets: {check.config}." if check.config is not None else ""]
    told += [f"Baseline: {check.baseline}." if check.baseline is not None else ""]
    return [one for one in told if one]


def totals(check: Check) -> str:
    """The last line of several runs."""
    bad = [run.name for run in check.runs if not run.holds]
    runs = counted(len(check.runs), "run")
    if not bad:
        return f"All {runs} keep their budgets."
    keep = "does not keep its" if len(bad) == 1 else "do not keep their"
    return f"{len(bad)} of {runs} {keep} budgets: {', '.join(bad)}."


def notes(check: Check) -> list[str]:
    """What should be known, each once; of several runs with the names of those that it is about."""
    about: dict[str, list[str]] = {}
    for run in check.runs:
        for note in run.notes:
            about.setdefault(note, []).append(run.name)
    return [
        note if len(names) == len(check.runs) else f"{', '.join(names)}: {note}"
        for note, names in about.items()
    ]
