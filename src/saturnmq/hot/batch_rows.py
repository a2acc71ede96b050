"""Rows of Arrow columns as the messages of a batch request: what the Spark sink does for each plain row.

Writes what `Encoder._encode_row` writes (spark/encode.py), byte for byte: `measure` finds how many rows are plain and fit, `write`
puts them into a buffer of that size. A row that may be invalid, or needs more than body, tags, keys and flag, is left to the
reference implementation. Texts are valid UTF-8, which the caller has checked; no offset of a column is trusted.

`batch_rows.pxd` declares types for Cython.

Requirements: SNK-01, SNK-02, BAT-02.
"""

from __future__ import annotations

from typing import Any

from saturnmq.protocol.message import BATCH_FIXED_BYTES, PROPERTIES_BYTES_MAX

_FIXED_BYTES = BATCH_FIXED_BYTES
_PROPERTIES_MAX = PROPERTIES_BYTES_MAX
_BODY_AT = 20  # in a message of a batch; layout: protocol/message.py
_FLAG_AT = 12
_LENGTH_AT = 16
_NAME, _PAIR = 1, 2  # separators
_KEYS, _UNIQUE, _TAGS = b"KEYS\1", b"UNIQ_KEY\1", b"\2TAGS\1"
_COUNTER_DIGITS = 4  # the end of a unique id
_DIGITS = b"0123456789ABCDEF"


class Values:
    """A column of texts or bytes in Arrow's layout: validity bits (None if no value is null), 32-bit offsets, data.

    first: the position of row 0 in it.
    """

    def __init__(self, valid: Any, offsets: Any, data: Any, first: int) -> None:
        self._has_nulls = valid is not None
        self._valid: Any = valid if valid is not None else b""
        self._offsets, self._data, self._first = offsets, data, first
        self.begin = 0

    def find(self, row: int) -> int:
        """Set `begin` to where the value of a row begins; returns its bytes, -1 if it is null or lies outside the data."""
        at = self._first + row
        # Arrow's validity bitmap has the lowest bit of a byte first.
        if self._has_nulls and not self._valid[at >> 3] >> (at & 7) & 1:
            return -1
        begin: int = self._offsets[at]
        end: int = self._offsets[at + 1]
        if not 0 <= begin <= end <= len(self._data):
            return -1
        self.begin = begin
        return end - begin

    def has_separator(self, size: int) -> bool:
        """Whether the value found last holds a byte that separates properties."""
        for at in range(self.begin, self.begin + size):  # noqa: SIM110 - a generator is not compiled to a loop
            if self._data[at] in (_NAME, _PAIR):
                return True
        return False

    def copy(self, out: Any, at: int, size: int) -> int:
        """Copy the value found last to out[at:]; returns the position after it."""
        end = at + size
        out[at:end] = self._data[self.begin : self.begin + size]
        return end


class BatchRows:
    """The columns of a record batch. tags, keys: None for a column that is missing. flags: 32-bit integers, None likewise.

    tail: the end of the property string before the tag. body_max: a longer body is not plain.
    """

    def __init__(
        self, rows: int, body: Values, tags: Values | None, keys: Values | None, flags: Any, tail: bytes, body_max: int
    ) -> None:
        self._rows, self._body = rows, body
        self._has_tags, self._has_keys, self._has_flags = tags is not None, keys is not None, flags is not None
        self._tags, self._keys = tags if tags is not None else body, keys if keys is not None else body
        # A buffer of the right type: the attribute is a typed view in compiled code, which cannot be None.
        self._flags: Any = flags if flags is not None else memoryview(bytes(4)).cast("i")
        self._tail, self._body_max = tail, body_max
        self.size = 0
        self.is_odd = False

    def measure(self, row: int, count_max: int, used: int, bytes_max: int, id_bytes: int) -> int:
        """How many rows from this one on go into a batch that has `used` bytes; `size` is theirs, `is_odd` why they end.

        is_odd: the next row is not plain. An empty batch takes a first row of any size.
        """
        fixed = _FIXED_BYTES + len(_UNIQUE) + id_bytes + len(self._tail)
        count = total = 0
        self.is_odd = False
        while count < count_max and row < self._rows:
            size = self._row_bytes(row, fixed)
            if size < 0:
                self.is_odd = True
                break
            if used + total > 0 and used + total + size > bytes_max:
                break
            total += size
            count += 1
            row += 1
        self.size = total
        return count

    def _row_bytes(self, row: int, fixed: int) -> int:
        """The bytes of a row as a message; -1 if it is not plain."""
        body = self._body.find(row)
        # An empty body is an error, which the reference reports for its row.
        if not 0 < body <= self._body_max:
            return -1
        properties = fixed - _FIXED_BYTES
        if self._has_keys:
            size = self._keys.find(row)
            if size > 0:
                # The reference decides about such a value.
                if self._keys.has_separator(size):
                    return -1
                properties += len(_KEYS) + size + 1
        if self._has_tags:
            size = self._tags.find(row)
            if size > 0:
                if self._tags.has_separator(size):
                    return -1
                # _TAGS has the separator before its name in it, and the last property ends without one.
                properties += len(_TAGS) + size
        return _FIXED_BYTES + body + properties if properties <= _PROPERTIES_MAX else -1

    def write(self, out: Any, row: int, count: int, id_prefix: bytes, number: int) -> None:
        """Write rows that were measured. The id of the first is the prefix and `number`, a counter of 16 bits, in hex digits."""
        at = 0
        for current in range(row, row + count):
            at = self._write(out, at, current, id_prefix, number)
            number = (number + 1) & 0xFFFF

    def _write(self, out: Any, at: int, row: int, id_prefix: bytes, number: int) -> int:
        start = at
        size = self._body.find(row)
        # Magic and body CRC are 0 in a batch: the broker computes them for the record.
        _put(out, start + 4, 0, 4)
        _put(out, start + 8, 0, 4)
        _put(out, start + _FLAG_AT, self._flags[row] if self._has_flags else 0, 4)
        _put(out, start + _LENGTH_AT, size, 4)
        length_at = self._body.copy(out, start + _BODY_AT, size)
        # The length of the properties is written when it is known.
        at = length_at + 2
        size = self._keys.find(row) if self._has_keys else 0
        if size > 0:
            at = _put_bytes(out, at, _KEYS)
            at = self._keys.copy(out, at, size)
            out[at] = _PAIR
            at += 1
        at = _put_bytes(out, at, _UNIQUE)
        at = _put_bytes(out, at, id_prefix)
        # As in the ids of Apache's producers: a prefix per process, then a counter of 16 bits that wraps around.
        for shift in range(_COUNTER_DIGITS):
            out[at + shift] = _DIGITS[number >> 4 * (_COUNTER_DIGITS - 1 - shift) & 15]
        at = _put_bytes(out, at + _COUNTER_DIGITS, self._tail)
        size = self._tags.find(row) if self._has_tags else 0
        if size > 0:
            at = _put_bytes(out, at, _TAGS)
            at = self._tags.copy(out, at, size)
        _put(out, length_at, at - length_at - 2, 2)
        _put(out, start, at - start, 4)
        return at


def _put(out: Any, at: int, value: int, size: int) -> None:
    for place in range(size):
        out[at + place] = value >> 8 * (size - 1 - place) & 0xFF


def _put_bytes(out: Any, at: int, text: bytes) -> int:
    end = at + len(text)
    for place in range(len(text)):
        out[at + place] = text[place]
    return end
