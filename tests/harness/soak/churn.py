"""Sends, connects, topics made and deleted, rebalances: whether the broker or its clients keep anything of them.

An hour's run has 1,000,000 sends, 10,000 connects, 1,000 topics and 1,000 rebalances; a shorter one its share.

Requirements: SOK-03.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from harness.gate.goals import Goal
from harness.soak.options import Options
from harness.soak.samples import Watched
from harness.soak.single import DEADLINE_SECONDS, Single, pause, queues_of, sampling, single, until
from saturnmq import Client
from saturnmq.admin import Admin
from saturnmq.protocol.errors import SaturnError

SENDS, CONNECTS, TOPICS, REBALANCES = 1_000_000, 10_000, 1_000, 1_000
COUNTS: Final = {"sends": SENDS, "connects": CONNECTS, "topics": TOPICS, "rebalances": REBALANCES}
TOPIC, CLUSTER = "Churn", "DefaultCluster"
IN_FLIGHT: Final = 16
BOUNDED_SECONDS: Final = 600.0
# Retention deletes what was consumed, so that the store does not grow with the run.
SETTINGS: Final = {
    "storeProfile": "small", "mappedFileSizeCommitLog": str(4 * 2**20), "cleanResourceInterval": "1000", "fileReservedTime": "0",
    "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)), "deleteCommitLogFilesInterval": "0",
    "deleteConsumeQueueFilesInterval": "0", "flushDiskType": "ASYNC_FLUSH",
}  # fmt: skip


class Churn:
    """Each kind of work, spread evenly over the run. done: how often each happened."""

    def __init__(self, broker: Single, client: Client, options: Options) -> None:
        self.broker, self.client, self.options = broker, client, options
        self.began = time.monotonic()
        self.goals = {what: max(int(count * options.share), 5) for what, count in COUNTS.items()}
        self.done = dict.fromkeys(COUNTS, 0)
        self.failed: list[str] = []

    async def spread(self, what: str, once: Callable[[int], Awaitable[object]]) -> None:
        """Do something as often as the run asks for, evenly; behind schedule without a pause."""
        for number in range(self.goals[what]):
            due = self.began + self.options.seconds * number / self.goals[what]
            await pause(due - time.monotonic())
            try:
                await once(number)
            except (SaturnError, TimeoutError, OSError) as error:
                self.failed.append(f"{what} {number}: {type(error).__name__} {str(error)[:120]}")
            self.done[what] += 1

    async def sends(self) -> None:
        async with self.client.producer("churn-load") as producer:

            async def lane(first: int) -> None:
                for number in range(first, self.goals["sends"], IN_FLIGHT):
                    due = self.began + self.options.seconds * number / self.goals["sends"]
                    if due > time.monotonic():
                        await pause(due - time.monotonic())
                    try:
                        await producer.send(TOPIC, b"message %d" % number)
                    except SaturnError as error:
                        self.failed.append(f"sends {number}: {str(error)[:120]}")
                    self.done["sends"] += 1

            await asyncio.gather(*map(lane, range(IN_FLIGHT)))

    async def connect(self, number: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", self.broker.port)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def topic(self, number: int) -> None:
        """Create a topic, send to it, delete it."""
        name = f"Passing{number}"
        await self.client.create_topic(name, queues=4)
        await queues_of(self.client.puller(), name)
        async with self.client.producer("churn-passing") as producer:
            await producer.send(name, b"once")
        async with Admin(self.broker.name_servers) as admin:
            await admin.topics.delete_from_brokers(name, CLUSTER)
            await admin.topics.delete_from_name_servers(name, CLUSTER)

    async def rebalance(self, number: int) -> None:
        """A second member joins the group of a first one and leaves."""
        async with (
            Client(name_servers=self.broker.name_servers, instance=f"second-{number}", rebalance_ms=500) as client,
            client.consumer("churn-group", start="first") as second,
        ):
            await second.subscribe(TOPIC)
            async with asyncio.timeout(DEADLINE_SECONDS):
                await second.recv()

    async def first(self) -> None:
        """The member that stays."""
        async with self.client.consumer("churn-group", start="first") as inbox:
            await inbox.subscribe(TOPIC)
            async for message in inbox:
                await message.ack()


async def run(options: Options) -> list[Goal]:
    """The part `churn`."""
    async with (
        single(options.folder, SETTINGS) as broker,
        Client(name_servers=broker.name_servers, timeout=20) as client,
    ):
        await client.create_topic(TOPIC, queues=8)
        await queues_of(client.puller(), TOPIC)
        churn = Churn(broker, client, options)
        bounded = options.seconds >= BOUNDED_SECONDS
        watched = [broker.watched(bounded=bounded), Watched("client", os.getpid, bounded=bounded)]

        def text() -> str:
            return ", ".join(f"{count:,} of {churn.goals[what]:,} {what}" for what, count in churn.done.items())

        watching = asyncio.create_task(sampling(options, watched, churn.began, text))
        staying = asyncio.create_task(churn.first())
        try:
            await asyncio.gather(
                churn.sends(), churn.spread("connects", churn.connect), churn.spread("topics", churn.topic),
                churn.spread("rebalances", churn.rebalance),
            )  # fmt: skip

            async def calm() -> bool:
                watched[0].sample(time.monotonic() - churn.began)
                return watched[0].samples[-1].calls == 0

            await until(calm, "no call pending")
        finally:
            watching.cancel()
            staying.cancel()
            await asyncio.gather(watching, staying, return_exceptions=True)
    took = time.monotonic() - churn.began
    figure = f"{text()} in {took:.0f} s, {len(churn.failed)} failed {churn.failed[:2] if churn.failed else ''}".rstrip()
    goal = Goal("SOK-03 churn", figure, "all done, none failed", not churn.failed and churn.done == churn.goals)
    return [goal, *(line for one in watched for line in one.goals("SOK-03", took / 3))]
