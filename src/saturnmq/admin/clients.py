"""Connected clients: consumers, producers, running information.

Requirements: ADM-09.
"""

from __future__ import annotations

from saturnmq.admin.connection import AdminConnection


class Clients:
    """Connected clients: consumers, producers, running information."""

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection
