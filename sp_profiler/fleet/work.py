"""The work folder of a run: the tables between the stages of its analysis, on a file system all workers see.

A table is one `.npz` file: arrays, and under `FACTS` what is no array, as JSON. A mark says that a step is
finished: the fingerprint of everything its result depends on, and the small value that the step returned.
Both are written aside and renamed, so that whoever reads sees all of one or nothing, and a step is marked
when its tables lie on disk. A step marked with the same fingerprint need not be done again. Nothing in the
files is code.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec
import numpy as np

FACTS = "facts"
ASIDE = ".new-"  # how the names of files begin that are not whole yet
BROKEN = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, msgspec.MsgspecError)
"""What reading raises when files are missing, damaged, or of another version."""

Result = TypeVar("Result")


class Table:
    """An open table: arrays are read when they are asked for, each alone."""

    def __init__(self, arrays: Any) -> None:
        self._arrays = arrays

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def __contains__(self, name: str) -> bool:
        return name in self._arrays.files

    @property
    def names(self) -> list[str]:
        """The names of its arrays."""
        return [name for name in self._arrays.files if name != FACTS]

    def facts(self, kind: type[Result]) -> Result:
        """What is no array, as `kind` (a dataclass, dict...)."""
        return from_text(self._arrays[FACTS].tobytes(), kind)


@dataclass(frozen=True)
class Work:
    """The folder `root`; small and picklable, so that tasks carry it. Names have slashes: `survey/00012`."""

    root: str

    def path(self, name: str) -> Path:
        """The place of a file of this name (which holds its ending), whose folder is made."""
        place = Path(self.root, name)
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    # --- tables ----------------------------------------------------------------------------------------

    def save(self, name: str, arrays: Mapping[str, np.ndarray], facts: Any = None) -> None:
        """Write the table `name`: arrays of numbers or truth, and facts for `to_text`. Raises OSError."""
        assert not any(array.dtype.hasobject for array in arrays.values()), name
        told = np.frombuffer(to_text(facts), np.uint8)
        written: dict[str, Any] = {**arrays, FACTS: told}
        replace_whole(self.path(f"{name}.npz"), lambda file: np.savez(file, **written))

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[Table]:
        """The table `name`. Raises one of `BROKEN`."""
        with np.load(Path(self.root, f"{name}.npz"), allow_pickle=False) as arrays:
            yield Table(arrays)

    # --- marks -----------------------------------------------------------------------------------------

    def finish(self, name: str, fingerprint: str, value: Any = None) -> None:
        """Mark the step `name` as finished, with the value that it returned. Raises OSError."""
        text = to_text({"fingerprint": fingerprint, "value": value})
        replace_whole(self.path(f"{name}.done"), lambda file: file.write(text))

    def finished(self, name: str, fingerprint: str, kind: type[Result]) -> Result | None:
        """The value of a step that was finished with this fingerprint; None where it is to be done."""
        try:
            mark = from_text(Path(self.root, f"{name}.done").read_bytes(), dict)
            return _converted(mark["value"], kind) if mark["fingerprint"] == fingerprint else None
        except BROKEN:
            return None

    def once(self, name: str, fingerprint: str, kind: type[Result], make: Callable[[], Result]) -> Result:
        """What `make` returns (never None), or returned when the step was finished with this fingerprint."""
        kept = self.finished(name, fingerprint, kind)
        if kept is None:
            kept = make()
            self.finish(name, fingerprint, kept)
        return kept


def to_text(value: Any) -> bytes:
    """Dataclasses, lists, dictionaries, words, numbers as ASCII JSON: a file's name may be no UTF-8."""
    return json.dumps(msgspec.to_builtins(value, enc_hook=_plain), ensure_ascii=True).encode("ascii")


def from_text(text: bytes, kind: type[Result]) -> Result:
    """What `to_text` wrote, as `kind`. Raises one of `BROKEN`."""
    return _converted(json.loads(text), kind)


def _converted(value: Any, kind: type[Result]) -> Result:
    return msgspec.convert(value, kind, str_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return str(value)  # a kind of its own, as paths of remote files are: what may be shown of it
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a work folder cannot hold a {type(value).__name__}")


def replace_whole(place: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Make the file `place` of what `write` writes: all of it, on disk, or nothing. Raises OSError.

    Its temporary name is of this try alone: the same step may run on two machines, when one was given up.
    Who may read it is for the umask to say, as of any file: workers may be other users.
    """
    temporary = place.with_name(f"{ASIDE}{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, place)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def fingerprint_of(*parts: Any) -> str:
    """The same text for equal parts (numbers, words, lists, dictionaries), another for others."""
    text = json.dumps(parts, sort_keys=True, default=str).encode("ascii")
    return hashlib.blake2b(text, digest_size=20).hexdigest()
