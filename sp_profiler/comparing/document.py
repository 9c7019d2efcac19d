"""A comparison as JSON, and the JSON Schema that goes with it.

`python -m sp_profiler.comparing.document > sp_profiler/comparing/schema.json` writes the schema anew. The
comparison of any number of runs (`run demo`, `analyze` of several) has the same schema: its runs alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sp_profiler.comparing.model import SCHEMA, SCHEMA_VERSION, Comparison
from sp_profiler.report.json import COMPACT, render_document, schema_of

SCHEMA_PATH = Path(__file__).with_name("schema.json")
_ALWAYS = ("schema", "schema_version", "tool", "runs")


def render(found: Comparison) -> str:
    """The text, ASCII, one line per top-level member and per element of its lists."""
    return render_document(found, COMPACT)


def schema() -> dict[str, Any]:
    """The JSON Schema (Draft 2020-12): of two runs compared all members, of more than two their figures."""
    description = (
        "Times are ns and counts, means per step and rank; sizes bytes. null: a run does not tell. "
        "Of two runs compared all members are there, of any number of runs side by side only 'runs'."
    )
    made = schema_of(Comparison, SCHEMA, SCHEMA_VERSION, "Comparison of sp-profiler", description)
    required = made["required"]
    beside = [name for name in required if name not in _ALWAYS]
    made["required"] = list(_ALWAYS)
    made["dependentRequired"] = dict.fromkeys(beside, beside)
    return made


def render_schema() -> str:
    return json.dumps(schema(), indent=1) + "\n"


if __name__ == "__main__":
    print(render_schema(), end="")
