"""Metrics of an application's producers and consumers."""

from __future__ import annotations

import asyncio
import urllib.request

from metricstext import values
from saturnmq import Client, ClientMetrics, SendContext
from saturnmq.client import metrics as module
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.testing import EmbeddedBroker


def counted(text: str, name: str) -> dict[tuple[str, ...], float]:
    return {tuple(value for _, value in key): number for key, number in values(text, name).items()}


def test_sends_and_deliveries_are_counted_and_served() -> None:
    async def main() -> tuple[str, str]:
        metrics = ClientMetrics()
        async with EmbeddedBroker() as server, Client.from_url(server.url) as client, asyncio.timeout(60):
            async with client.producer("orders-p", hooks=[metrics.sends]) as out:
                await out.send("orders", b"1")
                await out.send_many("orders", [b"2", b"3"])
            async with client.consumer("billing", start="first", hooks=[metrics.deliveries]) as inbox:
                await inbox.subscribe("orders")
                await (await inbox.recv(timeout=30)).ack()
                await (await inbox.recv(timeout=30)).reject()
            host, port = await metrics.serve(0)
            url = f"http://{host}:{port}/metrics"
            served = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read())
            await metrics.stop()
            return metrics.text(), served.decode()

    text, served = asyncio.run(main())
    assert served == text
    assert counted(text, "saturnmq_client_send_messages_total") == {("ok", "orders"): 3}
    settled = counted(text, "saturnmq_client_settled_messages_total")
    assert sum(settled.values()) == 2
    assert {key[:2] for key in settled} == {("billing", "orders")}
    assert counted(text, "saturnmq_client_settle_seconds_count") == {(): 2}
    assert counted(text, "saturnmq_client_send_seconds_count")[()] >= 2


def context(topic: str, error: BaseException | None) -> SendContext:
    return SendContext("g", topic, MessageQueue(topic, "broker-a", 0), "127.0.0.1:1", ("id",), error=error)


def test_failed_and_cancelled_sends_have_results_of_their_own() -> None:
    metrics = ClientMetrics()
    for error in (None, ValueError("x"), asyncio.CancelledError()):
        metrics.sends.after(context("T", error))
    found = counted(metrics.text(), "saturnmq_client_send_messages_total")
    assert found == {("ok", "T"): 1, ("failed", "T"): 1, ("cancelled", "T"): 1}


def test_labels_are_bounded() -> None:
    metrics = ClientMetrics()
    for number in range(module.LABELS_MAX + 50):
        metrics.sends.after(context(f"topic-{number}", None))
    found = counted(metrics.text(), "saturnmq_client_send_messages_total")
    assert len(found) == module.LABELS_MAX + 1
    assert found["ok", module.OVERFLOW_LABEL] == 50
