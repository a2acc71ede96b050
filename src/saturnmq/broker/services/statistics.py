"""Message counters of a broker, and their part of the runtime information (GET_BROKER_RUNTIME_INFO).

Requirements: RT-01.
"""

from __future__ import annotations

from collections import deque
from typing import Final

PUT_BUCKETS_MS: Final = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
_LABELS: Final = (
    "[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]", "[1~2s]", "[2~3s]",
    "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]",
)  # fmt: skip
SAMPLE_SECONDS: Final = 1
_WINDOWS: Final = (10, 60, 600)


class Stats:
    """Totals since the start, sampled each second for rates over 10, 60 and 600 s."""

    __slots__ = ("_samples", "get_bytes", "get_found", "get_messages", "get_miss", "put_bytes", "put_failed", "put_messages",
                 "started_ms")  # fmt: skip

    def __init__(self, started_ms: int) -> None:
        self.started_ms = started_ms
        self.put_messages = self.put_bytes = self.put_failed = 0
        self.get_messages = self.get_bytes = self.get_found = self.get_miss = 0
        self._samples: deque[tuple[float, int, int, int, int]] = deque(maxlen=max(_WINDOWS) + 1)

    def sample(self, now_seconds: float) -> None:
        """Record a sample of the totals. now_seconds: event-loop time."""
        self._samples.append((now_seconds, self.put_messages, self.get_found, self.get_miss, self.get_messages))

    def _rates(self, column: int, total: int, now_seconds: float) -> str:
        rates = []
        for window in _WINDOWS:
            first = next((s for s in self._samples if s[0] >= now_seconds - window), None)
            elapsed = now_seconds - first[0] if first else 0.0
            rates.append((total - int(first[column])) / elapsed if first and elapsed > 0 else 0.0)
        return " ".join(str(rate) for rate in rates)

    def table(self, now_seconds: float) -> dict[str, str]:
        """Rows of the runtime information, with names and formats of Apache RocketMQ."""
        gets = self.get_found + self.get_miss
        average = self.put_bytes / self.put_messages if self.put_messages else 0.0
        found = self._rates(2, self.get_found, now_seconds)
        miss = self._rates(3, self.get_miss, now_seconds)
        both = " ".join(str(float(a) + float(b)) for a, b in zip(found.split(), miss.split(), strict=True))
        return {
            "bootTimestamp": str(self.started_ms),
            "putMessageTimesTotal": str(self.put_messages),
            "putMessageFailedTimes": str(self.put_failed),
            "putMessageSizeTotal": str(self.put_bytes),
            "putMessageAverageSize": str(average),
            "putMessageDistributeTime": " ".join(f"{label}:0" for label in _LABELS) + " ",
            "putMessageEntireTimeMax": "0",
            "getMessageEntireTimeMax": "0",
            "msgPutTotalTodayNow": str(self.put_messages),
            "msgGetTotalTodayNow": str(self.get_messages),
            "msgPutTotalTodayMorning": "0",
            "msgGetTotalTodayMorning": "0",
            "msgPutTotalYesterdayMorning": "0",
            "msgGetTotalYesterdayMorning": "0",
            "putTps": self._rates(1, self.put_messages, now_seconds),
            "getFoundTps": found,
            "getMissTps": miss,
            "getTotalTps": both,
            "getTransferedTps": self._rates(4, self.get_messages, now_seconds),
            "getTimesTotal": str(gets),
        }
