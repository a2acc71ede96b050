"""Access control for Apache's client and `mqadmin`: our broker in both modes, with Apache's broker as the control for texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache
import pytest
import saturn
import yaml
from aclaccounts import ADMIN, TOPICS, USER, write_accounts
from javatools import mqadmin, run_client, write_home
from peers import Peer
from printed import comparable

REFUSED = {
    "unsigned": (None, "Both"),
    "unknown account": (("stranger", "another-secret"), "Both"),
    "wrong secret": ((USER[0], "another-secret"), "Both"),
    "own entry": (USER, "Read"),
    "default": (USER, "Never"),
}


def keys(account: tuple[str, str] | None) -> dict[str, str]:
    return {"accessKey": account[0], "secretKey": account[1]} if account is not None else {}


@pytest.fixture(scope="module")
def admin_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ROCKETMQ_HOME of an mqadmin whose tools.yml holds the keys of the administrator."""
    home = write_home(tmp_path_factory.mktemp("admin-home"))
    (home / "conf" / "tools.yml").write_text(f"accessKey: {ADMIN[0]}\nsecretKey: {ADMIN[1]}\n")
    return home


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    folder = tmp_path_factory.mktemp("apache-acl")
    write_accounts(folder / "broker-a")
    with apache.ApacheCluster(folder, settings={"aclEnable": "true"}) as cluster:
        yield cluster


@pytest.fixture(scope="module", params=["strict", pytest.param("compat", marks=pytest.mark.interop_full)])
def protected(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    folder = tmp_path_factory.mktemp("saturn-acl")
    write_accounts(folder)
    compat = str(request.param == "compat").lower()
    settings = {"aclEnable": "true", "rocketmqHome": str(folder), "aclCompatMode": compat}
    with saturn.SaturnCluster(folder, settings=settings) as cluster:
        yield cluster


def create_topics(peer: Peer, home: Path) -> None:
    for topic in TOPICS:
        said = mqadmin(peer.name_servers, "updateTopic", "-b", peer.broker_address, "-t", topic, home=home)
        assert f"create topic to {peer.broker_address} success." in said


def refusals(peer: Peer, home: Path) -> dict[str, str]:
    """What a Java producer reports for each request that must be refused."""
    texts = {}
    for name, (account, topic) in REFUSED.items():
        options: dict[str, Any] = {
            "mode": "async",
            "count": 1,
            "ns": peer.name_servers,
            "topic": topic,
            **keys(account),
        }
        (row,) = run_client("send", home=home, **options).results[:1]
        texts[name] = re.sub(r"  ?(BROKER|For more information).*", "", row.get("error", str(row)), flags=re.DOTALL)
    return texts


@pytest.mark.spec("ACL-08", "ACL-18", "ACL-19", "ACL-20")
def test_java_client_reads_the_same_refusals_as_from_apache(
    control: Peer, protected: Peer, home: Path, admin_home: Path
) -> None:
    for peer in (control, protected):
        create_topics(peer, admin_home)
    wanted = refusals(control, home)
    assert refusals(protected, home) == wanted
    assert "No accessKey is configured" in wanted["unsigned"] and "topic:Never" in wanted["default"]


@pytest.mark.spec("ACL-10", "ACL-19", "SEC-08")
def test_java_client_with_rights_is_served(protected: Peer, home: Path, admin_home: Path) -> None:
    create_topics(protected, admin_home)
    common = {"ns": protected.name_servers, "topic": "Both", **keys(USER)}
    for serialization in ("JSON", "ROCKETMQ"):
        sent = run_client("send", home=home, serialization=serialization, count=10, **common).results
        assert sum("sent" in row for row in sent) == 10
    run_client("send", home=home, mode="batch", count=5, **common)
    got = run_client("consume", home=home, group="open", count=10, fail=1, **common).results
    assert any(row.get("reconsumeTimes") == 1 for row in got), "redelivered through the retry topic"
    run_client("orderly", home=home, group="ordered", count=10, **common)
    rows = run_client("transaction", home=home, count=3, **common).results
    assert [row["state"] for row in rows if "state" in row] == [
        "COMMIT_MESSAGE",
        "ROLLBACK_MESSAGE",
        "ROLLBACK_MESSAGE",
    ]


@pytest.mark.spec("SEC-14", "ACL-13")
def test_java_client_traces_without_a_right_on_the_trace_topic(protected: Peer, home: Path, admin_home: Path) -> None:
    create_topics(protected, admin_home)
    trace = "RMQ_SYS_TRACE_TOPIC"
    for _ in range(3):  # a client that stops gives its trace half a second, and loses what is left
        run_client("send", home=home, ns=protected.name_servers, topic="Both", count=3, trace=2, **keys(USER))
        said = mqadmin(protected.name_servers, "topicStatus", "-t", trace, home=admin_home)
        stored = sum(int(line.split()[3]) for line in said.splitlines() if line.startswith("broker-a"))
        if stored > 0:
            break
    assert stored > 0, said


def version(path: Path) -> int:
    """Counter of the dataVersion of an account file; 0 without one."""
    versions = yaml.safe_load(path.read_text()).get("dataVersion")
    return int(versions[0]["counter"]) if versions else 0


COMMANDS = {
    "create": [
        "updateAclConfig",
        "-b",
        "{broker}",
        "-a",
        "newaccount",
        "-s",
        "newsecret",
        "-t",
        "Both=PUB",
        "-m",
        "false",
    ],
    "malformed": ["updateAclConfig", "-b", "{broker}", "-a", "newaccount", "-s", "newsecret", "-t", "Both=READ"],
    "update": ["updateAclConfig", "-b", "{broker}", "-a", "newaccount", "-s", "newsecret", "-i", "SUB"],
    "white list": ["updateGlobalWhiteAddr", "-b", "{broker}", "-g", "10.10.103.*,192.168.0.*"],
    "delete": ["deleteAclConfig", "-b", "{broker}", "-a", "newaccount"],
    "delete again": ["deleteAclConfig", "-b", "{broker}", "-a", "newaccount"],
}


@pytest.mark.spec("ACL-15", "ACL-16", "ACL-17", "ACL-20")
def test_mqadmin_maintains_accounts_as_at_apache(control: Peer, protected: Peer, admin_home: Path, home: Path) -> None:
    def run(peer: Peer, command: list[str]) -> str:
        words = [word.format(broker=peer.broker_address) for word in command]
        said = comparable(mqadmin(peer.name_servers, *words, home=admin_home))
        return re.sub(r"PlainAccessConfig@[0-9a-f]+", "PlainAccessConfig@ID", said)

    files = [folder / "conf" / "plain_acl.yml" for folder in (protected.folder, control.folder / "broker-a")]
    before = [version(path) for path in files]
    for name, command in COMMANDS.items():
        from_apache, from_us = run(control, command), run(protected, command)
        assert from_us == from_apache, name
        if name == "update":
            said = run(protected, ["getAclConfig", "-b", "{broker}"])
            assert "newaccount" in said and "newsecret" not in said and ADMIN[1] not in said
            assert "broker-a" in run(protected, ["clusterAclConfigVersion", "-b", "{broker}"])
    ours, theirs = (yaml.safe_load(path.read_text()) for path in files)
    assert ours["globalWhiteRemoteAddresses"] == theirs["globalWhiteRemoteAddresses"] == ["10.10.103.*", "192.168.0.*"]
    assert [entry["accessKey"] for entry in ours["accounts"]] == [entry["accessKey"] for entry in theirs["accounts"]]
    assert [version(path) - old for path, old in zip(files, before, strict=True)] == [4, 4]


@pytest.mark.spec("ACL-09", "ACL-20")
def test_mqadmin_without_keys_is_refused(protected: Peer, home: Path) -> None:
    said = mqadmin(protected.name_servers, "updateTopic", "-b", protected.broker_address, "-t", "New", home=home)
    assert "No accessKey is configured" in said
