"""The traces of a run with tracks of what was found in them, one file for each rank, for ui.perfetto.dev.

Every trace is analysed first, one after the other, because what a rank waited for stands in the others'
traces. Then each is decoded again (from the cache, where it is big), and its text is copied with the tracks
in it. The trace of a run of one is decoded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sp_profiler.analysis.rank import analyze_rank
from sp_profiler.analysis.results import RankResult
from sp_profiler.analysis.steps import WindowRule
from sp_profiler.classify import classify
from sp_profiler.classify.tables import Classified
from sp_profiler.engine import RankOutcome, compare_ranks
from sp_profiler.errors import SpProfilerError, UsageError
from sp_profiler.export.chrome import events_of
from sp_profiler.export.copy import gzipped, with_events
from sp_profiler.export.layout import Layout, find_layout
from sp_profiler.export.tracks import tracks_of
from sp_profiler.files import write_atomically
from sp_profiler.ledger import LedgerEntry
from sp_profiler.report.build import TraceFacts
from sp_profiler.trace.decode import DEFAULT_LIMITS, decode_trace
from sp_profiler.trace.limits import Limits
from sp_profiler.trace.load import TraceSummary, as_numbered, check_run, read_one
from sp_profiler.trace.tables import RunFiles, Trace

Decode = Callable[[str, Limits], Trace]


@dataclass(frozen=True)
class Exported:
    """The files that were written, by trace, and what is to be said of the run and of them."""

    files: dict[str, Path]
    ledger: tuple[LedgerEntry, ...]


def export_run(
    files: RunFiles,
    places: Mapping[str, Path],
    window: WindowRule | None = None,
    *,
    limits: Limits = DEFAULT_LIMITS,
    decode: Decode = decode_trace,
    on_file: Callable[[str], None] | None = None,
    on_rank: Callable[[str], None] | None = None,
    on_loaded: Callable[[tuple[LedgerEntry, ...]], None] | None = None,
) -> Exported:
    """Write each trace of a run, with our tracks, to its place (gzip where that ends in `.gz`).

    `places` has a file for each trace of the run; those of traces that do not count (a copy, an unreadable
    file) are not written. `on_loaded` is given the ledger before anything is written. Raises what
    `engine.analyze_files` raises, and UsageError where a file cannot be written.
    """
    ranks = _Ranks(files, WindowRule() if window is None else window, limits, decode)
    run = check_run(
        files,
        ranks.take,
        lambda path: read_one(files.place_of(path), limits, decode),
        limits=limits,
        on_file=on_file,
        decode=decode,
    )
    results = ranks.results(run.traces)
    told = (*run.ledger, *(entry for result in results.values() for entry in result.ledger))
    ledger = tuple(dict.fromkeys(told))  # a rank's ledger may repeat what its file's already told
    if on_loaded is not None:
        on_loaded(ledger)
    written: dict[str, Path] = {}
    added: list[LedgerEntry] = []
    first_id = 0
    for one in run.traces:
        layout = find_layout(files.place_of(one.path), limits)
        if layout.list_end is None:
            added.append(_written_anew(one.path, layout))
        ranks.write(one, results[one.path], first_id, layout, places[one.path])
        first_id += len(results[one.path].collectives)
        written[one.path] = places[one.path]
        if on_rank is not None:
            on_rank(one.path)
    return Exported(written, (*ledger, *added))


def _written_anew(path: str, layout: Layout) -> LedgerEntry:
    mended = f", with {layout.mended} mended" if layout.mended else ""
    text = (
        "the trace is damaged, so its export was written anew: all intact events byte for byte"
        f"{mended}, what cannot be read left out"
    )
    return LedgerEntry("export-written-anew", "repair", text, file=path)


@dataclass(frozen=True)
class _Looked:
    """A trace and what it was taken for."""

    trace: Trace
    classified: Classified


class _Ranks:
    """The traces of a run: analysed one after the other, at most one of them held."""

    def __init__(self, files: RunFiles, rule: WindowRule, limits: Limits, decode: Decode) -> None:
        self._files = files
        self._rule = rule
        self._limits = limits
        self._decode = decode
        self._outcomes: dict[str, RankOutcome] = {}
        self._failures: dict[str, SpProfilerError] = {}
        self._held: _Looked | None = None

    def take(self, trace: Trace) -> None:
        """Analyse a trace, unless its rank is known only when all are."""
        if trace.rank is not None or len(self._files.files) == 1:
            self._analyze(trace)

    def results(self, traces: tuple[TraceSummary, ...]) -> dict[str, RankResult]:
        """What was found in each trace, causes settled with the waits for the other ranks."""
        for one in traces:
            if one.path not in self._outcomes and one.path not in self._failures:
                self._analyze(self._read(one))
        for one in traces:
            if one.path in self._failures:
                raise self._failures[one.path]
        outcomes = [self._outcomes[one.path] for one in traces]
        across = compare_ranks(outcomes, self._files.run_json)
        return {one.path: result for one, result in zip(traces, across.results, strict=True)}

    def write(
        self, one: TraceSummary, result: RankResult, first_id: int, layout: Layout, place: Path
    ) -> None:
        """Write the trace with its tracks."""
        looked = self._held
        if looked is None or looked.trace.path != one.path:
            self._held = looked = None  # before the next one is decoded
            trace = self._read(one)
            looked = _Looked(trace, classify(trace, self._files.run_json))
        devices = tracks_of(looked.trace, looked.classified, result, self._rule, first_id)
        events = events_of(devices, layout, one.rank, one.metadata.base_time_ns)
        blocks = with_events(self._files.place_of(one.path), layout, events, self._limits)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(place, gzipped(blocks) if place.name.endswith(".gz") else blocks)
        except OSError as error:
            raise UsageError(f"cannot write {place}: {error.strerror}") from None

    def _read(self, one: TraceSummary) -> Trace:
        return as_numbered(read_one(self._files.place_of(one.path), self._limits, self._decode), one)

    def _analyze(self, trace: Trace) -> None:
        classified = classify(trace, self._files.run_json)
        self._held = _Looked(trace, classified) if len(self._files.files) == 1 else None
        try:
            result = analyze_rank(trace, classified, self._rule)
        except SpProfilerError as error:
            self._failures[trace.path] = error
            return
        facts = TraceFacts(trace.path, trace.metadata, classified.is_cpu_only)
        self._outcomes[trace.path] = RankOutcome(facts, result, None)
