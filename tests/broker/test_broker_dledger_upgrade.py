"""Upgrade from a plain store to a DLedger group: the old commit log stays readable and expires, the ledger follows it."""

from __future__ import annotations

import logging
import os
import shutil
import struct
from functools import partial
from pathlib import Path

import pytest
from brokergroup import FILE_BYTES, LedgerGroup, expire, ledger, ledger_group
from test_broker_dledger import Alone, message, one_settings, put

from saturnmq.broker import Broker
from saturnmq.net import NetSettings
from saturnmq.protocol.errors import CorruptRecord
from saturnmq.protocol.message import Host, Message, encode_properties
from saturnmq.replication.dledger.log import RaftLog
from saturnmq.replication.dledger.member import GroupMember
from saturnmq.store import MessageStore, PutStatus
from saturnmq.store.files.disk import Disk

OLD = [b"old %d " % number + b"." * 9000 for number in range(60)]  # more than two files


async def plain(group: LedgerGroup, name: str, bodies: list[bytes]) -> None:
    """Run a plain broker alone, store these messages, and stop it."""
    broker = Broker(group.settings(), group.store(name), NetSettings())
    await broker.start()
    try:
        broker.topics.ensure("T", 4)
        for number, body in enumerate(bodies):
            properties = encode_properties({"KEYS": f"key{number}"})
            broker.store.put(Message("T", body, properties, 0, store_host=Host("127.0.0.1", 1)))
        broker.offsets.set("T", "G", 0, 5)
    finally:
        await broker.stop()


def holds(group: LedgerGroup, name: str, count: int) -> bool:
    return len(group.bodies(group.brokers[name])) == count


def logs(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


async def upgraded(group: LedgerGroup, folder: Path) -> None:
    """The operator's steps: stop, copy the old log and config to every machine, start with the group's keys."""
    await plain(group, "n0", OLD)
    for name in ("n1", "n2"):
        for part in ("commitlog", "config"):
            shutil.copytree(folder / "n0" / part, folder / name / part)
    for name in group.names:
        await group.start(name)


@pytest.mark.spec("DL-U01", "DL-U04", "DL-U06", "DL-B09", "DL-B10")
async def test_old_and_new_messages_survive_upgrade_and_leader_change(tmp_path: Path) -> None:
    async with ledger_group(tmp_path, start=False) as group:
        await upgraded(group, tmp_path)
        master = await group.master()
        divided = ledger(master).log.divided
        assert divided == len(logs(tmp_path / "n0" / "commitlog")) * FILE_BYTES
        assert master.offsets.get("T", "G", 0) == 5
        answer = await group.send(b"new", i=encode_properties({"KEYS": "fresh"}).decode())
        assert answer.ext["queueOffset"] == str(len(OLD))
        assert int(answer.ext["msgId"][16:], 16) >= divided + 48
        await group.same("T", 0, [*OLD, b"new"])
        await group.stop(group.name_of(master))
        second = await group.master()
        await group.send(b"newer")
        await group.same("T", 0, [*OLD, b"new", b"newer"])
        store = second.store
        assert store.min_physical_offset == 0
        for key, body in (("key7", OLD[7]), ("fresh", b"new")):
            found = store.query("T", key, 10, 0, 1 << 60).records
            assert len(found) == 1 and body in found[0]


@pytest.mark.spec("DL-U02", "DL-U04")
async def test_later_starts_find_ledger_begin(tmp_path: Path) -> None:
    async with ledger_group(tmp_path, start=False) as group:
        await upgraded(group, tmp_path)
        await group.send(b"new")
        await group.same("T", 0, [*OLD, b"new"])
        divided = ledger(await group.master()).log.divided
        assert logs(tmp_path / "n1" / "dledger-n1" / "data")[0] == f"{divided:020d}"
        for name in group.names:
            await group.stop(name)
        shutil.rmtree(tmp_path / "n1" / "consumequeue")  # both parts are dispatched again
        for name in group.names:
            await group.start(name)
            assert ledger(group.brokers[name]).log.divided == divided
        await group.send(b"newer")
        await group.same("T", 0, [*OLD, b"new", b"newer"])
        assert logs(tmp_path / "n0" / "commitlog")[-1] == f"{divided - FILE_BYTES:020d}"


@pytest.mark.spec("DL-B09", "DL-U01")
async def test_upgrade_interrupted_before_first_entry_continues(tmp_path: Path) -> None:
    async with ledger_group(tmp_path, 1, start=False) as group:
        await plain(group, "n0", OLD[:3])
        for _ in range(2):  # sealed, nothing appended
            await group.start("n0")
            store = (await group.master()).store
            assert store.log.divided == store.max_physical_offset == FILE_BYTES  # nothing is committed
            assert store.min_physical_offset == 0
            await group.stop("n0")
        await group.start("n0")
        assert (await group.send(b"new")).ext["queueOffset"] == "3"
        await group.same("T", 0, [*OLD[:3], b"new"])
        broker = group.brokers["n0"]
        assert ledger(broker).log.divided == FILE_BYTES and broker.store.failure is None
        assert group.bodies(broker) == [*OLD[:3], b"new"]


@pytest.mark.spec("DL-B09")
async def test_log_begins_at_the_first_file_of_the_old_log(tmp_path: Path) -> None:
    async with ledger_group(tmp_path, 1, start=False) as group:
        await plain(group, "n0", OLD)
        await group.start("n0")
        store = (await group.master()).store
        await group.until(lambda: store.max_offset("T", 0) == len(OLD), "not dispatched")
        files = logs(tmp_path / "n0" / "commitlog")
        assert files[:2] == [f"{0:020d}", f"{FILE_BYTES:020d}"] and store.min_physical_offset == 0
        await store.log.truncate_front("a test")
        assert logs(tmp_path / "n0" / "commitlog") == files[1:]
        assert store.min_physical_offset == FILE_BYTES < store.log.divided
        await group.stop("n0")
        await group.start("n0")
        store = (await group.master()).store
        assert store.min_physical_offset == FILE_BYTES < store.log.divided


@pytest.mark.spec("DL-U01")
async def test_old_log_of_a_crashed_broker_is_recovered_and_filled_from_there(tmp_path: Path) -> None:
    async with ledger_group(tmp_path, 1, start=False) as group:
        await plain(group, "n0", OLD[:3])
        path = tmp_path / "n0" / "commitlog" / f"{0:020d}"
        data = bytearray(path.read_bytes())
        end = 0
        while size := int.from_bytes(data[end : end + 4], "big"):
            end += size
        data[end : end + 4000] = data[:4000]  # the begin of a record, as after a power failure
        path.write_bytes(data)
        (tmp_path / "n0" / "abort").touch()
        broker = await group.start("n0")
        await group.master()
        assert ledger(broker).log.divided == FILE_BYTES
        filler = (FILE_BYTES - end).to_bytes(4, "big") + bytes.fromhex("cbd43194")
        assert path.read_bytes()[end : end + 8] == filler
        assert (await group.send(b"new")).ext["queueOffset"] == "3"
        await group.same("T", 0, [*OLD[:3], b"new"])


@pytest.mark.spec("DL-U03")
async def test_ledger_expires_only_after_old_log(tmp_path: Path) -> None:
    async with ledger_group(tmp_path, 1, start=False, store={"file_reserved_hours": 1}) as group:
        await plain(group, "n0", OLD)
        await group.start("n0")
        bodies = [b"%d" % number + b"x" * 40_000 for number in range(10)]
        for body in bodies:
            await group.send(body)
        store = (await group.master()).store
        await group.until(lambda: store.max_offset("T", 0) == 70, "not dispatched")
        member = store.log.member
        assert member is not None
        assert member.retention.reserved_hours == 87_600 and not member.retention.force_enabled
        folder = tmp_path / "n0"
        for path in [*(folder / "commitlog").iterdir(), *(folder / "dledger-n0" / "data").iterdir()]:
            os.utime(path, (0, 0))
        oldest = logs(folder / "dledger-n0" / "data")[0]
        assert logs(folder / "commitlog")
        await store.write_all()
        store.delete_expired_files()
        await store._maintenance.clean()
        assert logs(folder / "commitlog") == []  # the last file too
        assert store.min_physical_offset == store.log.divided > 0
        assert store.min_offset("T", 0) == len(OLD)
        assert member.retention.reserved_hours == 2 and member.retention.force_enabled
        data = folder / "dledger-n0" / "data"
        await expire(group.brokers["n0"], lambda: oldest not in logs(data))
        assert oldest not in logs(data)
        await store._maintenance.clean()
        assert store.min_offset("T", 0) > len(OLD)
        await group.send(b"goes on")


@pytest.mark.spec("DL-U05")
async def test_unequal_old_logs_stop_member_with_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with ledger_group(tmp_path, start=False) as group:
        await plain(group, "n0", OLD[:3])
        shutil.copytree(tmp_path / "n0" / "commitlog", tmp_path / "n1" / "commitlog")
        await plain(group, "n2", OLD)
        with caplog.at_level(logging.ERROR):
            for name in ("n0", "n1"):
                await group.start(name)
            await group.send(b"new")
            odd = await group.start("n2")
            failure = await group.until(lambda: odd.store.failure, "no failure is reported")
        assert "are not equal" in failure.message and str(FILE_BYTES) in failure.message
        for name in ("n0", "n1"):
            await group.until(partial(holds, group, name, 4), "the others go on")
        assert not ledger(odd).serving


async def test_old_log_whose_messages_leave_a_gap_stops_the_start_with_its_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Queues that were rebuilt from that log cannot be mended by another rebuild, unlike those without some of their units."""
    settings, raft = one_settings(tmp_path)
    store = MessageStore(settings)
    store.open()
    await store.start()
    for body in OLD[:3]:
        assert store.put(message(body)).status is PutStatus.PUT_OK
    last = store.physical_offset("T", 0, 2)
    await store.stop()
    async with Alone(tmp_path) as store:
        await put(store, b"new")
    queue_offset = struct.Struct(">q")
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(last + 20)
        assert queue_offset.unpack(file.read(8)) == (2,)
        file.seek(last + 20)
        file.write(queue_offset.pack(7))
    shutil.rmtree(tmp_path / "consumequeue")
    gap = f"queue T/0 ends at 2, the record at {last} is number 7"
    store = GroupMember(settings, raft, NetSettings()).store
    with pytest.raises(CorruptRecord, match=f"^{gap}, although the queues were rebuilt from the log alone"):
        store.open()
    await store.stop()
    assert f"consume queues rebuilt reason={gap}" in caplog.text


@pytest.mark.spec("DL-X20", "DL-U01")
@pytest.mark.parametrize("left", [0, 3, 7, 8, 100])
def test_end_of_old_log_is_filled_as_far_as_possible(left: int, tmp_path: Path) -> None:
    log = RaftLog([tmp_path], 4096, Disk())
    (tmp_path / f"{0:020d}").write_bytes(b"\1" * 4096)
    log.load()
    log.end = 4096 - left
    try:
        assert log.seal() == 4096 == log.end
        filler = left.to_bytes(4, "big") + bytes.fromhex("cbd43194")
        data = (tmp_path / f"{0:020d}").read_bytes()
        assert data[: 4096 - left] == b"\1" * (4096 - left)
        assert data[4096 - left :] == (filler + b"\1" * left)[:left] if left >= 8 else data == b"\1" * 4096
    finally:
        log.close()
