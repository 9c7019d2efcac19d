"""Traces that lie elsewhere: `s3://`, `gs://`, `http(s)://`, `memory://` and whatever else fsspec reads.

The only place that knows fsspec, which is imported when a URL is named. Whatever a store or a server does
wrong becomes an OSError with words of our own: theirs may quote the URL, and with it what lets somebody in.

A file is fetched in one go, from its beginning, into a temporary file that has no name; what was fetched can
be read again. So servers that cannot give a part of a file serve as well as stores that can, and a file that
is looked at twice (to find it in the cache, to mend it) is fetched once.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import tempfile
from collections.abc import Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, cast

from sp_profiler.errors import InputError

if TYPE_CHECKING:
    import asyncio

    from fsspec import AbstractFileSystem

CONNECT_S = 20
"""How long a server may take to accept a connection, in seconds."""
SILENT_S = 60
"""How long it may then say nothing."""

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+)(?P<chain>::.*)?://", re.DOTALL)
_HTTP = ("http", "https")
_GLOB = re.compile(r"[*\[]")  # a `?` begins a query
_FILE_NAME = re.compile(r"\.(?:json|gz|pickle|pkl|trace)$", re.IGNORECASE)
_FETCHED_BYTES = 1 << 20
_DEEPEST = 8  # folders below the one that is named: a server may make up links without end
_MOST_FOLDERS = 100_000

Kind = Literal["file", "folder"]


class Remote(str):
    """A URL as it may be shown and kept: without what lets somebody in (a password, a signed query).

    `url` is the whole of it. Both survive pickling.
    """

    url: str

    def __new__(cls, url: str) -> Remote:
        made = super().__new__(cls, _shown(url))
        made.url = url
        return made


class RemoteError(OSError):
    """A file that cannot be had; `strerror` says why and quotes nothing that a server said."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EIO, why)


class RemoteDenied(PermissionError):
    """The same for somebody who may not read it."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EACCES, why)


def is_remote(path: str) -> bool:
    """Whether a path is a URL. `file://` is one of those, too: `as_remote` makes it a path."""
    return _URL.match(path) is not None


def as_remote(path: str) -> str:
    """A URL as `Remote`, the path that a `file://` names, any other path as it is."""
    if isinstance(path, Remote) or not is_remote(path):
        return path
    if path.startswith("file://"):
        return path.removeprefix("file://")
    return Remote(path)


def _shown(url: str) -> str:
    """The URL without password and, of the web, without user, query and fragment."""
    match = _URL.match(url)
    if match is None:
        return url
    place, slash, rest = url[match.end() :].partition("/")
    user, at, host = place.rpartition("@")
    if match["scheme"].lower() in _HTTP:
        whole = re.split(r"[?#]", f"{host}{slash}{rest}", maxsplit=1)[0]
        return url[: match.end()] + whole
    return url[: match.end()] + user.partition(":")[0] + at + host + slash + rest


def child(folder: Remote, name: str) -> Remote:
    """The file or folder `name` in a folder."""
    return Remote(f"{_without_query(folder).rstrip('/')}/{name}")


def parent(path: Remote) -> Remote:
    """The folder that a file is in; of a folder the one above."""
    return Remote(os.path.dirname(_without_query(path).rstrip("/")))


def _without_query(path: Remote) -> str:
    return re.split(r"[?#]", path.url, maxsplit=1)[0] if _is_web(path) else path.url


def _is_web(path: Remote) -> bool:
    return path.url.partition(":")[0].lower() in _HTTP


# --- what is there -------------------------------------------------------------------------------------


def kind_of(path: Remote) -> Kind | None:
    """Whether a URL is a file, a folder, or nothing. Raises OSError where that cannot be found out.

    On the web a folder is what ends with a slash, or what has no file's name and answers with links to what
    lies below it.
    """
    system, target = _system(path)
    try:
        with _in_our_words():
            if not _is_web(path):
                return "folder" if system.info(target)["type"] == "directory" else "file"
            has_query = _without_query(path) != path.url
            if not has_query and not _FILE_NAME.search(path) and any(listing(path)):
                return "folder"
    except FileNotFoundError:
        return None
    if path.endswith("/"):
        return "folder"  # without links
    try:
        open_remote(path).close()
    except FileNotFoundError:
        return None
    return "file"


def listing(folder: Remote) -> tuple[list[Remote], list[Remote]]:
    """The files and the folders in a folder, by name. Raises OSError."""
    system, target = _system(folder)
    with _in_our_words():
        system.invalidate_cache()
        found = system.ls(target, detail=True)
    files, folders = set(), set()
    for entry in found:
        name = _name_in(folder, entry["name"])
        if name:
            (folders if entry["type"] == "directory" else files).add(name)
    return [child(folder, one) for one in sorted(files)], [child(folder, one) for one in sorted(folders)]


def _name_in(folder: Remote, found: str) -> str | None:
    """The last part of what a listing holds; None for what is not in the folder: a page links anywhere."""
    if not _is_web(folder):
        return found.rstrip("/").rpartition("/")[2]
    base = _without_query(folder).rstrip("/") + "/"
    name = found.removeprefix(base).removesuffix("/")
    is_inside = found.startswith(base) and name not in ("", ".", "..") and re.search(r"[/?#]", name) is None
    return name if is_inside else None


def walk(folder: Remote) -> Iterator[tuple[Remote, list[str], list[str]]]:
    """As os.walk, top down: a folder, the names of the folders in it (to be cut down), those of its files."""
    below: list[tuple[Remote, int]] = [(folder, 0)]
    for _ in range(_MOST_FOLDERS):
        if not below:
            return
        current, depth = below.pop()
        files, folders = listing(current)
        names = [os.path.basename(one) for one in folders]
        yield current, names, [os.path.basename(one) for one in files]
        if depth < _DEEPEST:
            below += [(child(current, name), depth + 1) for name in reversed(names)]
    raise RemoteError(f"it holds more than {_MOST_FOLDERS} folders")


def has_magic(path: Remote) -> bool:
    """Whether a URL is a pattern (`*`, `[...]`)."""
    return _GLOB.search(path) is not None


def matches(pattern: Remote) -> list[tuple[Remote, Kind]]:
    """What matches a pattern, by name. Raises OSError."""
    system, target = _system(pattern)
    with _in_our_words():
        system.invalidate_cache()
        found = cast("dict[str, dict[str, Any]]", system.glob(target, detail=True))
    scheme = pattern.url.partition("://")[0]
    kinds: dict[str, Kind] = {}
    for name, about in found.items():
        url = name if _is_web(pattern) else f"{scheme}://{name.partition('://')[2] or name}"
        kinds[url.replace(":///", "://")] = "folder" if about["type"] == "directory" else "file"
    return [(Remote(url), kinds[url]) for url in sorted(kinds)]


def version_of(path: Remote) -> str | None:
    """What changes when the file does; None where the store does not tell. Raises OSError."""
    system, target = _system(path)
    with _in_our_words():
        about = system.info(target)
    told = {key: about.get(key) for key in _TELLING if about.get(key) is not None}
    return repr(sorted(told.items())) if told.keys() - {"size"} else None


_TELLING = (
    "size",
    "ETag",
    "etag",
    "md5Hash",
    "Content-MD5",
    "Last-Modified",
    "LastModified",
    "mtime",
    "created",
)


# --- reading -------------------------------------------------------------------------------------------


def open_remote(path: Remote) -> io.BufferedReader:
    """The file, fetched as far as it is read; it can be sought. Raises OSError, also while it is read."""
    system, target = _system(path)
    with _in_our_words():
        # With a size fsspec asks nobody for it; without blocks it fetches from the beginning to the end.
        stream = (
            system.open(target, "rb", block_size=0, size=1) if _is_web(path) else system.open(target, "rb")
        )
    return io.BufferedReader(_Fetched(cast("BinaryIO", stream)), _FETCHED_BYTES)


def fetch(path: Remote) -> BinaryIO:
    """The whole file as a temporary one with a descriptor, at its beginning. Raises OSError."""
    with open_remote(path) as file:
        kept = cast("BinaryIO", tempfile.TemporaryFile(buffering=0))  # noqa: SIM115 (the caller closes it)
        try:
            while block := file.read(_FETCHED_BYTES):
                _write_all(kept, block)
            kept.seek(0)
        except BaseException:
            kept.close()
            raise
    return kept


def _write_all(file: BinaryIO, data: bytes) -> None:
    while data:
        data = data[file.write(data) :]


class _Fetched(io.RawIOBase):
    """A stream that remembers what it gave: reading goes back, never to the store a second time."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self._stream = stream
        self._kept = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the stream)
        self._have = 0
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._at == self._have:
            self._fetch(len(buffer))
        self._kept.seek(self._at)
        data = self._kept.read(len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_END:
            while self._fetch(_FETCHED_BYTES):
                pass
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._have}[whence]
        wanted = max(base + offset, 0)
        while self._have < wanted and self._fetch(_FETCHED_BYTES):
            pass
        self._at = min(wanted, self._have)
        return self._at

    def tell(self) -> int:
        return self._at

    def _fetch(self, most: int) -> int:
        with _in_our_words():
            data = self._stream.read(most)
        self._kept.seek(self._have)
        self._kept.write(data)
        self._have += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._kept.close()
            with contextlib.suppress(OSError), _in_our_words():
                self._stream.close()
        super().close()


# --- fsspec --------------------------------------------------------------------------------------------


def _system(path: Remote) -> tuple[AbstractFileSystem, str]:
    """The file system of a URL, and what it calls the file.

    Raises InputError where there is none for it, OSError where it cannot be reached.
    """
    match = _URL.match(path.url)
    scheme = (match["scheme"] if match else "").lower()
    if match is None or match["chain"]:
        raise InputError(f"{path} chains several stores, which is not read: name the file where it lies.")
    try:
        import fsspec
    except ImportError:
        raise InputError(f"{path} cannot be read without fsspec: pip install 'sp-profiler[remote]'") from None
    try:
        system, target = fsspec.url_to_fs(path.url, **_options(scheme))
        if scheme in _HTTP:
            system.loop.call_soon_threadsafe(system.loop.set_exception_handler, _told)
        return system, target
    except ImportError:
        raise InputError(f"{path} cannot be read: {_lacking(scheme)}.") from None
    except ValueError:
        raise InputError(
            f"{path} cannot be read: {scheme}:// is unknown (s3://, gs://, http:// and https:// are known,"
            " and what else fsspec reads)."
        ) from None
    except Exception as error:  # noqa: BLE001 (as in `_in_our_words`)
        raise _translated(error) from None


def _options(scheme: str) -> dict[str, Any]:
    """The web: bounds for silence instead of one for the whole file; proxies and .netrc as the system has
    them. What the user's configuration of fsspec says comes first."""
    if scheme not in _HTTP:
        return {}
    import aiohttp
    from fsspec.config import conf

    told = {**conf.get("http", {}), **conf.get(scheme, {})}.get("client_kwargs", {})
    bounds = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENT_S)
    return {"client_kwargs": {"timeout": bounds, "trust_env": True, **told}}


def _told(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What the loop's default handler says, without "Unclosed connection": fsspec lets go of an answer that
    is an error before its end, and the error is told by us."""
    if "client_connection" not in context:
        loop.default_exception_handler(context)


def _lacking(scheme: str) -> str:
    """What is to be installed for a scheme."""
    if scheme in _HTTP:
        return f"{scheme}:// needs aiohttp: pip install 'sp-profiler[remote]'"
    from fsspec.registry import known_implementations

    about = known_implementations.get(scheme, {})
    package = about.get("class", "").partition(".")[0]
    if package and package != "fsspec":
        return f"{scheme}:// needs {package}: pip install {package}"
    return about.get("err", f"a package that reads {scheme}:// is missing").rstrip(".")


@contextlib.contextmanager
def _in_our_words() -> Iterator[None]:
    """Errors of a store or server become FileNotFoundError, RemoteDenied or RemoteError."""
    try:
        yield
    except (RemoteError, RemoteDenied, InputError):
        raise  # said already
    except Exception as error:  # noqa: BLE001 (a store's driver raises whatever its libraries do)
        raise _translated(error) from None


def _translated(error: Exception) -> OSError:
    names = {one.__name__ for one in type(error).__mro__}
    status = getattr(error, "status", None)
    if isinstance(error, FileNotFoundError) or status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    if isinstance(status, int) and status:
        known = status in {one.value for one in HTTPStatus}
        answer = f"the server answers {status}" + (f" {HTTPStatus(status).phrase}" if known else "")
        refused = status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
        return RemoteDenied(answer) if refused else RemoteError(answer)
    if isinstance(error, PermissionError):
        return RemoteDenied("the store denies access")
    for name, why in _REASONS:
        if name in names:
            return RemoteError(why)
    cause = getattr(error, "os_error", error)
    if isinstance(cause, OSError) and cause.errno:
        return RemoteError(os.strerror(cause.errno) if cause.errno > 0 else _UNREACHABLE)
    if "ClientConnectionError" in names:
        return RemoteError(_UNREACHABLE)
    return RemoteError(f"the store's driver fails with {type(error).__name__}")


_UNREACHABLE = "the server cannot be reached"
_REASONS = (
    ("TimeoutError", "the server does not answer in time"),
    ("ClientConnectorDNSError", "the name of the server is not known"),
    ("ClientConnectorCertificateError", "the certificate of the server is not accepted"),
    ("ClientSSLError", "no secure connection to the server can be made"),
    ("ClientPayloadError", "the connection broke off before the end of the file"),
    ("ServerDisconnectedError", "the server broke off the connection"),
    ("InvalidURL", "it is no URL"),
    ("TooManyRedirects", "the server redirects without end"),
    ("NonHttpUrlRedirectClientError", "the server redirects to what is not of the web"),
    ("NoCredentialsError", "no credentials were found for the store"),
    ("EndpointConnectionError", "the store cannot be reached"),
)
