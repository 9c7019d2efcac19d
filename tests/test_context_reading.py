"""How the launches of a ring read: letters in, passes, hops and ring steps out."""

from __future__ import annotations

import pytest

from sp_profiler.analysis.context_parallel.reading import Reading, read, ring_size


def reading(hops: str, slots: str, size: int, *, backward: bool = False, pairs: bool = False) -> Reading:
    found = read(hops, slots, size, backward, pairs)
    assert found is not None, f"{hops} with {slots} is no ring of {size}"
    return found


def told(found: Reading) -> list[str]:
    """Each kernel as pass:payload+hop."""
    return [
        f"{one}:{name}{hop}" for one, name, hop in zip(found.of_pass, found.payload, found.hop, strict=True)
    ]


def test_forward_of_four() -> None:
    found = reading("kkk", ".AAA", 4)
    assert told(found) == ["0:kv0", "0:kv1", "0:kv2"]
    assert found.slot_step == (-1, 0, 1, 2)
    assert found.slot_is_tail == (False, False, False, True)  # the block of step 3 follows without a launch


def test_forward_that_begins_with_the_own_block() -> None:
    found = reading("kkk", "AAAA", 4)
    assert found.slot_step == (0, 1, 2, 3)
    assert not any(found.slot_is_tail)


def test_forward_all_the_way_round() -> None:
    found = reading("kkkk", ".AAAA", 4)
    assert told(found) == ["0:kv0", "0:kv1", "0:kv2", "0:kv3"]
    assert found.slot_step == (-1, 0, 1, 2, 3)
    assert not any(found.slot_is_tail)


def test_own_blocks_first_in_passes_that_nothing_separates() -> None:
    whole = reading("kkkk", "AAAAA", 3)
    assert whole.slot_pass == (0, 0, 0, 1, 1)
    assert whole.slot_step == (0, 1, 2, 1, 2)
    assert whole.slot_is_border == (False, False, True, False, False)  # the last block and the next own one
    causal = reading("kkkkkk", "A..A...", 4)  # a rank with its own block alone
    assert causal.slot_pass == (0, 0, 0, 1, 1, 1, 1)
    assert causal.slot_step[3] == 0


def test_a_causal_rank_with_nothing_to_compute() -> None:
    assert told(reading("kkk", ".A..", 4)) == ["0:kv0", "0:kv1", "0:kv2"]


def test_passes_that_nothing_separates() -> None:
    found = reading("kkkkkk", ".A..A..", 4)
    assert found.passes == 2
    assert told(found)[3:] == ["1:kv0", "1:kv1", "1:kv2"]
    assert found.slot_pass == (0, 0, 0, 0, 1, 1, 1)


def test_two_kernels_a_hop() -> None:
    for slots in ("..A.A.A", "..A...."):  # the second: a causal rank with its own block alone
        found = reading("kkkkkk", slots, 4)
        assert found.kernels == 2
        assert told(found) == ["0:kv0", "0:kv0", "0:kv1", "0:kv1", "0:kv2", "0:kv2"]


def test_sends_and_receives_without_attention_between() -> None:
    assert reading("kkkkkk", "." * 7, 4, pairs=True).kernels == 2
    assert reading("kkkkkk", "." * 7, 4).passes == 2


def test_backward_with_gradients_one_step_behind() -> None:
    found = reading("kdkdkdd", ".A.A.AA.", 4, backward=True)
    assert told(found) == ["0:kv0", "0:dkv1", "0:kv1", "0:dkv2", "0:kv2", "0:dkv3", "0:dkv4"]
    assert found.slot_step == (-1, 0, 1, 1, 2, 2, 3, -1)
    assert not any(found.slot_is_tail)


def test_backward_of_which_nobody_tells_the_payload() -> None:
    assert told(reading("uuuuuuu", ".A.A.AA.", 4, backward=True)) == told(
        reading("kdkdkdd", ".A.A.AA.", 4, backward=True)
    )


def test_gradients_of_one_size_in_several_kernels_each() -> None:
    """K and V, dK and dV, sends and receives apart: as many kernels a hop as the shortest run tells."""
    for kernels in (2, 4):
        idle = "." * (kernels - 1)
        slots = "." + idle + "A" + (2 * idle + ".A") * 2 + idle + "A" + idle + "."
        hops = "u" * (7 * kernels)
        found = reading(hops, slots, 4, backward=True, pairs=True)
        assert (found.kernels, found.passes) == (kernels, 1)
        one_each = ["0:kv0", "0:dkv1", "0:kv1", "0:dkv2", "0:kv2", "0:dkv3", "0:dkv4"]
        assert told(found) == [hop for hop in one_each for _ in range(kernels)]
        assert [step for step, slot in zip(found.slot_step, slots, strict=True) if slot == "A"] == [
            0,
            1,
            2,
            3,
        ]


@pytest.mark.parametrize("hops", ["kddd", "kddk", "uuuu"])
def test_backward_in_which_gradients_travel_with_their_block(hops: str) -> None:
    found = reading(hops, ".AAAA", 4, backward=True)
    assert told(found) == ["0:kv0", "0:kv+dkv1", "0:kv+dkv2", "0:dkv3"]
    assert found.slot_step == (-1, 0, 1, 2, 3)


def test_forward_repeated_inside_backward() -> None:
    found = reading("kk" + "kdkdd", ".AA" + "A.AA.", 3, backward=True)
    assert found.repeats == (True, False)
    assert told(found)[:3] == ["0:kv0", "0:kv1", "1:kv0"]
    assert told(found)[-1] == "1:dkv3"
    assert found.slot_step == (-1, 0, 1, 0, 1, 1, 2, -1)


def test_backward_that_sends_after_each_block() -> None:
    found = reading("kdkdkdd", "A.A.A.A.", 4, backward=True)
    assert found.slot_step == (0, 0, 1, 1, 2, 2, 3, -1)


def test_gradients_alone_go_round_where_keys_were_gathered() -> None:
    found = reading("ddd", "AAA.", 3, backward=True)
    assert told(found) == ["0:dkv1", "0:dkv2", "0:dkv3"]
    assert found.slot_step == (0, 1, 2, -1)


def test_ring_self_attention() -> None:
    found = reading("kkkkkk", ".AASAAA", 4)
    assert found.kind == "ring-self-attention"
    assert told(found) == ["0:k0", "0:k1", "0:k2", "0:v4", "0:v5", "0:v6"]
    assert found.slot_is_tail == (False, False, False, True, False, False, True)


def test_ring_self_attention_backward_reduces_gradients() -> None:
    found = reading("kkrkkr", ".AAAAA.", 3, backward=True)
    assert found.kind == "ring-self-attention"
    assert told(found) == ["0:v0", "0:v1", "0:dv0", "0:k3", "0:k4", "0:dk0"]


def test_a_ring_whose_blocks_have_a_softmax_each_is_no_ring_self_attention() -> None:
    assert reading("kk", ".SS", 2).kind == "ring"
    assert reading("kkkk", ".SSSS", 3).kind == "ring"


@pytest.mark.parametrize(
    ("hops", "slots", "size", "backward"),
    [
        ("kk", ".AA", 4, False),  # a hop is missing
        ("kdkd", ".A.A.", 4, True),
        ("kkkkk", ".AAAAA", 4, False),
        ("kkk", ".AAA", 1, False),
        ("r", "..", 4, True),
    ],
)
def test_what_fits_no_ring(hops: str, slots: str, size: int, backward: bool) -> None:
    assert read(hops, slots, size, backward) is None


def test_the_size_of_a_ring_that_nothing_names() -> None:
    assert ring_size([("kkk", ".AAA"), ("kkk", ".A.."), ("kk", ".AA"), ("kdkdd", ".A.AA.")]) == 4
    assert ring_size([("kkkk", "..A.A")]) == 3
    assert ring_size([("kdkdd", ".A.AA.")]) is None
