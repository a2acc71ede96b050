"""Access control of a broker over its ports: checks and their texts, strict rights, and 4.9.7's in compatibility mode."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from protected import ACCOUNTS, ADMIN, PREFIX, USER, protected, refused, topics, v1, v2, write_accounts
from wire import Clock, Wire, run, wire

from certificates import write_certificate
from saturnmq.acl.plain import ENTRY_POINTS
from saturnmq.broker import Broker, BrokerSettings
from saturnmq.broker.requests.table import ROUTES
from saturnmq.namesrv import NameServerSettings
from saturnmq.net import CallTimeout, NetSettings, RemotingClient, TlsSettings
from saturnmq.protocol.bodies import LockBatchRequest, MessageQueue
from saturnmq.protocol.codes import RETRY_PREFIX, TRACE_TOPIC, RequestCode
from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import BatchItem, java_hash
from saturnmq.store import StoreProfile, StoreSettings
from waiting import until

STRANGER = ("stranger", "12345678")


@pytest.mark.spec("ACL-01")
def test_nothing_is_checked_by_default(tmp_path: Path) -> None:
    async def work() -> None:
        write_accounts(tmp_path)
        async with wire(acl_home=str(tmp_path)) as w:
            w.sign = v1(STRANGER)
            assert (await w.send("Never")).code == 0 and (await w.call(RequestCode.GET_BROKER_CONFIG)).code == 0
            assert "acl" not in w.broker.rejections.counts

    run(work)
    assert not BrokerSettings().acl_enable


@pytest.mark.spec("ACL-01", "ACL-08")
async def test_each_check_refuses_with_the_text_of_4_9_7(protected: Wire) -> None:
    await topics(protected, "Read")
    protected.sign = None
    answer = await protected.send("Read")
    assert answer.remark == (
        PREFIX + "No accessKey is configured, "
        "org.apache.rocketmq.acl.plain.PlainPermissionManager.validate(PlainPermissionManager.java:663)"
    )
    protected.sign = v1(STRANGER)
    assert refused(await protected.send("Read")) == "No acl config for stranger"
    protected.sign = v1((USER[0], "wrong secret"))
    assert refused(await protected.send("Read")) == "Check signature failed for accessKey=RocketMQ"
    protected.sign = v1(USER)
    assert refused(await protected.send("Read")) == "No default permission for topic:Read"
    assert refused(await protected.send("Other")) == "No default permission for topic:Other"
    answer = await protected.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic="T")
    assert refused(answer) == "Need admin permission for request code=17, but accessKey=RocketMQ is not"
    assert refused(await protected.pull("Both", group="closed")) == "No default permission for group:closed"
    assert protected.broker.rejections.counts["acl"] == 7


@pytest.mark.spec("LIM-04")
async def test_a_valid_signature_exempts_a_connection_from_the_limit_of_strangers(protected: Wire) -> None:
    protected.sign = v1((USER[0], "wrong secret"))
    assert refused(await protected.send("Both"))
    assert [connection.signed for connection in protected.broker.connections] == [False]
    protected.sign = v1(USER)
    await protected.send("Both")
    assert [connection.signed for connection in protected.broker.connections] == [True]


@pytest.mark.spec("ACL-10", "ACL-11", "ACL-12")
@pytest.mark.parametrize("serialization", ["send_v2", "send_v1"])
async def test_rights_decide_about_sends_and_pulls(tmp_path: Path, serialization: str) -> None:
    async def send(w: Wire, topic: str) -> Command:
        if serialization == "send_v2":
            return await w.send(topic)
        return await w.call(
            RequestCode.SEND_MESSAGE, b"body", producerGroup="P", topic=topic, defaultTopic="TBW102", defaultTopicQueueNums=4,
            queueId=0, sysFlag=0, bornTimestamp=1234, flag=0, properties="",
        )  # fmt: skip

    async with protected(tmp_path) as w:
        await topics(w, "Both", "Read", "Write", "Never", "Other")
        w.sign = v1(USER)
        sent = {topic: refused(await send(w, topic)) for topic in ("Both", "Write", "Read", "Never", "Other")}
        assert [topic for topic, text in sent.items() if not text] == ["Both", "Write"]
        for _ in range(3):  # the second and third request may be taken by compiled code
            assert (await send(w, "Both")).code == 0 and refused(await send(w, "Read"))
        pulled = {topic: refused(await w.pull(topic)) for topic in ("Both", "Read", "Write", "Never", "Other")}
        assert [topic for topic, text in pulled.items() if not text] == ["Both", "Read"]
        assert len(await w.messages("Both")) == 4
        w.sign = v1(ADMIN)
        assert (await send(w, "Never")).code == 0 and (await w.pull("Never")).code == 0
        w.sign = v1(("limitedAdmin", "12345678"))
        assert (await send(w, "Both")).code == 0
        assert refused(await w.pull("Both")) and refused(await send(w, "Read"))


@pytest.mark.spec("ACL-02")
async def test_the_fast_port_is_protected_as_well(protected: Wire) -> None:
    await topics(protected, "Both")
    port = next(iter(protected.broker._fast.ports))
    client = RemotingClient(settings=NetSettings())
    try:
        answer = await client.invoke(f"127.0.0.1:{port}", Command(RequestCode.GET_BROKER_RUNTIME_INFO), 5000)
        assert refused(answer) == "No accessKey is configured"
        command = Command(RequestCode.GET_BROKER_RUNTIME_INFO)
        v1(USER)(command)
        assert (await client.invoke(f"127.0.0.1:{port}", command, 5000)).code == 0
    finally:
        await client.close()


@pytest.mark.spec("ACL-10", "SEC-12")
async def test_heartbeats_and_locks_need_what_their_bodies_name(tmp_path: Path) -> None:
    def lock(group: str, topic: str) -> bytes:
        return LockBatchRequest(group, "c1", [MessageQueue(topic, "broker-a", 0)]).encode()

    async with protected(tmp_path) as w:
        await topics(w, "Both", "Write")
        w.sign = v1(USER)
        assert (await w.heartbeat("open", "Both", f"{RETRY_PREFIX}open")).code == 0
        assert refused(await w.heartbeat("closed", "Both")) == "No default permission for group:closed"
        assert refused(await w.heartbeat("open", "Both", "Write")) == "No default permission for topic:Write"
        assert (await w.call(RequestCode.HEART_BEAT, b"nonsense")).code == 1
        for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
            assert (await w.call(code, lock("open", "Both"))).code == 0
            assert refused(await w.call(code, lock("closed", "Both"))) == "No default permission for group:closed"
            assert refused(await w.call(code, lock("open", "Write"))) == "No default permission for topic:Write"
        assert refused(await w.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="closed"))
        text = refused(await w.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP))
        assert text == "the custom field <consumerGroup> is null"
        assert (await w.call(RequestCode.UNREGISTER_CLIENT, clientID="c1", producerGroup="p")).code == 0
        assert refused(await w.call(RequestCode.UNREGISTER_CLIENT, clientID="c1", consumerGroup="closed"))


READS = [
    (RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "open", "queueId": 0}),
    (RequestCode.UPDATE_CONSUMER_OFFSET, {"consumerGroup": "open", "queueId": 0, "commitOffset": 0}),
    (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"queueId": 0, "timestamp": 1}),
    (RequestCode.GET_MAX_OFFSET, {"queueId": 0}),
    (RequestCode.GET_MIN_OFFSET, {"queueId": 0}),
    (RequestCode.GET_EARLIEST_MSG_STORETIME, {"queueId": 0}),
    (RequestCode.QUERY_MESSAGE, {"key": "k", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 1}),
]


@pytest.mark.spec("SEC-12")
@pytest.mark.parametrize(("code", "fields"), READS)
async def test_reading_offsets_needs_sub_on_the_topic(
    protected: Wire, code: RequestCode, fields: dict[str, Any]
) -> None:
    await topics(protected, "Read", "Write")
    protected.sign = v1(USER)
    assert not refused(await protected.call(code, topic="Read", **fields))
    assert refused(await protected.call(code, topic="Write", **fields)) == "No default permission for topic:Write"
    assert refused(await protected.call(code, **fields)) == "the custom field <topic> is null"
    assert refused(await protected.call(code, topic="", **fields)) == "the custom field <topic> is null"


@pytest.mark.spec("SEC-12")
async def test_batches_and_replies_need_pub_on_their_topic(protected: Wire) -> None:
    await topics(protected, "Write", "Read")
    protected.sign = v1(USER)
    items = [BatchItem(b"x", b"", 0)]
    assert (await protected.send_batch(items, "Write")).code == 0
    assert refused(await protected.send_batch(items, "Read")) == "No default permission for topic:Read"
    replies = "DefaultCluster_REPLY_TOPIC"
    for code, name in ((324, "topic"), (325, "b")):
        assert (
            refused(await protected.call(code, b"x", **{name: replies})) == f"No default permission for topic:{replies}"
        )
        # The topic is no way around the right to reply: a reply goes to a client, not to the topic.
        only = f"replies are sent to topic:{replies}, not to topic:Write"
        assert refused(await protected.call(code, b"x", **{name: "Write"})) == only
    protected.sign = v1(ADMIN)
    assert not refused(await protected.call(325, b"x", b=replies))


def same_hash(text: str, prefix: str) -> str:
    """A text that begins with prefix and has the Java hash code of another text."""
    rest, digits = 7, []
    left = java_hash(text) - java_hash(prefix) * 31**rest - sum(64 * 31**n for n in range(rest))
    left %= 2**32
    for _ in range(rest):
        left, digit = divmod(left, 31)
        digits.append(chr(64 + digit))
    return prefix + "".join(reversed(digits))


@pytest.mark.spec("SEC-12", "UPG-12")
async def test_a_query_finds_no_message_of_another_topic_with_the_same_hash(tmp_path: Path) -> None:
    key = same_hash("Never#k", "Both#").removeprefix("Both#")
    assert java_hash(f"Both#{key}") == java_hash("Never#k")
    async with protected(tmp_path) as w:
        await topics(w, "Never", "Both")
        w.sign = v1(ADMIN)
        assert (await w.send("Never", b"hidden", {"KEYS": "k"})).code == 0
        fields = {"maxNum": 32, "beginTimestamp": 0, "endTimestamp": 2**62}
        found = await w.call(RequestCode.QUERY_MESSAGE, topic="Never", key="k", **fields)
        assert b"hidden" in (found.body or b"")
        w.sign = v1(USER)
        answer = await w.call(RequestCode.QUERY_MESSAGE, topic="Both", key=key, **fields)
        assert answer.code == 22 and b"hidden" not in (answer.body or b"")


@pytest.mark.spec("SEC-09")
async def test_admin_changes_over_tls_need_no_listed_address(tmp_path: Path) -> None:
    certificate, private_key = write_certificate(tmp_path, "server")
    write_accounts(tmp_path)
    server = TlsSettings(server_cert_path=str(certificate), server_key_path=str(private_key))
    broker = _broker(tmp_path, acl_plain_admin_addresses="10.0.0.1", tls=server)
    await broker.start()
    plain = RemotingClient(settings=NetSettings())
    secure = RemotingClient(settings=NetSettings(), tls=TlsSettings(enable=True, client_auth_server=False))
    try:
        for client, text in ((plain, "needs TLS"), (secure, "")):
            command = Command(RequestCode.CLEAN_UNUSED_TOPIC)
            v1(ADMIN)(command)
            answer = await client.invoke(broker.address, command, 5000)
            assert text in refused(answer) and bool(text) == bool(refused(answer))
    finally:
        await plain.close()
        await secure.close()
        await broker.stop()


@pytest.mark.spec("SEC-12")
async def test_a_message_is_read_and_moved_only_with_sub_on_its_topic(protected: Wire) -> None:
    await topics(protected, "Never", "Both")
    protected.sign = v1(ADMIN)
    secret = int((await protected.send("Never")).ext["msgId"][16:], 16)
    known = int((await protected.send("Both")).ext["msgId"][16:], 16)
    protected.sign = v1(USER)
    back = {"group": "open", "delayLevel": 1}
    for code, more in ((RequestCode.VIEW_MESSAGE_BY_ID, {}), (RequestCode.CONSUMER_SEND_MSG_BACK, back)):
        assert refused(await protected.call(code, offset=secret, **more)) == "No default permission for topic:Never"
        for nowhere in (known + 1, 2**40, -1, "x"):
            assert refused(await protected.call(code, offset=nowhere, **more)) == "No default permission for topic:"
        assert not refused(await protected.call(code, offset=known, **more))
    assert refused(await protected.call(RequestCode.CONSUMER_SEND_MSG_BACK, offset=known, group="closed", delayLevel=1))


@pytest.mark.spec("SEC-12")
async def test_consuming_directly_needs_sub_and_relays_no_credentials(protected: Wire) -> None:
    await topics(protected, "Never", "Both")
    protected.sign = v1(ADMIN)
    secret, known = [(await protected.send(topic)).ext["msgId"] for topic in ("Never", "Both")]
    protected.sign = v1(USER)
    assert (await protected.heartbeat("open", "Both", client_id="c1")).code == 0
    fields = {"consumerGroup": "open", "clientId": "c1", "timeout_ms": 300}
    answer = await protected.call(RequestCode.CONSUME_MESSAGE_DIRECTLY, msgId=secret, **fields)
    assert refused(answer) == "No default permission for topic:Never"
    assert refused(await protected.call(RequestCode.CONSUME_MESSAGE_DIRECTLY, msgId="x" * 32, **fields))
    for code in (RequestCode.CONSUME_MESSAGE_DIRECTLY, RequestCode.GET_CONSUMER_RUNNING_INFO):
        protected.sign = v1(ADMIN)
        with pytest.raises(CallTimeout):  # this client does not answer
            await protected.call(code, msgId=known, **fields)
        relayed = await protected.pushed.get()
        while relayed.code != code:
            relayed = await protected.pushed.get()
        assert relayed.ext["consumerGroup"] == "open"
        assert not relayed.ext.keys() & {"AccessKey", "Signature"}


@pytest.mark.spec("SEC-12")
async def test_ending_a_transaction_needs_pub_on_the_topic_of_its_message(protected: Wire) -> None:
    await topics(protected, "Never", "Both")

    async def end(topic: str) -> str:
        protected.sign = v1(ADMIN)
        half = await protected.send(topic, properties={"TRAN_MSG": "true", "PGROUP": "producers"}, f=4)
        protected.sign = v1(USER)
        return refused(
            await protected.call(
                RequestCode.END_TRANSACTION, producerGroup="producers", tranStateTableOffset=half.ext["queueOffset"],
                commitLogOffset=int(half.ext["msgId"][16:], 16), commitOrRollback=8, msgId="x",
            )
        )  # fmt: skip

    assert await end("Never") == "No default permission for topic:Never"
    assert await end("Both") == ""
    assert len(await protected.messages("Both")) == 1


@pytest.mark.spec("SEC-12", "TX-09")
@pytest.mark.parametrize("strangers", [1, 30])
async def test_half_messages_are_shown_only_to_producers_with_the_right(tmp_path: Path, strangers: int) -> None:
    async with protected(tmp_path, transaction_timeout_ms=0, transaction_interval_ms=500) as w:
        await topics(w, "Never")
        half = await w.send("Never", b"hidden", properties={"TRAN_MSG": "true", "PGROUP": "producers"}, f=4)
        assert half.code == 0
        others = [Wire(w.server) for _ in range(strangers)]
        for other in others:
            other.sign = v1(USER)
            assert (await other.heartbeat("open", client_id="stranger")).code == 0
        pending = w.broker.master.transactions.table.pending
        await until(lambda: all(half.checks > 2 for half in pending.values()))
        assert (await w.heartbeat("honest")).code == 0
        while (asked := await w.pushed.get()).code != RequestCode.CHECK_TRANSACTION_STATE:
            pass
        assert asked.body is not None and b"hidden" in asked.body
        for other in others:
            seen = [other.pushed.get_nowait() for _ in range(other.pushed.qsize())]
            assert not any(command.code == RequestCode.CHECK_TRANSACTION_STATE for command in seen)
            await other.client.close()


@pytest.mark.spec("SEC-12")
async def test_retry_topics_need_sub_on_the_group_that_they_name(protected: Wire) -> None:
    await topics(protected, f"{RETRY_PREFIX}open", f"{RETRY_PREFIX}closed")
    protected.sign = v1(USER)
    assert (await protected.send(f"{RETRY_PREFIX}open", a="CLIENT_INNER_PRODUCER")).code == 0
    assert refused(await protected.send(f"{RETRY_PREFIX}closed", a="open")) == "No default permission for group:closed"


@pytest.mark.spec("SEC-12")
async def test_a_default_right_does_not_cover_internal_topics(tmp_path: Path) -> None:
    text = ACCOUNTS.replace("defaultTopicPerm: DENY", "defaultTopicPerm: SUB")
    async with protected(tmp_path, text) as w:
        w.sign = v1(USER)
        for topic in ("RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX"):
            assert refused(await w.pull(topic)) == f"No default permission for topic:{topic}"
        assert not refused(await w.pull("Anything"))


@pytest.mark.spec("SEC-12", "ACL-09", "SEC-20")
@pytest.mark.parametrize("code", [17, 25, 50, 51, 52, 53, 54, 200, 207, 215, 222, 306, 314, 316, 323, 329])
async def test_administrative_codes_need_the_flag_admin(
    protected: Wire, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    protected.sign = v1(USER)
    text = f"Need admin permission for request code={code}, but accessKey=RocketMQ is not"
    assert refused(await protected.call(code)) == text
    protected.sign = v1(ADMIN)
    assert not refused(await protected.call(code, topic="T"))
    lines = [record.getMessage() for record in caplog.records if record.name == "saturnmq.audit"]
    assert [re.sub(r"time=20\S+|127.0.0.1:\d+", "*", line).partition(" name=")[0] for line in lines] == [
        f"admin request * account={account} peer=* code={code}" for account, _ in (USER, ADMIN)
    ]
    assert ' result="refused: ' in lines[0] and "Need admin permission" in lines[0] and "topic=T" in lines[1]


@pytest.mark.spec("ACL-06", "ACL-21", "SEC-11")
async def test_white_lists_grant_nothing_but_the_reads_of_a_slave(tmp_path: Path) -> None:
    text = ACCOUNTS.replace("Addresses: []", "Addresses: [127.0.0.*]").replace(
        "whiteRemoteAddress:\n", "whiteRemoteAddress: 10.0.0.1\n"
    )
    async with protected(tmp_path, text) as w:
        await topics(w, "Both")
        w.sign = None
        for code in (21, 43, 45, 201):
            assert (await w.call(code)).code == 0
        for code in sorted({int(route.code) for route in ROUTES} - {21, 43, 45, 201}):
            assert refused(await w.call(code)) == "No accessKey is configured", code
        w.sign = v1(USER)
        wanted = "Address 127.0.0.1 is not in whiteRemoteAddress of accessKey=RocketMQ"
        assert refused(await w.send("Both")) == wanted and refused(await w.call(21)) == wanted


@pytest.mark.spec("ACL-06", "SEC-11")
async def test_white_lists_pass_unchecked_in_compatibility_mode(tmp_path: Path) -> None:
    text = ACCOUNTS.replace("whiteRemoteAddress:\n", "whiteRemoteAddress: 127.0.0.*\n")
    async with protected(tmp_path, text, acl_compat=True) as w:
        await topics(w, "Never")
        w.sign = v1((USER[0], "any secret"))
        assert (await w.send("Never")).code == 0
        w.sign = None
        assert refused(await w.send("Never")) == "No accessKey is configured"
    async with protected(tmp_path, text.replace("Addresses: []", "Addresses: [127.0.0.1]"), acl_compat=True) as w:
        w.sign = None
        assert (await w.send("Never")).code == 0
        assert (await w.call(RequestCode.CLEAN_UNUSED_TOPIC)).code == 0
        w.sign = v1(STRANGER)
        assert (await w.send("Never")).code == 0


@pytest.mark.spec("SEC-12", "ACL-10")
async def test_compatibility_mode_checks_what_4_9_7_checks(tmp_path: Path) -> None:
    async with protected(tmp_path, acl_compat=True) as w:
        await topics(w, "Never", "Both", f"{RETRY_PREFIX}closed")
        w.sign = v1(ADMIN)
        secret = int((await w.send("Never")).ext["msgId"][16:], 16)
        w.sign = v1(USER)
        assert (await w.send_batch([BatchItem(b"x", b"", 0)], "Never")).code == 0
        assert (await w.call(RequestCode.GET_MAX_OFFSET, topic="Never", queueId=0)).code == 0
        assert (await w.call(RequestCode.VIEW_MESSAGE_BY_ID, offset=secret)).code == 0
        assert (await w.send(f"{RETRY_PREFIX}closed", a="open")).code == 0
        assert refused(await w.send(f"{RETRY_PREFIX}open", a="closed")) == "No default permission for group:closed"
        answer = await w.call(
            RequestCode.SEND_MESSAGE, b"x", producerGroup="P", topic=f"{RETRY_PREFIX}closed", defaultTopic="TBW102",
            defaultTopicQueueNums=4, queueId=0, sysFlag=0, bornTimestamp=1, flag=0,
        )  # fmt: skip
        assert answer.code == 0
        assert (await w.call(RequestCode.CLEAN_UNUSED_TOPIC)).code == 0
        assert (await w.call(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)).code == 0
        assert refused(await w.call(17)) and refused(await w.send("Never")) and refused(await w.pull("Never"))
        assert refused(await w.call(15)) == "the custom field <consumerGroup> is null"


@pytest.mark.spec("SEC-09")
async def test_plain_admin_changes_need_tls_or_a_listed_address(tmp_path: Path) -> None:
    assert (
        BrokerSettings().acl_plain_admin_addresses == NameServerSettings().acl_plain_admin_addresses == "127.*.*.*,::1"
    )
    async with protected(tmp_path, acl_plain_admin_addresses="10.0.0.1") as w:
        create = {
            "topic": "T", "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6,
            "topicFilterType": "SINGLE_TAG",
        }  # fmt: skip
        w.sign = v1(ADMIN)
        assert "needs TLS, signature version 2" in refused(await w.call(17, **create))
        for code in (25, 50, 51, 53, 200, 207, 215, 222, 306, 314, 316, 323, 329):
            assert "needs TLS" in refused(await w.call(code, b"brokerPermission=6")), code
        assert (await w.call(54)).code == 0  # changes nothing
        w.sign = v2(ADMIN, w.broker._clock_ms)
        assert (await w.call(17, **create)).code == 0
    async with protected(tmp_path, acl_plain_admin_addresses="10.0.0.1", acl_compat=True) as w:
        assert (await w.call(17, **create)).code == 0


@pytest.mark.spec("SEC-09", "SEC-10", "G12")
@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_a_captured_admin_request_cannot_be_used_again(tmp_path: Path, version: str) -> None:
    captured: list[Command] = []
    create = {
        "topic": "First", "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6,
        "topicFilterType": "SINGLE_TAG",
    }  # fmt: skip

    def sign_as(account: tuple[str, str], clock: Clock) -> Callable[[Command], None]:
        return v1(account) if version == "v1" else v2(account, clock)

    async def again(w: Wire, code: int, **changed: str) -> str:
        """Send the captured request with another code or fields; returns the refusal."""
        (command,) = captured
        w.sign = lambda sent: setattr(sent, "ext", dict(command.ext) | changed)
        return refused(await w.call(code, command.body))

    clock = Clock()
    async with protected(tmp_path, clock=clock, acl_plain_admin_addresses="") as w:
        sign = sign_as(ADMIN, clock)

        def capture(command: Command) -> None:
            sign(command)
            captured.append(Command(command.code, ext=dict(command.ext), body=command.body))

        w.sign = capture
        answer = await w.call(RequestCode.UPDATE_AND_CREATE_TOPIC, **create)
        assert (answer.code == 0) == (version == "v2") and ("First" in w.broker.topics.table) == (version == "v2")
        changes = [
            (RequestCode.UPDATE_AND_CREATE_TOPIC, {}),
            (RequestCode.DELETE_TOPIC_IN_BROKER, {}),
            (RequestCode.UPDATE_AND_CREATE_TOPIC, {"defaultTopic": "TBW1024", "perm": "6", "readQueueNums": ""}),
            (RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "Second"}),
        ]
        for code, changed in changes:
            assert await again(w, code, **changed), (code, changed)
        assert "Second" not in w.broker.topics.table and ("First" in w.broker.topics.table) == (version == "v2")


@pytest.mark.spec("SEC-10")
async def test_a_request_of_version_2_is_accepted_once_and_for_five_minutes(tmp_path: Path) -> None:
    text = ACCOUNTS + "    signatureVersion: 2\n"  # of limitedAdmin
    limited = ("limitedAdmin", "12345678")
    clock = Clock()
    async with protected(tmp_path, text, clock=clock) as w:
        await topics(w, "Both")
        w.sign = v1(limited)
        assert refused(await w.send("Both")) == "Signature version 2 is required for accessKey=limitedAdmin"
        w.sign = v2(limited, clock)
        assert (await w.send("Both")).code == 0
        kept: list[dict[str, str]] = []

        def keep(command: Command) -> None:
            v2(limited, clock)(command)
            kept.append(dict(command.ext))

        w.sign = keep
        clock.ms += 1
        assert (await w.send("Both")).code == 0
        w.sign = lambda command: setattr(command, "ext", dict(kept[0]))
        assert refused(await w.send("Both")) == "Signature of accessKey=limitedAdmin was used before"
        for ms in (-300_001, 300_001):
            w.sign = v2(limited, lambda ms=ms: clock.ms + ms)  # type: ignore[misc]
            assert "differs by 300001 ms from this broker's clock" in refused(await w.send("Both"))
        w.sign = v2(limited, lambda: clock.ms - 1000)
        assert "is before the start of this broker" in refused(await w.send("Both"))
        clock.ms += 300_002
        w.sign = lambda command: setattr(command, "ext", dict(kept[0]))
        assert "differs by 300002 ms" in refused(await w.send("Both"))
        w.sign = v1(ADMIN)
        assert len(await w.messages("Both")) == 2


@pytest.mark.spec("ACL-13", "SEC-14")
async def test_the_trace_topic_is_free_within_a_quota_per_key(tmp_path: Path) -> None:
    clock = Clock()
    async with protected(tmp_path, clock=clock, acl_trace_bytes=100, trace_topic_enable=True) as w:
        w.sign = v1(USER)
        assert (await w.send(TRACE_TOPIC, b"x" * 900)).code == 0
        answer = await w.send(TRACE_TOPIC, b"x" * 101)
        assert answer.code == 2 and "aclTraceBytesPerSecond=100" in (answer.remark or "")
        assert (await w.send(TRACE_TOPIC, b"x" * 100)).code == 0
        assert refused(await w.pull(TRACE_TOPIC)) == f"No default permission for topic:{TRACE_TOPIC}"
        w.sign = v1(ADMIN)
        assert (await w.send(TRACE_TOPIC, b"x" * 100)).code == 0
        w.sign = v1(USER)
        clock.ms += 1000
        assert (await w.send(TRACE_TOPIC, b"x" * 100)).code == 0
        assert (await w.send(TRACE_TOPIC, b"x")).code == 2


def _broker(home: Path, *, tls: TlsSettings | None = None, **settings: Any) -> Broker:
    return Broker(
        BrokerSettings(acl_enable=True, acl_home=str(home), listen_port=0, fast_port_enable=False, **settings),
        StoreSettings(store_path_root_dir=str(home / "store"), profile=StoreProfile.SMALL),
        NetSettings(),
        tls=tls,
    )


@pytest.mark.spec("ACL-03", "SEC-13")
async def test_an_account_file_that_others_can_read_stops_the_start(tmp_path: Path) -> None:
    write_accounts(tmp_path, mode=0o640)
    with pytest.raises(ConfigError, match=r"plain_acl.yml: its mode is 0640 .* `chmod 600"):
        await _broker(tmp_path).start()
    broker = _broker(tmp_path, acl_compat=True)
    await broker.start()
    await broker.stop()


@pytest.mark.spec("ACL-02")
def test_an_unknown_validator_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="aclValidators=nowhere: no such validator is installed, known are plain"):
        _broker(tmp_path, acl_validators="plain,nowhere")


@pytest.mark.spec("ACL-02")
async def test_all_listed_validators_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from saturnmq.acl.rules import Access, AccessDenied

    class NoReads:
        def __init__(self, properties: dict[str, str]) -> None:
            assert properties["aclEnable"] == "true"

        def validate(self, access: Access) -> str:
            if access.command.code == RequestCode.GET_BROKER_CONFIG:
                raise AccessDenied(f"not for {access.host}")
            if access.command.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                raise ZeroDivisionError("a defect of the validator")
            return "other"

    class Point:
        name = "noreads"

        def load(self) -> type[NoReads]:
            return NoReads

    monkeypatch.setattr(metadata, "entry_points", lambda group: [Point()] if group == ENTRY_POINTS else [])
    async with protected(tmp_path, acl_validators="plain, noreads") as w:
        w.sign = v1(USER)
        assert (await w.call(RequestCode.GET_BROKER_RUNTIME_INFO)).code == 0
        assert refused(await w.call(RequestCode.GET_BROKER_CONFIG)) == "not for 127.0.0.1"
        defect = await w.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="open")
        assert (defect.code, defect.remark, defect.body) == (1, "ZeroDivisionError: a defect of the validator", None)
        w.sign = None
        assert refused(await w.call(RequestCode.GET_BROKER_RUNTIME_INFO)) == "No accessKey is configured"
