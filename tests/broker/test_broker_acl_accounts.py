"""Accounts of a running broker: changed by requests 50 to 54 and by editing the files, with secrets that never leave it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from brokergroup import ledger_group
from protected import ACCOUNTS, ADMIN, USER, protected, refused, topics, v1, write_accounts
from wire import Clock, Wire, run

from saturnmq.acl.accounts import PUB
from saturnmq.acl.files import AccountFiles
from saturnmq.acl.rules import RELOAD_SECONDS
from saturnmq.protocol.bodies import AclConfig
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command
from waiting import until

UPDATE = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG
DELETE = RequestCode.DELETE_ACL_CONFIG
INFO = RequestCode.GET_BROKER_CLUSTER_ACL_INFO
WHITE = RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
CONFIG = RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG
SEPARATORS = "\x00\n\r\x0b\x0c\x1c\x85\u2028\u2029"
NEW = ("newaccount", "newsecret1")


async def update(w: Wire, account: tuple[str, str] = NEW, **fields: Any) -> Command:
    """Send request 50 as the administrator; then requests are signed as before."""
    before, w.sign = w.sign, v1(ADMIN)
    answer = await w.call(
        UPDATE, accessKey=account[0], secretKey=account[1], admin=fields.pop("admin", False), **fields
    )
    w.sign = before
    return answer


@pytest.mark.spec("ACL-15", "ACL-16")
async def test_an_account_is_created_changed_and_deleted_at_once(tmp_path: Path) -> None:
    path = tmp_path / "conf/plain_acl.yml"
    more = write_accounts(tmp_path, "accounts: []", "conf/acl/more.yml")
    async with protected(tmp_path) as w:
        await topics(w, "T", "U")
        assert (await update(w, topicPerms="T=PUB|SUB", groupPerms="g=SUB")).code == 0
        w.sign = v1(NEW)
        assert (await w.send("T")).code == 0 and (await w.pull("T", group="g")).code == 0
        assert refused(await w.send("U")) and refused(await w.pull("T", group="h"))
        assert (await update(w, defaultTopicPerm="PUB", whiteRemoteAddress="127.0.0.*")).code == 0
        assert (await w.send("U")).code == 0 and (await w.pull("T", group="g")).code == 0, "fields not given stay"
        other = (NEW[0], "other secret")
        assert (await update(w, other)).code == 0
        assert refused(await w.send("T")) == "Check signature failed for accessKey=newaccount"
        w.sign = v1(other)
        assert (await w.send("T")).code == 0
        entry = yaml.safe_load(path.read_text())["accounts"][-1]
        assert entry == {
            "accessKey": "newaccount", "secretKey": "other secret", "admin": False, "topicPerms": ["T=PUB|SUB"],
            "groupPerms": ["g=SUB"], "defaultTopicPerm": "PUB", "whiteRemoteAddress": "127.0.0.*",
        }  # fmt: skip
        w.sign = v1(ADMIN)
        half = await w.call(UPDATE, accessKey="newaccount", admin=False)
        assert half.code == 209 and "secretKey=****** cannot be null" in (half.remark or ""), "of a change, too"
        assert (await w.call(DELETE, accessKey="newaccount")).code == 0
        answer = await w.call(DELETE, accessKey="newaccount")
        text = "The accesskey[newaccount] corresponding to accessConfig has been deleted failed."
        assert (answer.code, answer.remark) == (210, text)
        w.sign = v1(other)
        assert refused(await w.send("T")) == "No acl config for newaccount"
        assert "newaccount" not in path.read_text() and more.read_text() == "accounts: []"
        (version,) = yaml.safe_load(path.read_text())["dataVersion"]
        assert version["counter"] == 4, "three updates and the deletion"


@pytest.mark.spec("ACL-16")
async def test_an_account_is_changed_and_deleted_in_the_file_that_has_it(tmp_path: Path) -> None:
    more = write_accounts(
        tmp_path, "accounts:\n  - accessKey: newaccount\n    secretKey: newsecret1\n", "conf/acl/more.yml"
    )
    async with protected(tmp_path) as w:
        assert (await update(w, defaultTopicPerm="PUB")).code == 0
        (entry,) = yaml.safe_load(more.read_text())["accounts"]
        assert (entry["accessKey"], entry["defaultTopicPerm"]) == ("newaccount", "PUB")
        w.sign = v1(ADMIN)
        assert (await w.call(DELETE, accessKey="newaccount")).code == 0
    assert yaml.safe_load(more.read_text())["accounts"] == []
    assert (tmp_path / "conf/plain_acl.yml").read_text() == ACCOUNTS


@pytest.mark.spec("ACL-16")
@pytest.mark.parametrize(
    ("account", "fields", "reason"),
    [
        (
            ("short6", "12345678"),
            {},
            "The accessKey=short6 and secretKey=****** cannot be null and length should longer than 6",
        ),
        (("newaccount", "123456"), {}, "cannot be null and length should longer than 6"),
        (NEW, {"topicPerms": "T=PUB,U"}, "Parse Resource format error for U."),
        (NEW, {"groupPerms": "g=READ"}, "Parse resource permission error for g=READ."),
        (NEW, {"whiteRemoteAddress": "somewhere"}, "Netaddress examine Exception netaddress is somewhere"),
        ((NEW[0], "${file:/etc/hostname}"), {}, "must not refer to an environment variable or a file"),
        *(((NEW[0], f"1234567{char}8"), {}, "secretKey must not contain control characters") for char in SEPARATORS),
        *(((f"new{char}account", NEW[1]), {}, "accessKey must not contain control characters") for char in SEPARATORS),
        (NEW, {"topicPerms": "T\x85=PUB"}, "topicPerms must not contain control characters"),
        (NEW, {"groupPerms": "g\u2028=SUB"}, "groupPerms must not contain control characters"),
        (NEW, {"whiteRemoteAddress": "\x85"}, "whiteRemoteAddress must not contain control characters"),
        (NEW, {"defaultTopicPerm": "PUB\0"}, "defaultTopicPerm must not contain control characters"),
    ],
)
async def test_a_malformed_account_is_refused_with_the_reason(
    protected: Wire, tmp_path: Path, account: tuple[str, str], fields: dict[str, Any], reason: str
) -> None:
    answer = await update(protected, account, **fields)
    assert answer.code == 209 and reason in (answer.remark or "")
    assert (tmp_path / "conf/plain_acl.yml").read_text() == ACCOUNTS


@pytest.mark.spec("ACL-15")
async def test_versions_and_accounts_are_reported(tmp_path: Path) -> None:
    clock = Clock()
    path = str((tmp_path / "conf/plain_acl.yml").resolve())
    assert (UPDATE, DELETE, WHITE, INFO, CONFIG) == (50, 51, 53, 52, 54)
    async with protected(tmp_path, clock=clock) as w:
        before = (await w.call(INFO)).ext
        assert json.loads(before["version"]) == {"counter": 0, "timestamp": 0}
        clock.ms += 5
        assert (await update(w)).code == 0
        after = (await w.call(INFO)).ext
        version = {"counter": 1, "timestamp": clock.ms}
        assert json.loads(after["version"]) == version and json.loads(after["allAclFileVersion"]) == {path: version}
        assert (after["brokerName"], after["clusterName"], after["brokerAddr"]) == (
            "broker-a", "DefaultCluster", w.server.broker_address,
        )  # fmt: skip
        config = AclConfig.decode((await w.call(CONFIG)).body)
        accounts = {found.access_key: found for found in config.plain_access_configs}
        assert list(accounts) == ["RocketMQ", "rocketmq2", "limitedAdmin", "newaccount"]
        user = accounts["RocketMQ"]
        assert user.topic_perms == ["Both=PUB|SUB", "Read=SUB", "Write=PUB", "Never=DENY"]
        assert (user.admin, user.default_topic_perm, user.default_group_perm) == (False, "DENY", "SUB")
        assert accounts["rocketmq2"].admin


@pytest.mark.spec("ACL-17")
async def test_the_global_white_list_of_an_account_file_is_replaced(tmp_path: Path) -> None:
    more = write_accounts(tmp_path, "accounts: []", "conf/acl/more.yml")
    outside = write_accounts(tmp_path, "x: y", "elsewhere.yml")
    async with protected(tmp_path) as w:

        async def white(addresses: str, path: str = "") -> Command:
            before, w.sign = w.sign, v1(ADMIN)
            where = {"aclFileFullPath": path} if path else {}  # mqadmin sends none for the default file
            answer = await w.call(WHITE, globalWhiteAddrs=addresses, **where)
            w.sign = before
            return answer

        w.sign = None
        assert refused(await w.call(21))
        assert (await white("127.0.0.1,10.0.0.*")).code == 0
        assert (await w.call(21)).code == 0
        found = yaml.safe_load((tmp_path / "conf/plain_acl.yml").read_text())
        assert found["globalWhiteRemoteAddresses"] == ["127.0.0.1", "10.0.0.*"]
        assert (await white("")).code == 0 and refused(await w.call(21))
        w.sign = v1(ADMIN)
        assert (await w.call(WHITE, globalWhiteAddrs="127.0.0.9", aclFileFullPath="")).code == 0
        w.sign = None
        found = yaml.safe_load((tmp_path / "conf/plain_acl.yml").read_text())
        assert found["globalWhiteRemoteAddresses"] == ["127.0.0.9"], "an empty path is the default file"
        assert found["dataVersion"][0]["counter"] == 3
        assert (await white("127.0.0.1", str(more))).code == 0
        assert yaml.safe_load(more.read_text())["globalWhiteRemoteAddresses"] == ["127.0.0.1"]
        assert (await w.call(21)).code == 0
        for path in (
            str(tmp_path / "missing.yml"),
            str(outside),
            str(tmp_path),
            "/etc/passwd",
            "conf/../../x",
            "\0",
            "x" * 5000,
            "a\0b",
            f"{more}\0",
        ):
            answer = await white("127.0.0.1", path)
            text = "The globalWhiteAddresses[127.0.0.1] has been updated failed."
            assert (answer.code, answer.remark) == (211, text)
        for addresses in ("127.0.0.1,\x85", "127.0.0.1\0"):
            answer = await white(addresses)
            text = "globalWhiteRemoteAddresses must not contain control characters or line separators"
            assert (answer.code, answer.remark) == (211, text)
        answer = await white("127.0.0.1,host")
        assert (answer.code, answer.remark) == (211, "Netaddress examine Exception netaddress is host")
        assert outside.read_text() == "x: y"


@pytest.mark.spec("ACL-14")
async def test_edited_files_apply_without_a_restart(protected: Wire, tmp_path: Path) -> None:
    await topics(protected, "T")
    protected.sign = v1(USER)
    assert refused(await protected.send("T"))
    path = write_accounts(tmp_path, ACCOUNTS.replace("Read=SUB", "T=PUB"))
    os.utime(path, (1, 1))
    plain = protected.broker._access.plain_validator
    assert plain is not None
    await until(lambda: plain.rules.accounts["RocketMQ"].may("T", PUB), 2 * RELOAD_SECONDS)
    assert (await protected.send("T")).code == 0
    path = write_accounts(tmp_path, "accounts: [")
    os.utime(path, (2, 2))
    await protected.broker._access.reload()
    assert (await protected.send("T")).code == 0


@pytest.mark.spec("ACL-14")
async def test_account_files_are_looked_at_every_5_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, scans = asyncio.get_running_loop().time, list[float]()
    scan = AccountFiles.scan
    monkeypatch.setattr(AccountFiles, "scan", lambda files: (scans.append(clock()), scan(files))[1])
    began = clock()
    async with protected(tmp_path):
        await asyncio.sleep(22)  # poll: virtual time
    assert [round(at - began) for at in scans] == [5, 10, 15, 20]


@pytest.mark.spec("ACL-14")
@pytest.mark.parametrize("right", ["Read=SUB", "other account"])
async def test_parked_pull_gets_no_message_after_its_right_was_revoked(
    protected: Wire, tmp_path: Path, right: str
) -> None:
    await topics(protected, "Read")
    protected.sign = v1(USER)
    waiting = asyncio.create_task(protected.pull("Read", suspend_ms=20_000))
    await until(lambda: protected.broker.long_polling.count == 1, 5)
    changed = ACCOUNTS.replace("Read=SUB", "Read=DENY") if right == "Read=SUB" else ACCOUNTS.replace(*USER)
    os.utime(write_accounts(tmp_path, changed.replace("accessKey: RocketMQ", "accessKey: replaced")
                            if right == "other account" else changed), (1, 1))  # fmt: skip
    await protected.broker._access.reload()
    protected.sign = v1(ADMIN)
    assert (await protected.send("Read", b"after the revocation")).code == 0
    answer = await waiting
    assert refused(answer) == "No default permission for topic:Read" and not answer.body


@pytest.mark.spec("ACL-15")
@pytest.mark.parametrize("request_", ["update", "delete", "white"])
async def test_change_by_request_keeps_what_an_operator_edited_just_before(
    protected: Wire, tmp_path: Path, request_: str
) -> None:
    """A revocation in the file must not be undone by a request that arrives before the file is read again."""
    await topics(protected, "Read", "Both")
    path = write_accounts(tmp_path, ACCOUNTS.replace("Both=PUB|SUB", "Both=DENY"))
    os.utime(path, (1, 1))
    if request_ == "update":
        answer = await protected.call(UPDATE, accessKey="newaccount", secretKey="12345678", admin=False)
    elif request_ == "delete":
        answer = await protected.call(RequestCode.DELETE_ACL_CONFIG, accessKey="limitedAdmin")
    else:
        answer = await protected.call(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, globalWhiteAddrs="10.0.0.1")
    assert answer.code == 0, answer.remark
    assert "Both=DENY" in path.read_text()
    protected.sign = v1(USER)
    assert refused(await protected.send("Both")) == "No default permission for topic:Both"


@pytest.mark.spec("ACL-15")
async def test_change_by_request_does_not_write_over_an_edit_that_is_malformed(protected: Wire, tmp_path: Path) -> None:
    edited = ACCOUNTS.replace("Both=PUB|SUB", "Both=DENY") + "  - accessKey: ["
    path = write_accounts(tmp_path, edited)
    os.utime(path, (1, 1))
    answer = await protected.call(UPDATE, accessKey="newaccount", secretKey="12345678", admin=False)
    assert answer.code != 0 and "was edited and cannot be used: correct it first" in (answer.remark or "")
    assert path.read_text() == edited


@pytest.mark.spec("ACL-15")
async def test_changes_at_the_same_time_are_all_kept(protected: Wire, tmp_path: Path) -> None:
    calls = [protected.call(UPDATE, accessKey=f"account{n:02}", secretKey="12345678", admin=False) for n in range(20)]
    answers = await asyncio.gather(protected.broker._access.reload(), *calls, protected.broker._access.reload())
    assert {answer.code for answer in answers if answer is not None} == {0}
    entries = yaml.safe_load((tmp_path / "conf/plain_acl.yml").read_text())["accounts"]
    assert {f"account{n:02}" for n in range(20)} <= {entry["accessKey"] for entry in entries}
    protected.sign = v1(("account19", "12345678"))
    assert (await protected.call(28)).code == 0


@pytest.mark.spec("SEC-13")
async def test_a_secret_that_is_kept_elsewhere_stays_there(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("kept elsewhere\n")
    reference = f"${{file:{tmp_path}/secret}}"
    account = ("elsewhere", "kept elsewhere")
    text = ACCOUNTS + f"  - accessKey: elsewhere\n    secretKey: {reference}\n    defaultTopicPerm: PUB\n"
    async with protected(tmp_path, text) as w:
        await topics(w, "T")
        w.sign = v1(account)
        assert (await w.send("T")).code == 0
        assert (await update(w, account, defaultTopicPerm="SUB")).code == 0
        assert refused(await w.send("T")) == "No default permission for topic:T"
        found = (tmp_path / "conf/plain_acl.yml").read_text()
        assert reference in found and "kept elsewhere" not in found


@pytest.mark.spec("SEC-13")
def test_no_answer_and_no_log_line_holds_a_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    planted = "PLANTED-SECRET"
    text = ACCOUNTS.replace("87654321", planted)
    caplog.set_level(logging.DEBUG)

    async def work() -> None:
        async with protected(tmp_path, text) as w:
            answers = [await update(w, ("newaccount", planted + "2")), await update(w, ("x", planted))]
            for sign in (v1(ADMIN), v1((USER[0], planted)), v1((USER[0], planted + "3")), None):
                w.sign = sign
                for code in RequestCode:
                    answers.append(await w.call(code, b"{}", topic="T", consumerGroup="g", timeout_ms=5000))
            for answer in answers:
                assert planted not in str(answer.ext) + str(answer.remark) and planted.encode() not in (
                    answer.body or b""
                )
            assert planted not in repr(w.broker._access.plain_validator.rules)  # type: ignore[union-attr]

    run(work)
    assert planted not in caplog.text


async def test_a_broker_without_access_control_has_no_accounts_to_change(wire: Wire) -> None:
    for code, expected in {UPDATE: 209, DELETE: 210, WHITE: 211, INFO: 1, CONFIG: 1}.items():
        answer = await wire.call(code, accessKey="a", globalWhiteAddrs="", aclFileFullPath="")
        assert answer.code == expected and "aclEnable=false" in (answer.remark or "")


@pytest.mark.spec("DL-C10", "ACL-21")
async def test_followers_copy_state_from_a_protected_leader(tmp_path: Path) -> None:
    write_accounts(tmp_path)
    async with ledger_group(tmp_path / "group", acl_enable=True, acl_home=str(tmp_path)) as group:
        master = await group.master()
        follower = group.followers()[0]
        assert follower.dledger is not None
        copy = follower.dledger.copy
        await group.until(lambda: copy.count, "no copy")
        # Over the broker's port, as members of Apache RocketMQ copy, only from the white list.
        for code in (21, 43, 45, 201):
            assert refused(await group.call(master, code)) == "No accessKey is configured"
        os.utime(write_accounts(tmp_path, ACCOUNTS.replace("Addresses: []", "Addresses: [127.0.0.1]")), (1, 1))
        await master._access.reload()
        for code in (21, 43, 45, 201):
            assert (await group.call(master, code)).code == 0


async def test_first_pull_of_a_group_is_parked_for_the_account_that_sent_it(tmp_path: Path) -> None:
    """While a DLedger group stores a new consumer group, its connection sends a request of another account."""
    write_accounts(tmp_path)
    async with ledger_group(tmp_path / "group", acl_enable=True, acl_home=str(tmp_path)) as group:
        master = await group.master()

        async def signed(account: tuple[str, str], code: int, body: bytes | None = None, **ext: object) -> Command:
            command = Command(code, ext={name: str(value) for name, value in ext.items()}, body=body)
            v1(account)(command)
            return await group.client.invoke(master.advertised_address, command, 30_000)

        send = {
            "producerGroup": "p", "topic": "Both", "defaultTopic": "TBW102", "defaultTopicQueueNums": 1, "queueId": 0,
            "sysFlag": 0, "bornTimestamp": 1, "flag": 0,
        }  # fmt: skip
        assert (await signed(ADMIN, RequestCode.SEND_MESSAGE, b"first", **send)).code == 0
        fields = {
            "consumerGroup": "New", "topic": "Both", "queueId": 0, "queueOffset": 1, "maxMsgNums": 32, "sysFlag": 6,
            "commitOffset": 0, "suspendTimeoutMillis": 15_000, "subscription": "*", "subVersion": 0,
        }  # fmt: skip
        pulling = asyncio.create_task(signed(USER, RequestCode.PULL_MESSAGE, **fields))
        info = await asyncio.create_task(signed(ADMIN, RequestCode.GET_BROKER_RUNTIME_INFO))  # in the same write
        assert info.code == 0
        await group.until(lambda: master.long_polling.count, "the pull is not parked")
        write_accounts(tmp_path, ACCOUNTS.replace("Both=PUB|SUB", "Both=PUB"))
        await master._access.reload()
        assert (await signed(ADMIN, RequestCode.SEND_MESSAGE, b"second", **send)).code == 0
        assert refused(await pulling) == "No default permission for topic:Both"
