"""Messages that are handled together: the lists of `Consumer.batches` and of listeners with `batch`.

Requirements: CC-03, PRC-12.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable
from datetime import timedelta
from typing import TypeVar

from saturnmq.client.message import Message
from saturnmq.errors import AlreadySettled

T = TypeVar("T")


class Batch(list[Message[T]]):
    """A list of messages that were received together, with `ack_index`, the index of the last good one.

    Each message can also be settled by itself; then the batch leaves it alone.

    Example:
        async for batch in consumer.batches(100):
            batch.ack_index = await store([message.value for message in batch])
            await batch.ack()
    """

    def __init__(self, messages: Iterable[Message[T]] = ()) -> None:
        super().__init__(messages)
        self._ack_index: int | None = None

    @property
    def ack_index(self) -> int:
        """The index of the last good message, as `ackIndex` in Java: those behind it are redelivered. By default all are good.

        -1 means that none is good. Greater values than the index of the last message mean all, as lower ones than -1 mean none.
        """
        last = len(self) - 1
        return last if self._ack_index is None else min(max(self._ack_index, -1), last)

    @ack_index.setter
    def ack_index(self, index: int) -> None:
        self._ack_index = operator.index(index)

    async def ack(self, after: timedelta | None = None) -> None:
        """Acknowledge the messages up to `ack_index`, and request redelivery of the rest as `Message.retry` does.

        after: the delay of the redelivery. Raises the first error of a send-back; the call can then be repeated.

        Example:
            batch.ack_index = 2  # the first three are stored
            await batch.ack()
        """
        acked_count = self.ack_index + 1
        for message in self[:acked_count]:
            # A message that was settled by itself keeps its verdict.
            with contextlib.suppress(AlreadySettled):
                await message.ack()
        await self._send_back(self[acked_count:], after, "")

    async def retry(self, after: timedelta | None = None, *, reason: str = "") -> None:
        """Request redelivery of all messages, as `Message.retry` does.

        Example:
            await batch.retry(after=timedelta(seconds=30), reason="the database is busy")
        """
        await self._send_back(self, after, reason)

    async def _send_back(self, messages: list[Message[T]], after: timedelta | None, reason: str) -> None:
        for message in messages:
            with contextlib.suppress(AlreadySettled):
                await message.retry(after, reason=reason)
