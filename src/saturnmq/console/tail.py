"""Live tail: the newest messages of a topic as they are stored, while a browser shows them.

The page asks for itself every second. A tail that no page has asked for ends after LEFT_SECONDS, and any after an hour.

Requirements: CON-09.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from saturnmq.console.conditions import parse_conditions
from saturnmq.console.context import Page
from saturnmq.console.scanning import ScanRange, TopicScan
from saturnmq.console.search import Hits, opened, topic_of

ROWS_MAX: Final = 100


async def start(request: Request, page: Page) -> Response:
    """Begin to follow a topic."""
    form = await request.form()
    conditions = parse_conditions(form)
    topic = topic_of(str(form.get("topic", "")))
    hits = Hits(conditions, newest=ROWS_MAX)
    scan = TopicScan(page.services.admin, ScanRange(topic, tag=conditions.tag or "*"), hits.take)
    return opened(page, page.services.jobs.start(page.user, "tail", topic, scan, hits))
