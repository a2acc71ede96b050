"""The metrics of a NameServer: sizes of its tables, connections, rejections and durations of requests.

Requirements: INT-11.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from saturnmq.metrics import GAUGE, Registry, Rows
from saturnmq.namesrv.kv_config import KVConfig
from saturnmq.namesrv.routes import RouteTable
from saturnmq.namesrv.settings import NameServerSettings
from saturnmq.net import RemotingServer
from saturnmq.net.endpoint_metrics import durations, register
from saturnmq.net.metrics_port import MetricsPort
from saturnmq.protocol.addresses import join_host_port


class NameServerMetrics:
    """All families, and the port that serves them if metricsPort is set. codes: request codes with durations of their own."""

    def __init__(
        self,
        settings: NameServerSettings,
        routes: RouteTable,
        kv: KVConfig,
        server: RemotingServer,
        codes: Iterable[int],
    ) -> None:
        self._settings = settings
        registry = self.registry = Registry()
        started = time.time()
        registry.gauge("saturnmq_start_time_seconds", "Start of the NameServer, Unix time.", lambda: started)
        registry.gauge("saturnmq_namesrv_brokers", "Brokers that are registered.", lambda: len(routes.live))
        registry.gauge("saturnmq_namesrv_topics", "Topics with a route.", lambda: len(routes.queues))
        registry.gauge(
            "saturnmq_namesrv_kv_entries", "Entries of the KV configuration.", lambda: sum(map(len, kv.table.values()))
        )
        text = "Changes of routes since the start."
        registry.counter("saturnmq_namesrv_route_changes_total", text, lambda: routes.changes)

        def masters() -> Rows:
            for cluster, names in list(routes.clusters.items()):
                yield (cluster,), len(names)

        text = "Broker names of a cluster."
        registry.family(GAUGE, "saturnmq_namesrv_cluster_brokers", text, ("cluster",), masters)
        requests = durations(codes)
        register(registry, {"main": server}, server.rejections, requests)
        self.port = MetricsPort(registry.pieces, server.rejections)
        if settings.metrics_port:
            server.request_seconds = requests

    @property
    def unauthenticated(self) -> dict[str, str]:
        """The port, if it is open: it checks no account (SEC-16)."""
        return {"metrics": join_host_port(*self.port.address)} if self.port.address[1] else {}

    async def start(self) -> None:
        """Open the port, if one is set. Raises StartError."""
        if self._settings.metrics_port:
            await self.port.start(self._settings.metrics_address, self._settings.metrics_port)
