"""The ASGI application of the console.

Requirements: CON-13, UX-13, UX-15, UX-16.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from saturnmq.console import (
    accounts,
    actions,
    alarm_pages,
    analysis,
    broker_settings,
    dead_letters,
    graph,
    group_pages,
    ledger,
    messages,
    pages,
    search,
    servers,
    traces,
    waiting,
)
from saturnmq.console.context import Handler, Services, changing, failure_pages, viewing
from saturnmq.console.login import Login
from saturnmq.console.security import Guarded
from saturnmq.tasks import cancel

LOCAL_HOSTS: Final = ("127.0.0.1", "localhost", "[::1]", "::1")
STATIC: Final = Path(__file__).parent / "static"

# Pages: path, handler, role that may see it.
PAGES: Final[dict[str, tuple[Handler, str]]] = {
    "/": (pages.of_state(pages.overview), "viewer"),
    "/brokers": (pages.of_state(pages.brokers), "viewer"),
    "/brokers/{address}": (pages.of_state(pages.broker), "viewer"),
    "/brokers/{address}/settings": (pages.of_state(broker_settings.show), "viewer"),
    "/topics": (pages.of_state(pages.topics), "viewer"),
    "/topics/{cluster}/{name}": (pages.of_state(pages.topic), "viewer"),
    "/groups": (pages.of_state(group_pages.groups), "viewer"),
    "/groups/{cluster}/{name}/reset": (actions.preview_reset, "operator"),
    "/groups/{cluster}/{name}/clients/{client}": (pages.of_state(group_pages.client), "viewer"),
    "/groups/{cluster}/{name}": (pages.of_state(group_pages.group), "viewer"),
    "/messages": (messages.search, "viewer"),
    "/messages/{topic}/{id}": (messages.show, "viewer"),
    "/messages/{topic}/{id}/download": (messages.download, "viewer"),
    "/dead-letters": (pages.of_state(dead_letters.groups), "viewer"),
    "/dead-letters/{name}": (dead_letters.listing, "viewer"),
    "/dead-letters/{name}/export/{kind}": (dead_letters.export, "viewer"),
    "/search": (search.form, "viewer"),
    "/search/{id}": (search.show, "viewer"),
    "/search/{id}/download": (search.download, "viewer"),
    "/traces": (traces.show, "viewer"),
    "/waiting": (pages.of_state(waiting.show), "viewer"),
    "/accounts": (pages.of_state(accounts.listing), "admin"),
    "/ledger": (pages.of_state(ledger.groups), "viewer"),
    "/ledger/{name}": (pages.of_state(ledger.group), "viewer"),
    "/ledger/{name}/transfer": (pages.of_state(ledger.preview_transfer), "admin"),
    "/producers": (pages.of_state(servers.producers), "viewer"),
    "/name-servers": (servers.name_servers, "viewer"),
    "/graph": (pages.of_state(graph.show), "viewer"),
    "/alarms": (alarm_pages.show, "viewer"),
    "/audit": (pages.audit_log, "admin"),
}
FORM_ABOVE: Final = (
    "/groups/{cluster}/{name}/reset",
    "/ledger/{name}/transfer",
)  # previews: their form is on the page above
# Changes: path, action in the audit log, handler, role that may make it.
CHANGES: Final[dict[str, tuple[str, Handler, str]]] = {
    "/do/message": ("send", messages.send, "operator"),
    "/do/dead-letters/resend": ("resend", dead_letters.resend, "operator"),
    "/do/message/consume": ("consume", messages.consume, "operator"),
    "/do/search": ("search", search.start, "viewer"),
    "/do/search/cancel": ("search_cancel", search.cancel, "viewer"),
    "/do/tail": ("tail", search.follow, "viewer"),
    "/do/analysis": ("analysis", analysis.start, "viewer"),
    "/do/group/reset": ("reset", actions.reset, "operator"),
    "/do/account": ("account", accounts.put, "admin"),
    "/do/account/delete": ("account_delete", accounts.delete, "admin"),
    "/do/account/white": ("white_list", accounts.white_list, "admin"),
    "/do/ledger/transfer": ("ledger_transfer", ledger.transfer, "admin"),
    "/do/name-servers": ("name_servers", servers.switch, "admin"),
    "/do/broker/settings": ("broker_settings", broker_settings.change, "admin"),
    "/do/alarms": ("alarms", alarm_pages.change, "operator"),
    "/do/alarms/group": ("alarms_group", alarm_pages.change_group, "operator"),
    "/do/alarms/forget": ("alarms_forget", alarm_pages.forget, "operator"),
    "/do/group": ("group", group_pages.put, "operator"),
    "/do/group/delete": ("group_delete", group_pages.delete, "admin"),
    "/do/accounts/copy": ("accounts_copy", accounts.copy, "admin"),
    "/do/topic": ("topic", actions.put_topic, "operator"),
    "/do/topic/delete": ("topic_delete", actions.delete_topic, "admin"),
}


def build(services: Services, *, hosts: Sequence[str] = LOCAL_HOSTS, secure: bool = False) -> Starlette:
    """The application. hosts: names under which browsers may ask for it; secure: it is served over TLS."""
    login = Login(services, secure=secure)
    page_routes = [
        Route(path, viewing(services, handler, role, form_above=path in FORM_ABOVE), methods=["GET"])
        for path, (handler, role) in PAGES.items()
    ]
    routes = [
        Route("/login", login.form, methods=["GET"]),
        Route("/login", login.log_in, methods=["POST"]),
        Route("/language", login.language, methods=["POST"]),
        Route("/health", lambda request: PlainTextResponse("ok"), methods=["GET"]),
        *page_routes,
        *(
            Route(path, changing(services, action, handler, role), methods=["POST"])
            for path, (action, handler, role) in {"/do/logout": ("logout", login.log_out, "viewer"), **CHANGES}.items()
        ),
        Mount("/static", StaticFiles(directory=STATIC), name="static"),
    ]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        work = asyncio.ensure_future(services.state.run())
        watching = asyncio.ensure_future(services.alarms.run(services.state, services.admin))
        try:
            yield
        finally:
            await cancel(work, watching)
            await services.jobs.close()

    middleware = [Middleware(Guarded), Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))]
    app = Starlette(routes=routes, middleware=middleware, lifespan=lifespan, exception_handlers=failure_pages(services))
    app.state.pages = page_routes  # where refused forms are shown again
    return app
