"""The metrics of one broker and their port.

Requirements: INT-11, MON-17, EXP-02.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from saturnmq.broker.metrics.running_info import FIRST_SECONDS, PERIOD_SECONDS, ClientRates
from saturnmq.broker.metrics.sources import ScrapeProgress, Sources
from saturnmq.metrics import Registry
from saturnmq.net.endpoint import Endpoint
from saturnmq.net.endpoint_metrics import durations
from saturnmq.net.metrics_port import MetricsPort
from saturnmq.protocol.addresses import join_host_port
from saturnmq.tasks import OnFailure, cancel, supervised

if TYPE_CHECKING:
    from saturnmq.broker.metrics.apache import ApacheFamilies

log = logging.getLogger(__name__)


class BrokerMetrics:
    """All families, and the port that serves them if metricsPort is set. Without it nothing is timed by request code.

    The families are made by the first scrape: most brokers have no metrics port.

    ports: the listeners by name. codes: request codes with durations of their own.
    """

    def __init__(
        self, sources: Sources, ports: Mapping[str, Endpoint], codes: Iterable[int], on_failure: OnFailure
    ) -> None:
        self._sources, self._ports = sources, ports
        self._settings = sources.settings
        self._on_failure = on_failure
        self._polling: asyncio.Task[None] | None = None
        self.request_seconds = durations(codes)
        self.clients = ClientRates(sources.clients, sources.topics)
        self._progress = ScrapeProgress(sources)
        self.port = MetricsPort(self.pieces, sources.rejections)
        if self.enabled:
            for port in ports.values():
                port.request_seconds = self.request_seconds

    @cached_property
    def _families(self) -> tuple[Registry, ApacheFamilies]:
        from saturnmq.broker.metrics.apache import ApacheFamilies
        from saturnmq.broker.metrics.own import OwnFamilies

        sources, settings = self._sources, self._settings
        registry = Registry({"cluster": settings.cluster_name, "broker": settings.broker_name})
        OwnFamilies(registry, sources, self._progress, self._ports, self.request_seconds)
        accumulation = settings.metrics_accumulation
        return registry, ApacheFamilies(registry, sources, self._progress, self.clients, accumulation=accumulation)

    @property
    def enabled(self) -> bool:
        """Whether the port is to be open."""
        return self._settings.metrics_port > 0

    @property
    def unauthenticated(self) -> dict[str, str]:
        """The port, if it is open: it checks no account (SEC-16)."""
        return {"metrics": join_host_port(*self.port.address)} if self.port.address[1] else {}

    def pieces(self) -> Iterator[bytes]:
        """The text of one scrape, in pieces."""
        registry, apache = self._families
        self._progress.begin()
        apache.begin()
        return registry.pieces()

    async def start(self) -> None:
        """Open the port, if one is set. Raises StartError."""
        if self.enabled:
            await self.port.start(self._settings.metrics_address, self._settings.metrics_port)
            self._polling = supervised(self._poll(), "rates of consumers", self._on_failure)

    async def _poll(self) -> None:
        await asyncio.sleep(FIRST_SECONDS)
        while True:
            try:
                await self.clients.poll()
            except Exception:
                log.exception("rates of consumers not read retry_s=%s", PERIOD_SECONDS)
            await asyncio.sleep(PERIOD_SECONDS)

    async def stop(self) -> None:
        """Close the port."""
        await cancel(self._polling)
        self._polling = None
        await self.port.stop()
