"""Sends over the wire: responses, rejections, and the stored records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from wire import Clock, wire

from loopsteps import STEP_MAX, loop_steps
from saturnmq.protocol.bodies import TopicConfig
from saturnmq.protocol.codes import FORBIDDEN_SEND_TOPICS, RequestCode
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.ids import parse_offset_message_id
from saturnmq.protocol.message import BATCH_MESSAGES_MAX, BatchItem, Host, decode_record, encode_batch
from saturnmq.store import FlushDiskType, PutResult, PutStatus, StoreSettings


def remark(command: Command) -> str:
    return command.remark or ""


@pytest.mark.spec("SND-01", "SND-10", "SND-13", "MSG-05")
async def test_sent_message_is_stored_completely() -> None:
    async with wire() as w:
        raw = "KEYS\x01k\x02UNIQ_KEY\x01ABC\x02WAIT\x01true\x02TAGS\x01t"
        answer = await w.send(raw=raw, queue=2, h=77, j=3)
        assert answer.code == 0 and answer.remark is None
        assert answer.ext["MSG_REGION"] == "DefaultRegion" and answer.ext["TRACE_ON"] == "true"
        assert (answer.ext["queueId"], answer.ext["queueOffset"]) == ("2", "0")
        (stored,) = await w.messages(queue=2)
        host, offset = parse_offset_message_id(answer.ext["msgId"])
        assert (stored.physical_offset, stored.store_host) == (offset, host)
        assert host == Host("127.0.0.1", int(w.server.broker_address.split(":")[1]))
        assert (stored.body, stored.flag, stored.reconsume_times, stored.born_timestamp_ms) == (
            b"body",
            77,
            3,
            1234,
        )
        (connection,) = w.client.connections
        assert f"{stored.born_host.ip}:{stored.born_host.port}" == connection.local_address
        assert stored.properties == {"KEYS": "k", "UNIQ_KEY": "ABC", "TAGS": "t", "CLUSTER": "DefaultCluster"}
        assert stored.properties_raw == b"KEYS\x01k\x02UNIQ_KEY\x01ABC\x02TAGS\x01t\x02CLUSTER\x01DefaultCluster"


@pytest.mark.spec("SND-10")
@pytest.mark.parametrize(
    ("raw", "stored"),
    [
        ("", "CLUSTER\x01C"),
        ("WAIT\x01true", "CLUSTER\x01C"),
        ("WAIT\x01false\x02A\x01b", "A\x01b\x02CLUSTER\x01C"),
        ("A\x01b\x02WAIT\x01true", "A\x01b\x02CLUSTER\x01C"),
        ("A\x01b\x02", "A\x01b\x02CLUSTER\x01C"),
        ("CLUSTER\x01old\x02A\x01b", "A\x01b\x02CLUSTER\x01C"),
        ("NOWAIT\x01x\x02A\x01WAIT\x01b", "NOWAIT\x01x\x02A\x01WAIT\x01b\x02CLUSTER\x01C"),
    ],
)
async def test_wait_is_removed_and_cluster_added_to_properties(raw: str, stored: str) -> None:
    async with wire(cluster_name="C") as w:
        assert (await w.send(raw=raw)).code == 0
        (message,) = await w.messages()
        assert message.properties_raw.decode() == stored


@pytest.mark.spec("SND-01", "SND-04", "PR-29")
@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ("", "The specified topic is blank."),
        (" \t", "The specified topic is blank."),
        ("../x", "contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
        ("a b", "contains illegal characters"),
        ("t" * 128, "is longer than topic max length."),
    ],
)
async def test_illegal_topic_is_rejected_without_disconnect(topic: str, words: str) -> None:
    async with wire() as w:
        answer = await w.send(topic)
        assert answer.code == 1 and words in remark(answer)
        assert answer.ext["MSG_REGION"] == "DefaultRegion"
        assert (await w.send("t" * 127)).code == 0
        assert len(w.client.connections) == 1


FORBIDDEN = ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
             "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT")  # fmt: skip


@pytest.mark.spec("SND-05")
@pytest.mark.parametrize("topic", sorted({*FORBIDDEN, *FORBIDDEN_SEND_TOPICS}))
async def test_send_to_system_topic_is_rejected(topic: str) -> None:
    async with wire() as w:
        answer = await w.send(topic)
        assert (answer.code, answer.remark) == (16, f"Sending message to topic[{topic}] is forbidden.")


@pytest.mark.spec("SND-06", "UX-08")
async def test_unknown_topic_is_auto_created_or_rejected() -> None:
    async with wire(default_queues=6) as w:
        assert (await w.send("narrow", d=3)).code == 0
        assert (await w.send("wide", d=50)).code == 0
        table = w.broker.topics.table
        assert (table["narrow"].write_queue_nums, table["narrow"].perm) == (3, 6)
        assert table["wide"].read_queue_nums == 6
        other = await w.send("other", c="narrow")
        assert other.code == 17 and remark(other).startswith("topic[other] not exist, apply first please!")
        assert (await w.send("%RETRY%G")).code == 0
        assert table["%RETRY%G"].write_queue_nums == 1
    async with wire(auto_create_topic=False) as w:
        refused = await w.send("new")
        assert refused.code == 17 and "autoCreateTopicEnable=false" in remark(refused)
        assert "updateTopic" in remark(refused)
        assert "new" not in w.broker.topics.table


@pytest.mark.spec("SND-06")
async def test_auto_created_topic_copies_write_queues_and_perm() -> None:
    async with wire() as w:
        topics = w.broker.topics
        topics.table["pattern"] = TopicConfig("pattern", read_queue_nums=9, write_queue_nums=3, perm=5)
        changed: list[str] = []
        topics.changed.subscribe(lambda configs: changed.extend(config.topic_name for config in configs))
        before = topics.version
        assert (await w.send("made", c="pattern", d=50)).code == 0
        made = topics.table["made"]
        assert (made.read_queue_nums, made.write_queue_nums, made.perm) == (3, 3, 4)
        assert topics.version.counter == before.counter + 1 and changed == ["made"]
        assert (await w.send("made", c="pattern", d=50)).code == 0
        assert topics.version.counter == before.counter + 1 and changed == ["made"], "once"


@pytest.mark.spec("SND-07")
async def test_queue_id_limit_counts_read_queues() -> None:
    async with wire() as w:
        w.broker.topics.table["T"] = TopicConfig("T", read_queue_nums=4, write_queue_nums=2)
        assert (await w.send(queue=3)).code == 0
        assert (await w.send(queue=4)).code == 1
        assert {int((await w.send(queue=-1)).ext["queueId"]) for _ in range(8)} == {0, 1}


@pytest.mark.spec("SND-07")
async def test_invalid_queue_id_is_named_and_negative_one_replaced() -> None:
    async with wire() as w:
        answer = await w.send(queue=4)
        assert answer.code == 1
        assert remark(answer).startswith("request queueId[4] is illegal, TopicConfig [topicName=T, readQueueNums=4")
        assert " Producer: 127.0.0.1:" in remark(answer)
        for _ in range(8):
            assert int((await w.send(queue=-1)).ext["queueId"]) in range(4)


@pytest.mark.spec("SND-03", "SND-08", "NS-35", "OPS-03")
async def test_draining_broker_rejects_only_order_topics() -> None:
    async with wire(broker_permission=4) as w:
        assert (await w.send("T")).code == 0
        w.broker.topics.table["T"].order = True
        answer = await w.send("T")
        assert (answer.code, answer.remark) == (16, "the broker[127.0.0.1] sending message is forbidden")
        w.broker.topics.table["T"].order = False
        w.broker.topics.table["T"].perm = 4
        assert (await w.send("T")).code == 0
        assert {c.perm for c in w.broker.topics.registered().topic_config_table.values()} == {4}


@pytest.mark.spec("SND-02")
async def test_send_before_start_time_is_rejected() -> None:
    clock = Clock()
    until = clock.ms + 1
    async with wire(accept_send_from_ms=until, clock_ms=clock) as w:
        answer = await w.send()
        assert (answer.code, answer.remark) == (1, f"broker unable to service, until {until}")
        clock.ms += 1
        assert (await w.send()).code == 0


@pytest.mark.spec("SND-09")
async def test_retry_topic_requires_group_and_ends_in_dlq() -> None:
    async with wire() as w:
        assert (await w.send("%RETRY%G", j=15)).code == 0
        assert (await w.send("%RETRY%G", j=16)).code == 0
        assert (await w.send("%RETRY%G", j=2, l=2)).code == 0
        assert (await w.send("%RETRY%G", j=2, l=2, version=121)).code == 0
        assert (await w.send("%RETRY%G", j=2, l=2, version=120)).code == 0
        assert w.broker.store.max_offset("%DLQ%G", 0) == 3
        assert w.broker.store.max_offset("%RETRY%G", 0) == 2
        dead = w.broker.topics.table["%DLQ%G"]
        assert (dead.read_queue_nums, dead.write_queue_nums, dead.perm) == (1, 1, 6)
    async with wire(auto_create_group=False) as w:
        answer = await w.send("%RETRY%G")
        assert answer.code == 26 and "G" in remark(answer)


@pytest.mark.spec("SND-11")
async def test_multi_tag_topic_flags_its_messages() -> None:
    async with wire() as w:
        await w.send()
        w.broker.topics.table["T"].topic_filter_type = "MULTI_TAG"
        await w.send()
        await w.send_batch([BatchItem(b"one"), BatchItem(b"two")], queue=0)
        assert [m.sys_flag for m in await w.messages()] == [0, 2, 2, 2]


@pytest.mark.spec("SND-12", "TX-03")
async def test_transactional_message_is_rejected_if_disabled() -> None:
    async with wire() as w:
        assert (await w.send(properties={"TRAN_MSG": "false", "DELAY": "0"})).code == 0
        assert len(await w.messages()) == 1
    async with wire(reject_transactions=True) as w:
        answer = await w.send(properties={"TRAN_MSG": "true"})
        text = "the broker[127.0.0.1] sending transaction message is forbidden"
        assert (answer.code, answer.remark) == (16, text)


@pytest.mark.spec("SND-14", "BAT-02", "ST-05", "ST-06")
async def test_oversized_send_is_rejected_with_limit() -> None:
    async with wire(store={"message_bytes_max": 1000, "profile": wire_profile()}) as w:
        assert (await w.send(body=b"x" * 1000)).code == 0
        big = await w.send(body=b"x" * 1001)
        assert big.code == 13 and "1001" in remark(big) and "1000B" in remark(big)
        longest = "p\x01" + "v" * (32767 - 2 - len("\x02CLUSTER\x01DefaultCluster"))
        assert (await w.send(raw=longest)).code == 0
        assert (await w.send(raw=longest + "v")).code == 13
        batch = await w.send_batch([BatchItem(b"x" * 600), BatchItem(b"x" * 600)])
        assert batch.code == 13
        assert w.broker.store.max_offset("T", 1) == 0
        for size, code in ((1000 - 22 - 22 - 500, 0), (1000 - 22 - 22 - 499, 13)):  # 22: bytes around a body
            assert (await w.send_batch([BatchItem(b"x" * 500), BatchItem(b"x" * size)])).code == code
        assert StoreSettings().message_bytes_max == 4_194_304


@pytest.mark.spec("SND-14")
async def test_record_with_all_parts_at_limit_fits_64_kib_overhead() -> None:
    async with wire(store={"message_bytes_max": 1000, "profile": wire_profile()}) as w:
        longest = "p\x01" + "v" * (32767 - 2 - len("\x02CLUSTER\x01DefaultCluster"))
        assert (await w.send("t" * 127, b"x" * 1000, raw=longest)).code == 0
        (message,) = await w.messages("t" * 127)
        assert 1000 + 127 + 32767 < message.store_bytes <= 1000 + 65536


def wire_profile() -> Any:
    from saturnmq.store import StoreProfile

    return StoreProfile.SMALL


@pytest.mark.spec("SND-15", "FLU-01")
async def test_sync_flush_answers_when_durable_without_blocking_others() -> None:
    async with wire(store={"flush_disk_type": FlushDiskType.SYNC_FLUSH, "profile": wire_profile()}) as w:
        answers = await asyncio.gather(*(w.send(queue=n % 4) for n in range(64)))
        assert {a.code for a in answers} == {0}
        assert w.broker.store.flushed_offset == w.broker.store.max_physical_offset
        real = w.broker.store.when_confirmed
        held: list[tuple[PutResult, Callable[[PutStatus, str], object]]] = []
        w.broker.store.when_confirmed = lambda *one: held.append(one)  # type: ignore[method-assign]
        pending = asyncio.create_task(w.send())
        while not w.broker.in_flight.sends:
            await asyncio.sleep(0)
        assert (await w.call(RequestCode.GET_MAX_OFFSET, topic="T", queueId=0)).code == 0
        no_wait = await w.send(properties={"WAIT": "false"})
        assert no_wait.code == 0 and not pending.done()
        assert len(held) == w.broker.in_flight.sends == 1
        real(*held[0])
        assert (await pending).code == 0 and w.broker.in_flight.sends == 0


ILLEGAL = (
    "the message is illegal, maybe msg body or properties length not matched. "
    "msg body length limit 4194304B, msg properties length limit 32KB."
)


@pytest.mark.spec("SND-13", "ST-04")
@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (PutStatus.CREATE_MAPPED_FILE_FAILED, 1, "create mapped file failed, server is busy or broken."),
        (PutStatus.MESSAGE_ILLEGAL, 13, ILLEGAL),
        (PutStatus.PROPERTIES_SIZE_EXCEEDED, 13, ILLEGAL),
        (PutStatus.SERVICE_NOT_AVAILABLE, 14, "service not available now. It may be caused by one of the following"),
        (PutStatus.OS_PAGE_CACHE_BUSY, 1, "[PC_SYNCHRONIZED]broker busy, start flow control for a while"),
        (PutStatus.UNKNOWN_ERROR, 1, "UNKNOWN_ERROR"),
    ],
)
async def test_rejected_put_is_answered_by_status(
    status: PutStatus, code: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with wire() as w:
        w.broker._server.take_plain(None)  # compiled code does not put: it writes what fits
        await w.send()
        refused = PutResult(status, reason="why")
        monkeypatch.setattr(w.broker.store, "put_all", lambda *message: refused)
        for answer in (await w.send(), await w.send_batch([BatchItem(b"x")], queue=0)):
            assert answer.code == code and remark(answer).startswith(words)
            assert answer.ext == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


@pytest.mark.spec("SND-13", "SND-16", "UPG-14")
@pytest.mark.parametrize(
    ("status", "code", "stored"),
    [
        (PutStatus.FLUSH_DISK_TIMEOUT, 10, True),
        (PutStatus.SLAVE_NOT_AVAILABLE, 11, True),
        (PutStatus.FLUSH_SLAVE_TIMEOUT, 12, True),
        (PutStatus.UNKNOWN_ERROR, 1, False),
    ],
)
async def test_stored_but_unconfirmed_message_has_offsets_in_answer(status: PutStatus, code: int, stored: bool) -> None:
    async with wire(store={"flush_disk_type": FlushDiskType.SYNC_FLUSH, "profile": wire_profile()}) as w:

        def confirmed(result: PutResult, callback: Callable[[PutStatus, str], object]) -> None:
            callback(status, "")

        w.broker.store.when_confirmed = confirmed  # type: ignore[method-assign]
        for raw in ("", "WAIT\x01true", "TAGS\x01a"):  # both on the reference implementation and on the fast path
            answer = await w.send(raw=raw)
            assert answer.code == code
            assert ("msgId" in answer.ext) is stored


@pytest.mark.spec("REM-13", "REM-14", "SND-16", "ST-04")
async def test_busy_store_and_too_many_sends_answer_like_apache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with wire(send_queue_max=1) as w:
        w.broker.in_flight.sends = 1
        answer = await w.send()
        assert answer.code == 2 and remark(answer).startswith("[OVERLOAD]system busy, start flow control for a while")
        assert "at most 1 may" in remark(answer)
        w.broker.in_flight.sends = 0
        assert (await w.send()).code == 0
        monkeypatch.setattr(type(w.broker.store), "busy", property(lambda self: True))
        answer = await w.send()
        assert (answer.code, answer.remark) == (2, "[REJECTREQUEST]system busy, start flow control for a while")


@pytest.mark.spec("REM-08")
async def test_missing_field_is_named_without_disconnect() -> None:
    async with wire() as w:
        v2 = await w.call(RequestCode.SEND_MESSAGE_V2, b"x", b="T")
        assert v2.code == 1 and "is null" in remark(v2)
        v1 = await w.call(RequestCode.SEND_MESSAGE, b"x", topic="T")
        assert (v1.code, v1.remark) == (1, "the custom field <queueId> is null")
        number = await w.send(e="many")
        assert number.code == 1 and "many" in remark(number)
        assert len(w.client.connections) == 1


@pytest.mark.spec("PR-28", "SND-13")
async def test_send_with_v1_header_is_stored() -> None:
    async with wire() as w:
        answer = await w.call(
            RequestCode.SEND_MESSAGE, b"v1", producerGroup="p", topic="T", defaultTopic="TBW102",
            defaultTopicQueueNums=4, queueId=1, sysFlag=0, bornTimestamp=5, flag=0, properties="TAGS\x01a",
        )  # fmt: skip
        assert answer.code == 0
        (message,) = await w.messages(queue=1)
        assert (message.body, message.tags) == (b"v1", "a")


@pytest.mark.spec("BAT-04", "BAT-05", "BAT-06", "BAT-07", "ST-16", "ST-17")
async def test_batch_is_stored_contiguously_with_own_properties() -> None:
    async with wire() as w:
        await w.send(queue=1)
        items = [
            BatchItem(b"A", b"TAGS\x01T", 1),
            BatchItem(b"BC", b"", 2),
            BatchItem(b"D", b"K\x01v\x02", 3),
        ]
        answer = await w.send_batch(items)
        assert answer.code == 0 and answer.ext["queueOffset"] == "1"
        ids = answer.ext["msgId"].split(",")
        stored = (await w.messages(queue=1))[1:]
        assert [parse_offset_message_id(i)[1] for i in ids] == [m.physical_offset for m in stored]
        assert [m.queue_offset for m in stored] == [1, 2, 3]
        assert [(m.body, m.flag) for m in stored] == [(b"A", 1), (b"BC", 2), (b"D", 3)]
        assert stored[0].properties == {"TAGS": "T", "WAIT": "true", "CLUSTER": "DefaultCluster"}
        assert [m.properties_raw for m in stored] == [
            b"TAGS\x01T\x02WAIT\x01true\x02CLUSTER\x01DefaultCluster",
            b"WAIT\x01true\x02CLUSTER\x01DefaultCluster",
            b"K\x01v\x02WAIT\x01true\x02CLUSTER\x01DefaultCluster",
        ]
        assert len({m.store_timestamp_ms for m in stored}) == 1


@pytest.mark.spec("BAT-06")
async def test_batch_messages_get_its_flags_and_no_transaction() -> None:
    async with wire() as w:
        await w.send(queue=1)
        half = BatchItem(b"x", b"TRAN_MSG\x01true\x02PGROUP\x01p")
        assert (await w.send_batch([half, BatchItem(b"y")], f=0x40)).code == 0
        stored = (await w.messages(queue=1))[1:]
        assert [m.body for m in stored] == [b"x", b"y"], "it can be read at once"
        assert [m.sys_flag for m in stored] == [0x40, 0x40]
        assert {m.prepared_transaction_offset for m in stored} == {0}


@pytest.mark.spec("SND-01")
async def test_every_answer_has_region_and_trace_flag() -> None:
    async with wire(region_id="eu", trace_on=False) as w:
        for answer in (await w.send(), await w.send(queue=99), await w.send(queue=0), await w.send("a/b")):
            assert (answer.ext["MSG_REGION"], answer.ext["TRACE_ON"]) == ("eu", "false")


@pytest.mark.spec("SND-10")
async def test_record_has_advertised_host_and_zero_reconsume_times() -> None:
    async with wire(broker_ip1="127.0.0.7") as w:
        ext = {"b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
        sent = await w.client.invoke(w.broker.address, Command(RequestCode.SEND_MESSAGE_V2, ext=ext), 5000)
        host, offset = parse_offset_message_id(sent.ext["msgId"])
        view = Command(RequestCode.VIEW_MESSAGE_BY_ID, ext={"offset": str(offset)})
        stored = decode_record((await w.client.invoke(w.broker.address, view, 5000)).body or b"")
        assert stored.store_host == host == Host("127.0.0.7", int(w.broker.address.split(":")[1]))
        assert stored.reconsume_times == 0


@pytest.mark.spec("BAT-04", "BAT-06")
async def test_invalid_batch_is_not_stored_partially() -> None:
    async with wire() as w:
        await w.send(queue=1)
        lying = await w.call(
            RequestCode.SEND_BATCH_MESSAGE, b"\x00\x00\x00\x20" + b"\x00" * 20, a="p", b="T", c="TBW102", d=4, e=1,
            f=0, g=1, h=0, m=True,
        )  # fmt: skip
        assert lying.code == 13 and "malformed" in remark(lying)
        retry = await w.send_batch([BatchItem(b"x")], topic="%RETRY%G", queue=0)
        assert retry.code == 13
        assert len(await w.messages(queue=1)) == 1


@pytest.mark.spec("LIM-13", "BAT-04")
async def test_batch_of_too_many_messages_is_refused_early() -> None:
    """190,000 empty messages in one request held the event loop for 1.2 s."""
    async with wire(fast_failure=False) as w:  # steps are measured in processor time, lateness depends on the machine
        await w.send(queue=1)
        with loop_steps() as most_allowed:
            assert (await w.send_batch([BatchItem(b"")] * BATCH_MESSAGES_MAX)).code == 0
        hostile = encode_batch([BatchItem(b"")] * 190_000)
        fields = {"a": "p", "b": "T", "c": "TBW102", "d": 4, "e": 1, "f": 0, "g": 1, "h": 0, "m": True}
        with loop_steps() as steps:
            refused = await w.call(RequestCode.SEND_BATCH_MESSAGE, hostile, **fields)
            honest = await w.send_batch([BatchItem(b"x")] * 100)
        assert refused.code == 13 and str(BATCH_MESSAGES_MAX) in remark(refused)
        assert (honest.code, honest.ext["queueOffset"]) == (0, str(1 + BATCH_MESSAGES_MAX)), "nothing of it was stored"
        assert steps.longest < STEP_MAX
        assert most_allowed.longest < STEP_MAX


@pytest.mark.spec("LIM-13", "BAT-04")
async def test_batch_with_long_common_properties_is_refused() -> None:
    """30 KB that all 4,000 messages of a batch get made 120 MB of records out of a request of 120 KB, in 1.2 s."""
    async with wire() as w:
        await w.send(queue=1)
        body = encode_batch([BatchItem(b"")] * 4000)
        fields = {"a": "p", "b": "T", "c": "TBW102", "d": 4, "e": 1, "f": 0, "g": 1, "h": 0, "m": True}
        end = w.broker.store.log.end
        with loop_steps() as steps:
            long = await w.call(RequestCode.SEND_BATCH_MESSAGE, body, i="A\x01" + "x" * 30_000, **fields)
        assert long.code == 13 and "common properties" in remark(long)
        assert w.broker.store.log.end == end, "nothing of it was stored"
        assert steps.longest < STEP_MAX
        usual = await w.call(RequestCode.SEND_BATCH_MESSAGE, body, i="A\x01" + "x" * 900, **fields)
        assert (usual.code, usual.ext["queueOffset"]) == (0, "1")


@pytest.mark.spec("MSG-06")
async def test_body_crc_is_of_received_body() -> None:
    async with wire() as w:
        await w.send(body=b"Hello RocketMQ 0")
        (message,) = await w.messages()
        assert message.body_crc == 613185359
