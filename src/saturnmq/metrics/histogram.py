"""Histograms with fixed buckets.

A histogram is changed by one thread at a time and read by the event loop. On a hot path the caller counts inline, which costs no
Python call:

    histogram.counts[bisect_left(histogram.edges, seconds)] += 1
    histogram.sum += seconds
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

# Upper ends of the buckets, seconds, inclusive: from a record that is appended in the page cache to a disk that hangs.
SECONDS: Final = (
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0,
)  # fmt: skip


class Histogram:
    """Counts of values by bucket, and their sum. edges: upper ends of the buckets, ascending; one more bucket has no end.

    counts: by bucket, not cumulative. A slow path calls `observe`:

        fsync_seconds = Histogram()
        fsync_seconds.observe(0.004)
    """

    __slots__ = ("counts", "edges", "sum")

    def __init__(self, edges: tuple[float, ...] = SECONDS) -> None:
        if list(edges) != sorted(set(edges)):
            raise ValueError(f"edges={edges} must ascend")
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value that was seen so many times."""
        self.counts[bisect_left(self.edges, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)
