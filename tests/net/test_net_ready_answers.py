"""Handlers that return encoded frames, mixed with handlers that return commands."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from netpair import pair

from saturnmq.net import Connection
from saturnmq.protocol.codes import CommandFlag, RequestCode
from saturnmq.protocol.frames.command import Command, Serialization, encode_frame
from saturnmq.protocol.frames.decoder import FrameDecoder

SEND = int(RequestCode.SEND_MESSAGE_V2)


def ready(connection: Connection, request: Command) -> Command | bytes:
    """Return every other response as an encoded frame; for one-way requests, empty bytes or a frame to be discarded."""
    reply = request.reply(0, None, dict(request.ext), request.body)
    if request.flag & CommandFlag.ONEWAY:
        return b"" if request.opaque % 2 else encode_frame(reply)
    return encode_frame(reply) if request.opaque % 2 else reply


def frames(count: int, flag: int = 0) -> list[Command]:
    return [
        Command(
            SEND, ext={"b": "T", "e": str(n % 3)}, body=b"x", opaque=n, flag=flag, serialization=Serialization.ROCKETMQ
        )
        for n in range(count)
    ]


async def talk(p: Any, requests: list[Command], answers: int) -> list[Command]:
    reader, writer = await p.socket()
    decoder, got = FrameDecoder(), []
    try:
        writer.write(b"".join(encode_frame(request) for request in requests))
        while len(got) < answers:
            piece = await reader.read(65536)
            assert piece
            got += decoder.feed(piece)
    finally:
        writer.close()
        await writer.wait_closed()
    return list(got)


@pytest.mark.spec("REM-03", "REM-05")
async def test_encoded_and_command_responses_keep_request_order() -> None:
    async with pair(ready) as p:
        got = await talk(p, frames(40), 40)
        assert [answer.opaque for answer in got] == list(range(40))
        assert [answer.ext["e"] for answer in got] == [str(n % 3) for n in range(40)]


@pytest.mark.spec("REM-06")
async def test_oneway_request_gets_no_response_from_any_handler() -> None:
    async with pair(ready) as p:
        (only,) = await talk(p, [*frames(4, CommandFlag.ONEWAY), Command(1, opaque=7)], 1)
        assert only.opaque == 7


@pytest.mark.spec("REM-15")
async def test_hooks_receive_encoded_response_as_command() -> None:
    class Hook:
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def before(self, remote_address: str, request: Command) -> None:
            request.ext["added"] = "before"
            self.seen.append(request.opaque)

        def after(self, remote_address: str, request: Command, response: Command) -> None:
            self.seen.append((response.opaque, response.ext["added"]))
            response.remark = "after"

    async with pair(ready) as p:
        hook = Hook()
        p.server.add_hook(hook)
        got = await talk(p, frames(3), 3)
        assert [(answer.remark, answer.ext["added"]) for answer in got] == [("after", "before")] * 3
        assert hook.seen == [0, (0, "before"), 1, (1, "before"), 2, (2, "before")]
        (only,) = await talk(p, [*frames(2, CommandFlag.ONEWAY), Command(1, opaque=7)], 1)
        assert only.opaque == 7


@pytest.mark.spec("REM-22")
async def test_handler_that_closes_connection_sends_nothing_more() -> None:
    handled: list[int] = []

    def closing(connection: Connection, request: Command) -> bytes:
        handled.append(request.opaque)
        if request.opaque == 1:
            connection.close("enough")
        return encode_frame(request.reply())

    async with pair(closing) as p:
        reader, writer = await p.socket()
        writer.write(b"".join(encode_frame(request) for request in frames(5)))
        decoder = FrameDecoder()
        async with asyncio.timeout(30):
            got = decoder.feed(await reader.read())
        assert [answer.opaque for answer in got] == [0]
        assert handled[:2] == [0, 1]
        writer.close()
        await writer.wait_closed()
