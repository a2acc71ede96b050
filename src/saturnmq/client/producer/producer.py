"""The producer: messages out, receipts back.

Source: spec 01 section 3, spec 08 API-09..12, API-22, API-25, API-28, API-29.

Where spec 08 is not the original: one total timeout is shared out over the attempts, so that a silent broker leaves time
for another (API-28, not PR-15); SYSTEM_BUSY and FLOW_CONTROL are retried (API-29, not PR-16); brokers that failed are
avoided across messages, at most 30 s (API-29, not PR-30's default); `send` waits when too much is in flight (API-22, not
PR-19's error).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from saturnmq.client import namespaces
from saturnmq.client.checks import (
    check_body,
    check_properties,
    check_property_bytes,
    check_text,
    check_topic,
    join_keys,
)
from saturnmq.client.codecs import Codec
from saturnmq.client.connection.core import Core, State, check_state, now_ms
from saturnmq.client.connection.deadline import Deadline
from saturnmq.client.errors import (
    ClientError,
    MessageRefused,
    PartialSend,
    ProducerStopped,
)
from saturnmq.client.hooks import SendHook
from saturnmq.client.message import Message, Outgoing, Receipt
from saturnmq.client.producer.attempts import RETRY_CODES, Attempts, Selector
from saturnmq.client.producer.compress import ZLIB_FLAGS, compress
from saturnmq.client.producer.delays import Delay, delay_of
from saturnmq.client.producer.requests import make_known, reply_to, request_properties, wait_for
from saturnmq.client.producer.send_request import (
    BatchMessage,
    Prepared,
    encode_property_text,
    move_retry_counts,
    prepare_batch,
    split_batches,
    transaction_flag,
)
from saturnmq.client.producer.transactions import Check, Checker, Transaction
from saturnmq.client.trace.records import PRODUCE, TraceStats, trace_topic
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import ConfigError, SaturnError
from saturnmq.protocol.message import BatchItem, encode_properties

if TYPE_CHECKING:
    from saturnmq.client.trace.trace import Tracer

logger = logging.getLogger(__name__)

T = TypeVar("T")
TAG_SEPARATOR: Final = "||"
WARNED_TAGS_MAX: Final = 1000


class Producer(Attempts, Generic[T]):
    """Sends values of type T. Made by `Client.producer`; `async with` it, or start() and stop()."""

    def __init__(
        self,
        core: Core,
        group: str,
        codec: Codec[T],
        *,
        max_in_flight: int,
        hooks: Sequence[SendHook] = (),
        retry_codes: Iterable[int] = RETRY_CODES,
        check: Check | None = None,
        trace: bool | str | None = False,
    ) -> None:
        super().__init__(core, group, max_in_flight=max_in_flight, hooks=hooks, retry_codes=retry_codes)
        self._codec = codec
        self._trace_topic = trace_topic(trace, core.settings.trace)
        self._tracer: Tracer | None = None
        self._checker = Checker(check, codec) if check is not None else None
        self._topics: dict[str, str] = {}  # names that were checked -> names on the wire
        self._warned_tags: set[str] = set()
        self._lock = asyncio.Lock()
        self.state = State.NEW

    # life

    async def __aenter__(self) -> Producer[T]:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Register the group with the client. Idempotent. Raises GroupInUse, Closed."""
        async with self._lock:
            if self.state is State.RUNNING:
                return
            if self.state is State.STOPPED:
                check_state("producer", self.state)
            self._core.check_running("client")
            self._core.add_producer(self.group)
            if self._trace_topic is not None and self._core.tracing is not None:
                self._tracer = self._core.tracing.open(self.group, PRODUCE, self._trace_topic)
                self._hooks += (self._tracer.send_hook,)
            if self._checker is not None:
                self._checker.hooks = self._hooks
                self._core.checks.add(self.group, self._checker)
            self.state = State.RUNNING

    async def stop(self) -> None:
        """Tell the brokers that the group left, and what is still to be traced, for half a second at most. Idempotent."""
        async with self._lock:
            running = self.state is State.RUNNING
            self.state = State.STOPPED
            self._core.checks.remove(self.group)
            if running and self._core.state is State.RUNNING:
                await self._core.remove_producer(self.group)
            if self._tracer is not None:
                await self._tracer.close()

    @property
    def trace_stats(self) -> TraceStats:
        """How many records of its message trace were made, sent and lost; all 0 where nothing is traced."""
        return TraceStats() if self._tracer is None else replace(self._tracer.stats)

    def _check(self) -> None:
        if self.state is not State.RUNNING:
            check_state("producer", self.state)
        try:
            self._core.check_running("producer")
        except ClientError as error:
            if error.__cause__ is not None:
                raise ProducerStopped(str(error)) from error.__cause__
            raise

    # sending

    async def send(
        self,
        topic: str,
        value: T,
        *,
        tag: str | None = None,
        keys: Sequence[str] | str = (),
        properties: Mapping[str, str] | None = None,
        shard_by: str | int | None = None,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        selector_arg: Any = None,
        flag: int = 0,
        wait_stored: bool = True,
        delay: timedelta | float | None = None,
        deliver_at: datetime | None = None,
        delay_level: int = 0,
        timeout: float | None = None,
    ) -> Receipt:
        """Send one message and wait until a broker stored it.

        shard_by, queue and selector fix the queue: such a message is tried once, on that queue (PR-21, API-12).
        delay (seconds or timedelta), deliver_at (aware datetime) or delay_level (1 and up): delivered later. A delay that is
        no level and any deliver_at need a broker that supports them, as SaturnMQ's do; where none of the topic's does,
        Unsupported names the levels (API-13).
        timeout: seconds for everything, default the client's. Raises MessageRefused and EncodeError before any I/O,
        RouteNotFound, NoNameServer, the error of a final answer, or SendFailed after the retries.
        When it is cancelled or times out the outcome is unknown; every attempt carried the same message id (API-25).
        """
        self._check()
        later = None
        if delay is not None or deliver_at is not None or delay_level:
            later = delay_of(delay, deliver_at, delay_level, now_ms())
        prepared = self._prepare(topic, value, tag, keys, properties, flag, wait_stored, later)
        return await self._send_one(prepared, self._deadline(timeout), shard_by, queue, selector, selector_arg)

    async def send_oneway(
        self,
        topic: str,
        value: T,
        *,
        tag: str | None = None,
        keys: Sequence[str] | str = (),
        properties: Mapping[str, str] | None = None,
        shard_by: str | int | None = None,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        selector_arg: Any = None,
        flag: int = 0,
        wait_stored: bool = True,
        delay: timedelta | float | None = None,
        deliver_at: datetime | None = None,
        delay_level: int = 0,
        timeout: float | None = None,
    ) -> str:
        """Write one message and do not wait for an answer: there is none, and no retry (PR-20).

        Returns the message id. Raises when the message cannot be written.
        """
        self._check()
        later = delay_of(delay, deliver_at, delay_level, now_ms())
        prepared = self._prepare(topic, value, tag, keys, properties, flag, wait_stored, later)
        deadline = self._deadline(timeout)
        await self._route(prepared.topic, deadline)
        chosen = await self._fixed(prepared.topic, shard_by, queue, selector, selector_arg)
        chosen = chosen or self._pick(await self._route_for(prepared, deadline), None)
        await self._attempt_oneway(prepared, chosen, deadline)
        return prepared.ids[0]

    async def send_many(
        self,
        topic: str,
        values: Iterable[T | Outgoing[T]],
        *,
        tag: str | None = None,
        keys: Sequence[str] | str = (),
        properties: Mapping[str, str] | None = None,
        shard_by: str | int | None = None,
        queue: MessageQueue | None = None,
        wait_stored: bool = True,
        timeout: float | None = None,
    ) -> list[Receipt]:
        """Send many messages in few requests; a receipt each, in order (API-11, BAT rows).

        An `Outgoing` may name a topic, tag, keys and properties of its own. Requests are split by topic and size.
        timeout
        counts for each request. Raises MessageRefused before any I/O, PartialSend when only some are stored, and what
        `send` raises when none is.
        """
        self._check()
        defaults = (tag, keys, properties, wait_stored)
        messages = [self._batch_message(topic, value, defaults) for value in values]
        if not messages:
            raise MessageRefused("send_many got no message; a batch must hold at least one")
        limit = self._core.settings.body_bytes_max
        batches = split_batches(messages, limit)
        prepared = [prepare_batch([messages[index] for index in batch], limit) for batch in batches]
        done: dict[int, Receipt] = {}
        failed: list[tuple[int, SaturnError]] = []
        for batch, content in zip(batches, prepared, strict=True):
            try:
                outcome = await self._send_batch(content, shard_by, queue, timeout)
            except SaturnError as error:
                if len(batches) == 1:
                    raise
                failed += ((index, error) for index in batch)
            else:
                done.update(zip(batch, outcome, strict=True))
        if failed:
            if not done:
                raise failed[0][1]
            raise PartialSend(sorted(done.items()), sorted(failed, key=lambda pair: pair[0]))
        return [done[index] for index in range(len(messages))]

    def transaction(
        self,
        topic: str,
        value: T,
        *,
        tag: str | None = None,
        keys: Sequence[str] | str = (),
        properties: Mapping[str, str] | None = None,
        shard_by: str | int | None = None,
        queue: MessageQueue | None = None,
        flag: int = 0,
        timeout: float | None = None,
    ) -> Transaction[T]:
        """A message whose delivery the block decides: `async with out.transaction(topic, value) as half:` (API-14).

        A normal end commits, an exception rolls back; cancelled or dead it is for the producer's `check` to say. The block
        begins when the message is stored. Raises ConfigError without a `check`, MessageRefused and EncodeError at once.
        """
        self._check()
        checker = self._checker
        if checker is None:
            raise ConfigError(f"producer {self.group} has no check: client.producer(group, check=...) for transactions")
        prepared = self._prepare(topic, value, tag, keys, properties, flag, True)
        prepared.properties += f"\x02TRAN_MSG\x01true\x02PGROUP\x01{self.group}"
        prepared.sys_flag |= transaction_flag(prepared.properties)

        async def send(half: Prepared) -> Receipt:
            self._check()
            return await self._send_one(half, self._deadline(timeout), shard_by, queue, None, None)

        return Transaction(self._core, self.group, prepared, send, checker.open_ids, self._hooks)

    async def request(
        self,
        topic: str,
        value: T,
        *,
        tag: str | None = None,
        keys: Sequence[str] | str = (),
        properties: Mapping[str, str] | None = None,
        shard_by: str | int | None = None,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        selector_arg: Any = None,
        flag: int = 0,
        timeout: float | None = None,
    ) -> Message[T]:
        """Send a message and wait for the answer of whoever consumes it (RR-01).

        timeout: seconds for all of it, default the client's. Raises ReplyTimeout when the message was stored but nobody
        answered, and what `send` raises.
        """
        self._check()
        core, deadline = self._core, self._deadline(timeout)
        prepared = self._prepare(topic, value, tag, keys, properties, flag, True)
        correlation_id, answer = core.replies.expect()
        try:
            own = request_properties(core, correlation_id, deadline.remaining_ms)
            prepared.properties += "\x02" + encode_properties(own).decode()
            await make_known(core, await self._route(prepared.topic, deadline))
            await self._send_one(prepared, deadline, shard_by, queue, selector, selector_arg)
            record = await wait_for(answer, deadline.remaining_ms, topic, correlation_id)
        finally:
            core.replies.forget(correlation_id)
        return Message(record, MessageQueue(record.topic, "", record.queue_id), self._codec)

    async def reply(self, message: Message[Any], value: T, *, timeout: float | None = None) -> Receipt:
        """Answer a request that a consumer received (RR-02). Raises MessageRefused when the message is none, and SendFailed when
        the one who asked cannot be reached any more."""
        self._check()
        return await self.answer(message, self._codec.encode(value), timeout)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Queues that may be written (PR-02). Raises RouteNotFound."""
        self._check()
        route = await self._core.write_route(self._wire_topic(topic))
        namespace = self._core.settings.namespace
        return [namespaces.strip_queue(namespace, queue) for queue in route.write_queues]

    # preparing, before any I/O

    def _wire_topic(self, topic: str) -> str:
        wire = self._topics.get(topic)
        if wire is None:
            check_topic(topic)
            wire = namespaces.wrap(self._core.settings.namespace, topic)
            check_topic(wire)
            if len(self._topics) >= 10_000:
                self._topics.clear()
            self._topics[topic] = wire
        return wire

    def _property_text(
        self,
        tag: str | None,
        keys: Sequence[str] | str,
        properties: Mapping[str, str] | None,
        wait_stored: bool,
        delay: Delay | None = None,
    ) -> tuple[str, str]:
        """(unique id, property string). Raises MessageRefused."""
        if tag is not None:
            check_text("tag", tag)
            if TAG_SEPARATOR in tag:
                self._warn_of_tag(tag)
        if properties:
            check_properties(properties)
        core = self._core
        unique_id = core.ids.next(time.time())
        text = encode_property_text(
            unique_id,
            tag=tag,
            keys=join_keys(keys) if keys else "",
            properties=tuple(properties.items()) if properties else (),
            wait_stored=wait_stored,
            delay=delay,
            instance=core.settings.namespace,
        )
        check_property_bytes(text)
        return unique_id, text

    def _warn_of_tag(self, tag: str) -> None:
        """Log once per tag that no tag filter can name it; Java clients send it all the same."""
        if tag not in self._warned_tags and len(self._warned_tags) < WARNED_TAGS_MAX:
            self._warned_tags.add(tag)
            logger.warning(
                "tag matches no tag filter group=%s tag=%r: %s separates the tags of a filter, only * and sql(...) select it",
                self.group,
                tag,
                TAG_SEPARATOR,
            )

    def _prepare(
        self,
        topic: str,
        value: T,
        tag: str | None,
        keys: Sequence[str] | str,
        properties: Mapping[str, str] | None,
        flag: int,
        wait_stored: bool,
        delay: Delay | None = None,
    ) -> Prepared:
        wire = self._wire_topic(topic)
        body = self._codec.encode(value)
        settings = self._core.settings
        check_body(body, settings.body_bytes_max)
        unique_id, text = self._property_text(tag, keys, properties, wait_stored, delay)
        sys_flag = 0
        if len(body) >= settings.compress_from_bytes:
            packed = compress(body, settings.compress_level)
            if len(packed) < len(body):  # what grows would not fit a broker's limit any more
                body, sys_flag = packed, ZLIB_FLAGS
        timer = delay if delay is not None and delay.timer_ms else None
        return Prepared(wire, body, (unique_id,), text, flag, sys_flag, timer=timer)

    def _batch_message(
        self,
        topic: str,
        value: T | Outgoing[T],
        defaults: tuple[str | None, Sequence[str] | str, Mapping[str, str] | None, bool],
    ) -> BatchMessage:
        tag, keys, properties, wait_stored = defaults
        flag = 0
        if isinstance(value, Outgoing):
            topic = value.topic or topic
            tag, keys = value.tag or tag, value.keys or keys
            properties = {**(properties or {}), **value.properties}
            flag = value.flag
            wait_stored = wait_stored if value.wait_stored is None else value.wait_stored
            value = value.value
        wire = self._wire_topic(topic)
        body = self._codec.encode(value)
        check_body(body, self._core.settings.body_bytes_max)
        unique_id, text = self._property_text(tag, keys, properties, wait_stored)
        return BatchMessage(wire, unique_id, BatchItem(body, text.encode(), flag), wait_stored)

    # what is prepared

    def _deadline(self, timeout: float | None) -> Deadline:
        return Deadline((self._core.settings.timeout if timeout is None else timeout) * 1000)

    async def _send_one(
        self,
        prepared: Prepared,
        deadline: Deadline,
        shard_by: str | int | None,
        queue: MessageQueue | None,
        selector: Selector | None,
        selector_arg: Any,
    ) -> Receipt:
        size = len(prepared.body)
        if not self._gate.try_enter(size):
            await self._enter(size, deadline, prepared)
        try:
            fixed = await self._fixed(prepared.topic, shard_by, queue, selector, selector_arg)
            return (await self._deliver(prepared, fixed, deadline))[0]
        finally:
            self._gate.leave(size)

    async def answer(self, message: Message[Any], body: bytes, timeout: float | None = None) -> Receipt:
        """Send these bytes as the reply to a request, to the broker that the request came through: it knows who asked."""
        self._core.check_running("client")
        check_body(body, self._core.settings.body_bytes_max)
        prepared = reply_to(message, body, self._core.ids.next(time.time()))
        deadline = self._deadline(timeout)
        route = await self._route(prepared.topic, deadline)
        near = [queue for queue in route.write_queues if queue.broker_name == message.queue.broker_name]
        return (await self._deliver(prepared, near[0] if near else None, deadline))[0]

    async def _send_batch(
        self, prepared: Prepared, shard_by: str | int | None, queue: MessageQueue | None, timeout: float | None
    ) -> list[Receipt]:
        size = len(prepared.body)
        deadline = self._deadline(timeout)
        if not self._gate.try_enter(size):
            await self._enter(size, deadline, prepared)
        try:
            fixed = await self._fixed(prepared.topic, shard_by, queue, None, None)
            return await self._deliver(prepared, fixed, deadline)
        finally:
            self._gate.leave(size)

    async def send_prepared(self, prepared: Prepared, timeout: float | None = None) -> list[Receipt]:
        """Send what the client itself made, such as the copy of a message to a retry topic (RTY-01)."""
        self._core.check_running("client")
        move_retry_counts(prepared)
        prepared.sys_flag |= transaction_flag(prepared.properties)
        deadline = self._deadline(timeout)
        return await self._deliver(prepared, None, deadline)
