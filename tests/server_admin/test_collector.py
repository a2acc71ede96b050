"""The garbage collector of a server: which objects a full collection traverses."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from saturnmq.server_admin.collector import FREEZE_SECONDS, StagedCollector

ROWS = 5000
FROZEN_AT = 30_000


class Clock:
    """Advances by `step` seconds with each reading."""

    step = 0.0
    now = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@pytest.fixture
def clock() -> Iterator[Clock]:
    clock = Clock()
    was_frozen = gc.get_freeze_count() > 0  # a worker of the gate freezes what it imported
    thresholds = gc.get_threshold()
    collector = StagedCollector(clock)
    collector.start()
    yield clock
    collector.stop()
    assert (gc.get_freeze_count(), gc.get_threshold()) == (0, thresholds)
    if was_frozen:
        gc.freeze()


def traversed() -> int:
    """Objects that the next full collection traverses."""
    return sum(len(gc.get_objects(generation=number)) for number in range(3))


def test_loaded_tables_are_not_traversed(clock: Clock) -> None:
    assert gc.get_freeze_count() > 10 * traversed()


def test_no_collection_traverses_what_was_loaded_before_the_start(clock: Clock) -> None:
    """A server has clients already when it has loaded its tables."""
    table, sizes = [[number] for number in range(ROWS)], list[int]()
    again = StagedCollector(clock)

    def note(phase: str, info: dict[str, int]) -> None:
        sizes.append(traversed())

    gc.callbacks.append(note)
    again.start()
    gc.callbacks.remove(note)
    gc.callbacks.remove(again._collected)
    assert sizes and max(sizes) < ROWS == len(table)


def test_tables_that_grow_are_traversed_in_small_steps(clock: Clock) -> None:
    """If a full collection of FROZEN_AT objects is long, none traverses twice as many while a table grows by many times that."""
    sizes: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if info["generation"] == 2:
            clock.step = 2 * FREEZE_SECONDS * (traversed() > FROZEN_AT)
            sizes.append(traversed())

    gc.callbacks.insert(0, note)
    table = [[number] for number in range(20 * FROZEN_AT)]
    gc.callbacks.remove(note)
    assert len(sizes) >= 6 and max(sizes) < 2 * FROZEN_AT, sizes
    assert len(table) == 20 * FROZEN_AT


@pytest.mark.parametrize(("seconds", "is_frozen"), [(FREEZE_SECONDS, True), (FREEZE_SECONDS / 2, False)])
def test_tables_that_made_a_collection_long_are_frozen(clock: Clock, seconds: float, is_frozen: bool) -> None:
    table = [[number] for number in range(ROWS)]
    frozen_before = gc.get_freeze_count()
    gc.collect(1)
    # Fewer is fine: what another thread or a cache let go of since was frozen too.
    assert gc.get_freeze_count() - frozen_before < ROWS, "only a full collection freezes"
    clock.step = seconds
    gc.collect()
    assert (gc.get_freeze_count() - frozen_before >= ROWS) == is_frozen
    assert (traversed() < ROWS) == is_frozen
    assert len(table) == ROWS
