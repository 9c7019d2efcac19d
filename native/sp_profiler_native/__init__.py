"""The compiled part of sp-profiler's decoder, found by it at run time; nothing to be used by itself.

`INTERFACE` counts the versions of what the two packages ask of each other.
"""

from sp_profiler_native._scanner import Scanner

__all__ = ["INTERFACE", "Scanner"]

INTERFACE = 1
