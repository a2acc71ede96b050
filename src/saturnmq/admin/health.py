"""Health of a group, from the running information of its clients (spec 05 section 2.2). Pure.

Requirements: RT-14, C-38.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from saturnmq.protocol.bodies import ConsumerRunningInfo, MessageQueue

SETTLED_MS: Final = 120_000  # a group that started later may still exchange its subscriptions
BLOCKED_MS: Final = 60_000


class Trouble(Enum):
    """The fault of a queue of a client."""

    NOT_LOCKED = "not locked"  # of an ordered consumer; milliseconds since the last lock
    NOT_UNLOCKED = "not unlocked"  # dropped, but still locked; attempts
    BLOCKED = "blocked"  # messages wait and none was consumed; milliseconds since the last one


@dataclass(frozen=True)
class QueueTrouble:
    """A queue that a client holds and does not get on with. number: milliseconds, or attempts."""

    client_id: str
    queue: MessageQueue
    trouble: Trouble
    number: int


def same_subscriptions(infos: Mapping[str, ConsumerRunningInfo], now_ms: int) -> bool:
    """Whether all push clients of a group subscribe to the same, which is not nothing. True until 2 min after the first started.

    infos: running information by client id, at least one.
    """
    ordered = [infos[client] for client in sorted(infos)]
    first = ordered[0].properties
    if not _pushes(ordered[0]) or now_ms - _number(first.get("PROP_CONSUMER_START_TIMESTAMP")) <= SETTLED_MS:
        return True
    subscriptions = [
        {(subscription.topic, subscription.sub_string) for subscription in info.subscription_set} for info in ordered
    ]
    return bool(subscriptions[0]) and all(subscribed == subscriptions[0] for subscribed in subscriptions)


def queue_troubles(client_id: str, info: ConsumerRunningInfo, now_ms: int) -> list[QueueTrouble]:
    """Queues of a push client that are not locked, not unlocked or blocked, by topic, broker and queue."""
    if not _pushes(info):
        return []
    is_ordered = info.properties.get("PROP_CONSUMEORDERLY", "").lower() == "true"
    troubles = []
    for queue, state in sorted(info.mq_table.items(), key=lambda i: (i[0].topic, i[0].broker_name, i[0].queue_id)):
        idle_ms = now_ms - state.last_consume_timestamp
        if is_ordered and not state.locked:
            troubles.append(QueueTrouble(client_id, queue, Trouble.NOT_LOCKED, now_ms - state.last_lock_timestamp))
        elif is_ordered and state.droped and state.try_unlock_times > 0:
            troubles.append(QueueTrouble(client_id, queue, Trouble.NOT_UNLOCKED, state.try_unlock_times))
        elif not is_ordered and idle_ms > BLOCKED_MS and state.cached_msg_count > 0:
            troubles.append(QueueTrouble(client_id, queue, Trouble.BLOCKED, idle_ms))
    return troubles


def _pushes(info: ConsumerRunningInfo) -> bool:
    return info.properties.get("PROP_CONSUME_TYPE") == "CONSUME_PASSIVELY"


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0
