"""What a ring's hops carry in backward, and what batches of sends and receives did: small, drawn by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sp_profiler.classify import classify
from sp_profiler.classify.rings import Pass, Size, carried
from sp_profiler.classify.tables import Collective
from sp_profiler.trace.decode import decode_trace
from sp_profiler.trace.write import TraceWriter, collective_args

M: Size = ("bfloat16", 100)  # K, V
BOTH: Size = ("bfloat16", 200)
WIDE: Size = ("float32", 200)
NOTHING: Size = (None, None)


def told(sizes: list[Size], early: int, forward: list[Size], *, gathered: bool = False) -> str:
    """A letter for each transfer: k, d, or . for nobody knows."""
    found = carried(Pass(sizes, early, forward, gathered), set(forward), set(sizes))
    return "".join("." if purpose is None else purpose[0] for purpose in found)


def test_by_type_where_forward_shows_it() -> None:
    assert told([M, WIDE, M, WIDE, M, WIDE, WIDE], 1, [M] * 3) == "kdkdkdd"


def test_without_forward_the_wider_type_is_of_gradients() -> None:
    assert told([M, WIDE, M, WIDE, WIDE], 1, []) == "kdkdd"


def test_of_equal_hops_of_more_than_two_ranks_nobody_knows() -> None:
    assert told([M] * 7, 1, [M] * 3) == "......."
    assert told([NOTHING] * 7, 1, [NOTHING] * 3) == "......."


@pytest.mark.parametrize("size", [M, NOTHING])
@pytest.mark.parametrize("kernels", [1, 2, 4])
def test_two_ranks_hand_on_keys_once_and_before_the_first_block(size: Size, kernels: int) -> None:
    """dK and dV follow twice, or once where they are sent together with K, V."""
    apart = told([size] * 3 * kernels, kernels, [size] * kernels)
    together = told([size] * 2 * kernels, kernels, [size] * kernels)
    assert (apart, together) == ("k" * kernels + "d" * 2 * kernels, "k" * kernels + "d" * kernels)
    assert told([size] * 3 * kernels, 0, [size] * kernels) == "." * 3 * kernels  # a hop after its block


@pytest.mark.parametrize("kernels", [1, 2])
def test_together(kernels: int) -> None:
    """TransformerEngine: K, V alone, then both, then the gradients alone, which are as large as K, V."""
    alone, both = [M] * kernels, [BOTH] * kernels
    sizes, forward = [*alone, *both, *both, *alone], alone * 3
    expected = "".join(letter * kernels for letter in "kddd")
    assert told(sizes, kernels, forward) == expected
    assert told([NOTHING] * len(sizes), kernels, [NOTHING] * len(forward)) == expected
    # Without its function, or of several passes at once, order around what carries both tells as well.
    assert told(sizes * 2, 0, []) == expected * 2


def test_what_the_window_cut_stays_open_around_both() -> None:
    assert told([M, M, BOTH, M], 0, []) == "..d."  # two kernels a hop, or the end of a pass before?


def test_gathered_keys_leave_only_gradients_to_the_ring() -> None:
    assert told([M] * 4, 0, [], gathered=True) == "dddd"


# --- batches --------------------------------------------------------------------------------------------


class Draw:
    """A thread that posts sends and receives, and launches."""

    def __init__(self, rank: int = 0) -> None:
        self.writer = TraceWriter(rank, 4)
        self.now = 0

    def post(self, name: str, peer: int, elements: int = 1000) -> Draw:
        end: dict[str, Any] = {"Dst Rank" if name == "send" else "Src Rank": peer}
        args = collective_args(name, ranks=(0, 1, 2, 3), description="cp", in_elements=elements, **end)
        self.writer.cpu_op("record_param_comms", self.now, 3, **args)
        self.now += 10
        return self

    def launch(self, name: str = "ncclDevKernel_SendRecv(int)", tid: int | None = None) -> Draw:
        self.writer.range("nccl:coalesced", self.now, 5, tid=tid)
        self.writer.kernel(name, self.now + 1000, 5, stream=20, launch=self.now + 1, launch_tid=tid)
        self.now += 10
        return self

    def read(self, folder: Path) -> list[Collective]:
        return list(classify(decode_trace(self.writer.write(folder / "rank0.json"))).collectives)


def test_a_batch_is_what_was_posted_since_the_launch_before(tmp_path: Path) -> None:
    drawn = Draw().post("send", 1).post("send", 1).post("recv", 3).post("recv", 3, 500).launch()
    first, second = drawn.post("recv", 2, 300).launch().read(tmp_path)
    assert first.group is not None
    assert (first.op, first.group.key, first.dtype) == ("send_recv", "cp[0,1,2,3]", "bfloat16")
    assert (first.bytes, first.peers, first.source, first.target) == (4000, (1, 3), 3, 1)
    assert (second.bytes, second.peers, second.source, second.target) == (600, (2,), 2, None)


def test_a_batch_with_several_ranks_has_no_one_source_or_target(tmp_path: Path) -> None:
    (one,) = Draw().post("send", 1).post("send", 2).post("recv", 3).launch().read(tmp_path)
    assert (one.peers, one.source, one.target) == ((1, 2, 3), 3, None)


def test_a_generic_kernel_is_named_by_its_records(tmp_path: Path) -> None:
    (one,) = Draw().post("send", 1).post("recv", 3).launch("ncclDevKernel_Generic_4(int)").read(tmp_path)
    assert (one.op, one.peers) == ("send_recv", (1, 3))


def test_records_of_another_thread_or_operation_are_no_batch(tmp_path: Path) -> None:
    (one,) = Draw().post("send", 1).launch(tid=7).read(tmp_path)
    assert (one.op, one.group, one.bytes, one.peers) == ("send_recv", None, None, ())
    (one,) = Draw().post("send", 1).launch("ncclDevKernel_AllGather_RING_LL(int)").read(tmp_path)
    assert (one.op, one.bytes, one.peers) == ("all_gather", None, ())


def test_a_send_by_itself_leaves_no_record_for_others(tmp_path: Path) -> None:
    drawn = Draw()
    end: dict[str, Any] = {"Dst Rank": 1}
    args = collective_args("send", ranks=(0, 1, 2, 3), in_elements=7, **end)
    drawn.writer.cpu_op("record_param_comms", 0, 5, **args)
    drawn.writer.kernel("ncclDevKernel_SendRecv(int)", 1000, 5, stream=31, launch=1)
    drawn.now = 10
    own, other = drawn.launch().read(tmp_path)
    assert (own.bytes, own.peers) == (14, (1,))
    assert (other.bytes, other.peers) == (None, ())


@pytest.mark.parametrize(
    ("given", "taken", "elements", "op"),
    [
        ([0, 8, 0, 0], [0, 0, 0, 8], (8, 8), "send_recv"),  # rank 0: to 1, from 3
        ([0, 0, 0, 8], [0, 8, 0, 0], (8, 8), "send_recv"),
        ([0, 8, 0, 0], [0, 8, 0, 0], (8, 8), "all_to_all"),  # to 1 and from 1 is no rotation of four
        ([8, 0, 0, 0], [8, 0, 0, 0], (8, 8), "all_to_all"),
        ([0, 8, 0, 0], [0, 0, 0, 6], (8, 6), "all_to_all"),  # takes less than it gives: experts
        ([2, 2, 2, 2], [2, 2, 2, 2], (8, 8), "all_to_all"),
    ],
)
def test_a_rotation_is_a_shift(
    tmp_path: Path, given: list[int], taken: list[int], elements: tuple[int, int], op: str
) -> None:
    writer = TraceWriter(0, 4)
    splits: dict[str, Any] = {"In split size": str(given), "Out split size": str(taken)}
    args = collective_args(
        "all_to_allv", ranks=(0, 1, 2, 3), in_elements=elements[0], out_elements=elements[1], **splits
    )
    writer.kernel("ncclDevKernel_SendRecv(int)", 1000, 5, stream=20, launch=1, **args)
    (one,) = classify(decode_trace(writer.write(tmp_path / "rank0.json"))).collectives
    assert one.op == op
    if op == "send_recv":
        assert one.peers == (1, 3)
        assert (one.target, one.source) == (given.index(8), taken.index(8))
