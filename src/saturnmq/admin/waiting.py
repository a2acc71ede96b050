"""Messages that brokers hold back: half messages of transactions that are not decided, and delayed messages by level.

Both are read from system topics, as any 4.x broker has them, from the broker's progress on.

Requirements: ADM-09.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from saturnmq.admin.connection import AdminConnection
from saturnmq.admin.messages import Messages
from saturnmq.admin.queue_ranges import read_range
from saturnmq.client.message import Message
from saturnmq.config.settings import parse_properties
from saturnmq.protocol.bodies import KVTable, MessageQueue, TopicStatsTable
from saturnmq.protocol.codes import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC, PropertyKey, RequestCode, ResponseCode
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.headers.messaging import GetTopicStatsInfo

GROUP: Final = "CID_RMQ_SYS_TRANS"  # under which brokers keep the progress of their checks
HALVES_MAX: Final = 1000
OPERATIONS_MAX: Final = 5000
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
class Undecided:
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


class Waiting:
    """Messages that brokers hold back.

    Example:
        for half in (await admin.waiting.transactions("broker-a")).halves:
            print(half.topic, half.group, half.checks)
    """

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection
        self._messages = Messages(connection)

    async def transactions(self, broker_name: str) -> Undecided:
        """Half messages of a broker without a commit or rollback: at most HALVES_MAX are looked at."""
        found = await self._unfinished(MessageQueue(HALF_TOPIC, broker_name, 0), HALVES_MAX)
        if not found:
            return Undecided([], cut=False, exact=True)
        operations = await self._unfinished(MessageQueue(OP_HALF_TOPIC, broker_name, 0), OPERATIONS_MAX)
        exact, operations = operations is not None, operations or []
        decided = {number for one in operations if one.tag == _DECIDED for number in _offsets(one)}
        halves = {one.message_id: one for one in found if one.offset not in decided}  # the last copy of a checked one
        cut = len(found) == HALVES_MAX or len(operations) == OPERATIONS_MAX
        return Undecided([_half(one) for one in halves.values()], cut, exact)

    async def _unfinished(self, queue: MessageQueue, count_max: int) -> list[Message[bytes]] | None:
        """Messages of a system topic from the progress of the checks on; None if the broker does not serve the topic."""
        puller = await self._messages.puller()
        try:
            begin = max(await puller.committed(GROUP, queue) or 0, await puller.min_offset(queue))
            return await read_range(puller, queue, begin, begin + count_max)
        except SaturnError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                return None
            raise

    async def delays(self, address: str, broker_name: str) -> list[DelayLevel]:
        """The levels of a broker that have waiting messages."""
        topic = GetTopicStatsInfo(topic=SCHEDULE_TOPIC)
        known = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
        answer = await self._connection.read(address, RequestCode.GET_TOPIC_STATS_INFO, topic, accept=known)
        bounds = TopicStatsTable.decode(answer.body).offset_table if answer.code == ResponseCode.SUCCESS else {}
        answer = await self._connection.read(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        progress = _progress(KVTable.decode(answer.body).table)
        waiting = {
            queue.queue_id + 1: (max(progress.get(queue.queue_id + 1, 0), one.min_offset), one.max_offset)
            for queue, one in bounds.items()
        }
        waiting = {level: (begin, end) for level, (begin, end) in waiting.items() if begin < end}
        if not waiting:
            return []
        config = await self._connection.read(address, RequestCode.GET_BROKER_CONFIG)
        settings = parse_properties((config.body or b"").decode())
        lengths = _lengths(settings.get("messageDelayLevel", ""))
        return [await self._level(broker_name, level, lengths, *offsets) for level, offsets in sorted(waiting.items())]

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
    return [int(word) for word in operation.body.split(b",") if word.isdigit() and len(word) < 20]


def _progress(table: dict[str, str]) -> dict[int, int]:
    """Next offset by level, of runtime information, which has the levels of which messages were delivered."""
    found = {}
    for key, value in table.items():
        level, offset = key.removeprefix(_OFFSETS), value.partition(",")[0]
        if key.startswith(_OFFSETS) and all(one.isdecimal() and len(one) < 19 for one in (level, offset)):
            found[int(level)] = int(offset)
    return found


def _lengths(text: str) -> tuple[int, ...]:
    from saturnmq.store.delay import delay_levels  # loads the store, which other commands do not need

    try:
        return tuple(delay_levels(text))
    except ValueError:
        return ()
