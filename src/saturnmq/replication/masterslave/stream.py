"""The HA stream: what a master and its slave write to each other over plain TCP, without any I/O.

A slave reports its offset: "send from here", and "everything before it is stored". The master answers with frames of log bytes,
which follow each other without a gap. Neither side trusts the other: a report must not exceed what was sent, a frame must
continue the slave's log and must not cross the end of a file.

Requirements: HA-04, HA-07..HA-09, HA-11, HA-13, HA-15..HA-17, SEC-19.
"""

# Report, slave to master, 8 bytes, big-endian. Source: docs/spec/02 section 16.
#    0  i64  offset after the last byte that the slave has stored
#
# Frame, master to slave, 12 bytes and the data, big-endian.
#    0  i64  offset of the first byte of the data; of a heartbeat: the offset of the next frame
#    8  i32  size of the data in bytes; 0 in a heartbeat
#   12       data: bytes of the commit log, of one file

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from saturnmq.protocol.errors import RemoteProtocolError
from saturnmq.protocol.offsets import PhysicalOffset

REPORT: Final = struct.Struct(">q")
HEADER: Final = struct.Struct(">qi")
FRAME_BYTES_MAX: Final = 4 * 1024 * 1024  # header and data; Apache's slave reads into a buffer of this size
DATA_BYTES_MAX: Final = FRAME_BYTES_MAX - HEADER.size
OFFSET_MAX: Final = 1 << 62


class Extent(NamedTuple):
    """The part of a log that can be sent: offset of the first byte, offset after the last one, length of a file in bytes."""

    first: PhysicalOffset
    end: PhysicalOffset
    file_bytes: int


class Frame(NamedTuple):
    """A frame as received; data is empty in a heartbeat."""

    offset: int
    data: bytes


class SlavePosition:
    """The master's side of one stream.

    position: offset of the next byte to send; None before the first report. acknowledged: the slave has stored everything
    before it.
    """

    __slots__ = ("_from_oldest", "_partial_report", "acknowledged", "position")

    def __init__(self, *, from_oldest: bool = False) -> None:
        """from_oldest: an empty slave gets the whole log, not only the last file."""
        self._from_oldest = from_oldest
        self._partial_report = b""
        self.position: PhysicalOffset | None = None
        self.acknowledged = PhysicalOffset(0)

    def received(self, data: bytes, extent: Extent) -> bool:
        """Take bytes from the slave; only the last whole report in them counts. Returns whether there was one.

        Raises RemoteProtocolError if its offset is impossible.
        """
        data = self._partial_report + data
        whole = len(data) - len(data) % REPORT.size
        self._partial_report = data[whole:]
        if not whole:
            return False
        # Reports are absolute, so the last one covers all before it.
        offset = PhysicalOffset(REPORT.unpack_from(data, whole - REPORT.size)[0])
        if self.position is None:
            self.position = self._start(offset, extent)
        # More than was sent cannot have been stored: SYNC_MASTER would acknowledge sends wrongly.
        elif not 0 <= offset <= self.position:
            raise RemoteProtocolError(f"the slave reports offset {offset}, it was sent the log up to {self.position}")
        self.acknowledged = max(self.acknowledged, offset)
        return True

    def _start(self, offset: PhysicalOffset, extent: Extent) -> PhysicalOffset:
        """Where to send from after the first report."""
        first, end, file_bytes = extent
        if offset == 0:
            # As in Apache: a new slave gets the last file only, unless from_oldest is set.
            return PhysicalOffset(max(first, 0)) if self._from_oldest else PhysicalOffset(end - end % file_bytes)
        # Going on would make the slave's extra records look acknowledged.
        if offset > end:
            raise RemoteProtocolError(
                f"the slave has the log up to offset {offset}, this master only up to {end}: it has records that this master lost"
            )
        if offset < max(first, 0):
            raise RemoteProtocolError(
                f"the slave needs the log from offset {offset} on, this master has deleted it up to {first}"
            )
        return offset

    def next_data(self, extent: Extent, bytes_max: int) -> tuple[PhysicalOffset, int]:
        """Offset and size of the data of the next frame; size 0 if there is none. Before the first report: (0, 0)."""
        position = self.position
        if position is None:
            return PhysicalOffset(0), 0
        # A frame never crosses the end of a file: a slave writes it into one.
        file_end = position - position % extent.file_bytes + extent.file_bytes
        return position, max(min(bytes_max, DATA_BYTES_MAX, file_end - position, extent.end - position), 0)

    def sent(self, size: int) -> None:
        """Note that the next `size` bytes were sent."""
        assert self.position is not None, "nothing is sent before the first report"
        self.position = PhysicalOffset(self.position + size)


class TransferDecoder:
    """The slave's side: splits what the master sends into frames; holds at most one incomplete frame."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that are complete now. Raises RemoteProtocolError for an impossible header."""
        held = self._data
        held += data
        at = 0
        try:
            while len(held) - at >= HEADER.size:
                offset, size = HEADER.unpack_from(held, at)
                # Checked before any memory is used for it.
                if offset < 0 or not 0 <= size <= DATA_BYTES_MAX:
                    raise RemoteProtocolError(
                        f"frame with offset {offset} and {size} bytes; at most {DATA_BYTES_MAX} bytes are allowed"
                    )
                end = at + HEADER.size + size
                if end > len(held):
                    break
                # A copy: the buffer is cut below.
                frame = Frame(offset, bytes(memoryview(held)[at + HEADER.size : end]))
                at = end
                yield frame
        finally:
            # Also if the consumer of this generator stops early.
            del held[:at]


def check_frame(frame: Frame, end: int, file_bytes: int) -> None:
    """Check that a frame continues a slave's log that ends at `end`. Raises RemoteProtocolError.

    An empty log, with end 0, begins where the first frame does: at the start of a file.
    """
    offset, size = frame.offset, len(frame.data)
    if offset > OFFSET_MAX:
        raise RemoteProtocolError(f"the master sends offset {offset}, at most {OFFSET_MAX} is possible")
    # A gap or a repetition: the log would not be the master's.
    if end and offset != end:
        raise RemoteProtocolError(f"the master sends offset {offset}, this log ends at {end}")
    # An empty log takes the begin from the frame, which must be that of a file.
    if not end and offset % file_bytes:
        if size:
            raise RemoteProtocolError(f"the master's log begins at {offset}, no multiple of {_key(file_bytes)}")
    elif offset % file_bytes + size > file_bytes:
        raise RemoteProtocolError(f"{size} bytes at offset {offset} do not fit one file of {_key(file_bytes)}")


def _key(file_bytes: int) -> str:
    return f"mappedFileSizeCommitLog={file_bytes}, which must be equal on master and slave"


def encode_report(offset: PhysicalOffset) -> bytes:
    """The bytes of a report."""
    return REPORT.pack(offset)


def encode_heartbeat(position: PhysicalOffset) -> bytes:
    """The bytes of a heartbeat; position: offset of the next frame."""
    return HEADER.pack(position, 0)
