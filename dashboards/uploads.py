"""Traces that the page sends, where the server was started with `--allow-upload`.

They lie in a temporary folder that goes when the server ends, under names made here: of the name that was
given only the rank and the ending are kept, and the rest is text to show. Nothing of them enters the cache.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dash import Dash
from flask import Response, jsonify, make_response, request
from werkzeug.datastructures import FileStorage

from dashboards.store import Store
from sp_profiler.errors import InputError
from sp_profiler.report.format import counted, size, visible
from sp_profiler.snapshot.read import ENDINGS as SNAPSHOT_ENDINGS
from sp_profiler.trace.find import RUN_JSON, find_runs
from sp_profiler.trace.metadata import rank_from_name, worker_from_name
from sp_profiler.trace.tables import RunFiles

PATH = "/upload"
LIMIT_BYTES = 1 << 30
"""What one upload, all its files together, may hold unless told otherwise."""

_KEPT = 4  # uploads of full size that the folder may hold together
_MOST_FILES = 1024
_LONGEST_NAME = 80
_NO_TRACE = "no trace: traces of torch.profiler end in .json or .json.gz"


class Refused(Exception):
    """An upload that is not taken: an HTTP status, and why in one sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Uploads:
    """The uploaded runs of one server. Safe to use from several threads."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="sp-profile-uploads-")))
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        self._lock = threading.Lock()
        self._runs: list[RunFiles] = []
        self._names: dict[str, str] = {}
        self._begun = 0
        self._held_bytes = 0

    def runs(self) -> list[RunFiles]:
        with self._lock:
            return list(self._runs)

    def holds(self, path: str) -> bool:
        """Whether a file is one of ours."""
        return Path(path).is_relative_to(self.folder)

    def named(self, text: str) -> str:
        """A sentence in which files have the names under which they were given."""
        with self._lock:
            known = dict(self._names)
        for path, name in known.items():
            text = text.replace(path, name)
        return text

    def take(self, files: Sequence[FileStorage], size_bytes: int) -> RunFiles:
        """Keep the files of one run. Raises Refused; then nothing of them stays."""
        given = [(one, _last_part(one.filename or "")) for one in files]
        if not given or len(given) > _MOST_FILES:
            raise Refused(400, f"an upload has 1 to {_MOST_FILES} files")
        folder = self._new_folder(size_bytes)
        try:
            names = {str(folder / _own_name(at, name)): name for at, (_, name) in enumerate(given)}
            if len(names) < len(given):
                raise Refused(400, f"an upload has one {RUN_JSON}")
            for (one, name), path in zip(given, names, strict=True):
                _refuse_no_json(one, name)
                one.save(path)
            run = self._found(folder, names)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            with self._lock:
                self._held_bytes -= size_bytes
            raise
        with self._lock:
            self._runs.append(run)
            self._names |= names
        return run

    def _new_folder(self, size_bytes: int) -> Path:
        with self._lock:
            if self._held_bytes + size_bytes > _KEPT * self.limit_bytes:
                raise Refused(507, "the uploads of this server fill their place until it starts anew")
            self._held_bytes += size_bytes
            self._begun += 1
            folder = self.folder / f"upload-{self._begun}"
        folder.mkdir()
        return folder

    def _found(self, folder: Path, names: dict[str, str]) -> RunFiles:
        try:
            (run,) = find_runs([str(folder)])
        except InputError:
            raise Refused(415, f"there is no trace among {counted(len(names), 'file')}") from None
        first = names[run.files[0]]
        more = len(run.files) - 1
        return replace(run, name=f"{first} and {more} more" if more else first)


def register(app: Dash, store: Store) -> None:
    """The address that takes uploads, which refuses all where they were not allowed."""
    uploads = store.uploads

    @app.server.post(PATH)
    def _upload() -> Response:
        try:
            if uploads is None:
                raise Refused(403, "uploads are off: start sp-profile dashboard with --allow-upload")
            size_bytes = request.content_length
            if size_bytes is None:
                raise Refused(411, "an upload has to say how long it is")
            if size_bytes > uploads.limit_bytes:
                raise Refused(413, too_big(uploads.limit_bytes))
            request.max_content_length = uploads.limit_bytes
            request.max_form_parts = _MOST_FILES + 1  # one too many is counted, and told
            run = uploads.take(request.files.getlist("files"), size_bytes)
        except Refused as refused:
            return Response(f"{visible(refused.text)}\n", refused.status, mimetype="text/plain")
        store.refresh()
        told = {"run": next(ref.id for ref in store.runs() if ref.files == run), "name": run.name}
        return make_response(jsonify(told), 201)


def too_big(limit_bytes: int) -> str:
    return f"an upload holds at most {size(limit_bytes)}: see --upload-limit"


def _last_part(given: str) -> str:
    """The name to show, without folders (of either kind of slash)."""
    return given.replace("\\", "/").rsplit("/", 1)[-1][-_LONGEST_NAME:]


def _own_name(at: int, given: str) -> str:
    """The name on disk. Raises Refused for what is read neither as a trace nor as a run's description."""
    low = given.lower()
    if low.endswith(SNAPSHOT_ENDINGS):
        raise Refused(415, f"{given} is a memory snapshot, no trace: sp-profile memory reads it")
    if given == RUN_JSON:
        return RUN_JSON
    ending = next((one for one in (".json.gz", ".json") if low.endswith(one)), None)
    if ending is None:
        raise Refused(415, f"{given or 'a file without a name'} is {_NO_TRACE}")
    rank, worker = rank_from_name(given), worker_from_name(given)
    of = f"-rank{rank}" if rank is not None else f"-worker{worker}" if worker is not None else ""
    return f"{at:04d}{of}.pt.trace{ending}"


def _refuse_no_json(one: FileStorage, name: str) -> None:
    """What cannot be JSON, packed or not, is refused before it is kept."""
    head = one.stream.read(64)
    one.stream.seek(0)
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not head:
        raise Refused(415, f"{name} is empty")
    if not (head[:2] == b"\x1f\x8b" or text[:1] in (b"{", b"[")):
        raise Refused(415, f"{name} is {_NO_TRACE}, and hold JSON")
