"""What a difference in exposed time is made of: drawn cases with their ns, and that parts always sum."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from sp_profiler.comparing.parts import Sums, added, parts, rounded, shared


def of(count: int, each: int, **more: int | dict[str, int] | None) -> Sums:
    """`count` exposed collectives of `each` ns in one window; the rest as told."""
    whole = count * each
    facts = {"duration": whole, "exposed": whole, "share": whole} | more
    return Sums(1, count, **facts)  # type: ignore[arg-type]


def test_more_collectives() -> None:
    assert parts(of(4, 100), of(6, 100)) == {("count", None): Fraction(200)}


def test_longer_ones_without_anything_known_of_waits() -> None:
    assert parts(of(4, 100), of(4, 130)) == {("duration", None): Fraction(120)}


def test_more_and_longer_are_told_apart_without_preferring_a_run() -> None:
    # 4 x 100 -> 6 x 130: count 2 x 115 = 230, duration 5 x 30 = 150; in all 780 - 400
    found = parts(of(4, 100), of(6, 130))
    assert found == {("count", None): Fraction(230), ("duration", None): Fraction(150)}
    back = parts(of(6, 130), of(4, 100))
    assert back == {reason: -ns for reason, ns in found.items()}


def test_hidden_now() -> None:
    here = of(4, 100, overlapped=240, exposed=160, share=160, under={"wgrad": 200})
    assert parts(of(4, 100), here) == {
        ("overlap", "wgrad"): Fraction(-200),
        ("overlap", "other"): Fraction(-40),
    }


def test_waits_and_transfers_of_another_size() -> None:
    base = of(4, 100, skew_wait=80, transfer=320, bytes=3200)  # each waits 20, takes 80 for 800 bytes
    here = of(4, 150, skew_wait=120, transfer=480, bytes=6400)  # each waits 30, takes 120 for 1600 bytes
    # bytes: +800 x mean(0.1, 0.075) = 70 each; rate: -0.025 x mean(800, 1600) = -30 each
    assert parts(base, here) == {
        ("skew-wait", None): Fraction(40),
        ("bytes", None): Fraction(280),
        ("rate", None): Fraction(-120),
    }


def test_exposed_beside_others() -> None:
    here = of(4, 100, share=250)
    assert parts(of(4, 100), here) == {("concurrency", None): Fraction(-150)}


def test_come_and_gone() -> None:
    assert parts(Sums(2), of(4, 100)) == {("came", None): Fraction(400)}
    assert parts(of(4, 100), Sums(2)) == {("gone", None): Fraction(-400)}
    assert parts(Sums(1), Sums(1)) == {}


@st.composite
def sums(draw: st.DrawFn) -> Sums:
    windows, count = draw(st.integers(1, 9)), draw(st.integers(0, 50))
    if not count:
        return Sums(windows)
    ns = st.integers(0, 10**12)
    overlapped, exposed = draw(ns), draw(ns)
    knows_waits, knows_bytes = draw(st.booleans()), draw(st.booleans())
    wait = draw(st.integers(0, overlapped + exposed))
    roles = draw(st.dictionaries(st.sampled_from(["wgrad", "dgrad", "other", "attention"]), ns, max_size=3))
    return Sums(
        windows,
        count,
        overlapped + exposed,
        overlapped,
        exposed,
        draw(st.integers(0, exposed)),
        wait if knows_waits else None,
        overlapped + exposed - wait if knows_waits else None,
        draw(st.integers(1, 10**12)) if knows_bytes else None,
        roles,
    )


@given(st.lists(st.tuples(sums(), sums()), min_size=1, max_size=4))
def test_parts_sum_to_the_difference(pairs: list[tuple[Sums, Sums]]) -> None:
    for base, here in pairs:
        found = parts(base, here)
        difference = here.mean - base.mean
        assert sum(found.values()) == difference
        assert parts(here, base) == {reason: -ns for reason, ns in found.items()} or not (
            base.count and here.count
        )
        whole = round(here.mean) - round(base.mean)
        assert sum(part.ns for part in rounded(found, whole)) == (whole if found else 0)
    together = added(parts(base, here) for base, here in pairs)
    assert sum(together.values()) == sum(here.mean - base.mean for base, here in pairs)


@given(st.lists(st.fractions(-(10**12), 10**12), min_size=1, max_size=9), st.integers(-2, 2))
def test_whole_numbers_sum_and_stay_next_to_their_values(values: list[Fraction], off: int) -> None:
    whole = round(sum(values)) + off
    found = shared(values, whole)
    assert sum(found) == whole
    assert all(abs(one - value) < 2 + abs(off) for one, value in zip(found, values, strict=True))
