"""Messages that brokers hold back: undecided half messages of transactions, delayed messages by level, and timed messages.

The first two are read from system topics, as any 4.x broker has them, from the broker's progress on. A timed message is one with a
delivery time; SaturnMQ brokers keep it in a topic of their own, by the hour in which it wakes.

Requirements: ADM-09.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from saturnmq.admin.connection import AdminConnection
from saturnmq.admin.messages import Messages, read_range
from saturnmq.client.message import Message
from saturnmq.config.settings import parse_properties
from saturnmq.errors import BrokerNotExist
from saturnmq.protocol.bodies import (
    ConsumeQueueData,
    KVTable,
    MessageQueue,
    QueryConsumeQueueResponse,
    TopicStatsTable,
)
from saturnmq.protocol.codes import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_DONE_ROW,
    TIMER_TOPIC,
    PropertyKey,
    RequestCode,
    ResponseCode,
)
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.headers.messaging import (
    GetTopicStatsInfo,
    QueryConsumeQueue,
    SearchOffsetByTimestamp,
    TopicQueue,
    ViewMessageById,
)
from saturnmq.protocol.message import decode_record

GROUP: Final = "CID_RMQ_SYS_TRANS"  # under which brokers keep the progress of their checks
HALVES_MAX: Final = 1000
OPERATIONS_MAX: Final = 5000
TIMED_MAX: Final = 100  # timed messages of a list
TIMED_BYTES_MAX: Final = 8 * 1024 * 1024  # of their records
UNITS_MAX: Final = 8192  # units of the timer topic that are read for a list
UNITS_OF_A_READ: Final = 4096  # a broker sends no more
_TIMER_QUEUES: Final = 64  # one for each hour, used again after as many
_HOUR_MS: Final = 3_600_000
_STORED_BEFORE_MS: Final = 25 * _HOUR_MS  # units wake at most a day after they are stored, with an hour to spare
_DECIDED: Final = "d"
_OFFSETS: Final = "scheduleMessageOffset_"


@dataclass(frozen=True)
class HalfMessage:
    """A half message that is not decided. checks: how often its producer was asked."""

    message_id: str
    topic: str
    group: str
    born_ms: int
    stored_ms: int
    checks: int
    queue: MessageQueue
    offset: int


@dataclass(frozen=True)
class UndecidedTransactions:
    """Half messages of a broker that are not decided, oldest first. cut: whether there may be more.

    exact: False if the broker does not let the decisions be read; then decided ones are among them, until the broker's next round
    of checks passes them.
    """

    halves: list[HalfMessage]
    cut: bool
    exact: bool


@dataclass(frozen=True)
class DelayLevel:
    """Messages of one level that wait on a broker. delay_ms: None if the broker names no such level.

    next_due_ms: when the first of them is delivered, Unix ms; None if it cannot be read.
    """

    level: int
    delay_ms: int | None
    count: int
    next_due_ms: int | None
    next_topic: str


@dataclass(frozen=True)
class TimedMessage:
    """A message that waits for its delivery time, due_ms (Unix ms). born_ms: when it was sent."""

    message_id: str
    topic: str
    keys: str
    due_ms: int
    born_ms: int


@dataclass(frozen=True)
class Timed:
    """The next timed messages of a broker, soonest first, and how many wait. cut: there may be more than `count`."""

    messages: list[TimedMessage]
    count: int
    cut: bool


class WaitingMessages:
    """Messages that brokers hold back.

    Example:
        for half in (await admin.waiting.transactions("broker-a")).halves:
            print(half.topic, half.group, half.checks)
    """

    def __init__(self, connection: AdminConnection, messages: Messages) -> None:
        self._connection = connection
        self._messages = messages

    async def transactions(self, broker_name: str) -> UndecidedTransactions:
        """Half messages of a broker without a commit or rollback: at most HALVES_MAX are looked at."""
        half_messages = await self._unfinished(MessageQueue(HALF_TOPIC, broker_name, 0), HALVES_MAX)
        if not half_messages:
            return UndecidedTransactions([], cut=False, exact=True)
        operations = await self._unfinished(MessageQueue(OP_HALF_TOPIC, broker_name, 0), OPERATIONS_MAX)
        exact, operations = operations is not None, operations or []
        decided = {number for operation in operations if operation.tag == _DECIDED for number in _offsets(operation)}
        # The last copy of a checked one.
        halves = {message.message_id: message for message in half_messages if message.offset not in decided}
        cut = len(half_messages) == HALVES_MAX or len(operations) == OPERATIONS_MAX
        return UndecidedTransactions([_half(message) for message in halves.values()], cut, exact)

    async def _unfinished(self, queue: MessageQueue, count_max: int) -> list[Message[bytes]] | None:
        """Messages of a system topic from the progress of the checks on; None if the broker does not serve the topic."""
        puller = await self._messages.puller()
        try:
            begin = max(await puller.committed(GROUP, queue) or 0, await puller.min_offset(queue))
            return await read_range(puller, queue, begin, begin + count_max)
        except BrokerNotExist:
            return None  # it has never registered the topic, and no other topic's route has named it yet
        except SaturnError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                return None
            raise

    async def delays(self, address: str, broker_name: str) -> list[DelayLevel]:
        """The levels of a broker that have waiting messages."""
        topic = GetTopicStatsInfo(topic=SCHEDULE_TOPIC)
        accepted = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
        answer = await self._connection.read(address, RequestCode.GET_TOPIC_STATS_INFO, topic, accept=accepted)
        bounds = TopicStatsTable.decode(answer.body).offset_table if answer.code == ResponseCode.SUCCESS else {}
        answer = await self._connection.read(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        progress = _progress(KVTable.decode(answer.body).table)
        waiting = {
            queue.queue_id + 1: (
                max(progress.get(queue.queue_id + 1, 0), queue_bounds.min_offset),
                queue_bounds.max_offset,
            )
            for queue, queue_bounds in bounds.items()
        }
        waiting = {level: (begin, end) for level, (begin, end) in waiting.items() if begin < end}
        if not waiting:
            return []
        config = await self._connection.read(address, RequestCode.GET_BROKER_CONFIG)
        settings = parse_properties((config.body or b"").decode())
        lengths = _lengths(settings.get("messageDelayLevel", ""))
        return [await self._level(broker_name, level, lengths, *offsets) for level, offsets in sorted(waiting.items())]

    async def timed(self, address: str) -> Timed:
        """The timed messages of a broker that are due next: at most TIMED_MAX, of at most UNITS_MAX units that are looked at."""
        answer = await self._connection.read(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        text = KVTable.decode(answer.body).table.get(TIMER_DONE_ROW, "")
        if not text.isdecimal() or len(text) > 15:
            return Timed([], 0, cut=False)  # none was ever stored, or the broker has delay levels only
        done_ms = int(text)
        hour = done_ms // _HOUR_MS
        queues = [(hour + ahead) % _TIMER_QUEUES for ahead in range(_TIMER_QUEUES)]  # in the order in which they wake
        ranges = await asyncio.gather(*(self._units_range(address, queue, done_ms) for queue in queues))
        waiting: list[ConsumeQueueData] = []
        remaining, cut = UNITS_MAX, False
        for queue, (begin, end) in zip(queues, ranges, strict=True):
            first = max(begin, end - remaining)  # the oldest of an hour are the first that are delivered
            cut = cut or first > begin
            remaining -= max(end - first, 0)
            for index in range(first, end, UNITS_OF_A_READ):
                units = await self._units(address, queue, index, min(end - index, UNITS_OF_A_READ))
                waiting += [unit for unit in units if unit.tags_code > done_ms]
        waiting.sort(key=lambda unit: unit.tags_code)
        size = 0
        shown: list[ConsumeQueueData] = []
        for unit in waiting[:TIMED_MAX]:
            size += unit.physic_size
            if shown and size > TIMED_BYTES_MAX:
                break
            shown.append(unit)
        messages = await asyncio.gather(*(self._timed(address, unit.physic_offset) for unit in shown))
        timed_messages = sorted(
            (message for message in messages if message is not None), key=lambda message: message.due_ms
        )
        return Timed(timed_messages, len(waiting), cut)

    async def _units_range(self, address: str, queue: int, done_ms: int) -> tuple[int, int]:
        """Offsets of a queue of the timer topic among which the waiting units are."""
        since = SearchOffsetByTimestamp(
            topic=TIMER_TOPIC, queue_id=queue, timestamp=max(done_ms - _STORED_BEFORE_MS, 0)
        )
        begin, end = await asyncio.gather(
            self._connection.read(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, since),
            self._connection.read(address, RequestCode.GET_MAX_OFFSET, TopicQueue(topic=TIMER_TOPIC, queue_id=queue)),
        )
        return _offset_of(begin.ext), _offset_of(end.ext)

    async def _units(self, address: str, queue: int, index: int, count: int) -> list[ConsumeQueueData]:
        header = QueryConsumeQueue(topic=TIMER_TOPIC, queue_id=queue, index=index, count=count)
        answer = await self._connection.read(address, RequestCode.QUERY_CONSUME_QUEUE, header)
        return QueryConsumeQueueResponse.decode(answer.body).queue_data

    async def _timed(self, address: str, physical_offset: int) -> TimedMessage | None:
        """A message of the timer topic; None if it cannot be read."""
        try:
            answer = await self._connection.read(
                address, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageById(offset=physical_offset)
            )
            record = decode_record(answer.body or b"")
        except SaturnError:
            return None
        properties, due_text = record.properties, record.properties.get(PropertyKey.TIMER_OUT_MS, "")
        return TimedMessage(
            properties.get(PropertyKey.UNIQ_KEY, ""),
            properties.get(PropertyKey.REAL_TOPIC, ""),
            properties.get(PropertyKey.KEYS, ""),
            int(due_text) if due_text.isdecimal() and len(due_text) <= 15 else 0,
            record.born_timestamp_ms,
        )

    async def _level(self, broker_name: str, level: int, lengths: tuple[int, ...], begin: int, end: int) -> DelayLevel:
        delay_ms = lengths[level - 1] if 0 < level <= len(lengths) else None
        try:
            first = await self._messages.by_queue_offset(MessageQueue(SCHEDULE_TOPIC, broker_name, level - 1), begin)
        except SaturnError:
            first = None
        if first is None or delay_ms is None:
            return DelayLevel(level, delay_ms, end - begin, None, "")
        topic = first.record.properties.get(PropertyKey.REAL_TOPIC, "")
        return DelayLevel(level, delay_ms, end - begin, first.record.store_timestamp_ms + delay_ms, topic)


def _half(message: Message[bytes]) -> HalfMessage:
    properties, record = message.properties, message.record
    checks = properties.get(PropertyKey.TRANSACTION_CHECK_TIMES, "")
    return HalfMessage(
        message.message_id,
        properties.get(PropertyKey.REAL_TOPIC, ""),
        properties.get(PropertyKey.PGROUP, ""),
        record.born_timestamp_ms,
        record.store_timestamp_ms,
        int(checks) if checks.isdecimal() and len(checks) < 10 else 0,
        message.queue,
        message.offset,
    )


def _offsets(operation: Message[bytes]) -> list[int]:
    """Queue offsets of the half messages that an operation decides; 5.x brokers write several into one."""
    return [int(part) for part in operation.body.split(b",") if part.isdigit() and len(part) < 20]


def _offset_of(fields: Mapping[str, str]) -> int:
    text = fields.get("offset", "")
    return int(text) if text.isdecimal() and len(text) < 20 else 0


def _progress(table: dict[str, str]) -> dict[int, int]:
    """Next offset by level, of runtime information, which has the levels of which messages were delivered."""
    offsets = {}
    for key, value in table.items():
        level, offset = key.removeprefix(_OFFSETS), value.partition(",")[0]
        if key.startswith(_OFFSETS) and all(text.isdecimal() and len(text) < 19 for text in (level, offset)):
            offsets[int(level)] = int(offset)
    return offsets


def _lengths(text: str) -> tuple[int, ...]:
    from saturnmq.store.delay import delay_levels  # loads the store, which other commands do not need

    try:
        return tuple(delay_levels(text))
    except ValueError:
        return ()
