"""Messages of a topic by position: ranges of queues, read with a puller, newest first where asked.

Requirements: CON-11, ADM-09.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from saturnmq.client.message import Message
from saturnmq.client.puller.puller import Puller, PullStatus
from saturnmq.protocol.bodies import MessageQueue, TopicOffset
from saturnmq.protocol.offsets import QueueOffset

PULL_COUNT: Final = 32


async def read_range(puller: Puller, queue: MessageQueue, begin: int, end: int) -> list[Message[bytes]]:
    """The messages of a queue at offsets begin to end - 1, oldest first; fewer if some have expired.

    A broker that moves no further ends the range.
    """
    messages: list[Message[bytes]] = []
    offset = begin
    while offset < end:
        result = await puller.pull(queue, QueueOffset(offset), max_count=min(end - offset, PULL_COUNT))
        messages += [message for message in result.messages() if begin <= message.offset < end]
        if result.status is PullStatus.NO_NEW_MESSAGE or result.next_offset <= offset:
            break
        offset = result.next_offset
    return messages


def newest(bounds: Mapping[MessageQueue, TopicOffset], skipped: int, count: int) -> list[tuple[MessageQueue, int, int]]:
    """The ranges (queue, begin, end) of a page of messages: queue after queue, in each the newest first.

    skipped: messages of the pages before.
    """
    ranges = []
    for queue, offsets in bounds.items():
        size = max(offsets.max_offset - offsets.min_offset, 0)
        if skipped < size and count > 0:
            end = offsets.max_offset - skipped
            begin = max(end - count, offsets.min_offset)
            ranges.append((queue, begin, end))
            count -= end - begin
        skipped = max(skipped - size, 0)
    return ranges
