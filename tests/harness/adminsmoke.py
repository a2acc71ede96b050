"""The everyday operations of `saturnmq.admin` and of a client on a cluster with one broker, of any version and with any access."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from saturnmq.admin import Admin
from saturnmq.admin.brokers import BrokerState
from saturnmq.admin.consumption import lag
from saturnmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from saturnmq.protocol.errors import SaturnError

TOPIC = "AdminSmoke"
GROUP = "admin-smoke"
MESSAGES = 6
DEADLINE_SECONDS = 30.0
_POLL_SECONDS = 0.05


async def eventually(ask: Callable[[], Awaitable[Any]], *, why: str) -> Any:
    """Ask until the answer is true; a SaturnError counts as a false one. Raises AssertionError with the last answer."""
    last: object = None
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                try:
                    if last := await ask():
                        return last
                except SaturnError as error:
                    last = error
                await asyncio.sleep(_POLL_SECONDS)  # poll
    except TimeoutError:
        raise AssertionError(f"not within {DEADLINE_SECONDS} s: {why}; last: {last!r}") from None


async def check_operations(admin: Admin, cluster: str = "DefaultCluster") -> str:
    """Run the operations, each with a check of its effect; returns the version that the broker reports."""
    masters = await eventually(lambda: admin.connection.masters(cluster), why="the broker is registered")
    ((name, address),) = masters.items()
    state: BrokerState = await eventually(lambda: _serving(admin), why="the broker reports its state")
    assert (state.cluster, state.name, state.number, state.address) == (cluster, name, 0, address)
    assert int(state.text("bootTimestamp")) > 0
    assert (await admin.brokers.configuration(address))["brokerName"] == name
    await _topics(admin, address)
    await admin.groups.put(address, SubscriptionGroupConfig(GROUP, retry_max_times=3))
    assert (await admin.groups.all_on(address))[GROUP].retry_max_times == 3
    await _messages(admin)
    await _offsets(admin)
    await admin.groups.delete(address, GROUP, remove_offset=True)
    assert GROUP not in await admin.groups.all_on(address)
    await admin.topics.delete_from_brokers(TOPIC, cluster)
    await admin.topics.delete_from_name_servers(TOPIC, cluster)
    assert TOPIC not in await admin.topics.names()
    assert await admin.topics.configuration(address, TOPIC) is None
    return state.text("brokerVersionDesc")


async def _serving(admin: Admin) -> BrokerState | None:
    """The state of the only broker; brokers of version 5 report none before their first sample of statistics."""
    (state,) = await admin.brokers.states()
    return None if state.problem else state


async def _topics(admin: Admin, address: str) -> None:
    await admin.topics.update(address, TopicConfig(TOPIC, 2, 2))
    await admin.topics.update(address, TopicConfig(TOPIC, 3, 3))

    async def listed() -> bool:
        return TOPIC in await admin.topics.names() and len(await admin.topics.readable_queues(TOPIC)) == 3

    await eventually(listed, why="the topic is registered with its last number of queues")
    config = await admin.topics.configuration(address, TOPIC)
    assert config is not None and (config.read_queue_nums, config.write_queue_nums) == (3, 3)


async def _messages(admin: Admin) -> None:
    client = await admin.connection.messaging()
    async with client.producer("smoke-out") as out:
        sent = [await out.send(TOPIC, b"%d" % n, keys=f"key-{n}", tag="smoke") for n in range(MESSAGES)]
    async with client.consumer(GROUP, start="first") as inbox:
        await inbox.subscribe(TOPIC)
        messages = [await inbox.recv(DEADLINE_SECONDS) for _ in range(MESSAGES)]
        for message in messages:
            await message.ack()
    assert {message.message_id for message in messages} == {receipt.message_id for receipt in sent}

    async def stored() -> bool:
        statistics = await admin.topics.statistics(TOPIC)
        assert statistics.failures == {}
        return sum(one.max_offset for one in statistics.offsets.values()) == MESSAGES

    await eventually(stored, why="all messages are counted")
    chosen = sent[2]
    found = await eventually(lambda: admin.messages.by_key(TOPIC, "key-2"), why="the key is indexed")
    assert [(one.message_id, one.body, one.tag) for one in found] == [(chosen.message_id, b"2", "smoke")]
    (same,) = await admin.messages.by_unique_id(TOPIC, chosen.message_id)
    assert same.body == b"2"
    assert (await admin.messages.by_offset_id(chosen.offset_message_id)).body == b"2"
    assert (await admin.messages.view(TOPIC, chosen.message_id)).message_id == chosen.message_id


async def _offsets(admin: Admin) -> None:
    async def left(count: int) -> bool:
        progress = await admin.groups.progress(GROUP, TOPIC)
        return len(progress.offset_table) == 3 and lag(progress) == count

    await eventually(lambda: left(0), why="the group has consumed everything")
    await admin.offsets.reset(GROUP, TOPIC, 0)
    await eventually(lambda: left(MESSAGES), why="the group is back at the first message")
