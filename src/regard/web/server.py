"""The server: one socket on the loopback address, one process, until Ctrl-C, and its checks before every response.

A request must come from this machine, by GET or a small POST, and from our own page. Otherwise a page of another site
could send requests to this server in the user's name, through a foreign host name that resolves to 127.0.0.1 (DNS
rebinding) or through a form. No header permits another origin to read a response.
"""

import errno
import re
import socket

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.errors import InputError

__all__ = ["LARGEST", "Guard", "bind", "make_server", "serve"]

LARGEST = 100_000  # maximum bytes of a POST
_HOST = re.compile(r"(127\.0\.0\.1|localhost)(:\d{1,5})?", re.IGNORECASE)
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Middleware that refuses requests with one sentence and adds the headers of `_HEADERS` to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or pass it to the application."""
        if scope["type"] != "http":
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        refused = _refusal(scope)
        if refused is None:
            await self.app(scope, receive, guarded)
        else:
            status, sentence = refused
            await JSONResponse({"error": sentence}, status)(scope, receive, guarded)


def _refusal(scope: Scope) -> tuple[int, str] | None:
    """Return the reason why a request is refused, as a status and a sentence, or None."""
    headers = Headers(scope=scope)
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not _HOST.fullmatch(hosts[0]):
        return 421, "this server answers only to the names 127.0.0.1 and localhost"
    if scope["method"] not in ("GET", "HEAD", "POST"):
        return 405, "this server answers GET and POST"
    if scope["method"] != "POST":
        return None
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if (origin is not None and origin.lower() != f"http://{hosts[0].lower()}") or site not in (None, "same-origin"):
        return 403, "only the page of this server may send texts to it"
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return 415, "a text is sent as application/json"
    length = headers.get("content-length")
    # If both headers are given, the body is chunked and its length is not limited by Content-Length.
    if "transfer-encoding" in headers or length is None or not length.isascii() or not length.isdigit():
        return 411, "a text is sent with its length"
    if len(length) > 9 or int(length) > LARGEST:
        return 413, f"a text may take {LARGEST:,} bytes, this one is larger: use `regard look --out`"
    return None


_ADDRESS = "127.0.0.1"
_WAITING = 512  # maximum number of connections waiting to be accepted


def bind(port: int = 0) -> socket.socket:
    """Return a listening socket on the loopback address; port 0 selects a free port.

    Raises:
        InputError: The port is in use, or this user may not use it.
    """
    if not 0 <= port <= 65535:
        raise InputError(f"`--port` must be from 1 to 65535, or 0 for a free one, got {port}")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((_ADDRESS, port))
        listener.listen(_WAITING)
    except OSError as problem:
        listener.close()
        reason = "is in use by another program" if problem.errno == errno.EADDRINUSE else f"({problem.strerror})"
        raise InputError(
            f"`--port` {port} cannot be taken, it {reason}: choose another, or leave `--port` out for a free one"
        ) from problem
    return listener


def make_server(app: Starlette) -> uvicorn.Server:
    """Return the server, ready to run."""
    config = uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        http="h11",
        loop="asyncio",
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
        backlog=_WAITING,
    )
    return uvicorn.Server(config)


def serve(app: Starlette, listener: socket.socket) -> None:
    """Serve requests until the process is interrupted, which is raised again as KeyboardInterrupt."""
    make_server(app).run(sockets=[listener])
