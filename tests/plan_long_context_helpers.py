"""Plans of long context for tests: the example of FACTS, section 3, and parts of a plan by name."""

from __future__ import annotations

import json
from typing import Any

import jsonschema

import sp_profiler
from sp_profiler.planning.long_context.model import ContextScheme, LongContextPlan, RingFigures
from sp_profiler.report.planned.json import LONG_CONTEXT_SCHEMA_PATH

# FACTS, section 3
EXAMPLE: dict[str, Any] = {"seq_len": 131072, "hidden": 4096, "heads": 32, "cp": 16}
VALIDATOR = jsonschema.Draft202012Validator(json.loads(LONG_CONTEXT_SCHEMA_PATH.read_text()))
RATES: dict[str, Any] = {"flops": 400e12, "bandwidth": 50e9, "latency": 10e-6}


def plan(**asked: Any) -> LongContextPlan:
    return sp_profiler.plan_long_context(**{**EXAMPLE, "kv_heads": 32, **RATES, **asked})


def of(made: LongContextPlan, label: str) -> ContextScheme:
    (found,) = [one for one in made.schemes if one.label == label]
    return found


def ring(made: LongContextPlan, label: str = "ring zigzag") -> RingFigures:
    found = of(made, label).ring
    assert found is not None
    return found
