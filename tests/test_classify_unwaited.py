"""The fast search for the collective of a wait, against the walk over all that were launched before it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from sp_profiler.classify.blocked import Asked
from sp_profiler.classify.collectives import SEND_RECV
from sp_profiler.classify.tables import Collective
from sp_profiler.classify.unwaited import Unwaited
from sp_profiler.classify.waits import _in_order, _Wait  # pyright: ignore[reportPrivateUsage]

TIMES = st.integers(0, 12)
DEVICES = (0, 1)


@given(st.lists(st.tuples(st.sampled_from(("arrive", "take")), st.none() | TIMES)), st.lists(TIMES))
def test_the_first_that_ended_early_enough(steps: list[tuple[str, int | None]], ends: list[int]) -> None:
    queue = Unwaited(ends)
    there: list[int] = []
    arrived = 0
    for step, latest in steps:
        if step == "arrive" and arrived < len(ends):
            queue.arrive()
            there.append(arrived)
            arrived += 1
        expected = next((place for place in there if latest is None or ends[place] <= latest), None)
        assert queue.first(latest) == expected
        if step == "take" and expected is not None:
            queue.take(expected)
            there.remove(expected)


@dataclass(frozen=True)
class Begins:
    """Computation that begins at any time, whatever the time of the wait before it."""

    latest: dict[tuple[int, bool, int], int | None]

    def latest_end(self, device: int, wait: int, *, any_stream: bool) -> int | None:
        return self.latest[device, any_stream, wait]

    def blocked(self, one: Asked, wait: int) -> bool:
        latest = self.latest_end(one.device, wait, any_stream=one.on_any_stream)
        return latest is None or one.end <= latest


def plain(others: list[Asked], waits: list[_Wait], stream: Begins) -> dict[int, tuple[int, int]]:
    """The definition: every wait looks at all collectives of its group that nobody waited for yet."""
    found: dict[int, tuple[int, int]] = {}
    pending: dict[str, list[Asked]] = defaultdict(list)
    happened = [(one.call_end, 0, one) for one in others] + [(wait.start, 1, wait) for wait in waits]
    for _, _, what in sorted(happened, key=lambda item: item[:2]):
        if isinstance(what, Asked):
            pending[what.one.group_name or ""].append(what)
            continue
        waiting = pending[what.group or ""]
        for one in waiting:
            if stream.blocked(one, what.start) and (what.group is not None or one.one.op == SEND_RECV):
                waiting.remove(one)
                found[one.index] = what.start, what.end
                break
    return found


@st.composite
def asked(draw: st.DrawFn, index: int) -> Asked:
    one = Collective(
        activity=index,
        op=draw(st.sampled_from((SEND_RECV, "all_reduce"))),
        group=None,
        bytes=None,
        dtype=None,
        seq=None,
        is_async=None,
        purpose=draw(st.sampled_from(("layout", "unknown"))),
        purpose_rule="none",
        module=None,
        layer=None,
        partner_what=None,
        launch_ns=None,
        launch_end_ns=None,
        wait_start_ns=None,
        wait_end_ns=None,
        group_name=draw(st.sampled_from((None, "tp"))),
    )
    return Asked(index, 0, 0, draw(TIMES), one, draw(st.sampled_from(DEVICES)), 7, draw(TIMES), 0)


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[Asked], list[_Wait], Begins]:
    others = [draw(asked(index)) for index in range(draw(st.integers(0, 12)))]
    groups = st.sampled_from((None, "", "tp", "dp"))
    waits = [
        _Wait(start, start + 1, thread, draw(groups))
        for thread, start in draw(st.lists(st.tuples(st.integers(0, 1), TIMES)))
    ]
    keys = [
        (device, any_stream, wait) for device in DEVICES for any_stream in (False, True) for wait in range(13)
    ]
    latest = draw(st.lists(st.none() | TIMES, min_size=len(keys), max_size=len(keys)))
    return others, waits, Begins(dict(zip(keys, latest, strict=True)))


@settings(max_examples=300)
@given(situations())
def test_waits_in_order_are_those_of_the_plain_walk(
    situation: tuple[list[Asked], list[_Wait], Begins],
) -> None:
    others, waits, stream = situation
    assert _in_order(others, waits, stream) == plain(others, waits, stream)  # type: ignore[arg-type]
