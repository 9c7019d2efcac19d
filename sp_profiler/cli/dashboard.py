"""`sp-profile dashboard`: runs and traces in the browser."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from sp_profiler.cli.options import add_reading, add_window, reading, window_rule
from sp_profiler.errors import EXIT_OK, InputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dashboards.server import Address
    from dashboards.store import Store
    from sp_profiler.trace.tables import RunFiles

RUNS = "sp-profile-runs"
"""Where `sp-profile run` puts its runs: what is shown when nothing is named."""

_NEEDED = ("dash", "dash_mantine_components", "dash_ag_grid", "waitress")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `dashboard`."""
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help=f"trace files, folders, globs or URLs; a folder of runs shows them all (default: ./{RUNS})",
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on; on any but this machine's own a token is asked for (default: 127.0.0.1)",
    )
    parser.add_argument("--port", type=int, default=8050, help="0 chooses a free one (default: 8050)")
    parser.add_argument("--open", action="store_true", help="open the browser")
    parser.add_argument(
        "--allow-upload",
        action="store_true",
        help="let the page send traces, which are kept in a temporary folder until the server ends",
    )
    parser.add_argument(
        "--upload-limit",
        metavar="SIZE",
        help="most bytes of one upload, all its files together, such as 200M or 2G (default: 1G)",
    )
    add_window(parser)
    add_reading(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"the dashboard needs {', '.join(missing)}: pip install 'sp-profiler[dashboard]'")
    if not 0 <= args.port < 65536:
        raise UsageError(f"--port {args.port} is no port: 0 to 65535")
    from dashboards import server
    from dashboards.app import Settings, create_app
    from dashboards.store import Store
    from dashboards.uploads import Uploads
    from sp_profiler.report.format import visible
    from sp_profiler.trace import places
    from sp_profiler.trace.remote import as_remote

    for path in map(as_remote, args.paths):
        if not places.has_magic(path) and not places.exists(path):
            raise InputError(f"{visible(path)} does not exist.")
    limit = _upload_limit(args)
    uploads = Uploads(limit) if limit else None
    store = Store(_finder(args.paths), window_rule(args.window, args.steps), **reading(args), uploads=uploads)
    address = server.address_for(args.host, args.port)
    try:
        bound = server.listen(address)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {args.host} port {args.port}: {error.strerror}; choose another with --port"
        ) from None
    address = replace(address, port=bound.getsockname()[1])
    app = create_app(store, Settings(tuple(args.paths)))
    server.guard(app, address)
    _say(store, address, args.paths)
    first = store.ref(None)
    if first is not None:
        store.ask(first, wait_s=0)  # begins to read it
    if args.open:
        import webbrowser

        webbrowser.open(address.url)
    signal.signal(signal.SIGTERM, _end)
    with bound:
        server.serve(app, bound, address, limit)
    return EXIT_OK


def _end(*_: object) -> None:
    """End as Ctrl-C does, so that temporary folders go."""
    raise KeyboardInterrupt


def _upload_limit(args: argparse.Namespace) -> int:
    """Bytes that one upload may hold; 0 where none is allowed."""
    text = args.upload_limit
    if not args.allow_upload:
        if text is not None:
            raise UsageError("--upload-limit says how much --allow-upload takes: give both")
        return 0
    match = re.fullmatch(r"([0-9]{1,15})([KMGT]?)", "1G" if text is None else text)
    limit = int(match[1]) << 10 * " KMGT".index(match[2] or " ") if match else 0
    if limit < 1:
        raise UsageError(f"--upload-limit {text}: expected a size such as 200M or 2G")
    return limit


def _finder(paths: list[str]) -> Callable[[], list[RunFiles]]:
    """What looks for runs, each time the page is loaded."""
    from sp_profiler.trace.find import find_runs

    def find() -> list[RunFiles]:
        if paths:
            return find_runs(paths)
        return find_runs([RUNS]) if os.path.isdir(RUNS) else []

    return find


def _say(store: Store, address: Address, paths: list[str]) -> None:
    from sp_profiler.report.format import counted, visible

    if store.trouble and paths:
        print(f"sp-profile dashboard: {visible(store.trouble)}", file=sys.stderr)
    where = "" if paths or store.runs() else f" in ./{RUNS}"
    print(f"{counted(len(store.runs()), 'run')}{where}. Open {address.url} (Ctrl-C ends)", flush=True)
