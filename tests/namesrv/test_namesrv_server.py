"""A NameServer tested over real connections."""

from __future__ import annotations

import asyncio
import logging
import zlib
from pathlib import Path

import pytest
from served import Served, served

from saturnmq.config.settings import to_properties
from saturnmq.namesrv import NameServerSettings
from saturnmq.namesrv.processor import TABLE
from saturnmq.net import NetSettings, RemotingClient
from saturnmq.protocol.bodies import (
    ClusterInfo,
    DataVersion,
    KVTable,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    TopicList,
)
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command
from saturnmq.server_admin.configuration import FIXED


@pytest.mark.spec("NS-23")
async def test_changed_route_is_not_pushed_to_clients(tmp_path: Path) -> None:
    pushed: list[Command] = []
    async with served(tmp_path) as s:
        client = RemotingClient(settings=NetSettings(), handler=lambda connection, request: pushed.append(request))
        ask = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "T"})
        await s.register()
        assert (await client.invoke(s.address, ask, 5000)).code == 0
        await s.call(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a")
        await s.call(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="T")
        assert (await client.invoke(s.address, ask, 5000)).code == 17
        assert pushed == []
        await client.close()


@pytest.mark.spec("NS-08", "NS-11")
async def test_registration_response_carries_master_for_slaves_only(served: Served) -> None:
    answer = await served.register()
    assert (answer.ext, answer.body) == ({}, None)
    slave = {"brokerId": "1", "brokerAddr": "127.0.0.1:10921", "haServerAddr": "127.0.0.1:10922"}
    assert (await served.route()) is not None
    answer = await served.register(ext=slave)
    route = await served.route()
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {0: "127.0.0.1:10911", 1: "127.0.0.1:10921"}
    assert answer.ext == {"masterAddr": "127.0.0.1:10911", "haServerAddr": "127.0.0.1:10912"}
    assert answer.body is None


@pytest.mark.spec("NS-08", "NS-20", "NS-22")
async def test_route_response_is_standard_json(served: Served) -> None:
    assert (await served.register()).code == 0
    answer = await served.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
    assert answer.body == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:10911"},"brokerName":"broker-a","cluster":"c"}],'
        b'"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,'
        b'"topicSysFlag":0,"writeQueueNums":4}]}'
    )
    for version, more in ((300, {}), (401, {}), (300, {"acceptStandardJsonOnly": "true"})):
        asked = await served.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, version=version, topic="T", **more)
        assert asked.body == answer.body
    missing = await served.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="none")
    assert missing.code == 17
    assert (missing.remark or "").startswith("No topic route info in name server for the topic: none\nSee http")


@pytest.mark.spec("NS-12")
async def test_registration_with_wrong_checksum_is_rejected(served: Served) -> None:
    answer = await served.register(ext={"bodyCrc32": "12345"})
    assert (answer.code, answer.remark) == (1, "crc32 not match")
    assert served.server.routes.brokers == {}
    body = RegisterBrokerBody(TopicConfigTable({"T": TopicConfig("T")}, DataVersion(1, 1)), []).encode()
    good = {"bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF)}
    assert (await served.register(body=body, ext=good)).code == 0
    assert (await served.register(body=body, ext={"bodyCrc32": "0"})).code == 0, "0: nothing to compare"


@pytest.mark.spec("NS-13")
async def test_registration_accepts_compressed_old_and_missing_bodies(served: Served) -> None:
    table = TopicConfigTable({"Z": TopicConfig("Z", 3, 3)}, DataVersion(5, 1))
    packed = RegisterBrokerBody(table, []).encode_compressed()
    crc = str(zlib.crc32(packed) & 0x7FFFFFFF)  # of the bytes as they travel
    assert (await served.register(body=packed, ext={"compressed": "true", "bodyCrc32": crc})).code == 0
    assert await served.route("Z") is not None
    old = TopicConfigTable({"Old": TopicConfig("Old")}, DataVersion(6, 1)).encode()
    assert (await served.register(body=old, release=36, ext={"brokerName": "b2", "brokerAddr": "x:2"})).code == 0
    assert await served.route("Old") is not None
    new = RegisterBrokerBody(TopicConfigTable({"New": TopicConfig("New")}, DataVersion(7, 1)), []).encode()
    assert (await served.register(body=new, release=37, ext={"brokerName": "b5", "brokerAddr": "x:5"})).code == 0
    assert await served.route("New") is not None
    assert (await served.register(body=b"", ext={"brokerName": "b3", "brokerAddr": "x:3"})).code == 0
    assert served.server.routes.live["x:3"].version == DataVersion(0, 0)
    assert [topic for topic, brokers in served.server.routes.topics.items() if "b3" in brokers] == []
    bad = await served.register(body=b"garbage", ext={"brokerName": "b4"})
    assert bad.code == 1 and await served.route("Z") is not None


@pytest.mark.spec("NS-16", "NS-17")
async def test_closed_connection_removes_its_broker_at_once(served: Served) -> None:
    first, second = (RemotingClient(settings=NetSettings()) for _ in range(2))
    await served.register(first)
    await served.register(second)
    await first.close()
    assert await served.route() is not None
    await second.close()
    while await served.route() is not None:
        await asyncio.sleep(0)
    assert served.server.routes.live == {}


@pytest.mark.spec("NS-15", "NS-05")
async def test_expired_broker_is_removed_and_disconnected(tmp_path: Path) -> None:
    now = [1_000_000]
    async with served(tmp_path, clock_ms=lambda: now[0]) as s:
        settings = s.server.settings
        assert (settings.scan_first_ms, settings.scan_interval_ms, settings.broker_expiry_ms) == (
            5000,
            10_000,
            120_000,
        )
        assert (settings.kv_log_first_ms, settings.kv_log_interval_ms) == (60_000, 600_000)
        broker = RemotingClient(settings=NetSettings())
        await s.register(broker)
        now[0] += 120_000
        s.server.scan()
        assert await s.route() is not None
        now[0] += 1
        s.server.scan()
        assert await s.route() is None
        while broker.is_connected(s.address):
            await asyncio.sleep(0)
        await broker.close()


@pytest.mark.spec("NS-05")
async def test_timers_use_first_delay_and_then_period(served: Served) -> None:
    loop, timers = asyncio.get_running_loop(), served.server._timers
    for name, first, period in (("scan", 5, 10), ("kv", 60, 600)):
        timer = timers[name]
        assert first - 1 < timer.when() - loop.time() <= first
        tick = timer._callback  # type: ignore[attr-defined]
        timer.cancel()
        tick()
        assert period - 1 < timers[name].when() - loop.time() <= period


@pytest.mark.spec("NS-05")
async def test_expiry_scan_runs_periodically(tmp_path: Path) -> None:
    async with served(tmp_path, scan_first_ms=10, scan_interval_ms=10, broker_expiry_ms=1) as s:
        broker = RemotingClient(settings=NetSettings())
        await s.register(broker)
        while s.server.routes.live:
            await asyncio.sleep(0)
        assert await s.route() is None
        await broker.close()


@pytest.mark.spec("NS-05")
async def test_kv_configuration_is_logged_periodically(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "saturnmq.namesrv.server"):
        async with served(tmp_path, kv_log_first_ms=10, kv_log_interval_ms=10) as s:
            await s.server.kv.put("ORDER_TOPIC_CONFIG", "T", "broker-a:4")
            line = "kv configuration namespace=ORDER_TOPIC_CONFIG count=1 keys=T"
            while caplog.messages.count(line) < 2:
                await asyncio.sleep(0)
            assert {record.levelname for record in caplog.records if record.message == line} == {"INFO"}


@pytest.mark.spec("NS-24", "NS-11", "NS-21", "ADM-25")
async def test_kv_configuration_survives_restart(tmp_path: Path) -> None:
    async with served(tmp_path, order_message_enable=True) as s:
        put = await s.call(RequestCode.PUT_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="T", value="broker-a:4")
        assert put.code == 0
        assert (await s.call(RequestCode.PUT_KV_CONFIG, namespace="other", key="U", value="v")).code == 0
        assert (await s.call(RequestCode.GET_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="U")).code == 22
        assert (await s.call(RequestCode.GET_KV_CONFIG, namespace="n", key="k")).code == 22
        for nothing in (
            {"key": "k"},
            {"namespace": "n"},
            {"namespace": "", "key": "k"},
            {"namespace": "n", "key": ""},
        ):
            assert (await s.call(RequestCode.PUT_KV_CONFIG, value="v", **nothing)).code == 1
        for who in ({}, {"brokerId": "1", "brokerAddr": "127.0.0.1:10921"}):  # a slave too
            answer = await s.register(ext=who)
            assert KVTable.decode(answer.body).table == {"T": "broker-a:4"}
        route = await s.route()
        assert route is not None and route.order_topic_conf == "broker-a:4"
    async with served(tmp_path) as s:
        got = await s.call(RequestCode.GET_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="T")
        assert got.ext["value"] == "broker-a:4"
        listed = await s.call(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="ORDER_TOPIC_CONFIG")
        assert KVTable.decode(listed.body).table == {"T": "broker-a:4"}
        await s.register()
        route = await s.route()
        assert route is not None and route.order_topic_conf is None
        await s.call(RequestCode.DELETE_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="T")
        assert (await s.call(RequestCode.GET_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="T")).code == 22


@pytest.mark.spec("NS-24")
async def test_damaged_kv_file_falls_back_to_backup(tmp_path: Path) -> None:
    async with served(tmp_path) as s:
        for value in ("1", "2"):
            await s.call(RequestCode.PUT_KV_CONFIG, namespace="n", key="k", value=value)
    (tmp_path / "kv.json").write_bytes(b'{"configTab')
    async with served(tmp_path) as s:
        assert (await s.call(RequestCode.GET_KV_CONFIG, namespace="n", key="k")).ext["value"] == "1"


@pytest.mark.spec("NS-18", "NS-19", "NS-25", "NS-26", "NS-27", "NS-28", "ADM-25")
async def test_administration_requests_work_over_the_wire(served: Served) -> None:
    await served.register()
    who = {"brokerName": "broker-a", "brokerAddr": "127.0.0.1:10911", "clusterName": "c", "brokerId": "0"}
    same = await served.call(RequestCode.QUERY_DATA_VERSION, DataVersion(1, 1).encode(), **who)
    assert same.ext["changed"] == "false" and DataVersion.decode(same.body) == DataVersion(1, 1)
    other = await served.call(RequestCode.QUERY_DATA_VERSION, DataVersion(1, 2).encode(), **who)
    assert other.ext["changed"] == "true"
    wiped = await served.call(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a")
    assert wiped.ext == {"wipeTopicCount": "1"}
    route = await served.route()
    assert route is not None and route.queue_datas[0].perm == 4
    added = await served.call(RequestCode.ADD_WRITE_PERM_OF_BROKER, brokerName="broker-a")
    assert added.ext == {"addTopicCount": "1"}
    info = ClusterInfo.decode((await served.call(RequestCode.GET_BROKER_CLUSTER_INFO)).body)
    assert info.broker_addr_table["broker-a"].broker_addrs == {0: "127.0.0.1:10911"}
    for code, ext, expected in (
        (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}, ["T"]),
        (RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "c"}, ["T"]),
        (RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "x"}, []),
        (RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, {}, ["c", "broker-a"]),
        (RequestCode.GET_UNIT_TOPIC_LIST, {}, []),
        (RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, {}, []),
        (RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, {}, []),
    ):
        assert TopicList.decode((await served.call(code, **ext)).body).topic_list == expected
    system = await served.call(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    assert TopicList.decode(system.body).broker_addr == "127.0.0.1:10911"
    await served.call(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="T", clusterName="other")
    assert await served.route() is not None
    await served.call(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="T")
    assert await served.route() is None
    await served.call(RequestCode.UNREGISTER_BROKER, **who)
    assert served.server.routes.brokers == {}


@pytest.mark.spec("NS-28", "ADM-25")
async def test_unit_topic_lists_follow_topic_sys_flags(served: Served) -> None:
    topics = {name: TopicConfig(name, topic_sys_flag=flag) for flag, name in enumerate(("T", "U", "S", "US"))}
    await served.register(body=RegisterBrokerBody(TopicConfigTable(topics, DataVersion(1, 1)), []).encode())
    for code, expected in ((311, ["U", "US"]), (312, ["S", "US"]), (313, ["S"])):
        assert TopicList.decode((await served.call(code)).body).topic_list == expected, code


@pytest.mark.spec("REM-10", "ADM-25")
async def test_unknown_request_codes_are_answered(served: Served) -> None:
    for code in (10, 999, -1):
        answer = await served.call(code)
        assert (answer.code, answer.remark) == (3, f" request type {code} not supported")


@pytest.mark.spec("REM-08", "REM-10")
async def test_invalid_requests_of_every_code_are_answered(served: Served) -> None:
    await served.register()
    for code in TABLE:
        answer = await served.call(code, b"\x00junk", nonsense="1")
        assert answer.is_response, code
    assert len(served.server._server.connections) == 1


@pytest.mark.spec("NS-29", "ADM-13", "ADM-14")
async def test_update_config_changes_and_persists_listed_keys(tmp_path: Path) -> None:
    path = tmp_path / "ns.properties"
    path.write_text("# of the operator\ntls.server.keyPassword=hush\norderMessageEnable : false\n")
    path.chmod(0o640)
    async with served(tmp_path) as s:
        for name in (b"kvConfigPath", b"configStorePath"):
            refused = await s.call(RequestCode.UPDATE_NAMESRV_CONFIG, name + b"=/tmp/x")
            assert (refused.code, refused.remark) == (16, "Can not update config path")
        pairs = b"orderMessageEnable=true\nscanNotActiveBrokerInterval=5s"
        assert (await s.call(RequestCode.UPDATE_NAMESRV_CONFIG, pairs)).code == 0
        text = ((await s.call(RequestCode.GET_NAMESRV_CONFIG)).body or b"").decode()
        assert "orderMessageEnable=true\n" in text and "scanNotActiveBrokerInterval=5000\n" in text
        bad = await s.call(RequestCode.UPDATE_NAMESRV_CONFIG, b"orderMessageEnable=perhaps")
        assert bad.code == 1 and "true or false" in (bad.remark or "")
    assert path.read_text() == (
        "# of the operator\ntls.server.keyPassword=hush\norderMessageEnable=true\nscanNotActiveBrokerInterval=5000\n"
    )
    assert path.stat().st_mode & 0o777 == 0o640, "the file keeps its permissions"


@pytest.mark.spec("NS-29", "ADM-13", "ADM-14")
async def test_update_config_rejects_fixed_keys_by_name(tmp_path: Path) -> None:
    async with served(tmp_path, unknown_keys={"myKey": "mine"}) as s:
        before = (await s.call(RequestCode.GET_NAMESRV_CONFIG)).body or b""
        for name, text in (
            ("serverChannelMaxIdleTimeSeconds", "7"),
            ("myKey", "yours"),
            ("listenPort", "1"),
            ("bindAddress", "0.0.0.0"),
            ("rocketmqHome", "/tmp"),
            ("unheardOf", "1"),
        ):
            pairs = f"{name}={text}\norderMessageEnable=true".encode()
            refused = await s.call(RequestCode.UPDATE_NAMESRV_CONFIG, pairs)
            assert refused.code == 16 and (refused.remark or "").startswith(f"{FIXED} {name} cannot change"), name
            assert "Keys that can: brokerChannelExpiredTime, brokersMax, kvEntriesMax" in (refused.remark or "")
        assert (await s.call(RequestCode.GET_NAMESRV_CONFIG)).body == before
        assert not (tmp_path / "ns.properties").exists()
        kept = [line for line in before.splitlines() if b"Path=" not in line]
        kept.remove(b"scanNotActiveBrokerInterval=10000")
        same = await s.call(RequestCode.UPDATE_NAMESRV_CONFIG, b"\n".join([*kept, b"scanNotActiveBrokerInterval=5s"]))
        assert same.code == 0, "all of it, with one line changed"
        assert s.server.settings.scan_interval_ms == 5000
        assert b"scanNotActiveBrokerInterval=5000\n" in ((await s.call(RequestCode.GET_NAMESRV_CONFIG)).body or b"")
        assert (tmp_path / "ns.properties").stat().st_mode & 0o777 == 0o600, "a new file is the owner's"


@pytest.mark.spec("NS-29")
@pytest.mark.parametrize("name", ["brokersMax", "topicsMax", "kvEntriesMax"])
async def test_changed_limits_apply_to_the_next_request(name: str, served: Served) -> None:
    assert (await served.register()).code == 0
    put = {"namespace": "n", "value": "v"}
    assert (await served.call(RequestCode.PUT_KV_CONFIG, key="a", **put)).code == 0
    assert (await served.call(RequestCode.UPDATE_NAMESRV_CONFIG, f"{name}=1".encode())).code == 0
    table = TopicConfigTable({"T": TopicConfig("T"), "U": TopicConfig("U")}, DataVersion(1, 2))
    answers = {
        "brokersMax": await served.register(ext={"brokerName": "b", "brokerAddr": "127.0.0.1:1", "brokerId": "1"}),
        "topicsMax": await served.register(body=RegisterBrokerBody(table, []).encode()),
        "kvEntriesMax": await served.call(RequestCode.PUT_KV_CONFIG, key="b", **put),
    }
    assert {key: answer.code for key, answer in answers.items()} == dict.fromkeys(answers, 0) | {name: 2}


@pytest.mark.spec("NS-05", "NS-29")
async def test_changed_timer_period_applies_from_next_run(tmp_path: Path) -> None:
    long = {"scan_first_ms": 20, "scan_interval_ms": 20, "broker_expiry_ms": 1}
    async with served(tmp_path, **long) as s:
        await s.server.update_config(b"scanNotActiveBrokerInterval=1h", "test")
        loop = asyncio.get_running_loop()
        first = s.server._timers["scan"]
        while s.server._timers["scan"] is first:
            await asyncio.sleep(0)
        assert s.server._timers["scan"].when() > loop.time() + 3000


@pytest.mark.spec("NS-02")
async def test_get_config_includes_unknown_keys(tmp_path: Path) -> None:
    async with served(tmp_path, unknown_keys={"myWord": "mine", "myKey": "hidden"}, product_env_name="dev") as s:
        text = ((await s.call(RequestCode.GET_NAMESRV_CONFIG)).body or b"").decode()
        for line in ("productEnvName=dev", "serverChannelMaxIdleTimeSeconds=120", "myWord=mine", "myKey=******"):
            assert line in text.splitlines()


DEFAULTS = """
    rocketmqHome= productEnvName=center clusterTest=false orderMessageEnable=false listenPort=9876 serverWorkerThreads=8
    serverCallbackExecutorThreads=0 serverSelectorThreads=3 serverOnewaySemaphoreValue=256 serverAsyncSemaphoreValue=64
    serverChannelMaxIdleTimeSeconds=120 serverSocketSndBufSize=0 serverSocketRcvBufSize=0
    serverPooledByteBufAllocatorEnable=true useEpollNativeSelector=false writeBufferHighWaterMark=0
    writeBufferLowWaterMark=0 serverSocketBacklog=1024
"""


@pytest.mark.spec("NS-03", "NS-04", "CFG-01")
def test_name_server_defaults_match_apache() -> None:
    settings = NameServerSettings()
    assert settings.kv_config_path == str(Path.home() / "namesrv" / "kvConfig.json")
    assert settings.config_store_path == str(Path.home() / "namesrv" / "namesrv.properties")
    properties = to_properties(settings) | to_properties(NetSettings())
    expected = dict(word.split("=") for word in DEFAULTS.split())
    assert {name: properties.get(name) for name in expected} == expected


@pytest.mark.spec("NS-06")
async def test_stop_closes_listener_and_all_connections(served: Served) -> None:
    await served.register()
    await served.server.stop()
    assert not served.server._server.connections
    host, port = served.address.split(":")
    with pytest.raises(OSError):
        await asyncio.open_connection(host, int(port))


@pytest.mark.spec("NS-14")
async def test_routes_never_show_half_applied_registrations(served: Served) -> None:

    async def write() -> None:
        broker = RemotingClient(settings=NetSettings())
        for n in range(1, 61):
            tables = {f"T{i}": TopicConfig(f"T{i}", n, n) for i in range(5)}
            body = RegisterBrokerBody(TopicConfigTable(tables, DataVersion(1, n)), []).encode()
            await served.register(broker, body=body)
        assert set(await counts()) == {60}, "the last one"
        await broker.close()

    async def counts() -> list[int]:
        """Queue counts of all topics, up and down; the requests are answered in this order."""
        routes = await asyncio.gather(*(served.route(f"T{i}") for i in (*range(5), *reversed(range(5)))))
        return [0 if route is None else route.queue_datas[0].write_queue_nums for route in routes]

    seen = set()
    writing = asyncio.create_task(write())
    while not writing.done():
        found = await counts()
        assert found == sorted(found), "a topic of an earlier registration behind one of a later"
        seen.update(found)
    await writing
    assert seen - {0}, "a route was seen"


@pytest.mark.spec("REM-31")
async def test_response_version_announces_standard_json(served: Served) -> None:
    assert (await served.call(RequestCode.GET_BROKER_CLUSTER_INFO)).version >= 401
