"""A client that sends and receives for a long time, cuts its own connections now and then, and reports its memory use.

`python soak_client.py URL TOPIC MESSAGES RECONNECTS` prints one JSON object. Memory is the resident set of this process
in bytes, sampled a hundred times.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

from saturnmq import Client, Consumer, Producer

AT_ONCE = 64
SAMPLES = 100
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


class Soak:
    def __init__(self, client: Client, topic: str, messages: int, reconnects: int) -> None:
        self.client, self.topic, self.messages = client, topic, messages
        self.cut_every = messages // (reconnects + 1)
        self.sent = self.received = self.cuts = 0
        self.missing = bytearray(b"\1") * messages  # by message number; preallocated, so that it does not grow
        self.left = messages
        self.samples: list[int] = []
        self.slots = asyncio.Semaphore(4096)  # limits messages that are sent but not received

    async def send(self, out: Producer[bytes]) -> None:
        while self.sent < self.messages:
            number = self.sent
            self.sent += 1
            await self.slots.acquire()
            await out.send(self.topic, b"%d" % number, keys=[f"k{number}"], tag="soak")
            if number and number % self.cut_every == 0:
                self.cut()

    def cut(self) -> None:
        """Abort all connections, as when a broker or a network fails."""
        self.cuts += 1
        for connection in list(self.client._core.remote._client.connections):
            connection.abort()

    async def receive(self, inbox: Consumer[bytes]) -> None:
        step = max(self.messages // SAMPLES, 1)
        async for message in inbox:
            number = int(message.body)
            await message.ack()
            self.received += 1
            if self.missing[number]:
                self.missing[number] = 0
                self.left -= 1
                self.slots.release()
                if self.left % step == 0:
                    self.samples.append(resident_bytes())
                if self.left == 0:
                    return


async def main(url: str, topic: str, messages: int, reconnects: int) -> dict[str, Any]:
    options: dict[str, Any] = {"timeout": 30.0, "attempts": 10, "persist_offsets_ms": 200, "route_poll_ms": 500}
    async with Client.from_url(url, **options) as client:
        soak = Soak(client, topic, messages, reconnects)
        async with client.producer("soak") as out, client.consumer(f"{topic}-soak", start="first") as inbox:
            await inbox.subscribe(topic)
            async with asyncio.TaskGroup() as group:
                group.create_task(soak.receive(inbox))
                for _ in range(AT_ONCE):
                    group.create_task(soak.send(out))
        tasks = len(asyncio.all_tasks())
    return {
        "sent": soak.sent,
        "received": soak.received,
        "left": soak.left,
        "cuts": soak.cuts,
        "samples": soak.samples,
        "tasks": tasks,
        "tasks_after": len(asyncio.all_tasks()),
    }


if __name__ == "__main__":
    json.dump(asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))), sys.stdout)
