"""Metrics of an application's producers and consumers for Prometheus.

Requirements: INT-11.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from saturnmq.client.hooks import ConsumeContext, ConsumeHook, SendContext, SendHook
from saturnmq.metrics import COUNTER, Histogram, Registry, Rows
from saturnmq.net.metrics_port import MetricsPort

LABELS_MAX: Final = 1000  # topics, or pairs of topic and group; counts of more of them have the label OVERFLOW_LABEL
OVERFLOW_LABEL: Final = "other"


class ClientMetrics:
    """Counts sends and deliveries, by hooks that are passed to producers and consumers.

    sends: a hook for producers. deliveries: a hook for consumers. `text` is what Prometheus reads; `serve` opens an HTTP port for
    it. One object may count for any number of clients of one event loop.

    Example:
        metrics = ClientMetrics()
        await metrics.serve(port=5560)  # http://127.0.0.1:5560/metrics
        out = client.producer("orders-p", hooks=[metrics.sends])
        inbox = client.consumer("billing", hooks=[metrics.deliveries])
    """

    def __init__(self) -> None:
        self._registry = Registry()
        self._port = MetricsPort(self._registry.pieces)
        self.sends: SendHook = _Sends(self._registry)
        self.deliveries: ConsumeHook = _Deliveries(self._registry)

    def text(self) -> str:
        """The metrics in the text format of Prometheus.

        Example:
            print(ClientMetrics().text())
        """
        return self._registry.text()

    async def serve(self, port: int, host: str = "127.0.0.1") -> tuple[str, int]:
        """Answer GET /metrics until `stop`; returns host and port, 0 takes a free one. Raises StartError."""
        return await self._port.start(host, port, chosen_by="argument port of serve")

    async def stop(self) -> None:
        """Close the port. Idempotent."""
        await self._port.stop()


def _add(counts: dict[tuple[str, ...], int], key: tuple[str, ...], count: int) -> None:
    """Count for a key; for (OVERFLOW_LABEL, ...) at the limit of keys. The last part of the key is a constant of the code."""
    if key not in counts and len(counts) >= LABELS_MAX:
        key = (*[OVERFLOW_LABEL] * (len(key) - 1), key[-1])
    counts[key] = counts.get(key, 0) + count


def _rows(counts: dict[tuple[str, ...], int]) -> Rows:
    return [(key, counts[key]) for key in list(counts)]


class _Sends(SendHook):
    """Counts attempts of sends."""

    def __init__(self, registry: Registry) -> None:
        self._messages: dict[tuple[str, ...], int] = {}
        self._seconds = Histogram()
        text = "Messages of all attempts to send, by result."
        labels = ("topic", "result")
        registry.family(COUNTER, "saturnmq_client_send_messages_total", text, labels, lambda: _rows(self._messages))
        text = "Attempts to send a message or a batch, from the request to its response."
        registry.histogram("saturnmq_client_send_seconds", text, self._seconds)

    def after(self, context: SendContext) -> None:
        result = "ok"
        if context.error is not None:
            result = "cancelled" if isinstance(context.error, asyncio.CancelledError) else "failed"
        _add(self._messages, (context.topic, result), len(context.message_ids))
        self._seconds.observe(time.monotonic() - context.started)


class _Deliveries(ConsumeHook):
    """Counts settled messages."""

    def __init__(self, registry: Registry) -> None:
        self._messages: dict[tuple[str, ...], int] = {}
        self._seconds = Histogram()
        text = "Messages that were settled, by verdict; timeout: not within ack_timeout."
        labels = ("topic", "group", "verdict")
        registry.family(COUNTER, "saturnmq_client_settled_messages_total", text, labels, lambda: _rows(self._messages))
        text = "From the delivery of a message until it is settled."
        registry.histogram("saturnmq_client_settle_seconds", text, self._seconds)

    def after(self, context: ConsumeContext) -> None:
        verdict = context.verdict.name.lower() if context.verdict is not None else OVERFLOW_LABEL
        _add(self._messages, (context.message.topic, context.group, "timeout" if context.timed_out else verdict), 1)
        self._seconds.observe(time.monotonic() - context.started)
