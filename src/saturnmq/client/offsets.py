"""How far a group is, queue by queue: kept here, stored at the broker. Source: spec 03 section 8, OF-01, OF-03."""

from __future__ import annotations

import logging

from saturnmq.client.core import Core
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.command import Command
from saturnmq.protocol.errors import SaturnError

logger = logging.getLogger(__name__)

PERSIST_TIMEOUT_MS = 5_000


class ClusterOffsets:
    """Offsets of one clustering group. Queues carry the topic's name on the wire."""

    def __init__(self, core: Core, group: str) -> None:
        self._core = core
        self._group = group
        self._offsets: dict[MessageQueue, int] = {}
        self._persisted: dict[MessageQueue, int] = {}

    def get(self, queue: MessageQueue) -> int | None:
        """The offset in memory."""
        return self._offsets.get(queue)

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool = True) -> None:
        """Set the offset in memory; by default it never goes back."""
        if increase_only and offset <= self._offsets.get(queue, -1):
            return
        self._offsets[queue] = offset

    def forget(self, queue: MessageQueue) -> None:
        """Drop a queue from memory."""
        self._offsets.pop(queue, None)
        self._persisted.pop(queue, None)

    async def read(self, queue: MessageQueue) -> int | None:
        """The stored offset, None when the broker has none. Raises when the broker does not say (OF-03: -1 and -2)."""
        core = self._core
        address = await core.master_address(queue.topic, queue.broker_name)
        command = Command(RequestCode.QUERY_CONSUMER_OFFSET, ext=self._fields(queue))
        answer = await core.remote.call(address, command, core.settings.api_timeout_ms)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise core.answer_error(answer, address, topic=queue.topic, group=self._group)
        offset = int(answer.ext.get("offset") or -1)
        return offset if offset >= 0 else None

    async def persist(self, queue: MessageQueue) -> None:
        """Store the offset of one queue, oneway, if it changed. Raises when it cannot be written."""
        offset = self._offsets.get(queue)
        if offset is None or self._persisted.get(queue) == offset:
            return
        address, _slave = await self._core.read_address(queue.topic, queue.broker_name)
        ext = self._fields(queue)
        ext["commitOffset"] = str(offset)
        command = Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext=ext)
        await self._core.remote.call_oneway(address, command, PERSIST_TIMEOUT_MS)
        if queue in self._offsets:
            self._persisted[queue] = offset

    async def persist_all(self) -> None:
        """Store all that changed; a queue that fails is tried again the next time."""
        for queue in list(self._offsets):
            try:
                await self.persist(queue)
            except SaturnError as error:
                logger.warning("offset not stored group=%s queue=%s error=%s", self._group, queue, error)

    def snapshot(self) -> dict[MessageQueue, int]:
        """A copy of what is in memory."""
        return dict(self._offsets)

    def _fields(self, queue: MessageQueue) -> dict[str, str]:
        return {
            "consumerGroup": self._group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "bname": queue.broker_name,
        }
