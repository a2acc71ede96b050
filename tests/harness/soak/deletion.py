"""Files deleted while they are read: begins of queues rise, no descriptor is kept, a lagging reader gets 21.

Requirements: SOK-05.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from harness.gate.goals import Goal
from harness.soak.options import Options
from harness.soak.samples import Watched
from harness.soak.single import pause, queues_of, sampling, single, until
from saturnmq import Client
from saturnmq.client.puller.puller import PullStatus
from saturnmq.protocol.bodies import MessageQueue

TOPIC: Final = "Deleted"
SENDERS: Final = 8
BODY: Final = b"y" * 4000
BOUNDED_SECONDS: Final = 600.0
SETTINGS: Final = {
    "storeProfile": "small",
    "mappedFileSizeCommitLog": str(2**20),
    "mappedFileSizeConsumeQueue": "20000",
    "cleanResourceInterval": "200",
    "deleteCommitLogFilesInterval": "0",
    "deleteConsumeQueueFilesInterval": "0",
    "fileReservedTime": "0",
    "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
}


class Deletion:
    def __init__(self, client: Client, queue: MessageQueue) -> None:
        self.queue, self.puller, self.producer = queue, client.puller(), client.producer("deleted-load")
        self.loading = True
        self.sent = self.read = self.illegal = self.rises = 0
        self.wrong: list[str] = []

    async def sends(self, pause_seconds: float) -> None:
        while self.loading:
            await self.producer.send(TOPIC, BODY, queue=self.queue)
            self.sent += 1
            await pause(pause_seconds)

    async def follows(self) -> None:
        """Read at the tail; what it misses was deleted in front of it, with 21."""
        at = 0
        while self.loading:
            result = await self.puller.pull(self.queue, at, wait=1.0)
            if result.status is PullStatus.FOUND:
                offsets = [int(message.offset) for message in result.messages()]
                if offsets != list(range(at, at + len(offsets))):
                    self.wrong.append(f"pull at {at} returned {offsets[:3]}")
                self.read += len(offsets)
            at = int(result.next_offset)

    async def lags(self) -> None:
        """Ask for the first message, again and again, and hold the one that is there."""
        first = 0
        while self.loading:
            held = await self.puller.pull(self.queue, first)
            result = await self.puller.pull(self.queue, 0)
            begin = int(await self.puller.min_offset(self.queue))
            if begin < first:
                self.wrong.append(f"the begin fell from {first} to {begin}")
            if first:
                if result.status is not PullStatus.OFFSET_ILLEGAL or not first <= result.next_offset <= begin:
                    self.wrong.append(f"a pull at 0 got {result.status} and {result.next_offset}, the begin is {begin}")
                self.illegal += 1
            self.rises += begin > first
            first = begin
            if held.status is PullStatus.FOUND and any(len(message.value) != len(BODY) for message in held.messages()):
                self.wrong.append("a message of another length was read")
            await pause(0.1)


async def run(options: Options) -> list[Goal]:
    """The part `deletion`."""
    async with (
        single(options.folder, SETTINGS) as broker,
        Client(name_servers=broker.name_servers, timeout=20) as client,
    ):
        await client.create_topic(TOPIC, queues=1)
        work = Deletion(client, (await queues_of(client.puller(), TOPIC))[0])
        bounded = options.seconds >= BOUNDED_SECONDS
        watched: list[Watched] = [broker.watched(bounded=bounded)]
        began = time.monotonic()
        await work.producer.start()

        def text() -> str:
            return (
                f"{work.sent:,} sent, {work.read:,} read, the begin rose {work.rises} times, {work.illegal} answers 21"
            )

        watching = asyncio.create_task(sampling(options, watched, began, text))
        tasks = [asyncio.create_task(work.sends(SENDERS / options.rate)) for _ in range(SENDERS)]
        tasks += [asyncio.create_task(work.follows()), asyncio.create_task(work.lags())]

        async def covered() -> bool:
            ended = [task for task in tasks if task.done()]
            return bool(ended) or (
                time.monotonic() - began >= options.seconds and work.rises >= 3 and work.illegal >= 3
            )

        await until(covered, "files deleted under a reader", options.seconds + 600)
        work.loading = False
        await asyncio.gather(*tasks)
        await work.producer.stop()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

        async def released() -> bool:
            return not await asyncio.to_thread(broker.deleted_files)

        kept: list[str] = []
        try:
            await until(released, "descriptors of deleted files closed", 60)
        except TimeoutError:
            kept = broker.deleted_files()
    figure = f"{text()}, {len(kept)} deleted files open {kept[:2] if kept else ''}".rstrip()
    wrong = "; ".join(work.wrong[:3]) or "nothing"
    holds = not kept and not work.wrong and work.rises > 0 and work.illegal > 0 and work.read > 0
    goal = Goal(
        "SOK-05 deletion", f"{figure}; wrong: {wrong}", "begins rise, no descriptor kept, 21 to a lagging reader", holds
    )
    return [goal, *(line for one in watched for line in one.goals("SOK-05", options.seconds / 3))]
