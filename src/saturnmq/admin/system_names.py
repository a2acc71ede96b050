"""Which topics and groups belong to the brokers and the client libraries, not to users: retry, dead letters, traces, internal ones.

Pages and tools list what users made first, and count only that in their totals.

Requirements: UX-14, CLI-02.
"""

from __future__ import annotations

from typing import Final

from saturnmq.admin.survey import TopicState
from saturnmq.protocol.codes import INNER_PRODUCER_GROUP, REPLY_TOPIC_SUFFIX, SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS

SYSTEM_GROUPS: Final = frozenset(
    {
        "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", "CID_RMQ_SYS_TRANS", "__MONITOR_CONSUMER", "CID_SYS_RMQ_TRANS",
    }
)  # fmt: skip
_PRODUCERS: Final = (INNER_PRODUCER_GROUP, "_INNER_TRACE_PRODUCER", "SELF_TEST_P_GROUP", "TOOLS_PRODUCER")


def is_system(topic: TopicState) -> bool:
    """Whether a topic belongs to the brokers: retry, dead letters, internal topics, those named after a broker or its cluster."""
    return (
        is_internal(topic.name)
        or topic.name in topic.configs
        or topic.name in (topic.cluster, f"{topic.cluster}_{REPLY_TOPIC_SUFFIX}")
    )


def is_system_group(name: str) -> bool:
    """Whether every broker makes a group of this name for itself."""
    return name in SYSTEM_GROUPS


def is_system_producer(name: str) -> bool:
    """Whether client libraries open a producer group of this name for themselves: for retries, traces and tools."""
    return name.startswith(_PRODUCERS)


def is_internal(topic: str) -> bool:
    """Whether the name of a topic says that it belongs to the brokers."""
    return topic in SYSTEM_TOPICS or topic.startswith(("%RETRY%", "%DLQ%", SYSTEM_TOPIC_PREFIX))


def users_first(topics: list[str]) -> list[str]:
    """Names of topics in the order of a list: those of users, then retry, dead letters and internal ones, each by name."""
    return sorted(topics, key=lambda name: (is_internal(name), name))
