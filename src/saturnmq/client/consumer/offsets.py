"""Consume offsets of a group per queue: held in memory, stored at the broker or, for a broadcast consumer, in a local file.

Requirements: OF-01, OF-02, OF-03.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final, Protocol

from saturnmq.client.connection.core import Core
from saturnmq.client.connection.outages import Outages
from saturnmq.durable import replace_file
from saturnmq.errors import ClientError
from saturnmq.protocol.bodies import MessageQueue, ResetOffsetBody
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import BodyError, ResponseError, SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers.numbers import int64_or
from saturnmq.protocol.offsets import QueueOffset

logger = logging.getLogger(__name__)

PERSIST_TIMEOUT_MS: Final = 5_000


class OffsetStore(Protocol):
    """Offset store of a consumer. Queues carry namespaced topic names."""

    async def load(self) -> None: ...
    def cached(self, queue: MessageQueue) -> QueueOffset | None: ...
    def update(self, queue: MessageQueue, offset: QueueOffset, *, increase_only: bool = True) -> None: ...
    def forget(self, queue: MessageQueue) -> None: ...
    async def read(self, queue: MessageQueue) -> QueueOffset | None: ...
    async def persist(self, queue: MessageQueue, *, confirmed: bool = False) -> None: ...
    async def persist_all(self) -> None: ...
    def snapshot(self) -> dict[MessageQueue, QueueOffset]: ...


class _Cached:
    """The offsets in memory."""

    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, QueueOffset] = {}

    def cached(self, queue: MessageQueue) -> QueueOffset | None:
        """The offset in memory."""
        return self._offsets.get(queue)

    def update(self, queue: MessageQueue, offset: QueueOffset, *, increase_only: bool = True) -> None:
        """Set the offset in memory; unless `increase_only` is False, a lower offset is ignored."""
        if increase_only and offset <= self._offsets.get(queue, -1):
            return
        self._offsets[queue] = offset

    def snapshot(self) -> dict[MessageQueue, QueueOffset]:
        """A copy of what is in memory."""
        return dict(self._offsets)


class ClusterOffsets(_Cached):
    """Offsets of a clustering group, stored at the brokers."""

    def __init__(self, core: Core, group: str) -> None:
        super().__init__()
        self._core = core
        self._group = group
        self._persisted: dict[MessageQueue, QueueOffset] = {}
        self._begun: set[tuple[str, str]] = set()  # topic and broker of which a first offset was stored
        self._beginning = asyncio.Lock()

    async def load(self) -> None:
        """Do nothing: the brokers hold the offsets."""

    def forget(self, queue: MessageQueue) -> None:
        """Remove a queue from memory."""
        self._offsets.pop(queue, None)
        self._persisted.pop(queue, None)

    async def read(self, queue: MessageQueue) -> QueueOffset | None:
        """Query the stored offset; None if the broker has none. Raises if the query fails (OF-03: Java returns -1 and -2)."""
        core = self._core
        address = await core.master_address(queue.topic, queue.broker_name)
        command = Command(RequestCode.QUERY_CONSUMER_OFFSET, ext=self._fields(queue))
        answer = await core.remote.call(address, command, core.settings.api_timeout_ms)
        # A group that is new to the queue, not a failure.
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise core.answer_error(answer, address, topic=queue.topic, group=self._group)
        offset = int64_or(answer.ext, "offset", -1)
        return QueueOffset(offset) if offset >= 0 else None

    async def persist(self, queue: MessageQueue, *, confirmed: bool = False) -> None:
        """Store the offset of one queue if it has changed; one-way unless `confirmed`.

        The first offset of a topic at a broker is confirmed before the next is sent: Apache's broker (4.9.7) makes the table of
        a group and topic when it stores the first, and of two that it stores at the same time one is lost.
        Raises if it cannot be sent or, when confirmed, is rejected.
        """
        # Before the lock: nearly all calls find nothing to store.
        if not self._changed(queue):
            return
        topic_at_broker = (queue.topic, queue.broker_name)
        if topic_at_broker not in self._begun:
            async with self._beginning:
                if topic_at_broker not in self._begun:
                    try:
                        await self._store(queue, confirmed=True)
                    finally:
                        # Also after a failure: a silent broker delays one store, not each.
                        self._begun.add(topic_at_broker)
        await self._store(queue, confirmed=confirmed)

    def _changed(self, queue: MessageQueue) -> bool:
        offset = self._offsets.get(queue)
        return offset is not None and self._persisted.get(queue) != offset

    async def _store(self, queue: MessageQueue, *, confirmed: bool) -> None:
        if not self._changed(queue):
            return  # stored meanwhile, or no longer assigned
        offset = self._offsets[queue]
        # A slave while there is no master.
        address, _slave = await self._core.read_address(queue.topic, queue.broker_name)
        ext = self._fields(queue)
        ext["commitOffset"] = str(offset)
        command = Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext=ext)
        if confirmed:
            await self._core.call_broker(address, command, PERSIST_TIMEOUT_MS, topic=queue.topic)
        else:
            await self._core.remote.call_oneway(address, command, PERSIST_TIMEOUT_MS)
        # Forgotten meanwhile: a later assignment must not find this one's offset as stored.
        if queue in self._offsets:
            self._persisted[queue] = offset

    async def persist_all(self) -> None:
        """Store all changed offsets; a failure is logged and retried at the next call."""
        for queue in list(self._offsets):
            try:
                await self.persist(queue)
            except SaturnError as error:
                note_failure(self._core.outages, "offset store", self._group, queue, error)
            else:
                self._core.outages.succeeded("offset store", (self._group, queue))

    def _fields(self, queue: MessageQueue) -> dict[str, str]:
        return {
            "consumerGroup": self._group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "bname": queue.broker_name,
        }


def note_failure(outages: Outages, work: str, group: str, queue: MessageQueue, error: SaturnError) -> None:
    """Note that work on a queue failed: an outage of its broker, or, if the broker has answered, of its topic there."""
    subject = f"broker={queue.broker_name}"
    if isinstance(error, ResponseError):
        subject = f"{subject} topic={queue.topic} code={error.code}"
    outages.failed(work, (group, queue), subject, error, detail=f"group={group} queue_id={queue.queue_id}")


class LocalOffsets(_Cached):
    """Offsets of one broadcast consumer in its own file, in Apache's format and path (OF-02).

    `persist_all` writes every queue ever seen, so queues that are not assigned at the moment keep their offsets.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._written: dict[MessageQueue, QueueOffset] = {}
        self._writing = asyncio.Lock()

    async def load(self) -> None:
        """Read the file, or its `.bak` if the file is missing or damaged. Raises ClientError if neither can be read."""
        # A file system that hangs must not stop the event loop.
        self._offsets = await asyncio.to_thread(_read_offsets, self.path)
        self._written = dict(self._offsets)

    def forget(self, queue: MessageQueue) -> None:
        """Do nothing: the queue may be assigned again."""

    async def read(self, queue: MessageQueue) -> QueueOffset | None:
        """The offset loaded from the file or set since."""
        return self._offsets.get(queue)

    async def persist(self, queue: MessageQueue, *, confirmed: bool = False) -> None:
        """Do nothing: `persist_all` writes the whole file."""

    async def persist_all(self) -> None:
        """Write the file if anything has changed; a failure is logged and retried at the next call."""
        async with self._writing:
            offsets = dict(self._offsets)
            # Idle consumers do not write their file every few seconds.
            if offsets == self._written:
                return
            try:
                data = ResetOffsetBody(offsets).encode()
                # The file before stays as .bak, as in Apache's client.
                await asyncio.to_thread(replace_file, self.path, data, mode=0o666, has_backup=True)
            except OSError as error:
                logger.warning("offsets not written path=%s error=%s", self.path, error)
                return
            self._written = offsets


def _read_offsets(path: Path) -> dict[MessageQueue, QueueOffset]:
    problems = []
    for candidate in (path, path.with_name(path.name + ".bak")):
        try:
            data = candidate.read_bytes()
            return ResetOffsetBody.decode(data).offset_table
        # Neither file: a consumer that has not stored yet.
        except FileNotFoundError:
            continue
        except (OSError, BodyError) as error:
            problems.append(f"{candidate}: {error}")
    # A damaged file is not taken for an empty one: the consumer would read everything again.
    if problems:
        raise ClientError(f"the offsets of this consumer cannot be read: {'; '.join(problems)}",
                          hint="Repair or remove the file; without it the consumer begins where `start` says.")  # fmt: skip
    return {}
