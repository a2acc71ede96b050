"""Brokers of one DLedger group: acknowledgement of sends, physical offsets, dispatch, and what a start does."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from brokergroup import FILE_BYTES, LedgerGroup, ledger, ledger_group, run

from ports import free_ports
from saturnmq.broker import Broker, BrokerSettings
from saturnmq.net import NetSettings
from saturnmq.protocol.bodies import KVTable
from saturnmq.protocol.codes import RequestCode, SysFlag
from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.message import BatchItem, Host, Message, decode_record, encode_batch, encode_properties
from saturnmq.raft.core.messages import AppendResponse, Code
from saturnmq.raft.settings import RaftSettings
from saturnmq.replication.dledger.log import RaftLog
from saturnmq.replication.dledger.member import GroupMember
from saturnmq.store import FlushDiskType, MessageStore, PutStatus, StoreProfile, StoreSettings

BUSY = "[PC_SYNCHRONIZED]broker busy, start flow control for a while"


def message(body: bytes = b"body", topic: str = "T", **more: Any) -> Message:
    return Message(topic, body, **({"store_host": Host("127.0.0.1", 1)} | more))


def one_settings(folder: Path, **store: Any) -> tuple[StoreSettings, RaftSettings]:
    """Settings of a group of one member."""
    given: dict[str, Any] = {"profile": StoreProfile.SMALL, "commit_log_file_bytes": FILE_BYTES} | store
    raft = RaftSettings(
        enabled=True, group="g", peers_text=f"n0-127.0.0.1:{free_ports(1)[0]}", self_id="n0", index_file_units=4096
    )
    return StoreSettings(store_path_root_dir=str(folder), **given), raft


class Alone:
    """The store of a group of one member, leading and serving."""

    def __init__(self, folder: Path, **store: Any) -> None:
        settings, raft = one_settings(folder, **store)
        self.group = GroupMember(settings, raft, NetSettings())
        self.store = self.group.store

    async def __aenter__(self) -> MessageStore:
        store, group = self.store, self.group
        elected = asyncio.Event()
        group.on_role = elected.set
        store.open()
        await store.start()
        await group.take_part()
        await elected.wait()
        while not group.caught_up:
            await asyncio.sleep(0.005)  # poll
        assert group.leads
        group.begin_serving()
        return store

    async def __aexit__(self, *_: object) -> None:
        await self.store.stop()


async def put(store: MessageStore, *bodies: bytes, topic: str = "T") -> None:
    for body in bodies:
        assert await store.wait_confirmed(store.put(message(body, topic))) is PutStatus.PUT_OK
    while store.dispatched < store.log.end:
        await asyncio.sleep(0)  # the event loop dispatches


def bodies_of(store: MessageStore, topic: str = "T", queue: int = 0) -> list[bytes]:
    found = []
    for offset in range(store.min_offset(topic, queue), store.max_offset(topic, queue)):
        record = store.read_record(store.physical_offset(topic, queue, offset))
        assert record is not None
        found.append(bytes(decode_record(record).body))
    return found


# ---- a group of three


@pytest.mark.spec("DL-B04", "DL-B10", "DL-B12")
async def test_messages_are_on_every_broker_and_survive_leader_loss(tmp_path: Path) -> None:
    async with ledger_group(tmp_path) as group:
        first = await group.master()
        sent = [b"%d" % number for number in range(20)]
        for body in sent:
            answer = await group.send(body)
            offset = int(answer.ext["msgId"][16:], 16)
            entry = ledger(first).log.ledger
            assert entry is not None
            view = entry.view(offset - 48)
            assert view is not None and int.from_bytes(view[24:32], "big") == offset - 48  # entry (DL-B04)
        await group.same("T", 0, sent)
        await group.stop(group.name_of(first))
        second = await group.master()
        assert second is not first
        more = [b"%d" % number for number in range(20, 30)]
        for body in more:
            await group.send(body)
        await group.same("T", 0, sent + more)


@pytest.mark.spec("DL-B01", "DL-X19")
async def test_ledger_replaces_commit_log_and_no_role_means_no_registration(tmp_path: Path) -> None:
    async with ledger_group(tmp_path, start=False) as group:
        plain = Broker(group.settings(), group.store("plain"), NetSettings(), raft=RaftSettings())
        assert type(plain.store) is MessageStore and plain.dledger is None  # off by default
        lonely = await group.start("n0")
        member = group.member("n0")
        await group.until(lambda: member.node.now_ms > 0, "no tick")
        await lonely.registrar.register()
        assert lonely.dledger is not None and lonely.dledger.broker_id == -1
        assert lonely.registrar.registered == 0
        assert type(lonely.store.log) is RaftLog and not (tmp_path / "n0" / "commitlog").exists()
        assert plain.ha_master is not None and lonely.ha_master is None
        assert lonely.unauthenticated.keys() == {"broker", "dledger"}, "haListenPort is not opened"
        await group.start("n1")
        master = await group.master()
        await group.until(lambda: master.registrar.registered > 0, "the master is not registered")
        ids = sorted(b.dledger.broker_id for b in group.brokers.values() if b.dledger is not None)
        assert ids[0] == 0 and ids[1] in (-1, 1, 2)


@pytest.mark.spec("DL-B07", "DL-A07", "DL-Q08")
async def test_send_without_quorum_fails_and_is_invisible_until_committed(tmp_path: Path) -> None:
    raft = {"append_wait_ms": 1500, "heartbeat_interval_ms": 5000}
    async with ledger_group(tmp_path, raft=raft) as group:
        await group.send(b"before")
        await group.same("T", 0, [b"before"])
        master = await group.master()
        member = group.member(group.name_of(master))
        nowhere = f"127.0.0.1:{free_ports(1)[0]}"
        for name in group.names:
            member.readdress(name, nowhere)
        answer = await group.call(
            master, RequestCode.SEND_MESSAGE_V2, b"alone", a="p", b="T", c="TBW102", d=4, e=0, f=0, g=1, h=0, i="WAIT\x01false",
            j=0, k=False, m=False,
        )  # fmt: skip
        assert (answer.code, answer.remark) == (1, BUSY)
        assert master.store.max_offset("T", 0) == 1
        for name, address in group.addresses.items():
            member.readdress(name, address)
        await group.same("T", 0, [b"before", b"alone"])


# ---- results of a put


@pytest.mark.spec("DL-B06")
@pytest.mark.parametrize(
    ("code", "expected"),
    [(404, 14), (415, 1), (503, 1), (505, 14), (506, 14)],  # 14: surely not stored, another member can store it
)
async def test_ledger_rejection_is_retryable(code: int, expected: int, tmp_path: Path) -> None:
    async with ledger_group(tmp_path, 1) as group:
        master = await group.master()
        await group.send(b"first")
        member = group.member("n0")
        offer = member.offer
        member.offer = lambda bodies, answered: AppendResponse(code=Code(code))
        answer = await group.call(
            master, 310, b"x", a="p", b="T", c="TBW102", d=4, e=0, f=0, g=1, h=0, i="", j=0, k=False, m=False
        )
        assert answer.code == expected
        assert answer.remark == BUSY or (expected == 14 and "lead" in (answer.remark or ""))
        member.offer = offer
        assert (await group.send(b"second")).ext["queueOffset"] == "1"  # no offset was used up


@pytest.mark.spec("DL-B07")
@pytest.mark.parametrize(
    ("code", "status"),
    [(200, "PUT_OK"), (409, "SERVICE_NOT_AVAILABLE"), (404, "SERVICE_NOT_AVAILABLE"), (505, "SERVICE_NOT_AVAILABLE"),
     (415, "SERVICE_NOT_AVAILABLE"), (502, "OS_PAGECACHE_BUSY"), (503, "OS_PAGECACHE_BUSY"), (501, "UNKNOWN_ERROR")],
)  # fmt: skip
async def test_append_response_code_maps_to_put_status(code: int, status: str, tmp_path: Path) -> None:
    async with Alone(tmp_path) as store:
        member = store.log.member
        assert member is not None
        offer = member.offer
        member.offer = lambda bodies, answered: offer(  # type: ignore[method-assign]
            bodies, lambda response: answered(AppendResponse(code=Code(code)))
        )
        assert (await store.wait_confirmed(store.put(message()))).value == status


@pytest.mark.spec("DL-B02", "DL-B03", "DL-B04", "DL-B05")
async def test_queue_offsets_advance_on_append_except_for_half_messages(tmp_path: Path) -> None:
    async with Alone(tmp_path) as store:
        assert [store.put(message()).queue_offset for _ in range(3)] == [0, 1, 2]
        assert store.max_offset("T", 0) == 0  # nothing is committed yet
        batch = store.put_batch(message(), [(b"%d" % number, b"", 0) for number in range(4)])
        assert (batch.queue_offset, len(batch.physical_offsets)) == (3, 4)
        for flag in (SysFlag.PREPARED, SysFlag.ROLLBACK):
            assert store.put(message(sys_flag=int(flag))).queue_offset == 0
        last = store.put(message())
        assert last.queue_offset == 7
        assert await store.wait_confirmed(last) is PutStatus.PUT_OK
        assert store.max_offset("T", 0) == 8
        files = store.log.member.files
        entries = [entry for index in range(files.end_index + 1) if (entry := files.entry(index)) is not None]
        for entry, offset in zip(entries, [0, 1, 2, 3, 4, 5, 6, 0, 0, 7], strict=True):
            body = entry.body  # one whole message
            assert int.from_bytes(body[:4], "big") == len(body)
            assert [int.from_bytes(body[at : at + 8], "big") for at in (20, 28)] == [offset, entry.pos + 48]
        assert batch.physical_offsets == tuple(entry.pos + 48 for entry in entries[3:7])
        assert batch.physical_offset == batch.physical_offsets[0]
        units = [store.physical_offset("T", 0, offset) for offset in range(8)]
        assert units == [entry.pos + 48 for entry in (*entries[:7], entries[9])]


@pytest.mark.spec("DL-B04", "DL-B08", "DL-A03")
async def test_batch_is_one_entry_per_message_and_is_validated(tmp_path: Path) -> None:
    async with ledger_group(tmp_path, 1) as group:
        master = await group.master()
        await group.send(b"first")
        files = group.member("n0").files
        before = files.end_index

        async def batch(items: list[BatchItem], flag: int = 0) -> Any:
            return await group.call(
                master, 320, encode_batch(items), a="p", b="T", c="TBW102", d=4, e=0, f=flag, g=1, h=0,
                i="WAIT\x01true", j=0, k=False, m=True,
            )  # fmt: skip

        answer = await batch([BatchItem(b"%d" % number) for number in range(10)])
        assert (answer.code, answer.ext["queueOffset"], files.end_index) == (0, "1", before + 10)
        ids = [int(one[16:], 16) for one in answer.ext["msgId"].split(",")]
        assert [files.entry(before + 1 + number).pos + 48 for number in range(10)] == ids
        delayed = BatchItem(b"x", encode_properties({"DELAY": "3"}))
        assert (await batch([delayed])).code == 13
        assert (await batch([BatchItem(b"x")], flag=int(SysFlag.PREPARED))).code == 13
        store = master.store
        assert store.put_batch(message(), [(b"", b"A\x01" + b"x" * 32766, 0)]).status is (
            PutStatus.PROPERTIES_SIZE_EXCEEDED
        )  # fmt: skip
        assert (
            store.put_batch(message(sys_flag=int(SysFlag.PREPARED)), [(b"", b"", 0)]).status
            is PutStatus.MESSAGE_ILLEGAL
        )
        six = store.put_batch(message(born_host=Host("2001:db8::1", 5)), [message().entry])
        assert await store.wait_confirmed(six) is PutStatus.PUT_OK
        record = store.read_record(six.physical_offset)
        assert record is not None
        stored = decode_record(record)
        assert stored.born_host == Host("2001:db8::1", 5) and stored.sys_flag & int(SysFlag.BORN_HOST_V6)
        assert files.end_index == before + 11


@pytest.mark.spec("DL-A06")
async def test_message_longer_than_entry_limit_is_error(tmp_path: Path) -> None:
    async with Alone(tmp_path) as store:
        assert store.put(message(b"x" * FILE_BYTES)).status is PutStatus.UNKNOWN_ERROR
        await put(store, b"short")


# ---- offsets and dispatch


@pytest.mark.spec("DL-B09", "DL-B10", "DL-X17")
async def test_log_ends_at_committed_position(tmp_path: Path) -> None:
    alone = Alone(tmp_path)
    async with alone as store:
        assert (store.min_physical_offset, store.max_physical_offset) == (0, 0)
        await put(store, b"one")
        end = store.max_physical_offset
        assert end == store.log.end > 0
        result = store.put(message(b"two"))
        assert store.max_physical_offset == end < store.log.end
        assert store.read_record(result.physical_offset) is None  # not readable before it is committed
        assert not alone.group.dispatch.dispatch_some(9) and store.max_offset("T", 0) == 1
        await store.wait_confirmed(result)
        assert store.max_physical_offset == store.log.end
        assert store.max_offset("T", 0) == 2


@pytest.mark.spec("DL-B13")
async def test_entry_without_message_is_logged_and_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with Alone(tmp_path) as store:
        await put(store, b"before")
        member = store.log.member
        assert member is not None
        with caplog.at_level(logging.ERROR):
            assert (await member.append([b"no message" * 20])).code == Code.SUCCESS
            await put(store, b"behind")
        assert "[BUG]" in caplog.text
        assert bodies_of(store) == [b"before", b"behind"]


@pytest.mark.spec("DL-B11", "DL-S02")
def test_dispatch_continues_after_blank_file_end(tmp_path: Path) -> None:
    async def work() -> list[bytes]:
        sent = [b"%d" % number + b"x" * 40_000 for number in range(12)]
        async with Alone(tmp_path) as store:
            await put(store, *sent)
            assert bodies_of(store) == sent
            assert store.log.end > FILE_BYTES
        shutil.rmtree(tmp_path / "consumequeue")
        (tmp_path / "checkpoint").unlink()
        async with Alone(tmp_path) as store:
            assert bodies_of(store) == sent
        return sent

    run(work)


# ---- start


@pytest.mark.spec("DL-B14")
async def test_committed_entries_are_dispatched_before_joining_group(tmp_path: Path) -> None:
    async with Alone(tmp_path) as store:
        await put(store, b"1", b"2", b"3")
    shutil.rmtree(tmp_path / "consumequeue")
    settings, raft = one_settings(tmp_path)
    store = GroupMember(settings, raft, NetSettings()).store
    store.open()
    await store.start()
    try:
        assert bodies_of(store) == [b"1", b"2", b"3"]
        assert store.log.member is not None and store.log.member.address == ("", 0)  # it does not listen yet
        assert not store.writable
        assert store.put(message()).status is PutStatus.SERVICE_NOT_AVAILABLE
    finally:
        await store.stop()


@pytest.mark.spec("DL-B14", "DL-C05", "DLY-08")
async def test_delay_and_transaction_services_wait_for_role(tmp_path: Path) -> None:
    async with ledger_group(tmp_path, start=False) as group:
        lonely = await group.start("n0")
        assert lonely.master.delay._task._task is None
        assert lonely.master.transactions._task is None
        assert lonely.dledger is not None and lonely.dledger.copy._task is None
        assert lonely.registrar.registered == 0
        await group.start("n1")
        master = await group.master()
        await group.until(lambda: master.master.transactions._task is not None, "no transaction check")
        assert master.master.delay._task._task is not None
        assert master.dledger is not None and master.dledger.copy._task is None
        for follower in group.followers():
            dledger = follower.dledger
            assert dledger is not None
            await group.until(lambda dledger=dledger: dledger.copy._task is not None, "a follower copies nothing")
            assert follower.master.delay._task._task is None
            assert follower.master.transactions._task is None


@pytest.mark.spec("DL-B15", "DL-X02")
@pytest.mark.parametrize("flush", list(FlushDiskType))
async def test_plain_log_settings_do_not_change_ledger_bytes(flush: FlushDiskType, tmp_path: Path) -> None:
    async with Alone(tmp_path, flush_disk_type=flush, transient_pool_enable=True) as store:
        result = store.put(message(b"one"))
        assert await store.wait_confirmed(result) is PutStatus.PUT_OK
        assert not store.log.pooled
        assert not store.confirms_at_once
        assert result.physical_offset == 48
        assert store.earliest_store_ms == result.store_timestamp_ms  # record at lowest offset + 48


@pytest.mark.spec("DL-B15", "DL-C05")
async def test_configured_role_is_ignored_and_earliest_time_reported(tmp_path: Path) -> None:
    async with ledger_group(tmp_path, 1, broker_role="SLAVE") as group:
        master = await group.master()
        await group.send(b"x", topic="BenchmarkTest")  # exists: its creation would be the first entry
        table = KVTable.decode((await group.call(master, RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
        assert int(table["earliestMessageTimeStamp"]) == group.stored(master, "BenchmarkTest")[0].store_timestamp_ms
        assert (table["dledgerRole"], table["dledgerServing"], table["dledgerCommittedIndex"]) == (
            "LEADER",
            "true",
            "0",
        )
        assert table["dledgerWatermark_n0"] == "0"
        config = (await group.call(master, RequestCode.GET_BROKER_CONFIG)).body or b""
        assert b"brokerRole=SYNC_MASTER" in config and b"brokerId=0" in config


@pytest.mark.spec("DL-S09", "DL-S10")
def test_ledger_retention_uses_commit_log_keys(tmp_path: Path) -> None:
    settings, raft = one_settings(tmp_path)
    found = GroupMember(settings, raft, NetSettings()).retention()
    assert (found.delete_hours, found.reserved_hours, found.force_enabled) == ((4,), 73, True)
    assert (found.check_ratio, found.clean_ratio, found.full_ratio) == pytest.approx((0.75, 0.85, 0.90))
    settings, raft = one_settings(
        tmp_path, delete_when="05;17", file_reserved_hours=1, clean_forcibly=False, disk_percent=60
    )
    found = GroupMember(settings, raft, NetSettings()).retention()
    assert (found.delete_hours, found.reserved_hours, found.force_enabled, found.check_ratio) == (
        (5, 17),
        2,
        False,
        0.6,
    )


@pytest.mark.spec("DL-X02")
@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_only_sync_flush_acknowledges_after_sync(flush: FlushDiskType, tmp_path: Path) -> None:
    settings, raft = one_settings(tmp_path, flush_disk_type=flush)
    member = GroupMember(settings, raft, NetSettings()).make_member(0)
    assert member._core.sync_before_ack is (flush is FlushDiskType.SYNC_FLUSH)


@pytest.mark.spec("DL-B16")
async def test_queues_beyond_log_end_are_truncated(tmp_path: Path) -> None:
    async with Alone(tmp_path) as store:
        await put(store, b"1", b"2")
    shutil.copytree(tmp_path / "dledger-n0", tmp_path / "kept")
    async with Alone(tmp_path) as store:
        await put(store, b"3", b"4")
        assert store.max_offset("T", 0) == 4
    shutil.rmtree(tmp_path / "dledger-n0")
    (tmp_path / "kept").rename(tmp_path / "dledger-n0")
    async with Alone(tmp_path) as store:
        assert bodies_of(store) == [b"1", b"2"]
        await put(store, b"5")
        assert bodies_of(store) == [b"1", b"2", b"5"]


@pytest.mark.spec("DL-B14", "DL-B16", "DUR-13")
@pytest.mark.parametrize("ledger_first", [True, False])
async def test_store_copied_while_running_opens_with_ledger_contents(ledger_first: bool, tmp_path: Path) -> None:
    busy: dict[str, Any] = {
        "flush_queue_interval_ms": 1, "flush_queue_thorough_ms": 2, "flush_queue_least_pages": 1, "flush_interval_ms": 1,
        "consume_queue_file_bytes": 400,
    }  # fmt: skip

    def copy(to: Path) -> None:
        """Copy the folder file by file while it is written: the queues are older than the ledger, or newer."""
        names = ["dledger-n0", "checkpoint", "abort", "queues.json", "consumequeue", "index", "config"]
        to.mkdir()
        for name in names if ledger_first else reversed(names):
            if (tmp_path / "live" / name).is_dir():
                shutil.copytree(tmp_path / "live" / name, to / name)
            elif (tmp_path / "live" / name).exists():
                shutil.copy(tmp_path / "live" / name, to / name)

    sent: list[bytes] = []
    known: list[int] = []
    async with Alone(tmp_path / "live", **busy) as store:
        for number in range(6):
            for _ in range(37 + number):
                sent.append(b"%d " % len(sent) + b"z" * (len(sent) * 97 % 3000))
                await put(store, sent[-1])
            await store.write_all()
            known.append(len(sent))
            copying = asyncio.create_task(asyncio.to_thread(copy, tmp_path / f"copy{number}"))
            for _ in range(200):  # bounded, as what is written meanwhile is copied too
                if copying.done():
                    break
                sent.append(b"%d " % len(sent))
                await put(store, sent[-1])
            await copying
        assert bodies_of(store) == sent
    for number, least in enumerate(known):
        async with Alone(tmp_path / f"copy{number}", **busy) as store:
            found = bodies_of(store)
            assert len(found) >= least and found == sent[: len(found)]
            await put(store, b"goes on")
            assert bodies_of(store) == [*found, b"goes on"]


@pytest.mark.spec("DL-U07")
async def test_plain_broker_refuses_to_start_on_ledger(tmp_path: Path) -> None:
    async with Alone(tmp_path) as store:
        await put(store, b"1")
    settings = StoreSettings(store_path_root_dir=str(tmp_path), profile=StoreProfile.SMALL)
    with pytest.raises(ConfigError, match="enableDLegerCommitLog=true"):
        await Broker(BrokerSettings(listen_port=0, fast_port_enable=False), settings, NetSettings()).start()


@pytest.mark.spec("DL-M03", "DL-M04")
async def test_invalid_group_settings_fail_before_files_are_opened(tmp_path: Path) -> None:
    group = LedgerGroup(tmp_path, 3, {}, {}, {})
    with pytest.raises(ConfigError, match="dLegerSelfId"):
        await group.start("x9")
    assert not (tmp_path / "x9").exists()
    await group.client.close()
