"""The range grammar: what is written is read back, and nothing that a trace may hold breaks the reader."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sp_profiler.record.annotate import PURPOSES, RANGES, Range, annotate, format_range, parse_range

KEYS = st.from_regex(r"[a-z][a-z_]{0,8}[a-z]", fullmatch=True)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def test_a_collective_as_it_stands_in_the_trace() -> None:
    name = format_range(
        "comm",
        op="all_reduce",
        group="tp[0,1]",
        bytes=1048576,
        dtype="bfloat16",
        async_=True,
        seq=7,
        purpose="dgrad",
        partner="wgrad",
        phase="backward",
        module="layers.3.attention.q",
        layer=3,
    )
    assert name == (
        "sp::comm|op=all_reduce|group=tp[0,1]|bytes=1048576|dtype=bfloat16|async=1|seq=7|purpose=dgrad"
        "|partner=wgrad|phase=backward|module=layers.3.attention.q|layer=3"
    )
    parsed = parse_range(name)
    assert parsed is not None
    assert (parsed.what, parsed.module, parsed.layer) == ("comm", "layers.3.attention.q", 3)
    assert (parsed.bytes, parsed.seq, parsed.is_async) == (1048576, 7, True)
    assert parsed.fields["group"] == "tp[0,1]"
    assert parsed.fields["purpose"] in PURPOSES


def test_what_is_none_is_left_out() -> None:
    assert format_range("fwd", module="head", layer=None) == "sp::fwd|module=head"
    parsed = parse_range("sp::fwd|module=head")
    assert parsed == Range("fwd", {"module": "head"})
    assert (parsed.layer, parsed.bytes, parsed.seq, parsed.is_async) == (None, None, None, None)


@given(st.sampled_from(RANGES), st.dictionaries(KEYS, TEXT))
def test_text_of_any_kind_survives(what: str, fields: dict[str, str]) -> None:
    fields.pop("what", None)
    assert parse_range(format_range(what, **fields)) == Range(what, fields)


@given(TEXT)
def test_a_name_can_stand_in_json_without_escapes(text: str) -> None:
    """Some versions of torch write quotes, backslashes and control bytes of a name as they are."""
    name = format_range("fwd", module=text)
    assert json.loads(f'"{name}"') == name


@given(st.text(max_size=60))
def test_reading_never_fails(text: str) -> None:
    assert parse_range(text) is None or text.startswith("sp::")
    for name in (f"sp::comm|{text}", f"sp::comm|bytes={text}|layer={text}|async={text}"):
        parsed = parse_range(name)
        assert parsed is not None
        assert parsed.bytes is None or parsed.bytes >= 0
        assert parsed.is_async in (None, False, True)
        assert parsed.layer is None or parsed.layer >= 0


@pytest.mark.parametrize("text", ["", "-1", "1.5", "1e3", "²", "٣", "9" * 19, "9" * 5000, " 1"])
def test_what_is_no_count_is_none(text: str) -> None:
    parsed = parse_range(f"sp::comm|bytes={text}")
    assert parsed is not None
    assert parsed.bytes is None
    assert parsed.fields["bytes"] == text


@pytest.mark.parametrize(
    "name", ["", "sp::", "sp::nonsense", "sp:comm", "xsp::comm", "SP::comm", "sp::comm2|op=x"]
)
def test_other_names_are_not_ours(name: str) -> None:
    assert parse_range(name) is None


def test_what_is_outside_the_grammar_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown range 'compute'"):
        format_range("compute")
    with pytest.raises(ValueError, match="identifier"):
        format_range("fwd", **{"a|b": 1})


def test_annotate_marks_work_for_the_profiler() -> None:
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as recorded, annotate("wgrad", module="a|b", layer=1):
        torch.ones(2) + 1
    assert "sp::wgrad|module=a%7Cb|layer=1" in {event.name for event in recorded.events()}
