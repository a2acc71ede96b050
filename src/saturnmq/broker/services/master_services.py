"""The services that only a master runs: delivery by delay level, delivery at a time, and transactions.

A broker outside a DLedger group creates them once. A member of a group creates them again with every change of its role, so that
they keep no state of an earlier term.

Requirements: DL-C04, DL-C05.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from saturnmq.broker.services.delay import DelayService
from saturnmq.broker.services.timer import TimerService
from saturnmq.broker.services.transactions import Transactions
from saturnmq.tasks import OnFailure

Services = tuple[DelayService, TimerService, Transactions]


class MasterServices:
    """The current instance of each service.

    create_services: creates all of them, not yet loaded or started. on_failure: called if the task of one ends with an error.
    """

    __slots__ = ("_create_services", "_on_failure", "delay", "timer", "transactions")

    def __init__(self, create_services: Callable[[], Services], on_failure: OnFailure) -> None:
        self._create_services = create_services
        self._on_failure = on_failure
        self.delay, self.timer, self.transactions = create_services()

    def start(self) -> None:
        """Start all services, which must be loaded."""
        for service in (self.delay, self.timer, self.transactions):
            service.start(self._on_failure)

    def restart(self) -> None:
        """Create, load and start all services (DL-C05). Raises CorruptRecord, StoreError."""
        self.delay, self.timer, self.transactions = self._create_services()
        for service in (self.delay, self.timer, self.transactions):
            service.load()
            service.start(self._on_failure)

    async def stop(self) -> None:
        """Stop all services and replace them by new ones; only the delay service is loaded, with its progress (DL-C04)."""
        # Together: each waits for the disk.
        await asyncio.gather(self.delay.stop(), self.timer.stop(), self.transactions.stop())
        self.delay, self.timer, self.transactions = self._create_services()
        # Only its progress is shown on a follower (code 45).
        self.delay.load()
