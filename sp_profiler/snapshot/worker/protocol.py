"""What the process that reads pickles and the side that starts it agree on.

Output: `MAGIC`, the length of the header in 8 bytes (big endian), the header as JSON, then the columns in
its order as native int64 arrays. A refusal is a header with `refused` (a kind) and `detail`.
"""

from __future__ import annotations

MAGIC = b"SPSNAP1\n"
ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "oom",
    "snapshot",
    "user_defined",
)
"""What a history tells of, as torch names it; the column `action` holds places in it."""
ALLOC, FREE_REQUESTED, FREE_COMPLETED = 0, 1, 2
SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP = 3, 4, 5, 6
OUT_OF_MEMORY = 7
STATES = ("active_allocated", "active_awaiting_free", "inactive")
"""Of a block, as torch names them; the column `state` holds places in it."""
ALLOCATED, AWAITING_FREE, INACTIVE = 0, 1, 2
NONE = -1  # in a column: a number or text that the snapshot does not hold
MAX_DEVICES = 256  # of one process; torch is compiled for fewer
