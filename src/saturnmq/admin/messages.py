"""Messages: queries by id, key and offset, who consumed them, consumption and sending on demand.

Requirements: ADM-09, ADM-19..ADM-21, C-23..C-26, CON-11.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final

from saturnmq.admin.connection import MASTER_ID, AdminConnection
from saturnmq.admin.consumption import consume_stats, consumer_connection, groups_of, topic_brokers
from saturnmq.admin.listings import SLOW, dead_brokers
from saturnmq.client.message import Message
from saturnmq.client.producer.producer import Producer
from saturnmq.client.puller.puller import Puller, PullResult, PullStatus
from saturnmq.client.receipt import Receipt
from saturnmq.client.trace.records import Pub, SubAfter, decode_records
from saturnmq.protocol.addresses import join_host_port
from saturnmq.protocol.bodies import ConsumeMessageDirectlyResult, ConsumerConnection, MessageQueue, TopicOffset
from saturnmq.protocol.codes import RESERVED_PROPERTIES, RequestCode, ResponseCode
from saturnmq.protocol.errors import MessageError, ResponseError, SaturnError, response_error
from saturnmq.protocol.headers.messaging import ConsumeMessageDirectly
from saturnmq.protocol.ids import parse_offset_message_id
from saturnmq.protocol.message import Host
from saturnmq.protocol.offsets import QueueOffset

__all__ = ["TOOLS_GROUP", "Messages", "PullResult", "PullStatus", "TimedSend", "TraceView", "Track", "TrackType"]

TOOLS_GROUP: Final = "TOOLS_CONSUMER"  # as which Apache's tools pull; every broker has it
UNIQUE_MAX: Final = 32
KEY_MAX: Final = 64
_NO_MESSAGE: Final = "query message by key finished, but no message."
_OFFSET_ID_BYTES: Final = (16, 28)


class TrackType(Enum):
    """The state of a message in a group."""

    CONSUMED = "CONSUMED"
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
    PULL = "PULL"
    NOT_CONSUME_YET = "NOT_CONSUME_YET"
    NOT_ONLINE = "NOT_ONLINE"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True)
class Track:
    """The state of a message in one group. description: the error, if the group could not be asked."""

    group: str
    track_type: TrackType
    description: str | None = None


@dataclass(frozen=True)
class TraceView:
    """One line of a message's trace. sent: by a producer, else consumed. group: None in traces of old consumers."""

    sent: bool
    group: str | None
    client_host: str
    time_ms: int
    cost_ms: int
    success: bool


@dataclass(frozen=True)
class TimedSend:
    """One send: how long it took, and the receipt or the error."""

    elapsed_ms: int
    result: Receipt | SaturnError


class Messages:
    """Messages: queries by id, key and offset, who consumed them, consumption and sending on demand.

    Example:
        for message in await admin.messages.by_key("orders", "order-1"):
            print(message.message_id, [track.track_type for track in await admin.messages.tracks(message)])
    """

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    # ---- queries

    async def by_offset_id(self, message_id: str) -> Message[bytes]:
        """The message with an offset message id (33), from the broker whose address it holds. Raises MessageError."""
        return await (await self._connection.messaging()).view_message(message_id)

    async def by_key(
        self, topic: str, key: str, *, max_count: int = KEY_MAX, begin_ms: int = 0, end_ms: int | None = None
    ) -> list[Message[bytes]]:
        """Messages of a topic with this key, on all brokers (12), oldest first. Raises NoMessage (208) if there is none."""
        client = await self._connection.messaging()
        messages = await client.query_messages(topic, key, max_count=max_count, begin=begin_ms, end=end_ms)
        return await self._any(topic, messages)

    async def by_unique_id(self, topic: str, message_id: str, *, begin_ms: int = 0) -> list[Message[bytes]]:
        """All copies of the message with this unique id (12), oldest first. Raises NoMessage (208) if there is none."""
        client = await self._connection.messaging()
        messages = await client.query_messages(topic, message_id, max_count=UNIQUE_MAX, begin=begin_ms, unique=True)
        return await self._any(topic, messages)

    async def _any(self, topic: str, messages: list[Message[bytes]]) -> list[Message[bytes]]:
        """Raise NoMessage if there is none; `AdminConnection.unanswered` then names brokers that may have it."""
        if not messages:
            await dead_brokers(self._connection, await topic_brokers(self._connection, topic))
            raise response_error(ResponseCode.NO_MESSAGE, _NO_MESSAGE)
        return messages

    async def view(self, topic: str, message_id: str) -> Message[bytes]:
        """The message with this offset id or unique id. Of a unique id that was sent more than once, the oldest copy.

        Both have the same form. An offset id is looked up only if its address is that of a broker of this cluster.
        """
        try:
            host, _ = parse_offset_message_id(message_id)
            if host in await self._hosts():
                return await self.by_offset_id(message_id)
        except (MessageError, ResponseError):
            pass  # then it is a unique id
        begin_ms = max(unique_id_time(message_id, time.time_ns() // 1_000_000) - 1000, 0)
        return (await self.by_unique_id(topic, message_id, begin_ms=begin_ms))[0]

    async def puller(self, group: str = TOOLS_GROUP) -> Puller:
        """A puller, which reads queues by offset and commits nothing."""
        return (await self._connection.messaging()).puller(group)

    async def by_queue_offset(self, queue: MessageQueue, offset: int) -> Message[bytes] | None:
        """The message at an offset of a queue (11); None if the queue has none there."""
        messages = (await (await self.puller()).pull(queue, offset, max_count=1)).messages()
        return messages[0] if messages else None

    async def trace(self, message_id: str, topic: str) -> list[TraceView]:
        """Who sent a message and who consumed it, from the messages of a trace topic; those that cannot be parsed are left out.

        Raises NoMessage (208) without a trace.
        """
        views: list[TraceView] = []
        for message in await self.by_key(topic, message_id):
            try:
                records = list(decode_records(message.body.decode()))
            except (UnicodeDecodeError, SaturnError):
                continue
            host = message.record.born_host.ip
            for record in records:
                if isinstance(record, Pub) and message_id in record.message_id.split(","):
                    views.append(
                        TraceView(True, record.group, host, record.timestamp_ms, record.cost_ms, record.success)
                    )
                elif isinstance(record, SubAfter) and record.message_id == message_id:
                    views.append(
                        TraceView(False, record.group, host, record.timestamp_ms, record.cost_ms, record.success)
                    )
        return views

    async def _hosts(self) -> set[Host]:
        """Addresses of the masters as they stand in messages."""
        cluster_info = await self._connection.cluster()
        addresses = [
            address for broker in cluster_info.broker_addr_table.values() for address in broker.broker_addrs.values()
        ]
        return {host for address in addresses if (host := await _host(address)) is not None}

    # ---- tracks

    async def tracks(self, message: Message[Any]) -> list[Track]:
        """The state of a message in every group that consumes its topic."""
        groups = await groups_of(self._connection, message.record.topic)
        return list(await asyncio.gather(*(self._track(message, group) for group in groups)))

    async def _track(self, message: Message[Any], group: str) -> Track:
        try:
            clients = await consumer_connection(self._connection, group)
            if clients.consume_type == "CONSUME_ACTIVELY":
                return Track(group, TrackType.PULL)
            if clients.consume_type != "CONSUME_PASSIVELY":
                return Track(group, TrackType.UNKNOWN)
            if not await self._consumed(message, group):
                return Track(group, TrackType.NOT_CONSUME_YET)
        except SaturnError as error:
            offline = error.code == ResponseCode.CONSUMER_NOT_ONLINE
            text = f"CODE:{error.code} DESC:{error.message.partition(chr(10))[0]}"
            return Track(group, TrackType.NOT_ONLINE if offline else TrackType.UNKNOWN, text)
        return Track(group, TrackType.CONSUMED if _subscribed(clients, message) else TrackType.CONSUMED_BUT_FILTERED)

    async def _consumed(self, message: Message[Any], group: str) -> bool:
        """Whether the group's offset in the queue of the message, on the broker that stored it, is behind the message."""
        record = message.record
        brokers = (await self._connection.cluster()).broker_addr_table
        for queue, offsets in (await consume_stats(self._connection, group)).offset_table.items():
            if (queue.topic, queue.queue_id) != (record.topic, record.queue_id) or queue.broker_name not in brokers:
                continue
            master = brokers[queue.broker_name].broker_addrs.get(MASTER_ID)
            if master is not None and await _host(master) == record.store_host:
                return offsets.consumer_offset > record.queue_offset
        return False

    # ---- consumption and sending on demand

    async def consume_directly(
        self, group: str, client_id: str, message: Message[Any]
    ) -> ConsumeMessageDirectlyResult | None:
        """Let a client handle a message once, without any effect on offsets (309). None in a dry run."""
        host = message.record.store_host
        address = join_host_port(*host)
        header = ConsumeMessageDirectly(consumer_group=group, client_id=client_id, msg_id=message.offset_message_id)
        timeout_ms = self._connection.timeout_ms * SLOW
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        answer = await self._connection.change(address, code, header, timeout_ms=timeout_ms)
        return ConsumeMessageDirectlyResult.decode(answer.body) if answer.body else None

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str | None = None,
        keys: str = "",
        properties: Mapping[str, str] | None = None,
        queue: MessageQueue | None = None,
        delay_level: int = 0,
        deliver_at: datetime | None = None,
        trace: bool = False,
    ) -> Receipt | None:
        """Send a message. keys: separated by blanks; queue: to this one, else to any; delay_level: 0: none. None in a dry run.

        deliver_at: an aware delivery time, for brokers that deliver at any time.
        """
        where = f" queue={queue.broker_name}/{queue.queue_id}" if queue is not None else ""
        if self._connection.announce(f"SEND_MESSAGE topic={topic}{where} bytes={len(body)}"):
            return None
        client = await self._connection.messaging()
        async with client.producer(_group(), trace=trace) as out:
            user_properties = properties or None
            return await out.send(
                topic,
                body,
                tag=tag or None,
                keys=keys.split(),
                properties=user_properties,
                queue=queue,
                delay_level=delay_level,
                deliver_at=deliver_at,
            )

    async def timed_sends(self, topic: str, bodies: Sequence[bytes], *, group: str = "") -> AsyncIterator[TimedSend]:
        """Send messages, one after the other, each to any queue. In a dry run none is sent."""
        if self._connection.announce(f"SEND_MESSAGE topic={topic} times={len(bodies)}"):
            return
        async with (await self._connection.messaging()).producer(group or _group()) as out:
            for body in bodies:
                yield await _timed(out, topic, body)

    async def timed_sends_in_turn(
        self, topic: str, amount: int, body: bytes
    ) -> AsyncIterator[tuple[MessageQueue, TimedSend]]:
        """Send a message so many times, to the queues of a topic in turn. In a dry run none is sent."""
        if self._connection.announce(f"SEND_MESSAGE topic={topic} bytes={len(body)} times={amount}"):
            return
        async with (await self._connection.messaging()).producer(_group()) as out:
            queues = await out.queues(topic)
            for number in range(amount):
                queue = queues[number % len(queues)]
                yield queue, await _timed(out, topic, body, queue)

    async def send_again(self, message: Message[Any]) -> Receipt | None:
        """Send a copy of a message, under a new unique id, to the topic where it is stored. None in a dry run."""
        user_properties = {name: value for name, value in message.properties.items() if name not in RESERVED_PROPERTIES}
        keys = " ".join(message.keys)
        return await self.send(
            message.record.topic, message.body, tag=message.tag, keys=keys, properties=user_properties
        )


async def _timed(out: Producer[Any], topic: str, body: bytes, queue: MessageQueue | None = None) -> TimedSend:
    began = time.monotonic_ns()
    result: Receipt | SaturnError
    try:
        result = await out.send(topic, body, queue=queue)
    except SaturnError as error:
        result = error
    return TimedSend((time.monotonic_ns() - began) // 1_000_000, result)


def _group() -> str:
    return str(time.time_ns() // 1_000_000)


def _subscribed(clients: ConsumerConnection, message: Message[Any]) -> bool:
    data = clients.subscription_table.get(message.record.topic)
    return data is None or not data.tags_set or "*" in data.tags_set or message.tag in data.tags_set


async def _host(address: str) -> Host | None:
    """IP and port of an address, whose host may be a name; None if the name is unknown."""
    name, _, port = address.rpartition(":")
    name = name.strip("[]")
    try:
        return Host(str(ipaddress.ip_address(name)), int(port))
    except ValueError:
        pass
    try:
        address_infos = await asyncio.get_running_loop().getaddrinfo(name, int(port), type=socket.SOCK_STREAM)
    except (OSError, ValueError, UnicodeError):
        return None
    return Host(str(address_infos[0][4][0]), int(port))


def unique_id_time(message_id: str, now_ms: int) -> int:
    """When the client assigned a unique id, Unix ms: in this month, or in the last one; 0 for text that is no unique id.

    now_ms: the current time. The id counts from the start of the month in the client's time zone, taken to be the local one.
    """
    try:
        raw = bytes.fromhex(message_id)
    except ValueError:
        return 0
    if len(raw) not in _OFFSET_ID_BYTES:
        return 0
    since_ms = int.from_bytes(raw[-6:-2], "big")
    month = datetime.fromtimestamp(now_ms / 1000).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    if int(month.timestamp() * 1000) + since_ms >= now_ms:
        month = month.replace(year=month.year - (month.month == 1), month=(month.month - 2) % 12 + 1)
    return int(month.timestamp() * 1000) + since_ms


PULL_COUNT: Final = 32


async def read_range(puller: Puller, queue: MessageQueue, begin: int, end: int) -> list[Message[bytes]]:
    """The messages of a queue at offsets begin to end - 1, oldest first; fewer if some have expired.

    A broker that moves no further ends the range.
    """
    messages: list[Message[bytes]] = []
    offset = begin
    while offset < end:
        result = await puller.pull(queue, QueueOffset(offset), max_count=min(end - offset, PULL_COUNT))
        messages += [message for message in result.messages() if begin <= message.offset < end]
        if result.status is PullStatus.NO_NEW_MESSAGE or result.next_offset <= offset:
            break
        offset = result.next_offset
    return messages


def newest(bounds: Mapping[MessageQueue, TopicOffset], skipped: int, count: int) -> list[tuple[MessageQueue, int, int]]:
    """The ranges (queue, begin, end) of a page of messages: queue after queue, in each the newest first.

    skipped: messages of the pages before.
    """
    ranges = []
    for queue, offsets in bounds.items():
        size = max(offsets.max_offset - offsets.min_offset, 0)
        if skipped < size and count > 0:
            end = offsets.max_offset - skipped
            begin = max(end - count, offsets.min_offset)
            ranges.append((queue, begin, end))
            count -= end - begin
        skipped = max(skipped - size, 0)
    return ranges
