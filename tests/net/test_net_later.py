"""Deferred responses (`Later`): handlers that respond later without a task."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from netpair import pair

from saturnmq.net import Connection, Later, NetSettings
from saturnmq.protocol.codes import CommandFlag
from saturnmq.protocol.frames.command import Command, encode_frame


class Held:
    """A handler that defers every response until the test provides it."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Later, Command]] = []
        self.came = asyncio.Event()

    def __call__(self, connection: Connection, request: Command) -> Any:
        later = Later()
        self.waiting.append((later, request))
        self.came.set()
        return later

    async def wait(self, count: int) -> None:
        while len(self.waiting) < count:
            self.came.clear()
            await self.came.wait()


async def slowly(request: Command) -> Command:
    await asyncio.sleep(0)
    return request.reply(7)


@pytest.mark.spec("REM-12", "SND-15")
async def test_deferred_responses_are_sent_in_any_order_and_form() -> None:
    held = Held()
    async with pair(held) as p:
        calls = [asyncio.create_task(p.call(Command(10))) for _ in range(4)]
        await held.wait(4)
        assert [c.in_flight for c in p.server.connections] == [4] and p.server.later_count == 4
        for number in (2, 0):
            later, request = held.waiting[number]
            later.answer(request.reply(number))
        later, request = held.waiting[1]
        later.answer(encode_frame(request.reply(1)))
        later, request = held.waiting[3]
        later.answer(slowly(request))
        answers = await asyncio.gather(*calls)
        assert [a.code for a in answers] == [0, 1, 2, 7]
        assert [c.in_flight for c in p.server.connections] == [0] and p.server.later_count == 0


@pytest.mark.spec("REM-12")
async def test_deferred_response_before_handler_return_and_to_oneway() -> None:
    def at_once(connection: Connection, request: Command) -> Later:
        later = Later()
        later.answer(request.reply(5))
        return later

    async with pair(at_once) as p:
        reader, writer = await p.socket()
        writer.write(encode_frame(Command(10, flag=int(CommandFlag.ONEWAY))) + encode_frame(Command(10, opaque=77)))
        answer = await reader.readexactly(4)
        rest = await reader.readexactly(int.from_bytes(answer))
        assert b'"opaque":77' in rest and b'"code":5' in rest
        writer.close()


@pytest.mark.spec("REM-12")
async def test_deferred_requests_pause_reading_at_in_flight_limit() -> None:
    held = Held()
    async with pair(held, NetSettings(in_flight_max=2)) as p:
        calls = [asyncio.create_task(p.call(Command(10))) for _ in range(6)]
        for number in range(6):
            await held.wait(number + 1)
            assert len(held.waiting) <= number + 2
            later, request = held.waiting[number]
            later.answer(request.reply())
        assert [a.code for a in await asyncio.gather(*calls)] == [0] * 6


@pytest.mark.spec("REM-12")
async def test_server_stop_waits_for_deferred_responses() -> None:
    held = Held()
    async with pair(held) as p:
        _, lost = await p.socket()
        lost.write(encode_frame(Command(10)))
        await held.wait(1)
        lost.transport.abort()
        call = asyncio.create_task(p.call(Command(11)))
        await held.wait(2)
        stopping = asyncio.create_task(p.server.stop())
        while not p.server.stopping:
            await asyncio.sleep(0)
        assert not call.done() and not stopping.done()
        for later, request in held.waiting:
            later.answer(request.reply(3))
        assert (await call).code == 3
        await stopping
