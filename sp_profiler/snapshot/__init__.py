"""CUDA memory snapshots (`torch.cuda.memory._dump_snapshot`): read safely, walked backwards, explained.

`read` runs `worker` in a process of its own and returns plain columns (`tables`); `history` pairs them to
blocks, `phases` and `frames` tell what a block is for, `oom` explains allocations that failed, `figures` puts
it into the result type that traces have too.
"""
