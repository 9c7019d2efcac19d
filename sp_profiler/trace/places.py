"""Files and folders wherever they lie: a path is asked of the file system, a `Remote` of its store.

What cannot be read is an OSError, as for a local path; asked what is there at all, an InputError.
"""

from __future__ import annotations

import contextlib
import glob
import io
import os
from collections.abc import Iterator

from sp_profiler.errors import InputError
from sp_profiler.trace import remote
from sp_profiler.trace.remote import Kind, Remote


def open_binary(path: str) -> io.BufferedReader:
    """The file, to be read and sought. Raises OSError."""
    path = remote.as_remote(path)
    return remote.open_remote(path) if isinstance(path, Remote) else open(path, "rb")


@contextlib.contextmanager
def opened(path: str) -> Iterator[io.BufferedReader]:
    """The file, to be read and sought. What goes wrong while it is open is an InputError that names it."""
    try:
        with open_binary(path) as file:
            yield file
    except FileNotFoundError:
        raise InputError(f"{path} does not exist.") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder, not a trace file.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from None


def kind_of(path: str) -> Kind | None:
    """Whether there is a file, a folder, or neither (a pipe is neither). InputError where nobody can tell."""
    if isinstance(path, Remote):
        with _telling(path):
            return remote.kind_of(path)
    return "file" if os.path.isfile(path) else "folder" if os.path.isdir(path) else None


def exists(path: str) -> bool:
    """Whether anything is there. InputError as `kind_of`."""
    return kind_of(path) is not None if isinstance(path, Remote) else os.path.exists(path)


def has_magic(path: str) -> bool:
    """Whether a path is a pattern."""
    return remote.has_magic(path) if isinstance(path, Remote) else glob.has_magic(path)


def matches(pattern: str) -> dict[str, Kind | None]:
    """What matches a pattern, in order of name, and what it is. InputError where nobody can tell."""
    if isinstance(pattern, Remote):
        with _telling(pattern):
            return dict(remote.matches(pattern))
    return {path: kind_of(path) for path in sorted(glob.glob(pattern, recursive=True))}


def files_in(folder: str) -> list[str]:
    """The files directly in a folder, sorted. InputError where it cannot be read."""
    with _telling(folder):
        if isinstance(folder, Remote):
            return list(remote.listing(folder)[0])
        with os.scandir(folder) as entries:
            return sorted(entry.path for entry in entries if entry.is_file())


def walk(folder: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """As os.walk, top down. InputError for a folder that cannot be read."""
    if isinstance(folder, Remote):
        with _telling(folder):
            yield from remote.walk(folder)
        return
    yield from os.walk(folder, onerror=_unreadable)


def _unreadable(error: OSError) -> None:
    raise InputError(f"{error.filename} cannot be read: {error.strerror}.")


@contextlib.contextmanager
def _telling(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{path} does not exist.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None


def join(folder: str, name: str) -> str:
    """The place of `name` in a folder."""
    return remote.child(folder, name) if isinstance(folder, Remote) else os.path.join(folder, name)


def parent(path: str) -> str:
    """The folder a file is in; `.` for a mere name."""
    return remote.parent(path) if isinstance(path, Remote) else os.path.dirname(path) or "."


def fingerprint_of(path: str) -> tuple[object, ...] | None:
    """What changes when a file does, without reading it; None where nobody tells. Raises OSError."""
    path = remote.as_remote(path)
    if isinstance(path, Remote):
        told = remote.version_of(path)
        return None if told is None else (str(path), told)
    about = os.stat(path)
    return about.st_size, about.st_mtime_ns


def identity(path: str) -> str:
    """The same for the same file, however it is called."""
    return path.url if isinstance(path, Remote) else os.path.realpath(path)


def name_of(path: str) -> str:
    """The last part of a path or URL."""
    return os.path.basename(path.rstrip("/") if isinstance(path, Remote) else os.path.abspath(path))
