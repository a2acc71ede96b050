"""What the running information of a group's clients says about its health."""

from __future__ import annotations

import pytest

from saturnmq.admin.health import BLOCKED_MS, SETTLED_MS, QueueTrouble, Trouble, queue_troubles, same_subscriptions
from saturnmq.protocol.bodies import ConsumerRunningInfo, MessageQueue, ProcessQueueInfo, SubscriptionData

NOW_MS = 1_700_000_000_000
QUEUE = MessageQueue("orders", "a", 0)
PUSH, PULL = "CONSUME_PASSIVELY", "CONSUME_ACTIVELY"


def info(
    *topics: str,
    age_ms: int = SETTLED_MS + 1,
    kind: str = PUSH,
    orderly: bool = False,
    state: ProcessQueueInfo | None = None,
) -> ConsumerRunningInfo:
    return ConsumerRunningInfo(
        properties={
            "PROP_CONSUME_TYPE": kind,
            "PROP_CONSUMER_START_TIMESTAMP": str(NOW_MS - age_ms),
            "PROP_CONSUMEORDERLY": "true" if orderly else "false",
        },
        subscription_set=[SubscriptionData(topic, sub_version=len(topic) + age_ms) for topic in topics],
        mq_table={} if state is None else {QUEUE: state},
    )


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (info("a", "b"), info("b", "a", age_ms=9_999_999), True),
        (info("a"), info("a", "b"), False),
        (info(), info(), False),
        (info("a", age_ms=SETTLED_MS), info("b"), True),
        (info("a", kind=PULL), info("b"), True),
    ],
)
def test_subscriptions_of_a_group_must_be_equal(
    first: ConsumerRunningInfo, second: ConsumerRunningInfo, same: bool
) -> None:
    assert same_subscriptions({"c1": first, "c2": second}, NOW_MS) is same


WAITING = ProcessQueueInfo(cached_msg_count=1, last_consume_timestamp=NOW_MS - BLOCKED_MS - 1)


@pytest.mark.parametrize(
    ("client", "trouble", "number"),
    [
        (info(orderly=True, state=ProcessQueueInfo(last_lock_timestamp=NOW_MS - 7)), Trouble.NOT_LOCKED, 7),
        (
            info(orderly=True, state=ProcessQueueInfo(locked=True, droped=True, try_unlock_times=3)),
            Trouble.NOT_UNLOCKED,
            3,
        ),
        (info(state=WAITING), Trouble.BLOCKED, BLOCKED_MS + 1),
    ],
)
def test_queues_in_trouble(client: ConsumerRunningInfo, trouble: Trouble, number: int) -> None:
    assert queue_troubles("c", client, NOW_MS) == [QueueTrouble("c", QUEUE, trouble, number)]


@pytest.mark.parametrize(
    "client",
    [
        info(orderly=True, state=ProcessQueueInfo(locked=True)),
        info(orderly=True, state=ProcessQueueInfo(locked=True, droped=True)),
        info(state=ProcessQueueInfo(cached_msg_count=1, last_consume_timestamp=NOW_MS - BLOCKED_MS)),
        info(state=ProcessQueueInfo(last_consume_timestamp=1)),
        info(kind=PULL, state=WAITING),
    ],
)
def test_queues_without_trouble(client: ConsumerRunningInfo) -> None:
    assert queue_troubles("c", client, NOW_MS) == []
