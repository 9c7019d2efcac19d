"""sweep.json by the contract, and the JSON Schema that goes with it.

`python -m sp_profiler.sweeps.json > sp_profiler/sweeps/schema.json` writes the schema anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sp_profiler.report.json import schema_of, to_plain
from sp_profiler.sweeps.model import SCHEMA, SCHEMA_VERSION, Sweep

SCHEMA_PATH = Path(__file__).with_name("schema.json")


def render(sweep: Sweep) -> str:
    """JSON text, one line per top-level member and per element of its lists. ASCII, integers exact."""
    plain = to_plain(sweep)
    lines = [f"{json.dumps(key)}: {_member(value)}" for key, value in plain.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _member(value: Any) -> str:
    if isinstance(value, list) and value:
        return "[\n  " + ",\n  ".join(json.dumps(item, allow_nan=False) for item in value) + "\n]"
    return json.dumps(value, allow_nan=False)


def schema() -> dict[str, Any]:
    """The JSON Schema (Draft 2020-12) of a sweep, from the classes."""
    description = "Times are integer ns, sizes bytes. null: not measured, or none; notes and reason say why."
    return schema_of(Sweep, SCHEMA, SCHEMA_VERSION, "Sweep of sp-profiler", description)


if __name__ == "__main__":
    print(json.dumps(schema(), indent=1))
