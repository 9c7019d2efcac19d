"""What each activity of a trace is: communication or computation, of which collective, role and phase."""

from sp_profiler.classify.classify import classify

__all__ = ["classify"]
