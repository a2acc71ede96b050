"""Subscription groups: create, delete, list, configuration.

Requirements: ADM-09.
"""

from __future__ import annotations

from saturnmq.admin.connection import AdminConnection


class Groups:
    """Subscription groups: create, delete, list, configuration."""

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection
