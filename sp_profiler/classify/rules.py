"""The names of the rules that tell dgrad from wgrad; `backward.py` says what each means."""

BACKWARD_RULES = (
    "operator-name",
    "shapes",
    "strides",
    "node-table",
    "node-order",
    "other-of-node",
    "kernel-layout",
)
