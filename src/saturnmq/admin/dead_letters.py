"""Dead letters of a group: messages in its topic %DLQ%group, which were not consumed within all retries.

A dead letter is resent as Apache's dashboard does it: a client of the group consumes the source message at once (309). If no
push client is connected, or the source message has expired, a copy is sent to the retry topic, which only this group consumes. The
dead letter itself stays until it expires.

Requirements: CON-11, ADM-09.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

from saturnmq.admin.clients import Clients
from saturnmq.admin.connection import MASTER_ID, AdminConnection
from saturnmq.admin.messages import PULL_COUNT, Messages, newest, read_range
from saturnmq.admin.topics import Topics, TopicStatistics
from saturnmq.client.message import Message
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import (
    AUTO_CREATE_TOPIC,
    COMPRESSION_MASK,
    DLQ_PREFIX,
    INNER_PRODUCER_GROUP,
    RETRY_PREFIX,
    PropertyKey,
    RequestCode,
    ResponseCode,
    SysFlag,
)
from saturnmq.protocol.errors import MessageError, ResponseError, SaturnError, response_error
from saturnmq.protocol.headers.messaging import SendMessage
from saturnmq.protocol.message import encode_properties

CONSUMED: Final = "CR_SUCCESS"
_KEPT_FLAGS: Final = COMPRESSION_MASK | SysFlag.COMPRESSED
_NOT_COPIED: Final = frozenset(
    {
        PropertyKey.TRAN_MSG, PropertyKey.DELAY, PropertyKey.REAL_TOPIC, PropertyKey.REAL_QID, PropertyKey.RECONSUME_TIME,
        PropertyKey.MAX_RECONSUME_TIMES, PropertyKey.TIMER_DELIVER_MS, PropertyKey.TIMER_DELAY_MS,
        PropertyKey.TIMER_DELAY_SEC, PropertyKey.TIMER_OUT_MS, PropertyKey.TIMER_WAKE_MS,
    }
)  # fmt: skip


@dataclass(frozen=True)
class DeadLetterPage:
    """A page of dead letters, newest first in each queue. total: all that are kept; failures: of brokers, by address."""

    messages: list[Message[bytes]]
    total: int
    failures: dict[str, SaturnError]


@dataclass(frozen=True)
class Resent:
    """The outcome of resending a dead letter.

    client_id: the client that consumed it, with its result in `result`; "" if it went to the retry topic.
    """

    client_id: str
    result: str

    @property
    def done(self) -> bool:
        """Whether the client consumed it, or the broker stored the copy."""
        return not self.client_id or self.result == CONSUMED


class DeadLetters:
    """Dead letters of a group: list, read all, resend.

    Example:
        page = await admin.dead_letters.listing("billing")
        for message in page.messages:
            print((await admin.dead_letters.resend("billing", message)).result)
    """

    def __init__(self, connection: AdminConnection, topics: Topics, messages: Messages, clients: Clients) -> None:
        self._connection = connection
        self._topics = topics
        self._messages = messages
        self._clients = clients

    async def listing(self, group: str, *, skipped: int = 0, count: int = 50) -> DeadLetterPage:
        """A page of the dead letters of a group; an empty one if the group has none. skipped: those of the pages before."""
        statistics = await self._statistics(group)
        if statistics is None:
            return DeadLetterPage([], 0, {})
        puller = await self._messages.puller()
        messages: list[Message[bytes]] = []
        for queue, begin, end in newest(statistics.offsets, skipped, count):
            messages += reversed(await read_range(puller, queue, begin, end))
        total = sum(max(bounds.max_offset - bounds.min_offset, 0) for bounds in statistics.offsets.values())
        return DeadLetterPage(messages, total, statistics.failures)

    async def all_of(self, group: str) -> AsyncGenerator[Message[bytes], None]:
        """All dead letters of a group, oldest first in each queue; nothing if the group has none."""
        statistics = await self._statistics(group)
        if statistics is None:
            return
        puller = await self._messages.puller()
        for queue, bounds in statistics.offsets.items():
            for begin in range(bounds.min_offset, bounds.max_offset, PULL_COUNT):
                for message in await read_range(puller, queue, begin, min(begin + PULL_COUNT, bounds.max_offset)):
                    yield message

    async def _statistics(self, group: str) -> TopicStatistics | None:
        """Offsets of the dead letters of a group; None if it has none."""
        try:
            return await self._topics.statistics(DLQ_PREFIX + group)
        except ResponseError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            return None

    async def at(self, group: str, broker_name: str, queue_id: int, offset: int) -> Message[bytes]:
        """The dead letter at an offset. Raises NoMessage (208)."""
        queue = MessageQueue(DLQ_PREFIX + group, broker_name, queue_id)
        message = await self._messages.by_queue_offset(queue, offset)
        if message is None:
            raise response_error(ResponseCode.NO_MESSAGE, f"{queue.topic} has no message at {queue_id}/{offset}")
        return message

    async def resend(self, group: str, message: Message[bytes]) -> Resent | None:
        """Let a client of the group consume the source message, or else send a copy to the retry topic. None in a dry run."""
        client_id = await self._push_client(group)
        source = await self._source(message) if client_id else None
        if source is None:
            return await self._send_copy(group, message)
        consumption = await self._messages.consume_directly(group, client_id, source)
        if consumption is None:
            return None
        result = consumption.consume_result or "no result"
        return Resent(client_id, result if result == CONSUMED else f"{result} {consumption.remark or ''}".rstrip())

    async def _push_client(self, group: str) -> str:
        try:
            clients = await self._clients.consumers(group)
        except SaturnError:
            return ""
        if clients.consume_type != "CONSUME_PASSIVELY" or not clients.connection_set:
            return ""
        return clients.connection_set[0].client_id

    async def _source(self, message: Message[bytes]) -> Message[bytes] | None:
        """The message that first was consumed; None if it has expired. Its id is of the client, so its body is compared."""
        topic = message.properties.get(PropertyKey.RETRY_TOPIC, "")
        message_id = message.properties.get(PropertyKey.ORIGIN_MESSAGE_ID, "")
        if not topic or not message_id:
            return None
        try:
            source = await self._messages.view(topic, message_id)
        except SaturnError:
            return None
        is_same = source.record.topic == topic and source.record.body == message.record.body
        return source if is_same else None

    async def _send_copy(self, group: str, message: Message[bytes]) -> Resent | None:
        record, topic = message.record, RETRY_PREFIX + group
        route = await self._connection.route(topic)
        broker_name = message.queue.broker_name
        brokers = sorted(route.broker_datas, key=lambda broker: broker.broker_name != broker_name)
        address = next((broker.broker_addrs[MASTER_ID] for broker in brokers if MASTER_ID in broker.broker_addrs), None)
        if address is None:
            raise response_error(ResponseCode.SYSTEM_ERROR, f"no master serves {topic}")
        properties = {name: value for name, value in record.properties.items() if name not in _NOT_COPIED}
        if PropertyKey.RETRY_TOPIC not in properties:
            raise MessageError(f"message {message.message_id} has no property RETRY_TOPIC: it is no dead letter")
        header = SendMessage(
            producer_group=INNER_PRODUCER_GROUP,
            topic=topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=1,
            queue_id=0,
            sys_flag=record.sys_flag & _KEPT_FLAGS,
            born_timestamp=record.born_timestamp_ms,
            flag=record.flag,
            properties=encode_properties(properties).decode(),
        )
        body = bytes(record.body)
        await self._connection.change(address, RequestCode.SEND_MESSAGE, header, body)
        return None if self._connection.is_dry_run else Resent("", topic)
