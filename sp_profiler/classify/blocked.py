"""Whether what is computed behind a wait began after the collective ended: the check of every wait found."""

from __future__ import annotations

import numpy as np

from sp_profiler.classify.tables import Activities, Collective, Kind
from sp_profiler.trace.tables import NONE, Int64

_JITTER_NS = 1000  # between the end of a collective and the start of what waited for it


class Asked:
    """One collective whose wait is looked for."""

    def __init__(
        self,
        index: int,
        position: int,
        thread: int,
        call_end: int,
        one: Collective,
        device: int,
        stream: int,
        end: int,
        step: int,
    ) -> None:
        self.index = index
        self.position = position
        self.thread = thread
        self.call_end = call_end
        self.one = one
        self.device = device
        self.stream = stream
        self.end = end
        self.is_sharding = one.purpose_rule == "operator-name" and one.purpose == "param-gather"
        self.step = step

    @property
    def on_any_stream(self) -> bool:
        """Whether what waits for it may run on another stream than most does: copies behind a new layout."""
        return self.one.purpose == "layout"


class ComputeStreams:
    """The computation on the stream of each device that holds most of it, in order of launch."""

    def __init__(self, activities: Activities) -> None:
        self._main: dict[int, int] = {}
        self._on_main: dict[int, _Launched] = {}
        self._on_any: dict[int, _Launched] = {}
        computes = np.flatnonzero((activities.kind == Kind.COMPUTATION) & (activities.launch_ns != NONE))
        length = activities.end_ns - activities.start_ns
        for device in np.unique(activities.device[computes]).tolist():
            mine = computes[activities.device[computes] == device]
            mine = mine[np.argsort(activities.launch_ns[mine], kind="stable")]
            streams, place = np.unique(activities.stream[mine], return_inverse=True)
            time = np.bincount(place.ravel(), weights=length[mine].astype(np.float64))
            self._main[device] = main = int(streams[int(np.argmax(time))])
            self._on_any[device] = _Launched(activities, mine)
            self._on_main[device] = _Launched(activities, mine[activities.stream[mine] == main])

    def latest_end(self, device: int, wait: int, *, any_stream: bool) -> int | None:
        """The latest end of a collective that a wait at this time can have been for; None: whatever end.

        What is computed behind the wait, on the device's stream or (`any_stream`) the first on any, begins
        after the collective ended, as far as there is any.
        """
        launched = (self._on_any if any_stream else self._on_main).get(device)
        begins = launched.begins_after(wait) if launched is not None else None
        return None if begins is None else begins + _JITTER_NS

    def blocked(self, asked: Asked, wait: int) -> bool:
        """Whether what is computed behind a wait began after the collective's end, as far as there is any."""
        latest = self.latest_end(asked.device, wait, any_stream=asked.on_any_stream)
        return latest is None or asked.end <= latest

    def is_apart(self, asked: Asked) -> bool:
        """Whether the collective runs on another stream than the computation."""
        return asked.stream != self._main.get(asked.device)

    def ran_beside(self, asked: Asked) -> bool:
        """Whether computation launched behind the collective's call began before its end."""
        latest = self.latest_end(asked.device, asked.call_end, any_stream=False)
        return latest is not None and asked.end > latest


class _Launched:
    """Computations in order of launch."""

    def __init__(self, activities: Activities, rows: Int64) -> None:
        self._launch = activities.launch_ns[rows]
        self._start = activities.start_ns[rows]

    def begins_after(self, time: int) -> int | None:
        """When the next one launched at or after `time` begins."""
        at = int(self._launch.searchsorted(time))
        return int(self._start[at]) if at < len(self._start) else None
