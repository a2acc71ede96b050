"""Rebalance: announcing a changed assignment, acquiring and releasing queues, and failures of a single topic."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from saturnmq import Client
from saturnmq.client.connection.url import ClientSettings
from saturnmq.client.consumer import member
from saturnmq.client.consumer.rebalance_strategies import average
from saturnmq.protocol.bodies import (
    BrokerData,
    ConsumerIdList,
    HeartbeatData,
    LockBatchRequest,
    LockBatchResponse,
    MessageQueue,
    QueueData,
    TopicRouteData,
)
from saturnmq.protocol.errors import LocalProtocolError
from saturnmq.protocol.offsets import QueueOffset
from waiting import until

Run = Callable[[Callable[[], Any]], Any]


def announced(broker: Any, topic: str) -> int:
    """The newest subVersion of a topic in the heartbeats to a broker; 0 if none."""
    versions = [
        subscription.sub_version
        for command in broker.of(34)
        for group in HeartbeatData.decode(command.body).consumer_data_set
        for subscription in group.subscription_data_set
        if subscription.topic == topic
    ]
    return versions[-1] if versions else 0


@pytest.mark.spec("RB-06")
async def test_changed_assignment_is_announced_with_a_new_version(cluster: Any) -> None:
    quiet: Any = {"rebalance_ms": 60_000, "heartbeat_ms": 100_000, "route_poll_ms": 100_000}
    async with cluster(2) as c, Client(name_servers=c.name_servers, **quiet) as client:
        brokers = list(c.brokers.values())
        async with client.consumer("g") as inbox:
            await inbox.subscribe("T")
            await until(lambda: len(inbox.assigned) == 8)
            (mine,) = [data for data in inbox.subscriptions if data.topic == "T"]
            await until(lambda: {announced(broker, "T") for broker in brokers} == {mine.sub_version})
            before, begin_ms = mine.sub_version, time.time() * 1000
            inbox.wake_rebalance()
            rounds = inbox._rounds
            await until(lambda: inbox._rounds > rounds)
            assert mine.sub_version == before, "a round without a change announces nothing"
            for broker in brokers:
                broker.groups["g"].add("zzz")  # sorts behind this client
            inbox.wake_rebalance()
            await until(lambda: min(announced(broker, "T") for broker in brokers) > before)
            assert len(inbox.assigned) == 4
            assert {announced(broker, "T") for broker in brokers} == {mine.sub_version}
            assert mine.sub_version >= int(begin_ms), "Unix ms of the change"
            await until(lambda: inbox.subscription_version("T") == mine.sub_version)  # from then on in pulls


def pulled(broker: Any, queue: MessageQueue) -> list[int]:
    """The offsets of a queue that were pulled so far."""
    place = queue.topic, str(queue.queue_id)
    return [int(r.ext["queueOffset"]) for r in broker.of(11) if (r.ext["topic"], r.ext["queueId"]) == place]


def has_begun_after(inbox: Any, rounds: int) -> bool:
    """Whether another rebalance round than the first `rounds` has begun."""
    return inbox._rounds > rounds


@pytest.mark.spec("RW-10")
async def test_member_takes_its_page_of_the_sorted_queues(cluster: Any) -> None:
    quiet: Any = {"rebalance_ms": 60_000, "heartbeat_ms": 100_000, "route_poll_ms": 100_000}
    async with cluster(2) as c, Client(name_servers=c.name_servers, **quiet) as client:
        brokers = dict(sorted(c.brokers.items()))
        page = [MessageQueue("T", name, queue_id) for name in brokers for queue_id in range(4)][3:6]
        for number, queue in enumerate(page):
            broker = brokers[queue.broker_name]
            broker.groups["g"] |= {"zzz", "!"}  # the client's own id sorts between them
            broker.offsets["g", "T", queue.queue_id] = number
            for body in (b"a", b"b", b"c"):
                broker.put("T", queue.queue_id, body)
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            await until(lambda: len(inbox.assigned) == 3)
            assert sorted(inbox.assigned, key=str) == sorted(page, key=str)
            assert any(broker.of(38) for broker in brokers.values()), "members come from a broker"
            for number, queue in enumerate(page):
                broker = brokers[queue.broker_name]
                await until(partial(pulled, broker, queue))
                assert pulled(broker, queue)[0] == number, queue
            asked = [request.ext["topic"] for request in c.ns[0].of(105)].count("T")
            for _ in range(5):
                inbox.wake_rebalance()
                await until(partial(has_begun_after, inbox, inbox._rounds))
            asks = [request.ext["topic"] for request in c.ns[0].of(105)].count("T") - asked
            assert asks <= 1, "the queues come from the cached route; the first route poll may ask once"


@pytest.mark.spec("RB-01")
async def test_every_topic_of_every_group_is_rebalanced_every_20_s(cluster: Any) -> None:
    clock, times = asyncio.get_running_loop().time, defaultdict[tuple[str, str], list[int]](list)

    def noted(group: str, queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
        times[group, queues[0].topic].append(round(clock() - began))
        return average(queues, members, me)

    async with cluster() as c:
        c.add("U")
        began = clock()
        async with Client(name_servers=c.name_servers) as client, AsyncExitStack() as stack:
            for group in ("g", "h"):
                inbox = client.consumer(group, strategy=partial(noted, group))
                await stack.enter_async_context(inbox)
                for topic in ("T", "U"):
                    await inbox.subscribe(topic)
            await asyncio.sleep(15)  # poll: virtual time
            times.clear()
            await asyncio.sleep(55)  # poll: virtual time
    assert times == {(group, topic): [20, 40, 60] for group in "gh" for topic in "TU"}


@pytest.mark.spec("RB-01")
@pytest.mark.parametrize(
    "error", [LocalProtocolError("no site is known"), ZeroDivisionError("a defect of the strategy")]
)
def test_failing_topic_does_not_stop_the_rebalance_of_others(
    run: Run, cluster: Any, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    assert ClientSettings(name_servers=("h:1",)).rebalance_ms == 20_000

    def share(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
        if queues[0].topic == "A":
            raise error
        return average(queues, members, me)

    async def work() -> None:
        async with cluster() as c, Client(name_servers=c.name_servers, rebalance_ms=60_000) as client:
            for topic in ("A", "B"):
                c.add(topic)
            async with client.consumer("g", strategy=share) as inbox:
                await inbox.subscribe("A")
                await inbox.subscribe("B")
                await until(lambda: {queue.topic for queue in inbox.assigned} == {"B"})

    run(work)
    failures = [r for r in caplog.records if r.getMessage().startswith("rebalance failed group=g topic=A")]
    assert failures and all(str(error) in logging.Formatter().format(record) for record in failures)


@pytest.mark.spec("RB-03", "RB-04")
async def test_reassigned_queue_starts_at_the_stored_offset(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers, rebalance_ms=60_000) as client:
        c.add("T", c.route(read=1, write=1))
        queue = MessageQueue("T", "b0", 0)
        for n in range(3):
            c.broker.put("T", 0, b"%d" % n)
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            for _ in range(2):
                await (await inbox.recv(30)).ack()
            c.broker.script[38] = lambda command: command.reply(body=ConsumerIdList(["another"]).encode())
            inbox.wake_rebalance()
            await until(lambda: not inbox.assigned)
            await until(lambda: c.broker.offsets.get(("g", "T", 0)) == 2)
            assert queue not in inbox.committed(), "dropped from memory"
            c.broker.offsets["g", "T", 0] = 0  # an operator has reset the group
            c.broker.script.clear()
            inbox.wake_rebalance()
            again = await inbox.recv(30)
            assert again.offset == 0
            await again.ack()
            assert inbox.committed()[queue] == 1


@pytest.mark.spec("RB-04")
async def test_queue_with_a_negative_start_offset_is_skipped_until_the_next_round(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers, rebalance_ms=60_000) as client:
        c.add("T", c.route(read=1, write=1))
        c.broker.script[30] = lambda command: command.reply(ext={"offset": "-1"})
        c.broker.script[29] = lambda command: command.reply(ext={"offset": "0"})
        async with client.consumer("g") as inbox:
            await inbox.subscribe("T")
            await c.broker.wait_for(30)
            queue = MessageQueue("T", "b0", 0)
            inbox.offsets.update(queue, QueueOffset(9))  # of an earlier assignment: forgotten first
            inbox.wake_rebalance()  # this round searches by time
            assert len(await inbox.wait_assigned()) == 1
            c.broker.put("T", 0, b"x")
            await (await inbox.recv(30)).ack()
            assert inbox.committed() == {queue: 1}
            pulled_offsets = [pull.ext["queueOffset"] for pull in c.broker.of(11) if pull.ext["topic"] == "T"]
        assert "-1" not in pulled_offsets and len(c.broker.of(30)) == len(c.broker.of(29)) == 1


@pytest.mark.spec("RB-04", "OR-02")
async def test_ordered_queue_is_acquired_only_with_its_lock_and_retried(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "LOCK_DENIED_S", 0.01)
    async with cluster() as c, Client(name_servers=c.name_servers, rebalance_ms=60_000) as client:
        c.add("T", c.route(read=2, write=2))
        for queue_id in (0, 1):
            c.broker.put("T", queue_id, b"x")
        granted = {0}

        def lock(command: Any) -> Any:
            asked = LockBatchRequest.decode(command.body).mq_set
            return command.reply(body=LockBatchResponse([q for q in asked if q.queue_id in granted]).encode())

        c.broker.script[41] = lock
        async with client.consumer("g", start="first", ordered=True) as inbox:
            await inbox.subscribe("T")
            assert (await inbox.recv(30)).queue.queue_id == 0
            rounds = inbox._rounds
            await until(lambda: inbox._rounds > rounds + 2)
            assert [queue.queue_id for queue in inbox.assigned] == [0]
            asked = [command for command in c.broker.of(11) + c.broker.of(14) if command.ext["topic"] == "T"]
            assert {command.ext["queueId"] for command in asked} == {"0"}, "locked first, then looked at"
            granted.add(1)
            assert (await inbox.recv(30)).queue.queue_id == 1


@pytest.mark.spec("OR-03", "RB-03")
async def test_ordered_queue_is_unlocked_after_its_offset_is_stored(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers, rebalance_ms=60_000) as client:
        c.add("T", c.route(read=1, write=1))
        c.broker.put("T", 0, b"x")

        def lock_all(command: Any) -> Any:
            return command.reply(body=LockBatchResponse(LockBatchRequest.decode(command.body).mq_set).encode())

        c.broker.script[41] = lock_all
        async with client.consumer("g", start="first", ordered=True) as inbox:
            await inbox.subscribe("T")
            held = await inbox.recv(30)
            c.broker.script[38] = lambda command: command.reply(body=ConsumerIdList(["another"]).encode())
            rounds = inbox._rounds
            inbox.wake_rebalance()
            await until(lambda: inbox._rounds > rounds)
            given_up = [LockBatchRequest.decode(command.body).mq_set for command in c.broker.of(42)]
            assert MessageQueue("T", "b0", 0) not in [queue for queues in given_up for queue in queues]
            await held.ack()
            await until(lambda: not inbox.assigned)
            await until(lambda: any(b'"topic":"T"' in (command.body or b"") for command in c.broker.of(42)))
            steps = [
                command.code
                for command in c.broker.requests
                if (command.code == 15 and command.ext["topic"] == "T" and not command.is_oneway)
                or (command.code == 42 and b'"topic":"T"' in (command.body or b""))
            ]
            assert steps == [15, 42] and c.broker.offsets["g", "T", 0] == 1


@pytest.mark.spec("OR-05", "OF-03")
async def test_locks_use_the_master_and_offsets_a_slave_only_without_master(cluster: Any) -> None:
    async with cluster(2) as c, Client(name_servers=c.name_servers, persist_offsets_ms=20) as client:
        master, slave = c.brokers["b0"], c.brokers["b1"]

        def route(**addresses: str) -> TopicRouteData:
            ids = {int(name[2:]): address for name, address in addresses.items()}
            return TopicRouteData([QueueData("b0", 1, 1, 6)], [BrokerData("c", "b0", ids)])

        c.add("T", route(id0=master.address, id1=slave.address))
        for broker in (master, slave):
            broker.script[41] = lambda command: command.reply(
                body=LockBatchResponse(LockBatchRequest.decode(command.body).mq_set).encode()
            )
            for n in range(2):
                broker.put("T", 0, b"%d" % n)
        async with client.consumer("g", start="first", ordered=True) as inbox:
            await inbox.subscribe("T")
            await (await inbox.recv(30)).ack()
            await until(lambda: master.offsets.get(("g", "T", 0)) == 1)
            assert master.of(41) and not slave.of(41) and not slave.of(15)
            assert not master.of(15)[0].is_oneway, "the first offset of a topic is confirmed"
            second = await inbox.recv(30)
            c.add("T", route(id1=slave.address))
            await client._core.routes.refresh("T")
            await second.ack()
            await until(lambda: slave.offsets.get(("g", "T", 0)) == 2)


@pytest.mark.spec("CC-05", "RB-03")
async def test_retry_finishing_after_queue_release_commits_nothing(cluster: Any) -> None:
    quick: Any = {"rebalance_ms": 60_000, "persist_offsets_ms": 20}
    async with cluster() as c, Client(name_servers=c.name_servers, **quick) as client:
        c.add("T", c.route(read=1, write=1))
        c.broker.put("T", 0, b"x")
        answer_it = asyncio.Event()

        async def late(command: Any) -> Any:
            await answer_it.wait()
            return command.reply()

        c.broker.script[36] = late
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            retrying = asyncio.ensure_future((await inbox.recv(30)).retry())
            await c.broker.wait_for(36)
            c.broker.script[38] = lambda command: command.reply(body=ConsumerIdList(["another"]).encode())
            inbox.wake_rebalance()
            await until(lambda: not inbox.assigned)
            c.broker.offsets["g", "T", 0] = 0  # stored by the next owner
            answer_it.set()
            await retrying
            assert inbox.committed() == {}
            await client._core._persist_offsets()
        assert c.broker.offsets["g", "T", 0] == 0


@pytest.mark.spec("RB-02")
async def test_each_broadcast_member_owns_every_queue(cluster: Any, tmp_path: Path) -> None:
    async with cluster(2) as c, AsyncExitStack() as stack:
        expected = [MessageQueue("T", name, n) for name in ("b0", "b1") for n in range(4)]
        for instance in ("one", "two"):
            settings: Any = {"instance": instance, "offsets_dir": str(tmp_path)}
            await stack.enter_async_context(client := Client(name_servers=c.name_servers, **settings))
            inbox = await stack.enter_async_context(client.consumer("g", model="broadcast"))
            await inbox.subscribe("T")
            await until(lambda: inbox.assigned == expected)  # noqa: B023
        assert not any(broker.of(38) for broker in c.brokers.values()), "the members do not matter"
