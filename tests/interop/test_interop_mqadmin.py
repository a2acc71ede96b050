"""Apache's `mqadmin` prints the same for our servers as for Apache's."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import apache
import pytest
import saturn
from javatools import java_command, java_environment, mqadmin, run_client
from peers import Peer
from prepared import GROUP, SETTINGS, TOPIC, prepare
from printed import comparable
from processes import ServerProcess

import saturnmq

Both = Callable[[list[str]], tuple[str, str]]


@dataclass(frozen=True)
class Subject:
    """A server, and the placeholder values of its commands."""

    peer: Peer
    words: dict[str, str]


HELD = "Held"
HELD_GROUP = "held-group"
HELD_COUNT = 4
# {placeholders} are filled in: the address of the broker and the results of prepare().
# The second member: whether the order of the rows is undefined (Java hash tables).
READING: dict[str, tuple[list[str], bool]] = {
    "clusterList": (["clusterList"], False),
    "topicRoute": (["topicRoute", "-t", TOPIC], False),
    "topicStatus": (["topicStatus", "-t", TOPIC], False),
    "consumerProgress": (["consumerProgress"], True),
    "consumerProgress of a group": (["consumerProgress", "-g", GROUP], True),
    "topicList": (["topicList"], True),
    "topicClusterList": (["topicClusterList", "-t", TOPIC], False),
    "queryMsgByKey": (["queryMsgByKey", "-t", TOPIC, "-k", "key-3"], True),
    "queryMsgById": (["queryMsgById", "-i", "{offset_id}"], False),
    "queryMsgByUniqueKey": (["queryMsgByUniqueKey", "-t", TOPIC, "-i", "{unique_id}"], False),
    "queryMsgByOffset": (["queryMsgByOffset", "-t", TOPIC, "-b", "broker-a", "-i", "1", "-o", "2"], False),
    "queryMsgTraceById": (["queryMsgTraceById", "-i", "{traced_id}"], True),
    "printMsg": (["printMsg", "-t", TOPIC], True),
    "queryCq": (["queryCq", "-t", TOPIC, "-q", "1", "-i", "3", "-c", "2", "-g", GROUP], False),
    "queryCq of an unknown queue": (["queryCq", "-t", TOPIC, "-q", "77", "-i", "0"], False),
    # Rows without lag name the queue of a traced message, which its client chooses at random.
    "brokerConsumeStats": (["brokerConsumeStats", "-b", "{broker}", "-l", "1"], True),
    "getConsumerConfig": (["getConsumerConfig", "-g", GROUP], False),
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
    "cleanExpiredCQ": ["cleanExpiredCQ", "-b", "{broker}"],
    "cleanUnusedTopic": ["cleanUnusedTopic", "-b", "{broker}"],
    "deleteSubGroup": ["deleteSubGroup", "-b", "{broker}", "-g", "by-cluster", "-r", "true"],
    "deleteTopic": ["deleteTopic", "-c", "DefaultCluster", "-t", "ToDelete"],
}


@pytest.fixture(scope="module")
def servers(home: Path) -> Iterator[list[Subject]]:
    """A fresh pair of servers: topics of other tests would appear in the lists."""
    with apache.ApacheCluster(settings=SETTINGS) as theirs, saturn.SaturnCluster(settings=SETTINGS) as ours:
        with ThreadPoolExecutor(2) as pool:
            words = list(pool.map(prepare, (theirs, ours), (home, home)))
        yield [Subject(theirs, words[0]), Subject(ours, words[1])]


@pytest.fixture(scope="module")
def read(both: Both) -> dict[str, tuple[str, str]]:
    """Run all reading commands concurrently: each waits three seconds for its own client to shut down."""
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(both, [command for command, _ in READING.values()])
        return dict(zip(READING, answers, strict=True))


@pytest.fixture(scope="module")
def both(servers: list[Subject], home: Path) -> Both:
    """Run one command against Apache's server and ours concurrently."""

    def go(command: list[str]) -> tuple[str, str]:
        def one(subject: Subject) -> str:
            words = [word.format(**subject.words) for word in command]
            return mqadmin(subject.peer.name_servers, *words, home=home)

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


def test_topic_lists_are_equal_before_any_write(both: Both, read: dict[str, tuple[str, str]]) -> None:
    theirs, ours = both(["topicList"])
    assert comparable(ours, rows_sorted=True) == comparable(theirs, rows_sorted=True)


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


@pytest.mark.spec("OPS-02", "SEC-07")
def test_broker_is_drained_with_update_broker_config(both: Both) -> None:
    def permission(value: int) -> None:
        theirs, ours = both(["updateBrokerConfig", "-b", "{broker}", "-k", "brokerPermission", "-v", str(value)])
        assert comparable(ours) == comparable(theirs) and "success" in ours
        _, config = both(["getBrokerConfig", "-b", "{broker}"])
        assert re.search(rf"^brokerPermission +=+ +{value}$", config, re.MULTILINE)

    permission(4)
    try:
        for printed in both(["topicRoute", "-t", TOPIC]):
            assert '"perm":4' in printed
    finally:
        permission(6)
    for printed in both(["topicRoute", "-t", TOPIC]):
        assert '"perm":6' in printed


# Values that name a machine, a folder or a port, and those in which the two brokers of these tests are configured differently.
OWN_VALUES = {
    "brokerIP1", "brokerIP2", "haListenPort", "listenPort", "namesrvAddr", "rocketmqHome", "storePathCommitLog",
    "storePathRootDir", "diskMaxUsedSpaceRatio", "enablePropertyFilter", "mappedFileSizeConsumeQueueExt", *apache.SMALL_STORE,
}  # fmt: skip


@pytest.mark.spec("CFG-06", "CFG-08")
def test_broker_config_has_every_key_of_apache_with_its_value(both: Both) -> None:
    theirs, ours = (
        dict(re.findall(r"^(\S+) += +(.*?)$", printed, re.MULTILINE))
        for printed in both(["getBrokerConfig", "-b", "{broker}"])
    )
    assert len(theirs) > 150
    assert set(theirs) - set(ours) == set()
    differing = {name: (value, ours[name]) for name, value in theirs.items() if value != ours[name]}
    assert {name: values for name, values in differing.items() if name not in OWN_VALUES} == {}


def test_sent_message_is_found_by_key_with_its_position(both: Both) -> None:
    both(["sendMessage", "-t", TOPIC, "-p", "hello", "-k", "needle", "-b", "broker-a", "-i", "3"])
    theirs, ours = both(["queryMsgByKey", "-t", TOPIC, "-k", "needle"])
    assert comparable(ours) == comparable(theirs)
    assert "ID" in comparable(ours)


def numbers(progress: str) -> list[tuple[str, ...]]:
    """Queue id, broker offset, consumer offset and difference of each row of TOPIC in `consumerProgress -g`, by queue."""
    row = re.compile(rf"^{TOPIC} +broker-a +(\d+) +(\d+) +(\d+) +(\d+)", re.MULTILINE)
    return sorted(found.groups() for found in row.finditer(progress))


@pytest.mark.spec("OF-07")
def test_cloned_group_has_the_offsets_of_its_source(servers: list[Subject], both: Both) -> None:
    theirs, ours = both(["cloneGroupOffset", "-s", GROUP, "-d", "cloned-group", "-t", TOPIC])
    assert comparable(ours) == comparable(theirs)
    assert "clone group offset success" in ours
    for subject in servers:
        first, cloned = (asyncio.run(committed(subject.peer, group)) for group in (GROUP, "cloned-group"))
        assert cloned == first
        assert sorted(offset or 0 for offset in cloned.values()) == [0, 0, 5, 5]


async def committed(peer: Peer, group: str) -> dict[int, int | None]:
    """Queue id of TOPIC -> committed offset of the group, read by our own client."""
    async with asyncio.timeout(20), saturnmq.Client(name_servers=peer.name_servers) as client:
        puller = client.puller()
        return {queue.queue_id: await puller.committed(group, queue) for queue in await puller.queues(TOPIC)}


@pytest.mark.spec("OF-06")
def test_reset_by_time_of_an_offline_group_moves_its_offsets(both: Both) -> None:
    theirs, ours = both(["resetOffsetByTime", "-g", GROUP, "-t", TOPIC, "-s", "1"])
    assert comparable(ours, rows_sorted=True) == comparable(theirs, rows_sorted=True)
    theirs, ours = both(["consumerProgress", "-g", GROUP])
    assert comparable(ours, rows_sorted=True) == comparable(theirs, rows_sorted=True)
    assert {row[2] for row in numbers(ours)} == {"0"}  # everything is to be consumed again


@pytest.fixture(scope="module")
def holders(servers: list[Subject], home: Path) -> Iterator[list[ServerProcess]]:
    """A member of HELD_GROUP on each server that has consumed HELD_COUNT messages and stays."""
    with ExitStack() as stack:
        found = []
        for subject in servers:
            rows = run_client("send", home=home, ns=subject.peer.name_servers, topic=HELD, count=HELD_COUNT).results
            subject.words["held_id"] = rows[0]["offsetMsgId"]
            words = ["hold", f"ns={subject.peer.name_servers}", f"topic={HELD}", f"group={HELD_GROUP}"]
            command = java_command("interop.Interop", words, home=home)
            holder = ServerProcess(command, name="holder", env=java_environment(home), cwd=home, stdin=True)
            stack.callback(holder.stop)
            found.append(holder)
        for subject, holder in zip(servers, found, strict=True):
            subject.words["client"] = holder.wait_for_line(r'"client":"([^"]+)"', 30).group(1)
            wait_received(holder, HELD_COUNT)
        yield found


def wait_received(holder: ServerProcess, count: int, timeout_s: float = 40.0) -> None:
    """Wait until the holder has reported `count` messages more."""
    after = getattr(holder, "read_to", 0)
    for _ in range(count):
        holder.wait_for_line(r'"received":"hold"', timeout_s, after=after)
        after = next(at for at in range(after, len(holder.lines)) if '"received":"hold"' in holder.lines[at]) + 1
    holder.read_to = after  # type: ignore[attr-defined]


@pytest.mark.spec("CA-15")
def test_status_of_an_online_group_is_equal(holders: list[ServerProcess], both: Both) -> None:
    theirs, ours = both(["consumerStatus", "-g", HELD_GROUP])
    assert comparable(ours) == comparable(theirs)
    assert "holder" in ours
    theirs, ours = both(["consumerConnection", "-g", HELD_GROUP])
    assert comparable(ours, rows_sorted=True) == comparable(theirs, rows_sorted=True)
    assert HELD in ours


@pytest.mark.spec("CA-15")
def test_message_is_consumed_directly_by_a_group_member(holders: list[ServerProcess], both: Both) -> None:
    theirs, ours = both(["queryMsgById", "-i", "{held_id}", "-g", HELD_GROUP, "-d", "{client}"])
    assert comparable(ours) == comparable(theirs)
    assert "CR_SUCCESS" in ours
    for holder in holders:
        wait_received(holder, 1)


@pytest.mark.spec("OF-06")
def test_reset_by_time_of_an_online_group_redelivers(holders: list[ServerProcess], both: Both) -> None:
    theirs, ours = both(["resetOffsetByTime", "-g", HELD_GROUP, "-t", HELD, "-s", "1"])
    assert comparable(ours, rows_sorted=True) == comparable(theirs, rows_sorted=True)
    for holder in holders:  # the client pauses for ten seconds first
        wait_received(holder, HELD_COUNT)
