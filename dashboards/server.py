"""Who may ask, over which addresses, and the server itself.

The dashboard listens on this machine alone. On another address it asks for a token, which the printed URL
carries and a cookie keeps. Requests name the host that they were sent to: a page of another site that made
its own name point here (DNS rebinding) is refused by it, and so is what another site's page sends.
"""

from __future__ import annotations

import copy
import hmac
import ipaddress
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import flask
from dash import Dash
from werkzeug.http import parse_cookie

from dashboards.uploads import PATH as UPLOAD_PATH

MOST_REQUEST_BYTES = 1 << 20
"""The page's own requests hold a state and a click: a few kilobytes."""

_LOCAL = ("127.0.0.1", "::1", "localhost")
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin-allow-popups",  # a window of Perfetto is handed a trace
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True)
class Address:
    """Where the server listens. `token` is None on this machine alone."""

    host: str = "127.0.0.1"
    port: int = 8050
    token: str | None = None

    @property
    def is_local(self) -> bool:
        return is_local(self.host)

    @property
    def cookie(self) -> str:
        """The cookie's name. Cookies know no port: two dashboards of one host need two names."""
        return f"sp-profile-token-{self.port}"

    @property
    def url(self) -> str:
        """What to open, with the token where there is one."""
        host = socket.gethostname() if self.host in ("0.0.0.0", "::") else self.host
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{self.port}/" + (f"?token={self.token}" if self.token else "")


def is_local(host: str) -> bool:
    """Whether a host name or address is this machine's own loopback."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def address_for(host: str, port: int) -> Address:
    """The address, with a new token unless it is this machine's own."""
    return Address(host, port, None if is_local(host) else secrets.token_urlsafe(24))


def guard(app: Dash, address: Address) -> None:
    """Refuse what may not ask, and send the page's policies. To be called when all callbacks are there."""
    server: flask.Flask = app.server
    server.config["MAX_CONTENT_LENGTH"] = MOST_REQUEST_BYTES
    policy = content_policy(app)

    @server.before_request
    def _check() -> flask.Response | None:
        request = flask.request
        if not is_our_host(request.host, address):
            return _refused(403, "this dashboard does not answer to that host name")
        origin = request.headers.get("Origin")
        if origin is not None and _host_of(origin) != request.host:
            return _refused(403, "requests from other sites are refused")
        if request.path == "/_reload-hash":  # of Dash's development tools
            return _refused(404, "not found")
        return _check_token(request, address)

    @server.after_request
    def _send(response: flask.Response) -> flask.Response:
        response.headers["Content-Security-Policy"] = policy
        for name, value in _HEADERS.items():
            response.headers[name] = value
        response.headers.pop("Server", None)
        return response


def content_policy(app: Dash) -> str:
    """Scripts of our own origin and Dash's inline one; nothing from elsewhere, nothing made from text."""
    scripts = " ".join(app.csp_hashes())
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src 'self' {scripts}",
            "style-src 'self' 'unsafe-inline'",  # plotly, ag-grid and mantine write style attributes
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


def is_our_host(host: str, address: Address) -> bool:
    """Whether a Host header names this server. Addresses cannot be rebound, names of ours are known."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if address.is_local:
        return name in _LOCAL or name == address.host
    try:
        ipaddress.ip_address(name)
    except ValueError:
        known = {address.host, "localhost", socket.gethostname(), socket.getfqdn()}
        return name.lower() in {one.lower() for one in known}
    return True


def _host_of(origin: str) -> str | None:
    """The host and port of an Origin header; None where it is no address."""
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None


def _check_token(request: flask.Request, address: Address) -> flask.Response | None:
    if address.token is None:
        return None
    if _same(request.cookies.get(address.cookie, ""), address.token):
        return None
    given = request.args.get("token", "")
    if not _same(given, address.token):
        return _refused(401, "open the URL that sp-profile dashboard printed: it carries the token")
    kept = urlencode([(name, value) for name, value in request.args.items() if name != "token"])
    response = flask.make_response("", 302)
    response.headers["Location"] = f"{quote(request.path)}?{kept}".rstrip("?")
    response.set_cookie(address.cookie, address.token, httponly=True, samesite="Strict")
    return response


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())


def _refused(status: int, text: str) -> flask.Response:
    return flask.Response(f"{text}\n", status, mimetype="text/plain")


def may_upload(headers: Mapping[str, str], address: Address) -> bool:
    """Whether a request with these headers (as `COOKIE`) may send more than a page's own requests do."""
    host, origin = headers.get("HOST", ""), headers.get("ORIGIN")
    if not is_our_host(host, address) or (origin is not None and _host_of(origin) != host):
        return False
    token = parse_cookie(headers.get("COOKIE")).get(address.cookie, "")
    return address.token is None or _same(token, address.token)


def listen(address: Address) -> socket.socket:
    """A socket bound to the address; port 0 chooses a free one. Raises OSError."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((address.host, address.port))
    except OSError:
        bound.close()
        raise
    return bound


def make_server(
    app: Dash, bound: socket.socket, address: Address | None = None, upload_bytes: int = 0
) -> Any:
    """A server on the socket: `run()` answers until `close()`.

    With `upload_bytes` those who may ask at `address` can send so much to `uploads.PATH`.
    """
    from waitress.server import create_server

    running: Any = create_server(
        app.server,
        sockets=[bound],
        threads=8,
        ident=None,
        clear_untrusted_proxy_headers=True,
        max_request_body_size=MOST_REQUEST_BYTES,  # refused before anything of it is kept
    )
    if upload_bytes and address is not None:
        running.channel_class = _uploading(address, upload_bytes)
    return running


def _uploading(address: Address, upload_bytes: int) -> type:
    """Connections whose limit depends on who asks for what, settled when the headers are there: a body is
    kept on disk before the app sees the request, so a check in the app would come too late."""
    from waitress.channel import HTTPChannel
    from waitress.parser import HTTPRequestParser

    class Parser(HTTPRequestParser):
        path: str

        def parse_header(self, header_plus: bytes) -> None:
            super().parse_header(header_plus)
            if (self.command, self.path) == ("POST", UPLOAD_PATH) and may_upload(self.headers, address):
                self.adj = copy.copy(self.adj)
                self.adj.max_request_body_size = upload_bytes + 1  # waitress refuses what reaches it

    class Channel(HTTPChannel):
        parser_class = Parser

    return Channel


def serve(app: Dash, bound: socket.socket, address: Address | None = None, upload_bytes: int = 0) -> None:
    """Answer until interrupted."""
    make_server(app, bound, address, upload_bytes).run()
