"""Bars on stderr, and only on a terminal: how far the analysis of a run is."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

    from sp_profiler.analysis.steps import WindowRule
    from sp_profiler.report.model import Report
    from sp_profiler.trace.tables import RunFiles


def analyzed(files: RunFiles, window: WindowRule | None = None, **options: Any) -> Report:
    """`engine.analyze_files` with the bar; `options` are further ones of it."""
    from sp_profiler.engine import analyze_files

    with Files(files) as progress:
        return analyze_files(files, window, on_file=progress.read, on_rank=progress.analysed, **options)


class Bar:
    """A bar that stands while its block runs. `_bar` is None in a pipe: then there is nothing to draw on."""

    def __init__(self, columns: Callable[[], Sequence[ProgressColumn]] | None = None) -> None:
        """`columns` of the bar, made only where it is shown; without them those that rich gives it."""
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(
                *(columns() if columns else ()), console=Console(stderr=True), transient=True
            )

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


class Files(Bar):
    """Counts files read and ranks analysed; does nothing in a pipe."""

    def __init__(self, files: RunFiles) -> None:
        super().__init__()
        if self._bar is not None:
            from rich.markup import escape

            self._task = self._bar.add_task(escape(files.name), total=2 * len(files.files))

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
