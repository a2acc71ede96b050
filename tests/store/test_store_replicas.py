"""A put that waits for this disk and for a slave: which of two outcomes its sender gets."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_store import message, opened

from saturnmq.store import FlushDiskType, PutStatus
from saturnmq.store.log.log import Position
from saturnmq.store.results import Confirmed

OK, DISK, SLAVE = PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.FLUSH_SLAVE_TIMEOUT


class ManualReplica:
    """A replica whose outcome the test decides."""

    def __init__(self) -> None:
        self.callbacks: list[Confirmed] = []
        self.sends = 0

    def when_acknowledged(self, position: Position, callback: Confirmed) -> None:
        self.callbacks.append(callback)

    def send_now(self) -> None:
        self.sends += 1


@pytest.mark.spec("SW-02")
@pytest.mark.parametrize("replica_first", [True, False])
@pytest.mark.parametrize("replica", [OK, SLAVE, PutStatus.SLAVE_NOT_AVAILABLE])
@pytest.mark.parametrize("disk", [OK, DISK])
async def test_a_bad_replica_counts_more_than_a_bad_disk(
    tmp_path: Path, disk: PutStatus, replica: PutStatus, replica_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    flushes: list[Confirmed] = []
    monkeypatch.setattr(store.log, "when_confirmed", lambda position, timeout_ms, callback: flushes.append(callback))
    other = ManualReplica()
    store.replicate_before_acknowledgement(other)
    outcome: list[PutStatus] = []
    store.when_confirmed(store.put(message()), lambda status, _: outcome.append(status))
    ends = [(other.callbacks[0], replica), (flushes[0], disk)]
    for number, (callback, status) in enumerate(ends if replica_first else ends[::-1]):
        assert len(outcome) == 0, number
        callback(status, "")
    assert outcome == [replica if replica is not OK else disk]
    assert other.sends == (0 if replica_first else 1)
    monkeypatch.undo()
    await store.stop()


async def test_with_async_flush_a_message_is_visible_before_the_slave_has_it(tmp_path: Path) -> None:
    store = opened(tmp_path)
    other = ManualReplica()
    store.replicate_before_acknowledgement(other)
    outcome: list[PutStatus] = []
    store.when_confirmed(store.put(message()), lambda status, _: outcome.append(status))
    assert store.max_offset("T", 0) == 1
    assert not outcome
    other.callbacks[0](OK, "")
    assert outcome == [OK]
    await store.stop()
