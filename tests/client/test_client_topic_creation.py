"""Creation of a topic by a client: names, what each master is sent, attempts, and what counts as success."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from saturnmq import Client
from saturnmq.errors import MessageRefused, RouteNotFound
from saturnmq.protocol.codes import FORBIDDEN_SEND_TOPICS, ResponseCode
from saturnmq.protocol.errors import ResponseError
from saturnmq.protocol.frames.command import Command

Run = Callable[[Callable[[], Any]], Any]


def refusing(code: int) -> Callable[[Command], Command]:
    return lambda command: command.reply(code, "no")


@pytest.mark.spec("PR-33")
async def test_topic_is_created_at_each_master_of_the_default_topic(cluster: Any) -> None:
    async with cluster(2) as c, Client(name_servers=c.name_servers) as client:
        c.add("TBW102")
        c.add("New")
        assert await client.create_topic("New", queues=3) == ["b0", "b1"]
        for broker in c.brokers.values():
            (request,) = broker.of(17)
            assert request.ext == {
                "topic": "New", "defaultTopic": "TBW102", "readQueueNums": "3", "writeQueueNums": "3", "perm": "6",
                "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
            }  # fmt: skip


@pytest.mark.parametrize("topic", sorted(FORBIDDEN_SEND_TOPICS))
async def test_topic_that_clients_must_not_send_to_may_be_created(cluster: Any, topic: str) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        c.add("TBW102")
        assert await client.create_topic(topic, queues=1) == ["b0"]


@pytest.mark.parametrize("topic", ["", " ", "a b", "gr\u00fcn", "x" * 128])
async def test_invalid_name_is_refused_before_any_request(cluster: Any, topic: str) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        c.add("TBW102")
        with pytest.raises(MessageRefused, match="topic"):
            await client.create_topic(topic, queues=1)
        assert not c.broker.of(17) and not c.ns[0].of(105)


@pytest.mark.parametrize(
    ("code", "requests"), [(ResponseCode.SYSTEM_BUSY, 5), (ResponseCode.MESSAGE_ILLEGAL, 1)], ids=["passes", "stays"]
)
async def test_refused_creation_is_repeated_if_the_refusal_may_pass(cluster: Any, code: int, requests: int) -> None:
    async with cluster(2) as c, Client(name_servers=c.name_servers) as client:
        c.add("TBW102")
        c.broker.script[17] = refusing(code)
        assert await client.create_topic("New", queues=1) == ["b1"], "one of two is enough"
        assert len(c.broker.of(17)) == requests
        c.brokers["b1"].script[17] = refusing(code)
        with pytest.raises(ResponseError) as caught:
            await client.create_topic("New", queues=1)
        assert caught.value.code == code


async def test_creation_without_a_default_topic_is_an_error(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        with pytest.raises(RouteNotFound, match="TBW102"):
            await client.create_topic("New", queues=1)
        assert not c.broker.of(17)
