"""A disk that fills for real: 85, 90, 95, 100 % and back, while a producer, a reader and an offset commit go on.

Requirements: SOK-04, DUR-15.
"""

from __future__ import annotations

import json
import random
import time
from typing import Final

from harness.gate.goals import Goal
from harness.soak.options import Options
from harness.soak.single import Single, pause, queues_of, single, until
from harness.soak.space import SmallDisk, filled_to
from saturnmq import Client
from saturnmq.client.puller.puller import Puller, PullStatus
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import ResponseError, SaturnError

DISK_BYTES: Final = 96 * 2**20
TOPIC, GROUP = "Disk", "disk-readers"
# At 90 % the broker's next file decides (DEL-04: full above 90 %).
STEPS: Final = {85: ("ok",), 90: ("ok", "full"), 95: ("full",), 100: ("full",)}
BODY: Final = random.Random(1).randbytes(16_000)  # does not compress
SETTINGS: Final = {
    "storeProfile": "small",
    "mappedFileSizeCommitLog": str(2**20),
    "cleanResourceInterval": "200",
    "cleanFileForciblyEnable": "false",
    "fileReservedTime": "72",
    "flushDiskType": "SYNC_FLUSH",
    "flushConsumerOffsetInterval": "500",
}


class Filling:
    """The clients of one run, and what they found."""

    def __init__(self, broker: Single, sender: Client, puller: Puller, queue: MessageQueue) -> None:
        self.broker, self.queue = broker, queue
        self.producer = sender.producer("disk-load")
        self.puller = puller
        self.acknowledged: list[int] = []
        self.at = 0
        self.wrong: list[str] = []

    async def send(self) -> str:
        """`ok`, `full` (code 14), or what else was answered."""
        try:
            receipt = await self.producer.send(TOPIC, BODY, queue=self.queue)
        except SaturnError as error:
            cause = error.__cause__ if isinstance(error.__cause__, SaturnError) else error
            full = isinstance(cause, ResponseError) and cause.code == ResponseCode.SERVICE_NOT_AVAILABLE
            return "full" if full else str(cause)[:200]
        self.acknowledged.append(int(receipt.offset))
        return "ok"

    async def sends(self, *wanted: str) -> bool:
        return await self.send() in wanted

    async def reads(self) -> None:
        """Read on to the end; what was acknowledged is there unless it was deleted for space."""
        while True:
            result = await self.puller.pull(self.queue, self.at)
            if result.status is PullStatus.OFFSET_ILLEGAL or result.status is PullStatus.FOUND:
                self.at = int(result.next_offset)
            else:
                break
        if self.acknowledged and self.at <= self.acknowledged[-1]:
            self.wrong.append(f"read up to {self.at}, {self.acknowledged[-1]} was acknowledged")

    async def saves(self) -> None:
        """Commit an offset and wait until it is in the file."""
        await self.puller.commit(GROUP, self.queue, self.at)
        path = self.broker.store / "config" / "consumerOffset.json"

        async def saved() -> bool:
            table = json.loads(path.read_text())["offsetTable"] if path.exists() else {}
            return bool(table.get(f"{TOPIC}@{GROUP}", {}).get(str(self.queue.queue_id)) == self.at)

        await until(saved, f"offset {self.at} in {path.name}")

    async def at_percent(self, percent: int, seconds: float) -> None:
        """Fill the disk and expect what the mark promises; the broker looks at the disk every 200 ms."""
        with filled_to(self.broker.store, percent):
            wanted = STEPS[percent]
            await until(lambda: self.sends(*wanted), f"sends are answered {wanted} at {percent} %")
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                if (got := await self.send()) not in wanted:
                    self.wrong.append(f"at {percent} % a send got {got}")
                await self.reads()
                await pause(0.05)
            await self.saves()
        await until(lambda: self.sends("ok"), f"sends succeed again after {percent} %")

    async def forced(self) -> None:
        """With forced deletion the broker frees a disk of 95 % itself: the oldest files go, sends succeed."""
        before = await self.puller.min_offset(self.queue)
        self.broker.configure(cleanFileForciblyEnable="true")
        with filled_to(self.broker.store, 95):

            async def freed() -> bool:
                return await self.puller.min_offset(self.queue) > before and await self.send() == "ok"

            await until(freed, "files deleted and sends taken at 95 %")


async def run(options: Options) -> list[Goal]:
    """The part `disk`."""
    (options.folder / "store").mkdir()
    disk = SmallDisk.mounted(options.folder / "store", DISK_BYTES)
    if disk is None:
        return [Goal("SOK-04 full disk", "skipped: no user namespace to mount a small disk in", "none", holds=True)]
    try:
        async with (
            single(options.folder, SETTINGS) as broker,
            Client(name_servers=broker.name_servers, timeout=20) as client,
            Client(name_servers=broker.name_servers, timeout=20, attempts=1) as sender,  # each answer to a send counts
        ):
            await client.create_topic(TOPIC, queues=1)
            puller = client.puller(GROUP)
            filling = Filling(broker, sender, puller, (await queues_of(puller, TOPIC))[0])
            async with filling.producer:
                while len(filling.acknowledged) * len(BODY) < DISK_BYTES // 3:
                    if (got := await filling.send()) != "ok":
                        raise RuntimeError(f"a send got {got} before the disk was full")
                each = options.seconds / (len(STEPS) + 1)
                for number, percent in enumerate(STEPS):
                    options.show(number * each, f"disk at {percent} %")
                    await filling.at_percent(percent, each)
                options.show(len(STEPS) * each, "forced deletion")
                await filling.forced()
                await filling.reads()
                options.show(options.seconds, "restart")
            code = broker.restart()
            filling.at = 0
            await queues_of(client.puller(), TOPIC)
            await filling.reads()
            if code != 0:
                filling.wrong.append(f"exit code {code}")
    finally:
        disk.unmount()
    steps = ", ".join(f"{percent} %" for percent in STEPS)
    figure = f"{steps} and back, {len(filling.acknowledged):,} acknowledged; wrong: {'; '.join(filling.wrong[:5]) or 'nothing'}"
    bound = "14 above 90 %, reads, deletion and offset saves go on, sends resume, nothing lost"
    return [Goal("SOK-04 full disk", figure, bound, not filling.wrong)]
