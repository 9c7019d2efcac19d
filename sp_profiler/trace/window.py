"""A window that slides over the text of a file, with byte offsets into the whole of it."""

from __future__ import annotations

import re
from collections.abc import Iterator


class Window:
    """A window on the text: `data` begins at byte `base` of the file's text, `at` is where we read."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self.data = b""
        self.base = 0
        self.at = 0
        self.is_end = False

    @property
    def total(self) -> int:
        """Bytes of text seen; all of them once reading is over."""
        return self.base + len(self.data)

    @property
    def offset(self) -> int:
        return self.base + self.at

    def want(self, count: int) -> bool:
        """Have at least `count` bytes from `at` on; False when the text ends before. `at` becomes 0
        whenever more is read."""
        missing = count - (len(self.data) - self.at)
        if missing <= 0 or self.is_end:
            return missing <= 0
        pieces = [self.data[self.at :]]
        while missing > 0 and not self.is_end:
            block = next(self._blocks, None)
            if block is None:
                self.is_end = True
            else:
                pieces.append(block)
                missing -= len(block)
        self.base += self.at
        self.at = 0
        self.data = b"".join(pieces)
        return missing <= 0

    def grow(self) -> bool:
        """Read some more; False at the end of the text."""
        return self.want(len(self.data) - self.at + 1)

    def skip(self, pattern: re.Pattern[bytes]) -> int:
        """Pass over all that matches from `at` on, however long; returns the number of commas in it."""
        commas = 0
        while True:
            match = pattern.match(self.data, self.at)
            if match is not None:
                commas += match[0].count(b",")
                self.at = match.end()
            if self.at < len(self.data) or not self.want(1):
                return commas

    @property
    def byte(self) -> bytes:
        """The byte at `at`, empty at the end of the text."""
        if self.at >= len(self.data):
            self.want(1)
        return self.data[self.at : self.at + 1]
