"""What the console changes, over `saturnmq.admin`; each is a form with the token of the session and a line in the audit log.

Requirements: CON-05, UX-16.
"""

from __future__ import annotations

from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from saturnmq.console.context import Page
from saturnmq.protocol.bodies import TopicConfig
from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.names import topic_problem

QUEUES_MAX = 65_536


async def put_topic(request: Request, page: Page) -> Response:
    """Create a topic on all masters of a cluster, or change its queues and permission."""
    form = await request.form()
    cluster, name = str(form.get("cluster", "")), str(form.get("name", "")).strip()
    problem = topic_problem(name)
    if problem:
        raise ConfigError(problem)
    queues, perm = (
        whole(str(form.get("queues", "")), "queues", 1, QUEUES_MAX),
        whole(str(form.get("perm", "")), "perm", 2, 6),
    )
    config = TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
    admin = page.services.admin
    masters = await admin.connection.masters(cluster)
    for address in masters.values():
        await admin.topics.update(address, config)
    await page.services.state.refresh()
    return RedirectResponse(f"/topics/{quote(cluster, safe='')}/{quote(name, safe='')}", 303)


async def delete_topic(request: Request, page: Page) -> Response:
    """Delete a topic from a cluster; its name must be typed once more."""
    form = await request.form()
    cluster, name = str(form.get("cluster", "")), str(form.get("name", ""))
    if str(form.get("confirm", "")) != name:
        raise ConfigError(f"the name typed to confirm is not {name}")
    admin = page.services.admin
    await admin.topics.delete_from_brokers(name, cluster)
    await admin.topics.delete_from_name_servers(name, cluster)
    await page.services.state.refresh()
    return RedirectResponse("/topics", 303)


def whole(text: str, what: str, low: int, high: int) -> int:
    """A whole number of a form. Raises ConfigError naming the field and its range."""
    if not text.isdecimal() or len(text) > 9 or not low <= int(text) <= high:
        raise ConfigError(f"{what} {text!r:.40} must be a whole number in {low}..{high}")
    return int(text)
