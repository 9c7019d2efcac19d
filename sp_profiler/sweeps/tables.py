"""A sweep as tables: one row per cell for CSV, Parquet and polars, and the columns that people are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

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


def _status(cell: Cell) -> str:
    return "" if cell.status == "ok" else cell.status


def _relative_step(cell: Cell) -> str | None:
    """`0.971`, with `≈` where the spread of the repeats is larger than the difference."""
    if cell.relative is None or cell.relative.step is None:
        return None
    within = cell.relative.step_within_spread and cell.relative.step != 1
    return ("≈ " if within else "") + f"{cell.relative.step:.3f}"


_MIB = "MiB"
_SIZE = "size"  # a kind of ours: bytes that are shown as a number of MiB


def cells_listing(sweep: Sweep) -> Listing:
    """Every cell: step time and its spread, work, memory, and what is hidden; theory beside."""
    varied = [
        name for name in ("ranks", "dtype", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len",
                          "micro_batch", "num_microbatches")
        if len({cell.sizes.get(name) for cell in sweep.cells}) > 1
    ]  # fmt: skip
    base = next((cell.label for cell in sweep.cells if cell.scheme == sweep.baseline), "baseline")
    source = {cell.memory.peak_source for cell in sweep.cells if cell.memory is not None}
    peak = f"Peak, {source.pop()}" if len(source) == 1 else "Peak"
    columns: list[tuple[tuple[str, str, str], Get]] = [
        (("Scheme", "text", ""), lambda c: c.label),
        (("Layers", "int", ""), lambda c: c.sizes["layers"]),
        *(((_title(n), _kind(sweep, n), ""), _size(n)) for n in varied),
        (("Step", "ms", "ms, median"), _of("step", "median_ns")),
        (("Half IQR", "ms", "± ms"), _half_spread),
        (("Step", "text", f"× {base}"), _relative_step),
        (("Tokens", "int", "a step"), lambda c: c.tokens_per_step),
        (("Tokens/s", "int", ""), lambda c: None if c.tokens_per_s is None else round(c.tokens_per_s)),
        (("Tokens/s", "number", f"× {base}"), _of("relative", "tokens_per_s")),
        ((peak, _SIZE, _MIB), _of("memory", "peak_bytes")),
        (("Theory, at least", _SIZE, _MIB), lambda c: c.theory.peak_bytes_at_least),
        (("Kept", _SIZE, _MIB), _of("memory", "saved_bytes")),
        (("Theory", _SIZE, f"kept, {_MIB}"), lambda c: c.theory.saved_bytes),
        (("Exposed", "ms", "ms"), _of("profile", "exposed_ns")),
        (("Overlapped", "ms", "ms"), _of("profile", "overlapped_ns")),
        (("wgrad hides", "ratio", "% of hideable"), _of("profile", "wgrad_hidden_of_hideable")),
        (("Sent", _SIZE, _MIB), _of("profile", "comm_bytes")),
        (("Theory", _SIZE, f"sent, {_MIB}"), lambda c: c.theory.comm_bytes),
        (("RSS", _SIZE, f"peak, {_MIB}"), _of("memory", "rss_peak_bytes")),
        (("Profiler", "number", "× step"), _of("profile", "overhead_factor")),
    ]
    if sweep.hardware is not None:
        timed = (("Theory", "ms", f"step on {sweep.hardware}, ms"), lambda c: c.theory.step_ns_at_least)
        columns.insert(6 + len(varied), timed)
    if any(cell.status != "ok" for cell in sweep.cells):
        columns.append((("Status", "text", ""), _status))
    rows = [[_shown(kind, get(cell)) for (_, kind, _), get in columns] for cell in sweep.cells]
    heads = [(label, "number" if kind == _SIZE else kind, unit) for (label, kind, unit), _ in columns]
    names = [f"{label}/{unit}" for label, _, unit in heads]
    spare = ("RSS", "Half IQR", "Theory/sent", "Sent", "Overlapped", "Theory, at", "Tokens/s/×", "Profiler")
    dropped = [at for word in spare for at, name in enumerate(names) if name.startswith(word)]
    return Listing("cells", "Cells", heads, rows, note(sweep), first_dropped=dropped or (-1,))


def _size(name: str) -> Get:
    return lambda cell: cell.sizes.get(name)


def _title(name: str) -> str:
    return {"seq_len": "Tokens of S", "num_microbatches": "Micro-batches"}.get(
        name, name.replace("_", "-").capitalize()
    )


def _kind(sweep: Sweep, name: str) -> str:
    return "text" if any(isinstance(cell.sizes.get(name), str) for cell in sweep.cells) else "int"


def _shown(kind: str, value: Any) -> Any:
    return value / 2**20 if kind == _SIZE and value is not None else value


def note(sweep: Sweep) -> str:
    """How to read the columns."""
    settings = sweep.settings
    return (
        f"Step: median of {settings.repeats} repeats of {settings.steps_per_repeat} steps without the "
        f"profiler, slowest rank; ≈ where the quartiles meet. Exposed and overlapped: means per step and "
        f"rank of {settings.profiled_steps} profiled steps. Sizes are of the rank that needs most."
    )


def failures_listing(sweep: Sweep) -> Listing | None:
    """Cells that were not measured, each with its reason."""
    failed: Sequence[Cell] = sweep.failed
    if not failed:
        return None
    rows = [[c.name, c.status, c.failed_in, c.reason, c.log] for c in failed]
    columns = tuple((name, "text", "") for name in ("Cell", "Status", "In", "Why", "Log"))
    return Listing("failures", "Cells that failed", columns, rows, "")


def skipped_listing(sweep: Sweep) -> Listing | None:
    """Combinations that were not run, with the reason."""
    if not sweep.skipped:
        return None
    rows = [[one.what, one.combinations, one.reason, "; ".join(one.workloads)] for one in sweep.skipped]
    columns = (("Mode", "text", ""), ("Combinations", "int", ""), ("Why", "text", ""), ("Which", "text", ""))
    return Listing("skipped", "Combinations that are no cell", columns, rows, "")
