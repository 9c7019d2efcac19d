"""A bar over the files of a run, on stderr and only on a terminal."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sp_profiler.analysis.steps import WindowRule
    from sp_profiler.report.model import Report
    from sp_profiler.trace.tables import RunFiles


def analyzed(files: RunFiles, window: WindowRule | None = None, **options: Any) -> Report:
    """`engine.analyze_files` with the bar; `options` are further ones of it."""
    from sp_profiler.engine import analyze_files

    with Files(files) as progress:
        return analyze_files(files, window, on_file=progress.read, on_rank=progress.analysed, **options)


class Files:
    """Counts files read and ranks analysed; does nothing in a pipe."""

    def __init__(self, files: RunFiles) -> None:
        self._bar = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.markup import escape
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(escape(files.name), total=2 * len(files.files))

    def __enter__(self) -> Files:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def read(self, path: str) -> None:
        """One file was decoded."""
        self._advance(f"read {os.path.basename(path)}")

    def analysed(self, path: str) -> None:
        """One rank was analysed."""
        self._advance(f"analysed {os.path.basename(path)}")

    def _advance(self, text: str) -> None:
        if self._bar is not None:
            from rich.markup import escape

            self._bar.update(self._task, advance=1, description=escape(text))
