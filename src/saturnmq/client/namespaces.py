"""Namespaces: names are `NS%name` on the wire and plain for the user. Pure.

Requirements: PR-32.
"""

from __future__ import annotations

from typing import Final

from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    DEFAULT_CONSUMER_GROUP,
    DEFAULT_PRODUCER_GROUP,
    DLQ_PREFIX,
    FORBIDDEN_SEND_TOPICS,
    INNER_PRODUCER_GROUP,
    RETRY_PREFIX,
    TRACE_TOPIC,
)

_SYSTEM_NAMES: Final = FORBIDDEN_SEND_TOPICS | {
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    TRACE_TOPIC,
    INNER_PRODUCER_GROUP,
    DEFAULT_PRODUCER_GROUP,
    DEFAULT_CONSUMER_GROUP,
}
_SYSTEM_PREFIX: Final = "CID_RMQ_SYS_"


def _split(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name


def wrap(namespace: str | None, name: str) -> str:
    """The name on the wire: `NS%name`, `%RETRY%NS%group`. System names and names that are already wrapped are unchanged."""
    if not namespace or not name or name in _SYSTEM_NAMES or name.startswith(_SYSTEM_PREFIX):
        return name
    prefix, base_name = _split(name)
    return name if base_name.startswith(namespace + "%") else f"{prefix}{namespace}%{base_name}"


def wrap_queue(namespace: str | None, queue: MessageQueue) -> MessageQueue:
    """The queue with its topic as it is on the wire."""
    topic = wrap(namespace, queue.topic)
    return queue if topic == queue.topic else MessageQueue(topic, queue.broker_name, queue.queue_id)


def strip_queue(namespace: str | None, queue: MessageQueue) -> MessageQueue:
    """The queue with its topic as the user named it."""
    if not namespace:
        return queue
    return MessageQueue(topic=strip(namespace, queue.topic), broker_name=queue.broker_name, queue_id=queue.queue_id)


def strip(namespace: str | None, name: str) -> str:
    """The user's name of a topic or group, given its name on the wire."""
    if not namespace:
        return name
    prefix, base_name = _split(name)
    return prefix + base_name.removeprefix(namespace + "%")
