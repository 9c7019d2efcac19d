#!/usr/bin/env bash
# Does the CUDA path work? Runs short workloads over NCCL on a machine with one GPU or more and keeps reports,
# run.json and traces in $OUT (default ./gpu-check). Needs torch with CUDA; takes three to five minutes.
#
# With a single GPU two ranks share it, each under a host name of its own (NCCL refuses two ranks of one host
# on one GPU). That shows that kernels are recorded and classified; its times mean nothing. Where NCCL refuses
# even so, one rank runs alone: then there is no communication to look at, and the last line says so.
set -u

cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
out=${OUT:-./gpu-check}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$out"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
sizes=(--layers 4 --seq-len 2048 --hidden 1024 --heads 16 --micro-batch 2 --dtype bf16 --warmup 3 --active-steps 2)

"$python" -m sp_profiler doctor
gpus=$("$python" -c 'import torch; print(torch.cuda.device_count())') || exit 4
if [ "$gpus" -lt 1 ]; then
    echo "gpu_check: torch sees no GPU"
    exit 4
fi
[ "$gpus" -ge 2 ] || export SP_PROFILE_SHARE_GPUS=1

run() { # NAME RANKS OPTIONS...: one workload; its files go to $out as NAME.*
    local name=$1 ranks=$2
    shift 2
    timeout 100 "$python" -m sp_profiler run "$@" --ranks "$ranks" --backend nccl --timeout 60 "${sizes[@]}" \
        --out "$scratch/$name" 2>&1 | tee "$out/$name.txt"
    local code=${PIPESTATUS[0]}
    [ "$code" -eq 0 ] || return "$code"
    mkdir -p "$out/$name"
    cp "$scratch/$name"/{run.json,report.json,rank-00000.pt.trace.json.gz} "$out/$name/"
}

ranks=2
if ! run tp-async 2 tp --comm async; then
    ranks=1
    echo "gpu_check: two ranks over NCCL failed (see tp-async.txt), trying one"
    unset SP_PROFILE_SHARE_GPUS
    run tp-async 1 tp --comm async || exit 4
fi
if [ "$ranks" -eq 2 ]; then
    run sp-recompute 2 sp --save shard --comm async || exit 4
    run ring-async 2 ring --layout zigzag --comm async || exit 4
fi

"$python" - "$scratch" "$ranks" <<'PYTHON'
import json
import sys
from pathlib import Path

failed = False
for path in sorted(Path(sys.argv[1]).glob("*/report.json")):
    report = json.loads(path.read_text())
    for rank in report["ranks"]:
        parts = rank["compute_ns"] + rank["exposed_ns"] + rank["memory_op_only_ns"] + rank["idle_ns"]
        names = ("window_ns", "compute_ns", "comm_ns", "overlapped_ns", "wgrad_overlapped_ns")
        print(path.parent.name, "rank", rank["rank"], {name: rank[name] for name in names})
        failed |= parts != rank["window_ns"] or rank["compute_ns"] <= 0 or rank["device_type"] != "cuda"
        failed |= int(sys.argv[2]) > 1 and rank["comm_ns"] <= 0
    for scheme in (report["context_parallel"] or {}).get("schemes", []):
        print(path.parent.name, "context parallelism:", scheme["scheme"], scheme["evidence"])
    failed |= path.parent.name.startswith("ring") and report["context_parallel"] is None
    settings = json.loads((path.parent / "run.json").read_text())
    print(path.parent.name, "set by tool:", settings["set_by_tool"], "capability:", [
        device["capability"] for device in settings["hardware"] if device["kind"] == "cuda"
    ])
print("gpu_check:", "FAILED" if failed else "ok", "with", sys.argv[2], "rank(s) over NCCL",
      "" if int(sys.argv[2]) > 1 else "(no communication was seen)")
sys.exit(4 if failed else 0)
PYTHON
