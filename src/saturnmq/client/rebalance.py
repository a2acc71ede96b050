"""How a group shares the queues of a topic: every member computes the same table alone. Pure.

Source: spec 03 RB-02, section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from saturnmq.protocol.bodies import MessageQueue

Strategy: TypeAlias = Callable[[Sequence[MessageQueue], Sequence[str], str], list[MessageQueue]]


def queue_order(queue: MessageQueue) -> tuple[str, str, int]:
    """The order all members sort queues by: topic, broker name, queue id."""
    return queue.topic, queue.broker_name, queue.queue_id


def average(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
    """Contiguous blocks, the first n mod m members get one more. An unknown member or nothing to share gives none."""
    ordered, ids = sorted(queues, key=queue_order), sorted(members)
    if me not in ids or not ordered:
        return []
    at, count = ids.index(me), len(ids)
    size, rest = divmod(len(ordered), count)
    start = at * size + min(at, rest)
    return ordered[start : start + size + (1 if at < rest else 0)]


def average_by_circle(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
    """Every m-th queue, beginning with the member's own index."""
    ordered, ids = sorted(queues, key=queue_order), sorted(members)
    if me not in ids:
        return []
    return ordered[ids.index(me) :: len(ids)]
