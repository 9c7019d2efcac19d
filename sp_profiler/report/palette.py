"""Colours and patterns, the same in every figure: Okabe-Ito, told apart without colour too.

Both themes use the same fills; only ink, lines and background change with the theme.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Look:
    """How one kind of time is drawn. `pattern` is a plotly pattern shape, empty for a plain fill."""

    label: str
    color: str
    pattern: str = ""


TIME = {
    "compute": Look("computation only", "#0072B2"),
    "overlapped": Look("communication overlapped", "#009E73", "/"),
    "exposed": Look("communication exposed", "#D55E00", "x"),
    "memory": Look("copies only", "#8B5E3C"),
    "idle": Look("idle", "#9AA3AE", "."),
}

ROLE = {
    "fwd": Look("forward GEMM", "#0072B2"),
    "recompute": Look("recompute", "#4C5FB0", "-"),
    "dgrad": Look("dgrad", "#56B4E9"),
    "wgrad": Look("wgrad", "#009E73", "/"),
    "attention": Look("attention", "#CC79A7"),
    "optimizer": Look("optimizer", "#8C6BB1", "|"),
    "other": Look("other computation", "#8A94A3"),
    "unknown": Look("unknown role", "#B9C0CA", "."),
}

KIND = {
    "communication": Look("communication", "#E69F00", "\\"),
    "fused": Look("GEMM fused with its collective", "#A6761D", "+"),
    "memory": Look("copy or memset", "#8B5E3C", "-"),
}

MEMORY = {
    "parameter-optimizer": Look("parameters and optimizer state", "#8A94A3"),
    "before-window": Look("allocated before the recording", "#C3C9D2"),
    "gradient": Look("gradients", "#8C6BB1", "|"),
    "activation": Look("activations", "#0072B2"),
    "communication": Look("communication buffers", "#E69F00", "\\"),
    "temporary": Look("temporaries", "#56B4E9", "."),
    "unknown": Look("unknown", "#CC79A7", "x"),
}
"""Categories of memory from the ground up: what stays first, what comes and goes above it."""

EXPOSED = {
    "communication": Look("communication, every peer there", "#D55E00", "x"),
    "imbalance": Look("imbalance: a peer computes longer", "#E69F00", "\\"),
    "skew": Look("skew: a peer came late", "#56B4E9", "/"),
    "unknown": Look("exposed, cause not known", "#B9C0CA", "."),
}
"""What the exposed time of a ring's hops is made of."""

PHASE_TINTS = {
    "forward": "rgba(0,114,178,0.07)",
    "backward": "rgba(213,94,0,0.08)",
    "optimizer": "rgba(140,107,177,0.12)",
}
"""Bands behind a curve, visible in both themes."""

THEMES: dict[str, dict[str, Any]] = {
    "light": {
        "ink": "#1f2733",
        "muted": "#5b6675",
        "line": "#e3e7ee",
        "paper": "#ffffff",
        "hover": "#ffffff",
    },
    "dark": {"ink": "#e6eaf0", "muted": "#a3adbb", "line": "#2c3542", "paper": "#161c25", "hover": "#222b37"},
}


def marker(look: Look) -> dict[str, Any]:
    """The plotly marker of a bar."""
    line = {"width": 0}
    if not look.pattern:
        return {"color": look.color, "line": line}
    pattern = {
        "shape": look.pattern,
        "fillmode": "overlay",
        "fgcolor": "rgba(255,255,255,0.5)",
        "size": 6,
        "solidity": 0.22,
    }
    return {"color": look.color, "line": line, "pattern": pattern}


def fill_pattern(look: Look) -> dict[str, Any]:
    """The plotly fill pattern of an area, as `marker` has it for a bar."""
    return marker(look).get("pattern", {"shape": ""})


def theme_patch(theme: str, axes: list[str]) -> dict[str, Any]:
    """What `Plotly.relayout` changes to bring a figure with these axes into a theme."""
    look = THEMES[theme]
    patch: dict[str, Any] = {
        "paper_bgcolor": look["paper"],
        "plot_bgcolor": look["paper"],
        "font.color": look["ink"],
        "legend.font.color": look["ink"],
        "hoverlabel.bgcolor": look["hover"],
        "hoverlabel.font.color": look["ink"],
        "hoverlabel.bordercolor": look["line"],
        "modebar.color": look["muted"],
        "modebar.activecolor": look["ink"],
    }
    for axis in axes:
        if axis.startswith("coloraxis"):
            bar = f"{axis}.colorbar"
            patch |= {f"{bar}.tickfont.color": look["ink"], f"{bar}.title.font.color": look["muted"]}
            continue
        patch |= {f"{axis}.gridcolor": look["line"], f"{axis}.tickfont.color": look["ink"]}
        patch |= {f"{axis}.title.font.color": look["muted"], f"{axis}.zerolinecolor": look["line"]}
    return patch
