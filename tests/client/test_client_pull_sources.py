"""Which broker of a set a pull goes to: the master first, then as its answers suggest, and another one after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from saturnmq import Client
from saturnmq.client.consumer import assigned_queue
from saturnmq.client.puller.puller import pull_result
from saturnmq.errors import ConnectFailed
from saturnmq.protocol.bodies import BrokerData, MessageQueue, QueueData, TopicRouteData
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import ResponseError
from saturnmq.protocol.frames.command import Command
from waiting import until

Run = Callable[[Callable[[], Any]], Any]
QUEUE = MessageQueue("T", "b0", 0)


def with_slaves(c: Any) -> list[Any]:
    """Make the brokers of the cluster members of the set b0, with ids from 0."""
    brokers = list(c.brokers.values())
    addresses = {number: broker.address for number, broker in enumerate(brokers)}
    c.add("T", TopicRouteData([QueueData("b0", 1, 1, 6)], [BrokerData("c", "b0", addresses)]))
    return brokers


@pytest.mark.parametrize(
    ("fields", "suggested"),
    [({"suggestWhichBrokerId": "0"}, 0), ({"suggestWhichBrokerId": "2"}, 2), ({}, 0)],
)
def test_answer_without_a_usable_suggestion_means_the_master(fields: dict[str, str], suggested: int) -> None:
    ext = {"nextBeginOffset": "1", "minOffset": "0", "maxOffset": "1"} | fields
    result = pull_result(Command(11).reply(19, ext=ext), QUEUE)
    assert result is not None and result.suggested_broker_id == suggested


async def test_first_pull_of_a_queue_goes_to_the_master(cluster: Any) -> None:
    async with cluster(2) as c, Client(name_servers=c.name_servers) as client:
        master, slave = with_slaves(c)
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            await master.wait_for(11)
            master.put("T", 0, b"1")
            assert (await inbox.recv(30)).value == b"1"
            assert not slave.of(11)


async def test_pulls_follow_each_suggestion_and_return(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assigned_queue, "EXCEPTION_DELAY_S", 0.01)
    async with cluster(3) as c, Client(name_servers=c.name_servers) as client:
        brokers = with_slaves(c)
        order: list[int] = []

        def suggesting(number: int, following: int) -> Callable[[Command], Command]:
            def answer(command: Command) -> Command:
                order.append(number)
                reply = brokers[0].on_11(command)
                reply.ext["suggestWhichBrokerId"] = str(following)
                return reply  # type: ignore[no-any-return]

            return answer

        for text in (b"0", b"1", b"2", b"3"):
            brokers[0].put("T", 0, text)
        for number, following in ((0, 1), (1, 2), (2, 0)):
            brokers[number].script[11] = [suggesting(number, following)]
        async with client.consumer("g", start="first", pull_batch=1) as inbox:
            await inbox.subscribe("T")
            assert [(await inbox.recv(30)).value for _ in range(4)] == [b"0", b"1", b"2", b"3"]
            assert order == [0, 1, 2]
            await until(lambda: len(brokers[0].of(11)) >= 3)


async def test_puller_takes_another_broker_of_the_set_after_a_failure(cluster: Any) -> None:
    """The failed call is repeated at the next broker id."""
    async with cluster(2) as c, Client(name_servers=c.name_servers, attempts=2) as client:
        master, slave = with_slaves(c)
        slave.put("T", 0, b"of the slave")
        puller = client.puller()
        (queue,) = await puller.queues("T")
        await master.stop()
        (message,) = (await puller.pull(queue, 0)).messages()
        assert message.body == b"of the slave"
        assert not master.of(11) and len(slave.of(11)) == 1


async def test_puller_without_another_broker_reports_the_failure(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers, attempts=2) as client:
        (master,) = with_slaves(c)
        puller = client.puller()
        (queue,) = await puller.queues("T")
        await master.stop()
        with pytest.raises(ConnectFailed) as caught:
            await puller.pull(queue, 0)
        assert caught.value.broker == "b0"
        assert caught.value.hint and "b0" in caught.value.hint and master.address in caught.value.hint


@pytest.mark.parametrize("call", ["pull", "max_offset"])
@pytest.mark.parametrize(
    ("codes", "requests", "error"),
    [
        ([], 1, None),
        ([ResponseCode.SYSTEM_BUSY], 2, None),
        ([ResponseCode.SYSTEM_BUSY] * 2, 3, None),
        ([ResponseCode.SYSTEM_BUSY] * 3, 3, ResponseCode.SYSTEM_BUSY),
        ([ResponseCode.FLOW_CONTROL] * 3, 3, ResponseCode.FLOW_CONTROL),
        ([ResponseCode.SYSTEM_ERROR], 1, ResponseCode.SYSTEM_ERROR),
        ([ResponseCode.SYSTEM_BUSY, ResponseCode.NO_PERMISSION], 2, ResponseCode.NO_PERMISSION),
    ],
)
async def test_puller_asks_a_busy_broker_again(
    cluster: Any, call: str, codes: list[int], requests: int, error: int | None
) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers, attempts=3) as client:
        (broker,) = with_slaves(c)
        broker.put("T", 0, b"x")
        number = 11 if call == "pull" else 30
        broker.script[number] = [lambda command, code=code: command.reply(code, "no") for code in codes]
        puller = client.puller()
        (queue,) = await puller.queues("T")
        asked = puller.pull(queue, 0) if call == "pull" else puller.max_offset(queue)
        if error is None:
            await asked
        else:
            with pytest.raises(ResponseError) as caught:
                await asked
            assert caught.value.code == error
        assert len(broker.of(number)) == requests


async def test_puller_asks_no_busy_broker_again_when_its_time_is_over(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers, attempts=100) as client:
        (broker,) = with_slaves(c)
        puller = client.puller()
        (queue,) = await puller.queues("T")
        broker.script[11] = lambda command: command.reply(ResponseCode.SYSTEM_BUSY, "no")
        loop = asyncio.get_running_loop()
        begin = loop.time()
        with pytest.raises(ResponseError) as caught:
            await puller.pull(queue, 0, timeout=2.0)
        assert caught.value.code == ResponseCode.SYSTEM_BUSY
        assert 1.0 < loop.time() - begin < 4.0
        assert 3 < len(broker.of(11)) < 20, "pauses grow"
