"""Reads the trace of a message from a broker's index, with our own client."""

from __future__ import annotations

import asyncio

from peers import Peer

import saturnmq
from saturnmq.client.trace.records import TraceRecord

WAIT_S = 20


async def traces(peer: Peer, topic: str, message_id: str, wanted: int) -> list[TraceRecord]:
    """The trace records of one message; waits for `wanted` of them, since clients send traces in the background."""
    async with asyncio.timeout(WAIT_S), saturnmq.Client(name_servers=peer.name_servers) as client:
        while True:
            found: list[TraceRecord] = []
            if await client.topic_exists(topic):
                records = await client.query_trace(message_id, topic=topic)
                found = [record for record in records if message_id in record.encode()]
            if len(found) >= wanted:
                return found
            await asyncio.sleep(0.1)  # polls


async def make_topic(peer: Peer, name: str) -> None:
    """Create a trace topic: clients do not create it reliably."""
    async with asyncio.timeout(WAIT_S), saturnmq.Client(name_servers=peer.name_servers) as client:
        await client.create_topic(name, queues=1)
