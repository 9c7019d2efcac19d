"""All traces of one run, checked against each other."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from sp_profiler.cores import usable_cores
from sp_profiler.errors import InputError, SpProfilerError
from sp_profiler.ledger import SEVERITIES, LedgerEntry
from sp_profiler.trace.ahead import ahead
from sp_profiler.trace.decode import DEFAULT_LIMITS, decode_trace
from sp_profiler.trace.limits import Limits
from sp_profiler.trace.metadata import rank_from_name, worker_from_name, world_sizes
from sp_profiler.trace.native import decoder_in_use
from sp_profiler.trace.remote import is_remote
from sp_profiler.trace.tables import Category, Metadata, RunFiles, Trace, TraceSet

_SHOWN_RANKS = 16


@dataclass(frozen=True)
class TraceSummary:
    """What the checks of a run need of one trace, so that the trace itself need not be kept."""

    path: str
    metadata: Metadata
    ledger: tuple[LedgerEntry, ...]
    size: tuple[int, ...]  # `_size_of` the trace

    @property
    def rank(self) -> int | None:
        return self.metadata.rank


@dataclass(frozen=True)
class CheckedRun:
    """The traces of a run that count, in order of ranks, and what is to be said of the run and its files."""

    traces: tuple[TraceSummary, ...]
    ledger: tuple[LedgerEntry, ...]


def load_run(
    files: RunFiles,
    *,
    limits: Limits = DEFAULT_LIMITS,
    on_file: Callable[[str], None] | None = None,
    decode: Callable[[str, Limits], Trace] = decode_trace,
) -> TraceSet:
    """Decode every trace of a run; `on_file` is called with each path before it is read.

    `decode` reads one file: `decode_trace`, or `cache.decode_cached`, which remembers.

    A file that cannot be read is a loss in the ledger as long as another one can. Ranks that nobody
    states are numbered among several files (by the worker or folder in the path, else in order of names)
    and that is entered as an assumption; the rank of a single file stays None.

    A file into which the traces of several ranks were merged counts as one that cannot be read.

    Raises InputError when no file can be read, or when two different files claim the same rank.
    """
    traces: dict[str, Trace] = {}

    def keep(trace: Trace) -> None:
        traces[trace.path] = trace

    run = check_run(files, keep, traces.__getitem__, limits=limits, on_file=on_file, decode=decode)
    numbered = tuple(as_numbered(traces[one.path], one) for one in run.traces)
    return TraceSet(files.name, files.root, numbered, files.run_json, run.ledger)


def check_run(
    files: RunFiles,
    take: Callable[[Trace], None],
    earlier: Callable[[str], Trace],
    *,
    limits: Limits,
    on_file: Callable[[str], None] | None,
    decode: Callable[[str, Limits], Trace],
) -> CheckedRun:
    """Decode the files of a run one after the other, `take` each trace that counts, check all together.

    No trace is held here, but the compiled decoder reads the next file while one is taken, where there is a
    core for it: `take` decides how many more are in memory. `earlier` gives the trace of a file that was
    taken before; it is asked only where a later file seems to be a copy. Errors as `load_run` tells.
    """
    checks = RunChecks(files)
    traces = _readable(files.files, limits, decode)
    if _is_worth_a_thread(files.files):
        traces = ahead(traces, 1)
    with contextlib.closing(traces):
        for path in files.files:
            if on_file is not None:
                on_file(path)
            trace = next(traces)
            if isinstance(trace, InputError):
                checks.unreadable(path, trace)
            elif checks.add(summary_of(trace), partial(_holds_the_same, trace, earlier)):
                take(trace)
            del trace  # before the next one is waited for
    return checks.finish()


def _is_worth_a_thread(paths: Sequence[str]) -> bool:
    """Whether the next file may be decoded beside other work: the Python decoder would take its turns with
    it, and who waits for a network could not be interrupted."""
    if len(paths) < 2 or usable_cores() < 2 or any(map(is_remote, paths)):
        return False
    return decoder_in_use()[0] == "native"


def _readable(
    paths: Sequence[str], limits: Limits, decode: Callable[[str, Limits], Trace]
) -> Generator[Trace | InputError, None, None]:
    """The trace of each file, or why it cannot be read."""
    for path in paths:
        try:
            trace = read_one(path, limits, decode)
        except InputError as error:
            trace = error
        yield trace
        del trace


def read_one(path: str, limits: Limits, decode: Callable[[str, Limits], Trace] = decode_trace) -> Trace:
    """Decode one file of a run. Raises InputError for one that cannot be read, or holds several ranks."""
    return _of_one_process(decode(path, limits))


def as_numbered(trace: Trace, summary: TraceSummary) -> Trace:
    """The trace with the rank, and the ledger, that the checks of its run gave it."""
    if trace.metadata is summary.metadata:
        return trace
    return replace(trace, metadata=summary.metadata, ledger=summary.ledger)


def summary_of(trace: Trace) -> TraceSummary:
    """What `RunChecks` needs of a trace."""
    return TraceSummary(trace.path, trace.metadata, trace.ledger, _size_of(trace))


class RunChecks:
    """Checks the traces of a run against each other, of which it is given summaries.

    `add` each in the order of the run's files, then `finish` once.
    """

    def __init__(self, files: RunFiles) -> None:
        self._files = files
        self._kept: list[TraceSummary] = []
        self._like: dict[tuple[object, ...], list[TraceSummary]] = {}  # by size and rank
        self._entries: list[LedgerEntry] = list(files.ledger)
        self._unreadable: list[SpProfilerError] = []

    def unreadable(self, path: str, error: SpProfilerError, code: str = "unreadable-file") -> None:
        """Enter a file that cannot be read, or was given up for another reason."""
        self._unreadable.append(error)
        self._entries.append(LedgerEntry(code, "loss", str(error), file=path))

    def add(self, one: TraceSummary, is_copy_of: Callable[[TraceSummary], bool]) -> bool:
        """Whether the trace counts: not when an earlier file holds the same (`rank0.json` beside
        `rank0.json.gz`), which is entered. `is_copy_of` is asked only where an earlier one seems the same."""
        alike = self._like.setdefault((one.size, one.rank), [])
        for other in alike:
            if is_copy_of(other):
                text = f"the file holds the same trace as {other.path}; it counts once"
                self._entries.append(LedgerEntry("identical-copy", "note", text, file=one.path))
                return False
        alike.append(one)
        self._kept.append(one)
        return True

    def finish(self) -> CheckedRun:
        """The run's traces by rank. Raises InputError as `load_run` does."""
        if not self._kept:
            if len(self._unreadable) == 1:
                raise self._unreadable[0]
            first = f" (the first: {self._unreadable[0]})" if self._unreadable else ""
            files = self._files
            raise InputError(f"none of the {len(files.files)} trace files in {files.root} can be read{first}")
        traces = _with_ranks(self._kept) if len(self._kept) > 1 else self._kept
        _refuse_duplicates(traces)
        traces = sorted(traces, key=lambda trace: (trace.rank is None, trace.rank, trace.path))
        entries = [*self._entries, *(entry for trace in traces for entry in trace.ledger)]
        entries.extend(_against_world(traces, self._files))
        entries.sort(key=lambda entry: SEVERITIES.index(entry.severity))
        return CheckedRun(tuple(traces), tuple(entries))


def _of_one_process(trace: Trace) -> Trace:
    """The trace, unless several ranks were merged into its file: those cannot be told apart any more.

    A profiler records one process. Merged files repeat correlation ids and devices, so nothing says which
    kernel belongs to whom. Where ranks wrote into one another (the file is damaged), what is intact is kept.

    Raises InputError for a file that holds several processes and no damage.
    """
    told = _several_processes(trace)
    if told is None:
        return trace
    if not any(entry.severity in ("loss", "repair") for entry in trace.ledger):
        raise InputError(
            f"{trace.path} holds several ranks merged into one file ({told}); name the file of each"
            " rank instead."
        )
    text = f"the damaged file mixes several ranks ({told}); they count as one"
    entry = LedgerEntry("several-processes", "assumption", text, file=trace.path)
    return replace(trace, ledger=(*trace.ledger, entry))


def _several_processes(trace: Trace) -> str | None:
    """What shows that a file holds several processes; None for a file of one.

    Processes may share a pid (each is the first of its container); then most launches appear twice.
    """
    events = trace.events
    on_cpu = np.isin(events.category, (int(Category.RUNTIME), int(Category.CPU_OP)))
    pids = [trace.strings.pool[code] for code in trace.strings.used(events.pid[on_cpu])]
    if len(pids) > 1:
        more = ", ..." if len(pids) > _SHOWN_RANKS else ""
        return f"pids {', '.join(pids[:_SHOWN_RANKS])}{more}"
    calls = np.flatnonzero((events.category == int(Category.RUNTIME)) & (events.correlation > 0))
    kind = np.int64(len(trace.strings.pool) + 1)
    launches = np.sort(events.correlation[calls] * kind + events.name[calls])
    again = int((launches[1:] == launches[:-1]).sum())
    if again > (len(calls) - again) // 2:
        return "most launches are there more than once"
    return None


def _size_of(trace: Trace) -> tuple[int, ...]:
    """Equal for copies, and hardly ever for two traces of equal length: it adds up all times."""
    events = trace.events
    times = (int(events.start_ns.sum()), int(events.dur_ns.sum()))
    return (trace.uncompressed_bytes, len(events), *times)


def _holds_the_same(trace: Trace, earlier: Callable[[str], Trace], other: TraceSummary) -> bool:
    return _same_content(earlier(other.path), trace)


def _same_content(one: Trace, other: Trace) -> bool:
    return (
        len(one.events) == len(other.events)
        and one.uncompressed_bytes == other.uncompressed_bytes
        and one.metadata.rank == other.metadata.rank
        and one.metadata.top_level == other.metadata.top_level
        and one.strings.pool == other.strings.pool
        and one.collectives == other.collectives
        and _same_columns(one.events, other.events)
        and _same_columns(one.flows, other.flows)
        and _same_columns(one.memory, other.memory)
    )


def content_digest(trace: Trace) -> str:
    """The same text for traces of which one counts as a copy of the other, another for others."""
    metadata = trace.metadata
    digest = hashlib.blake2b(digest_size=20)
    told = (trace.uncompressed_bytes, metadata.rank, metadata.top_level, trace.collectives)
    digest.update(repr(told).encode("utf-8", "surrogatepass"))
    for word in trace.strings.pool:
        digest.update(repr(word).encode("utf-8", "surrogatepass"))
    for table in (trace.events, trace.flows, trace.memory):
        for field in fields(table):
            column = np.ascontiguousarray(getattr(table, field.name))
            digest.update(f"{field.name}:{len(column)}".encode())
            digest.update(column.data)
    return digest.hexdigest()


def _same_columns(one: Any, other: Any) -> bool:
    return all(np.array_equal(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))


def _with_ranks(traces: list[TraceSummary]) -> list[TraceSummary]:
    """Number the traces whose rank is unknown, and enter that as an assumption."""
    nameless = [trace for trace in traces if trace.rank is None]
    if not nameless:
        return traces
    taken = {trace.rank for trace in traces if trace.rank is not None}
    hints = [_hint(trace.path) for trace in nameless]
    if None not in hints and len(set(hints)) == len(hints) and taken.isdisjoint(hints):
        how = "the number in the name of the worker or of the folder was taken"
        ranks = [hint for hint in hints if hint is not None]
    else:
        how = "the files were numbered in the order of their names"
        free = (number for number in range(len(taken) + len(nameless)) if number not in taken)
        nameless.sort(key=lambda trace: trace.path)
        ranks = [rank for rank, _ in zip(free, nameless, strict=False)]
    numbered = {id(trace): rank for trace, rank in zip(nameless, ranks, strict=True)}
    return [
        _numbered(trace, numbered[id(trace)], how) if id(trace) in numbered else trace for trace in traces
    ]


def _hint(path: str) -> int | None:
    """What a path says of the rank, less surely than "rank" in the file's name."""
    worker = worker_from_name(path)
    return worker if worker is not None else rank_from_name(os.path.dirname(os.path.abspath(path)))


def _numbered(trace: TraceSummary, rank: int, how: str) -> TraceSummary:
    assumed = LedgerEntry(
        "rank-assumed",
        "assumption",
        f"neither the file nor its name tells the rank; {how}, so it counts as rank {rank}",
        file=trace.path,
    )
    others = tuple(entry for entry in trace.ledger if entry.code != "rank-unknown")
    return replace(trace, metadata=replace(trace.metadata, rank=rank), ledger=(*others, assumed))


def _refuse_duplicates(traces: Sequence[TraceSummary]) -> None:
    first_of: dict[int, str] = {}
    for trace in traces:
        if trace.rank is None:
            continue
        other = first_of.setdefault(trace.rank, trace.path)
        if other != trace.path:
            raise InputError(
                f"{other} and {trace.path} both hold rank {trace.rank}; a run has one trace per rank, so name"
                " the files of one run only."
            )


def _against_world(traces: Sequence[TraceSummary], files: RunFiles) -> list[LedgerEntry]:
    """What the traces say about the number of ranks, against the ranks that are here."""
    sizes = world_sizes(files.run_json, (trace.metadata for trace in traces))
    present = {trace.rank for trace in traces if trace.rank is not None}
    if not sizes:
        return []
    world = max(sizes)
    entries: list[LedgerEntry] = []
    if len(sizes) > 1:
        text = (
            f"the files state different world sizes, {', '.join(map(str, sorted(sizes)))}; {world} was taken"
        )
        entries.append(LedgerEntry("world-size-disagrees", "assumption", text))
    outside = sorted(rank for rank in present if rank >= world)
    if outside:
        text = f"rank {outside[0]} does not fit a world of {world} ranks; it was kept"
        entries.append(LedgerEntry("rank-outside-world", "assumption", text, count=len(outside)))
    missing = world - len(present) + len(outside)
    if missing and present:
        names = (str(rank) for rank in range(world) if rank not in present)
        shown = ", ".join(islice(names, _SHOWN_RANKS)) + (", ..." if missing > _SHOWN_RANKS else "")
        text = f"{missing} of {world} ranks have no trace here: {shown}"
        entries.append(LedgerEntry("ranks-missing", "note", text, count=missing))
    return entries
