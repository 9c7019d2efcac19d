"""`python -m sp_profiler.record.rank LOG_DIR MODULE ARGS...`: one rank of a workload.

The launcher starts this and not the module itself, so that a rank
- writes both of its streams to one log, `LOG_DIR/rank-00000.log`,
- says how it ended, with the exception in words: torch's launcher knows the exit code only,
- shows where it is when it is asked (SIGUSR1 writes the Python stacks to the log),
- dies with its launcher.
"""

from __future__ import annotations

import faulthandler
import os
import runpy
import signal
import sys
import traceback
from pathlib import Path
from types import TracebackType

from sp_profiler.record import progress
from sp_profiler.record.processes import die_with_parent

SHARE_GPUS_VARIABLE = "SP_PROFILE_SHARE_GPUS"


def _redirect(path: Path) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def share_gpus(count: int) -> None:
    """Let ranks share `count` GPUs: rank r sees only GPU r % count, and NCCL takes the ranks for hosts.

    NCCL refuses two ranks on one GPU of one host; with a host name each they talk over sockets. Good
    for checking that the CUDA path works, of no use for timing.
    """
    local_rank = int(os.environ["LOCAL_RANK"])
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    devices = visible.split(",") if visible else [str(index) for index in range(count)]
    os.environ["CUDA_VISIBLE_DEVICES"] = devices[local_rank % len(devices)]
    os.environ["LOCAL_RANK"] = "0"
    os.environ["NCCL_HOSTID"] = f"rank-{local_rank}"
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")


def main() -> None:
    """Run the module as `__main__`, as `python -m MODULE ARGS...` would."""
    die_with_parent()
    log_dir, module, *arguments = sys.argv[1:]
    _redirect(Path(log_dir) / f"rank-{progress.rank_from_environment():05d}.log")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    progress.report("starting")
    shared = os.environ.get(SHARE_GPUS_VARIABLE, "")
    if shared.isdigit() and int(shared) > 0:
        share_gpus(int(shared))
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            progress.report("failed", error=f"it left with code {leaving.code}")
            raise
    except BaseException as error:  # noqa: BLE001 - whatever ended it is told and ends this process
        words = traceback.format_exception_only(error)[-1].strip()
        progress.report("failed", error=words)
        traceback.print_exception(type(error), error, _without_our_frames(error.__traceback__))
        sys.exit(1)
    progress.report("finished")


def _without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the module's own first frame on."""
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    main()
