"""sp-profiler: is the communication of parallel training hidden, behind which GEMM, what stays exposed?"""

from __future__ import annotations

__version__ = "0.1.0"
