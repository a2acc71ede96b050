"""Messages: queries by id, key, offset and time, traces, test messages.

Requirements: ADM-09.
"""

from __future__ import annotations

from saturnmq.admin.connection import AdminConnection


class Messages:
    """Messages: queries by id, key, offset and time, traces, test messages."""

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection
