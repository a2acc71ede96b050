"""Plain sends from the frames to the answers, with the work per message in compiled code.

    bytes -> frame -> header -> record in the log -> unit of the queue -> entry for the index -> answer

`Sends.feed` takes the frames at the start of what was read as long as they are plain sends (see `send_header`) to a queue that
exists. The first frame that is anything else ends it: `feed` returns its position, and the reference implementation handles it and
what follows. A client notices no difference: for the frames that it takes, `feed` leaves the bytes, counters and answers of
`broker/requests/send.py`.

Where sends are acknowledged at once, records are written here. Where they wait for the disk, a slave or a group, `put_soon` gets
the values of each, and appends those of an iteration together.

What all messages up to the next `finish` share is looked up once: the file, the time, the settings of topics, the counters. Nothing
else may use the store in between: the calls from the first `feed` to `finish` are one step of the event loop
(`net/plain_reads.py`). `finish` makes the records visible; the answers are to be written after that.

A half message is a send whose record goes to the half topic. The end of its transaction (`halves`) appends the message, if it is a
commit, and the operation that records the decision. Both need a store that acknowledges at once.

`sends.pxd` declares types for Cython.

Requirements: SND-01..SND-15, API-10, TX-03..TX-06.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, perf_counter_ns
from typing import Any

from saturnmq.hot.answer_frame import OpaqueFrame
from saturnmq.hot.halves import EndHeader, HalfProperties, HalfRecord
from saturnmq.hot.header import unescaped
from saturnmq.hot.numbers import int32, put32, put64
from saturnmq.hot.send_header import SendHeader
from saturnmq.protocol.codes import (
    FORBIDDEN_SEND_TOPICS,
    GROUP_LENGTH_MAX,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    TRANSACTION_MASK,
    CommandFlag,
    RequestCode,
    SysFlag,
)
from saturnmq.protocol.crc import crc32
from saturnmq.protocol.frames.command import Serialization
from saturnmq.protocol.message import (
    BATCH_MESSAGES_MAX,
    MESSAGE_MAGIC,
    PROPERTIES_BYTES_MAX,
    RECORD_FIXED_BYTES,
    RECORD_V4,
    pack_host,
)
from saturnmq.protocol.properties import tags_code

_ONEWAY = int(CommandFlag.ONEWAY)
_TRANSACTION = int(TRANSACTION_MASK)
_COMMIT = int(SysFlag.COMMIT)
_END_CODE = int(RequestCode.END_TRANSACTION)
_OPERATION_TAGS = b"TAGS\1d"  # the tag of Apache's operation messages (REMOVETAG)
# The broker sets these bits itself: the address family of both hosts, and what the message is in a transaction.
_STORED_FLAGS = ~int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6 | TRANSACTION_MASK)
_GROUP_LENGTH_MAX = GROUP_LENGTH_MAX
_FIXED_BYTES = RECORD_FIXED_BYTES
_PROPERTIES_MAX = PROPERTIES_BYTES_MAX
_BATCH_MAX = BATCH_MESSAGES_MAX
_ENTRY_BYTES = 20  # of a message of a batch before its body; two bytes follow it
_CLOCK_FRAMES = 16  # between two looks at the clock
_CODES_MAX = 10_000
_PREFIX_BYTES = 8  # of a frame before its header
_HOST_BYTES = 8  # of IPv4
_PAIR_END = 2  # the byte behind a property
_SERIALIZATIONS = (Serialization.JSON, Serialization.ROCKETMQ)
# Positions in the first 88 bytes of a record (RECORD_V4).
_AT_SIZE, _AT_MAGIC, _AT_CRC, _AT_QUEUE_ID, _AT_FLAG, _AT_QUEUE_OFFSET, _AT_PHYSICAL, _AT_SYS_FLAG, _AT_BORN_MS = (
    0,
    4,
    8,
    12,
    16,
    20,
    28,
    36,
    40,
)
_AT_BORN_HOST, _AT_STORE_MS, _AT_STORE_HOST, _AT_RECONSUME, _AT_PREPARED, _AT_BODY_BYTES = 48, 56, 64, 72, 76, 84


class QueueBatch:
    """The messages for one queue. units: (physical offset, size, tags code) of each. requests: none in the operation queue."""

    def __init__(self, topic: str, queue_id: int, queue: object, next_offset: int) -> None:
        raw = topic.encode()
        self.topic, self.queue_id, self.queue = topic, queue_id, queue
        self.topic_block = bytes((len(raw),)) + raw
        self.first_offset = self.next_offset = next_offset
        self.bytes = self.requests = 0
        self.units: list[tuple[int, int, int]] = []


class Sends:
    """Takes plain sends, and ends of transactions, for one broker.

    context: the services of sends (`broker/requests/context.SendContext`). serves: whether this broker takes sends of clients now.
    limits: of frames (`FrameLimits`). unflushed: messages of more bytes than the first number are left to the reference
    implementation while more bytes of the log than the second are not durable. confirmation: the answer to senders that ask how a
    message is confirmed. put_soon: stores a message that is confirmed later and answers it; whether the connection may send more.
    ended: the answer to an end of a transaction. admits: whether access control allows a request; None without access control,
    with which ends are left to the reference implementation.
    """

    def __init__(
        self,
        context: Any,
        serves: Callable[[], bool],
        limits: Any,
        unflushed: tuple[int, int],
        confirmation: Callable[[], Any],
        put_soon: Callable[..., bool],
        ended: OpaqueFrame,
        admits: Callable[..., bool] | None = None,
    ) -> None:
        self._small_bytes, self._unflushed_bytes = unflushed
        self._context = context
        self._serves = serves
        self._put_soon, self._ended, self._admits = put_soon, ended, admits
        self._store = context.store
        self._confirmation = confirmation
        self._length_max = limits.frame_bytes_max - 4
        self._header_bytes_max = limits.header_bytes_max
        self._header = SendHeader(limits.ext_fields_max, signed=admits is not None)
        self._suffix = context.cluster_suffix.encode()
        self._end_header = EndHeader(limits.ext_fields_max)
        self._half = HalfRecord()
        self._half_properties = HalfProperties()
        self._transactions: Any = None
        self._head, self._operation_head = bytearray(RECORD_V4.size), bytearray(RECORD_V4.size)
        self._length = bytearray(2)  # of the properties
        # Of the properties that were looked through: where the first WAIT is (-1 if there is none), and the first TAGS.
        self._wait_at = self._wait_end = -1
        self._has_cluster = self._is_half = False
        self._tags = b""
        put32(self._head, _AT_MAGIC, MESSAGE_MAGIC & 0xFFFFFFFF)
        put32(self._operation_head, _AT_MAGIC, MESSAGE_MAGIC & 0xFFFFFFFF)
        self._host = b""
        self._ip = ""  # of the sender; "" if it was not needed yet
        self._store_host: Any = None
        self._codes: dict[bytes, int] = {}
        self._topics: dict[bytes, dict[int, QueueBatch]] = {}
        self._system: dict[str, QueueBatch] = {}  # by topic of the broker: no send of a client finds them
        self._records: list[tuple[str, bytes, int, int]] = []
        self._sums: list[tuple[int, int, int]] = []
        self._space: Any = None
        self._answers: Any = None
        self._stating: Any = None
        self._file_start = self._file_end = self._end = self._durable = self._store_ms = 0
        self._body_bytes_max = 0
        self._indexed = self._has_sums = self._is_open = self._is_soon = self._is_full = self._takes_halves = False
        self._taken: dict[int, int] = {}  # sends by request code
        self._began_ns = 0

    def feed(self, data: bytes, until: float, reader: Any) -> int:
        """Take the plain sends at the start of data and append their answers to `reader.out`, to be written after `finish`.

        Returns the position of the first frame that is left. reader: the connection; `packed_host` is the peer's IPv4 address and
        port as in a record. until: time.monotonic() after which no other frame is begun.
        """
        host = reader.packed_host
        if len(host) != _HOST_BYTES or not (self._is_open or self._begin()):
            # A peer with an IPv6 address: its records have a longer head.
            return 0
        if host != self._host:
            self._head[_AT_BORN_HOST : _AT_BORN_HOST + _HOST_BYTES] = self._host = host
            self._ip = ""
        at = count = 0
        out = reader.out
        self._is_full = False
        while not self._is_full and self._take(data, at, reader, out):
            at = self._header.frame_end
            count += 1
            if count % _CLOCK_FRAMES == 0 and monotonic() > until:
                break
        return at

    def _begin(self) -> bool:
        """Look up what all sends until `finish` share; whether the broker takes plain sends now."""
        context, store = self._context, self._store
        settings = context.settings
        # Each of these makes the reference wait or reject: not serving yet, a start time in the future, too many sends in
        # flight, a topic that is not on disk yet, no free buffer in the transient pool.
        if (
            not self._serves()
            or settings.accept_send_from_ms
            or context.in_flight.sends >= settings.send_queue_max
            or context.topics.writer.dirty
            or store.busy
        ):
            return False
        self._is_soon = not store.acknowledges_at_once
        self._durable = store.flushed_offset
        self._body_bytes_max = store.settings.message_bytes_max
        self._answers = context.answers
        self._stating = None
        self._began_ns = perf_counter_ns()
        # `put_soon` places the records itself, and no file is needed here.
        if self._is_soon:
            self._end = store.log.end
            self._is_open = store.writable
            return self._is_open
        space = store.open_space()
        if space is None:
            return False
        self._space, self._file_start, self._file_end, self._end = space
        self._has_sums = store.log.sums is not None
        self._store_ms = store.next_store_ms()
        self._indexed = store.index_queue is not None
        self._transactions = context.master.transactions
        self._takes_halves = not settings.reject_transactions and HALF_TOPIC in context.topics.table
        head, operation = self._head, self._operation_head
        if context.identity.store_host is not self._store_host:
            self._store_host = context.identity.store_host
            packed = pack_host(self._store_host)
            head[_AT_STORE_HOST : _AT_STORE_HOST + _HOST_BYTES] = packed
            operation[_AT_STORE_HOST : _AT_STORE_HOST + _HOST_BYTES] = packed
            operation[_AT_BORN_HOST : _AT_BORN_HOST + _HOST_BYTES] = packed
        self._is_open = True
        return True

    def _take(self, data: bytes, at: int, reader: Any, answers: list[bytes]) -> bool:
        """Take the frame at data[at]; False, without effect, if it is no plain send or not complete."""
        header = self._header
        if not header.find(data, at, self._length_max, self._header_bytes_max):
            return False
        body_at, frame_end, serialization = header.body_at, header.frame_end, header.serialization
        if body_at == frame_end:
            # Of the requests taken here only the end of a transaction has no body.
            return self._end_transaction(data, at, answers)
        if not header.read(data, at + _PREFIX_BYTES, body_at, serialization):
            return False
        properties = self._properties(data)
        # The flag and the property TRAN_MSG contradict each other.
        if properties is None or (header.sys_flag & _TRANSACTION and not self._is_half):
            return False
        topic = data[header.topic_at : header.topic_end]
        batch = self._half_batch(topic) if self._is_half else self._batch_of(topic, header.queue_id)
        if batch is None:
            return False
        body_bytes = frame_end - body_at
        if body_bytes > self._body_bytes_max or (
            # The reference rejects a large message while much of the log waits for the disk.
            body_bytes > self._small_bytes and self._end - self._durable > self._unflushed_bytes
        ):
            return False
        # After the cheap checks: verifying a signature takes longer than all of them.
        if self._admits is not None and not self._admits(reader, header, data[body_at:frame_end], topic.decode(), ""):
            return False
        encoder = self._answers
        if header.asks:
            encoder = self._stating
            if encoder is None:
                # Once per iteration: how messages are confirmed cannot change within it.
                encoder = self._stating = self._answers.stating(self._confirmation())
        if self._is_soon:
            body = data[body_at:frame_end]
            self._is_full = not self._put_soon(
                reader, header, _SERIALIZATIONS[serialization], batch.topic, body, properties, encoder
            )
            return True
        first = len(batch.units)
        if header.is_batch:
            # It checks all messages before it writes the first.
            if not self._append_entries(batch, data, body_at, frame_end, properties):
                return False
        else:
            # RECORD_FIXED_BYTES and the topic's block both count the length byte of the topic.
            size = _FIXED_BYTES - 1 + body_bytes + len(batch.topic_block) + len(properties)
            if size > self._file_end - self._end:
                # The reference closes this file with a blank record and begins the next.
                return False
            self._append(batch, data[body_at:frame_end], properties, size, header.message_flag, header.reconsume_times)
            if self._is_half:
                self._note_half(batch)
        batch.requests += 1
        if header.flag != _ONEWAY:
            answers.append(self._answer(encoder, serialization, batch, first))
        self._taken[header.code] = self._taken.get(header.code, 0) + 1
        return True

    def _answer(self, encoder: Any, serialization: int, batch: QueueBatch, first: int) -> bytes:
        """The answer to a send whose messages are the last ones of the batch, from the unit `first` on."""
        header = self._header
        offset = batch.first_offset + first
        if header.is_batch:
            # The id of a batch lists one physical offset per message.
            offsets = [unit[0] for unit in batch.units[first:]]
            answer: bytes = encoder.batch(
                _SERIALIZATIONS[serialization], header.opaque, header.queue_id, offset, offsets
            )
            return answer
        physical = batch.units[first][0]
        frame = encoder.frames.get(header.queue_id * 2 + serialization)
        answer = frame.answer(header.opaque, offset, physical) if frame is not None else b""
        # The queue or physical offset has got another digit since the template was made.
        if not answer:
            answer = encoder.single_frame(
                _SERIALIZATIONS[serialization], header.opaque, header.queue_id, offset, physical
            )
        return answer

    def _batch_of(self, name: bytes, queue_id: int) -> QueueBatch | None:
        """The batch of a queue; None if a send to it is not plain."""
        queues = self._topics.get(name)
        if queues is None:
            queues = self._topics[name] = {}
        batch = queues.get(queue_id)
        if batch is not None:
            return batch
        topic = name.decode()
        if not self._is_plain(topic, queue_id):
            return None
        queue = self._store.queues.by_key.get((topic, queue_id))
        if not self._is_soon and (
            # The queue's units must be written up to its last message: units of this batch are appended directly after them.
            queue is None or queue.extension is not None or queue.next_offset != queue.max_offset
        ):
            return None
        first_offset = 0 if self._is_soon else queue.next_offset
        batch = queues[queue_id] = QueueBatch(topic, queue_id, queue, first_offset)
        return batch

    def _is_plain(self, topic: str, queue_id: int) -> bool:
        """Whether the topic has the queue, and nothing that makes a send more than plain."""
        config = self._context.topics.table.get(topic)
        return not (
            config is None
            # An ordered topic is answered by further rules; `%RETRY%` and `%DLQ%` belong to a group and are created on demand.
            or config.order
            or config.topic_filter_type != "SINGLE_TAG"
            or (queue_id >= config.write_queue_nums and queue_id >= config.read_queue_nums)
            or topic in FORBIDDEN_SEND_TOPICS
            or topic.startswith("%")
        )

    def _system_batch(self, topic: str) -> QueueBatch | None:
        """The batch of queue 0 of a topic of the broker; None if the reference implementation must write to it."""
        batch = self._system.get(topic)
        if batch is None:
            queue = self._store.queues.by_key.get((topic, 0))
            if queue is None or queue.extension is not None or queue.next_offset != queue.max_offset:
                return None
            batch = self._system[topic] = QueueBatch(topic, 0, queue, queue.next_offset)
        return batch

    # ---- transactions

    def _half_batch(self, name: bytes) -> QueueBatch | None:
        """The batch of the half queue; None if the half message for this topic is not plain, or there is no place for it.

        The queue for which it is need not exist before its commit.
        """
        # In the check the address names the caller for the quotas.
        group = self._half_properties.group.decode()
        if not self._ip:
            self._ip = ".".join([str(part) for part in self._host[:4]])
        if (
            len(group) > _GROUP_LENGTH_MAX
            or not self._is_plain(name.decode(), self._header.queue_id)
            or self._transactions.problem(group, self._ip) is not None
        ):
            return None
        return self._system_batch(HALF_TOPIC)

    def _note_half(self, batch: QueueBatch) -> None:
        """Register the half message that was appended last."""
        fields = self._half_properties
        immunity = None if fields.immunity is None else fields.immunity.decode()
        # No operation for this half can lie before this offset of the operation queue: recovery reads from here.
        operations = self._system_batch(OP_HALF_TOPIC)
        op_floor = 0 if operations is None else operations.next_offset
        physical = batch.units[-1][0]
        self._transactions.add(
            batch.next_offset - 1, physical, self._store_ms, immunity, op_floor, fields.group.decode(), self._ip
        )

    def _end_transaction(self, data: bytes, at: int, answers: list[bytes]) -> bool:
        """Take the frame at data[at], which has no body; False, without effect, if it is no plain end of a transaction."""
        frame, header, half = self._header, self._end_header, self._half
        if (
            # SYNC_FLUSH and groups confirm later, signed ends are remembered against repetition: both are the reference's.
            self._is_soon
            or self._admits is not None
            or not header.read(data, at + _PREFIX_BYTES, frame.body_at, frame.serialization)
        ):
            return False
        transactions = self._transactions
        record = self._store.read_record(header.physical)
        operations = self._system_batch(OP_HALF_TOPIC)
        if (
            operations is None
            or record is None
            or not half.read(record, header.physical)
            or half.fields.group != header.group
            or half.queue_offset != header.queue_offset
            # maxMessageSize may have been lowered since the half message was stored.
            or len(half.body) > self._body_bytes_max
            or not transactions.is_undecided(half.queue_offset, header.physical)
        ):
            return False
        size = 0
        batch = self._batch_of(half.fields.topic, half.fields.queue_id) if header.is_commit else operations
        if batch is None:
            return False
        if header.is_commit:
            size = _FIXED_BYTES - 1 + len(half.body) + len(batch.topic_block) + len(half.properties)
        now_ms = self._context.clock_ms()
        digits, properties = b"%d" % half.queue_offset, transactions.operation_properties(now_ms)
        operation_size = _FIXED_BYTES - 1 + len(digits) + len(operations.topic_block) + len(properties)
        # Message and operation must be neighbours in one file: the recovery of the last commit relies on it.
        if size + operation_size > self._file_end - self._end:
            return False
        if header.is_commit:
            head = bytearray(half.head)
            put32(head, _AT_SYS_FLAG, half.sys_flag & ~_TRANSACTION | _COMMIT)
            # A committed message names its half message, which marks the decision for recovery.
            put64(head, _AT_PREPARED, header.physical)
            self._tags = half.fields.tags
            self._write(batch, head, half.body, half.properties, size)
            batch.requests += 1
        transactions.decided(half.queue_offset, header.is_commit)
        put64(self._operation_head, _AT_BORN_MS, now_ms)
        self._tags = _OPERATION_TAGS
        self._write(operations, self._operation_head, digits, properties, operation_size)
        if header.flag != _ONEWAY:
            answers.append(self._ended.answer(frame.serialization, header.opaque))
        self._taken[_END_CODE] = self._taken.get(_END_CODE, 0) + 1
        return True

    # ---- messages

    def _properties(self, data: bytes) -> bytes | None:
        """The properties as they are stored; None if one of them makes a send more than plain."""
        header = self._header
        properties = data[header.properties_at : header.properties_end]
        if header.properties_escaped:
            properties = unescaped(properties)
        if not header.properties_plain:
            try:
                properties.decode()
            except UnicodeDecodeError:
                return None
        if not self._look_through(properties):
            return None
        # A sender that does not wait is acknowledged at once although the store confirms later.
        if self._is_soon and (header.is_batch or properties[self._wait_at : self._wait_end] == b"WAIT\1false"):
            return None
        # Apache RocketMQ stores WAIT only of batches; without it a record is nine bytes shorter.
        if self._wait_at >= 0 and not header.is_batch:
            properties = _without(properties, self._wait_at)
        # The name of this broker's cluster, in the suffix, replaces what the producer has set.
        if self._has_cluster:
            properties = _without(properties, _find(properties, b"CLUSTER\1"))
        # The suffix begins with a separator, which is needed only if the properties do not end with one.
        properties += self._suffix[1:] if not properties or properties[-1] == 2 else self._suffix
        if self._is_half:
            fields = self._half_properties
            if (
                header.is_batch
                or self._is_soon
                or not self._takes_halves
                or not fields.read(properties)
                or fields.topic
                or fields.queue_id >= 0
                or fields.has_checks
            ):
                return None
            topic = data[header.topic_at : header.topic_end]
            properties = b"%b\2REAL_TOPIC\1%b\2REAL_QID\1%d" % (properties, topic, header.queue_id)
        return properties if len(properties) <= _PROPERTIES_MAX else None

    def _look_through(self, properties: bytes) -> bool:
        """Note where the first properties of some names are; False if one makes a send more than plain."""
        self._wait_at = self._wait_end = -1
        self._has_cluster = self._is_half = False
        self._tags = b""
        if b"\0" in properties:
            return False
        at = 0
        end = len(properties)
        while at < end:
            # One byte decides for most properties, which have other names.
            first = properties[at]
            start = at
            while at < end and properties[at] != _PAIR_END:
                at += 1
            if first == 0x54:  # T
                if properties.startswith(b"TAGS\1", start):
                    if not self._tags:
                        self._tags = properties[start:at]
                elif properties.startswith(b"TRAN_MSG\1", start):
                    if self._is_half or properties[start:at] != b"TRAN_MSG\1true":
                        # Anything but one TRAN_MSG=true is judged by the reference.
                        return False
                    self._is_half = True
                # TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS: delayed messages.
                elif properties.startswith(b"TIMER_DEL", start):
                    return False
            elif first == 0x57:  # W
                if self._wait_at < 0 and properties.startswith(b"WAIT\1", start):
                    self._wait_at, self._wait_end = start, at
            elif first == 0x43:  # C
                self._has_cluster = self._has_cluster or properties.startswith(b"CLUSTER\1", start)
            elif first == 0x44 and properties.startswith(b"DELAY\1", start):  # D
                return False
            at += 1
        return True

    def _append_entries(self, batch: QueueBatch, data: bytes, at: int, end: int, common: bytes) -> bool:
        """Append the messages of a batch in data[at:end]; False, without effect, if one of them is not plain.

        common: the properties that each of them gets.
        """
        entries: list[tuple[int, int, int, bytes, bytes]] = []
        common_tags = self._tags
        room = self._file_end - self._end
        while at < end:
            if end - at < _ENTRY_BYTES + 2 or len(entries) >= _BATCH_MAX:
                return False
            total, flag, body_bytes = int32(data, at), int32(data, at + 12), int32(data, at + 16)
            if body_bytes < 0 or body_bytes > end - at - _ENTRY_BYTES - 2:
                return False
            body_end = at + _ENTRY_BYTES + body_bytes
            properties_at = body_end + 2
            first, second = data[body_end], data[body_end + 1]
            properties_end = properties_at + (first << 8 | second)
            if properties_end > end or total != properties_end - at:
                return False
            properties = data[properties_at:properties_end]
            # No half messages in a batch.
            if not self._look_through(properties) or self._is_half:
                return False
            if properties and properties[-1] != 2:
                properties += b"\2"
            properties += common
            size = _FIXED_BYTES - 1 + body_bytes + len(batch.topic_block) + len(properties)
            room -= size
            if room < 0 or len(properties) > _PROPERTIES_MAX:
                return False
            entries.append((at + _ENTRY_BYTES, body_end, flag, properties, self._tags or common_tags))
            at = properties_end
        # Each message is stored with the common properties: many small messages must not make a small request a large write.
        if len(common) * len(entries) > self._body_bytes_max:
            return False
        # Only now is anything written: all messages are plain and fit into the file.
        for at, body_end, flag, properties, tags in entries:
            self._tags = tags
            size = _FIXED_BYTES - 1 + body_end - at + len(batch.topic_block) + len(properties)
            self._append(batch, data[at:body_end], properties, size, flag, 0)
        return len(entries) > 0

    def _append(
        self, batch: QueueBatch, body: bytes, properties: bytes, size: int, flag: int, reconsume_times: int
    ) -> None:
        """Write a record with the values of the header of a send."""
        header, head = self._header, self._head
        put32(head, _AT_FLAG, flag)
        put32(head, _AT_SYS_FLAG, header.sys_flag & _STORED_FLAGS)
        put64(head, _AT_BORN_MS, header.born_ms)
        put32(head, _AT_RECONSUME, reconsume_times)
        self._write(batch, head, body, properties, size)

    def _write(self, batch: QueueBatch, head: bytearray, body: bytes, properties: bytes, size: int) -> None:
        """Write the record, and remember what follows from it until `finish`.

        head: all values of which are set but those that are numbers of the store, the queue, and what the body decides.
        """
        end = self._end
        put32(head, _AT_SIZE, size)
        put32(head, _AT_CRC, crc32(body) & 0x7FFFFFFF)
        put32(head, _AT_QUEUE_ID, batch.queue_id)
        put64(head, _AT_QUEUE_OFFSET, batch.next_offset)
        put64(head, _AT_PHYSICAL, end)
        put64(head, _AT_STORE_MS, self._store_ms)
        put32(head, _AT_BODY_BYTES, len(body))
        properties_bytes = len(properties)
        self._length[0] = properties_bytes >> 8
        self._length[1] = properties_bytes & 0xFF
        record = b"".join((head, body, batch.topic_block, self._length, properties))
        at = end - self._file_start
        # One assignment per record; a reader does not see it before `finish`, which moves the end of the log.
        self._space[at : at + size] = record
        if self._has_sums:
            self._sums.append((end, size, crc32(record)))
        batch.units.append((end, size, self._code() if self._tags else 0))
        batch.next_offset += 1
        batch.bytes += size
        if self._indexed:
            self._records.append((batch.topic, properties, end, self._store_ms))
        self._end = end + size

    def _code(self) -> int:
        """The tags code of the message."""
        code = self._codes.get(self._tags)
        if code is None:
            if len(self._codes) >= _CODES_MAX:
                self._codes.clear()
            code = self._codes[self._tags] = tags_code(self._tags)
        return code

    def finish(self) -> dict[int, int]:
        """Make the records visible, and count them. Returns the number of sends taken since the last call, by request code."""
        taken = self._taken
        if not self._is_open:
            return taken
        self._is_open = False
        self._taken = {}
        elapsed_ns = perf_counter_ns() - self._began_ns
        batches = [batch for queues in self._topics.values() for batch in queues.values() if batch.units]
        batches += [batch for batch in self._system.values() if batch.units]
        records, self._records = self._records, []
        sums, self._sums = self._sums, []
        self._space = None
        self._topics.clear()
        self._system.clear()
        # Nothing was written here: `put_soon` has appended what came.
        if not batches:
            return taken
        shares = [(batch.topic, batch.queue_id, batch.queue, batch.first_offset, batch.units) for batch in batches]
        self._store.fill_space(self._end, shares, records, sums)
        appends = 0
        for batch in batches:
            # A batch of a request is one append; operations of transactions belong to no request and count one by one.
            appends += batch.requests if batch.requests else len(batch.units)
        self._store.append_watch.note(elapsed_ns / 1e9, appends)
        for batch in batches:
            if not batch.requests:
                continue
            each_ns = elapsed_ns // appends
            self._context.stats.put(batch.topic, len(batch.units), batch.bytes, each_ns, requests=batch.requests)
        return taken


def _find(properties: bytes, name: bytes) -> int:
    """The position of the first property with this name; -1 if there is none."""
    at = properties.find(name)
    while at > 0 and properties[at - 1] != 2:
        at = properties.find(name, at + 1)
    return at


def _without(properties: bytes, at: int) -> bytes:
    """The properties without the one at a position."""
    end = properties.find(b"\2", at)
    return properties[: max(at - 1, 0)] if end < 0 else properties[:at] + properties[end + 1 :]
