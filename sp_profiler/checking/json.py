"""A check as JSON by the contract, and the JSON Schema that goes with it.

`python -m sp_profiler.checking.json > sp_profiler/checking/schema.json` writes the schema anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sp_profiler.checking.result import SCHEMA, SCHEMA_VERSION, Check
from sp_profiler.report.json import schema_of, to_plain

SCHEMA_PATH = Path(__file__).with_name("schema.json")


def render(check: Check) -> str:
    """JSON text, one line per verdict. ASCII, integers exact, no NaN."""
    members = to_plain(check)
    runs = [_run(one) for one in members["runs"]]
    lines = [
        f"{json.dumps(key)}: {_several(runs) if key == 'runs' else _dumps(value)}"
        for key, value in members.items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _run(run: dict[str, Any]) -> str:
    verdicts = _several([_dumps(one) for one in run["verdicts"]], indent="  ")
    members = [
        f"{json.dumps(key)}: {verdicts if key == 'verdicts' else _dumps(value)}" for key, value in run.items()
    ]
    return "{" + ", ".join(members) + "}"


def _several(texts: list[str], indent: str = "") -> str:
    inner = f"\n{indent}  "
    return f"[{inner}" + f",{inner}".join(texts) + f"\n{indent}]" if texts else "[]"


def _dumps(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def schema() -> dict[str, Any]:
    """The JSON Schema (Draft 2020-12) of a check, from the classes."""
    description = (
        "Figures are in base units (verdicts[].unit): ns, bytes, ratios in [0, 1], 1e9 bytes a second. "
        "value null: nobody could look, text says why."
    )
    return schema_of(Check, SCHEMA, SCHEMA_VERSION, "Check of sp-profiler", description)


if __name__ == "__main__":
    print(json.dumps(schema(), indent=1))
