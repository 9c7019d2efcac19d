"""A check as JUnit XML: a suite for each run, a case for each budget, as CI servers show them.

The elements and attributes are those that the schemas in use agree on (Ant's and Jenkins'). Names from traces
may hold anything: what XML 1.0 has no way to write, and what acts on a screen, is written out (`\\x1b`).
"""

from __future__ import annotations

import re
from datetime import datetime
from xml.etree import ElementTree as Xml

from sp_profiler.checking.result import Check, RunCheck, Verdict
from sp_profiler.report.format import visible

_NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_HOST = "localhost"  # what the schema asks for where the host is not told


def render(check: Check, when: datetime) -> str:
    """The XML text, UTF-8 declared. `when`: the time of the check, which the suites tell."""
    suites = Xml.Element("testsuites", {"name": "sp-profile check", **_counts(check.runs)})
    for number, run in enumerate(check.runs):
        suites.append(_suite(run, number, when))
    Xml.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(suites, encoding="unicode") + "\n"


def _counts(runs: list[RunCheck]) -> dict[str, str]:
    verdicts = [one for run in runs for one in run.verdicts]
    errors = sum(run.error is not None for run in runs)
    return {
        "tests": str(len(verdicts) + errors),
        "failures": str(sum(one.fails for one in verdicts)),
        "errors": str(errors),
        "skipped": str(sum(_is_skipped(one) for one in verdicts)),
        "time": f"{sum(run.seconds or 0.0 for run in runs):.3f}",
    }


def _is_skipped(verdict: Verdict) -> bool:
    return not verdict.fails and verdict.state in ("unknown", "skipped")


def _suite(run: RunCheck, number: int, when: datetime) -> Xml.Element:
    suite = Xml.Element(
        "testsuite",
        {
            "id": str(number),
            "name": _clean(run.name),
            "package": "sp-profile.check",
            "timestamp": when.replace(tzinfo=None, microsecond=0).isoformat(),
            "hostname": _HOST,
            **_counts([run]),
        },
    )
    properties = Xml.SubElement(suite, "properties")
    Xml.SubElement(properties, "property", {"name": "path", "value": _clean(run.path)})
    if run.error is not None:
        case = _case(suite, run, "the run can be read")
        Xml.SubElement(case, "error", {"message": _clean(run.error), "type": "unusable"}).text = _clean(
            run.error
        )
    for verdict in run.verdicts:
        _verdict(_case(suite, run, verdict.budget), verdict)
    Xml.SubElement(suite, "system-out").text = "\n".join(_clean(note) for note in run.notes)
    Xml.SubElement(suite, "system-err")
    return suite


def _case(suite: Xml.Element, run: RunCheck, name: str) -> Xml.Element:
    named = {"name": _clean(name), "classname": _clean(f"sp-profile.check.{run.name}"), "time": "0.000"}
    return Xml.SubElement(suite, "testcase", named)


def _verdict(case: Xml.Element, verdict: Verdict) -> None:
    if verdict.fails:
        told = {"message": _clean(verdict.text), "type": verdict.state}
        Xml.SubElement(case, "failure", told).text = _details(verdict)
    elif _is_skipped(verdict):
        Xml.SubElement(case, "skipped", {"message": _clean(verdict.text)})


def _details(verdict: Verdict) -> str:
    told = {
        "figure": verdict.figure,
        "value": verdict.value,
        "limit": verdict.limit,
        "baseline": verdict.baseline,
        "noise": verdict.noise,
        "unit": verdict.unit,
        "where": verdict.where.text if verdict.where is not None else None,
        "set by": verdict.origin or None,
    }
    lines = [f"{key}: {_clean(value)}" for key, value in told.items() if value is not None]
    return "\n".join([_clean(verdict.text), *lines])


def _clean(text: object) -> str:
    """Text that XML 1.0 can hold and that does nothing on a screen."""
    return _NOT_IN_XML.sub(lambda found: f"\\u{ord(found[0]):04x}", visible(text))
