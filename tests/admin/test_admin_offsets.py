"""Resets of offsets by the administration library: online, offline, and what decides between them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scriptedadmin import ScriptedConnection

from saturnmq.admin.offsets import TO_THE_END, Offsets
from saturnmq.protocol.bodies import Connection, ConsumerConnection, MessageQueue, ResetOffsetBody
from saturnmq.protocol.codes import Language, RequestCode, ResponseCode
from saturnmq.protocol.errors import ResponseError, response_error
from saturnmq.protocol.offsets import QueueOffset

BROKERS = {"a": "127.0.0.1:1", "b": "127.0.0.1:2"}
RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET


@pytest.mark.spec("C-41", "ADM-26")
def test_brokers_are_asked_as_a_cpp_client_only_on_demand() -> None:
    async def work() -> None:
        def reset(address: str, ext: Any) -> ResetOffsetBody:
            assert (ext["timestamp"], ext["isForce"]) == ("-1", "false")
            return ResetOffsetBody({MessageQueue("t", address[-1], 0): QueueOffset(4)})

        connection = ScriptedConnection(BROKERS, {RESET: reset})
        for cpp, language in ((False, Language.PYTHON), (True, Language.CPP)):
            connection.languages.clear()
            found = await Offsets(connection).reset("g", "t", TO_THE_END, force=False, cpp=cpp)
            assert isinstance(found, dict) and len(found) == 2
            assert connection.languages == [language, language]

    asyncio.run(work())


@pytest.mark.spec("ADM-26")
def test_a_refusal_is_reported_while_clients_are_connected() -> None:
    """Offsets are not committed behind the back of clients, which would commit over them."""

    async def work() -> None:
        refusal = response_error(ResponseCode.SYSTEM_ERROR, "THe consumer group <g> not exist")
        clients = ConsumerConnection([Connection("c", "127.0.0.1:9", "JAVA", 407)])
        script = {RESET: lambda *_: refusal, RequestCode.GET_CONSUMER_CONNECTION_LIST: lambda *_: clients}
        connection = ScriptedConnection(BROKERS, script)
        with pytest.raises(ResponseError, match="not exist"):
            await Offsets(connection).reset("g", "t", TO_THE_END)
        assert RequestCode.UPDATE_CONSUMER_OFFSET not in {code for _, code in connection.asked}

    asyncio.run(work())
