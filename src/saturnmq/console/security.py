"""What every request of the console passes: headers of every response, a limit of the body, and where a form may come from.

Requirements: UX-13, UX-15, SEC-22.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_BYTES_MAX: Final = 1024 * 1024
LOGIN_BYTES_MAX: Final = 16 * 1024  # before a login, where parsing costs any client nothing
BEFORE_LOGIN: Final = ("/login", "/language")
FORM: Final = (
    "application/x-www-form-urlencoded"  # multipart lets the sender choose codecs, one of them of quadratic cost
)
STATIC: Final = "/static/"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}


class Guarded:
    """ASGI middleware: security headers, body limit, and refusal of changes that another site sends."""

    def __init__(self, app: ASGIApp, *, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        self._app = app
        self._body_bytes_max = body_bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        cacheable = scope["path"].startswith(STATIC)

        async def guarded_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                response_headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    response_headers[name] = value
                response_headers["cache-control"] = "max-age=3600" if cacheable else "no-store"
            await send(message)

        if scope["method"] not in ("GET", "HEAD") and not same_origin(headers):
            await PlainTextResponse("refused: sent by another site", 403)(scope, receive, guarded_send)
            return
        bytes_max = (
            min(self._body_bytes_max, LOGIN_BYTES_MAX) if scope["path"] in BEFORE_LOGIN else self._body_bytes_max
        )
        # The length that is stated refuses early; one without it, or with a wrong one, is counted as it comes.
        length = headers.get("content-length", "0")
        if len(length) > 18 or int(length if length.isdecimal() else 0) > bytes_max:
            await PlainTextResponse(f"refused: more than {bytes_max} bytes", 413)(scope, receive, guarded_send)
            return
        if scope["method"] == "POST" and headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
            await PlainTextResponse(f"refused: a form must be {FORM}", 415)(scope, receive, guarded_send)
            return
        received_bytes = 0

        async def bounded_receive() -> Message:
            nonlocal received_bytes
            message = await receive()
            received_bytes += len(message.get("body", b""))
            if received_bytes > bytes_max:
                raise HTTPException(413, f"refused: more than {bytes_max} bytes")
            return message

        await self._app(scope, bounded_receive, guarded_send)


def same_origin(headers: Headers) -> bool:
    """Whether a request comes from a page of this host; browsers state the origin of every change."""
    origin = headers.get("origin")
    if origin is None:
        return headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")
    try:
        return urlsplit(origin).netloc == headers.get("host")  # "null" has an empty one, as a request without a host
    except ValueError:  # such as http://[
        return False
