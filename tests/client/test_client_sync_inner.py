"""Synchronous objects after a fork: the child re-creates what the parent had started."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator

import pytest

from saturnmq.client.connection import forks
from saturnmq.client.sync.portal import PerProcess, portal


class Startable:
    def __init__(self) -> None:
        self.threads: list[str] = []

    async def start(self) -> None:
        self.threads.append(threading.current_thread().name)


@pytest.mark.parametrize("started", [False, True])
def test_object_is_made_again_after_a_fork_and_started_if_it_was(
    monkeypatch: pytest.MonkeyPatch, started: bool
) -> None:
    made: list[Startable] = []

    def make() -> Startable:
        made.append(Startable())
        return made[-1]

    facade = PerProcess(make)
    facade._started = started
    assert facade._inner is facade._inner is made[0] and len(made) == 1
    for count in (2, 3):
        monkeypatch.setattr(forks, "generation", forks.generation + 1)  # as in a child
        assert facade._inner is facade._inner is made[-1] and len(made) == count
        assert len(made[-1].threads) == started, "started once, by the loop's thread"
        assert threading.current_thread().name not in made[-1].threads
    assert made[0].threads == [] and facade._started is started


def test_iteration_that_is_broken_off_ends_the_generator() -> None:
    """Its `finally` would otherwise run whenever the garbage collector finds it: a scan keeps its connections until then."""
    ended: list[str] = []

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            for number in range(10):
                yield number
        finally:
            ended.append(threading.current_thread().name)

    source = numbers()
    iterator = portal.iterate("numbers", lambda: source)
    assert next(iterator) == 0 and ended == []
    iterator.close()  # type: ignore[attr-defined]
    assert len(ended) == 1 and ended[0] != threading.current_thread().name
