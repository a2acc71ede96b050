"""Reads a broker's contents through the client protocol, so that it works with every compatible broker.

Requirements: TST-05.
"""

from __future__ import annotations

import asyncio
from typing import Final

from saturnmq.client.client import Client
from saturnmq.client.message import Message
from saturnmq.client.puller.puller import PullStatus
from saturnmq.errors import RouteNotFound
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import DLQ_PREFIX

POLL_SECONDS: Final = 0.01
PULL_COUNT: Final = 32
SHOWN_BODY_BYTES: Final = 60


class Inspection:
    """Reads topics and offsets through one client; use it on the event loop that started the client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._puller = client.puller()

    async def published(self, topic: str) -> list[Message[bytes]]:
        """All messages of a topic that consumers can see, in store order; [] if the topic does not exist."""
        messages: list[Message[bytes]] = []
        for queue in await self._queues(topic):
            messages += await self._read(queue)
        return sorted(messages, key=lambda message: (message.record.store_timestamp_ms, message.record.physical_offset))

    async def dead_letters(self, group: str) -> list[Message[bytes]]:
        """The messages in a group's dead-letter queue."""
        return await self.published(DLQ_PREFIX + group)

    async def lag(self, group: str, topic: str) -> int:
        """Messages of a topic after the group's committed offsets; all of a queue's messages where the group has committed none."""
        behind = 0
        for queue in await self._queues(topic):
            committed = await self._puller.committed(group, queue)
            low, high = await self._puller.min_offset(queue), await self._puller.max_offset(queue)
            behind += high - max(low if committed is None else committed, low)
        return behind

    async def expect(self, topic: str, n: int, within: float) -> list[Message[bytes]]:
        """Wait until a topic holds exactly n messages, at most `within` seconds. Raises AssertionError that lists what arrived."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within
        while True:
            messages = await self.published(topic)
            late = loop.time() >= deadline
            if len(messages) == n and (n or late):
                return messages
            if len(messages) > n or late:
                raise AssertionError(_difference(topic, n, within, messages))
            await asyncio.sleep(POLL_SECONDS)

    async def _queues(self, topic: str) -> list[MessageQueue]:
        try:
            return await self._puller.refresh(topic)
        except RouteNotFound:
            return []

    async def _read(self, queue: MessageQueue) -> list[Message[bytes]]:
        messages: list[Message[bytes]] = []
        at, end = await self._puller.min_offset(queue), await self._puller.max_offset(queue)
        while at < end:
            result = await self._puller.pull(queue, at, max_count=PULL_COUNT)
            if result.status is PullStatus.FOUND:
                messages += result.messages()
            if result.next_offset <= at:
                break
            at = result.next_offset
        return messages


def _difference(topic: str, n: int, within: float, messages: list[Message[bytes]]) -> str:
    lines = [f"expected {n} messages in topic {topic!r} within {within:g} s, {len(messages)} arrived:"]
    lines += [f"  {_line(message)}" for message in messages]
    return "\n".join(lines)


def _line(message: Message[bytes]) -> str:
    body = message.body
    shown = f"{body[:SHOWN_BODY_BYTES]!r}" + ("..." if len(body) > SHOWN_BODY_BYTES else "")
    parts = [f"queue {message.queue.queue_id} offset {message.offset} {shown}"]
    if message.tag is not None:
        parts.append(f"tag={message.tag}")
    if message.keys:
        parts.append(f"keys={','.join(message.keys)}")
    if message.attempt > 1:
        parts.append(f"attempt={message.attempt}")
    return " ".join(parts)
