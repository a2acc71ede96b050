"""History of a cluster: a collector reads topics, groups and brokers once a minute and keeps the values in SQLite.

`History` is the file, `Collector` fills it over `saturnmq.admin`, from SaturnMQ and Apache brokers alike.
"""

from saturnmq.history.collector import Collector
from saturnmq.history.file import History, Point, Sample, Series

__all__ = ["Collector", "History", "Point", "Sample", "Series"]
