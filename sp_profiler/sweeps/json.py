"""sweep.json by the contract, and the JSON Schema that goes with it.

`python -m sp_profiler.sweeps.json > sp_profiler/sweeps/schema.json` writes the schema anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sp_profiler.report.json import render_document, schema_of
from sp_profiler.sweeps.model import SCHEMA, SCHEMA_VERSION, Sweep

SCHEMA_PATH = Path(__file__).with_name("schema.json")


def render(sweep: Sweep) -> str:
    """JSON text, one line per top-level member and per element of its lists. ASCII, integers exact."""
    return render_document(sweep)


def schema() -> dict[str, Any]:
    """The JSON Schema (Draft 2020-12) of a sweep, from the classes."""
    description = "Times are integer ns, sizes bytes. null: not measured, or none; notes and reason say why."
    return schema_of(Sweep, SCHEMA, SCHEMA_VERSION, "Sweep of sp-profiler", description)


if __name__ == "__main__":
    print(json.dumps(schema(), indent=1))
