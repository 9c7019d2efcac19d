"""A dashboard's server that answers while a test asks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def answering(running: Any) -> Iterator[None]:
    """Let what `make_server` made answer in a thread of its own.

    At the end connections are closed too: a browser keeps them open, and the server waits for their end.
    """
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()

    def stop() -> None:
        for channel in list(running.active_channels.values()):
            channel.handle_close()
        running.close()

    try:
        yield
    finally:
        running.trigger.pull_trigger(stop)  # in the server's own thread
        thread.join(timeout=30)
        running.task_dispatcher.shutdown()
    assert not thread.is_alive()
