"""What a slave does with received bytes: which are a record, where an empty log begins, how many wait for the disk."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from slavestub import BROKER, CLIENT, FILE, SYNC, Slave, small

from saturnmq.protocol.errors import CorruptRecord
from saturnmq.protocol.message import MESSAGE_MAGIC, Message, encode_record
from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.replication.masterslave.dispatch import DispatchStep
from saturnmq.replication.masterslave.opening import slave_dispatch


def head(size: int) -> bytes:
    return struct.pack(">ii", size, MESSAGE_MAGIC)


@pytest.mark.spec("HA-17")
@pytest.mark.parametrize(("size", "is_refused"), [(FILE - 8, False), (FILE - 7, True), (87, True)])
def test_a_record_leaves_8_bytes_of_its_file_for_the_filler(tmp_path: Path, size: int, is_refused: bool) -> None:
    """A longer one would never be complete: the slave would wait for the rest of it for good."""
    dispatch = slave_dispatch(small(tmp_path))
    dispatch.store.open()
    log = dispatch.log
    log.receive(head(size) + bytes(100))
    if is_refused:
        with pytest.raises(CorruptRecord, match=f"no record at offset 0: size {size}"):
            log.take()
    else:
        assert log.take() is None
    assert log.end == 0
    dispatch.store.close_files()


@pytest.mark.spec("UPG-03")
def test_a_log_that_begins_elsewhere_leaves_no_file_behind(tmp_path: Path) -> None:
    """A file of an offset that a master invented would be found by the next start, with a gap before it."""
    dispatch = slave_dispatch(small(tmp_path))
    dispatch.store.open()
    folder = tmp_path / "commitlog"
    dispatch.begin_at(PhysicalOffset(4 * FILE))
    dispatch.log.receive(b"half")
    assert [path.name for path in folder.iterdir()] == [f"{4 * FILE:020}"]
    dispatch.discard_rest()
    assert list(folder.iterdir()) == []
    dispatch.log.receive(b"half")
    assert [path.name for path in folder.iterdir()] == [f"{0:020}"]
    dispatch.store.close_files()


@pytest.mark.spec("HA-17")
async def test_records_that_wait_for_the_disk_take_at_most_8_mib(tmp_path: Path) -> None:
    """With SYNC_FLUSH a record is dispatched once it is durable; a slow disk must not fill the memory with the others."""
    slave = Slave(tmp_path, lambda: "", SYNC | {"commit_log_file_bytes": 16 << 20}, {})
    dispatch, store = slave.dispatch, slave.store
    store.open()
    properties = b"KEYS\x01" + b"k" * 32_000
    end = 0
    for number in range(400):
        record = Message(
            "T", b"", properties, 0, born_host=CLIENT, store_host=BROKER, born_timestamp_ms=1, store_timestamp_ms=1,
            queue_offset=number, physical_offset=end,
        )  # fmt: skip
        data = encode_record(record)
        dispatch.log.receive(data)
        end += len(data)
    while (step := dispatch.step()) is DispatchStep.MORE:
        pass
    assert step is DispatchStep.BLOCKED
    assert 8 << 20 < dispatch.log.end < 9 << 20
    assert store.max_offset("T", 0) == 0
    dispatch.log.set_confirmed(dispatch.log.end)
    dispatch._durable(dispatch.log.end)
    while (step := dispatch.step()) is DispatchStep.MORE:
        pass
    assert step is DispatchStep.FINISHED
    assert dispatch.log.end == end
    await store.abort()
