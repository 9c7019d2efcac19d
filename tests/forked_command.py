"""`sp-profile`, with the ranks of a workload as forks of one process that has torch already."""

from __future__ import annotations

from unittest import mock

from context_run_worker import run_in_forks

from sp_profiler.cli.main import entry_point

if __name__ == "__main__":
    with mock.patch("sp_profiler.record.workload.run_job", run_in_forks):
        entry_point()
