"""A table of collectives is the list of its objects, to Python, to JSON and to whoever asks its columns."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from report_helpers import make_report

from sp_profiler.analysis.causes import CAUSES
from sp_profiler.analysis.collective_table import FIELDS, Collectives
from sp_profiler.analysis.columns import Numbers, Objects, Parts, Words
from sp_profiler.analysis.results import CollectiveFigures
from sp_profiler.report.json import render


def drawn() -> list[CollectiveFigures]:
    """Collectives that know much, little, and what no 64 bits hold."""
    rows = list(make_report(comm="async", ranks=2, steps=2).collectives)
    rows[1] = replace(rows[1], partner=None, cause=None, exposed_by_cause_ns=None, is_async=None, ranks=[])
    rows[2] = replace(rows[2], busbw_gbps=0.5, algbw_gbps=1e300, note='a "quoted" näme\n', layer=None)
    return rows


def test_it_is_the_list_of_its_objects() -> None:
    rows = drawn()
    table = Collectives.of(rows)
    assert list(table) == rows
    assert table == rows
    assert table == tuple(rows)
    assert rows == table
    assert table != rows[:-1]
    assert (table[0], table[-1], table[1:3]) == (rows[0], rows[-1], rows[1:3])
    with pytest.raises(IndexError):
        table[len(rows)]
    assert Collectives.of(table) is table
    assert pickle.loads(pickle.dumps(table)) == rows


def test_every_field_gives_what_the_objects_hold() -> None:
    rows = drawn()
    table = Collectives.of(rows)
    for name in FIELDS:
        assert table.column(name).tolist() == [getattr(one, name) for one in rows], name


def test_rows_are_taken_and_tables_joined() -> None:
    rows = drawn()
    table = Collectives.of(rows)
    assert table.take(np.array([2, 0])) == [rows[2], rows[0]]
    mask = np.array([one.purpose == rows[0].purpose for one in rows])
    assert table.take(mask) == [one for one in rows if one.purpose == rows[0].purpose]
    assert Collectives.joined((table[:2], rows[2:])) == rows
    assert Collectives.joined(()) == []
    assert Collectives.joined(((), rows)) == rows


def test_words_of_two_tables_keep_their_meaning() -> None:
    rows = drawn()[:1]
    words = [
        [replace(rows[0], op=op, ranks=ranks) for op in ops] for ops, ranks in (("ab", [0]), ("cb", [1, 0]))
    ]
    both = Collectives.joined(words)
    assert [one.op for one in both] == ["a", "b", "c", "b"]
    assert [one.ranks for one in both] == [[0], [0], [1, 0], [1, 0]]
    assert both.counts("op") == {"a": 1, "b": 2, "c": 1}


def test_numbers_beyond_64_bits_stay_exact() -> None:
    rows = [replace(drawn()[0], seq=seq, bytes=2**62) for seq in (2**70, 7, None)]
    table = Collectives.joined((Collectives.of(rows[:1]), Collectives.of(rows[1:])))
    assert isinstance(table.column("seq"), Objects)
    assert table == rows
    assert table.total("seq") == 2**70 + 7
    assert table.total("bytes") == 3 * 2**62
    assert table.numbers("seq").values.tolist()[0] == 2**62


def test_counts_and_kinds_come_in_order_of_appearance() -> None:
    rows = drawn()
    table = Collectives.of(rows)
    for name in ("purpose", "rank", "is_async", "busbw_gbps"):
        values = [getattr(one, name) for one in rows]
        assert table.counts(name) == {value: values.count(value) for value in values}
        assert list(table.counts(name)) == list(dict.fromkeys(values))
    kinds, kind = table.kinds("rank", "purpose")
    assert kinds == list(dict.fromkeys((one.rank, one.purpose) for one in rows))
    assert [kinds[code] for code in kind.tolist()] == [(one.rank, one.purpose) for one in rows]


def test_parts_of_causes() -> None:
    amount = np.zeros((2, len(CAUSES)), np.int64)
    amount[0, 1], amount[0, 3] = 5, 7
    table = Collectives.of(drawn()[:2]).changed(exposed_by_cause_ns=Parts(CAUSES, amount))
    assert [one.exposed_by_cause_ns for one in table] == [{CAUSES[1]: 5, CAUSES[3]: 7}, {}]
    assert table.exposed_by_cause(CAUSES[3]).tolist() == [7, 0]
    assert table.exposed_by_cause("no such").tolist() == [0, 0]
    by_objects = Collectives.of(list(table))
    assert by_objects.exposed_by_cause(CAUSES[1]).tolist() == [5, 0]


def test_fields_without_a_column_are_none() -> None:
    table = Collectives.of(drawn()[:2])
    bare = Collectives({name: table.column(name) for name in FIELDS if name != "skew_wait_ns"}, 2)
    assert [one.skew_wait_ns for one in bare] == [None, None]
    assert bare.numbers("skew_wait_ns").is_known.tolist() == [False, False]


def test_truth_and_numbers_are_told_apart() -> None:
    assert Words.of([True, 1, None, True]).tolist() == [True, 1, None, True]
    assert [type(value) for value in Words.of([1, True]).tolist()] == [int, bool]
    assert Numbers.but(np.array([3, -1])).tolist() == [3, None]


def test_json_is_the_same_as_of_a_list() -> None:
    report = replace(make_report(comm="async", ranks=2, steps=2), collectives=drawn())
    infinite = [*drawn(), replace(drawn()[0], algbw_gbps=float("inf"), seq=2**70)]
    for rows in (report.collectives, infinite, []):
        listed = replace(report, collectives=list(rows))
        assert render(replace(report, collectives=Collectives.of(rows))) == render(listed)
