"""Accounts and white lists of access control.

Requirements: ADM-09.
"""

from __future__ import annotations

from saturnmq.admin.connection import AdminConnection


class Accounts:
    """Accounts and white lists of access control."""

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection
