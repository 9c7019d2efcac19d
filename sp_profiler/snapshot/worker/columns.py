"""Columns of integers, and the texts and stacks that their numbers stand for."""

from __future__ import annotations

from array import array
from typing import Any

from protocol import NONE

_FRAMES = 2_000  # of one stack
MAX_TEXT = 2_000  # characters of one text


class Table:
    """Columns of int64 of equal length; a row is whole or absent."""

    def __init__(self, *names: str) -> None:
        self.columns = {name: array("q") for name in names}
        self._adders = [column.append for column in self.columns.values()]
        self.malformed = 0

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def add(self, *row: Any) -> bool:
        """Append a row; one with what is no int64 is counted as malformed and leaves nothing."""
        length = len(self)
        try:
            for add, value in zip(self._adders, row, strict=True):
                add(value)
        except (TypeError, OverflowError):
            self.malformed += 1
            for column in self.columns.values():
                del column[length:]
            return False
        return True


class Pool:
    """Texts and stacks, each kept once. Everything loaded stays alive, so an id is a name."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        self.frames = Table("file", "line", "function", "origin")
        self._frame_ids: dict[tuple[int, int, int, int], int] = {}
        self._frame_of: dict[int, int] = {}
        self.stack_frames = array("q")
        self.stack_ends = array("q")
        self._stack_ids: dict[tuple[int, ...], int] = {}
        self._stack_of: dict[int, int] = {}

    def text(self, value: Any) -> int:
        if not isinstance(value, str):
            return NONE
        known = self.texts.get(value)
        if known is None:
            cut = value if len(value) <= MAX_TEXT else value[: MAX_TEXT - 1] + "…"
            known = self.texts.setdefault(cut, len(self.texts))
        return known

    def stack(self, frames: Any) -> int:
        """The number of a list of frames, innermost first; NONE for one that is empty or absent."""
        if not isinstance(frames, (list, tuple)) or not frames:
            return NONE
        known = self._stack_of.get(id(frames))
        if known is None:
            known = self._stack_of[id(frames)] = self._new_stack(frames)
        return known

    def _new_stack(self, frames: Any) -> int:
        of = self._frame_of
        ids = []
        for frame in frames[:_FRAMES]:
            number = of.get(id(frame))
            if number is None:
                number = of[id(frame)] = self._frame(frame)
            if number != NONE:
                ids.append(number)
        if not ids:
            return NONE
        key = tuple(ids)
        known = self._stack_ids.get(key)
        if known is None:
            known = self._stack_ids[key] = len(self.stack_ends)
            self.stack_frames.extend(key)
            self.stack_ends.append(len(self.stack_frames))
        return known

    def _frame(self, frame: Any) -> int:
        if not isinstance(frame, dict):
            return NONE
        line = frame.get("line")
        line = line if isinstance(line, int) and 0 <= line < 1 << 31 else 0
        origin = self.text(frame.get("fx_original_trace"))  # of a compiled graph: where its source stood
        key = (self.text(frame.get("filename")), line, self.text(frame.get("name")), origin)
        known = self._frame_ids.get(key)
        if known is None:
            known = self._frame_ids[key] = len(self.frames)
            self.frames.add(*key)
        return known
