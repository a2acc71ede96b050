"""A broker process whose wall clock jumps by an hour, in both directions. Long run: `make chaos FAULT=clock-jump`."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import pytest
from chaosbrokers import QUEUES, TOPIC, PlainSyncBroker
from chaosfaults import HOUR_SECONDS
from chaosproxy import pause

from saturnmq import SendStatus
from saturnmq.protocol.errors import SaturnError

NEAR_SECONDS = 600


class Jumping(PlainSyncBroker):
    """A plain broker with a record of what was sent to its first queue and when each message was stored."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, size=1, heartbeat_ms=200, seed=1)
        self.bodies: list[bytes] = []

    async def tell(self, delay_level: int = 0) -> None:
        body = b"%d#1" % len(self.bodies)
        receipt = await self.producers[0].send(TOPIC, body, queue=self.queue_of(0), delay_level=delay_level, timeout=5)
        assert receipt.status is SendStatus.SEND_OK
        self.bodies.append(body)

    async def stored(self) -> list[tuple[bytes, datetime]]:
        found: list[tuple[bytes, datetime]] = []
        end = await self.library.puller().max_offset(self.queue_of(0))
        while len(found) < end:
            result = await self.library.puller().pull(self.queue_of(0), len(found), timeout=5)
            found += [(message.value, message.stored_at) for message in result.messages()]
        return found

    async def again(self) -> None:
        """Restart the broker and wait until the client finds it."""
        await self.members["n0"].start()
        await self.members["n0"].ready()
        while True:
            with suppress(SaturnError):
                if len(await self.library.puller().queues(TOPIC)) == QUEUES and await self.stored():
                    return
            await pause(0.02)  # poll

    async def jump_and_tell(self, ahead_seconds: int) -> None:
        """Send until the broker uses the new time, which it notices when it reads its clock, and once more."""
        self.jump("n0", ahead_seconds)
        while self.ahead_seconds("n0") != ahead_seconds:
            await self.tell()
            await pause(0.01)  # poll
        await self.tell()


@pytest.mark.spec("CHA-09", "DUR-18")
def test_wall_clock_jump_loses_skips_and_repeats_nothing(tmp_path: Path) -> None:
    """Also across a kill; a delayed message is delivered even if the clock jumps back."""

    async def work() -> None:
        group = Jumping(tmp_path)
        async with asyncio.timeout(45):
            await group.start()
            try:
                await group.tell()
                await group.jump_and_tell(HOUR_SECONDS)
                ahead = (await group.stored())[-1][1].timestamp() - time.time()
                assert HOUR_SECONDS - NEAR_SECONDS < ahead < HOUR_SECONDS + NEAR_SECONDS
                await group.jump_and_tell(-HOUR_SECONDS)
                await group.kill("n0")
                await group.again()
                assert [body for body, _ in await group.stored()] == group.bodies
                await group.jump_and_tell(HOUR_SECONDS)
                await group.tell(delay_level=1)
                await group.jump_and_tell(-HOUR_SECONDS)
                while len(stored := await group.stored()) < len(group.bodies):
                    await pause(0.02)  # poll
                assert sorted(body for body, _ in stored) == sorted(group.bodies)
                times = [at for _, at in stored]
                assert times == sorted(times), "a queue is searched by time"
                assert times[await group.library.puller().offset_by_time(group.queue_of(0), times[1])] == times[1]
            finally:
                codes = await group.stop()
            assert codes == [0]

    asyncio.run(work())
