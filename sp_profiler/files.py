"""Writing files so that a reader sees the old content or the new, never a part; and where none may go."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from sp_profiler.errors import UsageError

FILE_ENDINGS = (".html", ".json", ".md", ".csv", ".parquet")
"""Of names that mean a file even where there is none, packed (`.gz`) or not."""


def write_atomically(path: Path, content: str | bytes | Iterable[str | bytes]) -> None:
    """Replace `path` in one step, through a temporary file in the same folder. It may come in parts.

    A link stays and the file it leads to is replaced; a device or a pipe is written into, for a new file
    in its place would break it for everybody. Raises OSError, leaving no file behind.
    """
    parts = (content,) if isinstance(content, (str, bytes)) else content
    if path.exists() and not path.is_file():
        _write(path, parts)
        return
    place = Path(os.path.realpath(path)) if path.is_symlink() else path
    temporary = temporary_beside(place)
    try:
        _write(temporary, parts)
        os.replace(temporary, place)
    except BaseException:
        _remove(temporary)
        raise


def _write(path: Path, parts: Iterable[str | bytes]) -> None:
    with path.open("wb") as file:
        for part in parts:
            file.write(part.encode("utf-8") if isinstance(part, str) else part)


def temporary_beside(path: Path, ending: str = "tmp") -> Path:
    """A hidden name in the same folder, of this process alone; as short as file systems ask for."""
    return path.with_name(f".{path.name[:40]}.{os.getpid()}.{ending}")


def _remove(path: Path) -> None:
    """Remove what may be there; what forbade to write the file is the error to tell."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return


def refuse_unwritable(folder: Path) -> None:
    """UsageError when `folder` is not there and cannot be made, or takes no files."""
    there = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
    if not there.is_dir():
        raise UsageError(f"cannot write to {folder}: {there} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UsageError(f"cannot write to {folder}: {there} is read-only")


def refuse_inputs(files: Iterable[Path], inputs: Iterable[str]) -> None:
    """UsageError when what is written would take the place of what is read: `--force` cannot mean that."""
    read = {os.path.realpath(file) for file in inputs}
    for file in files:
        if os.path.realpath(file) in read:
            raise UsageError(f"{file} is to be read: choose another name for what is written")


def refuse_file_for_folder(out: Path, given: str, what: str) -> None:
    """UsageError when what needs a folder was given a file's name. `what`: `2 runs as html need`."""
    if (out.exists() and not out.is_dir()) or named_as_file(given):
        raise UsageError(f"{out} {'is' if out.exists() else 'names'} a file, but {what} a folder")


def named_as_file(out: str) -> bool:
    """Whether it looks like one of our files (`demo.html`): no folder, and not meant as one (`x/`)."""
    is_folder = out.endswith("/") or Path(out).is_dir()
    return not is_folder and Path(out.removesuffix(".gz")).suffix.lower() in FILE_ENDINGS


def refuse_folders_of(files: Iterable[Path]) -> None:
    """Refuse, before the work, folders in which these files could not be written.

    Into a pipe or a device, which exists and is no file, is written as it is.
    """
    for folder in dict.fromkeys(file.parent for file in files if file.is_file() or not file.exists()):
        refuse_unwritable(folder)
