"""Checks what an entry of the ledger says, before it enters queues and index, and before a client's entry is appended.

An entry that is committed is in the log of every member, and cannot be removed. One that cannot be dispatched is quarantined: every
member skips it by the same rules, which depend only on the log, and goes on. Rules that are stricter apply to entries that clients
append through the DLedger port, because refusing those harms no member.

Requirements: DL-B13, DL-X17, SEC-18.
"""

from __future__ import annotations

import logging
from typing import Final

from saturnmq.protocol.codes import TRANSACTION_MASK, PropertyKey
from saturnmq.protocol.errors import MessageError
from saturnmq.protocol.message import Message, decode_record
from saturnmq.protocol.names import topic_problem
from saturnmq.raft.ledger.bodies import EntryBody
from saturnmq.replication.records import QUEUES_MAX, check_fields
from saturnmq.store.delay import LEVEL_DIGITS_MAX, TIMED_TOPICS

log = logging.getLogger(__name__)

_LINES_MAX: Final = 100


def read_entry_message(body: EntryBody) -> Message:
    """The message of an entry. Raises MessageError if it must not enter queues and index."""
    message = decode_record(body.record)
    # The record is intact but was stamped for another place: offsets in queues would point elsewhere.
    if message.physical_offset != body.physical_offset or message.store_bytes != len(body.record):
        raise MessageError(f"it says it lies at {message.physical_offset} with {message.store_bytes} bytes")
    check_fields(message)
    # Parsed as a number by every member: an enormous one would stop dispatch.
    if message.topic in TIMED_TOPICS and len(message.properties.get(PropertyKey.DELAY, "")) > LEVEL_DIGITS_MAX:
        raise MessageError(f"its delay level has more than {LEVEL_DIGITS_MAX} digits")
    return message


def appended_problem(message: Message) -> str | None:
    """Why a message that a client appends through the DLedger port is refused; None if it may be appended."""
    problem = topic_problem(message.topic)
    if problem is not None:
        return problem
    if not 0 <= message.queue_id < QUEUES_MAX:
        return f"queue {message.queue_id} is not in 0..{QUEUES_MAX - 1}"
    if message.sys_flag & TRANSACTION_MASK:
        return "a transactional message is appended through the broker only"
    return None


class Quarantine:
    """Counts and reports the committed entries that this process has skipped. last: position of the last one; -1: none."""

    def __init__(self) -> None:
        self.count = 0
        self.last = -1

    def add(self, body: EntryBody, reason: object) -> None:
        self.count += 1
        self.last = body.physical_offset
        # A client may have appended thousands before the rule existed.
        if self.count <= _LINES_MAX:
            log.error(
                "[BUG] entry quarantined, it is in no queue offset=%s bytes=%s reason=%s count=%s",
                body.physical_offset,
                len(body.record),
                reason,
                self.count,
            )
