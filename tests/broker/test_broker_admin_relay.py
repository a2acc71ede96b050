"""Limits on calls that a broker relays to its clients for an administrator."""

from __future__ import annotations

import asyncio

import pytest
from wire import wire

from saturnmq.broker.requests import relay
from saturnmq.net import Connection, Later, NetSettings, RemotingClient
from saturnmq.net.calls import WAITING_FACTOR, Permits
from saturnmq.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command


@pytest.mark.spec("REM-20")
@pytest.mark.parametrize(
    "code", [RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS]
)
async def test_relayed_calls_use_server_async_permits(code: int) -> None:
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

        member = RemotingClient(settings=NetSettings(), handler=lambda *request: Later(held(*request)))
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


@pytest.mark.spec("LIM-10")
async def test_relays_beyond_the_waiting_limit_are_rejected_at_once() -> None:
    async with wire() as w:
        permits = w.broker._server.async_permits = Permits(2, "async")
        held, may_answer = 0, asyncio.Event()

        async def silent(connection: Connection, request: Command) -> Command:
            nonlocal held
            held += not request.is_oneway
            await may_answer.wait()
            return request.reply(0)

        members = [
            RemotingClient(settings=NetSettings(), handler=lambda *request: Later(silent(*request))) for _ in range(2)
        ]
        data = ConsumerData("G", subscription_data_set=[SubscriptionData("T", "*", sub_version=1)])
        for number, member in enumerate(members):
            heartbeat = Command(RequestCode.HEART_BEAT, body=HeartbeatData(f"c{number}", [], [data]).encode())
            await member.invoke(w.server.broker_address, heartbeat, 10_000)
        code, most = RequestCode.GET_CONSUMER_RUNNING_INFO, 2 + 2 * WAITING_FACTOR
        calls = [
            asyncio.create_task(w.call(code, consumerGroup="G", clientId=f"c{number % 2}")) for number in range(most)
        ]
        while len(permits._waiting) < 2 * WAITING_FACTOR or held < 2:
            await asyncio.sleep(0)
        refused = await w.call(code, consumerGroup="G", clientId="c0")
        assert refused.code == 1 and "too many requests" in (refused.remark or "")
        may_answer.set()
        assert {answer.code for answer in await asyncio.gather(*calls)} == {0}
        for member in members:
            await member.close()


@pytest.mark.spec("LIM-10")
@pytest.mark.parametrize("limit", ["STATUS_BYTES_MAX", "STATUS_SECONDS_MAX"])
async def test_status_of_a_group_ends_at_its_limits(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members that fill the limit with their answers, or use up the time, end the request."""
    asked: list[str] = []

    async def answer(connection: Connection, request: Command) -> Command:
        if not request.is_oneway:
            asked.append(request.ext["group"])
        return request.reply(0, body=b'{"messageQueueTable":{}}' + b" " * 1000)

    async with wire() as w:
        members = [
            RemotingClient(settings=NetSettings(), handler=lambda *request: Later(answer(*request))) for _ in range(4)
        ]
        data = ConsumerData("G", subscription_data_set=[SubscriptionData("T", "*", sub_version=1)])
        for number, member in enumerate(members):
            heartbeat = Command(RequestCode.HEART_BEAT, body=HeartbeatData(f"c{number}", [], [data]).encode())
            await member.invoke(w.server.broker_address, heartbeat, 10_000)
        code, who = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"group": "G", "topic": "T"}
        assert (await w.call(code, **who)).code == 0 and len(asked) == 4
        asked.clear()
        monkeypatch.setattr(relay, limit, {"STATUS_BYTES_MAX": 2000, "STATUS_SECONDS_MAX": 0.0}[limit])
        assert (await w.call(code, **who)).code == 0
        assert len(asked) == {"STATUS_BYTES_MAX": 2, "STATUS_SECONDS_MAX": 0}[limit]
        for member in members:
            await member.close()
