"""Latencies and rates of a benchmark: a histogram of fixed size, a count per second, and both as text. Pure.

Requirements: CLI-02.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

SUB_BITS: Final = 6  # 64 buckets per power of two: percentiles are at most 1.6 % too high
_SUB: Final = 1 << SUB_BITS
_PERCENTILES: Final = (("p50_ms", 0.5), ("p95_ms", 0.95), ("p99_ms", 0.99), ("p999_ms", 0.999))
BARS_MAX: Final = 20
BAR_WIDTH: Final = 40
SECONDS_MAX: Final = 86_400  # counts of later seconds are added to the last one


class LatencyHistogram:
    """Durations in microseconds, in buckets that grow with the value; a duration is counted for the upper end of its bucket."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.max_us = 0

    def add(self, us: int, count: int = 1) -> None:
        """Count a duration; a negative one counts as 0."""
        us = max(us, 0)
        shift = max(us.bit_length() - SUB_BITS - 1, 0)
        bucket = (shift << (SUB_BITS + 1)) + (us >> shift)
        self._counts[bucket] = self._counts.get(bucket, 0) + count
        self.count += count
        self.max_us = max(self.max_us, us)

    def percentile(self, share: float) -> int:
        """The duration in microseconds that this share of all does not exceed; 0 without any."""
        rank, cumulative = share * self.count, 0
        for bucket in sorted(self._counts):
            cumulative += self._counts[bucket]
            if cumulative >= rank:
                shift, value = bucket >> (SUB_BITS + 1), bucket & (2 * _SUB - 1)
                return min(((value + 1) << shift) - 1, self.max_us)
        return 0


class Measurement:
    """The measurements of one run. Times are seconds of one clock, given by the caller."""

    def __init__(self) -> None:
        self.latency = LatencyHistogram()
        self.messages = 0
        self.bytes = 0
        self.failed = 0
        self._began: float | None = None
        self._ended = 0.0
        self._per_second: list[int] = []

    def begin(self, now: float) -> None:
        """Start the clock of the run."""
        self._began = self._ended = now

    def add(self, now: float, latency_s: float, messages: int, size: int) -> None:
        """Count a request that has ended now: its duration, messages and bytes."""
        began = now if self._began is None else self._began
        self.latency.add(round(latency_s * 1e6))
        self.messages += messages
        self.bytes += size
        self._ended = max(self._ended, now)
        second = min(int(now - began), SECONDS_MAX - 1)
        self._per_second += [0] * (second + 1 - len(self._per_second))
        self._per_second[second] += messages

    @property
    def seconds(self) -> float:
        """From the start to the last request that has ended."""
        return 0.0 if self._began is None else self._ended - self._began

    def row(self) -> dict[str, Any]:
        """All numbers, as of a row of a JSON document."""
        seconds = max(self.seconds, 1e-9)
        row: dict[str, Any] = {
            "messages": self.messages,
            "bytes": self.bytes,
            "failed": self.failed,
            "seconds": round(self.seconds, 3),
            "messages_per_s": round(self.messages / seconds) if self.messages else 0,
            "mib_per_s": round(self.bytes / seconds / 2**20, 2) if self.bytes else 0.0,
        }
        row |= {name: self.latency.percentile(share) / 1000 for name, share in _PERCENTILES}
        return row | {"max_ms": self.latency.max_us / 1000}

    def lines(self, *, unicode: bool) -> Iterator[str]:
        """The numbers and a plot of the rate over time, for a terminal."""
        row = self.row()
        failed = f", {row['failed']:,} failed" if self.failed else ""
        yield f"{row['messages']:,} messages in {row['seconds']:.2f} s{failed}"
        yield f"rate     {row['messages_per_s']:,} messages/s  {row['mib_per_s']:.2f} MiB/s"
        names = [name for name, _ in _PERCENTILES] + ["max_ms"]
        yield "latency  " + "  ".join(f"{name.removesuffix('_ms')} {row[name]:.2f} ms" for name in names)
        yield from self._plot("█" if unicode else "#")

    def _plot(self, block: str) -> Iterator[str]:
        """A bar for each second, or for several seconds if the run was long. The last, incomplete second is left out."""
        whole = self._per_second[: int(self.seconds)]
        if len(whole) < 2:
            return
        step = -(-len(whole) // BARS_MAX)
        parts = [whole[at : at + step] for at in range(0, len(whole), step)]
        rates = [sum(part) / len(part) for part in parts]
        top = max(max(rates), 1)
        for number, rate in enumerate(rates):
            bar = block * round(BAR_WIDTH * rate / top)
            yield f"{number * step:5d} s  {bar:<{BAR_WIDTH}}  {rate:,.0f}/s"
