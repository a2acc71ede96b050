"""CVE-2019-17572: a topic named `../../x`, created by the first send, made folders outside the store.

Requirements: SEC-01, SEC-23.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from wire import Wire, wire

from saturnmq.protocol.bodies import (
    ConsumerData,
    DataVersion,
    HeartbeatData,
    RegisterBrokerBody,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigTable,
)
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.names import group_problem, topic_problem

EVIL = "../../evil"
NAMES = [EVIL, "/etc/evil", "..", "a/b", "a\\b", "a\0b", "evil\n", "ｅｖｉｌ", ".", " evil", "a" * 128]


def folders(top: Path) -> set[Path]:
    return {path for path in top.rglob("*") if path.is_dir()}


def evil_paths(top: Path) -> list[Path]:
    return [path for path in top.rglob("*") if "evil" in path.name]


async def requests(w: Wire, name: str) -> list[Command]:
    """The requests of a client that names a topic, in all ways in which a broker takes one."""
    subscription = SubscriptionData(name, "*", sub_version=1)
    heartbeat = HeartbeatData("c1", [], [ConsumerData("G", subscription_data_set=[subscription])])
    v1 = {"producerGroup": "p", "topic": name, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": 0, "sysFlag": 0,
          "bornTimestamp": 1, "flag": 0, "properties": "", "reconsumeTimes": 0, "unitMode": False, "batch": False}  # fmt: skip
    config = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6,
              "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False}  # fmt: skip
    await w.call(RequestCode.HEART_BEAT, heartbeat.encode())
    return [
        await w.send(name),
        await w.call(RequestCode.SEND_MESSAGE, b"x", **v1),
        await w.call(RequestCode.UPDATE_AND_CREATE_TOPIC, **config),
        await w.pull(name, suspend_ms=0),
    ]


@pytest.mark.spec("SEC-01")
@pytest.mark.parametrize("name", NAMES)
async def test_no_request_makes_a_folder_for_such_a_name(tmp_path: Path, name: str) -> None:
    async with wire(data=tmp_path / "data") as w:
        assert (await w.send("honest")).code == 0
        before = folders(tmp_path)
        for answer in await requests(w, name):
            assert answer.code != 0, "refused"
        assert folders(tmp_path) == before
        assert name not in w.broker.topics.table
        assert (await w.send("honest")).code == 0, "others are served"
    assert not evil_paths(tmp_path)


@pytest.mark.spec("SEC-01")
@pytest.mark.parametrize("name", [*NAMES[:-1], "a" * 263])  # a retry topic of a Java broker has up to 262 characters
async def test_name_server_refuses_to_register_such_a_topic(tmp_path: Path, name: str) -> None:
    async with wire(data=tmp_path / "data") as w:
        table = TopicConfigTable({name: TopicConfig(name, 4, 4), "good": TopicConfig("good", 4, 4)}, DataVersion(1, 1))
        fields = {
            "brokerName": "b",
            "brokerAddr": "127.0.0.1:1",
            "clusterName": "c",
            "haServerAddr": "",
            "brokerId": 0,
        }
        ext = {key: str(value) for key, value in fields.items()}
        command = Command(RequestCode.REGISTER_BROKER, ext=ext, body=RegisterBrokerBody(table, []).encode())
        await w.client.invoke(w.server.name_servers, command, 5000)
        route = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": name})
        assert (await w.client.invoke(w.server.name_servers, route, 5000)).code != 0, "no client learns it"
    assert not evil_paths(tmp_path)


@pytest.mark.spec("SEC-01")
async def test_groups_with_such_a_name_are_refused(tmp_path: Path) -> None:
    async with wire(data=tmp_path / "data") as w:
        await w.send("T")
        group = SubscriptionGroupConfig(EVIL)
        assert (await w.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group.encode())).code != 0
        assert (await w.pull("T", group=EVIL)).code != 0
        await w.heartbeat(EVIL, "T")
        assert EVIL not in w.broker.groups.table
        assert f"%RETRY%{EVIL}" not in w.broker.topics.table
        offset = {"consumerGroup": EVIL, "topic": "T", "queueId": 0, "commitOffset": 1}
        await w.call(RequestCode.UPDATE_CONSUMER_OFFSET, **offset)
        assert EVIL not in json.dumps(w.broker.offsets.encode().decode())
    assert not evil_paths(tmp_path)


@pytest.mark.spec("SEC-01")
async def test_such_a_name_in_a_state_file_makes_no_folder(tmp_path: Path) -> None:
    config = tmp_path / "data" / "store" / "config"
    config.mkdir(parents=True)
    table = TopicConfigTable({EVIL: TopicConfig(EVIL, 4, 4), "good": TopicConfig("good", 4, 4)}, DataVersion(1, 1))
    (config / "topics.json").write_bytes(table.encode())

    async with wire(data=tmp_path / "data") as w:
        assert (await w.send("good")).code == 0
        assert (await w.send(EVIL)).code != 0
        assert EVIL not in w.broker.topics.table
    assert not evil_paths(tmp_path)


@pytest.mark.spec("SEC-01")
def test_command_line_refuses_such_a_topic(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "saturnmq.cli", "store", "show", "--store", str(tmp_path), "--topic", EVIL, "--queue", "0",
               "--queue-offset", "0"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert not evil_paths(tmp_path)


@pytest.mark.spec("SEC-01")
@pytest.mark.parametrize(("problem", "limit"), [(topic_problem, 127), (group_problem, 255)])
def test_length_limits_of_names(problem: Callable[[str], str | None], limit: int) -> None:
    assert problem("a" * limit) is None
    assert problem("a" * (limit + 1)) is not None
    assert problem("%RETRY%a|b_c-9") is None
