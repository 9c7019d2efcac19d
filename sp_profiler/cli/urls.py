"""What was named by URL on the command line."""

from __future__ import annotations

import argparse

from sp_profiler.errors import UsageError
from sp_profiler.trace.remote import Remote, as_remote

_OUTPUTS = ("out", "work")


def settle_urls(args: argparse.Namespace) -> None:
    """From here on a URL is shown without what lets somebody in, whoever shows it; `file://` names a path.

    Raises UsageError for one to which something is to be written.
    """
    for name, value in vars(args).items():
        if isinstance(value, str):
            setattr(args, name, as_remote(value))
        elif isinstance(value, list) and all(isinstance(one, str) for one in value):
            setattr(args, name, [as_remote(one) for one in value])
    for name in _OUTPUTS:
        if isinstance(getattr(args, name, None), Remote):
            raise UsageError(f"{getattr(args, name)} is a URL: results are written to files of this machine")
