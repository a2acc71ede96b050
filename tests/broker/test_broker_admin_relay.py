"""Limits on calls that a broker relays to its clients for an administrator."""

from __future__ import annotations

import asyncio

import pytest
from wire import run, wire

from saturnmq.net import Connection, NetSettings, RemotingClient
from saturnmq.net.calls import Permits
from saturnmq.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command


@pytest.mark.spec("REM-20")
@pytest.mark.parametrize(
    "code", [RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS]
)
def test_relayed_calls_use_server_async_permits(code: int) -> None:
    async def work() -> None:
        async with wire() as w:
            permits = w.broker._server.async_permits = Permits(2, "async")
            asked = 0
            may_answer = asyncio.Event()

            async def held(connection: Connection, request: Command) -> Command:
                nonlocal asked
                if request.is_oneway:  # member-change notifications
                    return request.reply(0)
                asked += 1
                await may_answer.wait()
                return request.reply(0)

            member = RemotingClient(settings=NetSettings(), handler=held)
            data = ConsumerData("G", subscription_data_set=[SubscriptionData("T", "*", sub_version=1)])
            heartbeat = Command(RequestCode.HEART_BEAT, body=HeartbeatData("c1", [], [data]).encode())
            await member.invoke(w.server.broker_address, heartbeat, 10_000)
            who = {"consumerGroup": "G", "clientId": "c1", "group": "G", "topic": "T", "clientAddr": "c1"}
            calls = [asyncio.create_task(w.call(code, **who)) for _ in range(3)]
            while len(permits._waiting) < 1 or asked < 2:
                await asyncio.sleep(0)
            assert (asked, permits.free) == (2, 0)
            may_answer.set()
            assert [answer.code for answer in await asyncio.gather(*calls)] == [0, 0, 0]
            assert (asked, permits.free) == (3, 2)
            await member.close()

    run(work)
