"""A sweep as tables: one row per cell for CSV, Parquet and polars, and the columns that people are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sp_profiler.report.format import counted
from sp_profiler.report.json import to_plain
from sp_profiler.report.view_ranks import Listing
from sp_profiler.sweeps.grid import SIZES
from sp_profiler.sweeps.model import Cell, CellMemory, CellProfile, CellTheory, Relative, Spread, Sweep

if TYPE_CHECKING:
    import polars as pl

_PARTS: dict[str, type] = {
    "step": Spread,
    "memory": CellMemory,
    "profile": CellProfile,
    "theory": CellTheory,
    "relative": Relative,
}
_PLAIN = (
    "name",
    "scheme",
    "label",
    "status",
    "reason",
    "failed_in",
    "log",
    "tokens_per_step",
    "tokens_per_s",
)
_WORKLOAD = ("mode", "save", "comm", "recompute", "projections", "norm", "layout", "ulysses", "inside")


def to_polars(sweep: Sweep) -> pl.DataFrame:
    """One row per cell, exact; figures of a cell that was not measured are null."""
    import polars as pl

    rows = [dict(_row(cell)) for cell in sweep.cells]
    kinds: dict[str, Any] = dict.fromkeys(("reason", "failed_in", "log", "notes", *_WORKLOAD), pl.String)
    kinds["ulysses"] = pl.Int64
    return pl.DataFrame(rows, infer_schema_length=None, schema_overrides=kinds)


def csv_text(sweep: Sweep) -> str:
    """RFC 4180 with a header line; null is empty."""
    from sp_profiler.report import tables

    return tables.csv_text(to_polars(sweep))


def parquet_bytes(sweep: Sweep) -> bytes:
    """The same as a Parquet file."""
    from sp_profiler.report import tables

    return tables.parquet_bytes(to_polars(sweep))


def _row(cell: Cell) -> Iterator[tuple[str, Any]]:
    plain = to_plain(cell)
    for name in _PLAIN:
        yield name, plain[name]
    for name in _WORKLOAD:
        yield name, plain["workload"].get(name)
    for name in SIZES:
        yield name, plain["sizes"].get(name)
    yield "micro_batch_of_rank", plain["workload"].get("micro_batch")
    for part, kind in _PARTS.items():
        for field in kind.__dataclass_fields__:
            value = None if plain[part] is None else plain[part][field]
            yield f"{part}.{field}", " ".join(map(str, value)) if isinstance(value, list) else value
    yield "notes", "; ".join(cell.notes) or None


Get = Callable[[Cell], Any]


def _of(part: str, field: str) -> Get:
    """A figure of a part of a cell; None where the part is."""

    def get(cell: Cell) -> Any:
        found = getattr(cell, part)
        return None if found is None else getattr(found, field)

    return get


def _half_spread(cell: Cell) -> float | None:
    return None if cell.step is None else (cell.step.q3_ns - cell.step.q1_ns) / 2


def _differs(cell: Cell) -> str | None:
    """Whether the step time differs from the baseline's by more than the spread of the repeats."""
    within = None if cell.relative is None else cell.relative.step_within_spread
    return None if within is None else "no" if within else "yes"


_SIZE = "size"  # a kind of ours: bytes that are shown as a number of MiB
_MAY_VARY = tuple(name for name in SIZES if name != "layers")

Spec = tuple[tuple[str, str, str], Get]
"""A column as `Listing` has it, and where its cells come from."""


def listings(sweep: Sweep) -> list[Listing]:
    """What people are shown: time, memory and communication of every cell, then what was not measured."""
    made = [times(sweep), memory(sweep), communication(sweep), failures(sweep), skipped(sweep)]
    return [one for one in made if one is not None]


def times(sweep: Sweep) -> Listing:
    """Step time and its spread, work and throughput, absolute and relative."""
    base = baseline_label(sweep)
    columns: list[Spec] = [
        (("Step", "ms", "ms"), _of("step", "median_ns")),
        (("Half IQR", "ms", "± ms"), _half_spread),
        (("Step", "number", f"× {base}"), _of("relative", "step")),
        (("Differs", "text", ""), _differs),
        (("Tokens", "int", "a step"), lambda c: c.tokens_per_step),
        (("Tokens/s", "int", ""), lambda c: None if c.tokens_per_s is None else round(c.tokens_per_s)),
        (("Tokens/s", "number", f"× {base}"), _of("relative", "tokens_per_s")),
        (("Profiler", "number", "× step"), _of("profile", "overhead_factor")),
    ]
    if sweep.hardware is not None:
        columns.insert(3, (("Theory", "ms", "at least, ms"), lambda c: c.theory.step_ns_at_least))
    if any(cell.status != "ok" for cell in sweep.cells):
        columns.append((("Status", "text", ""), lambda c: "" if c.status == "ok" else c.status))
    settings = sweep.settings
    steps = f"{counted(settings.repeats, 'repeat')} of {counted(settings.steps_per_repeat, 'step')}"
    note = (
        f"Step: median of {steps} without the profiler, slowest rank; it differs from the baseline's where "
        "their quartiles do not meet."
    )
    if sweep.hardware is not None:
        note += f" Theory: GEMMs, attention and communication that nothing hides, on {sweep.hardware}."
    return _listing(sweep, "times", "Step time and throughput", columns, note)


def memory(sweep: Sweep) -> Listing:
    """What tensors and processes hold, beside what they cannot do without by the closed form."""
    sources = {cell.memory.peak_source for cell in sweep.cells if cell.memory is not None}
    base = baseline_label(sweep)
    columns: list[Spec] = [
        (
            (f"Peak, {sources.pop()}" if len(sources) == 1 else "Peak", _SIZE, "MiB"),
            _of("memory", "peak_bytes"),
        ),
        (("Peak", "number", f"× {base}"), _of("relative", "memory")),
        (("Theory", _SIZE, "at least, MiB"), lambda c: c.theory.peak_bytes_at_least),
        (("Kept", _SIZE, "for backward, MiB"), _of("memory", "saved_bytes")),
        (("Theory", _SIZE, "kept, MiB"), lambda c: c.theory.saved_bytes),
        (("Process", _SIZE, "peak RSS, MiB"), _of("memory", "rss_peak_bytes")),
    ]
    if any(cell.memory is not None and cell.memory.reserved_bytes is not None for cell in sweep.cells):
        columns.insert(1, (("Reserved", _SIZE, "MiB"), _of("memory", "reserved_bytes")))
    note = (
        "Of the rank that needs most. Peak, tensors: the most that storages of tensors held in a step; "
        "peak, allocator: torch.cuda's. Theory: parameters, optimizer, and the larger of gradients and what "
        "is kept."
    )
    return _listing(sweep, "memory", "Memory of a rank", columns, note)


def communication(sweep: Sweep) -> Listing:
    """What is sent, exposed and hidden, from the profiled steps."""
    columns: list[Spec] = [
        (("Comm", "ms", "ms"), _of("profile", "comm_ns")),
        (("Overlapped", "ms", "ms"), _of("profile", "overlapped_ns")),
        (("Exposed", "ms", "ms"), _of("profile", "exposed_ns")),
        (("Exposed", "ratio", "% of step"), _of("profile", "exposed_share")),
        (("wgrad hides", "ratio", "% of hideable"), _of("profile", "wgrad_hidden_of_hideable")),
        (("Hidden", "ratio", "% of all hideable"), _of("profile", "hidden_of_hideable")),
        (("Sent", _SIZE, "MiB a step"), _of("profile", "comm_bytes")),
        (("Theory", _SIZE, "sent, MiB"), lambda c: c.theory.comm_bytes),
    ]
    note = (
        f"Means per step and rank of {counted(sweep.settings.profiled_steps, 'profiled step')}. wgrad hides: "
        "of the dgrad collectives, beside what their wgrad GEMMs could hide at best. Sent: by one rank, with "
        "ring algorithms."
    )
    return _listing(sweep, "communication", "Communication", columns, note, first_dropped=-3)


def baseline_label(sweep: Sweep) -> str:
    """The baseline in the words people use."""
    return next((cell.label for cell in sweep.cells if cell.scheme == sweep.baseline), "baseline")


def _listing(
    sweep: Sweep, name: str, title: str, columns: Sequence[Spec], note: str, first_dropped: int = -1
) -> Listing:
    """One row per cell: its scheme and the sizes in which cells differ, then the columns. `first_dropped`:
    the place of the one that a narrow terminal does without first."""
    varied = [size for size in _MAY_VARY if len({cell.sizes.get(size) for cell in sweep.cells}) > 1]
    every: list[Spec] = [
        (("Scheme", "text", ""), lambda c: c.label),
        (("Layers", "int", ""), lambda c: c.sizes["layers"]),
        *(((_title(size), "text" if size == "dtype" else "int", ""), _size(size)) for size in varied),
        *columns,
    ]
    rows = [[_shown(kind, get(cell)) for (_, kind, _), get in every] for cell in sweep.cells]
    heads = [(label, "number" if kind == _SIZE else kind, unit) for (label, kind, unit), _ in every]
    return Listing(name, title, heads, rows, note, first_dropped=(first_dropped,))


def _size(name: str) -> Get:
    return lambda cell: cell.sizes.get(name)


def _title(name: str) -> str:
    named = {"seq_len": "Sequence", "num_microbatches": "Micro-batches", "kv_heads": "KV heads"}
    return named.get(name, name.replace("_", "-").capitalize())


def _shown(kind: str, value: Any) -> Any:
    return value / 2**20 if kind == _SIZE and value is not None else value


def failures(sweep: Sweep) -> Listing | None:
    """Cells that were not measured, each with its reason."""
    failed: Sequence[Cell] = sweep.failed
    if not failed:
        return None
    rows = [[c.name, c.status, c.failed_in, c.reason, c.log] for c in failed]
    columns = tuple((name, "text", "") for name in ("Cell", "Status", "In", "Why", "Log"))
    return Listing("failures", "Cells that failed", columns, rows, "")


def skipped(sweep: Sweep) -> Listing | None:
    """Combinations that were not run, with the reason."""
    if not sweep.skipped:
        return None
    rows = [[one.what, one.combinations, one.reason, "; ".join(one.workloads)] for one in sweep.skipped]
    columns = (("Mode", "text", ""), ("Combinations", "int", ""), ("Why", "text", ""), ("Which", "text", ""))
    return Listing("skipped", "Combinations that are no cell", columns, rows, "")


def planned(sweep: Sweep, done: Mapping[str, str]) -> Listing:
    """The cells before they are run, with the closed forms; `done`: status of those that have been."""
    columns: list[Spec] = [
        (("Tokens", "int", "a step"), lambda c: c.tokens_per_step),
        (("Kept", _SIZE, "theory, MiB"), lambda c: c.theory.saved_bytes),
        (("Peak", _SIZE, "at least, MiB"), lambda c: c.theory.peak_bytes_at_least),
        (("Sent", _SIZE, "theory, MiB"), lambda c: c.theory.comm_bytes),
        (("Cell", "text", ""), lambda c: c.name),
    ]
    if sweep.hardware is not None:
        columns.insert(4, (("Step", "ms", "at least, ms"), lambda c: c.theory.step_ns_at_least))
    if done:
        columns.append((("Done", "text", ""), lambda c: done.get(c.name, "")))
    return _listing(sweep, "planned", "Cells", columns, "")
