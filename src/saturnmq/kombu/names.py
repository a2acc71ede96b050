"""Topic names of kombu's queues and exchanges: reversible, so no two names share a topic. Pure.

    celery                       celery                        letters, digits, _ and - stay as they are
    orders.high@eu               orders|2Ehigh|40eu            others: | and two hex digits for each byte of UTF-8
    TBW102                       |54BW102                      a name that brokers reserve: its first character as well
    exchange celery.pidbox       exchange||celery|2Epidbox     no queue's name holds ||

The consumer group of a queue has the name of its topic.

Requirements: INT-05.
"""

from __future__ import annotations

import re
from typing import Final

from saturnmq.admin.system_names import is_internal, is_system_group
from saturnmq.protocol.codes import DEFAULT_CONSUMER_GROUP, FORBIDDEN_SEND_TOPICS, NAME_LENGTH_MAX, RETRY_PREFIX
from saturnmq.protocol.errors import ConfigError

LENGTH_MAX: Final = NAME_LENGTH_MAX - len(RETRY_PREFIX)  # the group of a queue has a retry topic
EXCHANGE_PREFIX: Final = "exchange||"
_ESCAPED: Final = re.compile(r"[^a-zA-Z0-9_-]")
_ESCAPE: Final = re.compile(r"(?:\|[0-9A-F]{2})+")
_RESERVED_GROUP_PREFIX: Final = "CID_RMQ_SYS_"


def escaped(name: str) -> str:
    """The name with the characters that are illegal in topics, groups and tags replaced."""
    return _ESCAPED.sub(lambda match: _escape(match[0]), name)


def topic_of_queue(queue: str) -> str:
    """The topic of a queue, and its consumer group. Raises ConfigError for a name that is too long."""
    topic = escaped(queue)
    if _is_reserved(topic):
        topic = _escape(topic[0]) + topic[1:]
    return _checked("queue", queue, topic)


def unescaped(topic: str) -> str:
    """The inverse of `topic_of_queue` and of `escaped`."""
    return _ESCAPE.sub(lambda match: bytes.fromhex(match[0].replace("|", "")).decode(), topic)


def topic_of_exchange(exchange: str) -> str:
    """The topic of an exchange. Raises ConfigError for a name that is too long."""
    return _checked("exchange", exchange, EXCHANGE_PREFIX + escaped(exchange))


def _escape(text: str) -> str:
    return "".join(f"|{byte:02X}" for byte in text.encode())


def _is_reserved(name: str) -> bool:
    return (
        is_internal(name)
        or is_system_group(name)
        or name in FORBIDDEN_SEND_TOPICS
        or name == DEFAULT_CONSUMER_GROUP
        or name.startswith(_RESERVED_GROUP_PREFIX)
    )


def _checked(kind: str, name: str, topic: str) -> str:
    if not name and kind == "queue":
        raise ConfigError("the queue's name is empty, must have at least 1 character")
    if len(topic) > LENGTH_MAX:
        raise ConfigError(
            f"{kind} {name!r:.150} is topic {topic:.150}, which has {len(topic)} characters, must be at most {LENGTH_MAX}"
        )
    return topic
