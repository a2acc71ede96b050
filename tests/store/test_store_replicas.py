"""A put that waits for this disk and for a slave: which of two outcomes its sender gets."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_store import bodies, message, opened

from saturnmq.store import FlushDiskType, PutStatus
from saturnmq.store.log.log import Position
from saturnmq.store.recovery.recover import SkipLog, messages_from
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


def test_queues_and_index_are_filled_again_from_a_new_begin(tmp_path: Path) -> None:
    """A leader replaced the log of a member that lagged behind retention; what its old queues point to is not there."""
    store = opened(tmp_path)
    for number in range(10):
        assert store.put(message(b"%d" % number, properties=b"KEYS\x01k%d" % number)).status is PutStatus.PUT_OK
        if number == 4:
            store.index_queue.put_all()  # the later ones wait
    end, begin = store.dispatched, store.physical_offset("T", 0, 6)
    store.dispatch_again(begin)
    assert store.dispatched == begin
    assert store.max_offset("T", 0) == 0
    for number in (2, 6):
        assert list(store.query("T", f"k{number}", 10, 0, 1 << 60).records) == []
    for each in messages_from(store.log, begin, end, SkipLog()):
        store.dispatch(store.queues.get_or_make("T", 0), each)
    assert store.dispatched == end
    assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (6, 10)
    assert bodies(store, offset=6) == [b"6", b"7", b"8", b"9"]
    store.index_queue.put_all()
    assert [len(store.query("T", f"k{number}", 10, 0, 1 << 60).records) for number in (2, 6, 9)] == [0, 1, 1]
    store.close_files()
