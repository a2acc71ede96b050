"""The services that only a master runs: delivery by level, delivery at a time, and transactions.

A broker without a group creates them once; a member of a DLedger group creates them again with every change of its role, so that
nothing of an earlier term remains in them.

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

    make: creates all of them, not yet loaded or started. on_failure: called if the task of one ends with an error.
    """

    __slots__ = ("_make", "_on_failure", "delay", "timer", "transactions")

    def __init__(self, make: Callable[[], Services], on_failure: OnFailure) -> None:
        self._make = make
        self._on_failure = on_failure
        self.delay, self.timer, self.transactions = make()

    def start(self) -> None:
        """Start all services; they are loaded."""
        for service in (self.delay, self.timer, self.transactions):
            service.start(self._on_failure)

    def restart(self) -> None:
        """Create, load and start all services (DL-C05). Raises CorruptRecord, StoreError."""
        self.delay, self.timer, self.transactions = self._make()
        for service in (self.delay, self.timer, self.transactions):
            service.load()
            service.start(self._on_failure)

    async def stop(self) -> None:
        """Stop all services and replace them by fresh ones, of which only the progress by level is loaded (DL-C04)."""
        await asyncio.gather(self.delay.stop(), self.timer.stop(), self.transactions.stop())
        self.delay, self.timer, self.transactions = self._make()
        self.delay.load()
