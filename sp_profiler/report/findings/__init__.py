"""Findings: sentences about a run that its own numbers prove, with what to change.

Each rule is a function from `Facts` to a finding or None, in the file of its subject. A finding carries
evidence (numbers, and where to look) and never advises a setting that is already set; both are tested for
every rule.
"""

from __future__ import annotations

from collections.abc import Callable

from sp_profiler.report.findings import causes, context, memory, settings, verdicts
from sp_profiler.report.findings.facts import EndsDisagree, Facts
from sp_profiler.report.model import Finding

__all__ = ["RULES", "EndsDisagree", "Facts", "findings"]

RULES: tuple[Callable[[Facts], Finding | None], ...] = (*settings.RULES, *causes.RULES, *verdicts.RULES)


def findings(facts: Facts) -> list[Finding]:
    """All findings, warnings first, otherwise in the order of the rules."""
    found = [finding for rule in RULES if (finding := rule(facts)) is not None]
    found += context.findings(facts)
    found += memory.findings(facts)
    order = ("warning", "advice", "info")
    return sorted(found, key=lambda finding: order.index(finding.severity))
