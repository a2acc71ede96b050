"""What every request passes before a page sees it: headers, limits of bodies, types of forms, and their origin."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from saturnmq.console.security import Guarded, same_origin

FORM = "application/x-www-form-urlencoded"
BODY_MAX, LOGIN_MAX = 1024 * 1024, 16 * 1024
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}


def ask(
    method: str = "POST", path: str = "/do/topic", body: list[bytes] | None = None, **headers: str
) -> tuple[int, dict[str, str], str]:
    """Status, headers and text of the response of an application that reads the body and says how long it was."""
    chunks = [b""] if body is None else list(body)
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        length = 0
        more = True
        while more:
            message = await receive()
            length += len(message.get("body", b""))
            more = message.get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"%d bytes" % length})

    async def receive() -> Any:
        chunk = chunks.pop(0)
        return {"type": "http.request", "body": chunk, "more_body": bool(chunks)}

    async def send(message: Any) -> None:
        sent.append(message)

    fields = {"host": "mq.example:8080", "content-type": FORM} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    raw = [(name.encode(), value.encode()) for name, value in fields.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": raw}
    try:
        asyncio.run(Guarded(app)(scope, receive, send))
    except HTTPException as error:
        return error.status_code, {}, error.detail
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], found, sent[1]["body"].decode()


@pytest.mark.parametrize(("path", "most"), [("/do/topic", BODY_MAX), ("/login", LOGIN_MAX), ("/language", LOGIN_MAX)])
def test_body_may_have_the_limit_and_not_a_byte_more(path: str, most: int) -> None:
    assert ask(path=path, content_length=str(most))[0] == 200
    status, headers, text = ask(path=path, content_length=str(most + 1))
    assert (status, text) == (413, f"refused: more than {most} bytes") and headers.items() >= HEADERS.items()
    half = most // 2
    assert ask(path=path, body=[bytes(half), bytes(most - half)])[2] == f"{most} bytes"  # without a length
    assert ask(path=path, body=[bytes(half), bytes(most - half), b"x"])[::2] == (
        413,
        f"refused: more than {most} bytes",
    )
    assert ask(path=path, content_length="1", body=[bytes(most + 1)])[0] == 413  # of a wrong length


@pytest.mark.parametrize(
    ("length", "status"),
    [
        ("0", 200),
        ("x", 200),
        ("", 200),
        ("-1", 200),
        ("0" * 18, 200),
        ("0" * 19, 413),
        ("9" * 5000, 413),
        ("\xb2", 200),
    ],
)
def test_length_that_is_no_number_is_harmless(length: str, status: int) -> None:
    assert ask(content_length=length)[0] == status


@pytest.mark.spec("UX-15")
def test_every_response_has_the_headers() -> None:
    for method, path in (("GET", "/"), ("HEAD", "/"), ("POST", "/do/topic")):
        status, headers, _ = ask(method, path)
        assert status == 200 and headers.items() >= HEADERS.items(), path
    assert ask("GET", "/static/console.css")[1]["cache-control"] == "max-age=3600"
    assert ask("GET", "/statics")[1]["cache-control"] == "no-store"
    for refused in (ask(origin="http://evil.example"), ask(content_type="text/plain")):
        assert refused[0] in (403, 415) and refused[1].items() >= HEADERS.items()


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (FORM, 200),
        (FORM.upper(), 200),
        (f"{FORM}; charset=utf-8", 200),
        (f" {FORM} ;x", 200),
        ("multipart/form-data; boundary=x", 415),
        ("text/plain", 415),
        ("application/json", 415),
        ("", 415),
    ],
)
def test_change_must_be_a_form_of_one_type(kind: str, status: int) -> None:
    assert ask(content_type=kind)[0] == status
    if status == 415:
        assert ask(content_type=kind)[2] == f"refused: a form must be {FORM}"
    assert ask("GET", content_type=kind)[0] == 200


SAME, OTHER = "http://mq.example:8080", "http://evil.example"


@pytest.mark.parametrize(
    ("headers", "same"),
    [
        ({}, True),
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"origin": SAME}, True),
        ({"origin": "https://mq.example:8080"}, True),
        ({"origin": "http://mq.example"}, False),
        ({"origin": OTHER}, False),
        ({"origin": OTHER, "sec-fetch-site": "same-origin"}, False),
        ({"origin": SAME, "sec-fetch-site": "cross-site"}, True),
        ({"origin": "null"}, False),
        ({"origin": ""}, False),
        ({"origin": "http://["}, False),
        ({"origin": "http://mq.example:8080.evil.example"}, False),
    ],
)
def test_change_must_come_from_a_page_of_this_host(headers: dict[str, str], same: bool) -> None:
    assert same_origin(Headers({"host": "mq.example:8080"} | headers)) is same
    fields = {name.replace("-", "_"): value for name, value in headers.items()}
    for method in ("POST", "PUT", "DELETE"):
        status, _, text = ask(method, **fields)
        assert (status, text == "refused: sent by another site") == ((200, False) if same else (403, True)), method
    for method in ("GET", "HEAD"):  # which change nothing
        assert ask(method, **fields)[0] == 200


def test_origin_null_is_not_that_of_a_request_without_a_host() -> None:
    assert not same_origin(Headers({"origin": "null"}))
    assert same_origin(Headers({"origin": "null", "host": ""})) is True, "which the application's list of hosts refuses"


def test_other_scopes_pass_untouched() -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope, receive, send))

    arguments: tuple[Any, ...] = ({"type": "lifespan"}, object(), object())
    asyncio.run(Guarded(app)(*arguments))
    assert seen == [arguments]


def test_limit_of_bodies_is_an_option() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()

    async def receive() -> Any:
        return {"type": "http.request", "body": bytes(11)}

    async def unused(message: Any) -> None:
        raise AssertionError(message)

    scope = {"type": "http", "method": "POST", "path": "/login", "headers": [(b"content-type", FORM.encode())]}
    with pytest.raises(HTTPException, match="more than 10 bytes"):
        asyncio.run(Guarded(app, body_bytes_max=10)(scope, receive, unused))
