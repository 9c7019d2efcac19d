"""What a run depends on besides its code: versions, hardware, and the variables that steer communication.

Nothing here imports torch at module level; functions that need it say so.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sp_profiler import __version__
from sp_profiler.cores import usable_cores

ALWAYS_RECORDED = (
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_P2P_DISABLE",
    "NCCL_NVLS_ENABLE",
    "OMP_NUM_THREADS",
    "TORCH_NCCL_ENABLE_TIMING",
    "TORCH_NCCL_AVOID_RECORD_STREAMS",
)
"""Recorded as null when unset: that they were not set is a fact about the run."""

_RECORDED = re.compile(
    r"^(CUDA_|NCCL_|TORCH_NCCL_|TORCH_DIST|RCCL_|HIP_|HSA_|ROCR_|GLOO_|UCX_|NVSHMEM_|NVTE_|KINETO_|OMP_|MKL_"
    r"|GOMP_|KMP_|PYTORCH_(CUDA_|HIP_)?ALLOC_CONF$|CUBLAS_WORKSPACE_CONFIG$)"
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE")

BLACKWELL_MAJOR = 10
ORDERED_MODES = ("tp", "sp", "ring", "rsa", "ulysses", "usp")
"""Modes in which a collective hides under what is launched after it."""
GPU_DEVICE_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")

INSTALL_TORCH = 'pip install "sp-profiler[run]"'


def recorded_variables(environ: Mapping[str, str]) -> dict[str, str | None]:
    """The variables that change how communication or computation runs, by name; no secrets."""
    found = {
        name: value
        for name, value in environ.items()
        if _RECORDED.match(name) and not _SECRET.search(name.upper())
    }
    return dict(sorted({**dict.fromkeys(ALWAYS_RECORDED), **found}.items()))


def connections_setting(
    device_capability: tuple[int, int] | None, mode: str, environ: Mapping[str, str]
) -> dict[str, str]:
    """What must be set before the ranks of a run start: `{NAME: value}`, often empty.

    Tensor and sequence parallelism hide a collective under the GEMM that is launched after it, rings of
    context parallelism under the attention. Before Blackwell (compute capability 10) the order of launches
    on two streams is kept only when the device has a single hardware queue,
    `CUDA_DEVICE_MAX_CONNECTIONS=1`. A value the user chose stays.
    `device_capability` is None where there is no CUDA device.
    """
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    if device_capability is None or mode not in ORDERED_MODES or name in environ:
        return {}
    return {name: "1"} if device_capability[0] < BLACKWELL_MAJOR else {}


def package_version(name: str) -> str | None:
    """The installed version of a distribution, None when it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_name() -> str:
    """The processor's name as the system has it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def memory_bytes() -> int | None:
    """The machine's memory in bytes, None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def nvidia_driver() -> str | None:
    """The version of the loaded NVIDIA driver, None without one."""
    path = Path("/proc/driver/nvidia/version")
    found = re.search(r"Module\D*?(\d+\.\d[\d.]*)", path.read_text()) if path.exists() else None
    return found[1] if found else None


def cpu_hardware() -> dict[str, Any]:
    """The processor as an entry of run.json's `hardware`."""
    return {
        "kind": "cpu",
        "name": cpu_name(),
        "logical_cores": usable_cores(),
        "memory_bytes": memory_bytes(),
    }


def base_versions() -> dict[str, str | None]:
    """Versions that can be told without importing torch."""
    return {
        "python": platform.python_version(),
        "sp_profiler": __version__,
        "torch": package_version("torch"),
        "os": f"{platform.system()} {platform.release()}",
        "driver": nvidia_driver(),
    }


def torch_versions() -> dict[str, str | None]:
    """Versions of torch and of what it was built with (imports torch)."""
    import torch
    import torch.cuda.nccl

    versions: dict[str, str | None] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "nccl": None,
        "cudnn": None,
    }
    if torch.cuda.is_available():
        if torch.distributed.is_available() and torch.distributed.is_nccl_available():
            versions["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
        versions["cudnn"] = str(torch.backends.cudnn.version())
    return versions


def torch_hardware() -> list[dict[str, Any]]:
    """Every GPU that torch sees (imports torch)."""
    import torch

    gpus: list[dict[str, Any]] = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(index)
        gpus.append(
            {
                "kind": "cuda",
                "index": index,
                "name": properties.name,
                "capability": [properties.major, properties.minor],
                "memory_bytes": properties.total_memory,
                "multiprocessors": properties.multi_processor_count,
            }
        )
    return gpus


def describe_torch() -> dict[str, Any]:
    """What torch can do here (imports torch): versions, GPUs, available backends."""
    import torch

    distributed = torch.distributed.is_available()
    return {
        "versions": torch_versions(),
        "gpus": torch_hardware(),
        "backends": {
            "gloo": distributed and torch.distributed.is_gloo_available(),
            "nccl": distributed and torch.distributed.is_nccl_available(),
        },
        "profiler": torch.profiler.kineto_available(),
    }


def probe_torch(timeout_s: float = 120.0) -> dict[str, Any]:
    """`describe_torch` of a process of its own, so that ours neither loads torch nor holds a GPU.

    Raises RuntimeError with the end of its output when torch cannot be imported or does not answer.
    """
    command = [sys.executable, "-m", "sp_profiler.record.environment"]
    environ = {**os.environ, "PYTHONSAFEPATH": "1"}
    try:
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"torch did not answer within {timeout_s:g} s") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RuntimeError(lines[-1])
    return json.loads(done.stdout.splitlines()[-1])


def may_have_gpu() -> bool:
    """False where there is certainly no GPU, so that nobody waits for torch to say so."""
    return any(Path(name).exists() for name in GPU_DEVICE_FILES)


def shared_memory_bytes() -> tuple[int, int] | None:
    """Total and free bytes of /dev/shm (NCCL and data loaders need it), None where there is none."""
    if not Path("/dev/shm").is_dir():
        return None
    usage = shutil.disk_usage("/dev/shm")
    return usage.total, usage.free


def rank_facts() -> dict[str, Any]:
    """What one rank knows for run.json (imports torch): see `runfile.py` for how ranks are merged."""
    import torch
    import torch.distributed as dist

    ready = dist.is_available() and dist.is_initialized()
    device_type = "cuda" if torch.cuda.is_initialized() else "cpu"
    # a group may have one backend for each device type
    backend = str(dist.get_backend_config()) if ready else ""
    backends = dict(part.split(":", 1) for part in backend.split(",") if ":" in part)
    world_text = os.environ.get("WORLD_SIZE", "")
    return {
        "host": socket.gethostname(),
        "world_size": dist.get_world_size() if ready else int(world_text) if world_text.isdigit() else 1,
        "backend": backends.get(device_type, backend or None),
        "device_type": device_type,
        "groups": _groups() if ready else [],
        "environment": recorded_variables(os.environ),
        "versions": {**base_versions(), **torch_versions()},
        "hardware": [cpu_hardware(), *torch_hardware()],
    }


def _groups() -> list[dict[str, Any]]:
    """The process groups of this rank; torch lists them for its profiler only, under a private name."""
    import torch.distributed as dist

    list_groups = getattr(dist.distributed_c10d, "_get_all_pg_configs", None)
    groups: list[dict[str, Any]] = []
    for group in list_groups() if list_groups is not None else []:
        ranks = [int(rank) for rank in group["ranks"]]
        description = str(group.get("pg_desc") or group.get("pg_name"))
        key = f"{description}[{','.join(map(str, ranks))}]"
        groups.append({"key": key, "description": description, "ranks": ranks})
    return groups


if __name__ == "__main__":
    print(json.dumps(describe_torch()))
