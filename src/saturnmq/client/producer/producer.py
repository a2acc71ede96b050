"""The public Producer: validates and encodes messages, and hands them to Attempts.

Every message is validated, encoded and compressed before any I/O; the result (`Prepared`) is the same for all attempts.

Deliberate differences from Apache RocketMQ's producer:
- One total timeout is divided among the attempts, so that an unresponsive broker leaves time for another (API-28, not PR-15).
- Causes that pass are retried until the timeout, also on a fixed queue (not PR-15, PR-21); `attempts` bounds the others.
- SYSTEM_BUSY and FLOW_CONTROL are retried (API-29, not PR-16).
- Brokers that failed are avoided by later messages too, for at most 30 s (API-29; off by default in PR-30).
- `send` waits when too much is in flight, where Apache's asynchronous send fails (API-22, not PR-19).

Requirements: API-09..API-12, API-14, API-22, API-25, API-28, API-29 (spec 01, section 3).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

from saturnmq.client import namespaces
from saturnmq.client.checks import (
    check_body,
    check_properties,
    check_property_bytes,
    check_text,
    check_topic,
    join_keys,
)
from saturnmq.client.codecs import Codec, PropertyCodec
from saturnmq.client.compression import COMPRESSION_FLAGS, compressor
from saturnmq.client.connection.core import ClientState, Core, check_state, now_ms
from saturnmq.client.connection.deadline import Deadline
from saturnmq.client.connection.transaction_checks import Checker
from saturnmq.client.delays import Delay, delay_of
from saturnmq.client.message import Message, Outgoing, ReceivedMessage
from saturnmq.client.producer.attempts import Choice, ProducerStats, Selector
from saturnmq.client.producer.batching import Batching
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
from saturnmq.client.producer.settings import ProducerSettings
from saturnmq.client.producer.transactions import Transaction
from saturnmq.client.receipt import Receipt, TransactionState
from saturnmq.client.tracing import PRODUCE, Tracer, TraceStats, trace_topic
from saturnmq.errors import (
    ClientError,
    MessageRefused,
    PartialSend,
    ProducerStopped,
)
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import ConfigError, SaturnError
from saturnmq.protocol.message import BatchItem, encode_properties

logger = logging.getLogger(__name__)

T = TypeVar("T")
TAG_SEPARATOR: Final = "||"
WARNED_TAGS_MAX: Final = 1000


class Producer(Batching, Generic[T]):
    """Sends values of type T to topics. Created by `Client.producer`; use `async with`, or `start()` and `stop()`.

    Example:
        async with client.producer("orders-p") as out:
            receipt = await out.send("orders", b"hello", tag="paid", keys=["order-1"], shard_by="customer-7")
            await out.send_many("orders", [b"one", b"two", b"three"])
    """

    def __init__(self, core: Core, group: str, codec: Codec[T], settings: ProducerSettings) -> None:
        super().__init__(core, group, settings)
        self._codec = codec
        self._compress = compressor(core.settings.compress_type, core.settings.compress_level)
        self._trace_topic = trace_topic(settings.trace, core.settings.trace)
        self._tracer: Tracer | None = None
        check = settings.check
        self._checker = Checker(check, codec, settings.check_executor) if check is not None else None
        self._topics: dict[str, str] = {}  # validated topic names -> names on the wire
        self._warned_tags: set[str] = set()
        self._lock = asyncio.Lock()
        self.state = ClientState.NEW

    # lifecycle

    async def __aenter__(self) -> Producer[T]:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Register the group with the client. Idempotent.

        Raises GroupInUse if the client already has a producer of this group, Closed after `stop`, and what
        `prepare_encoding` of the codec raises.
        """
        # A second start waits for the first one.
        async with self._lock:
            if self.state is ClientState.RUNNING:
                return
            if self.state is ClientState.STOPPED:
                check_state("producer", self.state)
            self._core.check_running()
            if isinstance(self._codec, PropertyCodec):
                # Before the registration: an error leaves nothing registered.
                await self._codec.prepare_encoding()
            self._core.add_producer(self.group)
            if self._trace_topic is not None and self._core.tracing is not None:
                self._tracer = self._core.tracing.open(self.group, PRODUCE, self._trace_topic)
                # After the application's hooks, whose properties it records.
                self._hooks += (self._tracer.send_hook,)
            if self._checker is not None:
                # The outcome of a check is traced too.
                self._checker.hooks = self._hooks
                self._core.checks.add(self.group, self._checker)
            self.state = ClientState.RUNNING

    async def stop(self) -> None:
        """Wait for the messages being sent, unregister the group and flush the message trace, for at most 0.5 s. Idempotent."""
        async with self._lock:
            running = self.state is ClientState.RUNNING
            # No more sends are accepted from here on.
            self.state = ClientState.STOPPED
            if running:  # a producer that did not start does not own the registration of its group
                self._core.checks.remove(self.group)
            if running and self._core.state is ClientState.RUNNING:
                if not self._core.forked:  # a forked child: the tasks are the parent's
                    # The futures of `send_soon` end before the group does.
                    await self._finish_batches()
                await self._core.remove_producer(self.group)
            # Last: the final sends are traced as well.
            if self._tracer is not None:
                await self._tracer.close()

    @property
    def stats(self) -> ProducerStats:
        """Counters of requests and messages; a copy."""
        return replace(self._stats, in_flight=self._in_flight.count, in_flight_bytes=self._in_flight.bytes)

    @property
    def trace_stats(self) -> TraceStats:
        """Counters of the message trace: records created, sent and lost; all 0 if tracing is off."""
        return TraceStats() if self._tracer is None else replace(self._tracer.stats)

    def _check(self) -> None:
        if self.state is not ClientState.RUNNING:
            check_state("producer", self.state)
        try:
            self._core.check_running("producer")
        except ClientError as error:
            # The client has failed: the producer says why.
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
        """Send one message and wait until a broker has stored it.

        tag: for filtering by consumers, one per message. keys: indexed by the broker, see `Client.query_messages`. properties:
        user properties. flag: an integer for the application. wait_stored: False lets the broker respond before the message is
        flushed or replicated.

        shard_by: messages with the same key go to the same queue as long as the topic's queues do not change; the hash is that
        of Java clients. queue: the queue itself. selector: a function of (queues, selector_arg) that returns one of the queues.
        Give at most one of the three; all attempts are then made on that queue.

        delay (seconds or timedelta), deliver_at (aware datetime) or delay_level (1 and up): deliver later. deliver_at, and a
        delay that equals no delay level, need a broker with arbitrary delivery times, as SaturnMQ's are; if no broker of the
        topic is one, Unsupported is raised, whose text lists the levels.

        timeout: seconds in total, including retries; default: the client's. While a broker or NameServer is away or busy, the call
        tries again until then; with attempts=1 it does not. Raises MessageRefused and EncodeError before any I/O, RouteNotFound,
        NoNameServer, CallTimeout if no route arrives in time, the ResponseError of a response that is not retried, and SendFailed
        after the last attempt. If the call is cancelled or times out, the outcome is unknown; all attempts carry the same message
        id.

        Example:
            receipt = await out.send("orders", b"hello", tag="paid", keys=["order-1"], properties={"region": "EU"})
            await out.send("reminders", b"pay now", delay=timedelta(minutes=30))
        """
        self._check()
        # The common case without a delay skips the validation.
        later = None
        if delay is not None or deliver_at is not None or delay_level:
            later = delay_of(delay, deliver_at, delay_level, now_ms())
        prepared = self._prepare(topic, value, tag, keys, properties, flag, wait_stored, later)
        choice = (shard_by, queue, selector, selector_arg)
        # A delayed message is never part of a batch.
        if later is not None or self._sends_alone or not self._may_share(prepared):
            return (await self._send(prepared, self._deadline(timeout), choice))[0]
        return await self._send_shared(prepared, self._seconds(timeout), wait_stored, choice)

    async def send_soon(
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
        timeout: float | None = None,
    ) -> asyncio.Future[Receipt]:
        """Accept one message and return the future of its receipt: the caller goes on while the message is sent.

        Waits only while `max_in_flight` messages have no receipt yet. The options are those of `send`; timeout begins with the
        call. Messages of one queue (shard_by, queue or selector) are stored in the order of the calls. Raises MessageRefused and
        EncodeError at once, and SendFailed if the message is not accepted in time; the future raises what `send` raises after
        that. Cancelling the future does not stop a request that was sent. `stop` waits for all futures.

        Example:
            futures = [await out.send_soon("orders", b"%d" % n, shard_by="customer-7") for n in range(1000)]
            receipts = [await future for future in futures]
        """
        self._check()
        prepared = self._prepare(topic, value, tag, keys, properties, flag, wait_stored)
        choice = (shard_by, queue, selector, selector_arg)
        return await self._accept(prepared, self._seconds(timeout), wait_stored, choice)

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
        """Write one message to a connection without a response. Returns the message id.

        The options are those of `send`; timeout covers the route lookup, the connection and the write, and retries of these as
        long as nothing was written. Raises ConnectFailed or CallTimeout if the message cannot be written, and what `send` raises
        before that.

        Example:
            message_id = await out.send_oneway("metrics", b"42")
        """
        self._check()
        later = delay_of(delay, deliver_at, delay_level, now_ms())
        prepared = self._prepare(topic, value, tag, keys, properties, flag, wait_stored, later)
        deadline = self._deadline(timeout)
        # Without the in-flight limit: no answer would release it.
        await self._deliver_oneway(prepared, (shard_by, queue, selector, selector_arg), deadline)
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
        """Send many messages in few requests; returns one receipt per message, in order.

        Messages are batched by topic and wait_stored, each batch up to the client's body_bytes_max (4 MiB by default) and
        32,768 messages; a batch is stored completely or not at all. An `Outgoing` has a topic, tag, keys and properties of its
        own. shard_by and queue are as in `send`. timeout applies to each request. Raises MessageRefused and EncodeError before
        any I/O, PartialSend if only some messages were stored, and what `send` raises if none was.

        Example:
            await out.send_many("orders", [b"one", Outgoing(value=b"two", tag="paid")])
        """
        # Everything is validated before the first request.
        batches, prepared = self._batches(topic, values, (tag, keys, properties, wait_stored))
        receipt_at: dict[int, Receipt] = {}
        failed: list[tuple[int, SaturnError]] = []
        for batch, content in zip(batches, prepared, strict=True):
            try:
                outcome = await self._send(content, self._deadline(timeout), (shard_by, queue, None, None))
            except SaturnError as error:
                # A single batch failed as a whole: its error says all.
                if len(batches) == 1:
                    raise
                failed += ((index, error) for index in batch)
            else:
                receipt_at.update(zip(batch, outcome, strict=True))
        if failed:
            # Nothing was stored: PartialSend would be wrong.
            if not receipt_at:
                raise failed[0][1]
            raise PartialSend(sorted(receipt_at.items()), sorted(failed, key=lambda pair: pair[0]))
        return [receipt_at[index] for index in range(len(receipt_at))]

    async def send_many_oneway(
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
    ) -> list[str]:
        """Write many messages in few requests without responses. Returns the message ids, in order.

        Batches and options are those of `send_many`; timeout applies to each request and covers what it covers in `send_oneway`.
        Raises what `send_oneway` raises, at the first request that cannot be written; a note of the error says how many messages
        were written before.

        Example:
            message_ids = await out.send_many_oneway("metrics", [b"42", b"43"])
        """
        batches, prepared = self._batches(topic, values, (tag, keys, properties, wait_stored))
        ids: dict[int, str] = {}
        for batch, content in zip(batches, prepared, strict=True):
            try:
                # In order; the first failure ends the call.
                await self._deliver_oneway(content, (shard_by, queue, None, None), self._deadline(timeout))
            except SaturnError as error:
                error.add_note(f"{len(ids)} of {sum(map(len, batches))} messages were written before")
                raise
            ids.update(zip(batch, content.ids, strict=True))
        return [ids[index] for index in range(len(ids))]

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
        on_error: TransactionState = TransactionState.ROLLBACK,
        timeout: float | None = None,
    ) -> Transaction[T]:
        """A transaction: a message that is delivered only if the `async with` block succeeds.

        The message is stored invisibly before the block runs. A normal end of the block commits it, an exception rolls it back.
        If the block is cancelled or the process dies, the broker asks the producer's `check` for the outcome. on_error: UNKNOWN
        leaves the outcome to `check` after an exception too, as in Java: for work that may be done although it failed here. The
        other options are those of `send`. Raises ConfigError if the producer has no `check` or on_error is COMMIT, MessageRefused
        and EncodeError at once.

        Example:
            async with client.producer("orders-p", check=was_saved) as out:
                async with out.transaction("orders", b"hello") as half:
                    await save_locally(half.message_id)
        """
        self._check()
        checker = self._checker
        if checker is None:
            raise ConfigError(f"producer {self.group} has no check: client.producer(group, check=...) for transactions")
        if on_error not in (TransactionState.ROLLBACK, TransactionState.UNKNOWN):
            raise ConfigError(f"on_error is {on_error}, must be TransactionState.ROLLBACK or TransactionState.UNKNOWN")
        prepared = self._prepare(topic, value, tag, keys, properties, flag, True)
        # PGROUP names the group whose `check` is asked.
        prepared.properties += f"\x02TRAN_MSG\x01true\x02PGROUP\x01{self.group}"
        prepared.sys_flag |= transaction_flag(prepared.properties)

        async def send(half: Prepared) -> Receipt:
            # The producer may have stopped between `transaction` and the block.
            self._check()
            return (await self._send(half, self._deadline(timeout), (shard_by, queue, None, None)))[0]

        return Transaction(self._core, self.group, prepared, send, checker.open_ids, self._hooks, on_error)

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
        """Send a message and wait for the reply of its consumer.

        The options are those of `send`. timeout: seconds in total, default: the client's. Raises ReplyTimeout if the message was
        stored but no reply arrived in time, and what `send` raises.

        Example:
            answer = await out.request("prices", b"book-7", timeout=2.0)
            print(answer.value)
        """
        self._check()
        core, deadline = self._core, self._deadline(timeout)
        prepared = self._prepare(topic, value, tag, keys, properties, flag, True)
        # Before the send: the reply may come before the receipt.
        correlation_id, answer = core.replies.expect()
        try:
            # The requester's waiting time, as the consumer sees it.
            added_properties = request_properties(core, correlation_id, round(self._seconds(timeout) * 1000))
            prepared.properties += "\x02" + encode_properties(added_properties).decode()
            route = await self._route(prepared.topic, deadline)
            # Half of the time at most, so that the send has the rest.
            await make_known(core, route, deadline.share_ms(2))
            await self._send(prepared, deadline, (shard_by, queue, selector, selector_arg))
            record = await wait_for(answer, deadline.remaining_ms, topic, correlation_id)
        finally:
            # A reply after the timeout finds no request.
            core.replies.forget(correlation_id)
        response = Message(record, MessageQueue(record.topic, "", record.queue_id), self._codec)
        if isinstance(self._codec, PropertyCodec):
            # The schema of the reply may have to be fetched.
            await self._codec.prepare_decoding([response])
        return response

    async def reply(
        self,
        message: ReceivedMessage[Any],
        value: T,
        *,
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """Reply to a request that a consumer received; listeners return the reply instead. properties: user properties.

        Raises MessageRefused if the message is not a request, and SendFailed if the requester cannot be reached any more.

        Example:
            async for message in inbox:
                await out.reply(message, b"9.50")
                await message.ack()
        """
        self._check()
        body, properties = self._encoded(value, properties)
        return await self.answer(message, body, properties, timeout)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The writable queues of a topic, by broker name and queue id. Raises RouteNotFound.

        Example:
            queues = await out.queues("orders")
            await out.send("orders", b"hello", queue=queues[0])
        """
        self._check()
        route = await self._route(self._wire_topic(topic), self._deadline(None))
        namespace = self._core.settings.namespace
        return [namespaces.strip_queue(namespace, queue) for queue in route.write_queues]

    # preparation, before any I/O

    def _encoded(self, value: T, properties: Mapping[str, str] | None) -> tuple[bytes, Mapping[str, str] | None]:
        """The body, and the properties with those that the codec adds. Raises EncodeError."""
        codec = self._codec
        if not isinstance(codec, PropertyCodec):
            return codec.encode(value), properties
        body, added_properties = codec.encode_message(value)
        # Those of the caller win.
        return body, {**added_properties, **(properties or {})}

    def _wire_topic(self, topic: str) -> str:
        wire = self._topics.get(topic)
        if wire is None:
            check_topic(topic)
            wire = namespaces.wrap(self._core.settings.namespace, topic)
            # Checked again with the namespace, which adds to the length.
            check_topic(wire)
            # Applications may make up topic names without end.
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
                # A tag filter splits at the separator.
                self._warn_of_tag(tag)
        if properties:
            check_properties(properties)
        core = self._core
        # The time is part of the id.
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
        # A record holds their length in two bytes.
        check_property_bytes(text)
        return unique_id, text

    def _warn_of_tag(self, tag: str) -> None:
        """Log, once per tag, that no tag filter can match it; it is sent nevertheless, as by Java clients."""
        if tag not in self._warned_tags and len(self._warned_tags) < WARNED_TAGS_MAX:
            self._warned_tags.add(tag)
            logger.warning(
                "tag matches no tag filter, only * and sql(...) select it group=%s tag=%r separator=%s",
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
        body, properties = self._encoded(value, properties)
        settings = self._core.settings
        # Before compression: the limit is that of Java clients, for the body as it is.
        check_body(body, settings.body_bytes_max)
        unique_id, text = self._property_text(tag, keys, properties, wait_stored, delay)
        sys_flag = 0
        if len(body) >= settings.compress_from_bytes:
            packed = self._compress(body)
            if len(packed) < len(body):  # a body that grows could exceed the broker's limit
                body, sys_flag = packed, COMPRESSION_FLAGS[settings.compress_type]
        # Levels are supported by all brokers.
        timer = delay if delay is not None and delay.timer_ms else None
        return Prepared(wire, body, (unique_id,), text, flag, sys_flag, timer=timer)

    def _batches(
        self,
        topic: str,
        values: Iterable[T | Outgoing[T]],
        defaults: tuple[str | None, Sequence[str] | str, Mapping[str, str] | None, bool],
    ) -> tuple[list[list[int]], list[Prepared]]:
        """The indexes of the messages of each batch, and the batches. Raises MessageRefused, EncodeError."""
        self._check()
        messages = [self._batch_message(topic, value, defaults) for value in values]
        if not messages:
            raise MessageRefused("there is no message; a batch must hold at least one")
        limit = self._core.settings.body_bytes_max
        batches = split_batches(messages, limit)
        # Again checked: a single message can be over the limit.
        return batches, [prepare_batch([messages[index] for index in batch], limit) for batch in batches]

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
            # Those of the message win over the call's.
            properties = {**(properties or {}), **value.properties}
            flag = value.flag
            wait_stored = wait_stored if value.wait_stored is None else value.wait_stored
            value = value.value
        wire = self._wire_topic(topic)
        body, properties = self._encoded(value, properties)
        check_body(body, self._core.settings.body_bytes_max)
        unique_id, text = self._property_text(tag, keys, properties, wait_stored)
        # Bytes here, so that the size of the batch is known.
        return BatchMessage(wire, unique_id, BatchItem(body, text.encode(), flag), wait_stored)

    # sending prepared messages

    def _seconds(self, timeout: float | None) -> float:
        return self._core.settings.timeout if timeout is None else timeout

    def _deadline(self, timeout: float | None) -> Deadline:
        return Deadline(self._seconds(timeout) * 1000)

    async def _send(self, prepared: Prepared, deadline: Deadline, choice: Choice) -> list[Receipt]:
        """Send a message or batch of the application. Raises SendFailed, and what the route lookup raises."""
        prepared.asks_confirmation = True
        return await self._send_in_limit(prepared, deadline, choice)

    async def _send_in_limit(self, prepared: Prepared, deadline: Deadline, choice: Choice) -> list[Receipt]:
        size = len(prepared.body)
        if not self._in_flight.try_acquire(size):
            # Waits in order behind others.
            await self._acquire(size, deadline, prepared)
        prepared.shard_by = choice[0]
        try:
            fixed = await self._fixed(prepared.topic, choice, deadline)
            return await self._deliver(prepared, fixed, deadline)
        finally:
            self._in_flight.release(size)

    async def answer(
        self,
        message: ReceivedMessage[Any],
        body: bytes,
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """Send body as the reply to a request, to the broker that delivered the request: the requester is registered there."""
        self._core.check_running()
        check_body(body, self._core.settings.body_bytes_max)
        prepared = reply_to(message, body, self._core.ids.next(time.time()), properties)
        deadline = self._deadline(timeout)
        route = await self._route(prepared.topic, deadline)
        # Elsewhere the requester has no connection, unless the broker passes the reply on.
        near = [queue for queue in route.write_queues if queue.broker_name == message.queue.broker_name]
        return (await self._deliver(prepared, near[0] if near else None, deadline))[0]

    async def send_prepared(self, prepared: Prepared, timeout: float | None = None) -> list[Receipt]:
        """Send a message that the client itself created, such as the copy of a message to a retry topic (RTY-01)."""
        self._core.check_running()
        # The broker reads them from the header.
        move_retry_counts(prepared)
        prepared.sys_flag |= transaction_flag(prepared.properties)
        return await self._send_in_limit(prepared, self._deadline(timeout), (None, None, None, None))
