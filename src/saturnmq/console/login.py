"""Login, logout and the choice of the language.

Requirements: CON-13, UX-13.
"""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from saturnmq.console.context import COOKIE, Page, Services
from saturnmq.console.texts import LANGUAGES

CHECKS_MAX: Final = 2  # passwords checked at the same time, 16 MiB and 50 ms of a processor each
WAITING_MAX: Final = 20


class Login:
    """The handlers; `secure` marks the cookie for TLS only."""

    def __init__(self, services: Services, *, secure: bool) -> None:
        self._services = services
        self._secure = secure
        self._permits = asyncio.Semaphore(CHECKS_MAX)
        self._waiting = 0

    async def form(self, request: Request) -> Response:
        """The login page."""
        return Page(self._services, request, None).render("login.html", message="", user="")

    async def log_in(self, request: Request) -> Response:
        """Check a password and begin a session."""
        page = Page(self._services, request, None)
        form = await request.form(max_fields=10)
        name, password = str(form.get("user", ""))[:100], str(form.get("password", ""))
        sessions = self._services.sessions
        wait = sessions.wait_seconds(name, page.peer)
        if wait or self._waiting >= WAITING_MAX:
            return page.render(
                "login.html",
                429,
                message=page.gettext("Too many wrong passwords. Try again in {seconds} s.", seconds=wait or 1),
                user=name,
            )
        self._waiting += 1
        try:
            async with self._permits:
                wait = sessions.wait_seconds(name, page.peer)  # attempts before this one may have failed meanwhile
                if wait:
                    return page.render(
                        "login.html",
                        429,
                        message=page.gettext("Too many wrong passwords. Try again in {seconds} s.", seconds=wait),
                        user=name,
                    )
                token = await sessions.attempt(name, password, page.peer)
        finally:
            self._waiting -= 1
        await asyncio.to_thread(self._services.record, None, page.peer, "login", name, "done" if token else "refused")
        if token is None:
            return page.render("login.html", 401, message=page.gettext("User or password is wrong."), user=name)
        response = RedirectResponse("/", 303)
        response.set_cookie(COOKIE, token, httponly=True, samesite="strict", secure=self._secure, path="/")
        return response

    async def log_out(self, request: Request, page: Page) -> Response:
        """End the session."""
        self._services.sessions.end(request.cookies.get(COOKIE, ""))
        response = RedirectResponse("/login", 303)
        response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
        return response

    async def language(self, request: Request) -> Response:
        """Choose the language; kept in a cookie of its own, so that it works on the login page."""
        form = await request.form(max_fields=10)
        chosen = str(form.get("language", ""))
        response = RedirectResponse(local_path(str(form.get("back", "/"))), 303)
        if chosen in LANGUAGES:
            response.set_cookie("saturnmq_language", chosen, samesite="strict", max_age=31_536_000, path="/")
        return response


def local_path(text: str) -> str:
    """A path on this host; `/` for anything else."""
    is_local = text.startswith("/") and not text.startswith("//") and "\\" not in text and text.isprintable()
    return text if is_local else "/"
