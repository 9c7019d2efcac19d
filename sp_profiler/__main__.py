"""`python -m sp_profiler` is `sp-profile`."""

from sp_profiler.cli.main import entry_point

entry_point()
