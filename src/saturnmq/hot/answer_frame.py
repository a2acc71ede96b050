"""Frames of responses of which some values are replaced in place: to a stored message, and those of which only the opaque differs.

`answer_frame.pxd` declares types for Cython.
"""

from __future__ import annotations

from saturnmq.hot.numbers import put32

OPAQUE_AT = 8 + 5  # position of the opaque in a frame with a binary header
_OPAQUE_TEXT = b'"opaque":0'
_LENGTH_BYTES = 4
_ID_DIGITS = 16
_HEX = b"0123456789ABCDEF"


class AnswerFrame:
    """A response to a send whose opaque, queue offset and physical offset may change, but not the number of their digits.

    frame: a response for these values. opaque_at, id_at, offset_at: positions in it of the opaque, of the 16 digits of the physical
    offset, and of the queue offset. opaque_digits: 0 for a binary header, in which the opaque has four bytes.
    """

    def __init__(
        self, frame: bytes, opaque_at: int, opaque_digits: int, id_at: int, offset_at: int, offset_digits: int
    ) -> None:
        self._frame = bytearray(frame)
        self._opaque_at, self._opaque_digits = opaque_at, opaque_digits
        self._id_at = id_at
        self._offset_at, self._offset_digits = offset_at, offset_digits

    def answer(self, opaque: int, queue_offset: int, physical_offset: int) -> bytes:
        """The response for these values, empty if they need another number of digits."""
        frame = self._frame
        if self._opaque_digits == 0:
            put32(frame, self._opaque_at, opaque)
        elif not _put_digits(frame, self._opaque_at, self._opaque_digits, opaque):
            return b""
        if not _put_digits(frame, self._offset_at, self._offset_digits, queue_offset):
            return b""
        # A message id is 16 hex digits of the store host, which the template has, and these 16 of the physical offset.
        at = self._id_at + _ID_DIGITS
        while at > self._id_at:
            at -= 1
            frame[at] = _HEX[physical_offset & 15]
            physical_offset >>= 4
        # A copy: the template is overwritten by the next answer, while this one may still wait in the connection's output.
        return bytes(frame)


class OpaqueFrame:
    """A response of which only the opaque differs. json, binary: its frames in both serializations, with an opaque of 0."""

    def __init__(self, json: bytes, binary: bytes) -> None:
        at = json.index(_OPAQUE_TEXT) + len(_OPAQUE_TEXT)
        self._head, self._tail = bytearray(json[: at - 1]), json[at:]
        self._binary = bytearray(binary)

    def answer(self, serialization: int, opaque: int) -> bytes:
        """The response to a request with this serialization and opaque."""
        if serialization == 1:
            put32(self._binary, OPAQUE_AT, opaque)
            return bytes(self._binary)
        digits = b"%d" % opaque
        # A frame's length does not count the four bytes that hold it.
        length = len(self._head) + len(digits) + len(self._tail) - _LENGTH_BYTES
        put32(self._head, 0, length)
        # The top byte is the serialization: 0, JSON.
        put32(self._head, _LENGTH_BYTES, length - _LENGTH_BYTES)  # of the header; there is no body
        return b"".join((self._head, digits, self._tail))


def _put_digits(frame: bytearray, at: int, digits: int, value: int) -> bool:
    """Write a number; False if it has another number of digits."""
    if value < 0:
        return False
    position = at + digits
    while position > at:
        position -= 1
        quotient = value // 10
        frame[position] = 48 + value - quotient * 10
        value = quotient
    # A value left over has more digits than the template, a leading zero fewer; either way the template cannot be used.
    return value == 0 and (digits == 1 or frame[at] != 48)
