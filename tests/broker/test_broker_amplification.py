"""Requests that make the broker do or store far more than they carry: what they may cost others."""

from __future__ import annotations

import asyncio
import struct
from typing import Any
from unittest.mock import Mock

import pytest
from wire import Clock, Wire, wire

from saturnmq import slices
from saturnmq.broker.requests import send
from saturnmq.broker.requests.message_queries import record_at
from saturnmq.broker.services.half_table import UndecidedHalf
from saturnmq.net import Connection
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.frames.command import Command, encode_frame
from saturnmq.protocol.frames.decoder import FrameDecoder
from saturnmq.protocol.ids import parse_offset_message_id
from saturnmq.protocol.message import BatchItem

LARGE = bytes(500_000)


def back(offset: int, opaque: int = 0) -> Command:
    fields = {"offset": str(offset), "group": "G", "delayLevel": "0", "maxReconsumeTimes": "16"}
    return Command(RequestCode.CONSUMER_SEND_MSG_BACK, ext=fields, opaque=opaque)


@pytest.mark.spec("REM-12", "RTY-02")
async def test_messages_sent_back_are_copied_in_turns_of_their_connection(wire: Wire) -> None:
    """Requests of 150 bytes that each append a megabyte: all of one read were executed before anything else."""
    sent = await wire.send(body=LARGE)
    _, offset = parse_offset_message_id(sent.ext["msgId"])
    await wire.call(RequestCode.CONSUMER_SEND_MSG_BACK, **back(offset).ext)  # creates group and topic
    _, _, port = wire.server.broker_address.rpartition(":")
    reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
    before = wire.broker.store.log.end
    writer.write(b"".join(encode_frame(back(offset, number)) for number in range(60)))
    assert (await wire.send(body=b"honest")).code == 0
    assert (wire.broker.store.log.end - before) // len(LARGE) < 30
    decoder, answers = FrameDecoder(), list[Command]()
    while len(answers) < 60:
        answers += decoder.feed(await reader.read(65536))
    assert {answer.code for answer in answers} == {0}
    assert (wire.broker.store.log.end - before) // len(LARGE) == 60
    writer.close()


@pytest.mark.spec("LIM-10", "SND-16")
async def test_large_messages_are_rejected_while_the_flush_lags(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """They filled the page cache faster than the disk takes it, until the kernel made every append wait, 17 s long."""
    wire.broker._server.take_plain(None)  # compiled code has its own lag
    sent = await wire.send(body=LARGE)
    _, offset = parse_offset_message_id(sent.ext["msgId"])
    lag = 0
    monkeypatch.setattr(send, "unflushed_bytes", lambda store: lag)

    async def codes() -> list[int]:
        batch = await wire.send_batch([BatchItem(bytes(10_000))] * 7)
        answers = [await wire.send(body=bytes(size)) for size in (100, 4096, 10_000, 70_000)]
        returned = await wire.call(RequestCode.CONSUMER_SEND_MSG_BACK, **back(offset).ext)
        return [answer.code for answer in (*answers, batch, returned)]

    busy = int(ResponseCode.SYSTEM_BUSY)
    assert await codes() == [0] * 6
    lag = send.UNFLUSHED_BYTES + 1
    assert await codes() == [0, 0, 0, busy, busy, busy]
    lag = 2 * send.UNFLUSHED_BYTES + 1
    assert await codes() == [0, 0, busy, busy, busy, busy]
    refused = await wire.send(body=LARGE)
    assert "not flushed" in (refused.remark or "") and str(lag) in (refused.remark or "")
    lag = 0
    assert await codes() == [0] * 6


@pytest.mark.spec("TX-07", "REM-12")
async def test_checks_of_large_half_messages_leave_time_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step takes more than half a slice here: before, 64 of them ran without pause, for a second with messages of 4 MB."""
    now = 0.0

    def time_of_work() -> float:
        nonlocal now
        now += 0.6 * slices.SLICE_SECONDS
        return now

    clock = Clock()
    async with wire(clock_ms=clock) as w:
        await w.send()
        service = w.broker.master.transactions
        for offset in range(50):
            service.table.add(UndecidedHalf(offset, 2**60, clock.ms, 6000, 0, 1))  # type: ignore[arg-type]
        iterations = 0

        async def count() -> None:
            nonlocal iterations
            while True:
                iterations += 1
                await asyncio.sleep(0)

        for clock_of_slices in ("monotonic", "thread_time"):
            monkeypatch.setattr(slices, clock_of_slices, time_of_work)
        counting = asyncio.ensure_future(count())
        await service.round()
        counting.cancel()
        assert iterations >= 20
        service.table.pending.clear()


@pytest.mark.spec("TX-09", "LIM-11")
async def test_checks_stop_at_a_producer_whose_output_is_full() -> None:
    """They were queued for a peer that reads nothing, 64 of 4 MB in one event-loop iteration."""
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        sent: list[Command] = []
        deaf: Any = Mock(spec=Connection, closed=False, congested=False, output_full=False)

        def queue(command: Command) -> None:
            sent.append(command)
            deaf.output_full = len(sent) >= 2  # as Connection: by what is queued, not by what is written

        deaf.invoke_oneway = queue
        for _ in range(8):
            answer = await w.send(properties={"TRAN_MSG": "true", "PGROUP": "g"}, f=4)
            assert answer.code == 0
        w.broker.clients.producers["g"] = {deaf: Mock()}
        clock.ms += 10_000
        await w.broker.master.transactions.round()
        assert len(sent) == 2
        del w.broker.clients.producers["g"]


@pytest.mark.spec("LIM-10", "CA-15")
async def test_relays_that_wait_hold_no_message(wire: Wire) -> None:
    """309 reads its message only once it has a permit, and not for a consumer that does not read."""
    sent = await wire.send(body=b"x")
    group, member = (
        Mock(),
        Mock(spec=Connection, closed=False, output_full=True, attributes={}, remote_address="127.0.0.1:1"),
    )
    group.members = {member: Mock(client_id="c", version=407)}
    wire.broker.clients.consumers["G"] = group
    who = {"consumerGroup": "G", "clientId": "c", "msgId": sent.ext["msgId"], "brokerName": "b"}
    answer = await wire.call(RequestCode.CONSUME_MESSAGE_DIRECTLY, **who)
    assert answer.code == 1 and "does not read" in (answer.remark or "")
    bodies: list[bytes] = []

    async def invoke(command: Command, timeout_ms: int, *, body: Any) -> Command:
        assert command.body is None
        bodies.append(body())
        return Command(0)

    member.output_full, member.invoke = False, invoke
    assert (await wire.call(RequestCode.CONSUME_MESSAGE_DIRECTLY, **who)).code == 0
    assert struct.unpack_from(">i", bodies[0])[0] == len(bodies[0])
    del wire.broker.clients.consumers["G"]


@pytest.mark.spec("LIM-13")
async def test_statistics_of_messages_sent_back_name_topics_only(wire: Wire) -> None:
    """The topic comes from a property of the message, up to 32 KB of the sender's choice."""
    for name in ("T", "x" * 20_000):
        sent = await wire.send(properties={"RETRY_TOPIC": name})
        _, offset = parse_offset_message_id(sent.ext["msgId"])
        assert (await wire.call(RequestCode.CONSUMER_SEND_MSG_BACK, **back(offset).ext)).code == 0
    assert set(wire.broker.stats.sets["SNDBCK_PUT_NUMS"].items) == {"T@G", "@G"}


async def test_copy_of_an_absent_message_is_refused(wire: Wire) -> None:
    await wire.send()
    assert record_at(wire.broker.store, 1) is None
    answer = await wire.call(RequestCode.CONSUMER_SEND_MSG_BACK, **back(1).ext)
    assert answer.code == ResponseCode.SYSTEM_ERROR
