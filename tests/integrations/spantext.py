"""Finished spans as text for golden files: ids become numbers, in the order of the spans' ends."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan

VARYING = {"messaging.client.id": "CLIENT", "messaging.message.id": "ID", "server.port": "PORT"}


def rendered(spans: Sequence[ReadableSpan]) -> str:
    """One paragraph per span: name, kind, parent, links, status, attributes."""
    ids = {span.context.span_id: f"{number} {span.name}" for number, span in enumerate(spans, 1)}
    return "\n".join("\n".join(_lines(span, ids)) + "\n" for span in spans)


def _lines(span: ReadableSpan, ids: dict[int, str]) -> list[str]:
    lines = [f"{ids[span.context.span_id]}: {span.kind.name}"]
    if span.parent is not None:
        lines.append(f"  parent: {ids.get(span.parent.span_id, 'remote')}")
    lines += [f"  link: {ids.get(link.context.span_id, 'remote')}" for link in span.links]
    if not span.status.is_unset:
        lines.append(f"  status: {span.status.status_code.name} {span.status.description}")
    lines += [f"  event: {event.name} {event.attributes['exception.type']}" for event in span.events]
    for name, value in sorted(span.attributes.items()):
        lines.append(f"  {name}={VARYING.get(name, value)!r}")
    return lines
