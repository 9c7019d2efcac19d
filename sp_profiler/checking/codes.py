"""Which codes findings and ledger entries can have: a budget for a misspelled one would hold for ever.

No list of them exists to go stale: each is a literal of the module that tells it, so the package's own text
is asked, and only when somebody names a code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
_CODE = re.compile(r'"([a-z][a-z0-9]*(?:-[a-z0-9]+)+)"')
_FINDING = re.compile(r'\bfinding\(\s*"([a-z0-9-]+)"')
_ENTRY = re.compile(r'(?:\.add|\bLedgerEntry)\(\s*"([a-z0-9-]+)"')
_FINDINGS = "report/findings"
_OPPORTUNITIES = "analysis/memory/opportunities.py"
"""Kinds of opportunities, each of which has a finding `memory-<kind>`."""
_NO_LEDGER = ("cli", "checking", "planning", "theory")
"""Folders whose texts are no entries of the ledger of a run."""


@cache
def finding_codes() -> frozenset[str]:
    """The codes of findings."""
    kinds = _literals([_PACKAGE / _OPPORTUNITIES], _CODE)
    told = _literals((_PACKAGE / _FINDINGS).glob("*.py"), _FINDING)
    return told | {f"memory-{kind}" for kind in kinds}


@cache
def ledger_codes() -> frozenset[str]:
    """The codes of the ledger, and words like them of the modules that enter some."""
    files = [
        file
        for file in _PACKAGE.rglob("*.py")
        if file.relative_to(_PACKAGE).parts[0] not in _NO_LEDGER and _FINDINGS not in file.as_posix()
    ]
    return _literals(files, _CODE) | _literals(files, _ENTRY)


def _literals(files: Iterable[Path], pattern: re.Pattern[str]) -> frozenset[str]:
    return frozenset(code for file in files for code in pattern.findall(file.read_text(encoding="utf-8")))
