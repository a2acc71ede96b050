"""The page of message traces: by message id or key, drawn as a time line.

Requirements: CON-10.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from saturnmq.admin.traces import MessageTrace
from saturnmq.console.context import Page
from saturnmq.console.timeline import Bar, time_line
from saturnmq.errors import RouteNotFound
from saturnmq.protocol.codes import TRACE_TOPIC
from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.names import topic_problem


async def show(request: Request, page: Page) -> Response:
    """Traces of one message, or of all with a key."""
    query = request.query_params
    topic, id_or_key = query.get("topic", "").strip() or TRACE_TOPIC, query.get("q", "").strip()
    problem = topic_problem(topic)
    if problem:
        raise ConfigError(problem)
    try:
        message_traces = await page.services.admin.traces.find(id_or_key, topic) if id_or_key else []
    except RouteNotFound:
        message_traces = []  # no client has sent a trace yet
    return page.render(
        "traces.html",
        topic=topic,
        id_or_key=id_or_key,
        traces=[(trace, time_line(trace.message_id, bars(page, trace))) for trace in message_traces],
    )


def bars(page: Page, trace: MessageTrace) -> list[Bar]:
    """The steps of a message: sends, ends of its transaction, deliveries by group."""
    steps = []
    for sent in trace.sends:
        record = sent.record
        cost_ms = getattr(record, "cost_ms", 0)
        label = f"{page.gettext('sent')}: {record.group} {sent.client_host}"
        failed = not getattr(record, "success", True)
        steps.append(Bar(label, "send", record.timestamp_ms, record.timestamp_ms + cost_ms, failed))
    for sent in trace.transactions:
        label = f"{getattr(sent.record, 'state', '')}: {sent.record.group} {sent.client_host}"
        steps.append(Bar(label, "transaction", sent.record.timestamp_ms, sent.record.timestamp_ms))
    for group, deliveries in trace.groups.items():
        for delivery in deliveries:
            label = f"{page.gettext('consumed')}: {group} {delivery.client_host}"
            steps.append(Bar(label, "consume", delivery.begin_ms, delivery.end_ms, delivery.success is False))
    return steps
