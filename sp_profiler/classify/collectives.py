"""What is known of each communication activity: operation, group, bytes, type, sequence, launch, wait.

Metadata come from the kernel itself, else from the `record_param_comms` around its launch, else from
our annotation, else from the `nccl:*` range and the kernel's name. What nobody says stays None.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

from sp_profiler.classify.dtypes import dtype_bytes, dtype_name
from sp_profiler.record.annotate import Range
from sp_profiler.trace.tables import CollectiveArgs

SEND_RECV = "send_recv"
_IGNORED = re.compile(r"^(?:wait|init|startcoalescing|endcoalescing)")
_UNIFIED: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (op, re.compile(pattern))
    for op, pattern in (
        ("all_reduce", r"all_?reduce"),
        ("reduce_scatter", r"reduce_?scatter"),
        ("all_gather", r"all_?gather"),
        ("all_to_all", r"all_?(?:to|2)_?all"),
        ("broadcast", r"broadcast|bcast"),
        (SEND_RECV, r"^(?:i?send|i?recv|send_?recv|batch_isend|p2p|coalesced)"),
        ("barrier", r"barrier"),
        ("gather", r"gather"),
        ("scatter", r"scatter"),
        ("reduce", r"reduce"),
    )
)


@lru_cache(maxsize=4096)
def unified_op(name: str | None) -> str | None:
    """One name for each operation: `_allgather_base`, `all_gather_into_tensor_coalesced` -> `all_gather`.

    `wait` and bookkeeping records are no operation (None); a name nobody knows is returned as written.
    """
    if name is None:
        return None
    text = re.sub(r"^(?:nccl|gloo|c10d|mpi|ucc|xccl|rccl|hccl):+", "", name.strip()).strip("_").lower()
    if not text or _IGNORED.match(text):
        return None
    return next((op for op, pattern in _UNIFIED if pattern.search(text)), text)


def is_collective(args: CollectiveArgs) -> bool:
    """Whether metadata describe a collective and not the wait for one."""
    return args.name is not None and unified_op(args.name) is not None


def _split_sum(text: str | None) -> int:
    return sum(int(number) for number in re.findall(r"\d+", (text or "").partition("...")[0]))


def full_elements(
    op: str | None,
    in_elements: int | None,
    out_elements: int | None,
    size: int | None,
    splits: tuple[str | None, str | None] = (None, None),
) -> int | None:
    """Elements of the full tensor; for all-to-all, broadcast and send/recv of one rank's buffer.

    All-gather and reduce-scatter differ by the group size between input and output; list forms that
    record one shard on both sides, or a side that is missing, are completed with it. An uneven
    all-to-all is the sum of its splits, where the element counts do not say more.
    """
    counts = [count for count in (in_elements, out_elements) if count is not None and count >= 0]
    if op == "all_to_all":
        counts += [total for total in map(_split_sum, splits) if total]
    if not counts:
        return None
    most = max(counts)
    shard = {"all_gather": in_elements, "reduce_scatter": out_elements}.get(op or "")
    if shard is not None and most == shard and size is not None:
        return shard * size
    return most


def collective_bytes(op: str | None, args: CollectiveArgs, size: int | None) -> int | None:
    """Bytes of a collective by its metadata (DESIGN: Bytes); None when type or counts are unknown."""
    width = dtype_bytes(dtype_name(args.dtype))
    elements = full_elements(
        op, args.in_elements, args.out_elements, size or args.group_size, (args.in_split, args.out_split)
    )
    return None if width is None or elements is None else elements * width


def peers_of(op: str | None, args: CollectiveArgs | None, rank: int | None) -> tuple[int, ...]:
    """The other ends of a send/recv."""
    if args is None or op != SEND_RECV:
        return ()
    ends = {end for end in (args.src_rank, args.dst_rank) if end is not None and end >= 0}
    return tuple(sorted(ends - {rank} if len(ends) > 1 else ends))


def annotated_peers(annotation: Range | None) -> tuple[int, ...]:
    """The other ends of a send_recv by its `sp::comm` range."""
    ends = {annotation.source, annotation.target} if annotation is not None else set()
    return tuple(sorted(end for end in ends if end is not None))


def ends_of(
    op: str | None, args: CollectiveArgs | None, rank: int | None, ranks: Sequence[int]
) -> tuple[int | None, int | None]:
    """The ranks that a send_recv, or an all-to-all that shifts around a ring, receives from and sends to.

    A send's metadata name the rank itself as source, those of a receive as target. An all-to-all is a shift
    when it gives everything to one rank and takes everything from one, as far round `ranks` (the group's) one
    way as the other.
    """
    if args is None:
        return None, None
    if op == SEND_RECV:
        source, target = _global(args.src_rank, args.dst_rank, ranks)
        return (None if source == rank else source), (None if target == rank else target)
    if op == "all_to_all" and rank in ranks:
        given, taken = only_place(args.in_split), only_place(args.out_split)
        place, size = ranks.index(rank), len(ranks)
        if given is None or taken is None or max(given, taken) >= size or given == place:
            return None, None
        if (given - place) % size == (place - taken) % size:
            return ranks[taken], ranks[given]
    return None, None


def _global(source: int | None, target: int | None, ranks: Sequence[int]) -> tuple[int | None, int | None]:
    """Ranks as numbers of the world: numbers within the group are known by one that is no rank of it."""
    told = [end for end in (source, target) if end is not None]
    within = any(end not in ranks for end in told) and all(0 <= end < len(ranks) for end in told)
    if not within:
        return source, target
    return (None if source is None else ranks[source]), (None if target is None else ranks[target])


@lru_cache(maxsize=4096)
def only_place(splits: str | None) -> int | None:
    """The place of the only split that holds anything: 2 of `[0, 0, 1024, 0]`; None for other splits."""
    sizes = _json_list(splits)
    filled = [place for place, size in enumerate(sizes) if size]
    return filled[0] if len(sizes) > 1 and len(filled) == 1 else None


@lru_cache(maxsize=65536)
def tensors(dims: str | None, types: str | None) -> tuple[tuple[int, str | None], ...]:
    """Elements and type of each tensor argument in `Input Dims` and `Input type` texts.

    A list of tensors (`[[64, 8], [3, 8]]` as one argument) counts each; scalars and empty arguments
    have no dimensions and are left out.
    """
    shapes, names = _json_list(dims), _json_list(types)
    found: list[tuple[int, str | None]] = []
    for index, shape in enumerate(shapes):
        name = names[index] if index < len(names) and isinstance(names[index], str) else None
        if not isinstance(shape, list) or not shape:
            continue
        listed: Sequence[Any] = shape if all(isinstance(part, list) for part in shape) else [shape]
        dtype = None if name == "TensorList" else dtype_name(name)
        found += [(prod(part), dtype) for part in listed if part and all(isinstance(n, int) for n in part)]
    return tuple(found)


def _json_list(text: str | None) -> list[Any]:
    if text is None:
        return []
    try:
        value = json.loads(text)
    except ValueError:
        return []
    return value if isinstance(value, list) else []


def range_bytes(op: str | None, dims: str | None, types: str | None) -> tuple[int | None, str | None]:
    """Bytes and type by the tensors of a `nccl:*` or `gloo:*` range, where its input is what counts.

    An all-gather's input is one shard; without the group's size nothing is said.
    """
    given = tensors(dims, types)
    kinds = {dtype for _, dtype in given}
    dtype = kinds.pop() if len(kinds) == 1 else None
    width = dtype_bytes(dtype)
    if not given or width is None or op in ("all_gather", "gather", "scatter", None):
        return None, dtype
    return sum(elements for elements, _ in given) * width, dtype
