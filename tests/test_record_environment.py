"""What is recorded of the machine, and the one variable that the tool sets."""

from __future__ import annotations

import pytest

from sp_profiler.record.environment import connections_setting, recorded_variables
from sp_profiler.record.workload import Backend, rank_environment

HOPPER, BLACKWELL, AMPERE = (9, 0), (10, 0), (8, 0)


@pytest.mark.parametrize(
    ("capability", "mode", "environ", "expected"),
    [
        (HOPPER, "ring", {}, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}),
        (BLACKWELL, "usp", {}, {}),
        (HOPPER, "tp", {}, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}),
        (AMPERE, "sp", {}, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}),
        (HOPPER, "ddp", {}, {}),  # it would end the overlap of data parallelism
        (BLACKWELL, "tp", {}, {}),
        (None, "tp", {}, {}),  # no CUDA device
        (HOPPER, "tp", {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}, {}),  # the user decided
    ],
)
def test_connections_are_set_where_overlap_needs_it(
    capability: tuple[int, int] | None, mode: str, environ: dict[str, str], expected: dict[str, str]
) -> None:
    assert connections_setting(capability, mode, environ) == expected


def test_what_is_set_for_the_ranks_respects_the_user() -> None:
    settings = rank_environment("tp", Backend("nccl", HOPPER), {"OMP_NUM_THREADS": "4"})
    assert settings == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def test_recorded_variables_hold_no_secrets_and_say_what_was_not_set() -> None:
    environ = {
        "NCCL_DEBUG": "INFO",
        "TORCH_NCCL_BLOCKING_WAIT": "1",
        "NCCL_SECRET_TOKEN": "s3cret",
        "AWS_SECRET_ACCESS_KEY": "s3cret",
        "HOME": "/home/someone",
    }
    recorded = recorded_variables(environ)
    assert recorded["NCCL_DEBUG"] == "INFO"
    assert recorded["TORCH_NCCL_BLOCKING_WAIT"] == "1"
    assert recorded["CUDA_DEVICE_MAX_CONNECTIONS"] is None
    assert "s3cret" not in recorded.values()
    assert "HOME" not in recorded
