"""Texts that every output of a sweep shows."""

from __future__ import annotations

from sp_profiler.report.format import counted, listed
from sp_profiler.sweeps.model import Sweep


def title(sweep: Sweep) -> str:
    """`Sweep: DDP, TP and SP, 2 to 8 layers`."""
    modes = list(dict.fromkeys(str(cell.workload["mode"]) for cell in sweep.cells))
    words = [mode.upper() if len(mode) < 4 else mode for mode in modes]
    layers = sorted({int(cell.workload["layers"]) for cell in sweep.cells})
    if not layers:
        return "Sweep"
    span = counted(layers[0], "layer") if len(layers) == 1 else f"{layers[0]} to {layers[-1]} layers"
    return f"Sweep: {listed(words)}, {span}"


def chips(sweep: Sweep) -> list[str]:
    """What the cells have in common, for the head of a page."""
    made = [counted(len(sweep.cells), "cell"), f"--batch-policy {sweep.settings.batch_policy}"]
    for name, noun in (("ranks", "rank"), ("seq_len", "token"), ("hidden", "hidden unit")):
        values = {cell.sizes.get(name) for cell in sweep.cells}
        if len(values) == 1:
            (value,) = values
            made.append(counted(int(value), noun) if isinstance(value, int) else str(value))
    return [*made, *devices(sweep)]


def devices(sweep: Sweep) -> list[str]:
    """The devices that computed, each once."""
    return list(dict.fromkeys(name for cell in sweep.cells for name in cell.hardware))


def machine(sweep: Sweep) -> str:
    """Where and how it was measured, in a sentence."""
    settings = sweep.settings
    where = f" on {listed(devices(sweep))}" if devices(sweep) else ""
    torch = f", torch {sweep.tool.torch}" if sweep.tool.torch else ""
    return f"Measured{where} over {settings.backend}{torch}, {sweep.tool.name} {sweep.tool.version}."
