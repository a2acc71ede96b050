"""Readers that no message can reach.

Without a subscription or with missing topics: a warning at once, an error after a time. After a dead background task: an error.
"""
# ruff: noqa: SIM117 - separate nested blocks for cluster, client and the objects created from it

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import saturnmq.sync
from saturnmq import Client, ClientError, ConfigError, Consumer, ConsumerStopped, Message, RouteNotFound
from saturnmq.broker import BrokerSettings
from saturnmq.testing import BrokerFixture, EmbeddedBroker
from waiting import until

Run = Callable[[Callable[[], Any]], Any]


def warnings(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelname == "WARNING" and words in record.getMessage() and record.name.startswith("saturnmq.client")
    ]


async def receive(inbox: Consumer[bytes]) -> Any:
    return await inbox.recv()


async def iterate(inbox: Consumer[bytes]) -> Any:
    async for message in inbox:
        return message
    return None


async def gather_batch(inbox: Consumer[bytes]) -> Any:
    async for batch in inbox.batches(10):
        return batch
    return None


@pytest.mark.parametrize("read", [receive, iterate, gather_batch])
async def test_recv_without_subscription_warns_then_raises(
    cluster: Any, caplog: pytest.LogCaptureFixture, read: Callable[[Consumer[bytes]], Any]
) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        async with client.consumer("g", route_timeout=0.05) as inbox:
            reading = asyncio.ensure_future(read(inbox))
            others = [asyncio.ensure_future(inbox.recv()) for _ in range(3)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            (warning,) = warnings(caplog, "nothing to receive group=g")
            assert not reading.done() and "await consumer.subscribe(topic)" in warning
            began = asyncio.get_running_loop().time()
            with pytest.raises(ClientError, match=r"consumer g has no subscription.*consumer\.subscribe\(topic\)"):
                await reading
            assert 0.04 < asyncio.get_running_loop().time() - began < 0.3
            outcomes = await asyncio.gather(*others, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [ClientError] * 3


@pytest.mark.spec("UX-08")
async def test_recv_of_a_missing_topic_warns_then_raises(cluster: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        async with client.consumer("g", route_timeout=0.05) as inbox:
            await inbox.subscribe("ODRERS")
            (warning,) = warnings(caplog, "subscribed topic not found group=g topic=ODRERS")
            command = f"saturnmq admin updateTopic -n '{c.name_servers}' -c DefaultCluster -t ODRERS"
            assert command in warning and "route_timeout=None" in warning
            with pytest.raises(RouteNotFound) as caught:
                await inbox.recv()
            assert warnings(caplog, "nothing to receive") == [], "one warning says it"
            assert caught.value.code == 10005 and "ODRERS" in str(caught.value) and command in str(caught.value)
            with pytest.raises(TimeoutError):
                await inbox.recv(0.001)


async def test_missing_topic_subscribed_before_start_warns_at_start(
    cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        inbox = client.consumer("g")
        await inbox.subscribe("ODRERS")
        async with inbox:
            assert len(warnings(caplog, "subscribed topic not found group=g topic=ODRERS")) == 1


@pytest.mark.spec("API-16")
async def test_listener_of_a_missing_topic_ends_run_with_an_error(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:

        @client.listener("ODRERS", group="g", route_timeout=0.05)
        async def handle(message: Message[bytes]) -> None: ...

        with pytest.raises(RouteNotFound, match="ODRERS"):
            await client.run()
        assert client._core.consumers == {}, "it left the group"


@pytest.mark.spec("RB-01")
async def test_waiting_reader_gets_messages_of_a_late_topic(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        async with client.consumer("g", start="first") as inbox:
            reading = asyncio.ensure_future(inbox.recv())
            await asyncio.sleep(0)
            await inbox.subscribe("LATER")
            c.add("LATER")
            c.broker.put("LATER", 1, b"x")
            assert (await reading).body == b"x"


@pytest.mark.spec("RB-01")
async def test_routes_are_refreshed_before_recv_raises(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        async with client.consumer("g", start="first", route_timeout=0.05) as inbox:
            await inbox.subscribe("LATER")
            async with asyncio.timeout(30):
                while inbox._rounds < 2 or inbox._rebalance_wanted.is_set() or not inbox._round_done.is_set():
                    await asyncio.sleep(0)
            c.add("LATER")  # the consumer's own next lookup is half a second later
            c.broker.put("LATER", 1, b"x")
            assert (await inbox.recv(30)).body == b"x"


@pytest.mark.parametrize("options", [{"route_timeout": None}, {}])
async def test_no_route_timeout_or_a_shorter_recv_timeout_raises_no_error(
    cluster: Any, options: dict[str, Any]
) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        async with client.consumer("g", **options) as inbox:
            with pytest.raises(TimeoutError):
                await inbox.recv(0.05)


async def test_one_existing_topic_is_enough_to_wait(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        async with client.consumer("g", start="first", route_timeout=0.01) as inbox:
            await inbox.subscribe("T")
            await inbox.subscribe("MISSING")
            with pytest.raises(TimeoutError):
                await inbox.recv(0.1)
            queues = await client.puller().queues("T")
        async with client.consumer("h", start="first", route_timeout=0.01) as inbox:
            await inbox.assign(queues)
            with pytest.raises(TimeoutError):
                await inbox.recv(0.1)


@pytest.mark.spec("API-24")
async def test_cancelled_waiting_reader_loses_no_message(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        async with client.consumer("g", start="first") as inbox:
            readers = [asyncio.ensure_future(inbox.recv()) for _ in range(2)]
            await asyncio.sleep(0)
            readers[0].cancel()
            await inbox.subscribe("T")
            c.broker.put("T", 0, b"x")
            assert (await readers[1]).body == b"x"


@pytest.mark.spec("API-24")
@pytest.mark.parametrize("how", ["retry", "reject"])
async def test_cancelled_send_back_leaves_the_message_open(cluster: Any, how: str) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            c.broker.put("T", 0, b"x")
            message = await inbox.recv()
            c.broker.script[36] = lambda command: None
            settling = asyncio.ensure_future(getattr(message, how)())
            await c.broker.wait_for(36)
            settling.cancel()
            await asyncio.gather(settling, return_exceptions=True)
            await message.ack()  # no AlreadySettled
            assert 1 in inbox.committed().values()


async def broken() -> None:
    raise ZeroDivisionError("bug")


@pytest.mark.spec("API-26")
async def test_dead_task_of_the_client_fails_a_waiting_reader(cluster: Any) -> None:
    """Regression: only the next call raised; a reader went on waiting, though nothing kept its client in the group."""
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        async with client.consumer("g") as inbox:
            await inbox.subscribe("T")
            waiting = asyncio.ensure_future(inbox.recv())
            await asyncio.sleep(0)
            client._core.spawn("broken", broken())
            with pytest.raises(ConsumerStopped, match="bug") as caught:
                await waiting
            assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.spec("API-26")
async def test_dead_task_of_the_client_ends_its_listeners_which_leave_the_group(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:

        @client.listener("T", group="g")
        async def handle(message: Message[bytes]) -> None: ...

        running = asyncio.ensure_future(client.run())
        await until(lambda: "g" in client._core.consumers)
        consumer: Any = client._core.consumers["g"]
        await until(lambda: consumer._inbox._readers)
        client._core.spawn("broken", broken())
        async with asyncio.timeout(60):
            with pytest.raises(ConsumerStopped, match="bug"):
                await running
        assert [command.ext["consumerGroup"] for command in c.broker.of(35)] == ["g"]


@pytest.mark.parametrize("value", [0, -1, True, "1", 86_401])
def test_route_timeout_out_of_range_is_rejected(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"route_timeout is .* at most 86400, or None"):
        Client(name_servers="h:1").consumer("g", route_timeout=value)


@pytest.mark.spec("API-31")
def test_sync_recv_without_subscription_raises(saturn_broker: BrokerFixture, saturn_group: str) -> None:
    with saturnmq.sync.Client.from_url(saturn_broker.url) as client:
        with client.consumer(saturn_group, route_timeout=0.05) as inbox:
            with pytest.raises(ClientError, match="has no subscription"):
                inbox.recv()


async def test_send_to_a_missing_topic_raises_at_once() -> None:
    async with (
        EmbeddedBroker(settings=BrokerSettings(auto_create_topic=False)) as server,
        Client.from_url(server.url) as client,
    ):
        async with client.producer("g") as out:
            with pytest.raises(RouteNotFound, match=r"saturnmq admin updateTopic .* -t ODRERS"):
                await out.send("ODRERS", b"x")
