"""Offsets of consumer groups: progress, reset, clone.

Requirements: ADM-09.
"""

from __future__ import annotations

from saturnmq.admin.connection import AdminConnection


class Offsets:
    """Offsets of consumer groups: progress, reset, clone."""

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection
