"""The metrics of one broker and their port.

Requirements: INT-11, MON-17, EXP-02.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping

from saturnmq.broker.metrics.apache import ApacheFamilies
from saturnmq.broker.metrics.own import OwnFamilies
from saturnmq.broker.metrics.running_info import FIRST_SECONDS, PERIOD_SECONDS, ClientRates
from saturnmq.broker.metrics.sources import ScrapeProgress, Sources
from saturnmq.metrics import Registry
from saturnmq.net.endpoint import Endpoint
from saturnmq.net.endpoint_metrics import durations
from saturnmq.net.metrics_port import MetricsPort
from saturnmq.tasks import OnFailure, cancel, supervised

log = logging.getLogger(__name__)


class BrokerMetrics:
    """All families, and the port that serves them if metricsPort is set. Without it nothing is timed by request code.

    ports: the listeners by name. codes: request codes with durations of their own.
    """

    def __init__(
        self, sources: Sources, ports: Mapping[str, Endpoint], codes: Iterable[int], on_failure: OnFailure
    ) -> None:
        settings = self._settings = sources.settings
        self._on_failure = on_failure
        self._polling: asyncio.Task[None] | None = None
        self.request_seconds = durations(codes)
        self.registry = Registry({"cluster": settings.cluster_name, "broker": settings.broker_name})
        self.clients = ClientRates(sources.clients, sources.topics)
        self._progress = ScrapeProgress(sources)
        OwnFamilies(self.registry, sources, self._progress, ports, self.request_seconds)
        accumulation = settings.metrics_accumulation
        self._apache = ApacheFamilies(self.registry, sources, self._progress, self.clients, accumulation=accumulation)
        self.port = MetricsPort(self.pieces, sources.rejections)
        if self.enabled:
            for port in ports.values():
                port.request_seconds = self.request_seconds

    @property
    def enabled(self) -> bool:
        """Whether the port is to be open."""
        return self._settings.metrics_port > 0

    @property
    def unauthenticated(self) -> dict[str, str]:
        """The port, if it is open: it checks no account (SEC-16)."""
        return {"metrics": "{}:{}".format(*self.port.address)} if self.port.address[1] else {}

    def pieces(self) -> Iterator[bytes]:
        """The text of one scrape, in pieces."""
        self._progress.begin()
        self._apache.begin()
        return self.registry.pieces()

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
