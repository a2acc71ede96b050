"""Encodes responses to stored sends directly as frames, byte for byte what `encode_frame` makes of the same fields.

Responses of one broker differ only in opaque, queue id, queue offset and physical offset, so the rest is formatted once.

Requirements: SND-13, BAT-05, API-10.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from copy import copy
from typing import Final

from saturnmq.broker.state.identity import Identity
from saturnmq.protocol.codes import CONFIRMATION_FIELD, CommandFlag, Confirmation
from saturnmq.protocol.frames.command import Command, Serialization, encode_frame
from saturnmq.protocol.offsets import PhysicalOffset, QueueOffset
from saturnmq.store import FlushDiskType, MessageStore

_JSON: Final = Serialization.JSON
_I32: Final = struct.Struct(">i")
_PREFIX: Final = struct.Struct(">ii")
_PATTERNS_MAX: Final = 4096  # limit on cached patterns, one per queue id
_RESPONSE: Final = int(CommandFlag.RESPONSE)
_MARK: Final = 0x41424344  # "ABCD", placeholder of the opaque in a binary header
_OPAQUE_POSITION: Final = 8 + 5  # position of the opaque in a frame with a binary header


class SendAnswers:
    """Response encoder of one broker: region, trace flag and, once it listens, message id prefix are fixed."""

    __slots__ = ("_base", "_binary", "_identity", "_ids", "_json", "_stating")

    def __init__(self, region_id: str, trace_on: bool, identity: Identity) -> None:
        self._base = {"MSG_REGION": region_id, "TRACE_ON": "true" if trace_on else "false"}
        self._identity = identity
        self._ids = (0, "")  # number of ids in the last response, and their format
        self._binary: dict[int, tuple[int, int, bytes]] = {}  # queue id -> (lowest queue offset, end, pattern)
        self._json: dict[int, bytes] = {}
        self._stating: dict[Confirmation, SendAnswers] = {}

    def stating(self, confirmation: Confirmation) -> SendAnswers:
        """The encoder of responses that state a confirmation, for senders that ask."""
        answers = self._stating.get(confirmation)
        if answers is None:
            answers = self._stating[confirmation] = copy(self)
            answers._base = self._base | {CONFIRMATION_FIELD: confirmation.value}
            answers._binary, answers._json = {}, {}
        return answers

    def base(self) -> dict[str, str]:
        """extFields of every response, including errors."""
        return self._base.copy()

    def fields(
        self, queue_id: int, queue_offset: QueueOffset, physical_offsets: Sequence[PhysicalOffset]
    ) -> dict[str, str]:
        """extFields of a response for a stored message; ids of a batch are joined by commas (BAT-05)."""
        count = len(physical_offsets)
        if count != self._ids[0]:
            self._ids = count, ",".join([self._identity.id_prefix + "%016X"] * count)
        ids = self._ids[1] % tuple(physical_offsets)
        return self._base | {"msgId": ids, "queueId": str(queue_id), "queueOffset": str(queue_offset)}

    def single_frame(
        self,
        serialization: Serialization,
        opaque: int,
        queue_id: int,
        queue_offset: QueueOffset,
        physical_offset: PhysicalOffset,
    ) -> bytes:
        """The frame for a single message."""
        if serialization is _JSON:
            header = (self._json.get(queue_id) or self._json_pattern(queue_id)) % (
                opaque, physical_offset, queue_offset
            )  # fmt: skip
            size = len(header)
            return _PREFIX.pack(4 + size, size) + header
        range_pattern = self._binary.get(queue_id)
        if range_pattern is None or not range_pattern[0] <= queue_offset < range_pattern[1]:
            range_pattern = self._binary_pattern(queue_id, queue_offset)
        return range_pattern[2] % (_I32.pack(opaque), physical_offset, queue_offset)

    def batch(
        self,
        serialization: Serialization,
        opaque: int,
        queue_id: int,
        queue_offset: QueueOffset,
        physical_offsets: Sequence[PhysicalOffset],
    ) -> bytes:
        """The frame for a batch."""
        ext = self.fields(queue_id, queue_offset, physical_offsets)
        return encode_frame(Command(0, ext=ext, opaque=opaque, flag=_RESPONSE, serialization=serialization))

    def _sample(self, queue_id: int, queue_offset: QueueOffset, serialization: Serialization) -> bytes:
        """A response with physical offset 0 and opaque _MARK."""
        ext = self.fields(queue_id, queue_offset, (PhysicalOffset(0),))
        return encode_frame(Command(0, ext=ext, opaque=_MARK, flag=_RESPONSE, serialization=serialization))

    def _binary_pattern(self, queue_id: int, queue_offset: QueueOffset) -> tuple[int, int, bytes]:
        """Build the pattern for queue offsets with as many digits as this one; the digits determine the lengths in the frame."""
        digits = len(str(queue_offset))
        frame = self._sample(queue_id, queue_offset, Serialization.ROCKETMQ)
        at = frame.rindex(self._identity.id_prefix.encode() + b"0" * 16) + len(self._identity.id_prefix)
        before, middle, after = frame[:_OPAQUE_POSITION], frame[_OPAQUE_POSITION + 4 : at], frame[at + 16 : -digits]
        pattern = b"%b%%b%b%%016X%b%%d" % (_literal(before), _literal(middle), _literal(after))
        if len(self._binary) >= _PATTERNS_MAX:
            self._binary.clear()
        low = 10 ** (digits - 1) if digits > 1 else 0
        range_pattern = self._binary[queue_id] = (low, 10**digits, pattern)
        return range_pattern

    def _json_pattern(self, queue_id: int) -> bytes:
        header = _literal(self._sample(queue_id, QueueOffset(0), _JSON)[8:])
        for sample, pattern in (
            (f'"opaque":{_MARK},'.encode(), b'"opaque":%d,'),
            (
                f'"msgId":"{self._identity.id_prefix}{0:016X}"'.encode(),
                f'"msgId":"{self._identity.id_prefix}%016X"'.encode(),
            ),
            (b'"queueOffset":"0"', b'"queueOffset":"%d"'),
        ):
            before, _, after = header.rpartition(sample)
            header = before + pattern + after
        if len(self._json) >= _PATTERNS_MAX:
            self._json.clear()
        self._json[queue_id] = header
        return header


def _literal(text: bytes) -> bytes:
    """Escape % for a pattern."""
    return text.replace(b"%", b"%%")


def confirmation_of(store: MessageStore, *, waits: bool) -> Confirmation:
    """The confirmation that a message put now has when its sender gets SEND_OK. waits: as its property WAIT says."""
    if store.quorum:
        synced = store.settings.flush_disk_type is FlushDiskType.SYNC_FLUSH
        return Confirmation.FSYNC_MAJORITY if synced else Confirmation.MAJORITY
    if store.acknowledges_at_once or not waits:
        return Confirmation.MEMORY if store.log.pooled else Confirmation.PAGE_CACHE
    if store.replicas is None:
        return Confirmation.FSYNC
    return Confirmation.SLAVE if store.confirms_at_once else Confirmation.FSYNC_AND_SLAVE
