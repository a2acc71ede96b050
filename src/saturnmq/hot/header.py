"""Reads the header of a request in either serialization, without building objects for its fields.

A subclass says which request codes it reads, and takes the fields: `_field` gets the positions of each name and value. A header is
accepted if it is written as clients of RocketMQ write it: no member twice, no number out of range, no escape but those of the
separators of properties; the reference implementation (`protocol/frames/command.py`) reads the same values then. Any other header
is left to that.

Python without types: `header.pxd` declares them for Cython. Compiled, each read of a byte is checked against the frame's end.
"""

from __future__ import annotations

from saturnmq.hot.numbers import int16, int32
from saturnmq.protocol.signatures import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE

_INT32_MAX = 2**31 - 1
_DIGITS_MAX = 18  # 19 digits may exceed 64 bits
_FIXED_BYTES = (
    21  # of a binary header before its fields: code, language, version, opaque, flag, remark and fields length
)
_PREFIX_BYTES = 8  # of a frame before its header
_UPPER_MAX = 0x5A  # Z
_ACCESS_KEY, _SIGNATURE, _TOKEN = 1, 2, 4
_CREDENTIALS = {ACCESS_KEY.encode(): _ACCESS_KEY, SIGNATURE.encode(): _SIGNATURE, SECURITY_TOKEN.encode(): _TOKEN}
# Bits of the members of a JSON header in `_members`.
_CODE, _EXT, _FLAG, _LANGUAGE, _OPAQUE, _REMARK, _SERIALIZATION, _VERSION = (1 << bit for bit in range(8))


class HeaderReader:
    """The values of the last header that was read.

    serialization, body_at, frame_end: of the last frame that `find` found. access_key, signature: of access control, "" without.
    """

    def __init__(self, fields_max: int, *, signed: bool = False) -> None:
        """fields_max: fields that a header may have (`FrameLimits.ext_fields_max`). signed: `signed_data` will be called."""
        self.fields_max = fields_max
        self.access_key = ""
        self.signature = b""
        self._signed = signed
        self._credentials = 0  # those that the header has had
        self._values: list[tuple[bytes, bytes]] = []  # names and values of all fields but the signature
        self.code = self.flag = self.opaque = 0
        self.serialization = self.body_at = self.frame_end = 0
        self._at = 0  # of the next byte
        self._fields = self._members = 0
        self._present = 0  # bits of the fields that `_plain` has met
        self._escaped = self._high = False  # of the last text

    def _expects(self, code: int) -> bool:
        """Whether a request of this code may be plain."""
        raise NotImplementedError

    def _field(self, data: bytes, key_at: int, key_end: int, at: int, end: int) -> bool:
        """Take the field named data[key_at:key_end] with the value data[at:end]; whether the request may have such a field."""
        raise NotImplementedError

    def find(self, data: bytes, at: int, length_max: int, header_bytes_max: int) -> bool:
        """Whether data[at:] begins with a complete frame within these limits, of a known serialization."""
        end = len(data)
        if end - at < _PREFIX_BYTES:
            return False
        length = int32(data, at)
        # The top byte of the word is the serialization, the other three are the length.
        header_bytes = int32(data, at + 4) & 0xFFFFFF
        self.serialization = data[at + 4]
        self.body_at = at + _PREFIX_BYTES + header_bytes
        self.frame_end = at + 4 + length
        return (
            length <= length_max
            and self.serialization <= 1
            and header_bytes <= header_bytes_max
            # Also false for a header that would reach beyond its frame, and for a frame that is not complete.
            and self.body_at <= self.frame_end <= end
        )

    def _read(self, data: bytes, at: int, end: int, serialization: int) -> bool:
        """Whether the header in data[at:end] can be read; the attributes have its values then."""
        self._fields = self._members = self._present = self.flag = 0
        self.access_key, self.signature, self._credentials = "", b"", 0
        if self._signed:
            self._values = []
        if not (self._read_json(data, at, end) if serialization == 0 else self._read_binary(data, at, end)):
            return False
        return self._fields <= self.fields_max

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
                # Nothing may follow the object; the other members have defaults.
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
            # The code stands first in the headers of Apache's clients: other requests end here, before their fields are read.
            if not self._expects(self.code):
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
        # A repeated member: parsers differ in which one they keep. A cursor of -1: no number was read.
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
            # The names that are accepted are ASCII, so an escaped one is none of them.
            if not self._skip_text(data, end) or self._escaped or self._high:
                return False
            key_end = self._at - 1
            if self._at >= end or data[self._at] != 0x3A:
                return False
            self._at += 1
            value_at = self._at + 1
            self._fields += 1
            if not self._skip_text(data, end) or not self._take(data, key_at, key_end, value_at, self._at - 1):
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
            # JSON does not allow control characters in a text.
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
        # Eleven digits at most are multiplied, so that the value cannot overflow 64 bits in compiled code.
        while at < end and 0x30 <= data[at] <= 0x39 and digits <= 10:
            value = value * 10 + data[at] - 0x30
            digits += 1
            at += 1
        # Written in another way (leading zeros, -0), or not an int: the reference decides.
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
        if not self._expects(self.code):
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
            # The length is a signed short: negative from 32,768 on.
            if key_end < key_at or key_end + 4 > end:
                return False
            value_at = key_end + 4
            value_bytes = int32(data, key_end)
            if value_bytes < 0 or value_bytes > end - value_at:
                return False
            at = value_at + value_bytes
            self._fields += 1
            self._escaped = self._high = False
            # Only the value: names outside ASCII are in no table of fields.
            for position in range(value_at, at):
                if data[position] >= 0x80:
                    self._high = True
                    break
            if not self._take(data, key_at, key_end, value_at, at):
                return False
        return True

    # ---- values of fields

    def _take(self, data: bytes, key_at: int, key_end: int, at: int, end: int) -> bool:
        """Take a field, if the request may have it: a credential here, any other by `_field`."""
        if key_end > key_at and data[key_at] <= _UPPER_MAX:  # no other name begins with a capital letter
            return self._credential(data[key_at:key_end], data[at:end])
        if self._signed:
            value = data[at:end]
            # The signature covers the values, not how JSON writes them.
            self._values.append((data[key_at:key_end], unescaped(value) if self._escaped else value))
        return self._field(data, key_at, key_end, at, end)

    def _plain(self, bits: dict[bytes, int], name: bytes) -> int:
        """The bit of a field; 0 if it has none, is repeated, or has a value with escapes or outside ASCII."""
        bit = bits.get(name, 0)
        # A text that is plain ASCII can be decoded, compared and parsed without errors.
        if self._present & bit or self._escaped or self._high:
            return 0
        self._present |= bit
        return bit

    def _credential(self, name: bytes, value: bytes) -> bool:
        """Take a field of a signature of version 1."""
        bit = _CREDENTIALS.get(name, 0)
        if bit == 0 or self._credentials & bit or self._escaped or self._high:
            return False
        self._credentials |= bit
        if bit == _SIGNATURE:
            self.signature = value
            return True
        if bit == _ACCESS_KEY:
            self.access_key = value.decode()
        if self._signed:
            self._values.append((name, value))
        return True

    def signed_data(self, body: bytes) -> bytes:
        """What a signature of version 1 covers: the values of the fields in the order of their names, then the body."""
        # Bytes of ASCII names sort as Java's strings do in its TreeMap; no name occurs twice, so values never decide.
        self._values.sort()
        values = [pair[1] for pair in self._values]
        values.append(body)
        return b"".join(values)

    def _digits(self, data: bytes, at: int, end: int) -> int:
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


def unescaped(value: bytes) -> bytes:
    """A text without the JSON escapes of the separators of properties."""
    return value.replace(b"\\u0001", b"\1").replace(b"\\u0002", b"\2")
