"""A worker of `processes.py`: `python -m sp_profiler.fleet.worker TASKS RESULTS PARENT`, two pipes and a pid.

Messages are a length (8 bytes) and a pickle: a pair of function and task in; `STARTED`, then `DONE` with a
value or `RAISED` with words and what the user is to be told (or None) out. The worker ends when nobody can
send tasks any more, or sent none for `IDLE_S`, and with its parent, however that ends.
"""

from __future__ import annotations

import os
import pickle
import select
import sys
from typing import Any, BinaryIO

from sp_profiler.errors import SpProfilerError
from sp_profiler.fleet.engines import in_words
from sp_profiler.record.processes import die_with_parent

READY, STARTED, DONE, RAISED = "ready", "started", "done", "raised"
LENGTH_BYTES = 8
IDLE_S = 300.0


def packed(message: Any) -> bytes:
    """A message as it goes through a pipe."""
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


def main(tasks: int, results: int, parent: int) -> None:
    """Do what comes through the pipe `tasks` until it is closed."""
    die_with_parent()
    if os.getppid() != parent:  # it was gone before we could ask
        return
    with os.fdopen(tasks, "rb") as source, os.fdopen(results, "wb") as target:
        _send(target, (READY,))
        # One task at a time is sent: between two of them nothing can be in the buffer of `source`.
        while select.select([source], [], [], IDLE_S)[0] and (header := source.read(LENGTH_BYTES)):
            body = source.read(int.from_bytes(header, "little"))
            target.write(_answer(body, target))
            target.flush()


def _send(target: BinaryIO, message: Any) -> None:
    target.write(packed(message))
    target.flush()


def _answer(body: bytes, target: BinaryIO) -> bytes:
    """What comes of one task, and that it was started: from then on its time counts."""
    try:
        function, task = pickle.loads(body)
        _send(target, (STARTED,))
        return packed((DONE, function(task)))
    except SpProfilerError as error:
        return packed((RAISED, str(error), _picklable(error)))
    except Exception as error:  # noqa: BLE001 - whatever one trace makes us do, the others go on
        return packed((RAISED, in_words(error), None))


def _picklable(error: SpProfilerError) -> SpProfilerError:
    """The error as it can travel: of its own kind where that takes a sentence alone."""
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - whatever its constructor asks for
        plain = SpProfilerError(str(error))
        plain.exit_code = error.exit_code
        return plain


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:4]))
