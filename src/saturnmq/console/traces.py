"""The page of message traces: by message id or key, drawn as a time line.

A time line is SVG that the server draws: one bar for each step of a message, attributes only.

Requirements: CON-10, UX-15.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import Response

from saturnmq.admin.traces import MessageTrace
from saturnmq.console.context import Page
from saturnmq.errors import RouteNotFound
from saturnmq.escaping import escaped
from saturnmq.protocol.codes import TRACE_TOPIC
from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.names import topic_problem

WIDTH: Final = 900
BARS_MAX: Final = 200
_MARGIN_LEFT, _MARGIN_RIGHT, _ROW, _TOP = 300, 90, 22, 6
_LABEL_MAX: Final = 44
_BAR_MIN: Final = 3.0


@dataclass(frozen=True)
class Bar:
    """A step. begin_ms, end_ms: Unix ms, negative if not known. kind: send, transaction or consume, as in the style sheet."""

    label: str
    kind: str
    begin_ms: int
    end_ms: int
    failed: bool = False


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


def time_line(title: str, bars: Sequence[Bar]) -> Markup:
    """The drawing; empty text without a bar whose time is known. A bar of which one end is unknown is a mark at the other."""
    shown = [bar for bar in bars if max(bar.begin_ms, bar.end_ms) >= 0][:BARS_MAX]
    if not shown:
        return Markup("")
    spans = [_span(bar) for bar in shown]
    first, last = min(begin for begin, _ in spans), max(end for _, end in spans)
    across = (WIDTH - _MARGIN_LEFT - _MARGIN_RIGHT) / max(last - first, 1)
    height = _TOP + _ROW * (len(shown) + 1)
    parts = [
        f'<svg class="timeline" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(escaped(title))}">',
        f"<title>{escape(escaped(title))}</title>",
    ]
    for number, (bar, (begin, end)) in enumerate(zip(shown, spans, strict=True)):
        y = _TOP + number * _ROW
        x, width = _MARGIN_LEFT + (begin - first) * across, max((end - begin) * across, _BAR_MIN)
        kind = f"{bar.kind} failed" if bar.failed else bar.kind
        text = f"+{begin - first} ms" if end == begin else f"+{begin - first} ms, {end - begin} ms"
        parts.append(
            f'<line class="grid" x1="0" y1="{y + _ROW - 2}" x2="{WIDTH}" y2="{y + _ROW - 2}"/>'
            f'<text x="{_MARGIN_LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(_short(bar.label))}</text>'
            f'<rect class="{escape(kind)}" x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="{_ROW - 9}" rx="2">'
            f"<title>{escape(escaped(bar.label))}: {text}</title></rect>"
            f'<text x="{min(x + width + 5, WIDTH - _MARGIN_RIGHT + 5):.1f}" y="{y + 14}">{text}</text>'
        )
    parts.append(f'<text x="{_MARGIN_LEFT}" y="{height - 6}">{_clock(first)} UTC</text></svg>')
    return Markup("".join(parts))  # noqa: S704 - all texts are escaped, all else are numbers


def _span(bar: Bar) -> tuple[int, int]:
    begin = bar.begin_ms if bar.begin_ms >= 0 else bar.end_ms
    return begin, max(bar.end_ms, begin)


def _short(label: str) -> str:
    text = escaped(label)
    return text if len(text) <= _LABEL_MAX else text[: _LABEL_MAX - 1] + "…"


def _clock(ms: int) -> str:
    is_date = 0 < ms < 253_402_300_800_000
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] if is_date else str(ms)
