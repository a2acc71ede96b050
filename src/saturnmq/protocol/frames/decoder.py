"""Incremental decoder from a byte stream to commands, the outermost layer of the wire protocol.

Any input either parses or raises RemoteProtocolError. Frame and header layouts: see `command`.

Requirements: REM-02, REM-03, LIM-01.
"""

from __future__ import annotations

from typing import Final

from saturnmq.protocol.errors import FrameError, RemoteProtocolError
from saturnmq.protocol.frames.command import (
    DEFAULT_LIMITS,
    HEADER_LENGTH_MASK,
    PREFIX,
    Command,
    FrameLimits,
    decode_header,
)

_WORD_END: Final = 2 << 24  # second words from here on carry an unknown serialization
_ALL: Final = 2**31  # more commands than bytes can hold


class FrameDecoder:
    """Incremental decoder from a byte stream, chunked in any way, to commands (REM-03). One per connection."""

    __slots__ = ("_limits", "_need", "_partial_frame", "undecoded")

    def __init__(self, limits: FrameLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._partial_frame = bytearray()  # start of an incomplete frame
        self._need = 8  # bytes required before the next decode attempt
        self.undecoded = b""  # end of the last data, not decoded because `at_most` commands came before it

    @property
    def pending_bytes(self) -> int:
        """Buffered bytes of an incomplete frame; 0 between frames."""
        return len(self._partial_frame)

    @property
    def need_bytes(self) -> int:
        """Length of the incomplete frame as far as it is known; at least the 8 bytes of length and header word."""
        return self._need

    def clear(self) -> None:
        """Drop the start of an incomplete frame."""
        self._partial_frame = bytearray()
        self._need = 8
        self.undecoded = b""

    def completed(self, data: bytes) -> bytes | None:
        """The incomplete frame and data, to be fed next; None, without effect, if data does not complete that frame."""
        if self._need <= 8 or len(self._partial_frame) + len(data) < self._need:
            return None
        whole = b"".join((self._partial_frame, data))
        self.clear()
        return whole

    def feed(self, data: bytes, at_most: int = _ALL) -> list[Command]:
        """Return the commands completed by data, in order. The bytes in `undecoded`, after at_most commands, must be fed next.

        Raises RemoteProtocolError; its `decoded` holds the commands that were complete before the bad frame.
        """
        partial_frame = self._partial_frame
        commands: list[Command] = []
        at = 0
        try:
            if partial_frame:
                at = self._finish_frame(data, commands)
                if partial_frame:
                    self.undecoded = b""
                    self._check_length()
                    return commands
            at = self._decode(data, at, commands, at_most)
            if len(commands) >= at_most:
                self.undecoded = data[at:]
            else:
                self.undecoded = b""
                if at < len(data):
                    partial_frame += data[at:]
                    self._check_length()
        except RemoteProtocolError as error:
            error.decoded = commands
            raise
        return commands

    def _finish_frame(self, data: bytes, commands: list[Command]) -> int:
        """Complete the buffered frame, and only that one, so that the rest of data is not copied.

        Returns how many bytes of data were consumed.
        """
        partial_frame = self._partial_frame
        at = 0
        while True:
            missing = self._need - len(partial_frame)
            partial_frame += data[at : at + missing]
            at += missing
            if at > len(data):
                return len(data)
            frame = bytes(partial_frame)
            if self._decode(frame, 0, commands, _ALL):
                partial_frame.clear()
                return at

    def _decode(self, data: bytes, at: int, commands: list[Command], at_most: int) -> int:
        """Append the commands of the complete frames from `at` on; return where the first frame starts that is left.

        It is incomplete, unless there are at_most commands.
        """
        limits = self._limits
        length_max, end = limits.frame_bytes_max - 4, len(data)
        self._need = 8
        while end - at >= 8 and len(commands) < at_most:
            length, header_word = PREFIX.unpack_from(data, at)
            header_bytes = header_word & HEADER_LENGTH_MASK
            if (
                header_bytes + 4 > length
                or length > length_max
                or header_word >= _WORD_END
                or header_bytes > limits.header_bytes_max
            ):
                self._check(length, header_word >> 24, header_bytes)
            frame_end = at + 4 + length
            if frame_end > end:
                self._need = frame_end - at
                break
            body_at = at + 8 + header_bytes
            body = data[body_at:frame_end] if body_at < frame_end else None
            commands.append(decode_header(header_word >> 24, data[at + 8 : body_at], body, limits))
            at = frame_end
        return at

    def _check_length(self) -> None:
        """Check the length of a frame of which the header word is missing. Raises FrameError (LIM-01)."""
        if 4 <= len(self._partial_frame) < 8:
            self._check(int.from_bytes(self._partial_frame[:4], "big", signed=True), 0, 0)

    def _check(self, length: int, serialization: int, header_bytes: int) -> None:
        limits = self._limits
        if not 4 <= length <= limits.frame_bytes_max - 4:
            raise FrameError(f"frame length {length} is outside 4..{limits.frame_bytes_max - 4} bytes")
        if header_bytes > length - 4:
            raise FrameError(f"header length {header_bytes} exceeds the {length - 4} bytes left in the frame")
        if header_bytes > limits.header_bytes_max:
            raise FrameError(f"header length {header_bytes} exceeds the limit of {limits.header_bytes_max} bytes")
        if serialization > 1:
            raise FrameError(f"unknown header serialization {serialization}; allowed: 0 (JSON), 1 (ROCKETMQ)")
