"""What a person can do wrong, each with the exit code of the command line.

Every message is one sentence that says what and where. The command line prints it without a
traceback; anything that is not an `SpProfilerError` is a defect of ours.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_BUDGET = 1
EXIT_USAGE = 2
EXIT_INPUT = 3
EXIT_WORKLOAD = 4
EXIT_INTERRUPTED = 130


class SpProfilerError(Exception):
    """Base of all errors that are told to the user in one sentence."""

    exit_code = EXIT_INPUT


class UsageError(SpProfilerError):
    """The command line, or the sizes of a workload, cannot be right."""

    exit_code = EXIT_USAGE


class InputError(SpProfilerError):
    """A file or folder cannot be used as a trace."""

    exit_code = EXIT_INPUT


class WorkloadError(SpProfilerError):
    """A rank died, hung, or the workload ended with an error."""

    exit_code = EXIT_WORKLOAD


class HangError(WorkloadError):
    """No rank of a workload made progress for longer than it was given."""
