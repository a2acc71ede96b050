"""Clients that impair each other: one client id on two connections, unequal subscriptions in a group."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from test_broker_metrics import scrape
from wire import Clock, Wire, wire

from loglines import own_messages
from metricstext import values
from saturnmq.protocol.bodies import ClientConflict, ConsumerConnection
from saturnmq.protocol.codes import RequestCode

METRIC = "saturnmq_client_conflict"


@asynccontextmanager
async def second(w: Wire) -> AsyncIterator[Wire]:
    """Another connection to the broker."""
    other = Wire(w.server)
    try:
        yield other
    finally:
        await other.client.close()


async def answered(w: Wire, group: str = "G") -> list[ClientConflict] | None:
    """The conflicts in the answer of code 203."""
    answer = await w.call(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup=group)
    return ConsumerConnection.decode(answer.body).conflicts


def addresses(w: Wire, client_id: str) -> list[str]:
    """Addresses of a client's connections, as the broker sees them."""
    members = w.broker.clients.consumers["G"].members
    return [connection.remote_address for connection, info in members.items() if info.client_id == client_id]


@pytest.mark.spec("UX-10")
async def test_shared_client_id_is_reported_with_both_addresses(caplog: pytest.LogCaptureFixture) -> None:
    async with wire() as w, second(w) as other:
        with caplog.at_level(logging.WARNING, "saturnmq.broker.state"):
            await w.heartbeat("G", "T")
            await other.heartbeat("G", "T")
            assert not own_messages(caplog) and await answered(w) is None  # may be a client that connects again
            for one in (w, other, w):
                await one.heartbeat("G", "T")
        first, last = addresses(w, "c1")
        (record,) = caplog.records
        assert (
            record.getMessage() == f"client id used by two connections client=c1 peer={first} other={last} suppressed=0"
        )
        assert await answered(w) == [ClientConflict("client_id", "c1", first, "c1", last)]
        ((labels, value),) = values(scrape(w), METRIC).items()
        shown = {
            "kind": "client_id",
            "group": "",
            "client": "c1",
            "address": first,
            "other": "c1",
            "other_address": last,
        }
        assert value == 1 and shown.items() <= dict(labels).items()

        await other.call(RequestCode.UNREGISTER_CLIENT, clientID="c1", producerGroup="producers", consumerGroup="G")
        assert await answered(w) is None
        assert not values(scrape(w), METRIC)


@pytest.mark.spec("UX-10")
async def test_client_that_connects_again_is_no_conflict(wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "saturnmq.broker.state"):
        for _ in range(3):  # the connection before stays open here
            async with second(wire) as other:
                await wire.heartbeat("G", "T", client_id="before")
                await other.heartbeat("G", "T")
                await other.heartbeat("G", "T")
                async with second(wire) as again:
                    await again.heartbeat("G", "T")
                    await again.heartbeat("G", "T")
                    assert await answered(wire) is None
    assert not own_messages(caplog)


@pytest.mark.spec("UX-10")
async def test_conflict_ends_with_a_new_client_id() -> None:
    async with wire() as w, second(w) as other:
        for one in (w, other, w):
            await one.heartbeat("G", "T")
        assert len(w.broker.clients.ids.shared) == 1
        await other.heartbeat("G", "T", client_id="c2")
        assert not w.broker.clients.ids.shared


@pytest.mark.spec("UX-10", "CA-03")
async def test_unequal_subscriptions_are_reported_with_both_addresses(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    async with wire(clock_ms=clock) as w, second(w) as other, second(w) as third:
        with caplog.at_level(logging.WARNING, "saturnmq.broker.state"):
            await w.heartbeat("G", "T", "U", tags="a")
            await third.heartbeat("G", "T", "U", tags="a", client_id="c3")
            await other.heartbeat("G", "T", "V", tags="a", client_id="c2")
        (first,), (last,) = addresses(w, "c1"), addresses(w, "c2")
        (record,) = caplog.records
        words = record.getMessage()
        assert f"group=G client=c2 peer={last} other=c1 other_peer={first} topics=['U', 'V']" in words
        assert await answered(w) == [ClientConflict("subscriptions", "c1", first, "c2", last, ["U", "V"])]
        ((labels, _),) = values(scrape(w), METRIC).items()
        shown = {"kind": "subscriptions", "group": "G", "client": "c1", "address": first, "other_address": last}
        assert shown.items() <= dict(labels).items()

        await other.heartbeat("G", "T", "U", tags="a", client_id="c2")
        assert await answered(w) is None
        await third.heartbeat("G", "T", tags="b", client_id="c3")
        assert [one.other_id for one in await answered(w) or []] == ["c3"]
        await third.call(RequestCode.UNREGISTER_CLIENT, clientID="c3", consumerGroup="G")
        assert await answered(w) is None and not w.broker.clients.unequal
