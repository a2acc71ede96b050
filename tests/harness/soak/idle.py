"""10,000 parked pulls that nothing wakes: what they cost, and whether anything grows.

Requirements: SOK-06.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from harness.gate.goals import Goal
from harness.soak.options import Options
from harness.soak.single import pause, queues_of, sampling, single, until
from saturnmq import Client
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command, encode_frame

PULLS: Final = 10_000
CONNECTIONS: Final = 100
QUEUES: Final = 20
TOPIC: Final = "Idle"
CORE_SHARE_MAX: Final = 0.02
BOUNDED_SECONDS: Final = 600.0
HELD_MS: Final = 24 * 3_600_000
SETTINGS: Final = {"storeProfile": "small"}


async def park(port: int, number: int, count: int) -> asyncio.StreamWriter:
    """Send pulls on a connection of their own; their answers, if there are any, are discarded."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for opaque in range(count):
        fields = {
            "consumerGroup": f"idle-{number}",
            "topic": TOPIC,
            "queueId": str(opaque % QUEUES),
            "queueOffset": "0",
            "commitOffset": "0",
            "maxMsgNums": "32",
            "sysFlag": "6",
            "suspendTimeoutMillis": str(HELD_MS),
            "subscription": "*",
            "subVersion": "1",
            "expressionType": "TAG",
        }
        writer.write(encode_frame(Command(RequestCode.PULL_MESSAGE, opaque=opaque, ext=fields)))
        if opaque % 32 == 0:
            await writer.drain()
    await writer.drain()
    reading = asyncio.ensure_future(_discard(reader))
    reading.add_done_callback(lambda done: done.cancelled() or done.exception())
    return writer


async def _discard(reader: asyncio.StreamReader) -> None:
    while await reader.read(65536):
        pass


async def run(options: Options) -> list[Goal]:
    """The part `idle`."""
    async with (
        single(options.folder, SETTINGS) as broker,
        Client(name_servers=broker.name_servers, timeout=20) as client,
    ):
        await client.create_topic(TOPIC, queues=QUEUES)
        await queues_of(client.puller(), TOPIC)
        watched = broker.watched(bounded=options.seconds >= BOUNDED_SECONDS)
        writers = []
        try:
            for number in range(CONNECTIONS):
                writers.append(await park(broker.port, number, PULLS // CONNECTIONS))

            async def parked() -> bool:
                watched.sample(0.0)
                return bool(watched.samples) and watched.samples[-1].parked == PULLS

            await until(parked, f"{PULLS} pulls parked")
            watched.samples.clear()
            await pause(min(options.seconds / 10, 30))
            began, cpu_s = time.monotonic(), broker.server.cpu_s()
            watching = asyncio.create_task(sampling(options, [watched], began, lambda: f"{watched.samples[-1:]}"))
            await pause(options.seconds)
            took, used = time.monotonic() - began, broker.server.cpu_s() - cpu_s
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            left = watched.samples[-1].parked
        finally:
            for writer in writers:
                writer.close()
    share = used / took
    figure = f"{left:,} parked at the end, {share:.2%} of a core over {took:.0f} s (a probe of the harness included)"
    goal = Goal(
        "SOK-06 idle pulls",
        figure,
        f"{PULLS:,} parked, < {CORE_SHARE_MAX:.0%}",
        share < CORE_SHARE_MAX and left == PULLS,
    )
    return [goal, *watched.goals("SOK-06 idle", options.seconds / 3)]
