"""Hostile registrations and KV changes, each beside an honest client."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

import pytest
from served import Served, served

from loopsteps import STEP_MAX, reference_seconds
from saturnmq.namesrv.processor import process
from saturnmq.net import NetSettings, RemotingClient
from saturnmq.protocol.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    read_compressed_registration,
)
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command

TOPICS = 60_000
HOSTILE = {"brokerName": "hostile", "brokerAddr": "127.0.0.1:1", "compressed": "true"}


def packed(count: int, *, version: int = 1) -> bytes:
    topics = {f"topic-{number}": TopicConfig(f"topic-{number}", 4, 4) for number in range(count)}
    return RegisterBrokerBody(TopicConfigTable(topics, DataVersion(1, version)), []).encode_compressed()


@pytest.mark.realtime
@pytest.mark.spec("LIM-05")
async def test_large_registration_does_not_hold_the_event_loop(tmp_path: Path) -> None:
    body = packed(TOPICS)
    before = time.thread_time()
    read_compressed_registration(body, lambda name, config: None)
    parsing = time.thread_time() - before
    async with served(tmp_path) as s:
        assert (await s.register()).code == 0
        hostile = RemotingClient(settings=NetSettings())
        registering = asyncio.create_task(s.register(hostile, body=body, ext=HOSTILE))
        answered = 0
        used = time.thread_time()
        while not registering.done():
            assert await s.route() is not None, "an honest client is served meanwhile"
            answered += 1
        used = time.thread_time() - used
        assert (await registering).code == 0
        assert await s.route("topic-59999") is not None
        assert answered > 10
        # The time of the loop is that of the honest requests, each with its client, and of one exchange of tables.
        assert used < parsing / 2 + answered * reference_seconds(), (used, parsing, answered)
        steps = []
        before = time.thread_time()
        again = asyncio.create_task(s.register(hostile, body=packed(TOPICS, version=2), ext=HOSTILE))
        while not again.done():
            steps.append(time.thread_time() - before)
            before = time.thread_time()
            await asyncio.sleep(0)
        await hostile.close()
        assert max(steps[1:]) < max(STEP_MAX * reference_seconds(), parsing / 4), "no step of the loop is long"


async def test_registrations_of_a_connection_keep_their_order(served: Served) -> None:
    ext = {"compressed": "true", "saturnmqComplete": "true"}
    large = asyncio.create_task(served.register(body=packed(20_000), ext=ext))
    small = asyncio.create_task(served.register(body=packed(1, version=2), ext=ext))
    assert [(await large).code, (await small).code] == [0, 0]
    assert list(served.server.routes.topics) == ["topic-0"]
    assert not served.server._registering


async def test_registration_parsed_after_its_connection_closed_is_dropped(tmp_path: Path) -> None:
    class Peer:
        remote_address = "127.0.0.1:4000"
        closed = False

    async with served(tmp_path) as s:
        peer = Peer()
        ext = {"brokerName": "b", "brokerAddr": "x:1", "clusterName": "c", "haServerAddr": "", "brokerId": "0"}
        request = Command(RequestCode.REGISTER_BROKER, ext=ext | {"compressed": "true"}, body=packed(20_000))
        waiting = process(s.server, peer, request)
        assert not isinstance(waiting, Command)
        peer.closed = True
        assert (await waiting).code == 1
        assert s.server.routes.live == {}


@pytest.mark.spec("LIM-13")
async def test_registration_beyond_the_limit_of_topics_is_rejected_before_it_is_read(tmp_path: Path) -> None:
    async with served(tmp_path, topics_max=1000) as s:
        plain = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{' + b",".join(
            b'"t%d":{}' % number for number in range(1200)
        ) + b"}}}"  # fmt: skip
        for body, ext in ((packed(1001), HOSTILE), (plain, HOSTILE | {"compressed": "false"})):
            answer = await s.register(body=body, ext=ext)
            assert answer.code == 2 and "1000 (topicsMax)" in (answer.remark or ""), answer.remark
        assert (await s.register(body=packed(800), ext=HOSTILE)).code == 0


@pytest.mark.parametrize(
    ("read", "write", "taken"),
    [(2_000_000_000, 4, False), (4, 2_000_000_000, False), (65_537, 1, False), (0, 0, False), (-1, 4, False),
     (65_536, 65_536, True), (1, 1, True), (4, 0, True)],
)  # fmt: skip
async def test_topic_with_unusable_queues_is_left_out(read: int, write: int, taken: bool, served: Served) -> None:
    topics = {"Good": TopicConfig("Good", 4, 4), "Odd": TopicConfig("Odd", read, write)}
    body = RegisterBrokerBody(TopicConfigTable(topics, DataVersion(1, 1)), []).encode()
    assert (await served.register(body=body)).code == 0
    assert await served.route("Good") is not None and (await served.route("Odd") is not None) == taken


@pytest.mark.parametrize(
    ("value", "code"),
    [("broker-a:4", 0), ("a:1;b:65536", 0), ("a:4;", 0), ("a:" + "9" * 5000, 1), ("a:65537", 1), ("a:0", 1), ("a:-1", 1),
     ("a", 1), ("a:4;;b:4", 1), ("a:٣", 1), ("", 1), ("a:1;" * 5000 + "x", 1)],
    ids=lambda value: str(value)[:12],
)  # fmt: skip
async def test_order_configuration_is_one_that_clients_can_read(value: str, code: int, served: Served) -> None:
    put = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": value}
    assert (await served.call(RequestCode.PUT_KV_CONFIG, **put)).code == code
    assert (await served.call(RequestCode.GET_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="T")).code == (
        22 if code else 0
    )


@pytest.mark.spec("NS-24")
async def test_kv_changes_that_arrive_together_share_writes(tmp_path: Path) -> None:
    async with served(tmp_path, kv_entries_max=250) as s:
        puts = [s.call(RequestCode.PUT_KV_CONFIG, namespace="n", key=f"k{number}", value="v") for number in range(300)]
        codes = [answer.code for answer in await asyncio.gather(*puts)]
        assert sorted(codes) == [0] * 250 + [2] * 50, "the limit counts changes that are being written"
        assert len(s.server.kv.table["n"]) == 250 and s.server.kv.writes <= 20
        assert await s.route("none") is None


@pytest.mark.spec("NS-24")
async def test_failed_kv_write_is_reported_and_changes_nothing(served: Served, tmp_path: Path) -> None:
    path, aside = tmp_path / "kv.json", tmp_path / "kv.json.tmp"
    put = {"namespace": "n", "value": "v"}
    assert (await served.call(RequestCode.PUT_KV_CONFIG, key="a", **put)).code == 0
    aside.mkdir()
    kept = path.read_bytes()
    for code, ext in (
        (RequestCode.PUT_KV_CONFIG, put | {"key": "b"}),
        (RequestCode.DELETE_KV_CONFIG, {"namespace": "n", "key": "a"}),
    ):
        failed = await served.call(code, **ext)
        assert failed.code == 1 and "kv.json" in (failed.remark or "")
    assert served.server.kv.table == {"n": {"a": "v"}} and path.read_bytes() == kept
    shutil.rmtree(aside)
    assert (await served.call(RequestCode.PUT_KV_CONFIG, key="b", **put)).code == 0


@pytest.mark.spec("NS-13")
@pytest.mark.parametrize("release", [36, 407])
async def test_large_json_registration_is_read_topic_by_topic(release: int, tmp_path: Path) -> None:
    topics = {f"topic-{number}": TopicConfig(f"topic-{number}", 4, 4) for number in range(2000)}
    table = TopicConfigTable(topics, DataVersion(5, 6))
    body = table.encode() if release == 36 else RegisterBrokerBody(table, ["f:1"]).encode()
    start = body.index(b'"topicConfigTable":{') + len(b'"topicConfigTable":{')
    broken = {
        "cannot be read": body[:start] + b'"x":{"a":[' + b"1," * 100_000 + b"1]}," + body[start:],
        "has no topic at": body[:start] + b'"a\\u0062":{},' + body[start:],
        "is not UTF-8": body[:start] + b'"\xff":{},' + body[start:],
        "beside its topics": body[:-1] + b',"more":"' + b"x" * 100_000 + b'"}',
        "is cut after topic": body[:start] + b'"x":{};' + body[start:],
        "has no topicConfigTable": b'{"a":"' + b"x" * 100_000 + b'"}',
    }
    async with served(tmp_path) as s:
        for text, hostile in broken.items():
            answer = await s.register(body=hostile, release=release)
            assert answer.code == 1 and text in (answer.remark or ""), (text, answer.remark)
        assert s.server.routes.live == {}
        assert (await s.register(body=body, release=release)).code == 0
        assert len(s.server.routes.topics) == 2000
        (live,) = s.server.routes.live.values()
        assert live.version == DataVersion(5, 6)
        assert s.server.routes.filter_servers == ({} if release == 36 else {"127.0.0.1:10911": ["f:1"]})


@pytest.mark.spec("LIM-13")
async def test_clusters_and_names_of_brokers_are_limited(tmp_path: Path) -> None:
    """A slave that named another cluster each time added one of 200 KB with each registration."""
    async with served(tmp_path, brokers_max=5) as s:
        assert (await s.register()).code == 0
        hostile = RemotingClient(settings=NetSettings())
        mine = {"brokerName": "hostile", "brokerAddr": "127.0.0.1:1"}
        codes = [
            (await s.register(hostile, ext={**mine, "brokerId": "1", "clusterName": f"x{number}"})).code
            for number in range(20)
        ]
        assert codes.count(0) == 3 and len(s.server.routes.clusters) == 4, "the rest is for other addresses"
        for name in ("brokerName", "brokerAddr", "clusterName", "haServerAddr"):
            assert (await s.register(hostile, ext={**mine, name: "x" * 256})).code == 1
        await hostile.close()
        assert await s.route() is not None


@pytest.mark.spec("NS-18", "SEC-17")
async def test_broker_unregistered_under_a_wrong_name_leaves_the_routes(served: Served) -> None:
    """It remained in the routes until a restart, without counting towards the limits and after its connection was closed."""
    assert (await served.register()).code == 0
    hostile = RemotingClient(settings=NetSettings())
    for number in range(3):
        name = {"brokerName": f"hostile{number}", "brokerAddr": f"127.0.0.1:{number}"}
        assert (await served.register(hostile, ext=name)).code == 0
        wrong = {"brokerName": "wrong", "brokerId": "0", "clusterName": "c", "brokerAddr": name["brokerAddr"]}
        await hostile.invoke(served.address, Command(RequestCode.UNREGISTER_BROKER, ext=wrong), 5000)
    await hostile.close()
    assert list(served.server.routes.brokers) == list(served.server.routes.queues) == ["broker-a"]


@pytest.mark.spec("SEC-17")
async def test_topics_replaced_under_another_address_return_with_the_next_registration(served: Served) -> None:
    """They were lost until the broker changed a topic, also after the stranger had left: its version was unchanged."""
    assert (await served.register()).code == 0
    hostile = RemotingClient(settings=NetSettings())
    mine = {"brokerAddr": "127.0.0.1:1", "saturnmqComplete": "true"}
    table = TopicConfigTable({"other": TopicConfig("other", 1, 1)}, DataVersion(1, 9))
    assert (await served.register(hostile, ext=mine, body=RegisterBrokerBody(table, []).encode())).code == 0
    assert (await served.register()).code == 0
    assert await served.route() is not None
    await hostile.close()
    assert (await served.register()).code == 0 and await served.route() is not None
