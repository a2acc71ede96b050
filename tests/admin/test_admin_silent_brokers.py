"""A broker that did not answer is not waited for once more; later, or once it answers anything, it is asked again."""

from __future__ import annotations

import asyncio

import pytest
from scriptedadmin import ScriptedConnection

from saturnmq.admin.clients import Clients
from saturnmq.admin.connection import SILENT_SECONDS, AdminConnection
from saturnmq.admin.listings import runtime_values
from saturnmq.errors import CallTimeout
from saturnmq.protocol.bodies import ConsumerRunningInfo, KVTable
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command

BROKER = "127.0.0.1:1"


class Transport:
    """Answers once `hangs` is false."""

    def __init__(self) -> None:
        self.hangs = True

    async def invoke(self, address: str, command: Command, timeout_ms: int) -> Command:
        if self.hangs:
            await asyncio.Event().wait()
        info = command.code == RequestCode.GET_CONSUMER_RUNNING_INFO
        return command.reply(body=(ConsumerRunningInfo() if info else KVTable()).encode())


class Connected(ScriptedConnection):
    """Routes as the test prescribes, requests over a transport."""

    read = AdminConnection.read  # type: ignore[assignment]

    def __init__(self, transport: Transport) -> None:
        super().__init__({"a": BROKER}, {})
        self.name_servers = ("127.0.0.1:2",)
        self._client = transport  # type: ignore[assignment]


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.loop(real=False)
async def test_silent_broker_is_asked_again_once_it_answers_or_later(answers: bool) -> None:
    transport = Transport()
    connection = Connected(transport)
    clients = Clients(connection)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(clients.running_info("g", "c"), 0.7)  # the deadline of a page
    transport.hangs = False
    with pytest.raises(CallTimeout, match=BROKER):
        await clients.running_info("g", "c")
    if answers:
        await runtime_values(connection, BROKER)
    else:
        await asyncio.sleep(SILENT_SECONDS)  # poll
    assert await clients.running_info("g", "c") == ConsumerRunningInfo()
    assert list(connection.unanswered) == [BROKER], "a command still names it"
