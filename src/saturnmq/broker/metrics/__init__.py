"""Metrics of a broker for Prometheus: the exporter's names for existing boards, and families of our own."""

from saturnmq.broker.metrics.metrics import BrokerMetrics
from saturnmq.broker.metrics.sources import Sources

__all__ = ["BrokerMetrics", "Sources"]
