"""Reads what decides about a transaction: the header of its end, the record of its half message, and the properties of both.

A half message is plain if it says once, and with a value, which producer group decides about it, and a record of one also for
which topic and queue it is. The rules of broker/services/transactions.py are the reference: what is not plain here is left to it.

`halves.pxd` declares types for Cython.

Requirements: TX-03..TX-06.
"""

from __future__ import annotations

from saturnmq.hot.header import HeaderReader
from saturnmq.hot.numbers import int16, int32, int64
from saturnmq.protocol.codes import HALF_TOPIC, RequestCode, SysFlag
from saturnmq.protocol.crc import crc32
from saturnmq.protocol.message import HOSTS_V6, MESSAGE_MAGIC, RECORD_V4

_END = int(RequestCode.END_TRANSACTION)
_COMMIT, _ROLLBACK = int(SysFlag.COMMIT), int(SysFlag.ROLLBACK)
_ONEWAY = 2  # CommandFlag.ONEWAY
_GROUP, _QUEUE_OFFSET, _PHYSICAL, _DECISION, _FROM_CHECK, _ID, _TRANSACTION, _BROKER = (1 << bit for bit in range(8))
_FIELDS = {
    b"producerGroup": _GROUP, b"tranStateTableOffset": _QUEUE_OFFSET, b"commitLogOffset": _PHYSICAL,
    b"commitOrRollback": _DECISION, b"fromTransactionCheck": _FROM_CHECK, b"msgId": _ID, b"transactionId": _TRANSACTION,
    b"bname": _BROKER,
}  # fmt: skip
_REQUIRED = _GROUP | _QUEUE_OFFSET | _PHYSICAL | _DECISION | _ID
_PAIR_END = 2  # the byte behind a property
_QUEUE_DIGITS = 9
_HALF_TOPIC = HALF_TOPIC.encode()
_HOSTS_V6 = int(HOSTS_V6)
_MAGIC = MESSAGE_MAGIC
# Positions in a record (RECORD_V4), and how long its head is.
_AT_MAGIC, _AT_CRC, _AT_QUEUE_OFFSET, _AT_PHYSICAL, _AT_SYS_FLAG, _AT_BODY_BYTES = 4, 8, 20, 28, 36, 84
_HEAD_BYTES = RECORD_V4.size


class EndHeader(HeaderReader):
    """The values of the last header of END_TRANSACTION that `read` accepted: a commit or a rollback."""

    def __init__(self, fields_max: int) -> None:
        super().__init__(fields_max)
        self.group = b""
        self.queue_offset = self.physical = 0
        self.is_commit = False

    def read(self, data: bytes, at: int, end: int, serialization: int) -> bool:
        """Whether the header in data[at:end] is that of a plain end; the attributes have its values then."""
        return (
            self._read(data, at, end, serialization)
            # The other fields are optional: clients of 4.9 send some of them, and they decide nothing here.
            and self._present & _REQUIRED == _REQUIRED
            and (self.flag == 0 or self.flag == _ONEWAY)
        )

    def _expects(self, code: int) -> bool:
        """Whether it is the code of an end."""
        return code == _END

    def _field(self, data: bytes, key_at: int, key_end: int, at: int, end: int) -> bool:
        """Take the field named data[key_at:key_end] with the value data[at:end]; whether a plain end has such a field."""
        bit = self._plain(_FIELDS, data[key_at:key_end])
        if bit == 0:
            return False
        if bit == _GROUP:
            self.group = data[at:end]
            return True
        if bit == _FROM_CHECK:
            return data[at:end] == b"false" or data[at:end] == b"true"
        if bit in (_ID, _TRANSACTION, _BROKER):
            return True
        number = self._digits(data, at, end)
        if bit == _QUEUE_OFFSET:
            self.queue_offset = number
        elif bit == _PHYSICAL:
            self.physical = number
        else:
            self.is_commit = number == _COMMIT
            # 0 (not decided) leaves the half message as it is; that is for the reference.
            return number in (_COMMIT, _ROLLBACK)
        return number >= 0


class HalfProperties:
    """What the last property string that `read` accepted says about a transaction.

    topic: empty if it is not said, as queue_id is -1 then. immunity: None likewise. tags: the first property of tags.
    """

    def __init__(self) -> None:
        self.group = self.topic = self.tags = b""
        self.queue_id = -1
        self.immunity: bytes | None = None
        self.has_checks = False

    def read(self, properties: bytes) -> bool:
        """Whether there is one group, and nothing that decides is repeated or empty."""
        self.group = self.topic = self.tags = b""
        self.queue_id = -1
        self.immunity = None
        self.has_checks = False
        at = 0
        end = len(properties)
        while at < end:
            first = properties[at]
            start = at
            while at < end and properties[at] != _PAIR_END:
                at += 1
            if first == 0x50 and properties.startswith(b"PGROUP\1", start):  # P
                if self.group:
                    return False
                # The length of the name with its separator; so in the other branches.
                self.group = properties[start + 7 : at]
                if not self.group:
                    return False
            elif first == 0x52 and properties.startswith(b"REAL_TOPIC\1", start):  # R
                if self.topic:
                    return False
                self.topic = properties[start + 11 : at]
                if not self.topic:
                    return False
            elif first == 0x52 and properties.startswith(b"REAL_QID\1", start):
                if self.queue_id >= 0 or not self._read_queue_id(properties, start + 9, at):
                    return False
            elif first == 0x43 and properties.startswith(b"CHECK_IMMUNITY_TIME_IN_SECONDS\1", start):  # C
                if self.immunity is not None or at == start + 31:
                    return False
                self.immunity = properties[start + 31 : at]
            elif first == 0x54:  # T
                if properties.startswith(b"TAGS\1", start):
                    if not self.tags:
                        self.tags = properties[start:at]
                elif properties.startswith(b"TRANSACTION_CHECK_TIMES\1", start):
                    self.has_checks = True
            at += 1
        return len(self.group) > 0

    def _read_queue_id(self, properties: bytes, at: int, end: int) -> bool:
        """Read the digits in properties[at:end]."""
        if at == end or end - at > _QUEUE_DIGITS:
            return False
        value = 0
        for position in range(at, end):
            if properties[position] < 0x30 or properties[position] > 0x39:
                return False
            value = value * 10 + properties[position] - 0x30
        self.queue_id = value
        return True


class HalfRecord:
    """The record of the last half message that `read` accepted.

    head: the start of the record, up to the body. fields: what its properties say.
    """

    def __init__(self) -> None:
        self.fields = HalfProperties()
        self.head = self.body = self.properties = b""
        self.queue_offset = self.sys_flag = 0

    def read(self, record: bytes, physical: int) -> bool:
        """Whether it is the intact record, at this physical offset, of a half message that says its topic and queue."""
        size = len(record)
        if size < _HEAD_BYTES + 3:
            return False
        body_bytes = int32(record, _AT_BODY_BYTES)
        self.sys_flag = int32(record, _AT_SYS_FLAG)
        if (
            int32(record, 0) != size
            or int32(record, _AT_MAGIC) != _MAGIC
            or int64(record, _AT_PHYSICAL) != physical
            # The head is longer with IPv6 hosts.
            or self.sys_flag & _HOSTS_V6
            or body_bytes < 0
            or body_bytes > size - _HEAD_BYTES - 3
        ):
            return False
        topic_at = _HEAD_BYTES + body_bytes + 1
        topic_end = topic_at + record[topic_at - 1]
        if topic_end + 2 > size or record[topic_at:topic_end] != _HALF_TOPIC:
            return False
        # The properties must end where the record does.
        if int16(record, topic_end) != size - topic_end - 2:
            return False
        self.head = record[:_HEAD_BYTES]
        self.body = record[_HEAD_BYTES : topic_at - 1]
        self.properties = record[topic_end + 2 :]
        self.queue_offset = int64(record, _AT_QUEUE_OFFSET)
        # As Java stores it: without the sign bit.
        if crc32(self.body) & 0x7FFFFFFF != int32(record, _AT_CRC) or not self.fields.read(self.properties):
            return False
        return len(self.fields.topic) > 0 and self.fields.queue_id >= 0 and _is_text(self.properties)


def _is_text(properties: bytes) -> bool:
    """Whether they are UTF-8 without a zero byte."""
    if b"\0" in properties:
        return False
    try:
        return properties.isascii() or properties.decode() != ""
    except UnicodeDecodeError:
        return False
