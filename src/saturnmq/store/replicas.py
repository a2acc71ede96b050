"""The outcome of a put that waits for this disk and for a replica elsewhere (SYNC_MASTER).

Requirements: SW-01, SW-02.
"""

from __future__ import annotations

from typing import Protocol

from saturnmq.store.log.log import Position
from saturnmq.store.results import Confirmed, PutStatus


class ReplicaAcks(Protocol):
    """Where else records are stored."""

    def when_acknowledged(self, position: Position, callback: Confirmed) -> None:
        """Run the callback once: when a replica has everything before the position, or with the reason why none has."""

    def send_now(self) -> None:
        """More records can be sent, for which puts wait."""


class DiskAndReplica:
    """Two outcomes; a bad one of the replica counts more than one of the disk (SW-02)."""

    __slots__ = ("_callback", "_disk", "_replica", "_replicas")

    def __init__(self, replicas: ReplicaAcks, callback: Confirmed) -> None:
        self._replicas = replicas
        self._callback = callback
        self._disk: tuple[PutStatus, str] | None = None
        self._replica: tuple[PutStatus, str] | None = None

    def on_disk(self, status: PutStatus, reason: str) -> None:
        self._disk = status, reason
        if self._replica is None:
            # The records are durable here now and may be sent before the next regular round.
            self._replicas.send_now()
        self._complete()

    def on_replica(self, status: PutStatus, reason: str) -> None:
        self._replica = status, reason
        self._complete()

    def _complete(self) -> None:
        if self._disk is not None and self._replica is not None:
            self._callback(*(self._disk if self._replica[0] is PutStatus.PUT_OK else self._replica))
