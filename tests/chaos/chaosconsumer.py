"""A subscribed client that its caller kills: prints broker, queue, offset and body of each message before it acknowledges it.

Arguments: name servers, topic, group, `subscribed` or `ordered`.

Requirements: CHA-04.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress

from saturnmq import Client
from saturnmq.protocol.errors import SaturnError

TIMEOUT_SECONDS = 1.5


async def consume(name_servers: str, topic: str, group: str, kind: str) -> None:
    async with (
        Client(name_servers=name_servers, route_poll_ms=300, timeout=TIMEOUT_SECONDS) as client,
        client.consumer(group, start="first", ordered=kind == "ordered") as inbox,
    ):
        with suppress(SaturnError):
            await inbox.subscribe(topic)
        while True:
            try:
                message = await inbox.recv(timeout=0.5)
            except (TimeoutError, SaturnError):
                continue
            queue = message.queue
            print(json.dumps([queue.broker_name, queue.queue_id, message.offset, message.value.decode()]), flush=True)
            with suppress(SaturnError):
                await message.ack()


if __name__ == "__main__":
    asyncio.run(consume(*sys.argv[1:]))
