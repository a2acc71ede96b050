"""Copies that a consumer sends when its broker takes no message back: how many at a time, and what they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from saturnmq import Client
from saturnmq.protocol.frames.command import Command
from waiting import until

Run = Callable[[Callable[[], Any]], Any]
AT_A_TIME = 64


async def test_copies_are_sent_64_at_a_time(cluster: Any) -> None:
    """A broker that takes no message back is not sent hundreds of copies at once either."""
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        c.add("T", c.route(read=1, write=1))
        c.add("%RETRY%g", c.route(read=1, write=1))
        for number in range(AT_A_TIME + 10):
            c.broker.put("T", 0, b"%d" % number)
        c.broker.script[36] = lambda command: command.reply(1, "no")
        answers = asyncio.Semaphore(0)
        open_now = most = 0

        async def late(command: Command) -> Command:
            nonlocal open_now, most
            open_now += 1
            most = max(most, open_now)
            await answers.acquire()
            open_now -= 1
            return c.broker.on_310(command)  # type: ignore[no-any-return]

        c.broker.script[310] = late
        async with client.consumer("g", start="first", prefetch=1000, max_times=5) as inbox:
            await inbox.subscribe("T")
            messages = [await inbox.recv(30) for _ in range(AT_A_TIME + 10)]
            settling = [asyncio.create_task(message.retry()) for message in messages]
            await until(
                lambda: len(c.broker.of(36)) == AT_A_TIME + 10 and open_now >= AT_A_TIME, 3, why=lambda: open_now
            )
            for _ in range(AT_A_TIME + 10):
                answers.release()
            await asyncio.gather(*settling)
            assert (most, open_now) == (AT_A_TIME, 0)
            bodies = sorted(int(command.body) for command in c.broker.of(310))
            assert bodies == list(range(AT_A_TIME + 10)), "each exactly once"
