"""A master and its slave with access control: TLS, the secret of the HA port, and the account by which a slave copies tables."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from brokerpair import Pair, pair
from protected import ACCOUNTS, ADMIN, v1, write_accounts

from certificates import write_certificate
from saturnmq.net import TlsSettings
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.signatures import SIGNATURE_TIME
from saturnmq.replication.masterslave.settings import HaSettings
from waiting import until

WORD = "sixteen bytes or more"
MADE: dict[str, Any] = {
    "topic": "made", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
    "topicFilterType": "SINGLE_TAG", "order": "false",
}  # fmt: skip
ACCOUNT: dict[str, Any] = {"access_key": ADMIN[0], "secret_key": ADMIN[1]}


def enforcing(folder: Path) -> TlsSettings:
    certificate, key = write_certificate(folder, "cluster")
    return TlsSettings(
        mode="enforcing",
        enable=True,
        server_cert_path=str(certificate),
        server_key_path=str(key),
        client_trust_path=str(certificate),
    )


def protected(root: Path, **more: Any) -> dict[str, Any]:
    write_accounts(root)
    return {"acl_enable": True, "acl_home": str(root), "fast_port_enable": False, **more}


@pytest.mark.spec("SEC-19")
async def test_a_protected_pair_replicates_log_and_tables(tmp_path: Path) -> None:
    secret = {"cluster_secret": WORD}
    settings = protected(tmp_path, tls=enforcing(tmp_path), master_ha=secret, slave_ha=secret | ACCOUNT)
    async with pair(tmp_path, **settings) as both:
        both.sign = v1(ADMIN)
        assert (await both.send(both.master, b"1")).code == 0
        await both.replicated()
        assert [message.body for message in await both.messages(both.slave)] == [b"1"]
        assert "ha" not in both.master.unauthenticated
        await until(lambda: both.slave.groups.version == both.master.groups.version)


@pytest.mark.spec("ACL-21")
async def test_an_unsigned_slave_copies_tables_from_the_white_list(tmp_path: Path) -> None:
    secret = {"cluster_secret": WORD}
    settings = protected(tmp_path, master_ha=secret, slave_ha=secret)
    write_accounts(tmp_path, ACCOUNTS.replace("Addresses: []", "Addresses: [127.0.0.1]"))
    async with pair(tmp_path, **settings) as both:
        fields: list[set[str]] = []

        def noted(handler: Any) -> Any:
            def handle(connection: Any, request: Any) -> Any:
                if request.code in {21, 43, 45, 201}:
                    fields.append(set(request.ext))
                return handler(connection, request)

            return handle

        both.master.intercept(noted)
        both.sign = v1(ADMIN)
        answer = await both.call(both.master, RequestCode.UPDATE_AND_CREATE_TOPIC, **MADE)
        assert answer.code == 0
        await until(lambda: "made" in both.slave.topics.table)
        assert fields and not set().union(*fields) & {"AccessKey", "Signature"}


@pytest.mark.spec("ACL-21")
@pytest.mark.parametrize(
    ("account", "refusal"),
    [({}, "accessKey"), ({"access_key": "RocketMQ", "secret_key": "87654321"}, "Need admin permission")],
)
async def test_a_slave_without_an_administrators_account_copies_no_tables(
    tmp_path: Path, account: dict[str, Any], refusal: str, caplog: pytest.LogCaptureFixture
) -> None:
    secret = {"cluster_secret": WORD}
    async with pair(tmp_path, **protected(tmp_path, master_ha=secret, slave_ha=secret | account)) as both:
        both.sign = v1(ADMIN)
        answer = await both.call(both.master, RequestCode.UPDATE_AND_CREATE_TOPIC, **MADE)
        assert answer.code == 0
        await until(lambda: caplog.text.count("copy from master failed") == 4)
        assert "made" not in both.slave.topics.table
        assert refusal in caplog.text


@pytest.mark.parametrize("version", [1, 2])
async def test_copies_are_signed_with_the_version_that_is_set(tmp_path: Path, version: int) -> None:
    """A Java master knows version 1 only."""
    secret = {"cluster_secret": WORD}
    ha = secret | ACCOUNT | {"signature_version": version}
    async with pair(tmp_path, **protected(tmp_path, master_ha=secret, slave_ha=ha)) as both:
        asked: list[tuple[int, bool]] = []

        def noted(handler: Any) -> Any:
            def handle(connection: Any, request: Any) -> Any:
                asked.append((request.code, SIGNATURE_TIME in request.ext))
                return handler(connection, request)

            return handle

        both.master.intercept(noted)
        both.sign = v1(ADMIN)
        await both.send(both.master)
        await both.replicated()
        copies = {21, 43, 45, 201}
        await until(lambda: copies <= {code for code, _ in asked})
        assert {timed for code, timed in asked if code in copies} == {version == 2}


def test_account_keys_are_checked() -> None:
    assert "must be set together" in HaSettings(access_key="someone").validate()[0]
    assert HaSettings().signer is None


# ---- progress of delivery


def timer_file(both: Pair) -> dict[str, int]:
    path = both.root / "slave" / "config" / "timer.json"
    return json.loads(path.read_text()) if path.exists() else {}


async def send_timed(both: Pair, seconds: int) -> None:
    answer = await both.call(
        both.master, RequestCode.SEND_MESSAGE_V2, b"timed", a="p", b="T", c="TBW102", d=4, e=0, f=0, g=1, h=0,
        i=f"TIMER_DELAY_SEC\x01{seconds}", j=0, k="false", m="false",
    )  # fmt: skip
    assert answer.code == 0


@pytest.mark.spec("DUR-19")
async def test_timed_messages_are_not_delivered_again_by_a_promoted_slave(pair: Pair) -> None:
    await pair.send(pair.master, b"plain")
    await send_timed(pair, 5)
    await send_timed(pair, 600)
    await until(lambda: pair.master.store.max_offset("T", 0) == 2)
    end = pair.master.store.log.end
    await until(lambda: timer_file(pair).get("logEnd", 0) >= end, 120)
    await pair.replicated()
    await pair.stop_one(pair.master)
    await pair.stop_one(pair.slave)
    promoted = await pair._broker("slave", HaSettings())
    await asyncio.sleep(60)  # poll
    assert [message.body for message in await pair.messages(promoted)] == [b"plain", b"timed"]
    await pair.send(promoted, b"later")
    assert promoted.store.max_offset("T", 0) == 3


@pytest.mark.spec("DUR-19")
async def test_progress_is_written_once_the_log_of_the_slave_covers_it(pair: Pair) -> None:
    await pair.send(pair.master, b"plain")
    await pair.replicated()
    copy = pair.slave.ha_slave.copy  # type: ignore[union-attr]
    await pair.slave.ha_slave.client.stop()  # type: ignore[union-attr]
    await send_timed(pair, 1)
    await until(lambda: pair.master.store.max_offset("T", 0) == 2)
    before = timer_file(pair)
    end = pair.master.store.log.end
    for _ in range(3):
        await copy.copy()
        await asyncio.sleep(20)  # poll
    assert pair.master.store.flushed_offset == end
    assert timer_file(pair) == before
    pair.slave.ha_slave.client.start()  # type: ignore[union-attr]
    await until(lambda: timer_file(pair).get("logEnd", 0) >= end, 120)
    assert pair.slave.store.flushed_offset >= end


@pytest.mark.parametrize(
    "text", ["", "{}", "[" * 20_000, '{"doneMs": 1e999, "logEnd": 0}', '{"doneMs": -1, "logEnd": 0}', '{"doneMs": "x"}']
)
async def test_impossible_progress_of_timed_messages_is_refused(
    pair: Pair, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    await pair.send(pair.master)
    await pair.replicated()
    caplog.clear()
    pair.master.master.timer.published_progress = lambda: text  # type: ignore[method-assign]
    copy = pair.slave.ha_slave.copy  # type: ignore[union-attr]
    before = timer_file(pair)
    await copy.copy()
    assert "table=delay offsets" in caplog.text
    assert timer_file(pair) == before
    assert not copy._errors["groups"]


@pytest.mark.spec("MS-04")
async def test_copied_offsets_do_not_exceed_the_slaves_queues(pair: Pair) -> None:
    """The slave may become the master and use the offsets in between again: their messages would be skipped."""
    await pair.send(pair.master)
    await pair.replicated()
    await pair.slave.ha_slave.client.stop()  # type: ignore[union-attr]
    await pair.send(pair.master)
    await pair.send(pair.master)
    copy = pair.slave.ha_slave.copy  # type: ignore[union-attr]
    fields = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 3}
    await pair.call(pair.master, RequestCode.UPDATE_CONSUMER_OFFSET, **fields)
    await copy.copy()
    assert pair.slave.offsets.get("T", "G", 0) == 1
    pair.slave.ha_slave.client.start()  # type: ignore[union-attr]
    await pair.replicated()
    await copy.copy()
    assert pair.slave.offsets.get("T", "G", 0) == 3
