"""Commands on accounts against a protected broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from admincli import AdminCli, registered

from saturnmq.broker import BrokerSettings
from saturnmq.testing import SyncEmbeddedBroker

ADMIN, SECRET = "rocketmqadmin", "admin-secret-1"
ACCOUNTS = f"accounts:\n- accessKey: {ADMIN}\n  secretKey: {SECRET}\n  admin: true\n"

Run = Callable[..., "tuple[int, str, str]"]


@pytest.fixture(scope="module")
def protected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncEmbeddedBroker]:
    home = tmp_path_factory.mktemp("home")
    (home / "conf").mkdir()
    (home / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    (home / "conf" / "plain_acl.yml").chmod(0o600)
    (home / "conf" / "tools.yml").write_text(f"accessKey: {ADMIN}\nsecretKey: {SECRET}\n")
    settings = BrokerSettings(acl_enable=True, acl_home=str(home))
    with SyncEmbeddedBroker(home / "data", settings=settings) as server:
        yield server


@pytest.fixture
def run(
    protected: SyncEmbeddedBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Run]:
    """Runs a command with the keys of $ROCKETMQ_HOME/conf/tools.yml."""
    monkeypatch.setenv("ROCKETMQ_HOME", str(protected.inner.data.parent) if protected.inner.data else "")
    yield AdminCli(protected, capsys).run


@pytest.mark.spec("C-50", "C-51", "C-54", "ADM-06")
def test_account_is_created_listed_replaced_and_deleted(run: Run, protected: SyncEmbeddedBroker) -> None:
    address = protected.broker_address
    rights = ("-t", "a=PUB,b=SUB", "-g", "g=DENY", "-i", "DENY", "-u", "SUB", "-w", "10.0.0.*", "-m", "true")
    code, out, err = run("updateAclConfig", "-c", "DefaultCluster", "-a", "account-1", "-s", "secret-key-1", *rights)
    assert code == 0, err
    assert out.splitlines()[0] == f"create or update plain access config to {address} success."
    assert "secret-key-1" not in out + err and "topicPerms=[a=PUB, b=SUB]" in out
    assert run("updateAclConfig", "-b", "{broker}", "-a", "account-1", "-s", "secret-key-1", "-t", "c=SUB")[0] == 0
    for name in ("getAclConfig", "GETACCESSCONFIGSUBCOMMAND"):
        code, out, _ = run(name, "-c", "DefaultCluster")
        lines = out.splitlines()
        assert code == 0 and lines[:4] == ["", "globalWhiteRemoteAddresses: []", "", "accounts:"]
        at = lines.index("  accessKey         : account-1")
        assert lines[at + 1 : at + 9] == [
            "  secretKey         : ******",
            "  whiteRemoteAddress: 10.0.0.*",
            "  admin             : false",
            "  defaultTopicPerm  : DENY",
            "  defaultGroupPerm  : SUB",
            "  topicPerms        : [c=SUB]",
            "  groupPerms        : [g=DENY]",
            "",
        ]
    code, out, _ = run("deleteAccessConfig", "-c", "DefaultCluster", "-a", "account-1")
    assert (code, out) == (
        0,
        f"delete plain access config account from {address} success.\naccount's accesskey is:account-1",
    )
    code, out, err = run("deleteAclConfig", "-b", "{broker}", "-a", "account-1")
    assert (code, out) == (1, "") and "account-1" in err


@pytest.mark.spec("C-52", "C-53")
def test_white_list_and_versions(run: Run, protected: SyncEmbeddedBroker) -> None:
    address = protected.broker_address
    file = str(protected.inner.data.parent / "conf" / "plain_acl.yml") if protected.inner.data else ""
    for more in ((), ("-p", file)):
        code, out, _ = run("updateGlobalWhiteAddr", "-c", "DefaultCluster", "-g", "10.10.103.*,10.1.1.1", *more)
        assert (code, out) == (0, f"update global white remote addresses to {address} success.\n")
    assert "globalWhiteRemoteAddresses: [10.10.103.*, 10.1.1.1]" in run("getAclConfig", "-b", "{broker}")[1]
    with registered(protected, "broker-a", "127.0.0.1:1", broker_id=1):  # a slave, which is not asked
        code, out, _ = run("clusterAclConfigVersion", "-c", "DefaultCluster")
    head, row, end = out.splitlines()
    assert code == 0 and end == "get cluster's plain access config version success."
    assert [part.strip() for part in head.split("#")[1:]] == [
        "Cluster Name", "Broker Name", "Broker Addr", "AclFilePath", "AclConfigVersionNum", "AclLastUpdateTime",
    ]  # fmt: skip
    assert row.split()[:4] == ["DefaultCluster", "broker-a", address, file] and int(row.split()[4]) >= 2
    updated = datetime.strptime(" ".join(row.split()[5:]), "%Y-%m-%d %H:%M:%S")
    assert abs(datetime.now() - updated) < timedelta(minutes=1)
    code, out, _ = run("clusterAclConfigVersion", "-b", "{broker}")
    assert out.splitlines() == [row, "get broker's plain access config version success."]


def test_dry_run_names_the_change_without_its_secret(run: Run) -> None:
    code, out, err = run("updateAclConfig", "-b", "{broker}", "-a", "dry-run", "-s", "secret-key-1", "--dry-run")
    assert (code, out) == (0, "")
    assert "UPDATE_AND_CREATE_ACL_CONFIG" in err and "dry-run" in err and "secret-key-1" not in err
    assert "dry-run" not in run("getAclConfig", "-b", "{broker}")[1]


def test_unknown_cluster_is_named_as_by_mqadmin(run: Run) -> None:
    for command in ("getAclConfig", "clusterAclConfigVersion"):
        code, out, _ = run(command, "-c", "Nowhere")
        expected = "[error] Make sure the specified clusterName exists or the name server connected to is correct."
        assert (code, out) == (1, expected)


@pytest.mark.spec("SEC-10")
@pytest.mark.parametrize(("signature", "version"), [("v1", None), ("v2", "2")])
def test_requests_are_signed_in_both_versions(
    run: Run, protected: SyncEmbeddedBroker, tmp_path: Path, signature: str, version: str | None
) -> None:
    before = protected.inner.tap.count
    assert run("getAclConfig", "-b", "{broker}", "--signature", signature)[0] == 0
    sent = [request.ext for request in protected.inner.tap.since(before) if "Signature" in request.ext]
    assert sent and {ext.get("SignatureVersion") for ext in sent} == {version}
    other = tmp_path / "tools.yml"
    other.write_text(f"accessKey: {ADMIN}\nsecretKey: wrong-secret\n")
    code, out, err = run("getAclConfig", "-b", "{broker}", "--tools-yml", str(other), "--signature", signature)
    assert code == 1 and out == "" and "wrong-secret" not in err


def test_accounts_as_json(run: Run) -> None:
    code, out, _ = run("getAclConfig", "-b", "{broker}", "--json")
    assert code == 0 and '"access_key": "rocketmqadmin"' in out and SECRET not in out
