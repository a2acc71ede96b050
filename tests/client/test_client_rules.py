"""Pure functions of the client: queue selection, routes, requests, batches, validation, rebalance, error hints."""

from __future__ import annotations

import base64
import hashlib
import hmac
import random
import sys
import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from saturnmq.client import checks, hints, namespaces
from saturnmq.client.compression import COMPRESSION_FLAGS, ZLIB_FLAGS, compressor, decompress
from saturnmq.client.connection.heartbeat import heartbeat_addresses, heartbeat_body
from saturnmq.client.connection.routes import build_route, substitute_route
from saturnmq.client.consumer.process_queue import ProcessQueue
from saturnmq.client.consumer.rebalance_strategies import average, average_by_circle
from saturnmq.client.delays import Delay
from saturnmq.client.filters import subscription_data, tag
from saturnmq.client.producer.send_request import (
    BatchMessage,
    Prepared,
    encode_property_text,
    move_retry_counts,
    prepare_batch,
    receipts,
    request_code,
    send_command,
    split_batches,
    transaction_flag,
)
from saturnmq.client.receipt import SendStatus
from saturnmq.client.selection import FaultTable, RoundRobin, avoid_ms, key_hash, shard
from saturnmq.errors import MessageRefused
from saturnmq.net.signer import Signer
from saturnmq.protocol.bodies import BrokerData, HeartbeatData, MessageQueue, QueueData, TopicRouteData
from saturnmq.protocol.codes import RESERVED_PROPERTIES, Confirmation, RequestCode
from saturnmq.protocol.errors import ConfigError, LocalProtocolError, MessageError, SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import BATCH_MESSAGES_MAX, BatchItem, decode_batch, decode_properties

A = [MessageQueue("T", "a", n) for n in range(4)]
B = [MessageQueue("T", "b", n) for n in range(4)]
QUEUES = [*A, *B]


# queue selection


@pytest.mark.spec("PR-14")
def test_round_robin_visits_every_queue_once_per_round() -> None:
    counter = RoundRobin(17)
    assert sorted(counter.pick(QUEUES) for _ in range(8)) == sorted(QUEUES)


@pytest.mark.spec("PR-14")
def test_retry_skips_the_last_failed_broker_or_takes_any() -> None:
    counter = RoundRobin(3)
    assert {counter.pick(QUEUES, "a").broker_name for _ in range(20)} == {"b"}
    assert counter.pick(A, "a") in A


@pytest.mark.spec("PR-21", "API-12", "OR-01")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hello", 99_162_322),
        ("", 0),
        ("polygenelubricants", -(2**31)),
        (7, 7),
        (-3, -3),
        (2**32, 1),
        (2**40 + 5, 261),
        ("\U0001f600", 1_772_899),  # two UTF-16 units
    ],
)
def test_key_hash_equals_javas(key: str | int, value: int) -> None:
    """The values are those of `hashCode()` of String, of Integer or, beyond 32 bits, of Long."""
    assert key_hash(key) == value


@pytest.mark.spec("PR-21", "API-12", "OR-01")
def test_shard_is_the_absolute_remainder() -> None:
    assert shard(QUEUES, "polygenelubricants").queue_id == 0  # its hash is INT_MIN
    assert shard(QUEUES, -3) == QUEUES[3]
    assert shard(QUEUES, "k") == shard(QUEUES, "k")
    for key in (True, 1.5, None, 2**63):
        with pytest.raises(LocalProtocolError, match="shard_by"):
            shard(QUEUES, key)  # type: ignore[arg-type]


# latency fault tolerance


@pytest.mark.spec("PR-30")
@pytest.mark.parametrize(
    ("latency", "expected"),
    [
        (0, 0),
        (99, 0),
        (100, 0),
        (549, 0),
        (550, 30_000),
        (1000, 60_000),
        (2000, 120_000),
        (3000, 180_000),
        (15_000, 600_000),
    ],
)
def test_broker_avoidance_follows_the_latency_table(latency: int, expected: int) -> None:
    assert avoid_ms(latency, failed=False) == expected


@pytest.mark.spec("PR-30")
def test_failed_broker_is_avoided_for_600_s_or_the_configured_cap() -> None:
    java = FaultTable()
    java.record("a", 1, 1000, failed=True)
    assert not java.available("a", 1000 + 599_999) and java.available("a", 1000 + 600_000)
    ours = FaultTable(avoid_ms_max=30_000)
    ours.record("a", 1, 1000, failed=True)
    assert not ours.available("a", 30_999) and ours.available("a", 31_000)
    assert ours.available("unlisted", 0)


@pytest.mark.spec("PR-30")
def test_available_broker_is_preferred() -> None:
    table = FaultTable()
    table.record("a", 1, 0, failed=True)
    counter = RoundRobin(0)
    assert {table.pick(QUEUES, counter, 10).broker_name for _ in range(20)} == {"b"}
    assert {table.pick(QUEUES, counter, 600_001).broker_name for _ in range(20)} == {"a", "b"}


@pytest.mark.spec("PR-30")
def test_without_available_broker_the_faster_half_is_used() -> None:
    table = FaultTable()
    table.record("a", 20, 0, failed=True)
    table.record("b", 10, 0, failed=True)
    counter = RoundRobin(0)
    picked = [table.pick(QUEUES, counter, 1) for _ in range(8)]
    assert {queue.broker_name for queue in picked} == {"b"}, "lower latency is the better half"
    assert {queue.queue_id for queue in picked} == {0, 1, 2, 3}


@pytest.mark.spec("PR-30")
def test_best_broker_without_queues_of_the_topic_is_dropped() -> None:
    table = FaultTable()
    table.record("a", 20, 0, failed=True)
    table.record("removed", 1, 0, failed=True)
    assert table.pick(A, RoundRobin(0), 1) in A
    assert len(table) == 1


@pytest.mark.spec("PR-30")
def test_success_makes_a_broker_available_again() -> None:
    table = FaultTable()
    table.record("a", 1, 0, failed=True)
    table.record("a", 5, 10, failed=False)
    assert table.available("a", 10)


# routes


def route_data(**options: object) -> TopicRouteData:
    return TopicRouteData(
        queue_datas=[
            QueueData("b", 8, 4, 6),
            QueueData("a", 2, 2, 4),
            QueueData("s", 3, 3, 6),
            QueueData("x", 1, 1, 6),
        ],
        broker_datas=[
            BrokerData("c", "a", {0: "a:1"}),
            BrokerData("c", "b", {0: "b:1", 1: "b:2"}),
            BrokerData("c", "s", {1: "s:2"}),
        ],
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.spec("PR-12")
def test_write_queues_require_permission_and_master() -> None:
    route = build_route("T", route_data())
    assert list(route.write_queues) == [MessageQueue("T", "b", n) for n in range(4)]
    assert route.master("b") == "b:1" and route.master("s") is None and route.master("x") is None
    two = TopicRouteData(
        [QueueData("b", 1, 1, 6), QueueData("a", 1, 2, 6)], [BrokerData("c", name, {0: f"{name}:1"}) for name in "ba"]
    )
    assert [(queue.broker_name, queue.queue_id) for queue in build_route("T", two).write_queues] == [
        ("a", 0), ("a", 1), ("b", 0),
    ]  # fmt: skip


@pytest.mark.spec("PR-12", "RB-02")
def test_read_queues_require_only_the_read_permission() -> None:
    route = build_route("T", route_data())
    assert [(queue.broker_name, queue.queue_id) for queue in route.read_queues][:3] == [("a", 0), ("a", 1), ("b", 0)]
    assert len(route.read_queues) == 2 + 8 + 3 + 1


@pytest.mark.spec("PR-12")
def test_order_configuration_overrides_the_write_queues() -> None:
    route = build_route("T", route_data(order_topic_conf="b:2;a:1;broken"))
    assert list(route.write_queues) == [MessageQueue("T", "b", 0), MessageQueue("T", "b", 1), MessageQueue("T", "a", 0)]


@pytest.mark.spec("PR-13")
def test_default_topics_route_is_reduced_to_the_smaller_count() -> None:
    shrunk = substitute_route(TopicRouteData([QueueData("a", 8, 8, 7), QueueData("b", 2, 8, 7)], []), 4)
    assert [(item.read_queue_nums, item.write_queue_nums) for item in shrunk.queue_datas] == [(4, 4), (2, 2)]
    wide = substitute_route(TopicRouteData([QueueData("a", 3, 1, 7)], []), 4)
    assert [(item.read_queue_nums, item.write_queue_nums) for item in wide.queue_datas] == [(3, 3)]


# requests


@pytest.mark.spec("PR-01")
def test_property_string_has_keys_tag_wait_and_user_properties() -> None:
    text = encode_property_text("ID", tag="t", keys="k1 k2", properties=(("a", "1"),), wait_stored=True)
    assert decode_properties(text) == {"a": "1", "KEYS": "k1 k2", "UNIQ_KEY": "ID", "WAIT": "true", "TAGS": "t"}
    assert decode_properties(encode_property_text("ID", tag=None, keys="", wait_stored=False))["WAIT"] == "false"
    assert decode_properties(encode_property_text("ID", tag=None, keys="", delay=Delay("DELAY", 3)))["DELAY"] == "3"


@pytest.mark.spec("PR-25")
def test_transaction_property_sets_the_flag() -> None:
    assert transaction_flag("A\x011\x02TRAN_MSG\x01true") == 4
    assert transaction_flag("XTRAN_MSG\x01true") == 0 and transaction_flag("TRAN_MSG\x01false") == 0


@pytest.mark.spec("PR-27")
def test_retry_counts_move_to_the_header_for_retry_topics_only() -> None:
    text = "A\x011\x02RECONSUME_TIME\x013\x02MAX_RECONSUME_TIMES\x0116"
    prepared = Prepared("%RETRY%g", b"x", ("ID",), text)
    move_retry_counts(prepared)
    assert (prepared.reconsume_times, prepared.max_reconsume_times, prepared.properties) == (3, 16, "A\x011")
    ext = send_command(prepared, A[0], group="g", default_topic="TBW102", default_queues="4", now_ms=1).ext
    assert (ext["j"], ext["l"]) == ("3", "16")
    other = Prepared("T", b"x", ("ID",), text)
    move_retry_counts(other)
    assert other.properties == text and other.reconsume_times == 0


@pytest.mark.spec("PR-28", "RR-02")
@pytest.mark.parametrize(
    ("prepared", "smart", "code"),
    [
        (Prepared("T", b"x", ("I",), "A\x011"), True, RequestCode.SEND_MESSAGE_V2),
        (Prepared("T", b"x", ("I",), "A\x011"), False, RequestCode.SEND_MESSAGE),
        (Prepared("T", b"x", ("I",), "", batch=True), True, RequestCode.SEND_BATCH_MESSAGE),
        (Prepared("T", b"x", ("I",), "MSG_TYPE\x01reply"), True, RequestCode.SEND_REPLY_MESSAGE_V2),
        (Prepared("T", b"x", ("I",), "MSG_TYPE\x01reply"), False, RequestCode.SEND_REPLY_MESSAGE),
    ],
)
def test_request_code_depends_on_batch_reply_and_smart_send(prepared: Prepared, smart: bool, code: int) -> None:
    assert request_code(prepared, smart=smart) == code


@pytest.mark.spec("PR-28")
def test_code_10_uses_long_field_names() -> None:
    prepared = Prepared("T", b"x", ("I",), "A\x011")
    short = send_command(prepared, A[1], group="g", default_topic="TBW102", default_queues="4", now_ms=5)
    long = send_command(prepared, A[1], group="g", default_topic="TBW102", default_queues="4", now_ms=5, smart=False)
    assert (short.ext["a"], short.ext["b"], short.ext["e"], short.ext["n"]) == ("g", "T", "1", "a")
    assert (long.ext["producerGroup"], long.ext["topic"], long.ext["queueId"], long.ext["bname"]) == (
        "g",
        "T",
        "1",
        "a",
    )
    assert len(short.ext) == len(long.ext) and long.ext["batch"] == "false"


@pytest.mark.spec("PR-29")
def test_receipt_has_every_field_of_the_answer() -> None:
    ext = {
        "msgId": "OID",
        "queueId": "1",
        "queueOffset": "42",
        "transactionId": "TX",
        "TRACE_ON": "false",
        "MSG_REGION": "eu",
    }
    (receipt,) = receipts(Prepared("T", b"", ("UID",), ""), A[0], Command(0, ext=ext))
    assert (receipt.status, receipt.message_id, receipt.offset_message_id) == (SendStatus.SEND_OK, "UID", "OID")
    assert (receipt.queue, receipt.offset, receipt.region, receipt.trace_on) == (A[1], 42, "eu", False)
    assert receipt.transaction_id == "TX" and receipt.durable is None and receipt.confirmation is None
    (plain,) = receipts(Prepared("T", b"", ("UID",), ""), A[1], Command(0, ext={"queueOffset": "0"}))
    assert plain.region == "DefaultRegion" and plain.trace_on is True
    (empty,) = receipts(Prepared("T", b"", ("UID",), ""), A[1], Command(0, ext={"queueOffset": "0", "MSG_REGION": ""}))
    assert empty.region == "DefaultRegion"


@pytest.mark.spec("API-10")
@pytest.mark.parametrize(
    ("code", "stated", "durable", "confirmation"),
    [
        (0, "memory", False, Confirmation.MEMORY),
        (0, "page_cache", False, Confirmation.PAGE_CACHE),
        (0, "fsync", True, Confirmation.FSYNC),
        (0, "slave", True, Confirmation.SLAVE),
        (0, "fsync_and_slave", True, Confirmation.FSYNC_AND_SLAVE),
        (0, "majority", True, Confirmation.MAJORITY),
        (0, "fsync_majority", True, Confirmation.FSYNC_MAJORITY),
        (0, "by a later version", None, None),
        (10, "fsync", False, None),
    ],
)
def test_receipt_states_how_the_message_was_confirmed(
    code: int, stated: str, durable: bool | None, confirmation: Confirmation | None
) -> None:
    answer = Command(code, ext={"queueOffset": "7", "confirmation": stated})
    prepared = Prepared("T", b"", ("U1", "U2"), "", batch=True)
    assert [(r.durable, r.confirmation) for r in receipts(prepared, A[0], answer)] == [(durable, confirmation)] * 2


@pytest.mark.spec("PR-29", "PRC-01")
def test_batch_answer_gives_a_receipt_per_message() -> None:
    prepared = Prepared("T", b"", ("U1", "U2", "U3"), "", batch=True)
    got = receipts(prepared, A[0], Command(0, ext={"msgId": "O1,O2,O3", "queueId": "0", "queueOffset": "7"}))
    assert [(r.message_id, r.offset_message_id, r.offset) for r in got] == [
        ("U1", "O1", 7),
        ("U2", "O2", 8),
        ("U3", "O3", 9),
    ]


# batches


def item(topic: str = "T", body: bytes = b"x", **options: object) -> BatchMessage:
    return BatchMessage(topic, "ID", BatchItem(body, b"A\x011", 5), **options)  # type: ignore[arg-type]


@pytest.mark.spec("BAT-01", "PRC-01")
@pytest.mark.parametrize(
    "messages",
    [
        [],
        [item(), item("U")],
        [item(), item(wait_stored=False)],
        [item(delay_level=1)],
        [item("%RETRY%g")],
    ],
)
def test_illegal_batch_is_rejected(messages: list[BatchMessage]) -> None:
    with pytest.raises(MessageRefused) as caught:
        prepare_batch(messages, 1000)
    assert caught.value.code == 13


@pytest.mark.spec("BAT-02", "PRC-01")
def test_batch_size_limit_is_inclusive() -> None:
    size = item().encoded_bytes * 2
    assert len(prepare_batch([item(), item()], size).body) == size
    with pytest.raises(MessageRefused, match="body_bytes_max"):
        prepare_batch([item(), item()], size - 1)


@pytest.mark.spec("BAT-03", "PRC-01")
def test_batch_request_has_code_320_m_true_and_only_wait() -> None:
    prepared = prepare_batch([item(body=b"x" * 5000), item()], 10_000)
    command = send_command(prepared, A[0], group="g", default_topic="TBW102", default_queues="4", now_ms=1)
    assert command.code == 320 and command.ext["m"] == "true" and command.ext["f"] == "0"
    assert command.ext["i"] == "WAIT\x01true"
    decoded = decode_batch(command.body or b"")
    assert [entry.body for entry in decoded] == [b"x" * 5000, b"x"] and decoded[0].flag == 5


@pytest.mark.spec("API-11", "BAT-02")
def test_batches_are_split_by_topic_wait_and_size_in_order() -> None:
    messages = [item(), item("U"), item(), item(), item(wait_stored=False), item("U")]
    assert split_batches(messages, item().encoded_bytes * 2) == [[0, 2], [1, 5], [3], [4]]


@pytest.mark.spec("API-11")
def test_batches_are_split_at_the_number_that_brokers_accept() -> None:
    messages = [item()] * (BATCH_MESSAGES_MAX + 1)
    assert [len(batch) for batch in split_batches(messages, 2**30)] == [BATCH_MESSAGES_MAX, 1]
    with pytest.raises(MessageRefused, match=str(BATCH_MESSAGES_MAX)):
        prepare_batch(messages, 2**30)


@pytest.mark.spec("API-11", "BAT-02")
@given(st.lists(st.tuples(st.sampled_from("TU"), st.integers(0, 60)), max_size=40), st.integers(40, 200))
def test_batch_split_keeps_order_and_size_limit(shapes: list[tuple[str, int]], limit: int) -> None:
    messages = [item(topic, b"x" * size) for topic, size in shapes]
    batches = split_batches(messages, limit)
    assert sorted(index for batch in batches for index in batch) == list(range(len(messages)))
    for batch in batches:
        assert batch == sorted(batch) and len({messages[index].topic for index in batch}) == 1
        assert len(batch) == 1 or sum(messages[index].encoded_bytes for index in batch) <= limit


# validation


@pytest.mark.spec("PR-04")
@pytest.mark.parametrize("group", ["", "  ", "a" * 256, "a b", "gr\u00fcn", "a\n", "DEFAULT_PRODUCER"])
def test_invalid_group_is_reported(group: str) -> None:
    assert checks.producer_group_problem(group)


@pytest.mark.spec("PR-04", "CA-06")
def test_valid_groups_are_accepted() -> None:
    assert checks.producer_group_problem("a" * 255) is None
    assert checks.producer_group_problem("%RETRY%x|y-Z_9") is None
    assert checks.consumer_group_problem("DEFAULT_PRODUCER") is None
    assert checks.consumer_group_problem("DEFAULT_CONSUMER")


@pytest.mark.spec("PR-09", "UPG-11")
@pytest.mark.parametrize(
    "topic",
    [
        "",
        " ",
        "a" * 128,
        "a b",
        "t\u00f6pic",
        "a\n",
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "OFFSET_MOVED_EVENT",
    ],
)
def test_invalid_topic_is_rejected_with_code_13(topic: str) -> None:
    with pytest.raises(MessageRefused) as caught:
        checks.check_topic(topic)
    assert caught.value.code == 13


@pytest.mark.spec("PR-09", "UPG-11")
def test_topic_and_body_length_limits() -> None:
    checks.check_topic("a" * 127)
    checks.check_topic("TBW102")
    checks.check_body(b"x" * 10, 10)
    for body in (b"", b"x" * 11):
        with pytest.raises(MessageRefused) as caught:
            checks.check_body(body, 10)
        assert caught.value.code == 13


@pytest.mark.spec("PR-01", "API-09", "SPR-08")
@pytest.mark.parametrize(
    "properties", [{"KEYS": "x"}, {"DELAY": "1"}, {"": "x"}, {"a": ""}, {"a": "b\x02c"}, {"a\x01": "b"}]
)
def test_reserved_or_malformed_properties_are_rejected(properties: dict[str, str]) -> None:
    with pytest.raises(MessageRefused):
        checks.check_properties(properties)


@pytest.mark.spec("SPR-08")
@pytest.mark.parametrize("name", sorted(RESERVED_PROPERTIES))
def test_reserved_property_cannot_be_overwritten(name: str) -> None:
    with pytest.raises(MessageRefused, match="is used by system"):
        checks.check_properties({"mine": "x", name: "x"})
    checks.check_properties({f"rocketmq_{name}": "x"})


@pytest.mark.spec("SPR-08")
def test_blank_property_is_what_java_trims_to_empty() -> None:
    checks.check_properties({"a": "\u3000", "b": "\u00a0", "\u2003": "c", "d": " e "})
    for blank in (" ", "\t\n", "\x1f", "\x00 "):
        for properties in ({"a": blank}, {blank: "a"}):
            with pytest.raises(MessageRefused, match="blank"):
                checks.check_properties(properties)


@pytest.mark.spec("PR-01")
def test_keys_are_joined_by_one_space() -> None:
    assert checks.join_keys(["a", "b"]) == "a b" and checks.join_keys("a") == "a" and checks.join_keys(()) == ""


# namespaces


@pytest.mark.spec("PR-32")
@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("T", "NS%T"),
        ("NS%T", "NS%T"),
        ("%RETRY%g", "%RETRY%NS%g"),
        ("%RETRY%NS%g", "%RETRY%NS%g"),
        ("TBW102", "TBW102"),
        ("CID_RMQ_SYS_X", "CID_RMQ_SYS_X"),
        ("CLIENT_INNER_PRODUCER", "CLIENT_INNER_PRODUCER"),
    ],
)
def test_namespace_is_added_and_stripped(name: str, wire: str) -> None:
    assert namespaces.wrap("NS", name) == wire
    assert namespaces.strip("NS", wire) == name.replace("NS%", "")
    assert namespaces.wrap(None, name) == name == namespaces.strip(None, name)


# compression


@pytest.mark.spec("PR-24")
@pytest.mark.parametrize("flags", [ZLIB_FLAGS, 0x001])
def test_zlib_compression_round_trips(flags: int) -> None:
    packed = compressor("zlib", 5)(b"x" * 5000)
    assert ZLIB_FLAGS == 0x301 and zlib.decompress(packed) == b"x" * 5000
    assert decompress(packed, flags) == b"x" * 5000
    assert decompress(b"plain", 0) == b"plain"


@pytest.mark.spec("PR-24")
@pytest.mark.parametrize("body", [b"", b"junk", compressor("zlib", 5)(b"x" * 5000)[:-3]])
def test_damaged_compressed_body_is_a_message_error(body: bytes) -> None:
    with pytest.raises(MessageError):
        decompress(body, ZLIB_FLAGS)


@pytest.mark.spec("PR-24")
def test_decompression_is_bounded() -> None:
    body = compressor("zlib", 5)(b"x" * 1000)
    assert decompress(body, ZLIB_FLAGS, bytes_max=1000) == b"x" * 1000
    with pytest.raises(MessageError, match="decompresses to more than 999 bytes"):
        decompress(body, ZLIB_FLAGS, bytes_max=999)
    with pytest.raises(MessageError, match="is cut: it ends after"):
        decompress(body[:-3], ZLIB_FLAGS, bytes_max=1000)


@pytest.mark.spec("PR-24")
@pytest.mark.parametrize(("kind", "flags"), [("zlib", 0x301), ("lz4", 0x101), ("zstd", 0x201)])
@pytest.mark.parametrize("size", [1, 4096, 200_000])
def test_each_compression_type_round_trips_with_its_flags(kind: str, flags: int, size: int) -> None:
    body = (b"much the same again and again. " * (size // 31 + 1))[:size]
    packed = compressor(kind, 5)(body)
    assert COMPRESSION_FLAGS[kind] == flags and decompress(packed, flags) == body
    assert size < 4096 or len(packed) < size / 10


@pytest.mark.spec("PR-24")
def test_lz4_frame_has_independent_blocks() -> None:
    packed = compressor("lz4", 5)(b"x" * 200_000)
    assert packed[:4] == bytes.fromhex("04224d18") and packed[4] & 0x60 == 0x60, "version 1, independent blocks"


@pytest.mark.spec("PR-24")
@pytest.mark.parametrize(("kind", "highest"), [("zlib", 9), ("zstd", 19)])
def test_compression_level_takes_effect(kind: str, highest: int) -> None:
    body = b"".join(b"%d %d\n" % (n * n, n * 7919 % 1000) for n in range(3000))
    assert len(compressor(kind, 1)(body)) > len(compressor(kind, highest)(body))


@pytest.mark.spec("PR-24")
@pytest.mark.parametrize(("kind", "package"), [("lz4", "lz4"), ("zstd", "zstandard")])
def test_missing_compression_package_is_named_with_the_command(
    kind: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lz4.frame" if kind == "lz4" else package, None)
    with pytest.raises(SaturnError, match=rf"compress_type is {kind}, and package {package} is not") as caught:
        compressor(kind, 5)
    assert "-m pip install 'lz4>=" in str(caught.value)


def packed_bodies(kind: str, body: bytes) -> list[bytes]:
    """Return the forms in which producers compress a body: with and without its size, with a checksum."""
    if kind == "zlib":
        return [zlib.compress(body)]
    if kind == "zstd":
        options: list[dict[str, bool]] = [{}, {"write_content_size": False}, {"write_checksum": True}]
        return [zstandard.ZstdCompressor(**chosen).compress(body) for chosen in options]
    lz4 = pytest.importorskip("lz4.frame", reason="lz4 is in the extra compression")
    return [lz4.compress(body), lz4.compress(body, store_size=False), lz4.compress(body, content_checksum=True)]


@pytest.mark.parametrize(("kind", "flags"), [("zlib", ZLIB_FLAGS), ("lz4", 0x101), ("zstd", 0x201)])
def test_cut_or_damaged_body_is_never_a_short_body(kind: str, flags: int) -> None:
    body = random.Random(5).randbytes(300) * 4 + b"x" * 3000
    for packed in packed_bodies(kind, body):
        assert decompress(packed, flags, bytes_max=len(body)) == body
        for end in range(len(packed)):
            try:
                assert decompress(packed[:end], flags) == body, end  # only the checksum is cut
            except MessageError as error:
                assert str(error), end
            else:
                assert end >= len(packed) - 4, end
        with pytest.raises(MessageError, match=f"{kind} body of .* more than {len(body) - 1} bytes, the largest frame"):
            decompress(packed, flags, bytes_max=len(body) - 1)
        for junk in (b"", b"junk", packed[4:]):
            with pytest.raises(MessageError):
                decompress(junk, flags)
        assert decompress(packed_bodies(kind, b"")[0], flags) == b""


# signatures


@pytest.mark.spec("ACL-19")
@pytest.mark.parametrize(
    ("ext", "body", "data"),
    [
        ({"topic": "TopicTest", "Signature": "old"}, None, b"akTopicTest"),
        ({"b": "3", "a": "2", "Z": "1", "aa": ""}, b"body", b"ak123body"),
        ({"e": "\u00fc"}, b"\xff", b"ak\xc3\xbc\xff"),
    ],
)
def test_signature_covers_values_in_name_order_and_the_body(
    ext: dict[str, str], body: bytes | None, data: bytes
) -> None:
    command = Command(10, ext=dict(ext), body=body)
    for _ in range(2):  # signed again for a retry
        Signer("ak", "s\u00e4cret").sign(command)
        digest = hmac.new("s\u00e4cret".encode(), data, hashlib.sha1).digest()
        assert command.ext["Signature"] == base64.b64encode(digest).decode()
        assert command.ext["AccessKey"] == "ak" and "SecurityToken" not in command.ext


# heartbeats

BROKERS = {"a": {0: "a:1", 1: "a:2"}, "b": {0: "b:1"}}


@pytest.mark.spec("HB-02", "CA-11")
def test_heartbeat_targets_depend_on_producers_and_consumers() -> None:
    assert heartbeat_addresses(BROKERS, has_producers=True, has_consumers=False) == ["a:1", "b:1"]
    assert heartbeat_addresses(BROKERS, has_producers=False, has_consumers=True) == ["a:1", "a:2", "b:1"]
    assert heartbeat_addresses(BROKERS, has_producers=True, has_consumers=True) == ["a:1", "a:2", "b:1"]
    assert heartbeat_addresses(BROKERS, has_producers=False, has_consumers=False) == []


@pytest.mark.spec("HB-01")
def test_heartbeat_body_includes_the_inner_producer() -> None:
    decoded = HeartbeatData.decode(heartbeat_body("ip@1", ["g"], []))
    assert decoded.client_id == "ip@1"
    assert [entry.group_name for entry in decoded.producer_data_set] == ["CLIENT_INNER_PRODUCER", "g"]


# subscriptions


@pytest.mark.spec("PRC-05")
def test_tag_expression_becomes_tags_and_their_java_hashes() -> None:
    data = subscription_data("T", tag(" a || BBBB||a "), 7)
    assert data.tags_set == ["BBBB", "a"] and data.code_set == [97, 2031744] and data.sub_version == 7
    assert subscription_data("T", tag(""), 1).sub_string == "*"
    with pytest.raises(ConfigError):
        tag("||")


# rebalance

EIGHT = [MessageQueue("T", "b", n) for n in range(1, 9)]


@pytest.mark.spec("RB-02")
def test_average_allocates_blocks_as_specified() -> None:
    got = [[queue.queue_id for queue in average(EIGHT[::-1], ["c3", "c1", "c2"], me)] for me in ("c1", "c2", "c3")]
    assert got == [[1, 2, 3], [4, 5, 6], [7, 8]]
    circle = [
        [queue.queue_id for queue in average_by_circle(EIGHT, ["c1", "c2", "c3"], me)] for me in ("c1", "c2", "c3")
    ]
    assert circle == [[1, 4, 7], [2, 5, 8], [3, 6]]
    assert average(EIGHT, ["c1"], "unknown") == [] == average([], ["c1"], "c1")


@pytest.mark.spec("CA-01", "RB-02")
@given(st.integers(0, 30), st.integers(1, 12))
def test_average_allocates_every_queue_exactly_once(queues: int, members: int) -> None:
    all_queues = [MessageQueue("T", "b", n) for n in range(queues)]
    ids = [f"c{n:02d}" for n in range(members)]
    shares = [average(all_queues, ids, me) for me in ids]
    assert sorted(queue for share in shares for queue in share) == all_queues
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


# process queue


@pytest.mark.spec("CC-05", "PL-11")
def test_commit_never_passes_the_smallest_open_offset() -> None:
    queue = ProcessQueue(10)
    assert queue.put([(10, 1), (20, 1), (40, 1), (50, 1), (70, 1)]) == 5
    assert queue.settle(50) == 10 and queue.settle(70) == 10
    queue.put([(100, 1)])
    assert queue.settle(10) == 20
    assert queue.settle(20) == 40 and queue.settle(40) == 100 and queue.settle(100) == 101
    assert queue.settle(100) is None and len(queue) == 0


@pytest.mark.spec("PL-10")
def test_process_queue_ignores_known_offsets() -> None:
    queue = ProcessQueue(0)
    assert queue.put([(0, 5), (1, 7)]) == 2
    assert queue.put([(0, 5), (1, 7), (2, 1)]) == 1
    assert queue.body_bytes == 13 and queue.span == 2


@pytest.mark.spec("PL-07")
def test_filtered_tail_advances_commit_offset_only_when_empty() -> None:
    queue = ProcessQueue(0)
    queue.put([(3, 1)])
    queue.skip_to(10)
    assert queue.commit_offset == 3
    assert queue.settle(3) == 10
    queue.skip_to(7)
    assert queue.commit_offset == 10, "it never goes back"


@pytest.mark.spec("CC-05")
@given(st.lists(st.integers(0, 50), unique=True, min_size=1).map(sorted), st.randoms(use_true_random=False))
def test_process_queue_equals_a_reference_implementation(offsets: list[int], chance: object) -> None:
    queue, open_offsets = ProcessQueue(0), set(offsets)
    queue.put([(offset, 1) for offset in offsets])
    order = list(offsets)
    chance.shuffle(order)  # type: ignore[attr-defined]
    for offset in order:
        open_offsets.discard(offset)
        assert queue.settle(offset) == (min(open_offsets) if open_offsets else offsets[-1] + 1)
        assert len(queue) == queue.body_bytes == len(open_offsets)


# error texts


@pytest.mark.spec("UX-06")
def test_unreachable_name_servers_hint_text() -> None:
    assert hints.unreachable_name_servers([("10.0.0.5:9876", "connection refused")]) == (
        "cannot reach any NameServer (tried 10.0.0.5:9876: connection refused). "
        "Start one: saturnmq standalone --data ./data, or set SATURNMQ_URL."
    )


@pytest.mark.spec("UX-07")
def test_unreachable_broker_hint_text() -> None:
    assert hints.unreachable_broker("orders", "broker-a", "172.17.0.2:10911") == (
        "topic orders is on broker-a at 172.17.0.2:10911, not reachable from here. "
        "Set brokerIP1 there to a reachable name; saturnmq doctor checks it."
    )


@pytest.mark.spec("UX-08")
@pytest.mark.parametrize(
    ("code", "remark", "words"),
    [
        (17, "topic[orders] not exist", ["updateTopic", "-t orders", "auto-creation is off"]),
        (
            2,
            "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 201ms, size of queue: 9",
            ["queue", "201 ms"],
        ),
        (
            2,
            "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 7ms",
            ["append lock", "7 ms"],
        ),
        (2, "[REJECTREQUEST]system busy", ["append lock"]),
        (2, "[OVERLOAD]system busy, start flow control for a while", ["queue"]),
        (2, "busy, stage: flush, stage time 450 ms", ["flush", "450 ms"]),
        (16, "no", ["permission", "orders"]),
        (23, 'ParseException: Encountered " ">" at line 1, column 5.', ["line 1, column 5"]),
        (23, "unexpected token at position 7", ["position 7"]),
        (26, "subscription group not exist", ["g1", "updateSubGroup"]),
    ],
)
def test_error_answers_get_a_hint(code: int, remark: str, words: list[str]) -> None:
    hint = hints.for_response(code, remark, topic="orders", group="g1", name_servers=["h:9876"])
    assert hint is not None
    assert all(word in hint for word in words), hint
