"""Writes OFFSET_MOVED_EVENT messages: a record of each pull that was redirected to another offset.

Requirements: BP-08.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from saturnmq.protocol.codes import OFFSET_MOVED_EVENT, PropertyKey
from saturnmq.protocol.json_dialect import dumps
from saturnmq.protocol.message import Host, Message, encode_properties
from saturnmq.store import MessageStore, PutStatus

log = logging.getLogger(__name__)

PAUSE_MS: Final = 1000  # between two events of one group and queue; Apache RocketMQ writes one per pull
EVENTS_MAX: Final = 100  # of all groups and queues within PAUSE_MS
_REMEMBERED_MAX: Final = 10_000


class OffsetMovedEvents:
    """Writes the events, at most one per PAUSE_MS, group and queue, and EVENTS_MAX in all, so that pulls cannot fill the disk."""

    def __init__(self, store: MessageStore, broker_name: str, clock_ms: Callable[[], int]) -> None:
        self._store = store
        self._broker_name = broker_name
        self._clock_ms = clock_ms
        self._began_ms = 0
        self._written = 0  # since then
        self._last_ms: dict[tuple[str, str, int], int] = {}

    def add(self, group: str, topic: str, queue_id: int, requested_offset: int, new_offset: int, host: Host) -> None:
        """Record that a group asked for one offset and was given another. host: this broker's address, as stored in records."""
        now = self._clock_ms()
        key = (group, topic, queue_id)
        # A key that is not remembered passes.
        if now - self._last_ms.get(key, now - PAUSE_MS) < PAUSE_MS:
            return
        if not 0 <= now - self._began_ms < PAUSE_MS:
            self._began_ms, self._written = now, 0
        if self._written >= EVENTS_MAX:
            return
        self._written += 1
        if len(self._last_ms) >= _REMEMBERED_MAX:
            # Rare, and costs an event too many at most.
            self._last_ms.clear()
        self._last_ms[key] = now
        body = dumps(
            {
                "consumerGroup": group,
                "messageQueue": {"brokerName": self._broker_name, "queueId": queue_id, "topic": topic},
                "offsetNew": new_offset,
                "offsetRequest": requested_offset,
            }
        )
        properties = encode_properties({PropertyKey.TAGS: group, PropertyKey.KEYS: group})
        result = self._store.put(Message(OFFSET_MOVED_EVENT, body, properties, 0, 0, 0, now, host, host))
        if result.status is not PutStatus.PUT_OK:
            log.warning("offset-moved event not stored group=%s topic=%s status=%s", group, topic, result.status.value)
