"""Operations, element types, bytes and groups as collectives' metadata spell them."""

from __future__ import annotations

from typing import Any

import pytest

from sp_profiler.classify.collectives import (
    collective_bytes,
    full_elements,
    is_collective,
    peers_of,
    range_bytes,
    tensors,
    unified_op,
)
from sp_profiler.classify.dtypes import dtype_bytes, dtype_name
from sp_profiler.classify.groups import GroupBook, parse_group_key, parse_ranks, rebuilt_ranks
from sp_profiler.ledger import Ledger
from sp_profiler.trace.tables import CollectiveArgs, Metadata


@pytest.mark.parametrize(
    ("op", "names"),
    [
        (
            "all_reduce",
            "allreduce all_reduce allreduce_coalesced allreduce_sparse nccl:all_reduce c10d::allreduce_",
        ),
        (
            "all_gather",
            "_allgather_base all_gather allgather all_gather_into_tensor_coalesced nccl:_all_gather_base "
            "allgather_into_tensor_coalesced ALLGATHER_coalesced c10d::_allgather_base_ gloo:all_gather",
        ),
        (
            "reduce_scatter",
            "_reduce_scatter_base reduce_scatter reduce_scatter_tensor_coalesced REDUCE_SCATTER_coalesced",
        ),
        ("all_to_all", "all_to_all all_to_allv alltoall_base c10d::alltoall_base_ alltoall gloo:all_to_all"),
        ("broadcast", "broadcast _broadcast_oop broadcast_oop"),
        ("reduce", "reduce _reduce_oop"),
        ("send_recv", "send recv isend irecv coalesced c10d::recv_ gloo:send gloo:recv nccl:send"),
        ("gather", "gather c10d::gather_"),
        ("scatter", "scatter"),
        ("barrier", "barrier gloo:barrier"),
        ("something_new", "something_new"),
    ],
)
def test_unified_op(op: str, names: str) -> None:
    assert {name: unified_op(name) for name in names.split()} == dict.fromkeys(names.split(), op)


def test_waits_are_no_collectives() -> None:
    assert unified_op("wait") is None
    assert unified_op(None) is None
    assert not is_collective(CollectiveArgs(name="wait"))
    assert not is_collective(CollectiveArgs())
    assert is_collective(CollectiveArgs(name="allreduce"))


@pytest.mark.parametrize(
    ("spelled", "name", "size"),
    [
        ("BFloat16", "bfloat16", 2),
        ("c10::BFloat16", "bfloat16", 2),
        ("Half", "float16", 2),
        ("Float", "float32", 4),
        ("float", "float32", 4),
        ("Double", "float64", 8),
        ("Byte", "uint8", 1),
        ("unsigned char", "uint8", 1),
        ("Char", "int8", 1),
        ("Short", "int16", 2),
        ("Int", "int32", 4),
        ("Long", "int64", 8),
        ("long int", "int64", 8),
        ("Bool", "bool", 1),
        ("Float8_e4m3fn", "float8_e4m3fn", 1),
        ("c10::Float8_e4m3fn", "float8_e4m3fn", 1),
        ("Float8_e5m2", "float8_e5m2", 1),
        ("Float8_e4m3fnuz", "float8_e4m3fnuz", 1),
        ("Float8_e8m0fnu", "float8_e8m0fnu", 1),
        ("float8_e4m3", "float8_e4m3fn", 1),
        ("f8e4m3fn", "float8_e4m3fn", 1),
        ("fp8e5", "float8_e5m2", 1),
        ("__nv_fp8_e4m3", "float8_e4m3fn", 1),
        ("__hip_fp8_e4m3_fnuz", "float8_e4m3fnuz", 1),
        ("fp8", "float8", 1),
        ("float32x4", "float32x4", None),
        ("nv_bfloat16", "bfloat16", 2),
        ("fp32", "float32", 4),
        ("Bits8", "bits8", 1),
        ("torch.float32", "float32", 4),
        ("ComplexFloat", "complex64", 8),
        ("c10::complex<double>", "complex128", 16),
        ("UInt32", "uint32", 4),
        ("Martian", "Martian", None),
        ("", None, None),
        (None, None, None),
    ],
)
def test_dtypes(spelled: str | None, name: str | None, size: int | None) -> None:
    assert dtype_name(spelled) == name
    assert dtype_bytes(dtype_name(spelled)) == size


@pytest.mark.parametrize(
    ("op", "inside", "outside", "size", "splits", "elements"),
    [
        ("all_reduce", 100, 100, 4, ("[]", "[]"), 100),
        ("all_gather", 100, 400, 4, ("[]", "[]"), 400),
        ("reduce_scatter", 400, 100, 4, ("[]", "[]"), 400),
        # list forms that record one shard on both sides
        ("all_gather", 100, 100, 4, ("[]", "[]"), 400),
        ("reduce_scatter", 100, 100, 4, ("[]", "[]"), 400),
        # one side missing
        ("all_gather", 100, None, 4, (None, None), 400),
        ("all_gather", None, 400, 4, (None, None), 400),
        ("all_gather", 100, 100, 1, (None, None), 100),
        ("all_gather", 100, 100, None, (None, None), 100),
        ("broadcast", 100, 100, 4, ("[]", "[]"), 100),
        ("send_recv", 100, 100, 2, ("[]", "[]"), 100),
        # uneven: rows below the element count, elements in list forms
        ("all_to_all", 96, 64, 2, ("[2, 4]", "[2, 2]"), 96),
        ("all_to_all", None, None, 2, ("[30, 70]", "[10, 50]"), 100),
        ("all_to_all", 0, 0, 2, ("[30, 70]", "[]"), 100),
        ("all_reduce", None, None, 4, (None, None), None),
    ],
)
def test_full_elements(
    op: str,
    inside: int | None,
    outside: int | None,
    size: int | None,
    splits: tuple[str | None, str | None],
    elements: int | None,
) -> None:
    assert full_elements(op, inside, outside, size, splits) == elements


def test_bytes() -> None:
    args = CollectiveArgs(name="_allgather_base", in_elements=3, out_elements=6, dtype="Float8_e4m3fn")
    assert collective_bytes("all_gather", args, 2) == 6
    assert (
        collective_bytes("all_gather", CollectiveArgs(in_elements=3, out_elements=6, dtype="Odd"), 2) is None
    )
    assert range_bytes("all_reduce", "[[64, 8], [3, 8]]", '["float", "float"]') == (2144, "float32")
    assert range_bytes("all_gather", "[[64, 8]]", '["float"]') == (None, "float32")
    assert range_bytes("all_reduce", None, None) == (None, None)


def test_tensors() -> None:
    assert tensors("[[[64, 8], [3, 8]], [], [5]]", '["TensorList", "", "float"]') == (
        (512, None),
        (24, None),
        (5, "float32"),
    )
    assert tensors("[[], [[]]]", None) == ()
    assert tensors("[[64, 8", None) == ()


def test_peers() -> None:
    args = CollectiveArgs(name="send", src_rank=0, dst_rank=1)
    assert peers_of("send_recv", args, 0) == (1,)
    assert peers_of("send_recv", args, 1) == (0,)
    assert peers_of("send_recv", args, None) == (0, 1)
    assert peers_of("all_reduce", args, 0) == ()


# ---------------------------------------------------------------- groups


@pytest.mark.parametrize(
    ("text", "ranks", "cut"),
    [
        ("[0, 1]", (0, 1), False),
        ("[0, 1, ..., ...]", (0, 1), True),
        ("[0, 1, 2, ...", (0, 1, 2), True),
        ("[0, 1, 2", (0, 1, 2), True),
        ("[]", (), False),
        (None, (), False),
    ],
)
def test_parse_ranks(text: str | None, ranks: tuple[int, ...], cut: bool) -> None:
    assert parse_ranks(text) == (ranks, cut)


@pytest.mark.parametrize(
    ("prefix", "size", "start", "stride", "ranks"),
    [
        ((0, 1), 4, None, None, (0, 1, 2, 3)),
        ((2, 10), 3, None, None, (2, 10, 18)),
        ((), 3, 1, 4, (1, 5, 9)),
        ((1, 5), 3, 1, 4, (1, 5, 9)),
        ((0, 1), 4, 0, 2, ()),  # they contradict each other
        ((0, 1, 5), 4, None, None, ()),
        ((0, 1), None, 0, 1, ()),
        ((7,), 1, None, None, (7,)),
        ((7,), 2, None, None, ()),
        ((0, 1), 4, -1, -1, (0, 1, 2, 3)),
    ],
)
def test_rebuilt_ranks(
    prefix: tuple[int, ...], size: int | None, start: int | None, stride: int | None, ranks: tuple[int, ...]
) -> None:
    assert rebuilt_ranks(prefix, size, start, stride) == ranks


def book(
    groups: tuple[dict[str, Any], ...] = (), world: int | None = 8, run: dict[str, Any] | None = None
) -> tuple[GroupBook, Ledger]:
    ledger = Ledger("t.json")
    metadata = Metadata(0, "distributedInfo", world, "nccl", None, 1, 0, True, (), groups)
    return GroupBook(metadata, run, ledger), ledger


def args(**fields: Any) -> CollectiveArgs:
    return CollectiveArgs(name="allreduce", **fields)


def test_two_groups_with_one_name() -> None:
    groups, _ = book()
    first = groups.from_args(args(group_name="1", group_ranks="[0, 1]", group_description="1"), None)
    second = groups.from_args(args(group_name="1", group_ranks="[2, 3]", group_description="1"), None)
    assert first is not None
    assert second is not None
    assert [group.key for group in groups.groups] == ["1[0,1]", "1[2,3]"]
    assert (first.ranks, second.ranks, first.size) == ((0, 1), (2, 3), 2)


@pytest.mark.parametrize(
    ("description", "key"), [("tp", "tp[0,1]"), ("undefined", "5[0,1]"), ("", "5[0,1]"), (None, "5[0,1]")]
)
def test_description(description: str | None, key: str) -> None:
    groups, _ = book()
    group = groups.from_args(args(group_name="5", group_description=description, group_ranks="[0, 1]"), None)
    assert group is not None
    assert group.key == key


def test_run_json_names_a_group_that_the_trace_does_not() -> None:
    run = {"groups": [{"key": "tp[0,1]", "description": "tp", "ranks": [0, 1]}]}
    groups, _ = book(run=run)
    group = groups.from_args(args(group_name="0", group_description="default_pg", group_ranks="[0, 1]"), None)
    assert group is not None
    assert group.key == "tp[0,1]"


def test_cut_list_by_configuration_by_stride_or_not_at_all() -> None:
    config = ({"pg_name": "9", "pg_desc": "dp", "pg_size": 3, "ranks": [0, 1, 7]},)
    groups, ledger = book(config)
    configured = groups.from_args(args(group_name="9", group_ranks="[0, 1, ..., ...]", group_size=3), None)
    strided = groups.from_args(args(group_name="x", group_ranks="[0, 2, ...]", group_size=4), None)
    lost = groups.from_args(args(group_name="y", group_ranks="[0, 2, 3, ...]", group_size=4), None)
    assert [group.ranks if group else None for group in (configured, strided, lost)] == [
        (0, 1, 7),
        (0, 2, 4, 6),
        (),
    ]
    assert lost is not None
    assert (lost.key, lost.size) == ("y[4 ranks]", 4)
    assert {entry.code for entry in ledger.entries} == {"rank-list-rebuilt", "rank-list-unknown"}


@pytest.mark.parametrize("listed", ["[]", "[0, ...]", "[0, 1, 2, ...]"])
def test_a_group_as_large_as_the_world_holds_every_rank(listed: str) -> None:
    groups, _ = book(world=4)
    group = groups.from_args(args(group_name="0", group_ranks=listed, group_size=4), None)
    assert group is not None
    assert group.ranks == (0, 1, 2, 3)


def test_ranks_listed_in_another_order_are_the_same_group() -> None:
    """Otherwise two ranks that list each other differently would never be matched."""
    groups, _ = book()
    for listed in ("[0, 3]", "[3, 0]"):
        assert groups.from_args(args(group_name="1", group_ranks=listed), None) is not None
    assert [group.key for group in groups.groups] == ["1[0,3]"]


def test_annotated_group_stands_where_the_ranks_agree() -> None:
    groups, _ = book()
    tp = groups.from_key("tp[0,1]")
    same = args(group_name="0", group_description="default_pg", group_ranks="[0, 1]")
    other = args(group_name="0", group_description="default_pg", group_ranks="[0, 2]")
    assert groups.from_args(same, tp) == tp
    assert groups.from_args(None, tp) == tp
    found = groups.from_args(other, tp)
    assert found is not None
    assert found.key == "default_pg[0,2]"


def test_group_key() -> None:
    assert parse_group_key("tp[0,1]") == ("tp", (0, 1))
    assert parse_group_key("a[b][3]") == ("a[b]", (3,))
    assert parse_group_key("tp[?]") is None
    assert parse_group_key("") is None
