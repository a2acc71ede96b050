"""Reads one queue range from a broker as blocks of whole records. Runs on the event loop of `connect`.

Without a filter queue offsets are dense, so several pulls are in flight at offsets computed in advance; Apache's brokers return at
most 32 messages per response, whatever is asked for. With a filter each pull begins where the previous one ended. Does not import
pyspark.

Requirements: SRC-11..SRC-15, SRC-22.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import random
import time
from collections import deque
from dataclasses import dataclass
from typing import Final

from saturnmq.client.puller.puller import Puller, PullResult, PullStatus
from saturnmq.errors import BrokerNotExist
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import ResponseError, SaturnError, StoreError, response_error
from saturnmq.protocol.message import RECORD_FIXED_BYTES
from saturnmq.protocol.offsets import QueueOffset
from saturnmq.spark.options import SourceOptions
from saturnmq.spark.queue_state import QueueState, queue_states
from saturnmq.spark.ranges import QueueRange
from saturnmq.tasks import cancel

logger = logging.getLogger(__name__)

BLOCK_BYTES: Final = 8 * 1024 * 1024
SEGMENT_ANSWERS: Final = 8  # responses per asyncio task; enough that the task's own cost is small in comparison
SEGMENT_BYTES: Final = 4 * 1024 * 1024  # a task that holds this much ends, whatever the size of its messages (SCL-06)
FILTERED_COUNT: Final = 32_768
BULK_BYTES: Final = 1024 * 1024  # per response; honoured by SaturnMQ's brokers, Apache's return 32 messages
BACKOFF_S: Final = (0.1, 5.0)
_NO_OFFSET: Final = QueueOffset(0)
_PASSING: Final = frozenset(
    {int(ResponseCode.SYSTEM_BUSY), int(ResponseCode.SERVICE_NOT_AVAILABLE), int(ResponseCode.FLOW_CONTROL)}
)
_ABSENT: Final = frozenset({int(ResponseCode.TOPIC_NOT_EXIST), int(ResponseCode.SYSTEM_ERROR)})  # of topic, of queue


class DataLossError(StoreError):
    """Messages that a query should have read no longer exist (SRC-15)."""


@dataclass(frozen=True)
class DataLoss:
    """A hole: the broker no longer has queue offsets [begin, end)."""

    topic: str
    broker: str
    queue_id: int
    begin: int
    end: int
    reason: str

    def __str__(self) -> str:
        return (
            f"data loss: topic {self.topic}, broker {self.broker}, queue {self.queue_id}, offsets {self.begin}..{self.end}: "
            f"{self.reason}; set failOnDataLoss=false to go on behind it"
        )


def met_loss(options: SourceOptions, loss: DataLoss, work: str) -> None:
    """Raise DataLossError, or with failOnDataLoss=false log a warning and write one JSON file to dataLossLog.

    work: what the query did, such as the range of a task. A task or plan that runs again records the loss again, with the same id,
    which depends on the work and on where the hole begins; its end may be another one then.
    """
    # Raised before any file is written.
    if options.fail_on_data_loss:
        raise DataLossError(str(loss))
    logger.warning("%s", loss)
    if options.data_loss_log:
        # Loaded only where it is used.
        from saturnmq.spark.object_store import file_system

        system, folder = file_system(options.data_loss_log)
        system.create_dir(folder, recursive=True)
        loss_key = json.dumps([loss.topic, loss.broker, loss.queue_id, loss.begin, work])
        loss_id = hashlib.sha256(loss_key.encode()).hexdigest()[:16]
        # Unique without coordination: several tasks write here.
        name = f"loss-{time.time_ns()}-{random.getrandbits(32):08x}.json"
        with system.open_output_stream(f"{folder}/{name}") as out:
            out.write(json.dumps(loss.__dict__ | {"ts_ms": int(time.time() * 1000), "id": loss_id}).encode())


def where(queue: MessageQueue) -> str:
    """Format a queue for messages: topic/broker/queue."""
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


class RangeFetcher:
    """Fetches the blocks of one range, in order. Not shared between tasks; `close` cancels requests in flight."""

    def __init__(self, puller: Puller, piece: QueueRange, options: SourceOptions) -> None:
        self._puller = puller
        self._options = options
        self._queue = MessageQueue(piece.topic, piece.broker, piece.queue_id)
        self._piece = piece
        self._end = piece.end
        self._next = piece.begin
        self._filter = options.filter
        self._filtered = options.expression.strip() not in ("", "*")
        self._span = 0
        self._flying: deque[asyncio.Task[tuple[list[bytes], int, int]]] = deque()

    async def block(self) -> list[bytes] | None:
        """Return the records of some thousand messages, None at the end of the range.

        Raises DataLossError, StoreError, and the error of a response that must not be retried.
        """
        bodies: list[bytes] = []
        size = count = 0
        # Bytes or messages, whichever is reached first.
        while size < BLOCK_BYTES and count < self._options.batch_rows:
            before = self._next
            part = await self._filtered_part() if self._filtered else await self._part()
            if part is None:
                break
            # An empty part is progress too, with a filter.
            bodies += part
            part_bytes = sum(map(len, part))
            size += part_bytes
            if (
                self._filtered
            ):  # the filter may drop most records: count what arrived, as small blocks cost as much as large ones
                count += part_bytes // RECORD_FIXED_BYTES
            else:
                # Segments in flight are counted by their planned span.
                count += max(self._next - before, len(part)) if not self._flying else self._span
        return bodies or None

    async def close(self) -> None:
        """Cancel and await every pull in flight."""
        tasks, self._flying = list(self._flying), deque()
        await cancel(*tasks)

    async def _filtered_part(self) -> list[bytes] | None:
        if self._next >= self._end:
            return None
        result = await self._pull(self._next, FILTERED_COUNT)
        # A next offset below the position would read rows twice.
        self._next = max(result.next_offset, self._next)
        return [result.body] if result.body else []

    async def _part(self) -> list[bytes] | None:
        """Return the records of the next segment. The first response shows how many messages the broker returns at once."""
        if not self._span:
            if self._next >= self._end:
                return None
            # Apache's brokers return 32 messages by default, SaturnMQ's many more.
            result = await self._pull(self._next, min(self._options.pull_batch, self._end - self._next))
            self._span = max(1, result.next_offset - self._next) * SEGMENT_ANSWERS
            self._next = result.next_offset
            return [result.body] if result.body else []
        # Filled up before the oldest is awaited.
        while self._next < self._end and len(self._flying) < self._options.pull_depth:
            end = min(self._next + self._span, self._end)
            self._flying.append(asyncio.ensure_future(self._segment(self._next, end)))
            self._next = end
        if not self._flying:
            return None
        task = self._flying.popleft()
        try:
            bodies, reached, end = await task
        # Cancelled, or failed: `close` cancels the others.
        except BaseException:
            task.cancel()
            raise
        if reached < end:
            # The rest comes next: blocks are in order.
            self._flying.appendleft(asyncio.ensure_future(self._segment(reached, end)))
        return bodies

    async def _segment(self, begin: int, end: int) -> tuple[list[bytes], int, int]:
        """Return (response bodies, offset after them, end): all up to `end`, or as many whole responses as reach SEGMENT_BYTES."""
        bodies: list[bytes] = []
        size = 0
        while begin < end and size < SEGMENT_BYTES:
            result = await self._pull(begin, min(self._options.pull_batch, end - begin))
            if result.body:
                bodies.append(result.body)
                size += len(result.body)
            # As far as the broker went, which may be less than asked.
            begin = result.next_offset
        return bodies, begin, end

    async def _pull(self, offset: int, count: int) -> PullResult:
        """Return one response that makes progress: its next offset is beyond `offset`.

        Retries until readTimeoutMs (SRC-13, SRC-14). Messages are lost only if the master says so: a slave may be behind it.
        """
        began, pause = time.monotonic(), BACKOFF_S[0]
        while True:
            state: QueueState | None = None
            try:
                result = await self._puller.pull(
                    self._queue, offset, max_count=count, expression=self._filter, bulk_bytes=BULK_BYTES
                )
            except ResponseError as error:
                # Both codes have other causes too: the master decides.
                if error.code in _ABSENT:
                    state = await self._master_state(offset)
                is_deleted = state is not None and state.deleted
                if error.code not in _PASSING and error.code != ResponseCode.TOPIC_NOT_EXIST and not is_deleted:
                    location = f"{where(self._queue)}, group {self._puller.group}"
                    raise response_error(
                        error.code or 0, f"{location}: {error.message}", broker=error.broker, hint=error.hint
                    ) from error
                cause = str(error)
            except SaturnError as error:
                if not error.retryable:
                    raise
                # The route has no such broker: deleted, or away.
                if isinstance(error, BrokerNotExist):
                    state = await self._master_state(offset)
                cause = str(error)
            else:
                # A filter that drops everything moves on without messages.
                is_skip = self._filtered and result.status is not PullStatus.OFFSET_ILLEGAL
                if result.next_offset > offset and (result.status is PullStatus.FOUND or is_skip):
                    return result
                # Answered, but not with what was planned.
                cause = f"the broker has offsets {result.min_offset}..{result.max_offset} ({result.status.value})"
                state = await self._master_state(offset)
            if state is not None:
                if (skipped := self._loss(offset, state)) is not None:
                    # The rest of the loss counts as read.
                    return skipped
                if state.bounds is None:
                    cause = f"{cause}; {state.reason}"
            waited_ms = (time.monotonic() - began) * 1000
            if waited_ms + pause * 1000 > self._options.read_timeout_ms:
                # After the whole time, and only if the master says so.
                if state is not None and state.bounds is not None and state.bounds.high <= offset:
                    return self._lost(offset, self._end, cause)  # the planned messages no longer exist
                raise StoreError(
                    f"{where(self._queue)}: no progress at offset {offset} for {self._options.read_timeout_ms} ms: {cause}"
                )
            # Logged once per wait.
            if pause == BACKOFF_S[0]:
                logger.warning("waiting for a broker queue=%s offset=%d cause=%s", where(self._queue), offset, cause)
            # Many tasks wait for the same broker.
            await asyncio.sleep(pause * (0.5 + random.random() / 2))
            pause = min(pause * 2, BACKOFF_S[1])

    async def _master_state(self, offset: int) -> QueueState:
        """Return what the queue's master says about the offset."""
        try:
            states = await queue_states(self._puller._core, self._puller.group, {self._queue: offset})
        except SaturnError as error:
            return QueueState(reason=str(error))
        (state,) = states.values()
        return state

    def _loss(self, offset: int, state: QueueState) -> PullResult | None:
        """Return the result of `_lost` for messages that the master has deleted; None if there are none or it does not answer."""
        if state.deleted:
            return self._lost(offset, self._end, f"the queue was deleted: {state.reason}")
        # The master has the record at the offset: no loss.
        if state.bounds is None or state.record is not None or state.next_offset <= offset:
            return None
        low = state.bounds.low
        reason = f"the queue begins at {low}" if low > offset else "the broker skipped them"
        # A loss ends with the range of this task.
        return self._lost(offset, min(state.next_offset, self._end), reason)

    def _lost(self, begin: int, end: int, reason: str) -> PullResult:
        """Report messages as lost; the result goes on behind them."""
        met_loss(
            self._options,
            DataLoss(self._queue.topic, self._queue.broker_name, self._queue.queue_id, begin, end, reason),
            str(self._piece),
        )
        return PullResult(PullStatus.NO_MATCHED_MESSAGE, QueueOffset(end), _NO_OFFSET, _NO_OFFSET, queue=self._queue)
