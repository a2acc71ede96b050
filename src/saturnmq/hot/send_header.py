"""Reads the header of a plain send request, in either serialization, without building objects for its fields.

A plain send is one message, or a batch, for a queue that its header names, with every field as a client of RocketMQ writes it: no
repeated or unknown field, no number out of range, no escape but those of the separators of properties. `read` accepts exactly
headers for which the reference implementation (`protocol/frames/command.py`, `broker/requests/send.py`) reads the same values; any
other header is left to that.

Python without types: `send_header.pxd` declares them for Cython. Compiled, each read of a byte is checked against the frame's end.
"""

from __future__ import annotations

from saturnmq.hot.numbers import int16, int32
from saturnmq.protocol.codes import CONFIRMATION_FIELD, RequestCode
from saturnmq.protocol.headers.send_fields import SEND_V2_BY_V1

_V1 = int(RequestCode.SEND_MESSAGE)
_V2 = int(RequestCode.SEND_MESSAGE_V2)
_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)
_LETTERS = {name.encode(): ord(letter) for name, letter in SEND_V2_BY_V1.items()}
_CONFIRMATION = CONFIRMATION_FIELD.encode()
_ONEWAY = 2  # CommandFlag.ONEWAY
_INT32_MAX = 2**31 - 1
_DIGITS_MAX = 18  # 19 digits may exceed 64 bits
_FIXED_BYTES = (
    21  # of a binary header before its fields: code, language, version, opaque, flag, remark and fields length
)
_A, _B, _E, _F, _G, _H, _I, _J, _M, _N = (ord(letter) for letter in "abefghijmn")
# Bits of the members of a JSON header in `_members`.
_CODE, _EXT, _FLAG, _LANGUAGE, _OPAQUE, _REMARK, _SERIALIZATION, _VERSION = (1 << bit for bit in range(8))


class SendHeader:
    """The values of the last header that `read` accepted.

    topic and properties are positions in the frame; properties_escaped: the separators of properties are written as JSON escapes;
    properties_plain: all its bytes are ASCII. asks: the sender asks how its message is confirmed. is_batch: the body holds
    messages.
    """

    def __init__(self, fields_max: int) -> None:
        """fields_max: fields that a header may have (`FrameLimits.ext_fields_max`)."""
        self.fields_max = fields_max
        self.code = self.flag = self.opaque = 0
        self.topic_at = self.topic_end = self.properties_at = self.properties_end = 0
        self.queue_id = self.sys_flag = self.message_flag = self.reconsume_times = 0
        self.born_ms = 0
        self.asks = self.properties_escaped = self.is_batch = False
        self.properties_plain = True
        self._at = 0  # of the next byte
        self._fields = self._letters = self._members = 0
        self._escaped = self._high = False  # of the last text
        self._short = self._long = False  # how fields are named

    def read(self, data: bytes, at: int, end: int, serialization: int) -> bool:
        """Whether the header in data[at:end] is that of a plain send; the attributes have its values then."""
        self._fields = self._letters = self._members = 0
        self.flag = self.properties_at = self.properties_end = self.reconsume_times = 0
        self.asks = self.properties_escaped = self.is_batch = self._short = self._long = False
        self.properties_plain = True
        if not (self._read_json(data, at, end) if serialization == 0 else self._read_binary(data, at, end)):
            return False
        if self.code == _BATCH:
            self.is_batch = True
        required = 1 << (_B - _A) | 1 << (_E - _A) | 1 << (_F - _A) | 1 << (_G - _A) | 1 << (_H - _A) | 1
        return (
            self._letters & required == required
            and (self.flag == 0 or self.flag == _ONEWAY)
            and (
                ((self.code == _V2 or self.code == _BATCH) and not self._long) or (self.code == _V1 and not self._short)
            )
            and self._fields <= self.fields_max
        )

    # ---- JSON

    def _read_json(self, data: bytes, at: int, end: int) -> bool:
        if end - at < 2 or data[at] != 0x7B:  # {
            return False
        self._at = at + 1
        while True:
            at = self._at
            if at >= end or data[at] != 0x22 or not self._skip_text(data, end):  # "
                return False
            key_end = self._at - 1
            at += 1
            if self._at >= end or data[self._at] != 0x3A:  # :
                return False
            self._at += 1
            if not self._read_member(data, at, key_end, end):
                return False
            at = self._at
            if at >= end:
                return False
            self._at = at + 1
            if data[at] == 0x7D:  # }
                return at + 1 == end and self._members & (_CODE | _EXT | _OPAQUE) == _CODE | _EXT | _OPAQUE
            if data[at] != 0x2C:  # ,
                return False

    def _read_member(self, data: bytes, key_at: int, key_end: int, end: int) -> bool:
        """Read the value of a member of the header whose name is data[key_at:key_end]."""
        name = data[key_at:key_end]
        length = key_end - key_at
        member = 0
        if length == 4 and name == b"code":
            member = _CODE
            self.code = self._number(data, end)
            if self.code != _V2 and self.code != _V1 and self.code != _BATCH:
                return False
        elif length == 6 and name == b"opaque":
            member = _OPAQUE
            self.opaque = self._number(data, end)
        elif length == 4 and name == b"flag":
            member = _FLAG
            self.flag = self._number(data, end)
        elif length == 7 and name == b"version":
            member = _VERSION
            self._number(data, end)
        elif length == 9 and name == b"extFields":
            member = _EXT
            if not self._read_fields(data, end):
                return False
        else:
            if name == b"language":
                member = _LANGUAGE
            elif name == b"serializeTypeCurrentRPC":
                member = _SERIALIZATION
            elif name == b"remark":
                member = _REMARK
            if not self._skip_text(data, end) or self._escaped or self._high:
                return False
        if member == 0 or self._members & member or self._at < 0:
            return False
        self._members |= member
        return True

    def _read_fields(self, data: bytes, end: int) -> bool:
        """Read extFields, an object of texts."""
        if self._at >= end or data[self._at] != 0x7B:
            return False
        self._at += 1
        while True:
            key_at = self._at + 1
            if not self._skip_text(data, end) or self._escaped or self._high:
                return False
            key_end = self._at - 1
            if self._at >= end or data[self._at] != 0x3A:
                return False
            self._at += 1
            value_at = self._at + 1
            if not self._skip_text(data, end) or not self._field(data, key_at, key_end, value_at, self._at - 1):
                return False
            if self._at >= end:
                return False
            self._at += 1
            if data[self._at - 1] == 0x7D:
                return True
            if data[self._at - 1] != 0x2C:
                return False

    def _skip_text(self, data: bytes, end: int) -> bool:
        """Move past a JSON text; whether it is one whose only escapes are those of the separators of properties."""
        at = self._at
        self._escaped = self._high = False
        if at >= end or data[at] != 0x22:
            return False
        at += 1
        while at < end:
            byte = data[at]
            if byte == 0x22:
                self._at = at + 1
                return True
            if byte == 0x5C:  # a backslash: \u0001 or \u0002
                if (
                    at + 6 > end
                    or data[at + 1] != 0x75
                    or data[at + 2] != 0x30
                    or data[at + 3] != 0x30
                    or data[at + 4] != 0x30
                    or (data[at + 5] != 0x31 and data[at + 5] != 0x32)
                ):
                    return False
                self._escaped = True
                at += 6
                continue
            if byte < 0x20:
                return False
            if byte >= 0x80:
                self._high = True
            at += 1
        return False

    def _number(self, data: bytes, end: int) -> int:
        """The 32-bit integer at the cursor, which moves past it; the cursor is -1 if there is none."""
        at = self._at
        value = 0
        digits = 0
        negative = at < end and data[at] == 0x2D
        if negative:
            at += 1
        start = at
        while at < end and 0x30 <= data[at] <= 0x39 and digits <= 10:
            value = value * 10 + data[at] - 0x30
            digits += 1
            at += 1
        if digits == 0 or value > _INT32_MAX or (data[start] == 0x30 and (digits > 1 or negative)):
            self._at = -1
            return 0
        self._at = at
        return -value if negative else value

    # ---- binary

    def _read_binary(self, data: bytes, at: int, end: int) -> bool:
        if end - at < _FIXED_BYTES:
            return False
        self.code = int16(data, at)
        if self.code != _V2 and self.code != _V1 and self.code != _BATCH:
            return False
        self.opaque = int32(data, at + 5)
        self.flag = int32(data, at + 9)
        if (
            int32(data, at + 13) != 0 or int32(data, at + 17) != end - at - _FIXED_BYTES
        ):  # a remark, or bytes after the fields
            return False
        at += _FIXED_BYTES
        while at < end:
            if end - at < 6:
                return False
            key_at = at + 2
            key_end = key_at + int16(data, at)
            if key_end < key_at or key_end + 4 > end:
                return False
            value_at = key_end + 4
            value_bytes = int32(data, key_end)
            if value_bytes < 0 or value_bytes > end - value_at:
                return False
            at = value_at + value_bytes
            self._escaped = self._high = False
            for position in range(value_at, at):
                if data[position] >= 0x80:
                    self._high = True
                    break
            if not self._field(data, key_at, key_end, value_at, at):
                return False
        return True

    # ---- fields of either

    def _field(self, data: bytes, key_at: int, key_end: int, at: int, end: int) -> bool:
        """Take the field named data[key_at:key_end] with the value data[at:end]; whether a plain send has such a field."""
        self._fields += 1
        if key_end == key_at + 1:
            letter = data[key_at]
            if letter < _A or letter > _N:
                return False
            self._short = True
        else:
            name = data[key_at:key_end]
            if name == _CONFIRMATION:
                if self.asks or self._high or self._escaped:
                    return False
                self.asks = True
                return True
            letter = _LETTERS.get(name, 0)
            if letter == 0:
                return False
            self._long = True
        bit = 1 << (letter - _A)
        if self._letters & bit:
            return False
        self._letters |= bit
        if letter == _I:
            self.properties_at, self.properties_end = at, end
            self.properties_escaped = self._escaped
            self.properties_plain = not self._high
            return True
        if self._escaped or self._high:
            return False
        if letter == _B:
            self.topic_at, self.topic_end = at, end
            return end > at
        if letter == _M:
            self.is_batch = data[at:end] == b"true"
            return self.is_batch or data[at:end] == b"false"
        if letter == _G:
            self.born_ms = _digits(data, at, end)
            return self.born_ms >= 0
        if letter in (_E, _F, _H, _J):
            number = _digits(data, at, end)
            if number < 0 or number > _INT32_MAX:
                return False
            if letter == _E:
                self.queue_id = number
            elif letter == _F:
                self.sys_flag = number
            elif letter == _H:
                self.message_flag = number
            else:
                self.reconsume_times = number
        return True


def _digits(data: bytes, at: int, end: int) -> int:
    """The number that data[at:end] writes in digits only; -1 if it is none or may exceed 64 bits."""
    if end <= at or end - at > _DIGITS_MAX:
        return -1
    value = 0
    for position in range(at, end):
        byte = data[position]
        if byte < 0x30 or byte > 0x39:
            return -1
        value = value * 10 + byte - 0x30
    return value
