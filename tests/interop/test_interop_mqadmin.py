"""The original's `mqadmin` prints against our servers what it prints against its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apache
import pytest
import saturn
from javatools import mqadmin, run_client
from peers import Peer
from printed import comparable

Both = Callable[[list[str]], tuple[str, str]]
TOPIC = "Printed"
GROUP = "printed-group"
# {broker} is filled in. The second member: the order of the rows means nothing (hash tables of the original).
READING: dict[str, tuple[list[str], bool]] = {
    "clusterList": (["clusterList"], False),
    "topicRoute": (["topicRoute", "-t", TOPIC], False),
    "topicStatus": (["topicStatus", "-t", TOPIC], False),
    "consumerProgress": (["consumerProgress"], True),
    "consumerProgress of a group": (["consumerProgress", "-g", GROUP], True),
    "topicList": (["topicList"], True),
    "topicClusterList": (["topicClusterList", "-t", TOPIC], False),
    "queryMsgByKey": (["queryMsgByKey", "-t", TOPIC, "-k", "key-3"], True),
    "topicRoute of an unknown topic": (["topicRoute", "-t", "Nowhere"], False),
    "topicStatus of an unknown topic": (["topicStatus", "-t", "Nowhere"], False),
}
WRITING: dict[str, list[str]] = {
    "updateTopic in a cluster": ["updateTopic", "-c", "DefaultCluster", "-t", "ByCluster"],
    "updateTopic on a broker": ["updateTopic", "-b", "{broker}", "-t", "ByBroker", "-r", "2", "-w", "3", "-p", "4"],
    "sendMessage": ["sendMessage", "-t", TOPIC, "-p", "hello", "-c", "TagS", "-k", "sent", "-b", "broker-a", "-i", "2"],
    "updateSubGroup": ["updateSubGroup", "-c", "DefaultCluster", "-g", "by-cluster"],
    "updateKvConfig": ["updateKvConfig", "-s", "space", "-k", "key", "-v", "value"],
    "deleteKvConfig": ["deleteKvConfig", "-s", "space", "-k", "key"],
    "updateOrderConf": ["updateOrderConf", "-t", TOPIC, "-m", "put", "-v", "broker-a:4"],
    "wipeWritePerm": ["wipeWritePerm", "-b", "broker-a"],
    "addWritePerm": ["addWritePerm", "-b", "broker-a"],
    "deleteTopic": ["deleteTopic", "-c", "DefaultCluster", "-t", "ToDelete"],
}


def prepare(peer: Peer, home: Path) -> None:
    """The same content on a peer: a topic of four queues with messages in two, and a group that read them all."""
    servers = peer.name_servers
    run_client("send", home=home, ns=servers, topic=TOPIC, count=10, mode="selector")
    run_client("send", home=home, ns=servers, topic="ToDelete", count=1)
    run_client("consume", home=home, ns=servers, topic=TOPIC, group=GROUP, count=10)


@pytest.fixture(scope="module")
def servers(home: Path) -> Iterator[tuple[Peer, Peer]]:
    """A fresh pair: the other tests' topics would show in the lists."""
    with apache.ApacheCluster() as theirs, saturn.SaturnCluster() as ours:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(prepare, (theirs, ours), (home, home)))
        yield theirs, ours


@pytest.fixture(scope="module")
def read(both: Both) -> dict[str, tuple[str, str]]:
    """All reading commands at once: each waits three seconds for its own client to shut down."""
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(both, [command for command, _ in READING.values()])
        return dict(zip(READING, answers, strict=True))


@pytest.fixture(scope="module")
def both(servers: tuple[Peer, Peer], home: Path) -> Both:
    """Runs one command against the original and against ours, at the same time."""

    def go(command: list[str]) -> tuple[str, str]:
        def one(peer: Peer) -> str:
            words = [word.format(broker=peer.broker_address) for word in command]
            return mqadmin(peer.name_servers, *words, home=home)

        with ThreadPoolExecutor(2) as pool:
            theirs, ours = pool.map(one, servers)
        return theirs, ours

    return go


@pytest.mark.parametrize("name", READING)
@pytest.mark.spec("NS-22", "NS-28")
def test_reading_commands_print_the_same(read: dict[str, tuple[str, str]], name: str) -> None:
    rows_sorted = READING[name][1]
    theirs, ours = read[name]
    assert comparable(ours, rows_sorted=rows_sorted) == comparable(theirs, rows_sorted=rows_sorted)


@pytest.mark.parametrize("name", WRITING)
def test_writing_commands_print_the_same(both: Both, name: str) -> None:
    theirs, ours = both(WRITING[name])
    assert comparable(ours) == comparable(theirs)
    assert "success" in ours or "OK" in ours


def test_created_topic_has_the_same_route(both: Both) -> None:
    both(["updateTopic", "-b", "{broker}", "-t", "Routed", "-r", "2", "-w", "3", "-p", "4"])
    theirs, ours = both(["topicRoute", "-t", "Routed"])
    assert comparable(ours) == comparable(theirs)
    assert '"writeQueueNums":3' in ours
    assert '"perm":4' in ours


def test_sent_message_is_found_by_key_with_its_place(both: Both) -> None:
    both(["sendMessage", "-t", TOPIC, "-p", "hello", "-k", "needle", "-b", "broker-a", "-i", "3"])
    theirs, ours = both(["queryMsgByKey", "-t", TOPIC, "-k", "needle"])
    assert comparable(ours) == comparable(theirs)
    assert "ID" in comparable(ours)
