"""Direct consumption: a message is handed to one client of a group again, without any effect on offsets.

Requirements: CON-09, UX-16.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from saturnmq.console.context import Page
from saturnmq.console.messages import message_of
from saturnmq.protocol.errors import ConfigError


async def consume(request: Request, page: Page) -> Response:
    """Let the client of the form, or the first one of the group, handle a message; show what it answers."""
    form = await request.form()
    topic, number, group, client = (str(form.get(name, "")).strip() for name in ("topic", "id", "group", "client"))
    if not group:
        raise ConfigError("give the group whose client shall consume the message")
    admin = page.services.admin
    message = await message_of(page, topic, number)
    if not client:
        client = min(connection.client_id for connection in (await admin.clients.consumers(group)).connection_set)
    result = await admin.messages.consume_directly(group, client, message)
    return page.render("direct.html", topic=topic, id=number, group=group, client=client, result=result)
