"""Disables consumer groups whose backlog is so large that reading for them would slow down others; off by default.

The key is disableConsumeIfConsumerReadSlowly.

Requirements: BP-09.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Final

from saturnmq.broker.state.groups import SYSTEM_PREFIX, Groups
from saturnmq.broker.state.offsets import Offsets
from saturnmq.protocol.offsets import QueueOffset
from saturnmq.store import MessageStore

log = logging.getLogger(__name__)

CHECK_SECONDS: Final = 180


def disable_slow(store: MessageStore, groups: Groups, offsets: Offsets, behind_bytes_max: int) -> list[str]:
    """Set consumeEnable=false for groups with a queue more than behind_bytes_max behind; returns their names.

    Only an administrator (code 200) can enable a group again.
    """
    slow = []
    for group, config in list(groups.table.items()):
        if not config.consume_enable or group.startswith(SYSTEM_PREFIX):
            continue
        behind = max((_behind(store, topic, offsets.of(topic, group)) for topic in offsets.topics_of(group)), default=0)
        if behind > behind_bytes_max:
            log.warning("consumption disabled, group too far behind group=%s behind_bytes=%s", group, behind)
            groups.set(dataclasses.replace(config, consume_enable=False))
            slow.append(group)
    return slow


def _behind(store: MessageStore, topic: str, queues: dict[int, int]) -> int:
    """Log bytes from the next message of the slowest of these queues to the end; 0 if all messages are consumed."""
    places = (
        store.physical_offset(topic, queue_id, QueueOffset(max(offset, store.min_offset(topic, queue_id))))
        for queue_id, offset in queues.items()
    )
    return max((store.max_physical_offset - place for place in places if place >= 0), default=0)
