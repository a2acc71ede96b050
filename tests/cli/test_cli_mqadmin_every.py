"""What holds for every admin command: one document with --json, and no change with --dry-run."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from admincli import AdminCli

import saturnmq.sync
from saturnmq.broker import BrokerSettings
from saturnmq.broker.requests.table import TABLE
from saturnmq.broker.requests.table_row import Effect
from saturnmq.cli.mqadmin.table import COMMANDS
from saturnmq.testing import SyncEmbeddedBroker

ADMIN, SECRET = "rocketmqadmin", "admin-secret-1"
ACCOUNTS = (
    "accounts:\n- accessKey: {0}\n  secretKey: {1}\n  admin: true\n- accessKey: account-1\n  secretKey: secret-key-1\n"
)
TOPIC, GROUP = "every-topic", "every-group"
ENDLESS = {"startMonitoring"}  # its reports are log lines: test_admin_monitoring
CLUSTER = ("-c", "DefaultCluster")
BROKER = ("-b", "{broker}")
LINES: dict[str, tuple[str, ...]] = {
    "updateTopic": (*CLUSTER, "-t", "every-new"),
    "deleteTopic": (*CLUSTER, "-t", "every-other"),
    "updateSubGroup": (*CLUSTER, "-g", "every-new"),
    "deleteSubGroup": (*CLUSTER, "-g", "every-other"),
    "updateBrokerConfig": (*BROKER, "-k", "fileReservedTime", "-v", "71"),
    "updateTopicPerm": (*CLUSTER, "-t", "every-perm", "-p", "4"),
    "topicRoute": ("-t", TOPIC),
    "topicStatus": ("-t", TOPIC),
    "topicClusterList": ("-t", TOPIC),
    "brokerStatus": BROKER,
    "queryMsgById": ("-i", "{offset_id}", "-s", "true"),
    "queryMsgByKey": ("-t", TOPIC, "-k", "key-1"),
    "queryMsgByUniqueKey": ("-t", TOPIC, "-i", "{id}"),
    "queryMsgByOffset": ("-t", TOPIC, "-b", "broker-a", "-i", "0", "-o", "0"),
    "queryMsgTraceById": ("-i", "{id}"),
    "printMsg": ("-t", TOPIC),
    "printMsgByQueue": ("-t", TOPIC, "-a", "broker-a", "-i", "0", "-p", "true", "-d", "true", "-f", "true"),
    "sendMsgStatus": ("-b", "broker-a", "-c", "1"),
    "brokerConsumeStats": BROKER,
    "producerConnection": ("-g", "every-p", "-t", TOPIC),
    "consumerConnection": ("-g", GROUP),
    "consumerProgress": ("-g", GROUP, "-s", "true"),
    "consumerStatus": ("-g", GROUP),
    "cloneGroupOffset": ("-s", GROUP, "-d", "every-clone", "-t", TOPIC),
    "producer": BROKER,
    "clusterList": ("-m",),
    "topicList": ("-c",),
    "updateKvConfig": ("-s", "space", "-k", "key", "-v", "new"),
    "deleteKvConfig": ("-s", "space", "-k", "key"),
    "wipeWritePerm": ("-b", "broker-a"),
    "addWritePerm": ("-b", "broker-a"),
    "resetOffsetByTime": ("-g", "every-offline", "-t", TOPIC, "-s", "0"),
    "resetOffsetByTimeOld": ("-g", "every-offline", "-t", TOPIC, "-s", "0"),
    "skipAccumulatedMessage": ("-g", "every-offline", "-t", TOPIC),
    "updateOrderConf": ("-t", TOPIC, "-m", "put", "-v", "broker-a:4"),
    "cleanExpiredCQ": BROKER,
    "deleteExpiredCommitLog": BROKER,
    "cleanUnusedTopic": BROKER,
    "statsAll": ("-t", TOPIC),
    "allocateMQ": ("-t", TOPIC, "-i", "10.0.0.1,10.0.0.2"),
    "checkMsgSendRT": ("-t", TOPIC, "-a", "2"),
    "clusterRT": ("-a", "2", "-i", "1", "--rounds", "1"),
    "getNamesrvConfig": (),
    "updateNamesrvConfig": ("-k", "topicsMax", "-v", "100001"),
    "getBrokerConfig": BROKER,
    "getConsumerConfig": ("-g", GROUP),
    "queryCq": ("-t", TOPIC, "-q", "0", "-i", "0"),
    "sendMessage": ("-t", TOPIC, "-p", "hello"),
    "consumeMessage": ("-t", TOPIC),
    "updateAclConfig": (*CLUSTER, "-a", "account-2", "-s", "secret-key-2"),
    "deleteAclConfig": (*CLUSTER, "-a", "account-1"),
    "clusterAclConfigVersion": CLUSTER,
    "updateGlobalWhiteAddr": (*CLUSTER, "-g", "10.10.103.*"),
    "getAclConfig": CLUSTER,
    "exportMetadata": (*CLUSTER, "-f", "{folder}"),
    "exportConfigs": (*CLUSTER, "-f", "{folder}"),
    "exportMetrics": (*CLUSTER, "-f", "{folder}"),
    "DecodeMessageId": ("-i", "7F0000013D8BA0C023467588476201DC"),
    "consumer": ("-g", GROUP),
    "getConsumerStatus": ("-g", GROUP, "-t", TOPIC),
}
Run = Callable[..., tuple[int, str, str]]
KEY = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")  # snake_case
# Their keys are names that a server sends, as they are.
NAMED_BY_SERVERS = {"brokerStatus", "getBrokerConfig", "getNamesrvConfig", "getConsumerConfig"}


@pytest.fixture(scope="module")
def protected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncEmbeddedBroker]:
    home = tmp_path_factory.mktemp("home")
    (home / "conf").mkdir()
    (home / "conf" / "plain_acl.yml").write_text(ACCOUNTS.format(ADMIN, SECRET))
    (home / "conf" / "plain_acl.yml").chmod(0o600)
    (home / "conf" / "tools.yml").write_text(f"accessKey: {ADMIN}\nsecretKey: {SECRET}\n")
    settings = BrokerSettings(acl_enable=True, acl_home=str(home), trace_topic_enable=True)
    with SyncEmbeddedBroker(home / "data", settings=settings) as server:
        yield server


@pytest.fixture(scope="module")
def prepared(protected: SyncEmbeddedBroker) -> Iterator[dict[str, str]]:
    """A traced message, an offset of a group that is offline, a group and a producer that are online. Ids of the message."""
    access = {"access_key": ADMIN, "secret_key": SECRET}
    with saturnmq.sync.Client.from_url(protected.url, **access) as client:
        client.create_topic(TOPIC, queues=1)
        for topic in ("every-other", "every-perm"):
            client.create_topic(topic, queues=1)
        with client.producer("every-p", trace=True) as out, client.consumer(GROUP, start="first") as inbox:
            receipt = out.send(TOPIC, b"body", keys="key-1")
            inbox.subscribe(TOPIC)
            inbox.recv(timeout=30).ack()
            for group in (GROUP, "every-offline"):
                client.puller().commit(group, receipt.queue, 1)
            deadline = time.monotonic() + 30
            while not client.query_trace(receipt.message_id):
                assert time.monotonic() < deadline, "not traced within 30 s"
            yield {"id": receipt.message_id, "offset_id": receipt.offset_message_id}


@pytest.fixture
def run(
    prepared: dict[str, str],
    protected: SyncEmbeddedBroker,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Run:
    """Runs the line of a command with further options, signed by the administrator."""
    assert protected.inner.data is not None
    monkeypatch.setenv("ROCKETMQ_HOME", str(protected.inner.data.parent))
    monkeypatch.chdir(tmp_path)  # consumerStatus writes files below it

    def one(name: str, *more: str) -> tuple[int, str, str]:
        values = {**prepared, "folder": tmp_path, "broker": protected.broker_address}
        words = [word.format(**values) for word in LINES[name]]
        return AdminCli(protected, capsys).run(name, *words, *more)

    return one


def test_every_command_has_a_line() -> None:
    assert {command.name for command in COMMANDS} == LINES.keys() | ENDLESS


@pytest.mark.spec("CLI-02", "ADM-11")
@pytest.mark.parametrize("name", sorted(LINES))
def test_json_is_one_document_with_rows(run: Run, name: str) -> None:
    code, out, err = run(name, "--json")
    assert code == 0, err
    (line,) = out.splitlines()
    document = json.loads(line)
    assert (document["schema"], document["command"]) == (1, f"admin {name}")
    assert document["rows"] or len(document) > 3, document
    assert all(isinstance(row, dict) for row in document["rows"])
    if name not in NAMED_BY_SERVERS:
        assert [key for row in document["rows"] for key in row if not KEY.fullmatch(key)] == []


@pytest.mark.spec("CLI-08")
@pytest.mark.parametrize("name", [command.name for command in COMMANDS if command.changes])
def test_dry_run_reports_the_change_and_sends_none(run: Run, protected: SyncEmbeddedBroker, name: str) -> None:
    tap, name_server = protected.inner.tap, protected.inner.namesrv
    peers = {request.peer for request in tap.requests}
    before = (name_server.routes.changes, {space: dict(one) for space, one in name_server.kv.table.items()})
    settings = name_server.settings
    (member,) = protected.inner.broker.clients.consumers[GROUP].client_ids()
    directly = ("-g", GROUP, "-d", member) if name == "queryMsgByUniqueKey" else ()  # it changes nothing otherwise
    code, out, err = run(name, *directly, "--dry-run")
    assert code == 0 and "dry run: " in err, (out, err)
    changing = {route.code for route in TABLE.values() if route.effect is Effect.CHANGE}
    assert [one.name for one in tap.requests if one.peer not in peers and one.code in changing] == []
    after = (name_server.routes.changes, {space: dict(one) for space, one in name_server.kv.table.items()})
    assert after == before and name_server.settings == settings
