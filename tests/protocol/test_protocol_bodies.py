"""JSON bodies: formats of docs/spec/00 (sections 3.5, 3.7, 5) and docs/spec/01 section 2.4, and the bodies of recorded frames."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saturnmq.protocol import bodies
from saturnmq.protocol.bodies import (
    Body,
    BrokerData,
    ConsumerRunningInfo,
    ConsumeStats,
    DataVersion,
    GetConsumerStatusBody,
    HeartbeatData,
    MessageQueue,
    OffsetWrapper,
    ProcessQueueInfo,
    QueueData,
    RegisterBrokerBody,
    ResetOffsetBody,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigTable,
    TopicOffset,
    TopicRouteData,
    TopicStatsTable,
)
from saturnmq.protocol.errors import BodyError, LocalProtocolError
from saturnmq.protocol.frames.decoder import FrameDecoder
from saturnmq.protocol.json_dialect import dumps, loads
from saturnmq.protocol.message import java_hash

ALL_BODIES = sorted(
    {
        value
        for value in vars(bodies).values()
        if isinstance(value, type) and issubclass(value, Body) and value is not Body
    },
    key=lambda cls: cls.__name__,
)
REQUEST_BODIES: dict[int, type[Body]] = {
    34: bodies.HeartbeatData,
    41: bodies.LockBatchRequest,
    42: bodies.LockBatchRequest,
    46: bodies.CheckClientRequest,
    103: bodies.RegisterBrokerBody,
    200: bodies.SubscriptionGroupConfig,
    220: bodies.ResetOffsetBody,
}
ANSWER_BODIES: dict[int, type[Body]] = {
    21: bodies.TopicConfigTable,
    28: bodies.KVTable,
    38: bodies.ConsumerIdList,
    41: bodies.LockBatchResponse,
    43: bodies.ConsumerOffsetTable,
    45: bodies.DelayOffsetTable,
    105: bodies.TopicRouteData,
    106: bodies.ClusterInfo,
    201: bodies.SubscriptionGroupTable,
    202: bodies.TopicStatsTable,
    203: bodies.ConsumerConnection,
    204: bodies.ProducerConnection,
    206: bodies.TopicList,
    208: bodies.ConsumeStats,
    219: bodies.KVTable,
    221: bodies.GetConsumerStatusBody,
    222: bodies.ResetOffsetBody,
    223: bodies.GetConsumerStatusBody,
    224: bodies.TopicList,
    300: bodies.GroupList,
    303: bodies.ConsumeTimeSpans,
    309: bodies.ConsumeMessageDirectlyResult,
    315: bodies.BrokerStatsData,
    321: bodies.QueryConsumeQueueResponse,
}
QUEUE = MessageQueue("t", "b", 3)
QUEUE_TEXT = b'{"brokerName":"b","queueId":3,"topic":"t"}'


def golden_bodies(frames: list[Any]) -> list[tuple[str, type[Body], bytes]]:
    found = []
    for frame in frames:
        table = ANSWER_BODIES if frame.is_response else REQUEST_BODIES
        cls = table.get(frame.request_code)
        if cls is None or (frame.is_response and frame.facts["code"] != 0):
            continue
        (command,) = FrameDecoder().feed(frame.raw)
        if command.body:
            found.append((frame.where, cls, command.body))
    return found


def without_times_as_text(value: Any) -> Any:
    """A parsed body without the text times that Java adds for getters of QueueTimeSpan and that no client reads."""
    if isinstance(value, dict):
        return {
            name: without_times_as_text(member) for name, member in value.items() if not str(name).endswith("StampStr")
        }
    return [without_times_as_text(item) for item in value] if isinstance(value, list) else value


@pytest.mark.spec("REM-33")
def test_golden_bodies_reencode_to_equal_json(whole_frames: list[Any]) -> None:
    found = golden_bodies(whole_frames)
    for where, cls, raw in found:
        decoded = cls.decode(raw)
        again = decoded.encode()
        assert loads(again) == without_times_as_text(loads(raw)), where
        assert cls.decode(again) == decoded, where
    assert len(found) > 400
    assert {cls for _, cls, _ in found} >= {*ANSWER_BODIES.values(), *REQUEST_BODIES.values()}


@pytest.mark.spec("REM-33")
def test_golden_bodies_reencode_to_identical_bytes(whole_frames: list[Any]) -> None:
    for where, cls, raw in golden_bodies(whole_frames):
        if cls in (
            TopicStatsTable,
            ConsumeStats,
            ResetOffsetBody,
            GetConsumerStatusBody,
            TopicRouteData,
            HeartbeatData,
        ):
            assert cls.decode(raw).encode() == raw, where


@pytest.mark.spec("REM-33")
def test_golden_consumer_running_info_decodes_when_truncated(golden_frames: list[Any]) -> None:
    raw = next(f.raw for f in golden_frames if f.is_response and f.request_code == 307)
    text = raw[raw.index(b'{"mqTable"') :]
    cut = text[: text.rindex(b"},{") + 1] + b"}}"
    info = ConsumerRunningInfo.decode(cut)
    assert len(info.mq_table) == 2
    queue, held = next(iter(info.mq_table.items()))
    assert (queue.broker_name, queue.queue_id, queue.topic[:7]) == ("broker-async", 0, "%RETRY%")
    assert held == ProcessQueueInfo(
        locked=True,
        last_consume_timestamp=1795224991577,
        last_lock_timestamp=1795224991577,
        last_pull_timestamp=1795224991579,
    )
    assert info.encode().startswith(cut[:-1])


@pytest.mark.spec("REM-33")
def test_golden_tag_codes_are_java_hash_codes(whole_frames: list[Any]) -> None:
    checked = 0
    for _, cls, raw in golden_bodies(whole_frames):
        if cls is HeartbeatData:
            for consumer in HeartbeatData.decode(raw).consumer_data_set:
                for subscription in consumer.subscription_data_set:
                    assert sorted(map(java_hash, subscription.tags_set)) == sorted(subscription.code_set)
                    checked += len(subscription.tags_set)
    assert checked


@pytest.mark.spec("REM-33")
@pytest.mark.parametrize(
    ("body", "text"),
    [
        (ConsumeStats({QUEUE: OffsetWrapper(5, 3, 0)}, 1.0),
         b'{"consumeTps":1.0,"offsetTable":{%b:{"brokerOffset":5,"consumerOffset":3,"lastTimestamp":0}}}'),
        (TopicStatsTable({QUEUE: TopicOffset(1, 2, 3)}),
         b'{"offsetTable":{%b:{"lastUpdateTimestamp":3,"maxOffset":2,"minOffset":1}}}'),
        (ResetOffsetBody({QUEUE: 7}), b'{"offsetTable":{%b:7}}'),
        (GetConsumerStatusBody({QUEUE: 7}), b'{"consumerTable":{},"messageQueueTable":{%b:7}}'),
        (GetConsumerStatusBody({}, {"c": {QUEUE: 7}}), b'{"consumerTable":{"c":{%b:7}},"messageQueueTable":{}}'),
    ],
)  # fmt: skip
def test_queue_keyed_maps_write_objects_as_member_names(body: Body, text: bytes) -> None:
    text = text % QUEUE_TEXT
    assert body.encode() == text
    assert type(body).decode(text) == body


@pytest.mark.spec("REM-33")
def test_queue_keyed_maps_accept_keys_encoded_as_text() -> None:
    assert ResetOffsetBody.decode(dumps({"offsetTable": {QUEUE_TEXT.decode(): 7}})) == ResetOffsetBody({QUEUE: 7})


@pytest.mark.spec("REM-33")
def test_reset_offsets_for_cpp_clients_are_encoded_as_array() -> None:
    assert loads(b"".join(ResetOffsetBody({QUEUE: 7}).list_pieces())) == {
        "offsetTable": [{"brokerName": "b", "queueId": 3, "topic": "t", "offset": 7}]
    }


@pytest.mark.spec("REM-33")
def test_numeric_keys_are_written_quoted_and_read_quoted_or_bare() -> None:
    data = BrokerData("c", "b", {0: "127.0.0.1:10911", 1: "127.0.0.1:10921"})
    quoted = b'{"brokerAddrs":{"0":"127.0.0.1:10911","1":"127.0.0.1:10921"},"brokerName":"b","cluster":"c"}'
    assert data.encode() == quoted
    assert BrokerData.decode(quoted) == data
    assert BrokerData.decode(quoted.replace(b'"0"', b"0").replace(b'"1":', b"1:")) == data
    with pytest.raises(BodyError, match="brokerAddrs"):
        BrokerData.decode(b'{"brokerAddrs":{"x":"127.0.0.1:1"}}')


@pytest.mark.spec("REM-33")
@pytest.mark.parametrize("cls", ALL_BODIES, ids=lambda cls: cls.__name__)
def test_body_tolerates_missing_null_and_unknown_members(cls: type[Body]) -> None:
    empty = cls.decode(b"{}")
    nulls = dumps({member.wire: None for member in cls.MEMBERS} | {"fromTheFuture": {"a": [1]}})
    assert cls.decode(nulls) == empty
    assert cls.decode(empty.encode()) == empty
    assert b"null" not in empty.encode()
    assert list(empty.to_json()) == sorted(empty.to_json())


@pytest.mark.spec("REM-33")
@pytest.mark.parametrize("cls", ALL_BODIES, ids=lambda cls: cls.__name__)
def test_members_of_wrong_type_are_rejected_by_name(cls: type[Body]) -> None:
    for member in cls.MEMBERS:
        rejected = 0
        for bad in ([[]], {"x": object}, "neither", 1.5):
            value = {"x": [[]]} if isinstance(bad, dict) else bad
            try:
                cls.from_json({member.wire: value})
            except BodyError as error:
                assert member.wire in str(error) or "must be an object" in str(error)
                rejected += 1
        assert rejected, member.wire
    for junk in (b"[]", b"1", b'"text"', b"null", b"{", b"", None):
        with pytest.raises(BodyError):
            cls.decode(junk)


@pytest.mark.spec("REM-33")
def test_scalars_are_accepted_as_text_like_fastjson() -> None:
    text = b"{topicName:T,readQueueNums:'4',writeQueueNums:8.0,perm:\"6\",order:'true',topicSysFlag:1}"
    assert TopicConfig.decode(text) == TopicConfig("T", 4, 8, 6, order=True, topic_sys_flag=1)
    assert bodies.KVTable.decode(b'{"table":{"a":1,"b":true,"c":"x","d":null}}').table == {
        "a": "1",
        "b": "true",
        "c": "x",
    }
    assert bodies.ConsumeStatus.decode(b'{"pullRT":"1.5","pullTPS":2}') == bodies.ConsumeStatus(1.5, 2.0)
    for bad in (
        b'{"perm":"x"}',
        b'{"perm":1.5}',
        b'{"perm":9223372036854775808}',
        b'{"order":"maybe"}',
        b'{"order":[]}',
    ):
        with pytest.raises(BodyError):
            TopicConfig.decode(bad)


@pytest.mark.spec("REM-33")
def test_route_back_references_are_resolved() -> None:
    text = (
        b'{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:1"},"brokerName":"b","cluster":"c"},{"$ref":"$.brokerDatas[0]"}]'
        b',"queueDatas":[]}'
    )
    route = TopicRouteData.decode(text)
    assert route.broker_datas == [BrokerData("c", "b", {0: "127.0.0.1:1"})] * 2


def test_queue_data_accepts_member_name_of_old_releases() -> None:
    assert QueueData.decode(b'{"brokerName":"b","topicSynFlag":3}') == QueueData("b", topic_sys_flag=3)
    assert QueueData("b", topic_sys_flag=3).to_json()["topicSysFlag"] == 3


@pytest.mark.spec("REM-33")
def test_client_id_has_capital_d_in_heartbeats_only() -> None:
    assert b'"clientID":"me"' in HeartbeatData("me").encode()
    assert HeartbeatData.decode(b'{"clientId":"me"}').client_id == "me"
    assert b'"clientId":"me"' in bodies.LockBatchRequest("g", "me").encode()
    assert b'"lockOKMQSet":[' + QUEUE_TEXT in bodies.LockBatchResponse([QUEUE]).encode()


@pytest.mark.spec("REM-33")
def test_heartbeat_body_matches_documented_members() -> None:
    beat = HeartbeatData(
        "192.168.1.3@15140#83728392",
        [bodies.ProducerData("g")],
        [bodies.ConsumerData("cg", subscription_data_set=[SubscriptionData("t", "a || b", ["a", "b"], [97, 98], 5)])],
    )
    assert loads(beat.encode()) == {
        "clientID": "192.168.1.3@15140#83728392",
        "producerDataSet": [{"groupName": "g"}],
        "consumerDataSet": [
            {
                "groupName": "cg",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "unitMode": False,
                "subscriptionDataSet": [
                    {
                        "topic": "t",
                        "subString": "a || b",
                        "tagsSet": ["a", "b"],
                        "codeSet": [97, 98],
                        "subVersion": 5,
                        "classFilterMode": False,
                        "expressionType": "TAG",
                    }
                ],
            }
        ],
    }
    assert HeartbeatData.decode(beat.encode()) == beat


def test_group_config_defaults_match_apache(whole_frames: list[Any]) -> None:
    tables = [cls.decode(raw) for _, cls, raw in golden_bodies(whole_frames) if cls is bodies.SubscriptionGroupTable]
    assert tables[0].subscription_group_table["TOOLS_CONSUMER"] == SubscriptionGroupConfig("TOOLS_CONSUMER")  # type: ignore[attr-defined]


def test_message_queue_is_hashable_and_sortable() -> None:
    queues = [
        MessageQueue("b", "x", 1),
        MessageQueue("a", "y", 10),
        MessageQueue("a", "y", 9),
        MessageQueue("a", "x", 99),
    ]
    assert sorted(queues) == [queues[3], queues[2], queues[1], queues[0]]
    assert len({*queues, MessageQueue("b", "x", 1)}) == 4


def test_data_version_next_increments_counter() -> None:
    version = DataVersion(5, 1).next(9)
    assert version == DataVersion(9, 2) == DataVersion.decode(b'{"counter":2,"timestamp":9,"stateVersion":0}')
    assert version != DataVersion(9, 3)
    assert version != DataVersion(8, 2)


def test_account_repr_hides_secret_key() -> None:
    assert "hunter22" not in repr(bodies.AclConfig([], [bodies.PlainAccessConfig("ak", "hunter22")]))


REGISTRATION = RegisterBrokerBody(
    TopicConfigTable(
        {"T": TopicConfig("T", 4, 8, 6), "%RETRY%g": TopicConfig("%RETRY%g", 1, 1, 7, "MULTI_TAG")}, DataVersion(5, 1)
    ),
    ["127.0.0.1:1"],
)


def decode_compressed(data: bytes | None, **limits: int) -> RegisterBrokerBody:
    topics: dict[str, TopicConfig] = {}
    version, filters = bodies.read_compressed_registration(data, topics.__setitem__, **limits)
    return RegisterBrokerBody(TopicConfigTable(topics, version), filters)


@pytest.mark.spec("NS-13")
def test_compressed_registration_matches_documented_layout() -> None:
    chunks = [b'{"counter":1,"timestamp":5}', 2, b"T 4 8 6 SINGLE_TAG", b"%RETRY%g 1 1 7 MULTI_TAG", b'["127.0.0.1:1"]']
    raw = b"".join(struct.pack(">i", c) if isinstance(c, int) else struct.pack(">i", len(c)) + c for c in chunks)
    assert zlib.decompress(REGISTRATION.encode_compressed()) == raw
    assert REGISTRATION.encode_compressed() == zlib.compress(raw, 9)
    assert decode_compressed(zlib.compress(raw, 1)) == REGISTRATION


@pytest.mark.spec("NS-13")
def test_plain_and_compressed_registrations_decode_equally(whole_frames: list[Any]) -> None:
    seen = 0
    for where, cls, raw in golden_bodies(whole_frames):
        if cls is RegisterBrokerBody:
            plain = RegisterBrokerBody.decode(raw)
            assert decode_compressed(plain.encode_compressed()) == plain, where
            seen += 1
    assert seen


@pytest.mark.spec("NS-13")
def test_truncated_compressed_registration_is_rejected() -> None:
    packed = REGISTRATION.encode_compressed()
    raw = zlib.decompress(packed)
    for size in range(len(packed)):
        with pytest.raises(BodyError):
            decode_compressed(packed[:size])
    for size in range(len(raw)):
        with pytest.raises(BodyError):
            decode_compressed(zlib.compress(raw[:size]))
    bad = [
        raw + b"x",
        b"\xff" * 4 + raw[4:],
        b"\x7f" + raw[1:],
        raw.replace(b"T 4 8", b"T x 8"),
        raw.replace(b"T 4 8", b"T 488"),
        raw.replace(b'["127.0.0.1:1"]', b'{"127.0.0.1":1}'),
    ]
    for each in bad:
        with pytest.raises(BodyError):
            decode_compressed(zlib.compress(each))
    for junk in (b"", None, b"not zlib"):
        with pytest.raises(BodyError):
            decode_compressed(junk)


@pytest.mark.spec("NS-13")
def test_registration_decompression_is_bounded() -> None:
    bomb = zlib.compress(bytes(50_000_000), 9)
    assert len(bomb) < 60_000
    with pytest.raises(BodyError, match="more than 1000000 bytes"):
        decode_compressed(bomb, bytes_max=1_000_000)


def test_compressed_registration_rejects_topic_name_with_space() -> None:
    bad = RegisterBrokerBody(TopicConfigTable({"a b": TopicConfig("a b")}))
    with pytest.raises(LocalProtocolError):
        bad.encode_compressed()


names = st.text(st.characters(codec="utf-8"), max_size=8)
queues = st.builds(MessageQueue, names, names, st.integers(-(2**31), 2**31 - 1))
i64 = st.integers(-(2**63), 2**63 - 1)
any_body = st.one_of(
    st.builds(ConsumeStats, st.dictionaries(queues, st.builds(OffsetWrapper, i64, i64, i64), max_size=3)),
    st.builds(GetConsumerStatusBody, st.dictionaries(queues, i64, max_size=3)),
    st.builds(bodies.ConsumerOffsetTable, st.dictionaries(names, st.dictionaries(i64, i64, max_size=3), max_size=3)),
    st.builds(BrokerData, names, names, st.dictionaries(i64, names, max_size=3)),
    st.builds(SubscriptionData, names, names, st.lists(names, max_size=3), st.lists(i64, max_size=3), i64),
    st.builds(TopicRouteData, order_topic_conf=st.none() | names),
    st.builds(bodies.KVTable, st.dictionaries(names, names, max_size=4)),
)


@pytest.mark.spec("REM-33")
@given(any_body)
def test_any_body_round_trips(sent: Body) -> None:
    assert b"$ref" in sent.encode() or type(sent).decode(sent.encode()) == sent


def test_body_in_pieces_equals_the_whole() -> None:
    many = {MessageQueue("T", "b", n): OffsetWrapper(n, n, n) for n in range(300)}
    connections = bodies.ConsumerConnection(
        [bodies.Connection(f"c{n}") for n in range(300)], {"T": SubscriptionData("T")}
    )
    topics = [bodies.TopicList([f"t{n}" for n in range(256)]), bodies.TopicList([])]
    offsets = bodies.ConsumerOffsetTable({f"T@{n}": {n: n} for n in range(129)})
    for body in (ConsumeStats(many), ConsumeStats({}), *topics, connections, offsets):
        assert b"".join(body.pieces()) == body.encode()
    assert b"".join(ResetOffsetBody({}).list_pieces()) == b'{"offsetTable":[]}'
