"""What stands before every answer: only this machine may ask, only by GET and small POSTs, and pages load only ours.

A page of another site that a person has open could otherwise ask this server in that person's name, by a foreign name
that leads to 127.0.0.1 (DNS rebinding) or by a form. Nothing here allows another origin to read an answer.
"""

import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["LARGEST", "Guard"]

LARGEST = 100_000  # bytes of a POST
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
    """Middleware that refuses with one sentence and adds the headers of `_HEADERS` to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let the application do it."""
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
    """Why a request is not answered, as a status and a sentence."""
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
    # Where both are given, a body in chunks has no end, whatever its length is said to be.
    if "transfer-encoding" in headers or length is None or not length.isascii() or not length.isdigit():
        return 411, "a text is sent with its length"
    if len(length) > 9 or int(length) > LARGEST:
        return 413, f"a text may take {LARGEST:,} bytes, this one is larger: use `regard look --out`"
    return None
