"""What every HTML page of ours needs: templates, the plot library packed in, data that stays data.

A page is one file that works offline. The installed plotly.min.js is embedded compressed and unpacked
by the browser. The content-security policy names the hashes of the scripts that may run (ours and
plotly's), so that markup that came in with a kernel's name could not run even if it were not escaped.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup, escape

from sp_profiler.report import format as fmt
from sp_profiler.report.json import to_plain

HOT = re.compile(r"(?<![\w.])[<>]?\d[\d.,\u202f]*(?:[ \u202f](?:%|ns|µs|ms|s|B|[KMGT]iB)(?!\w))")
"""The figures in a sentence, with their units."""


@cache
def environment() -> jinja2.Environment:
    """Templates with autoescape, and an error for every name that a template gets wrong."""
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("sp_profiler.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {
        "visible": fmt.visible,
        "duration": fmt.duration,
        "percent": fmt.percent,
        "size": fmt.size,
        "milliseconds": fmt.milliseconds,
        "emphasised": emphasised,
    }
    return env


def emphasised(text: str) -> Markup:
    """A sentence with its figures set off; everything else escaped."""
    shown = str(escape(fmt.visible(text)))
    return Markup(HOT.sub(lambda found: f"<b>{found[0]}</b>", shown))


@cache
def _text(name: str) -> str:
    return resources.files("sp_profiler.report").joinpath("templates", name).read_text(encoding="utf-8")


@cache
def _plotly_js() -> bytes:
    return resources.files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()


@cache
def plotly_packed() -> str:
    """The installed plotly.min.js, gzip, base64: about 2 MB."""
    return base64.b64encode(gzip.compress(_plotly_js(), 9, mtime=0)).decode()


def _hash(script: bytes) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'"


@cache
def _policy() -> str:
    scripts = [_text("theme.js").encode(), _text("page.js").encode(), _plotly_js()]
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(_hash(script) for script in scripts)}",
            "style-src 'unsafe-inline'",  # plotly writes style attributes
            "img-src data: blob:",  # saving a plot as a picture
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def script_json(value: Any) -> Markup:
    """JSON that can stand in a script element: nothing in it can end the element or start a comment."""
    text = json.dumps(to_plain(value), allow_nan=False, separators=(",", ":"))  # ASCII: no U+2028 either
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)


def render_page(template: str, data: Any, **context: Any) -> str:
    """Fill a template of ours; `data` is what its scripts read."""
    return (
        environment()
        .get_template(template)
        .render(
            **context,
            data_json=script_json(data),
            policy=_policy(),
            style=Markup(_text("page.css")),
            theme_script=Markup(_text("theme.js")),
            page_script=Markup(_text("page.js")),
            plotly_packed=plotly_packed(),
        )
    )
