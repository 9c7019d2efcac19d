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


class ComputeStreams:
    """The computation on the stream of each device that holds most of it, in order of launch."""

    def __init__(self, activities: Activities) -> None:
        self._main: dict[int, int] = {}
        self._launch: dict[int, Int64] = {}
        self._start: dict[int, Int64] = {}
        self._all: dict[int, tuple[Int64, Int64]] = {}
        computes = np.flatnonzero((activities.kind == Kind.COMPUTATION) & (activities.launch_ns != NONE))
        length = activities.end_ns - activities.start_ns
        for device in np.unique(activities.device[computes]).tolist():
            mine = computes[activities.device[computes] == device]
            streams, place = np.unique(activities.stream[mine], return_inverse=True)
            by_launch = mine[np.argsort(activities.launch_ns[mine], kind="stable")]
            self._all[device] = activities.launch_ns[by_launch], activities.start_ns[by_launch]
            time = np.bincount(place.ravel(), weights=length[mine].astype(np.float64))
            main = int(streams[int(np.argmax(time))])
            mine = mine[activities.stream[mine] == main]
            mine = mine[np.argsort(activities.launch_ns[mine], kind="stable")]
            self._main[device] = main
            self._launch[device] = activities.launch_ns[mine]
            self._start[device] = activities.start_ns[mine]

    def _any_begins_after(self, device: int, time: int) -> int | None:
        """The same of the next computation on whatever stream."""
        launch, start = self._all.get(device, (None, None))
        if launch is None or start is None:
            return None
        at = int(np.searchsorted(launch, time, side="left"))
        return int(start[at]) if at < len(launch) else None

    def begins_after(self, device: int, time: int) -> int | None:
        """When the next computation launched at or after `time` begins."""
        if device not in self._launch:
            return None
        at = int(np.searchsorted(self._launch[device], time, side="left"))
        return int(self._start[device][at]) if at < len(self._launch[device]) else None

    def blocked(self, asked: Asked, wait: int) -> bool:
        """Whether what is computed behind a wait began after the collective's end, as far as there is any."""
        begins = self.begins_after(asked.device, wait)
        if asked.one.purpose == "layout":  # the copies behind it may run on another stream
            begins = self._any_begins_after(asked.device, wait)
        return begins is None or begins >= asked.end - _JITTER_NS

    def is_apart(self, asked: Asked) -> bool:
        """Whether the collective runs on another stream than the computation."""
        return asked.stream != self._main.get(asked.device)

    def ran_beside(self, asked: Asked) -> bool:
        """Whether computation launched behind the collective's call began before its end."""
        begins = self.begins_after(asked.device, asked.call_end)
        return begins is not None and begins < asked.end - _JITTER_NS
