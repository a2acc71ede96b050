"""The HA port of a master: what it sends to a slave, what it refuses, and what a slave can cost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from slavestub import FILE, Port, log_bytes, message, serving

from saturnmq.net import StartError
from saturnmq.protocol.errors import CorruptRecord
from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.replication.masterslave.master import (
    REFUSED_MAX,
    SLAVES_MAX,
    WAITING_MAX,
    WAITING_PER_HOST,
    SlaveConnection,
)  # fmt: skip
from saturnmq.replication.masterslave.settings import HaSettings
from saturnmq.store import FlushDiskType, PutStatus
from waiting import until


async def acknowledged(port: Port, offset: int) -> None:
    await until(lambda: port.acks.highest == offset)


@pytest.mark.spec("HA-07")
@pytest.mark.spec("HA-09")
async def test_a_slave_gets_the_log_after_its_first_report(tmp_path: Path) -> None:
    async with serving(tmp_path, batch_bytes=1000) as port:
        port.put(30)
        slave = await port.slave()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await slave.frame()
        slave.report(0)
        end = port.store.log.end
        first = await slave.frame()
        assert first is not None
        assert (first.offset, len(first.data)) == (0, 1000)  # may cut a record in two
        assert first.data + await slave.data(end - 1000) == log_bytes(port.store)
        port.put(1)
        assert await slave.data(port.store.log.end - end) == log_bytes(port.store, end)


@pytest.mark.spec("HA-09")
async def test_frames_do_not_cross_files(tmp_path: Path) -> None:
    async with serving(tmp_path, from_oldest=True) as port:
        port.put(1200)
        slave = await port.slave()
        slave.report(0)
        found, offset = b"", 0
        while offset < port.store.log.end:
            frame = await slave.frame()
            assert frame is not None
            assert frame.offset == offset
            assert len(frame.data) <= 32_768 == HaSettings().batch_bytes
            assert offset // FILE == (offset + len(frame.data) - 1) // FILE
            found += frame.data
            offset += len(frame.data)
        assert found == log_bytes(port.store)
        assert len(port.store.log.files) > 2


@pytest.mark.spec("HA-08")
@pytest.mark.parametrize("report", [0, 700, 2 * FILE + 50])
async def test_an_empty_slave_begins_at_the_last_file_any_other_at_its_offset(tmp_path: Path, report: int) -> None:
    async with serving(tmp_path) as port:
        port.put(1200)
        last = port.store.log.files[-1].start
        slave = await port.slave()
        slave.report(report)
        frame = await slave.frame()
        assert frame is not None
        assert frame.offset == (report or last)


@pytest.mark.spec("HA-11")
async def test_an_idle_master_sends_a_heartbeat_with_the_next_offset(tmp_path: Path) -> None:
    async with serving(tmp_path) as port:
        port.put(1)
        slave = await port.slave()
        slave.report(0)
        first_end = port.store.log.end
        await slave.data(first_end)
        await asyncio.sleep(3)  # poll: virtual time; written data puts the heartbeat off
        port.put(1)
        end = port.store.log.end
        await slave.data(end - first_end)
        began = asyncio.get_running_loop().time()
        for number in (1, 2):
            frame = await slave.frame()
            assert frame == (end, b"")
            assert 5 * number <= asyncio.get_running_loop().time() - began < 5.5 * number
            slave.report(end)


@pytest.mark.spec("HA-14")
async def test_a_silent_slave_is_closed_and_a_reporting_one_is_not(tmp_path: Path) -> None:
    async with serving(tmp_path) as port:
        honest = await port.slave()
        honest.report(0)
        silent, mute = await port.slave(), await port.slave()
        silent.report(0)
        clock = asyncio.get_running_loop().time
        began = clock()

        async def report() -> None:
            while True:
                await asyncio.sleep(5)  # poll
                honest.report(0)

        reports = asyncio.create_task(report())
        await asyncio.gather(silent.closed(), mute.closed())
        assert 20 <= clock() - began < 26
        reports.cancel()
        assert len(port.master.peers) == 1


@pytest.mark.spec("HA-13")
async def test_of_several_reports_the_last_whole_one_counts(tmp_path: Path) -> None:
    async with serving(tmp_path) as port:
        port.put(10)
        end = port.store.log.end
        slave = await port.slave()
        slave.report(0)
        await slave.data(end)
        outcome: list[PutStatus] = []
        port.acks.when_acknowledged(end, lambda status, _: outcome.append(status))
        slave.write(b"".join(at.to_bytes(8, "big") for at in (100, 300, 200)) + b"\0\0\0")
        await acknowledged(port, 200)
        assert not outcome
        slave.write(bytes(5))  # the rest of a report of 0
        slave.report(end)
        await acknowledged(port, end)
        assert outcome == [PutStatus.PUT_OK]
        slave.report(100)  # never backwards
        slave.report(end)
        await asyncio.sleep(0.1)  # poll
        assert port.acks.highest == end


@pytest.mark.spec("HA-15")
@pytest.mark.parametrize("second", [1_000_000, -1])
async def test_a_later_report_that_is_impossible_closes_the_connection(
    tmp_path: Path, second: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as port:
        port.put(10)
        honest, liar = await port.slave(), await port.slave()
        for slave in (honest, liar):
            slave.report(0)
            await slave.data(port.store.log.end)
        liar.write(second.to_bytes(8, "big", signed=True))
        await liar.closed()
        honest.report(port.store.log.end)
        await acknowledged(port, port.store.log.end)
        assert port.rejections.counts == {"ha": 1}
    assert caplog.text.count("slave refused peer=127.0.0.1:") == 1


@pytest.mark.parametrize("first", [5000, -1, -(2**63)])
async def test_a_first_report_that_is_impossible_closes_the_connection(
    tmp_path: Path, first: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as port:
        port.put(10)
        slave = await port.slave()
        slave.write(first.to_bytes(8, "big", signed=True))
        await slave.closed()
        assert port.acks.slaves == 0
    assert "stop it and remove its store" in caplog.text
    assert "slave refused" not in caplog.text, "it was no slave yet"


async def test_refused_connections_are_kept_for_a_moment(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A Java slave connects again at once, a thousand times a second."""
    async with serving(tmp_path) as port:
        clock = asyncio.get_running_loop().time
        for _ in range(2):
            began = clock()
            slave = await port.slave()
            slave.report(5000)
            await slave.closed()
            assert clock() - began >= 1
        assert "rejected reason=ha peer=127.0.0.1:" in caplog.text
        for _ in range(REFUSED_MAX):
            (await port.slave()).report(5000)
        await until(lambda: len(port.master._refused) == REFUSED_MAX)
        began = clock()
        slave = await port.slave()
        slave.report(5000)
        await slave.closed()
        assert clock() - began < 1


async def test_an_impossible_first_report_to_an_empty_master_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as port:
        slave = await port.slave()
        slave.write((-1).to_bytes(8, "big", signed=True))
        await slave.closed()


async def test_records_that_are_not_durable_are_not_sent_with_sync_flush(tmp_path: Path) -> None:
    async with serving(tmp_path, flush={"flush_disk_type": FlushDiskType.SYNC_FLUSH}) as port:
        result = port.store.put(message())
        assert port.master.extent.end == 0
        await port.store.wait_confirmed(result)
        assert port.master.extent.end == port.store.log.end


async def test_addresses_that_are_not_allowed_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tmp_path) as port:
        port.master._allowed = HaSettings(allowed_text="10.1.2.*").allowed(protected=True)
        stranger = await port.slave()
        await stranger.closed()
        assert port.master.peers == []
    assert "the address is not in haAllowedAddresses" in caplog.text


def test_which_addresses_are_allowed_depends_on_accounts() -> None:
    plain = HaSettings(allowed_text="10.1.2.*")
    assert [plain.allowed(protected=False).matches(host) for host in ("127.0.0.1", "10.1.2.3", "10.1.3.3")] == [
        True,
        True,
        False,
    ]
    assert not plain.allowed(protected=True).matches("127.0.0.1")
    assert HaSettings().port_open(protected=False)
    assert not HaSettings().port_open(protected=True)
    assert plain.port_open(protected=True)
    assert not HaSettings(port_enable=False).port_open(protected=False)
    assert HaSettings(allowed_text="10.1.2.300").validate()


async def test_too_many_slaves_are_refused_and_the_others_served(tmp_path: Path) -> None:
    async with serving(tmp_path) as port:
        slaves = [await port.slave() for _ in range(SLAVES_MAX)]
        for slave in slaves:
            slave.report(0)
        await until(lambda: port.master.slaves == SLAVES_MAX)
        late = await port.slave()
        late.report(0)
        await late.closed()
        port.put(5)
        await slaves[0].data(port.store.log.end)
        await slaves[1].close()
        await until(lambda: port.master.slaves == SLAVES_MAX - 1)
        again = await port.slave()
        again.report(0)
        await again.data(port.store.log.end)


async def test_connections_that_report_nothing_keep_no_slave_out(tmp_path: Path) -> None:
    async with serving(tmp_path) as port:
        port.put(5)
        mute = [await port.slave() for _ in range(WAITING_PER_HOST + 2)]
        await asyncio.gather(mute[0].closed(), mute[1].closed())
        assert len(port.master.peers) == WAITING_PER_HOST
        slave = await port.slave()
        slave.report(0)
        await slave.data(port.store.log.end)
        assert port.master.slaves == 1


async def test_a_slave_that_does_not_read_costs_little_memory(tmp_path: Path) -> None:
    async with serving(tmp_path, flush={"commit_log_file_bytes": 32 << 20}, housekeeping_ms=10**9) as port:
        port.put(3, b"x" * (1 << 20))
        stuck, honest = await port.slave(), await port.slave()
        stuck._reader._transport.pause_reading()  # type: ignore[attr-defined]
        stuck.report(0)
        honest.report(0)
        await honest.data(port.store.log.end)
        await until(lambda: len(port.master.peers) == 2)
        buffers = [c._transport.get_write_buffer_size() for c in port.master._connections if c._transport]
        assert max(buffers) < 1 << 20


async def test_a_slave_that_reads_again_gets_the_rest_at_once(tmp_path: Path) -> None:
    """What the socket did not accept must not wait for the next periodic send."""
    async with serving(tmp_path, flush={"commit_log_file_bytes": 32 << 20}, housekeeping_ms=10**9) as port:
        port.put(12, b"x" * (1 << 20))
        slave = await port.slave()
        reading = slave._reader._transport  # type: ignore[attr-defined]
        reading.pause_reading()
        slave.report(0)
        await until(lambda: any(connection._paused for connection in port.master._connections))
        port.master._task.cancel()  # type: ignore[union-attr]  # no periodic send
        reading.resume_reading()
        assert await slave.data(port.store.log.end) == log_bytes(port.store)


async def test_a_slave_is_closed_with_the_reason_if_the_log_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another slave, or the same one at a later file, may still be served."""
    async with serving(tmp_path) as port:

        def damaged(offset: int, size: int) -> bytes:
            raise CorruptRecord(f"no record at {offset}")

        port.put(1)
        with monkeypatch.context() as context:
            context.setattr(port.store.log, "view", damaged)
            slave = await port.slave()
            slave.report(0)
            await slave.closed()
        assert "the log cannot be read: no record at 0" in caplog.text
        assert port.rejections.counts == {"ha": 1}
        again = await port.slave()
        again.report(0)
        assert await again.data(port.store.log.end) == log_bytes(port.store)


class Stranger:
    """A transport of a connection from any address."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.is_aborted = False

    def get_extra_info(self, name: str) -> Any:
        return (self.host, 5) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def write(self, data: bytes) -> None:
        pass

    def abort(self) -> None:
        self.is_aborted = True


async def test_of_too_many_silent_connections_the_oldest_untrusted_one_is_closed(tmp_path: Path) -> None:
    """Connections of many networks must not keep out a slave that is about to report, nor each other."""
    secret = "sixteen bytes or more"
    async with serving(tmp_path, protected=True, cluster_secret=secret, allowed_text="10.0.0.1") as port:
        hosts = ["10.0.0.1", *(f"10.1.{number}.1" for number in range(WAITING_MAX - 1))]
        strangers = [Stranger(host) for host in hosts]
        for transport in strangers:
            SlaveConnection(port.master).connection_made(transport)  # type: ignore[arg-type]
        assert not any(transport.is_aborted for transport in strangers)
        assert len(port.master.peers) == WAITING_MAX
        SlaveConnection(port.master).connection_made(Stranger("10.2.0.1"))  # type: ignore[arg-type]
        assert [transport.host for transport in strangers if transport.is_aborted] == ["10.1.0.1"]
        assert len(port.master.peers) == WAITING_MAX
        assert port.rejections.counts == {"ha": 1}


async def test_old_records_are_read_by_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slave that is far behind does not stop the event loop on a disk that is slow."""
    async with serving(tmp_path) as port:
        port.put(1200)
        monkeypatch.setattr("saturnmq.replication.masterslave.master.RECENT_BYTES", 0)
        cold: list[int] = []
        monkeypatch.setattr(port.store.disk, "is_resident", lambda mapping, at, size: bool(cold.append(at)))
        slave = await port.slave()
        slave.report(1)
        assert await slave.data(port.store.log.end - 1) == log_bytes(port.store, 1)
        assert cold


async def test_no_old_record_is_sent_before_a_thread_has_read_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a frame begins in what was read ahead and ends behind it."""
    async with serving(tmp_path) as port:
        port.put(1200)
        master = port.master
        monkeypatch.setattr("saturnmq.replication.masterslave.master.RECENT_BYTES", 0)
        monkeypatch.setattr("saturnmq.replication.masterslave.master._READ_AHEAD_BYTES", 40_000)
        monkeypatch.setattr(port.store.disk, "is_resident", lambda mapping, at, size: False)
        warm: list[tuple[int, int]] = []
        sent: list[tuple[int, int]] = []
        read, view = master.read, port.store.log.view

        def reading(file: Any, at: int, size: int) -> Any:
            warm.append((file.start + at, file.start + at + size))
            assert at + size <= FILE
            return read(file, at, size)

        def viewed(offset: int, size: int) -> Any:
            sent.append((offset, offset + size))
            assert any(begin <= offset and offset + size <= end for begin, end in warm), (offset, size, warm)
            return view(offset, size)

        master.read = reading  # type: ignore[method-assign]
        monkeypatch.setattr(port.store.log, "view", viewed)
        slave = await port.slave()
        slave.report(1)
        assert len(await slave.data(port.store.log.end - 1)) == port.store.log.end - 1
        assert len(sent) > len(warm) / 2 > 1


async def test_a_slave_whose_offset_is_deleted_is_closed(tmp_path: Path) -> None:
    async with serving(tmp_path) as port:
        port.put(1200)
        await port.store.log.truncate_front("test")
        slave = await port.slave()
        slave.report(100)
        await slave.closed()


async def test_a_slave_whose_next_record_is_deleted_is_closed_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It lags behind retention while its socket is full."""
    async with serving(tmp_path) as port:
        port.put(1200)
        slave = await port.slave()
        await until(lambda: port.master._connections)
        connection = next(iter(port.master._connections))
        connection.pause_writing()
        slave.report(100)
        await until(lambda: port.acks.slaves)
        await port.store.log.truncate_front("test")
        connection.resume_writing()
        await slave.closed()
        extent = port.master.extent
        assert f"needs the log from offset 100 on, this master has it from {FILE} to {extent.end}" in caplog.text
        assert port.rejections.counts == {"ha": 1}


async def test_a_drained_port_has_sent_everything(tmp_path: Path) -> None:
    async with serving(tmp_path) as port:
        slave = await port.reported_slave()
        port.put(10)
        end = port.store.log.end

        async def follow() -> None:
            await slave.data(end)
            slave.report(end)

        await asyncio.gather(port.master.drain(), follow())
        assert port.acks.highest == end
        clock = asyncio.get_running_loop().time
        before = clock()
        await port.master.drain()
        assert clock() - before < 0.1, "nothing to wait for"
        port.put(1)
        await port.master.drain()  # bounded: this slave reports nothing more


async def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    async with serving(tmp_path / "a") as first, serving(tmp_path / "b") as second:
        await second.master.stop()
        with pytest.raises(StartError, match="haPortEnable"):
            await second.master.start("127.0.0.1", first.port)


# ---- sends that wait for a slave


async def test_a_send_without_slaves_is_not_replicated(tmp_path: Path) -> None:
    async with serving(tmp_path) as port:
        outcome: list[PutStatus] = []
        port.acks.when_acknowledged(PhysicalOffset(10), lambda status, _: outcome.append(status))
        assert outcome == [PutStatus.SLAVE_NOT_AVAILABLE]


@pytest.mark.spec("SW-03")
async def test_a_slave_that_lags_too_far_is_not_available(tmp_path: Path) -> None:
    async with serving(tmp_path, fall_behind_max=500) as port:
        await port.reported_slave()
        outcome: list[PutStatus] = []
        for offset in (499, 500):
            port.acks.when_acknowledged(PhysicalOffset(offset), lambda status, _: outcome.append(status))
        assert outcome == [PutStatus.SLAVE_NOT_AVAILABLE]  # of 500; 499 waits


@pytest.mark.spec("UPG-10")
async def test_waits_end_in_time_one_by_one(tmp_path: Path) -> None:
    """A timer per deadline: no wait is extended by a polling step (defect 15 of Apache RocketMQ)."""
    async with serving(tmp_path) as port:
        slave = await port.reported_slave()
        clock = asyncio.get_running_loop().time
        ended: list[tuple[PutStatus, float]] = []
        for offset in (10, 20):
            began = clock()
            port.acks.when_acknowledged(
                PhysicalOffset(offset), lambda status, _, began=began: ended.append((status, clock() - began))
            )
            await asyncio.sleep(1)  # poll
            slave.report(0)
        await until(lambda: len(ended) == 2)
        assert {status for status, _ in ended} == {PutStatus.FLUSH_SLAVE_TIMEOUT}
        assert all(3 <= seconds < 3.2 for _, seconds in ended)


@pytest.mark.spec("HA-18", "UPG-10")
async def test_the_acknowledgement_of_any_slave_ends_waits_in_order(tmp_path: Path) -> None:
    async with serving(tmp_path) as port:
        port.put(10)
        end = port.store.log.end
        fast, slow = await port.slave(), await port.slave()
        for slave in (fast, slow):
            slave.report(0)
            await slave.data(end)
        outcome: list[tuple[int, PutStatus]] = []
        for offset in (100, 200, 300):
            port.acks.when_acknowledged(
                PhysicalOffset(offset), lambda status, _, offset=offset: outcome.append((offset, status))
            )
        fast.report(200)
        await until(lambda: len(outcome) == 2)
        assert outcome == [(100, PutStatus.PUT_OK), (200, PutStatus.PUT_OK)]
        slow.report(300)
        await until(lambda: len(outcome) == 3)


@pytest.mark.spec("UPG-10")
async def test_a_slave_that_left_acknowledges_nothing(tmp_path: Path) -> None:
    """Apache RocketMQ keeps one offset for all slaves (defect 2)."""
    async with serving(tmp_path) as port:
        port.put(10)
        end = port.store.log.end
        slave = await port.slave()
        slave.report(0)
        await slave.data(end)
        slave.report(end)
        await acknowledged(port, end)
        await slave.close()
        await until(lambda: not port.acks.slaves)
        outcome: list[PutStatus] = []
        port.acks.when_acknowledged(end, lambda status, _: outcome.append(status))
        assert outcome == [PutStatus.SLAVE_NOT_AVAILABLE]


async def test_sends_of_one_event_loop_iteration_wake_the_port_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand sends would pass over all slaves a thousand times."""
    async with serving(tmp_path) as port:
        slave = await port.reported_slave()
        port.master._task.cancel()  # type: ignore[union-attr]  # no periodic send
        passes: list[int] = []
        send = SlaveConnection.send
        monkeypatch.setattr(SlaveConnection, "send", lambda connection: (passes.append(1), send(connection)))
        end = port.store.log.end
        for expected in (1, 2):
            for _ in range(5):
                port.put(1)
                port.acks.when_acknowledged(port.store.log.end, lambda status, _: None)
            assert len(passes) == expected - 1
            await slave.data(port.store.log.end - end)
            end = port.store.log.end
            assert len(passes) == expected


async def test_a_waiting_send_makes_the_master_send_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as port:
        slave = await port.reported_slave()
        port.master._task.cancel()  # type: ignore[union-attr]  # no periodic send
        port.put(1)
        port.acks.when_acknowledged(port.store.log.end, lambda status, _: None)
        await slave.data(port.store.log.end)
