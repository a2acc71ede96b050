"""History of a cluster: a collector reads topics, groups and brokers once a minute and keeps the values in SQLite.

`History` is the file, `Collector` fills it over `saturnmq.admin`, from SaturnMQ and Apache brokers alike.
"""

from saturnmq.history.collector import Collector
from saturnmq.history.file import History, Point, Sample, Series
from saturnmq.history.progress import Baseline, GroupChange, Now

__all__ = ["Baseline", "Collector", "GroupChange", "History", "Now", "Point", "Sample", "Series"]
