"""Saving a large table of consumer offsets takes a bounded part of the time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from saturnmq.broker.state.offsets import REST_FACTOR, REST_SECONDS_MAX, Offsets
from saturnmq.store.files.state_file import StateFile


class Seconds:
    """A clock that moves on while a file is written."""

    def __init__(self) -> None:
        self.now = 100.0
        self.save_seconds = 0.0

    def __call__(self) -> float:
        return self.now


class SlowFile(StateFile):
    def __init__(self, path: Path, clock: Seconds) -> None:
        super().__init__(path)
        self.clock, self.writes = clock, 0

    def write(self, data: bytes) -> None:
        super().write(data)
        self.writes += 1
        self.clock.now += self.clock.save_seconds


@pytest.mark.spec("OF-05")
@pytest.mark.parametrize(("save_seconds", "rest"), [(0.5, 0.5 * REST_FACTOR), (30.0, REST_SECONDS_MAX)])
@pytest.mark.loop(real=True)
async def test_periodic_saves_rest_in_proportion_to_their_cost(
    tmp_path: Path, save_seconds: float, rest: float
) -> None:
    clock = Seconds()
    clock.save_seconds = save_seconds
    file = SlowFile(tmp_path / "consumerOffset.json", clock)
    offsets = Offsets(file, monotonic=clock)
    offsets.set("T", "G", 0, 1)
    await offsets.save_periodically()
    ended = clock.now
    offsets.set("T", "G", 0, 2)
    clock.now = ended + rest - 0.1
    await offsets.save_periodically()
    assert file.writes == 1
    await offsets.save()  # at the end of the broker, and for a change that must be durable
    assert file.writes == 2
    offsets.set("T", "G", 0, 3)
    clock.now = ended + rest
    await offsets.save_periodically()
    assert file.writes == 3
    clock.now += REST_SECONDS_MAX
    await offsets.save_periodically()
    assert file.writes == 3  # nothing changed


@pytest.mark.parametrize("queues", [1, 500, 501, 1200])
def test_offsets_of_many_queues_are_encoded_in_pieces(tmp_path: Path, queues: int) -> None:
    offsets = Offsets(StateFile(tmp_path / "consumerOffset.json"))
    for queue in range(queues):
        offsets.set("T", "G", queue, queue + 7)
    offsets.set("U", "G", 0, 1)
    pieces = list(offsets.pieces())
    assert max(map(len, pieces)) < 10_000
    expected = {"T@G": {str(queue): queue + 7 for queue in range(queues)}, "U@G": {"0": 1}}
    assert json.loads(b"".join(pieces)) == {"offsetTable": expected}
    assert json.loads(b"{" + b"".join(offsets.entries("G")) + b"}") == expected
