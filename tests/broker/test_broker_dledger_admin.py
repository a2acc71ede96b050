"""`saturnmq admin` on a DLedger group: status, leadership transfer, verification and comparison of ledgers."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from brokergroup import LedgerGroup, ledger, ledger_group
from protected import ADMIN, write_accounts

from certificates import write_certificate
from harness import virtualtime
from saturnmq import cli
from saturnmq.admin.credentials import read_access
from saturnmq.config.settings import load
from saturnmq.net import TlsSettings
from saturnmq.protocol.errors import ConfigError
from saturnmq.raft.ledger.member_entries import MEMBERS_TOPIC


async def admin(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = await asyncio.to_thread(cli.main, ["admin", *words, "--json"])
    output = capsys.readouterr().out
    document = json.loads(output) if output else {}
    keys = {key for part in (document, *document.get("rows", [])) for key in part}
    assert all(re.fullmatch("[a-z][a-z0-9_]*", key) for key in keys), keys
    return code, document


@pytest.mark.spec("DL-Q06", "DL-L01", "DL-M09", "CLI-02")
def test_ledger_status_and_leadership_transfer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def status(group: LedgerGroup) -> tuple[int, dict[str, Any]]:
        code, output = await admin(capsys, "ledgerStatus", "-n", group.name_servers, "-g", "g")
        return code, {row["broker"]: row for row in output["rows"]}

    async def work() -> None:
        async with ledger_group(tmp_path) as group:
            for body in (b"1", b"2"):
                await group.send(body)
            await group.until(lambda: all(b.store.max_offset("T", 0) == 2 for b in group.brokers.values()), "behind")
            leader = await group.master()
            addresses = {name: broker.advertised_address for name, broker in group.brokers.items()}
            async with asyncio.timeout(40):
                while len((found := await status(group))[1]) < 3 or found[0]:
                    await asyncio.sleep(0.05)  # poll: followers register asynchronously
            code, rows = found
            assert code == 0 and rows.keys() == set(addresses.values())
            first = group.name_of(leader)
            shown = rows[addresses[first]]
            assert (shown["role"], shown["leader"], shown["serving"]) == ("LEADER", first, True)
            assert shown["begin"] == 0 and shown["end"] >= 1 and shown["watermarks"].keys() == set(group.names)
            assert all(isinstance(shown[name], int) for name in ("term", "committed"))
            assert max(shown["watermarks"].values()) == shown["end"]
            assert {rows[addresses[name]]["role"] for name in group.names if name != first} == {"FOLLOWER"}
            assert {(row["votes"], row["recovering"]) for row in rows.values()} == {(True, False)}

            second = next(name for name in group.names if name != first)
            peers = ";".join(f"{name}-{address}" for name, address in group.addresses.items())
            code, output = await admin(capsys, "ledgerTransfer", "-g", "g", "-p", peers, "-t", second)
            assert (code, output["rows"]) == (0, [{"to": second, "code": 200, "name": "SUCCESS"}])
            await group.until(lambda: group.member(second).status().role.value == "LEADER", "not handed over")

            assert await admin(capsys, "ledgerTransfer", "-g", "g", "-p", peers, "-t", "n9") == (2, {})
            assert await admin(capsys, "ledgerStatus", "-n", group.name_servers, "-g", "none") == (2, {})
            await group.stop(second)
            code, rows = await status(group)
            assert code == 3 or addresses[second] not in rows, "a member that does not answer is reported"

    virtualtime.run(asyncio.wait_for(work(), 110))


@pytest.mark.spec("DL-X21", "CLI-01")
def test_members_are_added_and_removed_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        async with ledger_group(tmp_path) as group:
            await group.send(b"1")
            peers = ";".join(f"{name}-{address}" for name, address in group.addresses.items())

            async def change(verb: str, member: str, *words: str) -> tuple[int, dict[str, Any]]:
                """Repeat it until the members have recognised each other, or the leader has taken note of the last change."""
                async with asyncio.timeout(60):
                    while True:
                        code, output = await admin(capsys, verb, "-g", "g", "-p", peers, "-m", member, *words)
                        if not output or output["rows"][0]["code"] not in (303, 412, 504):
                            return code, output["rows"][0] if output else {}
                        await asyncio.sleep(0.05)  # poll

            code, row = await change("ledgerAddLearner", "n7-127.0.0.1:9", "--dry-run")
            assert (code, row["code"], row["peers"], row["learners"]) == (0, 200, f"{peers};n7-127.0.0.1:9", "n7")
            assert group.member("n0").status().configuration.index == -1
            code, row = await change("ledgerPromote", "n7")
            assert (code, row["name"]) == (1, "UNKNOWN_MEMBER") and "n7 is not a member" in row["reason"]
            code, row = await change("ledgerAddLearner", "n7-127.0.0.1:9")
            assert (code, row["learners"]) == (0, "n7")
            code, row = await change("ledgerPromote", "n7")
            assert (code, row["name"]) == (1, "FALL_BEHIND_TOO_MUCH")
            code, row = await change("ledgerRemove", "n7")
            assert (code, row["peers"], row["learners"]) == (0, peers, "")
            await group.send(b"2")
            for name in group.names:
                await group.until(
                    lambda name=name: "n7" in group.member(name).status().configuration.removed, "not informed"
                )
            for name in group.names:  # the entries of the changes are in no queue and no damage
                store, dispatch = group.brokers[name].store, ledger(group.brokers[name]).dispatch
                await group.until(lambda store=store: store.max_offset("T", 0) == 2, "behind")
                assert MEMBERS_TOPIC not in {topic for topic, _ in store.topic_queues()}
                assert dispatch.quarantine.count == 0
            code, row = await change("ledgerAddLearner", "n8")
            assert (code, row) == (2, {})

    virtualtime.run(asyncio.wait_for(work(), 110))


@pytest.mark.spec("DL-S06")
def test_ledgers_of_stopped_members_are_verified_and_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work() -> None:
        async with ledger_group(tmp_path / "g") as group:
            for number in range(5):
                await group.send(b"%d" % number)
            await group.until(
                lambda: len({group.member(name).status().committed_index for name in group.names}) == 1, "behind"
            )
        folders = [str(tmp_path / "g" / name / f"dledger-{name}") for name in group.names]
        code, output = await admin(capsys, "ledgerVerify", *folders)
        assert code == 0 and [row["problems"] for row in output["rows"]] == [[], [], []]
        copies = [str(shutil.copytree(folders[0], tmp_path / name)) for name in ("a", "b")]
        code, output = await admin(capsys, "ledgerCompare", *copies)
        assert (code, output["equal"]) == (0, True)

        data = next((tmp_path / "b" / "data").iterdir())
        content = bytearray(data.read_bytes())
        content[60] ^= 1  # in the body of the first entry
        data.write_bytes(content)
        code, output = await admin(capsys, "ledgerCompare", *copies)
        assert (code, output["equal"], output["index"]) == (3, False, 0)
        (tmp_path / "b" / "currterm").unlink()
        code, output = await admin(capsys, "ledgerVerify", copies[1])
        assert code == 3 and output["rows"][0]["problems"] == ["currterm is missing"]
        assert await admin(capsys, "ledgerVerify", str(tmp_path)) == (2, {})
        assert await admin(capsys, "ledgerCompare", copies[0]) == (2, {})

    virtualtime.run(asyncio.wait_for(work(), 110))


@pytest.mark.spec("ACL-20", "SEC-10", "SEC-15")
def test_status_signs_with_tools_yml_and_connects_by_tls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = write_certificate(tmp_path, "node")
    lines = {
        "tls.enable": "true", "tls.server.mode": "enforcing", "tls.server.certPath": str(certificate),
        "tls.server.keyPath": str(key), "tls.client.trustCertPath": str(certificate), "brokerName": "ignored",
    }  # fmt: skip
    node = tmp_path / "node.conf"
    node.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    tls = load(TlsSettings, (str(node), lines)).settings
    write_accounts(tmp_path)
    home = tmp_path / "home"
    (home / "conf").mkdir(parents=True)

    def tools(secret: str, path: Path = tmp_path / "tools.yml") -> Path:
        path.write_text(f"accessKey: {ADMIN[0]}\nsecretKey: {secret}\n")
        return path

    async def work() -> None:
        async with ledger_group(tmp_path, size=1, tls=tls, acl_enable=True, acl_home=str(tmp_path)) as group:
            await group.master()
            words = ("ledgerStatus", "-n", group.name_servers, "-g", "g")
            asked = (*words, "-c", str(node))
            async with asyncio.timeout(40):
                while (found := await admin(capsys, *asked, "--tools-yml", str(tools(ADMIN[1]))))[0]:
                    await asyncio.sleep(0.05)  # poll: registration is asynchronous
            assert [row["role"] for row in found[1]["rows"]] == ["LEADER"]
            assert (await admin(capsys, *asked, "--tools-yml", str(tools(ADMIN[1])), "--signature", "v2"))[0] == 0

            code, shown = await admin(capsys, *asked)
            assert code == 3 and "No accessKey is configured" in shown["rows"][0]["failed"]
            code, shown = await admin(capsys, *asked, "--tools-yml", str(tools("wrong-secret")))
            assert code == 3 and "Check signature failed" in shown["rows"][0]["failed"]
            assert "wrong-secret" not in json.dumps(shown)
            assert (await admin(capsys, *words))[0] == 4, "a plain connection"

            monkeypatch.setenv("ROCKETMQ_HOME", str(home))
            assert (await admin(capsys, *asked))[0] == 3, "there is no conf/tools.yml"
            tools(ADMIN[1], home / "conf/tools.yml")
            assert (await admin(capsys, *asked))[0] == 0
            monkeypatch.setenv("ADMIN_SECRET", ADMIN[1])
            tools("${env:ADMIN_SECRET}", home / "conf/tools.yml")
            assert (await admin(capsys, *asked))[0] == 0

    virtualtime.run(asyncio.wait_for(work(), 110))


@pytest.mark.spec("ACL-20", "ADM-06")
def test_unusable_tools_yml_is_named_without_its_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tools.yml"
    for text, problem in (
        ("accessKey: a\nsecretKey: [topsecret]\n", "must be texts"),
        ("accessKey: a\n", "must hold accessKey and secretKey"),
        ("accessKey: a\nsecretKey: ${env:NOT_SET}\n", "NOT_SET"),
        ("secretKey: topsecret\n  accessKey: - {", "line 2"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=problem) as caught:
            read_access(tools=path)
        assert str(path) in str(caught.value) and "topsecret" not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_access(tools=tmp_path / "missing")
    monkeypatch.setenv("ROCKETMQ_HOME", str(tmp_path))
    assert read_access().signer is None
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/tools.yml").write_text("accessKey:\nsecretKey:\n")
    assert read_access().signer is None, "blank keys mean unsigned, as in mqadmin"


def test_cluster_secret_comes_from_the_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = tmp_path / "node.conf"
    node.write_text("dledger.clusterSecret=from the file, 16 bytes\nbrokerName=b\n")
    monkeypatch.delenv("SATURNMQ_CLUSTER_SECRET", raising=False)
    assert read_access().cluster_secret == ""
    assert read_access(config=node).cluster_secret == "from the file, 16 bytes"
    monkeypatch.setenv("SATURNMQ_CLUSTER_SECRET", "from the environment")
    assert read_access().cluster_secret == "from the environment"
    access = read_access(config=node)
    assert access.cluster_secret == "from the file, 16 bytes" and "the file" not in repr(access)
