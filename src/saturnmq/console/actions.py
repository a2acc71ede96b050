"""What the console changes, over `saturnmq.admin`; each is a form with the token of the session and a line in the audit log.

Requirements: CON-05, CON-06, UX-16.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from saturnmq.admin.offsets import TO_THE_END, Rollback
from saturnmq.console.context import Page
from saturnmq.protocol.bodies import TopicConfig
from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.names import topic_problem

QUEUES_MAX: Final = 65_536
ROWS_MAX: Final = 1000


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


async def preview_reset(request: Request, page: Page) -> Response:
    """What a reset of offsets would do to each queue; nothing is changed."""
    query = request.query_params
    cluster, group = request.path_params["cluster"], request.path_params["name"]
    topic, text = query.get("topic", ""), query.get("time", "")
    rows = await page.services.preview.offsets.reset(group, topic, moment(text))
    rollbacks = [one for one in rows if isinstance(one, Rollback)]
    return page.render(
        "reset.html",
        cluster=cluster,
        group=group,
        topic=topic,
        time=text,
        rows=rollbacks[:ROWS_MAX],
        count=len(rollbacks),
    )


async def reset(request: Request, page: Page) -> Response:
    """Reset the offsets of a group in a topic to a time."""
    form = await request.form()
    cluster, group, topic = (str(form.get(name, "")) for name in ("cluster", "group", "topic"))
    await page.services.admin.offsets.reset(group, topic, moment(str(form.get("time", ""))))
    await page.services.state.refresh()
    return RedirectResponse(f"/groups/{quote(cluster, safe='')}/{quote(group, safe='')}", 303)


def moment(text: str) -> int:
    """A time of a form, Unix ms: `end`, `start`, or an ISO time, in UTC if it has no zone. Raises ConfigError."""
    wanted = text.strip()
    if wanted in ("end", "start"):
        return TO_THE_END if wanted == "end" else 0
    try:
        time = datetime.fromisoformat(wanted)
    except ValueError:
        raise ConfigError(f"time {wanted!r:.40} must be end, start, or such as 2026-11-23T08:00") from None
    return max(int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000), 0)
