"""A plan as JSON by the contract, and the JSON Schema that goes with it.

`python -m sp_profiler.report.planned.json > sp_profiler/report/planned/schema.json` writes the schema anew,
with the argument `long-context` that of a plan of long context, `long_context_schema.json`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from sp_profiler.planning.long_context import model as long_context
from sp_profiler.planning.model import SCHEMA, SCHEMA_VERSION, Plan
from sp_profiler.report.json import render_document, schema_of
from sp_profiler.report.planned.shown import AnyPlan

SCHEMA_PATH = Path(__file__).with_name("schema.json")
LONG_CONTEXT_SCHEMA_PATH = Path(__file__).with_name("long_context_schema.json")


def render(plan: AnyPlan) -> str:
    """JSON text, one line per top-level member and per element of its lists. ASCII, integers exact."""
    return render_document(plan)


def render_schema() -> str:
    """The JSON Schema (Draft 2020-12) of a plan, from the classes."""
    description = "Sizes are bytes of one rank, times integer ns of one step. null: not asked for, or none."
    plain = schema_of(Plan, SCHEMA, SCHEMA_VERSION, "Plan of sp-profiler", description)
    return json.dumps(plain, indent=1) + "\n"


def render_long_context_schema() -> str:
    """The JSON Schema (Draft 2020-12) of a plan of long context, from the classes."""
    description = (
        "Sizes are bytes of one rank, times integer ns of the slowest rank, one layer. null: no rates were "
        "given, the scheme cannot be built, or it has no ring."
    )
    plain = schema_of(
        long_context.LongContextPlan,
        long_context.SCHEMA,
        long_context.SCHEMA_VERSION,
        "Long-context plan of sp-profiler",
        description,
    )
    return json.dumps(plain, indent=1) + "\n"


if __name__ == "__main__":
    print(render_long_context_schema() if "long-context" in sys.argv[1:] else render_schema(), end="")
