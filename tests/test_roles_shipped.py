"""The shipped runs, read as if nobody had annotated them: every role and purpose agrees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import REPOSITORY

from sp_profiler.classify import classify
from sp_profiler.trace.decode import decode_trace

RUNS = sorted((REPOSITORY / "traces" / "demo").glob("*/rank-*.json.gz"))


def test_the_runs_are_there() -> None:
    assert len(RUNS) == 8


@pytest.mark.parametrize("path", RUNS, ids=lambda path: f"{path.parent.name}/{path.name[:10]}")
def test_agreement(path: Path) -> None:
    trace = decode_trace(str(path))
    annotated, blind = classify(trace), classify(trace, use_annotations=False)
    gemms = annotated.activities.is_gemm
    assert gemms.sum() > 200
    np.testing.assert_array_equal(blind.activities.role[gemms], annotated.activities.role[gemms])
    assert [c.purpose for c in blind.collectives] == [c.purpose for c in annotated.collectives]
    assert {c.purpose_rule for c in blind.collectives}.isdisjoint({"none", "annotation"})
