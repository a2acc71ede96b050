"""Checks what a record that another broker appended says, before it enters consume queues and index; finds its queue.

Requirements: DL-B13, DL-X17, HA-16, SEC-18, SEC-19.
"""

from __future__ import annotations

import logging
from typing import Final

from saturnmq.protocol.codes import NOT_IN_QUEUE, TRANSACTION_MASK
from saturnmq.protocol.errors import MessageError
from saturnmq.protocol.message import Message
from saturnmq.store.queue.consume_queue import ConsumeQueue
from saturnmq.store.queue.queues import QueueTable

log = logging.getLogger(__name__)

QUEUES_MAX: Final = 65_536  # of a topic
QUEUE_OFFSET_MAX: Final = 1 << 40
STORE_MS_MAX: Final = 1 << 45  # in the year 3084
_TOPIC_BYTES_MAX: Final = 255


def check_fields(message: Message) -> None:
    """Raise MessageError if a field that no checksum covers is out of range."""
    topic = message.topic
    if (
        not topic
        or topic in (".", "..")
        or "/" in topic
        or not topic.isprintable()
        or len(topic.encode()) > _TOPIC_BYTES_MAX
    ):
        raise MessageError(f"topic {topic!r} cannot be a folder name")
    # Each queue is a folder with files: a damaged number must not create thousands.
    if not 0 <= message.queue_id < QUEUES_MAX:
        raise MessageError(f"queue {message.queue_id} is not in 0..{QUEUES_MAX - 1}")
    if not 0 <= message.queue_offset <= QUEUE_OFFSET_MAX:
        raise MessageError(f"queue offset {message.queue_offset} is not in 0..{QUEUE_OFFSET_MAX}")
    if not 0 <= message.store_timestamp_ms <= STORE_MS_MAX:
        raise MessageError(f"store time {message.store_timestamp_ms} is not in 0..{STORE_MS_MAX}")


def check_place(queue: ConsumeQueue | None, message: Message) -> None:
    """Raise MessageError unless the message's queue offset continues its queue, or its unit is in the queue already."""
    if queue is None:
        return
    number, end = message.queue_offset, queue.max_offset
    # A gap would make every reader of the queue stop there.
    if 0 < end < number:
        raise MessageError(f"queue offset {number}, but queue {message.topic}/{message.queue_id} ends at {end}")
    # The number is taken by a record before this one; a repetition has its own position.
    if number < end and message.physical_offset >= queue.max_physical:
        raise MessageError(f"queue offset {number} of {message.topic}/{message.queue_id} is taken, it ends at {end}")


def queue_for(queues: QueueTable, message: Message) -> ConsumeQueue | None:
    """The consume queue of a message in the log; None for messages that consumers do not see. Raises StoreError."""
    if (message.sys_flag & TRANSACTION_MASK) in NOT_IN_QUEUE:
        return None
    queue = queues.get_or_make(message.topic, message.queue_id)
    number = message.queue_offset
    # Number 0 again: the topic was deleted and created again on the broker that numbers.
    if number == 0 < queue.max_offset and message.physical_offset >= queue.max_physical:
        log.warning(
            "queue restarted after topic deletion topic=%s queue=%s offset=%s", message.topic, message.queue_id,
            message.physical_offset,
        )  # fmt: skip
        queue.delete()
    elif number > queue.max_offset == queue.min_offset:
        queue.delete()  # the queue is empty; it continues with this offset
    return queue
