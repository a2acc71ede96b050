"""Encodes responses to stored sends directly as frames, byte for byte what `encode_frame` makes of the same fields.

Responses for one queue differ only in opaque, queue offset and physical offset, so the rest is encoded once (`AnswerFrame`).

Requirements: SND-13, BAT-05, API-10.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Final

from saturnmq.broker.state.identity import Identity
from saturnmq.hot.answer_frame import OPAQUE_AT, AnswerFrame
from saturnmq.protocol.codes import CONFIRMATION_FIELD, CommandFlag, Confirmation
from saturnmq.protocol.frames.command import Command, Serialization, encode_frame
from saturnmq.protocol.offsets import PhysicalOffset, QueueOffset
from saturnmq.store import FlushDiskType, MessageStore

_FRAMES_MAX: Final = 4096
_RESPONSE: Final = int(CommandFlag.RESPONSE)


class SendAnswers:
    """Response encoder of one broker: region, trace flag and, once it listens, message id prefix are fixed."""

    __slots__ = ("_base", "_identity", "_ids", "_stating", "frames")

    def __init__(self, region_id: str, trace_on: bool, identity: Identity) -> None:
        self._base = {"MSG_REGION": region_id, "TRACE_ON": "true" if trace_on else "false"}
        self._identity = identity
        self._ids = (0, "")  # number of ids in the last response, and their format
        self.frames: dict[int, AnswerFrame] = {}  # by twice the queue id, plus the serialization
        self._stating: dict[Confirmation, SendAnswers] = {}

    def stating(self, confirmation: Confirmation) -> SendAnswers:
        """The encoder of responses that state a confirmation, for senders that ask."""
        answers = self._stating.get(confirmation)
        if answers is None:
            # Shares nothing that changes: frames and base are its own.
            answers = self._stating[confirmation] = copy(self)
            answers._base = self._base | {CONFIRMATION_FIELD: confirmation.value}
            answers.frames = {}
        return answers

    def base(self) -> dict[str, str]:
        """extFields of every response, including errors."""
        return self._base.copy()

    def fields(
        self, queue_id: int, queue_offset: QueueOffset, physical_offsets: Sequence[PhysicalOffset]
    ) -> dict[str, str]:
        """extFields of a response for a stored message; ids of a batch are joined by commas (BAT-05)."""
        count = len(physical_offsets)
        # The format is kept for the usual number of ids.
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
        key = queue_id * 2 + serialization
        frame = self.frames.get(key)
        answer = frame.answer(opaque, queue_offset, physical_offset) if frame is not None else b""
        if answer:
            return answer
        ext = self.fields(queue_id, queue_offset, (physical_offset,))
        answer = encode_frame(Command(0, ext=ext, opaque=opaque, flag=_RESPONSE, serialization=serialization))
        # Bounded: as many queues as a broker usually has; then it starts over.
        if len(self.frames) >= _FRAMES_MAX:
            self.frames.clear()
        self.frames[key] = self._varied(answer, serialization, opaque, queue_offset, physical_offset)
        return answer

    def _varied(
        self,
        answer: bytes,
        serialization: Serialization,
        opaque: int,
        queue_offset: QueueOffset,
        physical_offset: PhysicalOffset,
    ) -> AnswerFrame:
        """An answer as the form of others of its queue."""
        digits, prefix = b"%d" % queue_offset, self._identity.id_prefix.encode()
        # From the end: other fields may contain the same digits.
        id_at = answer.rindex(b"%b%016X" % (prefix, physical_offset)) + len(prefix)
        if serialization is Serialization.ROCKETMQ:
            return AnswerFrame(answer, OPAQUE_AT, 0, id_at, len(answer) - len(digits), len(digits))
        opaque_digits = b"%d" % opaque
        opaque_at = answer.rindex(b'"opaque":%b,' % opaque_digits) + len(b'"opaque":')
        offset_at = answer.rindex(b'"queueOffset":"%b"' % digits) + len(b'"queueOffset":"')
        return AnswerFrame(answer, opaque_at, len(opaque_digits), id_at, offset_at, len(digits))

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


def confirmation_of(store: MessageStore, *, waits: bool) -> Confirmation:
    """The confirmation that a message put now has when its sender gets SEND_OK. waits: as its property WAIT says."""
    # In a group the disk mode decides whether a majority has synced it.
    if store.quorum:
        synced = store.settings.flush_disk_type is FlushDiskType.SYNC_FLUSH
        return Confirmation.FSYNC_MAJORITY if synced else Confirmation.MAJORITY
    if store.acknowledges_at_once or not waits:
        return Confirmation.MEMORY if store.log.pooled else Confirmation.PAGE_CACHE
    if store.replicas is None:
        return Confirmation.FSYNC
    return Confirmation.SLAVE if store.confirms_at_once else Confirmation.FSYNC_AND_SLAVE
