"""A broker that hangs: a command shows what the others have within seconds, names it, and exits with a failure."""

from __future__ import annotations

import argparse
import asyncio

import pytest
from admincluster import AdminCluster, admin_cluster, silent_server

from saturnmq.admin.connection import LISTING_SECONDS
from saturnmq.cli.mqadmin.options import parse, take_extensions
from saturnmq.cli.mqadmin.run import _run
from saturnmq.cli.mqadmin.table import find
from saturnmq.cli.output import EXIT_FAILED, fail
from saturnmq.protocol.bodies import MessageQueue, TopicConfig
from saturnmq.protocol.errors import SaturnError

TOPIC, GROUP = "orders", "billing"
CLUSTER = ("-c", "DefaultCluster")
# What each prints of the broker that answers; an error ends those that find nothing there.
LISTINGS: dict[tuple[str, ...], str] = {
    ("clusterList",): "broker-a",
    ("brokerStatus", *CLUSTER): "putTps",
    ("getBrokerConfig", *CLUSTER): "brokerName",
    ("topicStatus", "-t", TOPIC): "broker-a",
    ("topicList", "-c"): TOPIC,
    ("statsAll", "-t", TOPIC): GROUP,
    ("consumerProgress", "-g", GROUP): "broker-a",
    ("consumerProgress", "-g", GROUP, "-s", "true"): "broker-a",
    ("consumerProgress",): GROUP,
    ("getConsumerConfig", "-g", GROUP): "broker-a",
    ("consumerConnection", "-g", GROUP): "",
    ("producerConnection", "-g", "producers", "-t", TOPIC): "",
    ("queryMsgByKey", "-t", TOPIC, "-k", "nothing"): "",
}


async def prepared(c: AdminCluster, silent: str) -> None:
    """A topic and a group with an offset on both brokers, as the NameServer knows them."""
    topics = (TOPIC, f"%RETRY%{GROUP}")
    for topic in topics:
        await c.admin.topics.update(c.server.broker_address, TopicConfig(topic, 1, 1))
    c.server.broker.groups.find(GROUP, "127.0.0.1:1")
    queue = MessageQueue(TOPIC, "broker-a", 0)
    await (await c.admin.connection.messaging()).puller().commit(GROUP, queue, 0)
    await c.register(silent, "a-hanging", topics=(*topics, "only-there"))


async def exit_code(words: tuple[str, ...], servers: str) -> int:
    """Run a command on this event loop."""
    command = find(words[0])
    assert command is not None
    try:
        return await _run(command, parse([*words[1:], "-n", servers], command.options), take_extensions([])[0])
    except SaturnError as error:
        return fail(error, argparse.Namespace(debug=False, json=False), EXIT_FAILED)


@pytest.mark.spec("ADM-05")
@pytest.mark.parametrize("words", LISTINGS, ids=" ".join)
async def test_listing_shows_the_others_and_names_the_broker(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    async with admin_cluster() as c, silent_server() as silent:
        await prepared(c, silent)
        begin = asyncio.get_running_loop().time()
        code = await exit_code(words, c.server.name_servers)
        took = asyncio.get_running_loop().time() - begin
        printed = capsys.readouterr()
        assert code == 1, printed
        if words[0] != "queryMsgByKey":  # a search has the deadline of a request
            assert took < 2 * LISTING_SECONDS
        assert LISTINGS[words] in printed.out
        named = [line for line in printed.err.splitlines() if silent in line and "error: " in line]
        assert len(named) == 1, printed.err
