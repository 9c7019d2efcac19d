"""The JSON Schema of what `sp-profile memory` writes, from the classes.

`python -m sp_profiler.report.memory_schema > sp_profiler/report/memory_schema.json` writes it anew.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sp_profiler.analysis.memory.results import Memory
from sp_profiler.ledger import LedgerEntry
from sp_profiler.report.json import schema_of
from sp_profiler.report.model import Tool

SCHEMA_PATH = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class MemoryDocument:
    """One run's memory section as `report.memory.memory_json` writes it."""

    schema: Literal["sp-profile/memory"]
    schema_version: Literal[1]
    tool: Tool
    name: str
    memory: Memory | None
    data_quality: list[LedgerEntry]


def schema() -> dict[str, Any]:
    description = "Times are integer ns, sizes bytes. null: could not look; data_quality says why."
    return schema_of(MemoryDocument, "sp-profile/memory", 1, "Memory section of sp-profiler", description)


if __name__ == "__main__":
    print(json.dumps(schema(), indent=1))
