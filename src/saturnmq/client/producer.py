"""The producer: messages out, receipts back.

Source: spec 01 section 3, spec 08 API-09..12, API-22, API-25, API-28, API-29.

Where spec 08 is not the original: one total timeout is shared out over the attempts, so that a silent broker leaves
time
for another (API-28, not PR-15); SYSTEM_BUSY and FLOW_CONTROL are retried (API-29, not PR-16); brokers that failed are
avoided across messages, at most 30 s (API-29, not PR-30's default); `send` waits when too much is in flight (API-22,
not
PR-19's error).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

from saturnmq.client import namespaces
from saturnmq.client.checks import check_body, check_properties, check_text, check_topic, join_keys
from saturnmq.client.codecs import Codec
from saturnmq.client.compress import ZLIB_FLAGS, compress
from saturnmq.client.core import Core, State, check_state, now_ms, vip_address
from saturnmq.client.deadline import Deadline
from saturnmq.client.errors import (
    CallTimeout,
    ClientError,
    ConnectFailed,
    MessageRefused,
    PartialSend,
    ProducerStopped,
    SendFailed,
)
from saturnmq.client.gate import Gate
from saturnmq.client.hints import unreachable_broker
from saturnmq.client.hooks import SendContext, SendHook, run_quietly
from saturnmq.client.message import STATUS_BY_CODE, Outgoing, Receipt, SendStatus
from saturnmq.client.routes import Route
from saturnmq.client.selection import RoundRobin, shard
from saturnmq.client.send_request import (
    BatchMessage,
    Prepared,
    encode_property_text,
    move_retry_counts,
    prepare_batch,
    receipts,
    send_command,
    split_batches,
    transaction_flag,
)
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.command import Command
from saturnmq.protocol.errors import ResponseError, SaturnError
from saturnmq.protocol.message import PROPERTIES_BYTES_MAX, BatchItem

T = TypeVar("T")
Selector = Callable[[Sequence[MessageQueue], Any], MessageQueue]

# Codes after which another attempt is worth it: PR-16's, and with API-29 also 2 and 215.
RETRY_CODES: Final = frozenset(
    {
        int(ResponseCode.TOPIC_NOT_EXIST),
        int(ResponseCode.SERVICE_NOT_AVAILABLE),
        int(ResponseCode.SYSTEM_ERROR),
        int(ResponseCode.NO_PERMISSION),
        int(ResponseCode.NO_BUYER_ID),
        int(ResponseCode.NOT_IN_CURRENT_UNIT),
        int(ResponseCode.SYSTEM_BUSY),
        int(ResponseCode.FLOW_CONTROL),
    }
)
BACKOFF_MS: Final = (10, 1000)
IN_FLIGHT_BYTES: Final = 64 * 1024 * 1024


def backoff_ms(attempt: int, chance: float) -> float:
    """Pause before retry number `attempt`, from 1: times four each, with jitter, 10..1000 ms (API-28)."""
    least, most = BACKOFF_MS
    return max(min(least * 4.0 ** (attempt - 1), most) * (0.5 + chance / 2), least)


class Producer(Generic[T]):
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
    ) -> None:
        self._core = core
        self.group = namespaces.wrap(core.settings.namespace, group)
        self._codec = codec
        self._gate = Gate(max_in_flight, IN_FLIGHT_BYTES)
        self._hooks = tuple(hooks)
        self._retry_codes = frozenset(retry_codes)
        self._counter = RoundRobin(random.randrange(1 << 16))
        self._topics: dict[str, str] = {}  # names that were checked -> names on the wire
        self._default_queues = str(core.settings.default_queues)
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
            self.state = State.RUNNING

    async def stop(self) -> None:
        """Tell the brokers that the group left. Idempotent."""
        async with self._lock:
            running = self.state is State.RUNNING
            self.state = State.STOPPED
            if running and self._core.state is State.RUNNING:
                await self._core.remove_producer(self.group)

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
        timeout: float | None = None,
    ) -> Receipt:
        """Send one message and wait until a broker stored it.

        shard_by, queue and selector fix the queue: such a message is tried once, on that queue (PR-21, API-12).
        timeout: seconds for everything, default the client's. Raises MessageRefused and EncodeError before any I/O,
        RouteNotFound, NoNameServer, the error of a final answer, or SendFailed after the retries.
        When it is cancelled or times out the outcome is unknown; every attempt carried the same message id (API-25).
        """
        self._check()
        prepared = self._prepare(topic, value, tag, keys, properties, flag, wait_stored)
        size = len(prepared.body)
        deadline = Deadline((self._core.settings.timeout if timeout is None else timeout) * 1000)
        gate = self._gate
        if not gate.try_enter(size):
            await self._enter(size, deadline, prepared)
        try:
            fixed = await self._fixed(prepared.topic, shard_by, queue, selector, selector_arg)
            return (await self._deliver(prepared, fixed, deadline))[0]
        finally:
            gate.leave(size)

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
        timeout: float | None = None,
    ) -> str:
        """Write one message and do not wait for an answer: there is none, and no retry (PR-20).

        Returns the message id. Raises when the message cannot be written.
        """
        self._check()
        prepared = self._prepare(topic, value, tag, keys, properties, flag, wait_stored)
        deadline = Deadline((self._core.settings.timeout if timeout is None else timeout) * 1000)
        route = await self._route(prepared.topic, deadline)
        chosen = await self._fixed(prepared.topic, shard_by, queue, selector, selector_arg)
        chosen = chosen or self._pick(route, None)
        address = await self._address(chosen)
        await self._core.remote.call_oneway(address, self._command(prepared, chosen), max(deadline.remaining_ms, 1))
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
        self, tag: str | None, keys: Sequence[str] | str, properties: Mapping[str, str] | None, wait_stored: bool
    ) -> tuple[str, str]:
        """(unique id, property string). Raises MessageRefused."""
        if tag is not None:
            check_text("tag", tag)
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
            instance=core.settings.namespace,
        )
        if len(text) > PROPERTIES_BYTES_MAX // 4 and len(text.encode()) > PROPERTIES_BYTES_MAX:
            raise MessageRefused(f"the properties have {len(text.encode())} bytes, at most {PROPERTIES_BYTES_MAX} fit")
        return unique_id, text

    def _prepare(
        self,
        topic: str,
        value: T,
        tag: str | None,
        keys: Sequence[str] | str,
        properties: Mapping[str, str] | None,
        flag: int,
        wait_stored: bool,
    ) -> Prepared:
        wire = self._wire_topic(topic)
        body = self._codec.encode(value)
        settings = self._core.settings
        check_body(body, settings.body_bytes_max)
        unique_id, text = self._property_text(tag, keys, properties, wait_stored)
        sys_flag = 0
        if len(body) >= settings.compress_from_bytes:
            body, sys_flag = compress(body, settings.compress_level), ZLIB_FLAGS
        return Prepared(wire, body, (unique_id,), text, flag, sys_flag)

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

    # one message through its attempts

    async def _enter(self, size: int, deadline: Deadline, prepared: Prepared) -> None:
        """Wait for room in flight, within the deadline (API-22)."""
        try:
            async with asyncio.timeout(max(deadline.remaining_ms, 0) / 1000):
                await self._gate.enter(size)
        except TimeoutError:
            cause = CallTimeout("send call timeout: too many messages were in flight")
            raise self._failure(prepared, 0, [], deadline, cause, unknown=False) from cause

    async def _fixed(
        self, topic: str, key: str | int | None, queue: MessageQueue | None, selector: Selector | None, argument: Any
    ) -> MessageQueue | None:
        """The queue the caller wants, None for any (PR-21)."""
        if queue is not None:
            if queue.topic != topic and namespaces.wrap(self._core.settings.namespace, queue.topic) != topic:
                raise MessageRefused(f"message's topic {topic} is not equal to the queue's topic {queue.topic}")
            return queue
        if key is None and selector is None:
            return None
        route = self._core.routes.get(topic) or await self._core.write_route(topic)
        if key is not None:
            return shard(route.write_queues, key)
        assert selector is not None
        try:
            chosen = selector(route.write_queues, argument)
        except Exception as error:
            raise MessageRefused(f"select message queue threw exception: {type(error).__name__}: {error}") from error
        if not isinstance(chosen, MessageQueue):
            raise MessageRefused("select message queue returned no queue")
        return chosen

    async def _send_batch(
        self, prepared: Prepared, shard_by: str | int | None, queue: MessageQueue | None, timeout: float | None
    ) -> list[Receipt]:
        size = len(prepared.body)
        deadline = Deadline((self._core.settings.timeout if timeout is None else timeout) * 1000)
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
        deadline = Deadline((self._core.settings.timeout if timeout is None else timeout) * 1000)
        return await self._deliver(prepared, None, deadline)

    async def _route(self, topic: str, deadline: Deadline) -> Route:
        route = self._core.routes.get(topic)
        if route is not None:
            return route
        try:
            async with asyncio.timeout(max(deadline.remaining_ms, 0) / 1000):
                return await self._core.write_route(topic)
        except TimeoutError:
            raise CallTimeout(f"send call timeout: no route of topic {topic} in {deadline.elapsed_ms} ms") from None

    def _pick(self, route: Route, avoid: str | None) -> MessageQueue:
        if self._core.settings.latency_fault:
            return self._core.faults.pick(route.write_queues, self._counter, now_ms(), avoid)
        return self._counter.pick(route.write_queues, avoid)

    async def _address(self, queue: MessageQueue) -> str:
        core = self._core
        topic = namespaces.wrap(core.settings.namespace, queue.topic)
        route = core.routes.known(topic)
        address = route.master(queue.broker_name) if route is not None else None
        if address is None:
            address = await core.master_address(topic, queue.broker_name)
        return vip_address(address) if core.settings.vip_channel else address

    def _command(self, prepared: Prepared, queue: MessageQueue) -> Command:
        settings = self._core.settings
        return send_command(
            prepared,
            queue,
            group=self.group,
            default_topic=settings.create_topic_key,
            default_queues=self._default_queues,
            now_ms=now_ms(),
            smart=settings.smart_send,
        )

    async def _deliver(self, prepared: Prepared, fixed: MessageQueue | None, deadline: Deadline) -> list[Receipt]:
        """Attempts until one is stored, one error is final, or time or attempts are over (PR-15..18)."""
        settings = self._core.settings
        attempts = 1 if fixed is not None else settings.attempts
        sent_to: list[str] = []
        stored: list[Receipt] | None = None
        last: SaturnError | None = None
        unknown = False
        for attempt in range(attempts):
            if attempt:
                await asyncio.sleep(min(backoff_ms(attempt, random.random()), max(deadline.remaining_ms, 0)) / 1000)
            if attempt and deadline.remaining_ms <= 0:
                break
            queue = fixed or self._pick(await self._route(prepared.topic, deadline), sent_to[-1] if sent_to else None)
            sent_to.append(queue.broker_name)
            try:
                outcome = await self._attempt(prepared, queue, deadline.share_ms(attempts - attempt))
            except (ConnectFailed, CallTimeout) as error:
                last, unknown = error, unknown or isinstance(error, CallTimeout) or error.sent
            except ResponseError as error:
                if error.code not in self._retry_codes:
                    raise
                last = error
                if error.refresh_route:
                    await self._refresh(prepared.topic)
            except ClientError as error:
                if not error.retryable:
                    raise
                last = error
            else:
                if outcome[0].status is SendStatus.SEND_OK or not settings.retry_not_stored:
                    return outcome
                stored = outcome
        if stored is not None:
            return stored
        cause = last or CallTimeout(f"send call timeout, topic {prepared.topic}")
        raise self._failure(prepared, len(sent_to), sent_to, deadline, cause, unknown=unknown) from cause

    def _failure(
        self,
        prepared: Prepared,
        attempts: int,
        brokers: list[str],
        deadline: Deadline,
        cause: SaturnError,
        *,
        unknown: bool,
    ) -> SendFailed:
        return SendFailed(
            topic=namespaces.strip(self._core.settings.namespace, prepared.topic),
            group=self.group,
            attempts=attempts,
            elapsed_ms=deadline.elapsed_ms,
            brokers=brokers,
            cause=cause,
            outcome_unknown=unknown,
        )

    async def _refresh(self, topic: str) -> None:
        try:
            await self._core.routes.refresh(topic)
        except SaturnError:
            return  # the old route serves the next attempt (PR-11)

    async def _attempt(self, prepared: Prepared, queue: MessageQueue, timeout_ms: int) -> list[Receipt]:
        """One request to one broker. Records how it went for the avoidance of slow brokers (PR-30)."""
        address = await self._address(queue)
        if self._hooks:
            return await self._attempt_with_hooks(prepared, queue, address, timeout_ms)
        return await self._exchange(prepared, queue, address, timeout_ms)

    async def _exchange(self, prepared: Prepared, queue: MessageQueue, address: str, timeout_ms: int) -> list[Receipt]:
        core = self._core
        begin = time.monotonic()
        failed = True
        try:
            answer = await core.remote.call(address, self._command(prepared, queue), timeout_ms)
            if answer.code not in STATUS_BY_CODE:
                raise core.answer_error(
                    answer, f"{queue.broker_name}@{address}", topic=prepared.topic, group=self.group
                )
            failed = False
            outcome = receipts(prepared, namespaces.strip_queue(core.settings.namespace, queue), answer)
        except asyncio.CancelledError:
            failed = False
            raise
        except ConnectFailed as error:
            error.broker = queue.broker_name
            if not error.sent:
                error.hint = unreachable_broker(prepared.topic, queue.broker_name, address)
            raise
        finally:
            if core.settings.latency_fault:
                elapsed_ms = int((time.monotonic() - begin) * 1000)
                if failed or elapsed_ms >= 100 or len(core.faults):
                    core.faults.record(queue.broker_name, elapsed_ms, now_ms(), failed=failed)
        return outcome

    async def _attempt_with_hooks(
        self, prepared: Prepared, queue: MessageQueue, address: str, timeout_ms: int
    ) -> list[Receipt]:
        topic = namespaces.strip(self._core.settings.namespace, prepared.topic)
        context = SendContext(self.group, topic, queue, address, prepared.ids)
        for hook in self._hooks:
            hook.check(context)
        run_quietly(self._hooks, "before", context)
        try:
            outcome = await self._exchange(prepared, queue, address, timeout_ms)
            context.receipt = outcome[0]
        except BaseException as error:
            context.error = error
            raise
        finally:
            run_quietly(self._hooks, "after", context)
        return outcome
