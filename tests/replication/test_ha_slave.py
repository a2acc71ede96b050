"""A slave: its log equals its master's, its queues and index follow, and it takes nothing that does not continue its log."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
from slavestub import FILE, SYNC, Slave, following, liar, log_bytes, message, serving

from broker.wire import run
from saturnmq.cli.runtime import loop_factory
from saturnmq.protocol.message import decode_records
from saturnmq.store import GetStatus, MessageStore, PutStatus
from waiting import until


def frame(offset: int, data: bytes) -> bytes:
    return offset.to_bytes(8, "big", signed=True) + len(data).to_bytes(4, "big") + data


def bodies(store: MessageStore, topic: str = "T", queue: int = 0) -> list[bytes]:
    found: list[bytes] = []
    offset = store.min_offset(topic, queue)
    while True:
        result = store.get(topic, queue, offset, 32)
        if result.status is not GetStatus.FOUND:
            return found
        found += [bytes(m.body) for m in decode_records(b"".join(result.buffers))]
        offset = result.next_offset


def keyed(number: int) -> bytes:
    return b"KEYS\x01k%d" % number


@pytest.mark.spec("HA-17")
@pytest.mark.parametrize("batch", [7, 32_768])
async def test_log_queues_and_index_of_a_slave_equal_the_masters(tmp_path: Path, batch: int) -> None:
    count = 30 if batch < 100 else 1500
    async with (
        serving(tmp_path / "m", from_oldest=True, batch_bytes=batch) as port,
        following(tmp_path / "s", port) as slave,
    ):
        for number in range(count):
            port.put(1, b"%d" % number + b"x" * 100, queue=number % 3, properties=keyed(number))
        await slave.has(port)
        store, own = port.store, slave.store
        assert log_bytes(own, 0, own.log.end) == log_bytes(store)
        for queue in range(3):
            assert bodies(own, queue=queue) == bodies(store, queue=queue)
            units = store.queues.by_key[("T", queue)].read(store.min_offset("T", queue), 1000)
            assert own.queues.by_key[("T", queue)].read(own.min_offset("T", queue), 1000) == units
        for each in (store, own):
            assert each.index_queue is not None
            each.index_queue.put_all()
        for number in (0, count // 2, count - 1):
            found = [own_store.query("T", f"k{number}", 4, 0, 1 << 44).records for own_store in (store, own)]
            assert [bytes(b) for b in found[0]] == [bytes(b) for b in found[1]] and found[0]
    assert _files(tmp_path / "m") == _files(tmp_path / "s")


def _files(root: Path) -> dict[str, bytes]:
    """The commit log files that hold records."""
    found = {path.name: path.read_bytes() for path in sorted((root / "commitlog").iterdir())}
    return {name: data for name, data in found.items() if any(data)}


def test_master_and_slave_run_on_the_loop_of_the_command_line(tmp_path: Path) -> None:
    """uvloop, whose transports are no instances of asyncio.Transport."""

    async def work() -> None:
        async with serving(tmp_path / "m", from_oldest=True) as port, following(tmp_path / "s", port, SYNC) as slave:
            for _ in range(20):
                port.put(200)
                await asyncio.sleep(0)
            await slave.has(port)
            assert log_bytes(slave.store, 0, slave.store.log.end) == log_bytes(port.store)

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(work())


@pytest.mark.spec("UPG-03", "HA-17")
async def test_an_empty_slave_begins_at_the_masters_last_file_and_restarts_there(tmp_path: Path) -> None:
    async with serving(tmp_path / "m") as port:
        port.put(1200)
        last = port.store.log.files[-1].start
        for _ in range(2):
            async with following(tmp_path / "s", port) as slave:
                port.put(10)
                await slave.has(port)
                assert slave.store.log.first_position == last > 0
                assert log_bytes(slave.store, last, slave.store.log.end) == log_bytes(port.store, last)
                assert slave.store.max_offset("T", 0) == port.store.max_offset("T", 0)
                assert 0 < slave.store.min_offset("T", 0) < 1200


async def test_a_killed_slave_goes_on_where_its_log_ends(tmp_path: Path) -> None:
    async with serving(tmp_path / "m", batch_bytes=64) as port:
        slave = Slave(tmp_path / "s", lambda: f"127.0.0.1:{port.port}", {}, {})
        slave.store.open()
        await slave.store.start()
        slave.client.start()
        port.put(50)
        await until(lambda: slave.store.log.end > 1000)
        slave.dispatch.log.receive(b"half")
        await slave.client.stop()
        await slave.store.abort()
        port.put(50)
        async with following(tmp_path / "s", port) as again:
            await again.has(port)
            assert log_bytes(again.store, 0, again.store.log.end) == log_bytes(port.store)
            assert bodies(again.store) == bodies(port.store)


@pytest.mark.spec("HA-03")
async def test_a_slave_connects_again_every_5_seconds(tmp_path: Path) -> None:
    times: list[float] = []
    clock = asyncio.get_running_loop().time

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        times.append(clock())

    async with liar(refuse) as address, following(tmp_path / "s", lambda: address):
        await until(lambda: len(times) == 3)
    assert all(4.9 < after - before < 6 for before, after in itertools.pairwise(times))


async def test_a_slave_returns_soon_to_a_master_that_served_it(tmp_path: Path) -> None:
    clock = asyncio.get_running_loop().time
    times: list[float] = []

    async def serve_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        times.append(clock())
        if len(times) == 1:
            writer.write(frame(0, b""))
            await reader.readexactly(8)

    def pauses() -> list[float]:
        return [after - before for before, after in itertools.pairwise(times)]

    async with liar(serve_once) as address, following(tmp_path / "s", lambda: address):
        await until(lambda: max(pauses(), default=0) > 1)
    *soon, last = pauses()
    assert 14 < sum(soon) < 17 and all(0.5 <= pause < 1 for pause in soon)
    assert 5 <= last < 6


@pytest.mark.spec("HA-04")
async def test_the_first_report_is_sent_at_once_and_asks_for_what_is_compared(tmp_path: Path) -> None:
    async with serving(tmp_path / "m") as port:
        port.put(5)
        async with following(tmp_path / "s", port) as slave:
            await slave.has(port)
        reports: list[tuple[int, float]] = []
        clock = asyncio.get_running_loop().time

        async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connected = clock()
            reports.append((int.from_bytes(await reader.readexactly(8), "big"), clock() - connected))

        async with liar(note) as address, following(tmp_path / "s", lambda: address):
            await until(lambda: reports)
        offset, seconds = reports[0]
        assert offset == 1  # what it has is compared, from the first byte of its last file on
        assert seconds < 1


@pytest.mark.spec("HA-05")
async def test_a_slave_reports_what_it_stored_and_every_5_seconds(tmp_path: Path) -> None:
    async with serving(tmp_path / "m") as port:
        port.put(5)
        data, end = log_bytes(port.store), port.store.log.end
    reports: list[tuple[int, float]] = []
    clock = asyncio.get_running_loop().time

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        half = data.index(b"body") if b"body" in data else 100
        writer.write(frame(0, data[:half]) + frame(half, data[half:]))
        while True:
            reports.append((int.from_bytes(await reader.readexactly(8), "big"), clock()))
            writer.write(frame(end, b""))

    async with liar(serve) as address, following(tmp_path / "s", lambda: address):
        await until(lambda: len(reports) >= 3)
    assert [offset for offset, _ in reports[:3]] == [end] * 3
    assert 5 <= reports[2][1] - reports[1][1] < 5.6


@pytest.mark.spec("DUR-12")
async def test_with_sync_flush_only_durable_records_are_reported(tmp_path: Path) -> None:
    async with serving(tmp_path / "m") as port, following(tmp_path / "s", port, SYNC) as slave:
        await until(lambda: port.acks.slaves)
        reported: list[bool] = []
        note = port.acks.set

        def noted(who: object, offset: Any) -> None:
            reported.append(offset <= slave.store.flushed_offset)
            note(who, offset)

        port.acks.set = noted  # type: ignore[method-assign]
        for _ in range(20):
            port.put(5)
            await until(lambda: port.acks.highest == port.store.log.end)
        assert reported and all(reported)
        await slave.has(port)
        assert bodies(slave.store) == bodies(port.store)


@pytest.mark.spec("DUR-12", "HA-04")
async def test_the_first_report_with_sync_flush_is_durable_too(tmp_path: Path) -> None:
    """Records may be whole, but not durable, when the connection is lost."""
    async with serving(tmp_path / "m") as port:
        port.put(20)
        data, end = log_bytes(port.store), port.store.log.end
    slave = Slave(tmp_path / "s", lambda: address, SYNC, {})
    first: list[tuple[int, int]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        offset = int.from_bytes(await reader.readexactly(8), "big")
        first.append((offset, slave.store.flushed_offset))

    async with liar(serve) as address:
        slave.store.open()
        await slave.store.start()
        slave.dispatch.log.receive(data + data[:50])
        while slave.dispatch.log.take() is not None:
            pass
        assert slave.store.flushed_offset == 0
        slave.client.start()
        await until(lambda: first)
        await slave.client.stop()
        await slave.store.stop()
    assert first == [(1, end)]


@pytest.mark.parametrize(
    "bad",
    [
        frame(0, b"\0" * 100),
        frame(0, b"\x7f" * 100),
        frame(4096, b"x"),
        frame(0, (200).to_bytes(4, "big") + b"\xda\xa3\x20\xa7" + b"x" * 192),
        frame(-1, b"x"),
        frame(0, b"")[:8] + (5 << 20).to_bytes(4, "big"),
        frame(FILE - 10, b"x" * 20),
    ],
)
async def test_what_is_no_log_is_refused_and_leaves_no_trace(tmp_path: Path, bad: bytes) -> None:
    served: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(8) == bytes(8)
        writer.write(bad)
        served.append(len(await reader.read()))

    async with serving(tmp_path / "m") as port, liar(serve) as address:
        target = [address]
        async with following(tmp_path / "s", lambda: target[0]) as slave:
            await until(lambda: served)
            assert slave.store.log.end == 0
            target[0] = f"127.0.0.1:{port.port}"
            port.put(20)
            await slave.has(port)
            assert log_bytes(slave.store, 0, slave.store.log.end) == log_bytes(port.store)
            assert slave.store.failure is None


@pytest.mark.spec("HA-16")
def test_frames_and_heartbeats_that_do_not_continue_the_log_close_the_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with serving(tmp_path / "m") as port:
            port.put(20)
            async with following(tmp_path / "s", port) as slave:
                await slave.has(port)
            end = port.store.log.end
        sent = [frame(end + 10, b""), frame(0, b"x"), frame(end - 1, b"x" * 10)]
        closed: list[bytes] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(8)
            writer.write(sent[len(closed) % len(sent)])
            closed.append(await reader.read())

        async with liar(serve) as address, following(tmp_path / "s", lambda: address) as again:
            await until(lambda: len(closed) >= 3)
            assert again.store.log.end == end

    run(work)
    assert "this log ends at" in caplog.text


@pytest.mark.spec("HA-14")
async def test_a_silent_master_is_left(tmp_path: Path) -> None:
    clock = asyncio.get_running_loop().time
    lasted: list[float] = []

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        began = clock()
        await reader.read()
        lasted.append(clock() - began)

    async with liar(mute) as address, following(tmp_path / "s", lambda: address):
        await until(lambda: lasted)
    assert 20 <= lasted[0] < 20.6


async def test_without_an_address_a_slave_waits(tmp_path: Path) -> None:
    """HA-02: no address is no error."""
    async with serving(tmp_path / "m") as port:
        port.put(3)
        known: list[str] = []
        async with following(tmp_path / "s", lambda: known[0] if known else "") as slave:
            await asyncio.sleep(7)  # poll
            assert not slave.client.connected
            known.append(f"127.0.0.1:{port.port}")
            await slave.has(port)


async def test_a_slave_refuses_messages_of_clients(tmp_path: Path) -> None:
    async with serving(tmp_path / "m") as port, following(tmp_path / "s", port) as slave:
        result = slave.store.put(message())
        assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
        assert slave.store.put_batch(message(), [message().entry]).status is PutStatus.SERVICE_NOT_AVAILABLE


async def test_a_record_that_leaves_a_gap_in_its_queue_stops_the_slave(tmp_path: Path) -> None:
    async with serving(tmp_path / "m", from_oldest=True) as port:
        port.put(5)
        port.store.queues.by_key[("T", 0)].next_offset += 3  # type: ignore[assignment]
        async with following(tmp_path / "s", port) as slave:
            port.store._direct = False  # the master's own queue would refuse the gap, too
            port.put(1)
            port.store.skip_to(port.store.log.end)
            await until(lambda: slave.store.failure is not None)
            assert "remove its store" in (slave.store.failure.hint or "")  # type: ignore[union-attr]
        port.store.discard_unconfirmed()


async def test_a_fast_master_does_not_hold_the_slaves_event_loop(tmp_path: Path) -> None:
    async with serving(tmp_path / "m", from_oldest=True) as port:
        port.put(4000, b"x")
        steps: list[int] = []
        async with following(tmp_path / "s", port) as slave:
            step = slave.dispatch.step

            def counted() -> Any:
                before = slave.store.max_offset("T", 0)
                result = step()
                steps.append(slave.store.max_offset("T", 0) - before)
                return result

            slave.dispatch.step = counted  # type: ignore[method-assign]
            await slave.has(port)
        assert len(steps) > 2


@pytest.mark.spec("HA-03")
async def test_a_connection_attempt_ends_after_5_seconds_and_is_repeated_after_5(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    async with following(tmp_path / "s", lambda: "") as slave:
        began: list[float] = []

        async def unanswered(*args: object, **options: object) -> None:
            began.append(loop.time())
            await asyncio.Event().wait()

        monkeypatch.setattr(loop, "create_connection", unanswered)
        slave.client._address = lambda: "192.0.2.1:10912"
        await until(lambda: len(began) == 3)
        # An attempt's 5 s begin before `unanswered` is called: a pause of this process in between shortens what is measured.
        between = [after - before for before, after in itertools.pairwise(began)]
        assert all(9.9 < seconds < 11 for seconds in between), between


@pytest.mark.spec("HA-03")
async def test_the_connection_to_the_master_neither_delays_nor_lingers(tmp_path: Path) -> None:
    async with serving(tmp_path / "m") as port, following(tmp_path / "s", port) as slave:
        await until(lambda: port.acks.slaves)
        sock = slave.client._connection._transport.get_extra_info("socket")  # type: ignore[union-attr]
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        lingers, _ = struct.unpack("ii", sock.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8))
        assert not lingers


@pytest.mark.spec("HA-14")
async def test_a_master_that_reads_no_reports_is_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lasted: list[float] = []
    clock = asyncio.get_running_loop().time

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        began = clock()
        while not reader.at_eof():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await reader.read(8)
            writer.write(frame(0, b""))  # its own frames go on
        lasted.append(clock() - began)

    async with liar(deaf) as address, following(tmp_path / "s", lambda: address) as slave:
        await until(lambda: slave.client._connection is not None)
        slave.client._connection.pause_writing()  # type: ignore[union-attr]  # the socket is full
        await until(lambda: lasted)
    assert 20 <= lasted[0] < 23
    assert "no report sent for 20000 ms" in caplog.text


async def test_a_first_frame_without_a_record_decides_nothing(tmp_path: Path) -> None:
    """An empty log begins where the first frame does; a master that sends no record must not choose that for good."""
    last = (1 << 62) // FILE * FILE - FILE
    reports: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reports.append(int.from_bytes(await reader.readexactly(8), "big"))
        writer.write(frame(last, bytes(200)) if len(reports) > 1 else frame(last, b"\0\0\0"))
        if len(reports) == 1:
            await asyncio.sleep(1)  # poll
        else:
            await reader.read()

    async with serving(tmp_path / "m") as port, liar(serve) as address:
        port.put(20)
        target = [address]
        async with following(tmp_path / "s", lambda: target[0]) as slave:
            await until(lambda: len(reports) == 3)
            assert reports == [0, 0, 0]
            target[0] = f"127.0.0.1:{port.port}"
            await until(lambda: slave.store.log.end == slave.store.dispatched == port.store.log.end)
            assert log_bytes(slave.store, 0, slave.store.log.end) == log_bytes(port.store)
            assert slave.store.log.first_position == 0


async def test_an_impossible_beginning_is_forgotten_by_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path / "m") as port:
        port.put(20)
        slave = Slave(tmp_path / "s", lambda: "", {}, {})
        slave.store.open()
        await slave.store.start()
        slave.dispatch.begin_at(4 * FILE)  # type: ignore[arg-type]
        slave.dispatch.log.receive(b"half")
        await slave.store.abort()
        async with following(tmp_path / "s", port) as again:
            await until(lambda: again.store.log.end == again.store.dispatched == port.store.log.end)
            assert log_bytes(again.store, 0, again.store.log.end) == log_bytes(port.store)


@pytest.mark.parametrize("offset", [(1 << 62) + FILE, (1 << 63) - FILE])
async def test_offsets_near_the_end_of_the_range_are_refused(
    tmp_path: Path, offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(frame(offset, b"x"))
        await reader.read()

    async with liar(serve) as address, following(tmp_path / "s", lambda: address) as slave:
        await until(lambda: "is possible" in caplog.text)
        assert slave.store.log.end == 0


async def test_a_master_that_is_refused_at_once_is_asked_every_5_seconds_with_one_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    times: list[float] = []
    clock = asyncio.get_running_loop().time

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        times.append(clock())
        writer.write(frame(0, b"") + frame(0, b"\x7f" * 100))
        await reader.read()

    async with liar(serve) as address, following(tmp_path / "s", lambda: address):
        await until(lambda: len(times) == 4)
    assert all(4.9 < after - before < 6 for before, after in itertools.pairwise(times))
    assert caplog.text.count("replication stopped") == 1


async def test_many_small_frames_are_taken_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saturnmq.replication.masterslave.slave.STEP_SECONDS", 0.0)
    async with serving(tmp_path / "m") as port:
        port.put(40)
        data, end = log_bytes(port.store), port.store.log.end
    taken: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(frame(0, b"") * 500 + b"".join(frame(at, data[at : at + 1]) for at in range(end)))
        await reader.read()

    async with liar(serve) as address, following(tmp_path / "s", lambda: address) as slave:
        receive = slave.dispatch.log.receive

        def counted(part: bytes) -> None:
            taken[-1] += 1
            receive(part)

        slave.dispatch.log.receive = counted  # type: ignore[method-assign]
        await until(lambda: slave.client._connection is not None)
        connection = slave.client._connection
        take = connection._take_frames  # type: ignore[union-attr]

        def step(part: bytes) -> None:
            taken.append(0)
            take(part)

        connection._take_frames = step  # type: ignore[union-attr, method-assign]
        await until(lambda: slave.store.dispatched == end)
        assert log_bytes(slave.store, 0, end) == data
    assert 32 < max(taken) <= 64, "few enough for the event loop, and more than one a step"
