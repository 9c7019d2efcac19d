"""From a device event to the call that launched it and to the operator and ranges around that call."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp_profiler.classify.nesting import Nest
from sp_profiler.trace.tables import NONE, Category, Int64, Trace


@dataclass(frozen=True)
class Links:
    """One value per device event that was asked for."""

    launch_row: Int64  # runtime call with the same correlation, NONE when not in the trace
    launch: Int64  # its position in the nest
    operator: Int64  # position of the operator named by `External id`, NONE without one

    def through(self, nearest: Int64) -> Int64:
        """Gather `nearest` (see `Nest.nearest`) at the launch, else at the operator."""
        at_launch = nearest[self.launch]
        return np.where(at_launch != NONE, at_launch, nearest[self.operator])

    def pick(self, values: np.ndarray, missing: int) -> np.ndarray:
        """Gather a column (one value per position, one for NONE) at the launch, else at the operator."""
        at_launch = values[self.launch]
        return np.where(at_launch != missing, at_launch, values[self.operator])


def first_with_key(keys: Int64, rows: Int64, wanted: Int64) -> Int64:
    """For each wanted key the first of `rows` (in the order given) whose key equals it; NONE without one."""
    if not len(rows):
        return np.full(len(wanted), NONE, dtype=np.int64)
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    at = np.minimum(np.searchsorted(ordered, wanted, side="left"), len(ordered) - 1)
    return np.where(ordered[at] == wanted, rows[order[at]], NONE)


def link_launches(trace: Trace, nest: Nest, rows: Int64) -> Links:
    """Link the device events `rows` to their launches (correlation) and operators (`External id`).

    A correlation of 0 or none links nothing. Traces of some versions write the correlation into
    `External id` as well; where it is equal for every launched event it names no operator.
    """
    events = trace.events
    correlation = events.correlation[rows]
    calls = np.flatnonzero((events.category == int(Category.RUNTIME)) & (events.correlation > 0))
    calls = calls[np.argsort(events.start_ns[calls], kind="stable")]
    launch_row = first_with_key(
        events.correlation[calls], calls, np.where(correlation > 0, correlation, NONE)
    )
    external = events.external_id[rows]
    operator_row = np.full(len(rows), NONE, dtype=np.int64)
    if _external_ids_name_operators(external, correlation):
        operators = np.flatnonzero((events.category == int(Category.CPU_OP)) & (events.external_id > 0))
        wanted = np.where(external > 0, external, NONE)
        operator_row = first_with_key(events.external_id[operators], operators, wanted)
    return Links(launch_row, nest.position[launch_row], nest.position[operator_row])


def _external_ids_name_operators(external: Int64, correlation: Int64) -> bool:
    both = (external > 0) & (correlation > 0)
    return not (bool(both.any()) and bool(np.array_equal(external[both], correlation[both])))
