"""Brokers: configuration, runtime state, statistics, cleaning.

Requirements: ADM-09.
"""

from __future__ import annotations

from saturnmq.admin.connection import AdminConnection


class Brokers:
    """Brokers: configuration, runtime state, statistics, cleaning."""

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection
