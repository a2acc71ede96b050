"""The puller: reads queues by offset, outside of any group's assignment; commits nothing unless asked to.

Queues in the public interface carry topic names without the namespace; `wire` variables carry the namespaced name.

Requirements: PR-02, CA-13, BP-05, PL-05, OF-03.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Final

from saturnmq.client import namespaces
from saturnmq.client.codecs import BytesCodec
from saturnmq.client.connection.core import Core
from saturnmq.client.connection.deadline import Deadline
from saturnmq.client.filters import Filter, tag
from saturnmq.client.hints import unreachable_broker
from saturnmq.client.message import Message
from saturnmq.errors import BrokerNotExist, CallTimeout, Closed, ConnectFailed
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import PullSysFlag, RequestCode, ResponseCode
from saturnmq.protocol.errors import HeaderError, ResponseError, SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers.numbers import int64, int64_or
from saturnmq.protocol.message import decode_records
from saturnmq.protocol.offsets import QueueOffset

PULLER_GROUP: Final = "CID_RMQ_SYS_SATURNMQ_PULLER"  # brokers always create groups with this prefix on demand (BP-10)
BROKER_SUSPEND_MS: Final = 15_000
LATE_ANSWER_MS: Final = 15_000
SLACK_MS: Final = 100  # network allowance for a broker that answers on time
_RETRY_CODES: Final = frozenset(
    {int(ResponseCode.SYSTEM_BUSY), int(ResponseCode.SERVICE_NOT_AVAILABLE), int(ResponseCode.FLOW_CONTROL)}
)


class PullStatus(Enum):
    """Outcome of a pull.

    FOUND: the result has records. NO_NEW_MESSAGE: the offset is the end of the queue. NO_MATCHED_MESSAGE: the broker scanned
    messages, but none passed the filter. OFFSET_ILLEGAL: the queue does not have the offset; continue at `next_offset`.

        result = await puller.pull(queue, offset)
        if result.status is PullStatus.OFFSET_ILLEGAL:
            offset = result.next_offset
    """

    FOUND = "FOUND"
    NO_NEW_MESSAGE = "NO_NEW_MESSAGE"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


_STATUS_BY_CODE: Final = {
    int(ResponseCode.SUCCESS): PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.NO_NEW_MESSAGE,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.NO_MATCHED_MESSAGE,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.OFFSET_ILLEGAL,
}


@dataclass(frozen=True, slots=True)
class PullResult:
    """The answer to one pull.

    body: stored records back to back, as the broker stores them; b"" unless FOUND.
    next_offset: where the next pull begins; with OFFSET_ILLEGAL the nearest offset that the broker has.
    min_offset, max_offset: the first stored offset of the queue, and the offset that its next message will get.

    Brokers filter tags by hash: `messages()` also compares the tag text; code that reads `body` must do so itself.

        result = await puller.pull(queue, offset)
        for message in result.messages():
            print(message.offset, message.body)
        offset = result.next_offset
    """

    status: PullStatus
    next_offset: QueueOffset
    min_offset: QueueOffset
    max_offset: QueueOffset
    body: bytes = field(default=b"", repr=False)
    queue: MessageQueue | None = None
    suggested_broker_id: int = 0
    tags: frozenset[str] = frozenset()
    namespace: str | None = None

    def messages(self) -> list[Message[bytes]]:
        """Decode the messages that passed the filter, bodies as bytes. Raises MessageError for damaged records."""
        queue = self.queue or MessageQueue(topic="", broker_name="", queue_id=0)
        codec, tags = BytesCodec(), self.tags
        return [
            Message(record, queue, codec, None, self.namespace)
            for record in decode_records(self.body)
            if not tags or record.tags in tags
        ]


def pull_command(
    queue: MessageQueue,
    *,
    group: str,
    offset: int,
    max_count: int,
    sys_flag: int,
    commit_offset: int = 0,
    suspend_ms: int = 0,
    expression: str | None = None,
    kind: str = "TAG",
    version_ms: int = 0,
    bulk_bytes: int = 0,
) -> Command:
    """Build a PULL_MESSAGE request; queue.topic is the namespaced name.

    bulk_bytes is an extension of SaturnMQ brokers; other brokers ignore the field.
    """
    ext = {
        "consumerGroup": group,
        "topic": queue.topic,
        "queueId": str(queue.queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": str(max_count),
        "sysFlag": str(sys_flag),
        "commitOffset": str(commit_offset),
        "suspendTimeoutMillis": str(suspend_ms),
        "subVersion": str(version_ms),
        "expressionType": kind,
        "bname": queue.broker_name,
    }
    if expression is not None:
        ext["subscription"] = expression
    if bulk_bytes:
        ext["bulkBytes"] = str(bulk_bytes)
    return Command(RequestCode.PULL_MESSAGE, ext=ext)


def pull_result(
    answer: Command, queue: MessageQueue, tags: frozenset[str] = frozenset(), namespace: str | None = None
) -> PullResult | None:
    """Parse a pull answer; None if its code is an error. Raises HeaderError when the offsets are missing."""
    status = _STATUS_BY_CODE.get(answer.code)
    if status is None:
        return None
    ext = answer.ext
    try:
        names = ("nextBeginOffset", "minOffset", "maxOffset")
        next_offset, low, high = (QueueOffset(int64(ext, name)) for name in names)
        suggested = int64_or(ext, "suggestWhichBrokerId", 0)
    except (KeyError, HeaderError) as error:
        raise HeaderError(f"pull answer of {queue.broker_name} has no usable {error}") from error
    body = answer.body or b"" if status is PullStatus.FOUND else b""
    return PullResult(status, next_offset, low, high, body, queue, suggested, tags, namespace)


class Puller:
    """Reads queues by offset, independently of consumer groups. Create it with `Client.puller`; it needs no start or stop.

    Nothing is committed except by `commit`. Times are seconds, `timeout=None` takes the client's timeout. All methods raise
    ResponseError (or a subclass) for a refusal by the broker, ConnectFailed, CallTimeout, and Closed after the client has stopped.

        puller = client.puller()
        for queue in await puller.queues("orders"):
            offset = await puller.min_offset(queue)
            end = await puller.max_offset(queue)
            while offset < end:
                result = await puller.pull(queue, offset)
                for message in result.messages():
                    print(message.offset, message.body)
                offset = result.next_offset
    """

    def __init__(self, core: Core, group: str = PULLER_GROUP) -> None:
        self._core = core
        self._namespace = core.settings.namespace
        self.group = namespaces.wrap(self._namespace, group)
        self._home = 0  # broker id to read from when the broker has suggested no other
        self._suggested: dict[MessageQueue, int] = {}

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic, sorted by broker name and queue id. Raises RouteNotFound, NoNameServer."""
        self._core.check_running("puller")
        wire = namespaces.wrap(self._namespace, topic)
        route = self._core.routes.cached(wire)
        # The queues of a substitute route do not exist yet.
        if route is None or not route.read_queues or route.substitute:
            route = await self._core.read_route(wire)
        return [namespaces.strip_queue(self._namespace, queue) for queue in route.read_queues]

    async def refresh(self, topic: str) -> list[MessageQueue]:
        """Like `queues`, but query the NameServer first. Raises RouteNotFound, NoNameServer."""
        self._core.check_running("puller")
        wire = namespaces.wrap(self._namespace, topic)
        if await self._core.routes.refresh(wire) is None:
            raise self._core.route_not_found(wire, reading=True)
        return await self.queues(topic)

    async def watch(self, topic: str) -> AsyncGenerator[list[MessageQueue], None]:
        """Iterate over the queues of a topic: yield them now and after every change, until the client stops.

        The client polls the NameServer every `route_poll_ms`. Raises RouteNotFound if the topic does not exist yet.

            async for queues in puller.watch("orders"):
                print(len(queues), "queues")
        """
        self._core.routes.use(namespaces.wrap(self._namespace, topic))
        previous: list[MessageQueue] | None = None
        changed = asyncio.Event()
        self._core.route_watchers.add(changed)
        try:
            while True:
                # Before the read, so that a change in between is not missed.
                changed.clear()
                try:
                    queues = await self.queues(topic)
                except Closed:
                    return
                if queues != previous:
                    previous = queues
                    yield list(queues)
                await changed.wait()
        finally:
            self._core.route_watchers.discard(changed)

    async def min_offset(self, queue: MessageQueue, *, timeout: float | None = None) -> QueueOffset:
        """Return the first offset that is still stored."""
        return await self._offset(RequestCode.GET_MIN_OFFSET, queue, {}, timeout)

    async def max_offset(self, queue: MessageQueue, *, timeout: float | None = None) -> QueueOffset:
        """Return the offset that the next message will get."""
        return await self._offset(RequestCode.GET_MAX_OFFSET, queue, {}, timeout)

    async def offset_by_time(
        self, queue: MessageQueue, when: int | datetime, *, timeout: float | None = None
    ) -> QueueOffset:
        """Return the first offset stored at or after `when`: Unix ms or an aware datetime."""
        stamp = int(when.timestamp() * 1000) if isinstance(when, datetime) else when
        return await self._offset(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue, {"timestamp": str(stamp)}, timeout)

    async def earliest_store_time(self, queue: MessageQueue, *, timeout: float | None = None) -> int:
        """Return when the oldest stored message was stored, in Unix ms; -1 if the queue is empty."""
        answer = await self._call(
            queue, self._queue_command(RequestCode.GET_EARLIEST_MSG_STORETIME, queue, {}), timeout
        )
        return _number(answer, "timestamp")

    async def committed(self, group: str, queue: MessageQueue, *, timeout: float | None = None) -> int | None:
        """Return the committed offset of a group, None if it has none."""
        ext = {"consumerGroup": namespaces.wrap(self._namespace, group)}
        try:
            return await self._offset(RequestCode.QUERY_CONSUMER_OFFSET, queue, ext, timeout)
        except ResponseError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise

    async def commit(self, group: str, queue: MessageQueue, offset: int, *, timeout: float | None = None) -> None:
        """Store the committed offset of a group; returns once the broker has confirmed it."""
        ext = {"consumerGroup": namespaces.wrap(self._namespace, group), "commitOffset": str(offset)}
        await self._call(queue, self._queue_command(RequestCode.UPDATE_CONSUMER_OFFSET, queue, ext), timeout)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_count: int = 32,
        expression: Filter | str = "*",
        wait: float = 0.0,
        timeout: float | None = None,
        bulk_bytes: int = 0,
    ) -> PullResult:
        """Return messages of one queue from `offset` on; the broker may return fewer than `max_count`.

        expression: a tag filter as text, or a filter made by `tag` or `sql`.
        wait: seconds (at most 15) for which the broker may delay its answer until a message arrives (long polling).
        timeout: seconds for all attempts together, in addition to `wait`; default: the client's timeout.
        bulk_bytes: how many bytes of a backlog a SaturnMQ broker may return at once, up to `max_count`; with 0, and on other
        brokers, a pull returns at most 32 messages.

        When a broker does not answer, the route is refreshed and another broker of the same name, such as a slave, is tried.
        Raises the error of the final answer, ConnectFailed, CallTimeout, BrokerNotExist.

            result = await puller.pull(queue, offset, expression="paid || refunded", wait=5.0)
        """
        core = self._core
        core.check_running("puller")
        topic_filter = tag(expression) if isinstance(expression, str) else expression
        suspend_ms = int(min(wait, BROKER_SUSPEND_MS / 1000) * 1000)
        budget_ms = (core.settings.timeout if timeout is None else timeout) * 1000
        wire = self._wire(queue)

        def ask(held_ms: int) -> Command:
            return pull_command(
                wire,
                group=self.group,
                offset=offset,
                max_count=max_count,
                sys_flag=int(PullSysFlag.SUBSCRIPTION) | (int(PullSysFlag.SUSPEND) if held_ms else 0),
                suspend_ms=held_ms,
                expression=topic_filter.expression,
                kind=topic_filter.kind,
                bulk_bytes=bulk_bytes,
            )

        answer = await self._held(wire, ask(suspend_ms), budget_ms, suspend_ms) if suspend_ms else None
        if answer is None:
            answer = await self._exchange(wire, ask(0), Deadline(budget_ms), 0)
        result = pull_result(answer, queue, topic_filter.tags, self._namespace)
        if result is None:
            # The suggested broker may be the one that refuses.
            self._suggested.pop(wire, None)
            raise core.answer_error(answer, wire.broker_name, topic=wire.topic, group=self.group)
        # The caller's loop would not end.
        if result.status is PullStatus.FOUND and result.next_offset <= offset:
            raise HeaderError(
                f"pull answer of {queue.broker_name} has messages, but nextBeginOffset={result.next_offset} does not follow "
                f"offset {offset}"
            )
        self._answered(wire, result)
        return result

    # internals

    def _answered(self, wire: MessageQueue, result: PullResult) -> None:
        if result.suggested_broker_id or wire in self._suggested:
            self._suggested[wire] = result.suggested_broker_id

    def _wire(self, queue: MessageQueue) -> MessageQueue:
        return namespaces.wrap_queue(self._namespace, queue)

    def _queue_command(self, code: RequestCode, queue: MessageQueue, ext: dict[str, str]) -> Command:
        wire = self._wire(queue)
        ext = {"topic": wire.topic, "queueId": str(wire.queue_id), "bname": wire.broker_name, **ext}
        return Command(code, ext=ext)

    async def _offset(
        self, code: RequestCode, queue: MessageQueue, ext: dict[str, str], timeout: float | None
    ) -> QueueOffset:
        return QueueOffset(_number(await self._call(queue, self._queue_command(code, queue, ext), timeout), "offset"))

    async def _call(self, queue: MessageQueue, command: Command, timeout: float | None) -> Command:
        self._core.check_running("puller")
        deadline = Deadline((self._core.settings.timeout if timeout is None else timeout) * 1000)
        wire = self._wire(queue)
        answer = await self._exchange(wire, command, deadline, 0)
        if answer.code != ResponseCode.SUCCESS:
            raise self._core.answer_error(answer, wire.broker_name, topic=wire.topic, group=self.group)
        return answer

    async def _held(self, wire: MessageQueue, command: Command, budget_ms: float, suspend_ms: int) -> Command | None:
        """Send a long-polling request; None if its answer does not arrive shortly after the requested wait.

        Apache brokers scan waiting requests every 5 s only (LP-02), so their "no new message" may arrive that much late (LP-04).
        The caller then sends a pull without wait.
        """
        late_ms = suspend_ms + LATE_ANSWER_MS
        try:
            async with asyncio.timeout((suspend_ms + SLACK_MS) / 1000):
                return await self._exchange(wire, command, Deadline(budget_ms + late_ms), late_ms)
        except TimeoutError:
            return None

    async def _exchange(self, wire: MessageQueue, command: Command, deadline: Deadline, suspend_ms: int) -> Command:
        """Send a command until a broker of the queue's broker name gives an answer other than "busy" or attempts run out.

        wire.topic is the namespaced name.
        """
        core = self._core
        attempts = core.settings.attempts
        for attempt in range(attempts):
            last_try = attempt == attempts - 1
            try:
                address = await self._address(wire, command.code)
            except BrokerNotExist:
                if last_try or deadline.remaining_ms <= 0:
                    raise
            else:
                budget_ms = deadline.remaining_ms - suspend_ms
                # Each attempt has an equal share of the time, and the wait on top.
                share_ms = max(budget_ms // (attempts - attempt), 1) + suspend_ms
                try:
                    answer = await core.remote.call(address, command, share_ms)
                except (ConnectFailed, CallTimeout) as error:
                    error.broker = wire.broker_name
                    # Nothing was sent: the hint is about reachability.
                    if isinstance(error, ConnectFailed) and not error.sent:
                        error.hint = unreachable_broker(wire.topic, wire.broker_name, address)
                    if last_try or deadline.remaining_ms <= 0:
                        raise
                    await self._switch(wire)
                else:
                    if answer.code not in _RETRY_CODES or last_try or deadline.remaining_ms <= 0:
                        return answer
            pause_s = min(0.02 * 4**attempt * (0.5 + random.random() / 2), max(deadline.remaining_ms, 0) / 1000)
            await asyncio.sleep(pause_s)
        raise CallTimeout(f"no answer for {wire.topic} from {wire.broker_name}")

    async def _address(self, wire: MessageQueue, code: int) -> str:
        """Address of the broker that a request goes to. Raises BrokerNotExist."""
        # Only pulls may go to a slave; offset queries and commits need the master, and use a slave while there is none.
        preferred_id = self._suggested.get(wire, self._home) if code == RequestCode.PULL_MESSAGE else 0
        address, _slave = await self._core.read_address(wire.topic, wire.broker_name, preferred_id)
        return address

    async def _switch(self, wire: MessageQueue) -> None:
        """After a failed call, refresh the route and use another broker id of the same name for the next attempt."""
        core = self._core
        tried = self._suggested.pop(wire, self._home)
        try:
            await core.routes.refresh(wire.topic)
        except SaturnError:
            return  # no NameServer answered: keep using the cached route (DG-01)
        finally:
            ids = sorted(core.routes.brokers().get(wire.broker_name, {}))
            alternative_ids = [number for number in ids if number != tried]
            if alternative_ids:
                self._suggested[wire] = alternative_ids[0]


def _number(answer: Command, name: str) -> int:
    """An integer field of an answer. Raises HeaderError if it is missing or malformed."""
    try:
        return int64(answer.ext, name)
    except (KeyError, HeaderError) as error:
        raise HeaderError(f"the answer has no usable field {name}") from error
