"""The console in the test process: application, users, and a browser without JavaScript."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from harness import virtualtime
from saturnmq.admin import Admin, AdminAccess
from saturnmq.admin.survey import Surveyor
from saturnmq.console.app import build
from saturnmq.console.context import Services
from saturnmq.console.state import ClusterState
from saturnmq.console.users import Sessions, Users
from saturnmq.history import History
from saturnmq.testing import EmbeddedBroker

HOST = "http://127.0.0.1:8080"


@dataclass
class Console:
    """A running console. password: of the user admin."""

    services: Services
    browser: httpx.AsyncClient
    password: str
    folder: Path

    async def log_in(self, user: str = "admin", password: str | None = None) -> httpx.Response:
        return await self.browser.post("/login", data={"user": user, "password": password or self.password})

    async def csrf(self) -> str:
        return await self.csrf_of("/topics")

    async def csrf_of(self, path: str) -> str:
        page = await self.browser.get(path)
        found = re.search(r'name="csrf" value="([^"]+)"', page.text)
        assert found is not None, page.text
        return found[1]


class Times:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def name_server(server: EmbeddedBroker) -> str:
    return server.url.removeprefix("rmq://")


def run(work: Callable[[], Awaitable[Any]]) -> None:
    """Run a coroutine function to completion, at most 60 s; waits are skipped, so that pages meet deadlines on a busy machine."""

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work()

    virtualtime.run(bounded())


@asynccontextmanager
async def opened(
    folder: Path,
    name_servers: str,
    *,
    clock: Times | None = None,
    access: AdminAccess | None = None,
    **more: Any,
) -> AsyncIterator[Console]:
    """A console with its files in a folder; `more` goes to `build`."""
    users = Users(folder / "users.json")
    password = users.create_first()
    assert password is not None
    times = clock or Times()
    previewing = Admin(name_servers, access=access, dry_run=lambda change: None)
    async with Admin(name_servers, access=access) as admin, previewing as preview:
        with History(folder / "history.db") as history:
            state = ClusterState(Surveyor(admin.connection), clock=times)
            services = Services(admin, preview, state, Sessions(users, times), history, folder / "audit.log")
            transport = httpx.ASGITransport(app=build(services, **more))
            async with httpx.AsyncClient(transport=transport, base_url=HOST) as browser:
                yield Console(services, browser, password, folder)
