"""Transactional messages: half messages, their commit or rollback, and checks with the producer if neither arrives.

A commit appends two records in one event-loop iteration: the message and the operation that records the decision. After a
crash at most the operation of the log's last record is missing; it is then written at start.

Requirements: TX-03..TX-10.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Iterator
from typing import Final

from saturnmq.broker.services.delay import FLUSH_WAIT_MS, restored
from saturnmq.broker.services.half_table import (
    CheckAction,
    CheckLimits,
    HalfTable,
    TransactionOutcome,
    UndecidedHalf,
    immunity_ms,
)
from saturnmq.broker.services.periodic import WakeableSleep
from saturnmq.broker.services.statistics import Stats
from saturnmq.broker.settings import BrokerSettings
from saturnmq.broker.state.clients import Clients
from saturnmq.broker.state.identity import Identity
from saturnmq.broker.state.offsets import Offsets
from saturnmq.broker.state.topics import Topics
from saturnmq.net import ConnectFailed, Connection
from saturnmq.protocol.codes import (
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    TRANSACTION_MASK,
    PropertyKey,
    RequestCode,
    ResponseCode,
    SysFlag,
)
from saturnmq.protocol.errors import LocalProtocolError, MessageError, StoreError, response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers.messaging import CheckTransactionState, EndTransaction
from saturnmq.protocol.ids import UniqueIds, offset_message_id
from saturnmq.protocol.message import (
    PROPERTIES_BYTES_MAX,
    Message,
    decode_record,
    encode_properties,
    encode_record,
)
from saturnmq.protocol.offsets import PhysicalOffset, QueueOffset
from saturnmq.protocol.properties import DELAYS, MessageProperties, with_property
from saturnmq.slices import Pace, finish, joined
from saturnmq.store import MessageStore, PutResult, PutStatus, StateFile, wait_confirmed
from saturnmq.store.queue.consume_queue import ConsumeQueue
from saturnmq.tasks import OnFailure, cancel, supervised

log = logging.getLogger(__name__)

GROUP: Final = "CID_RMQ_SYS_TRANS"
REMOVE_TAG: Final = "d"
QUEUE: Final = 0
_TRIES: Final = 3
_MEMBERS_ASKED_MAX: Final = 1000  # members of a producer group looked at for one that has the right
_RETRY_SECONDS: Final = 10
_COMMIT: Final = int(SysFlag.COMMIT)
_ROLLBACK: Final = int(SysFlag.ROLLBACK)

Answer = tuple[int, str | None]


def as_half(topic: str, queue_id: int, properties: MessageProperties, group: str) -> str:
    """Properties under which a transactional message is stored in the half topic (TX-03). Raises ResponseError 13."""
    # A half message is not visible; when its delay should begin is not defined.
    for name in DELAYS:
        delay = properties.special.get(name, "0")
        if delay != "0":
            problem = f"delay and transaction do not combine, and property {name} is {delay!r:.20}; send it without"
            raise response_error(ResponseCode.MESSAGE_ILLEGAL, problem)
    text = properties.text
    # The property decides who is asked; producers of old releases leave it out.
    if PropertyKey.PGROUP not in properties.special:
        text = with_property(text, PropertyKey.PGROUP, group)
    text = with_property(text, PropertyKey.REAL_TOPIC, topic)
    return with_property(text, PropertyKey.REAL_QID, str(queue_id))


class Transactions:
    """All half messages of a broker.

    Everything but the start-up scan, `round` and saving completes within one event-loop iteration.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        store: MessageStore,
        file: StateFile,
        *,
        topics: Topics,
        offsets: Offsets,
        clients: Clients,
        stats: Stats,
        identity: Identity,
        clock_ms: Callable[[], int],
        may_decide: Callable[[Connection, str], bool] = lambda connection, topic: True,
    ) -> None:
        """may_decide: whether the client of a connection may see and decide half messages of a topic."""
        kept_ms = store.settings.file_reserved_hours * 3_600_000
        limits = CheckLimits(
            settings.transaction_timeout_ms, settings.transaction_check_max, kept_ms, settings.half_messages_max
        )
        self.table = HalfTable(limits)
        self.ready = False  # all half messages from before the start are loaded
        self._interval_ms = settings.transaction_interval_ms
        self._topics = topics
        self._offsets = offsets
        self._clients = clients
        self._may_decide = may_decide
        self._stats = stats
        self._identity = identity
        self._clock_ms = clock_ms
        self._store = store
        self._file = file
        self._saved_checks: dict[int, tuple[int, int]] = {}  # loaded at start: offset -> (physical offset, checks)
        self._unwritten: list[int] = []  # decided, but storing the operation failed
        self._finished: set[int] = set()  # decided by the recovery of the last commit, before the scan
        self._ends = (QueueOffset(0), QueueOffset(0))  # of half and operation queue at the start
        # Log end, half and operation offset; the offsets are published once the log is durable up to that end.
        self._next: tuple[PhysicalOffset, int, int] | None = None
        self._written = b""
        self._task: asyncio.Task[None] | None = None
        self._sleep = WakeableSleep()
        self._ids: UniqueIds | None = None

    # ---- lifecycle

    def load(self) -> None:
        """Load saved check counts and the queue bounds; the store is open. Raises CorruptRecord, StoreError."""
        self._saved_checks = self._file.read(_parse_checks) or {}
        half, op = self._queue(HALF_TOPIC), self._queue(OP_HALF_TOPIC)
        self._ends = (half.next_offset if half else QueueOffset(0), op.next_offset if op else QueueOffset(0))
        # Nothing to read: transactions can end from the first request on.
        self.ready = self._ends[0] == self._progress(HALF_TOPIC)
        # After the bounds are taken: the operation that it writes lies after them and is not read again.
        self._finish_last_commit()

    def start(self, on_failure: OnFailure) -> None:
        """Scan for undecided messages from before the start, then check those that are due every transactionCheckInterval."""
        if self._task is None:
            self._task = supervised(self._run(), "transaction checks", on_failure)

    async def abort(self) -> None:
        """Stop checking without saving check counts and progress."""
        task, self._task = self._task, None
        await cancel(task)

    async def stop(self) -> None:
        """Stop checking; save check counts and progress."""
        running = self._task is not None
        await self.abort()
        # Without a run there is nothing new to save.
        if running:
            await self._save()
        self.note_progress()
        # A store that failed confirms nothing any more.
        if self._next is not None and self._store.failure is None:
            await wait_confirmed(self._store.log, self._next[0], FLUSH_WAIT_MS)
        self.note_progress()

    def wake(self) -> None:
        """Run the next round now, after the clock was set."""
        self._sleep.wake()

    async def _run(self) -> None:
        while not self.ready:
            try:
                await self._scan()
            # Read again from the beginning: decisions must not be missed.
            except (StoreError, OSError):
                log.exception("scan of half messages failed retry_s=%s", _RETRY_SECONDS)
                await asyncio.sleep(_RETRY_SECONDS)
        while True:
            await self._sleep.sleep(self._interval_ms / 1000)
            try:
                await self.round()
            except Exception:
                log.exception("check of half messages failed, retried in the next round")

    # ---- recovery

    def _queue(self, topic: str) -> ConsumeQueue | None:
        return self._store.queues.get((topic, QUEUE))

    def _progress(self, topic: str) -> QueueOffset:
        """Saved progress, clamped to the bounds of the queue."""
        queue, offset = self._queue(topic), QueueOffset(self._offsets.get(topic, GROUP, QUEUE) or 0)
        return min(max(offset, queue.min_offset), queue.next_offset) if queue else QueueOffset(0)

    async def _scan(self) -> None:
        half_from, op_from = self._progress(HALF_TOPIC), self._progress(OP_HALF_TOPIC)
        decided, pace = self._finished, Pace()
        # Operations first: half messages that they decide are left out below.
        for message in self._records(OP_HALF_TOPIC, op_from, self._ends[1]):
            decided.update(offset for offset in _decided_by(message) if offset >= half_from)
            await pace.step()
        for message in self._records(HALF_TOPIC, half_from, self._ends[0]):
            if message.queue_offset not in decided:
                half = self._half(message, op_from)
                physical, checks = self._saved_checks.get(half.offset, (-1, 0))
                # The count belongs to this record, not to an older one with the same queue offset.
                if physical == half.physical:
                    half.checks = max(half.checks, checks)
                self.table.add(half)
            await pace.step()
        self._saved_checks, self._finished = {}, set()
        self.ready = True
        log.info("half messages read from=%s to=%s undecided=%s", half_from, self._ends[0], len(self.table.pending))

    def _records(self, topic: str, start: QueueOffset, end: QueueOffset) -> Iterator[Message]:
        """Intact messages of a system topic's queue; damaged ones are logged and skipped."""
        queue = self._queue(topic)
        for offset, (physical, _, _) in queue.units(start, end - start) if queue else ():
            message = self._message_at(physical, topic)
            # The unit points to a record of another place.
            if message is not None and message.queue_offset == offset:
                yield message
            else:
                log.error("damaged message skipped topic=%s offset=%s physical_offset=%s", topic, offset, physical)

    def producer_group(self, physical: PhysicalOffset) -> str:
        """Producer group of the half message at a physical offset; "" if there is no intact one."""
        message = self._message_at(physical, HALF_TOPIC)
        return message.properties.get(PropertyKey.PGROUP, "") if message is not None else ""

    def _message_at(self, physical: PhysicalOffset, topic: str) -> Message | None:
        record = self._store.read_record(physical) if physical >= 0 else None
        try:
            message = decode_record(record, check_crc=True) if record is not None else None
            has_properties = message is not None and message.properties is not None
        except MessageError:
            return None
        # The record at this offset may be of another topic or a leftover.
        is_at = has_properties and message and (message.topic, message.physical_offset) == (topic, physical)
        return message if is_at else None

    def _half(self, message: Message, op_floor: int) -> UndecidedHalf:
        requested = message.properties.get(PropertyKey.CHECK_IMMUNITY_TIME_IN_SECONDS)
        immune_ms = immunity_ms(requested, self.table.limits.timeout_ms)
        counted = message.properties.get(
            PropertyKey.TRANSACTION_CHECK_TIMES, ""
        )  # 4.9.7 keeps the count in the message
        checks = int(counted[:9]) if counted.isascii() and counted.isdigit() else 0
        return UndecidedHalf(
            message.queue_offset,
            message.physical_offset,
            message.store_timestamp_ms,
            immune_ms,
            op_floor,
            checks,
            message.properties.get(PropertyKey.PGROUP, ""),
            message.born_host.ip,
        )

    def _finish_last_commit(self) -> None:
        """If the log ends with a commit whose operation was lost in a crash, write that operation now."""
        queues = self._store.queues.by_key.values()
        # The queue whose last record is the last of the log.
        last = max(queues, key=lambda queue: queue.max_physical, default=None)
        unit = last.unit(QueueOffset(last.max_offset - 1)) if last is not None else None
        record = self._store.read_record(unit[0]) if unit is not None else None
        try:
            message = decode_record(record) if record is not None else None
        except MessageError:
            return
        # Only the last record can be without its operation: both are appended in one step.
        if message is None or message.sys_flag & TRANSACTION_MASK != _COMMIT:
            return
        half = self._message_at(PhysicalOffset(message.prepared_transaction_offset), HALF_TOPIC)
        # Below the progress it was decided before, and the decision is published.
        if half is not None and half.queue_offset >= self._progress(HALF_TOPIC):
            log.warning("operation of the last commit missing, written now offset=%s", half.queue_offset)
            self._write_op(half.queue_offset)
            self._finished.add(half.queue_offset)

    # ---- incoming half messages

    def problem(self, group: str, host: str) -> str | None:
        """Why a half message of a producer group is rejected, or None (LIM-13). host: the producer's address."""
        return self.table.problem(group, host)

    def prepared(self, message: Message, result: PutResult) -> None:
        """Register a half message after its put."""
        if result.status is PutStatus.PUT_OK:
            # The broker's own topic is made with its first half message.
            self._topics.ensure(HALF_TOPIC, 1)
            op = self._queue(OP_HALF_TOPIC)
            self.table.add(self._half(message, op.next_offset if op else 0))

    # ---- compiled code, which stores the records itself (`hot/sends.py`)

    def add(
        self, offset: int, physical: int, stored_ms: int, immunity: str | None, op_floor: int, group: str, host: str
    ) -> None:
        """Register a half message that was stored. immunity: its property CHECK_IMMUNITY_TIME_IN_SECONDS."""
        immune_ms = immunity_ms(immunity, self.table.limits.timeout_ms)
        self.table.add(
            UndecidedHalf(QueueOffset(offset), PhysicalOffset(physical), stored_ms, immune_ms, op_floor, 0, group, host)
        )

    def is_undecided(self, offset: int, physical: int) -> bool:
        """Whether the half message with these offsets in its queue and in the log can be decided."""
        half = self.table.pending.get(offset) if self.ready else None
        return half is not None and half.physical == physical

    def decided(self, offset: int, is_commit: bool) -> None:
        """Note a decision whose operation is stored."""
        self.table.settle(offset, TransactionOutcome.COMMITTED if is_commit else TransactionOutcome.ROLLED_BACK)

    def resume(self, physical: PhysicalOffset) -> bool:
        """Move a discarded message back to the half topic (TX-08). False if it is not one or cannot be stored."""
        message = self._message_at(physical, CHECK_MAX_TIME_TOPIC)
        if message is None:
            return False
        properties = with_property(message.properties_raw.decode(), PropertyKey.TRANSACTION_CHECK_TIMES, "0")
        half = _copied_to(message, HALF_TOPIC, properties.encode())
        result = self._store.put(half)
        self.prepared(half, result)
        return result.status is PutStatus.PUT_OK

    # ---- commit and rollback

    def end(self, header: EndTransaction) -> Answer:
        """Commit or roll back (TX-04, TX-05); repeating the same decision succeeds, a contrary one is an error."""
        # Before the scan is complete, an undecided half message cannot be distinguished from a decided one.
        if not self.ready:
            return ResponseCode.SYSTEM_ERROR, "the broker is still reading its half messages, it will ask later"
        message = self._message_at(PhysicalOffset(header.commit_log_offset), HALF_TOPIC)
        if message is None:
            return ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed"
        # The caller must belong to the group that owns the half message.
        if message.properties.get(PropertyKey.PGROUP) != header.producer_group:
            return ResponseCode.SYSTEM_ERROR, "The producer group wrong"
        if message.queue_offset != header.tran_state_table_offset:
            return ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong"
        decision = (
            TransactionOutcome.COMMITTED if header.commit_or_rollback == _COMMIT else TransactionOutcome.ROLLED_BACK
        )
        half = self.table.pending.get(message.queue_offset)
        # A decided one, or another half message with this offset before a restart.
        if half is None or half.physical != message.physical_offset:
            return self._repeated(message.queue_offset, decision)
        if decision is TransactionOutcome.COMMITTED:
            failure = self._commit(message)
            if failure is not None:
                return failure
        # Before the operation: if that fails, it is written in the next round.
        self.table.settle(half.offset, decision)
        self._write_op(half.offset)
        return ResponseCode.SUCCESS, None

    def _repeated(self, offset: int, decision: TransactionOutcome) -> Answer:
        recorded = self.table.outcome(offset)
        if recorded is decision:
            return ResponseCode.SUCCESS, None
        was = recorded.value if recorded is not None else "decided before"
        return ResponseCode.SYSTEM_ERROR, f"half message {offset} cannot be {decision.value}: it was {was}"

    def _commit(self, half: Message) -> Answer | None:
        try:
            message = restored(half)
        except MessageError as error:
            return ResponseCode.SYSTEM_ERROR, error.message
        # As Apache marks it: recovery finds the half message by the prepared offset.
        message.sys_flag = message.sys_flag & ~TRANSACTION_MASK | _COMMIT
        message.prepared_transaction_offset = half.physical_offset
        result = self._store.put(message)
        if result.status is not PutStatus.PUT_OK:
            code = ResponseCode.SYSTEM_ERROR
            if result.status is PutStatus.SERVICE_NOT_AVAILABLE:
                code = ResponseCode.SERVICE_NOT_AVAILABLE
            return code, f"{result.status.value} {result.reason}".strip()
        self._stats.put(message.topic, 1, result.size)
        return None

    def _write_op(self, offset: int) -> None:
        """Record in the operation topic that a half message is decided (TX-06); retried in the next round if the put fails."""
        now, host = self._clock_ms(), self._identity.store_host
        message = Message(OP_HALF_TOPIC, str(offset).encode(), self.operation_properties(now), QUEUE)
        message.born_timestamp_ms, message.born_host, message.store_host = now, host, host
        result = self._store.put(message)
        if result.status is not PutStatus.PUT_OK:
            log.error("operation on half message not stored, retried offset=%s reason=%s", offset, result.reason)
            # In memory only: after a crash the message is checked again, and the producer answers.
            self._unwritten.append(offset)

    def operation_properties(self, now_ms: int) -> bytes:
        """Properties of the next operation message."""
        if self._ids is None:
            self._ids = UniqueIds(self._identity.store_host[0], os.getpid(), id(self), now_ms)
        return encode_properties({PropertyKey.TAGS: REMOVE_TAG, PropertyKey.UNIQ_KEY: self._ids.next(now_ms)})

    # ---- checks

    async def round(self) -> set[int]:
        """Check or discard what is due (TX-07..TX-10). Returns the queue offsets that a producer was asked about."""
        checked: set[int] = set()
        if not self.ready:
            return checked
        owed, self._unwritten = self._unwritten, []
        for offset in owed:
            self._write_op(offset)
        without_producer: dict[str, int] = {}
        now_ms, pace = self._clock_ms(), Pace()
        # Decisions remove entries while this loop is suspended.
        for half in list(self.table.pending.values()):
            step = self.table.step(half, now_ms)
            # Decided meanwhile, and its place taken by another.
            if step is not None and self.table.pending.get(half.offset) is half:
                message = self._message_at(half.physical, HALF_TOPIC)
                if message is None and half.physical >= self._store.max_physical_offset:
                    continue  # not committed by the group yet: unreadable, and its sender has no response
                if message is None:
                    log.error("undecided half message expired offset=%s", half.offset)
                    self.table.settle(half.offset, TransactionOutcome.DISCARDED)
                elif step is CheckAction.DISCARD:
                    self._discard(half, message)
                elif self._check(half, message, without_producer):
                    checked.add(half.offset)
            await pace.step()
        for group, number in without_producer.items():
            log.warning("no live producer to check half messages group=%s count=%s", group, number)
        await self._save()
        return checked

    def _check(self, half: UndecidedHalf, message: Message, without_producer: dict[str, int]) -> bool:
        """Ask one live producer of the group; counts as a check even if none can be asked. Returns whether one was."""
        # Also without a producer: a group that is never online must not keep its messages for good (TX-08).
        half.checks += 1
        group = message.properties.get(PropertyKey.PGROUP, "")
        connection = self._producer(group, message.properties.get(PropertyKey.REAL_TOPIC, ""))
        if connection is None:
            without_producer[group] = without_producer.get(group, 0) + 1
            return False
        unique = message.properties.get(PropertyKey.UNIQ_KEY)
        header = CheckTransactionState(
            tran_state_table_offset=half.offset,
            commit_log_offset=half.physical,
            msg_id=unique,
            transaction_id=unique,
            offset_msg_id=offset_message_id(message.store_host, half.physical),
        )
        try:
            body = _check_record(message, half.checks)
            connection.invoke_oneway(Command(RequestCode.CHECK_TRANSACTION_STATE, ext=header.to_ext(), body=body))
        except (ConnectFailed, MessageError, LocalProtocolError) as error:
            log.warning("check of half message not sent offset=%s error=%s", half.offset, error)
            return False
        return True

    def _producer(self, group: str, topic: str) -> Connection | None:
        """The group's next producer, round robin, that is open, drains its output (TX-09) and has the right; None without any."""
        # Congested ones count against the tries, those without the right do not.
        tries = _TRIES
        for _ in range(_MEMBERS_ASKED_MAX):
            connection = self._clients.next_producer(group)
            if connection is None:
                return None
            if not self._may_decide(connection, topic):
                continue
            if not (connection.closed or connection.output_full):
                return connection
            tries -= 1
            if not tries:
                return None
        return None

    def _discard(self, half: UndecidedHalf, message: Message) -> None:
        """Move the half message to TRANS_CHECK_MAX_TIME_TOPIC, for an operator (TX-08)."""
        self._topics.ensure(CHECK_MAX_TIME_TOPIC, 1)
        properties = with_property(
            message.properties_raw.decode(), PropertyKey.TRANSACTION_CHECK_TIMES, str(half.checks)
        ).encode()
        # The count does not fit: the message is moved without it.
        if len(properties) > PROPERTIES_BYTES_MAX:
            properties = message.properties_raw
        result = self._store.put(_copied_to(message, CHECK_MAX_TIME_TOPIC, properties))
        if result.status is not PutStatus.PUT_OK:
            log.error("half message not discarded, retried offset=%s reason=%s", half.offset, result.reason)
            return
        log.warning("half message discarded offset=%s group=%s key=%s checks=%s topic=%s", half.offset,
                    message.properties.get(PropertyKey.PGROUP), message.properties.get(PropertyKey.UNIQ_KEY), half.checks,
                    CHECK_MAX_TIME_TOPIC)  # fmt: skip
        self.table.settle(half.offset, TransactionOutcome.DISCARDED)
        self._write_op(half.offset)

    # ---- progress

    def note_progress(self) -> None:
        """Publish the progress once its log is durable, so that no half message is forgotten before its decision is durable."""
        if not self.ready:
            return
        # The progress may be published only when the log that it counts is durable.
        if self._next is not None and self._store.flushed_offset >= self._next[0]:
            for topic, offset in zip((HALF_TOPIC, OP_HALF_TOPIC), self._next[1:], strict=True):
                if self._queue(topic) is not None:
                    self._offsets.set(topic, GROUP, QUEUE, offset)
            self._next = None
        # A new pair is taken only after the last one is published.
        if self._next is None:
            half, op = self._queue(HALF_TOPIC), self._queue(OP_HALF_TOPIC)
            ends = (half.next_offset if half else QueueOffset(0), op.next_offset if op else QueueOffset(0))
            self._next = (self._store.log.end, *self.table.progress(*ends))

    async def _save(self) -> None:
        """Save the check counts for the next start; a failure is logged and loses the counts since the last success."""
        checked_halves = [half for half in self.table.pending.values() if half.checks]
        data = await finish(joined(_checks_pieces(checked_halves)))
        # Nothing changed, or nothing to remove.
        if data == self._written or (not checked_halves and not self._written):
            return
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._file.write, data)
            self._written = data
        except StoreError as error:
            log.error("check counts of half messages not saved error=%s", error.message)


def _checks_pieces(checked_halves: list[UndecidedHalf]) -> Iterator[bytes]:
    mark = b'{"asked":{'
    for half in checked_halves:
        yield mark + b'"%d":[%d,%d]' % (half.offset, half.physical, half.checks)
        mark = b","
    yield b"}}" if checked_halves else mark + b"}}"


def _parse_checks(data: bytes) -> dict[int, tuple[int, int]]:
    return {int(offset): (int(physical), int(times)) for offset, (physical, times) in json.loads(data)["asked"].items()}


def _decided_by(operation: Message) -> Iterator[int]:
    """Queue offsets of half messages named by an operation message."""
    if operation.tags == REMOVE_TAG:
        # Apache RocketMQ 5 writes several offsets into one operation.
        for digits in bytes(operation.body).split(b","):
            if digits.isdigit():
                yield int(digits)


def _copied_to(message: Message, topic: str, properties: bytes) -> Message:
    """A copy of the message under a system topic, without transaction flags."""
    return Message(
        topic,
        message.body,
        properties,
        QUEUE,
        message.flag,
        message.sys_flag & ~TRANSACTION_MASK,
        message.born_timestamp_ms,
        message.born_host,
        message.store_host,
        message.reconsume_times,
    )


def _check_record(half: Message, times: int) -> bytes:
    """Record for a check: the message as it would be committed, at the offsets of the half message (TX-09)."""
    message = restored(half)
    # By the count the producer sees how often it was asked.
    text = with_property(half.properties_raw.decode(), PropertyKey.TRANSACTION_CHECK_TIMES, str(times)).encode()
    message.properties_raw = text if len(text) <= PROPERTIES_BYTES_MAX else half.properties_raw
    message.queue_offset, message.physical_offset = half.queue_offset, half.physical_offset
    message.store_timestamp_ms = half.store_timestamp_ms
    return encode_record(message)
