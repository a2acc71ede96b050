"""Metrics that every server has: its connections, what it rejected, and how long its requests took.

Requirements: INT-11.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from saturnmq.metrics import COUNTER, GAUGE, Histogram, Registry, Rows
from saturnmq.net.endpoint import Endpoint
from saturnmq.net.rejections import Rejections
from saturnmq.net.requests import OTHER_CODES

Durations = dict[int, Histogram]


def durations(codes: Iterable[int]) -> Durations:
    """Histograms for `Endpoint.request_seconds`: of each code, and one of all others."""
    return {int(code): Histogram() for code in codes} | {OTHER_CODES: Histogram()}


def register(registry: Registry, ports: Mapping[str, Endpoint], rejections: Rejections, requests: Durations) -> None:
    """Register the families. ports: the listeners by name. requests: durations by code."""

    def connections() -> Rows:
        for name, port in ports.items():
            yield (name,), len(port.connections)

    def rejected() -> Rows:
        for reason, count in sorted(rejections.counts.items()):
            yield (reason,), count

    def by_code() -> Iterator[tuple[str, Histogram]]:
        for code, duration in requests.items():
            if duration.count:
                yield "other" if code == OTHER_CODES else str(code), duration

    registry.family(GAUGE, "saturnmq_connections", "Open connections.", ("port",), connections)
    text = "Rejected connections and requests."
    registry.family(COUNTER, "saturnmq_rejected_total", text, ("reason",), rejected)
    text = "From the start of a request's handler to its response, or to the parking of a pull."
    registry.histogram("saturnmq_request_seconds", text, by_code, "code")
