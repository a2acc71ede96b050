"""Changes of lag and consumption of groups since a time: the history of the groups against their offsets now.

Requirements: EXP-05, C-37.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from saturnmq.history.file import History, Sample


@dataclass(frozen=True, slots=True)
class Now:
    """A group in a topic at this moment, messages: consumed ever, and not consumed yet."""

    consumed: int
    lag: int


@dataclass(frozen=True, slots=True)
class GroupChange:
    """The change of a group since `at`, Unix seconds, the time of its earliest sample that is used.

    lag_before and lag: messages not consumed, then and now. consumed is negative if offsets were set back further than was
    consumed since. produced: messages sent to the topics of the group. seconds: length of the period.
    """

    at: int
    lag_before: int
    lag: int
    consumed: int
    produced: int
    seconds: float

    @property
    def catch_up_seconds(self) -> float | None:
        """When the lag is 0 if both rates stay as they were; None if the group is not faster than its producers."""
        if self.lag == 0:
            return 0.0
        gained = self.consumed - self.produced
        return self.lag * self.seconds / gained if gained > 0 and self.seconds > 0 else None


class Baseline:
    """The samples of all groups at a time, as the history has them.

    Example:
        with History(Path("history.db")) as history:
            change = Baseline.read(history, since=1_800_000_000).change("billing", {"orders": Now(900, 100)}, 1_800_003_600)
    """

    def __init__(self, samples: Iterable[tuple[int, Sample]]) -> None:
        self._by_group: dict[str, list[tuple[int, Sample]]] = {}
        for at, sample in samples:
            self._by_group.setdefault(sample.series.group, []).append((at, sample))

    @classmethod
    def read(cls, history: History, since: int) -> Baseline:
        """The first samples at or after since, Unix seconds."""
        return cls(history.first_samples("group", since))

    def __bool__(self) -> bool:
        return bool(self._by_group)

    def change(self, group: str, now: Mapping[str, Now], at: float) -> GroupChange | None:
        """The change of a group until `at`; None if the history has none of its topics. now: by topic.

        Topics that the history does not have, or that the group has no more, are left out. Of several clusters the sums are taken.
        """
        samples = [(when, sample) for when, sample in self._by_group.get(group, ()) if sample.series.topic in now]
        if not samples:
            return None
        topics = {sample.series.topic for _, sample in samples}
        first = min(when for when, _ in samples)
        lag_before = sum(int(sample.level) for _, sample in samples)
        lag = sum(now[topic].lag for topic in topics)
        consumed = sum(now[topic].consumed for topic in topics) - sum(sample.total for _, sample in samples)
        return GroupChange(first, lag_before, lag, consumed, consumed + lag - lag_before, max(at - first, 0.0))
