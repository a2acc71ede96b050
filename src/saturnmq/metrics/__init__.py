"""Metrics in the text format of Prometheus: histograms and a registry that writes its families in small pieces.

Requirements: MON-17, INT-11, INT-12.
"""

from saturnmq.metrics.histogram import SECONDS, Histogram
from saturnmq.metrics.registry import COUNTER, GAUGE, ROWS_MAX, Registry, Row, Rows
from saturnmq.metrics.text import CONTENT_TYPE

__all__ = ["CONTENT_TYPE", "COUNTER", "GAUGE", "ROWS_MAX", "SECONDS", "Histogram", "Registry", "Row", "Rows"]
