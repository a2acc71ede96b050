"""Message trace: producers and consumers publish records about their messages to a trace topic.

The hooks of a producer or consumer only put records into a bounded queue and never block. A background task batches them for at
most 0.5 s and sends them as ordinary messages over separate connections; failures there are counted and logged, nothing more.

Ownership: a client has one ClientTracing, which owns the separate connections (a Core of its own) and one GroupTracer per traced
producer or consumer.

Differences from Apache RocketMQ: the queue holds 50,000 records instead of 1,024 and up to 2,048 batches behind them; concurrent
trace sends are bounded by a count, not by a thread pool (TR-07); the client id of the trace connections ends with a random part,
because client ids must be unique (API-06).

Requirements: TR-02..TR-10 (spec 03, section 14).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from saturnmq.client import namespaces
from saturnmq.client.codecs import BytesCodec
from saturnmq.client.connection.core import Core, now_ms
from saturnmq.client.connection.url import ClientSettings
from saturnmq.client.hooks import FAILED_PREFIX, ConsumeContext, ConsumeHook, EndContext, SendContext, SendHook
from saturnmq.client.message import Ack
from saturnmq.client.producer.producer import Producer
from saturnmq.client.producer.settings import ProducerSettings
from saturnmq.client.receipt import SendStatus, TransactionState
from saturnmq.client.trace.records import (
    CLOUD_TOPIC_PREFIX,
    DeliveryOutcome,
    EndTransaction,
    MessageType,
    Pub,
    SubAfter,
    SubBefore,
    TraceRecord,
    encode_cloud,
    index_keys,
)
from saturnmq.client.tracing import TraceStats
from saturnmq.protocol.codes import PropertyKey
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.message import decode_properties

logger = logging.getLogger(__name__)

QUEUE_MAX: Final = 50_000  # records: those of SEND_TIMEOUT_S at 10,000 messages/s, some 40 MB
TEXT_BYTES_MAX: Final = 128_000 - 10_000  # of one trace message; a longer record is sent alone
KEYS_BYTES_MAX: Final = 30_000  # of one trace message: all its properties must fit into 32767
AGE_S: Final = 0.5  # age of the first record at which a batch is sent
SENDS_MAX: Final = 8  # concurrent sends of one producer or consumer
SEND_TIMEOUT_S: Final = 5.0
FLUSH_S: Final = 0.5  # time limit for flushing at shutdown
DROP_LOG_EVERY: Final = 1000
FAILURE_LOG_EVERY: Final = 100  # failed sends, of which there may be two a second
GROUP_PREFIX: Final = "_INNER_TRACE_PRODUCER"
INSTANCE_PREFIX: Final = "PID_CLIENT_INNER_TRACE_PRODUCER"
DEFAULT_REGION: Final = "DefaultRegion"
_DELAYED: Final = frozenset(
    {
        PropertyKey.DELAY,
        "__STARTDELIVERTIME",
        PropertyKey.TIMER_DELIVER_MS,
        PropertyKey.TIMER_DELAY_MS,
        PropertyKey.TIMER_DELAY_SEC,
    }
)
_STATES: Final = {
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
    TransactionState.UNKNOWN: "UNKNOW",
}
_numbers = itertools.count(1)  # numbers of the trace producers of this process


class TraceBatch:
    """Records of one trace message. topic: the destination, set by the first record."""

    def __init__(self, topic: str = "") -> None:
        self.topic = topic
        self.count = 0
        self._text: list[str] = []
        self._text_bytes = 0
        self._keys: dict[str, None] = {}
        self._keys_bytes = 0

    def add(self, record: TraceRecord, *, cloud: bool = False) -> bool:
        """Add the record and return True if it fits; the first one always does."""
        text = encode_cloud(record) if cloud else record.encode()
        text_bytes = len(text.encode())
        keys = [key for key in index_keys(record) if key not in self._keys]
        keys_bytes = sum(len(key.encode()) + 1 for key in keys)
        if self.count and (
            self._text_bytes + text_bytes > TEXT_BYTES_MAX or self._keys_bytes + keys_bytes > KEYS_BYTES_MAX
        ):
            return False
        self.count += 1
        self._text.append(text)
        self._text_bytes += text_bytes
        for key in sorted(keys, key=len) if keys_bytes > KEYS_BYTES_MAX else keys:
            self._keys_bytes += len(key.encode()) + 1
            if self._keys_bytes > KEYS_BYTES_MAX:  # a record of a very large batch: the remaining ids are not indexed
                break
            self._keys[key] = None
        return True

    @property
    def body(self) -> bytes:
        return "".join(self._text).encode()

    @property
    def keys(self) -> list[str]:
        return list(self._keys)


class GroupTracer:
    """The trace of one producer or consumer: its bounded queue, and the tasks that drain it."""

    def __init__(
        self,
        owner: ClientTracing,
        core: Core,
        group: str,
        role: str,
        topic: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.topic = topic
        self.core = core
        self.stats = TraceStats()
        self.send_hook: Final = TraceSendHook(self)
        self.consume_hook: Final = TraceConsumeHook(self)
        self.group = f"{GROUP_PREFIX}-{namespaces.strip(core.settings.namespace, group)}-{role}-{next(_numbers)}"
        self._owner = owner
        self._clock = clock
        self._cloud = core.settings.access_channel == "cloud"
        self._records: deque[tuple[float, TraceRecord]] = deque()
        self._more = asyncio.Event()
        self._closed = False
        self._slots = asyncio.Semaphore(SENDS_MAX)
        self._sends: set[asyncio.Task[bool]] = set()
        self._sender: Producer[bytes] | None = None
        self._lost_sends = 0
        self._worker = core.spawn(f"trace {self.group}", self._work(), vital=False)

    def offer(self, record: TraceRecord) -> None:
        """Queue a record, or count it as dropped if the queue is full. Never blocks, never raises."""
        stats = self.stats
        stats.made += 1
        if self._closed or len(self._records) >= QUEUE_MAX:
            stats.dropped += 1
            if stats.dropped % DROP_LOG_EVERY == 1:
                logger.warning(
                    "trace record dropped, traces are incomplete group=%s times=%d", self.group, stats.dropped
                )
            return
        self._records.append((self._clock(), record))
        self._more.set()

    async def close(self) -> None:
        """Flush the queue within the owner's time limit; the rest counts as dropped or failed. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._more.set()
        begin = time.monotonic()
        try:
            async with asyncio.timeout(self._owner.flush_s):
                await asyncio.wait({self._worker})
                if self._sends:
                    await asyncio.wait(self._sends)
                if self._sender is not None:
                    await self._sender.stop()
        except TimeoutError:
            logger.warning("trace not flushed in time group=%s records=%d", self.group, len(self._records))
        finally:
            for task in (self._worker, *self._sends):
                task.cancel()
            self.stats.dropped += len(self._records)
            self._records.clear()
            self._log_losses()
            self._owner.flushed(time.monotonic() - begin)
            self._owner.forget(self)

    def _log_losses(self) -> None:
        """Log how many records were lost since the start, if any."""
        created, sent = self.stats.made, self.stats.sent
        if sent < created:
            logger.warning(
                "traces incomplete group=%s made=%d sent=%d lost=%d", self.group, created, sent, created - sent
            )

    async def _work(self) -> None:
        while not (self._closed and not self._records):
            batch = await self._gather()
            if not batch.count:
                continue
            try:
                await self._slots.acquire()
            except asyncio.CancelledError:
                self.stats.failed += batch.count
                raise
            task = self.core.spawn(f"trace send {self.group}", self._send(batch), vital=False)
            self._sends.add(task)
            task.add_done_callback(partial(self._sent, batch.count))

    async def _gather(self) -> TraceBatch:
        """The next batch: complete when it is full, when its first record is AGE_S old, or when the tracer closes."""
        batch, first = TraceBatch(), 0.0
        try:
            while True:
                if self._records:
                    queued_at, record = self._records[0]
                    topic = self._topic_of(record)
                    batch.topic = batch.topic or topic
                    try:
                        if topic != batch.topic or not batch.add(record, cloud=self._cloud):
                            return batch
                    except Exception as error:
                        logger.exception("trace record not encoded group=%s error=%r", self.group, error)
                        self.stats.failed += 1
                        self._records.popleft()
                        continue
                    self._records.popleft()
                    first = first or queued_at
                    continue
                left_s = first + AGE_S - self._clock() if batch.count else None
                if self._closed or (left_s is not None and left_s <= 0):
                    return batch
                self._more.clear()
                try:
                    async with asyncio.timeout(left_s):
                        await self._more.wait()
                except TimeoutError:
                    return batch
        except asyncio.CancelledError:
            self.stats.failed += batch.count
            raise

    def _topic_of(self, record: TraceRecord) -> str:
        """The destination topic; on the cloud access channel there is one per region (TR-10)."""
        if not self._cloud:
            return self.topic
        return f"{CLOUD_TOPIC_PREFIX}{record.region or 'null'}"

    def is_own(self, topic: str) -> bool:
        """Whether the topic is a trace topic; messages of trace topics are not traced."""
        return topic == self.topic or (self._cloud and topic.startswith(CLOUD_TOPIC_PREFIX))

    async def _send(self, batch: TraceBatch) -> bool:
        try:
            if self._sender is None:
                self._sender = await self._owner.sender(self.group)
            await self._sender.send(batch.topic, batch.body, keys=batch.keys, timeout=SEND_TIMEOUT_S)
        except SaturnError as error:
            self._lost_sends += 1
            if self._lost_sends % FAILURE_LOG_EVERY == 1:
                logger.warning("trace not sent group=%s times=%d error=%s", self.group, self._lost_sends, error)
            return False
        return True

    def _sent(self, count: int, task: asyncio.Task[bool]) -> None:
        self._sends.discard(task)
        self._slots.release()
        if not task.cancelled() and task.exception() is None and task.result():
            self.stats.sent += count
        else:
            self.stats.failed += count


class ClientTracing:
    """The tracers of one client, and the connections they share, which are created when the first record is sent."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._tracers: set[GroupTracer] = set()
        self._starting = asyncio.Lock()
        self._trace_core: Core | None = None
        self._senders: dict[str, Producer[bytes]] = {}
        self._left_s: float | None = None

    def open(self, group: str, role: str, topic: str) -> GroupTracer:
        """Create the tracer of a group. role: PRODUCE or CONSUME. Does no I/O."""
        tracer = GroupTracer(self, self._core, group, role, topic)
        self._tracers.add(tracer)
        return tracer

    def forget(self, tracer: GroupTracer) -> None:
        """Remove a closed tracer."""
        self._tracers.discard(tracer)
        self._senders.pop(tracer.group, None)

    async def sender(self, group: str) -> Producer[bytes]:
        """The started producer of this group, created by the first call. Raises what `Core.start` raises."""
        async with self._starting:
            if self._trace_core is None:
                trace_core = Core(trace_settings(self._core))
                await trace_core.start()
                self._trace_core = trace_core
            producer = self._senders.get(group)
            if producer is None:
                settings = ProducerSettings(max_in_flight=SENDS_MAX, trace=False)
                producer = Producer(self._trace_core, group, BytesCodec(), settings)
                await producer.start()
                self._senders[group] = producer
            return producer

    def begin_shutdown(self) -> None:
        """Begin shutdown: from now on all tracers together have FLUSH_S to flush."""
        if self._left_s is None:
            self._left_s = FLUSH_S

    @property
    def flush_s(self) -> float:
        """Time limit for flushing one tracer, seconds."""
        return FLUSH_S if self._left_s is None else self._left_s

    def flushed(self, seconds: float) -> None:
        """Subtract the duration of a flush from the shared limit, if the client is stopping."""
        if self._left_s is not None:
            self._left_s = max(self._left_s - seconds, 0.0)

    async def close(self) -> None:
        """Flush all tracers and close the connections."""
        self.begin_shutdown()
        await asyncio.gather(*(tracer.close() for tracer in list(self._tracers)))
        async with self._starting:
            if self._trace_core is not None:
                await self._trace_core.stop()


def trace_settings(core: Core) -> ClientSettings:
    """Settings of the trace connections: no VIP channel, no namespace, a separate instance name (TR-08)."""
    settings = core.settings
    addresses = ";".join(settings.name_servers or core.name_servers.addresses)
    return replace(
        settings,
        instance=f"{INSTANCE_PREFIX}_{addresses}#{secrets.randbits(64)}",
        namespace=None,
        vip_channel=False,
        trace=False,
    )


class TraceSendHook(SendHook):
    """Creates records of acknowledged sends (TR-03) and of transaction ends (TR-06)."""

    def __init__(self, tracer: GroupTracer) -> None:
        self._tracer = tracer

    def after(self, context: SendContext) -> None:
        receipt, tracer = context.receipt, self._tracer
        if receipt is None or not receipt.trace_on or tracer.is_own(context.topic):
            return
        properties = decode_properties(context.properties)
        cost_ms = context.elapsed_ms
        tracer.offer(
            Pub(
                timestamp_ms=now_ms() - cost_ms,
                region=receipt.region,
                group=namespaces.strip(tracer.core.settings.namespace, context.group),
                topic=context.topic,
                message_id=",".join(context.message_ids),
                tags=properties.get(PropertyKey.TAGS),
                keys=properties.get(PropertyKey.KEYS),
                store_host=context.address,
                body_bytes=context.body_bytes,
                cost_ms=cost_ms,
                message_type=message_type(properties),
                offset_message_id=",".join(batch_receipt.offset_message_id for batch_receipt in context.receipts),
                success=receipt.status is SendStatus.SEND_OK,
            )
        )

    def ended(self, context: EndContext) -> None:
        tracer, properties = self._tracer, context.properties
        off = context.receipt is not None and not context.receipt.trace_on
        if off or tracer.is_own(context.topic):
            return
        tracer.offer(
            EndTransaction(
                timestamp_ms=now_ms(),
                region=properties.get(PropertyKey.MSG_REGION) or DEFAULT_REGION,
                group=namespaces.strip(tracer.core.settings.namespace, context.group),
                topic=context.topic,
                message_id=context.message_id,
                tags=properties.get(PropertyKey.TAGS),
                keys=properties.get(PropertyKey.KEYS),
                store_host=context.address,
                message_type=MessageType.COMMIT,
                transaction_id=properties.get(PropertyKey.UNIQ_KEY),
                state=_STATES[context.state],
                from_check=context.asked,
            )
        )


def message_type(properties: Mapping[str, str]) -> MessageType:
    """The message type, derived from the properties of a sent message."""
    if properties.get(PropertyKey.TRAN_MSG) == "true":
        return MessageType.HALF
    return MessageType.NORMAL if _DELAYED.isdisjoint(properties) else MessageType.DELAY


class TraceConsumeHook(ConsumeHook):
    """Creates records of deliveries, when handed out and when settled (TR-05). Skips messages with TRACE_ON=false."""

    def __init__(self, tracer: GroupTracer) -> None:
        self._tracer = tracer

    def before(self, context: ConsumeContext) -> None:
        message, tracer = context.message, self._tracer
        properties = message.record.properties
        if properties.get(PropertyKey.TRACE_ON) == "false" or tracer.is_own(message.topic):
            return
        request_id = context.notes[self] = tracer.core.ids.next(time.time())
        tracer.offer(
            SubBefore(
                timestamp_ms=now_ms(),
                region=properties.get(PropertyKey.MSG_REGION),
                group=namespaces.strip(tracer.core.settings.namespace, context.group),
                request_id=request_id,
                message_id=message.message_id,
                retry_times=message.record.reconsume_times,
                keys=properties.get(PropertyKey.KEYS),
            )
        )

    def after(self, context: ConsumeContext) -> None:
        request_id, tracer = context.notes.get(self), self._tracer
        if request_id is None:
            return
        tracer.offer(
            SubAfter(
                request_id=request_id,
                message_id=context.message.message_id,
                cost_ms=context.elapsed_ms,
                success=context.verdict in (Ack.SUCCESS, Ack.COMMIT),
                keys=context.message.record.properties.get(PropertyKey.KEYS),
                outcome=outcome_of(context),
                timestamp_ms=now_ms(),
                group=namespaces.strip(tracer.core.settings.namespace, context.group),
                region=context.message.record.properties.get(PropertyKey.MSG_REGION),
            )
        )


def outcome_of(context: ConsumeContext) -> DeliveryOutcome:
    """The contextCode of a finished delivery."""
    if context.timed_out:
        return DeliveryOutcome.TIME_OUT
    if context.verdict in (Ack.SUCCESS, Ack.COMMIT):
        return DeliveryOutcome.SUCCESS
    return DeliveryOutcome.EXCEPTION if context.reason.startswith(FAILED_PREFIX) else DeliveryOutcome.FAILED
