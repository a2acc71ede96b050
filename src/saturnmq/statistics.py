"""Counters with sums over the last minute, hour and day, as Apache RocketMQ's statistics sets keep them.

An item only adds; `StatsSets.sample` copies the totals at fixed intervals, so that a sum over a window is the difference of two
copies. All sampling counts from the creation of the sets, not from full minutes of the wall clock.

Requirements: MON-01..MON-07, MON-11.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Final, NamedTuple

SAMPLE_SECONDS: Final = 10
ITEMS_MAX: Final = 65_536  # of one set; further keys are not counted
_STEP: Final = 256  # items that are sampled between two yields


class Window(NamedTuple):
    """Period of the copies in ms, how many are kept, and how many samples of 10 s pass between two."""

    period_ms: int
    copies: int
    every: int


MINUTE: Final = Window(10_000, 7, 1)
HOUR: Final = Window(600_000, 7, 60)
DAY: Final = Window(3_600_000, 25, 360)
WINDOWS: Final = (MINUTE, HOUR, DAY)
LAST_MINUTE, LAST_HOUR, LAST_DAY = range(3)  # indexes into WINDOWS


class WindowSum(NamedTuple):
    """What was added within a window. tps: sum per second; avgpt: sum per change, 0 without changes."""

    sum: int
    times: int
    tps: float
    avgpt: float


NOTHING: Final = WindowSum(0, 0, 0.0, 0.0)


class StatsItem:
    """A total that only grows: `value`, and `times`, the number of changes.

        item = StatsItem()
        item.value += 10  # a batch of ten messages
        item.times += 1

    A counter needs no lock: one event loop adds and samples.
    """

    __slots__ = ("_copies", "times", "value")

    def __init__(self) -> None:
        self.value = self.times = 0
        # time, times, value, and so on, per window; tuples of numbers, which the garbage collector does not traverse
        self._copies: tuple[tuple[int, ...], ...] = ((), (), ())

    def sample(self, now_ms: int, window: int) -> None:
        """Copy the totals for one of WINDOWS. An item's first copy follows one of zero, a period earlier (MON-05)."""
        copies, (period_ms, most, _) = self._copies[window], WINDOWS[window]
        if not copies:
            copies = (now_ms - period_ms, 0, 0)
        copies = (*copies[-3 * (most - 1) :], now_ms, self.times, self.value)
        self._copies = (*self._copies[:window], copies, *self._copies[window + 1 :])

    def over(self, window: int) -> WindowSum:
        """What was added within one of WINDOWS, between its first and its last copy; zeros before the first sample."""
        copies = self._copies[window]
        if not copies:
            return NOTHING
        total, times, elapsed_ms = copies[-1] - copies[2], copies[-2] - copies[1], copies[-3] - copies[0]
        tps = total * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0
        return WindowSum(total, times, tps, total / times if times else 0.0)

    @property
    def idle(self) -> bool:
        """Whether nothing was added in the whole window of a day, nor since its last copy."""
        copies = self._copies[LAST_DAY]
        return len(copies) == 3 * DAY.copies and copies[1] == self.times and copies[2] == self.value


class StatsSet:
    """Items of one name by key, made when first added to. items_max: limit; further keys share an item that is never sampled."""

    __slots__ = ("_spare", "items", "items_max")

    def __init__(self, items_max: int = ITEMS_MAX) -> None:
        self.items: dict[str, StatsItem] = {}
        self.items_max = items_max
        self._spare = StatsItem()

    def item(self, key: str) -> StatsItem:
        """The item of a key; a new one is sampled from now on."""
        item = self.items.get(key)
        if item is None:
            if len(self.items) >= self.items_max:
                return self._spare
            item = self.items[key] = StatsItem()
        return item

    def remove(self, unwanted: Callable[[str], bool]) -> None:
        """Remove the items of the keys that the function accepts."""
        for key in [key for key in self.items if unwanted(key)]:
            del self.items[key]


class StatsSets:
    """All sets by name. clock_ms: Unix ms.

    sets = StatsSets(("TOPIC_PUT_NUMS",), clock_ms)
    sets["TOPIC_PUT_NUMS"].item("Orders").value += 1
    for _ in sets.sampling():  # each 10 s
        pass
    sets.find("TOPIC_PUT_NUMS", "Orders").over(LAST_MINUTE).sum
    """

    def __init__(self, names: tuple[str, ...], clock_ms: Callable[[], int]) -> None:
        self._sets = {name: StatsSet() for name in names}
        self._clock_ms = clock_ms
        self._samples = 0

    def __getitem__(self, name: str) -> StatsSet:
        """Raises KeyError for an unknown name."""
        return self._sets[name]

    def __iter__(self) -> Iterator[tuple[str, StatsSet]]:
        return iter(self._sets.items())

    def find(self, name: str, key: str) -> StatsItem | None:
        """The item, or None if nothing was added to it yet or the name is unknown."""
        return self._sets[name].items.get(key) if name in self._sets else None

    def sampling(self) -> Generator[None, None, None]:
        """Copy the totals of all items, a few at a step; to be run each SAMPLE_SECONDS."""
        due = [number for number, window in enumerate(WINDOWS) if self._samples % window.every == 0]
        self._samples += 1
        now_ms = self._clock_ms()
        for one in self._sets.values():
            full = len(one.items) >= one.items_max
            for number, (key, item) in enumerate(list(one.items.items())):
                for window in due:
                    item.sample(now_ms, window)
                if full and item.idle:
                    one.items.pop(key, None)
                if number % _STEP == 0:
                    yield
