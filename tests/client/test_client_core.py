"""The connection manager without servers: addresses, heartbeats, registration of groups, and requests that brokers send."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from saturnmq.client.connection.core import REPLACED, ClientState, Core
from saturnmq.client.connection.outages import Outages
from saturnmq.client.connection.routes import TopicRoute
from saturnmq.client.connection.url import ClientSettings
from saturnmq.errors import BrokerNotExist, CallTimeout, ConnectFailed, GroupInUse, RouteNotFound
from saturnmq.net import NO_RESPONSE
from saturnmq.protocol.bodies import BrokerData, ClusterInfo, HeartbeatData, MessageQueue
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import ResponseError
from saturnmq.protocol.frames.command import Command

ADDRESSES = {"b0": {0: "m0:10911", 2: "s0:10911", 3: "t0:10911"}, "b1": {0: "m1:10911"}}


class Routes:
    """Stands for RouteCache."""

    def __init__(self, addresses: dict[str, dict[int, str]]) -> None:
        self.table: dict[str, TopicRoute] = {}
        self.addresses = addresses
        self.refreshed: list[str] = []
        self.used: list[str] = []
        self.refresh = self._refresh

    async def _refresh(self, topic: str) -> None:
        self.refreshed.append(topic)

    async def for_send(self, topic: str) -> TopicRoute | None:
        return self.table.get(topic)

    async def for_read(self, topic: str) -> TopicRoute | None:
        return self.table.get(topic)

    def cached(self, topic: str) -> TopicRoute | None:
        return self.table.get(topic)

    def brokers(self) -> dict[str, dict[int, str]]:
        return self.addresses

    def use(self, topic: str) -> None:
        self.used.append(topic)


class Peers:
    """Stands for Remote and NameServerList. outcomes: by address; connected: where connections are open."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Any] = {}
        self.calls: list[tuple[str, Command, int]] = []
        self.connected = {"m0:10911", "s0:10911", "m1:10911"}
        self.dropped: list[tuple[str, str]] = []
        self.addresses = ("ns:9876",)
        self.chosen = "ns:9876"
        self.generation = 0

    async def call(self, address: Any, command: Any, timeout_ms: Any = None) -> Command:
        if timeout_ms is None:  # a call of NameServerList has no address
            address, command, timeout_ms = "ns:9876", address, command
        self.calls.append((address, command, timeout_ms))
        outcome = self.outcomes.get(address, Command(0))
        if isinstance(outcome, Exception):
            raise outcome
        return cast(Command, outcome)

    def is_connected(self, address: str) -> bool:
        return address in self.connected

    def drop(self, address: str, reason: str) -> None:
        self.dropped.append((address, reason))


class Member:
    """Stands for a consumer of a group."""

    def __init__(self, group: str, data: Any = None) -> None:
        self.group = group
        self.data = data
        self.wakes = 0
        self.commands: list[Command] = []

    def heartbeat_data(self) -> Any:
        return self.data

    def wake_rebalance(self) -> None:
        self.wakes += 1

    def handle(self, command: Command) -> Command:
        self.commands.append(command)
        return command.reply()


def core_of(**options: Any) -> tuple[Core, Routes, Peers]:
    core = Core(ClientSettings(name_servers=("ns:9876",), api_timeout_ms=700, **options))
    routes, peers = Routes({name: dict(ids) for name, ids in ADDRESSES.items()}), Peers()
    core.routes, core.remote, core.name_servers = cast(Any, routes), cast(Any, peers), cast(Any, peers)
    core.client_id = "client"
    return core, routes, peers


def route(topic: str, addresses: dict[str, dict[int, str]] | None = None, queues: int = 1) -> TopicRoute:
    return TopicRoute(topic, tuple(MessageQueue(topic, "b0", n) for n in range(queues)), addresses=addresses or {})


# addresses


@pytest.mark.spec("PL-05")
@pytest.mark.parametrize(
    ("broker_id", "address", "is_slave"),
    [
        (0, "m0:10911", False),
        (1, "s0:10911", True),  # the next id
        (2, "s0:10911", True),
        (3, "t0:10911", True),
        (4, "m0:10911", False),  # neither 4 nor 5: the lowest
    ],
)
async def test_pull_goes_to_an_id_or_the_next_or_the_lowest(broker_id: int, address: str, is_slave: bool) -> None:
    core, routes, _ = core_of()
    assert await core.read_address("T", "b0", broker_id) == (address, is_slave)
    assert not routes.refreshed


@pytest.mark.spec("PL-05")
async def test_pull_without_a_master_goes_to_the_lowest_slave() -> None:
    core, routes, _ = core_of()
    del routes.addresses["b0"][0]
    assert await core.read_address("T", "b0") == ("s0:10911", True)


@pytest.mark.spec("PR-22")
async def test_unknown_broker_is_looked_up_once() -> None:
    core, routes, _ = core_of()
    for find in (core.master_address, core.read_address):
        with pytest.raises(BrokerNotExist, match=r"The broker\[b7\] not exist") as caught:
            await find("T", "b7")
        assert caught.value.broker == "b7" and routes.refreshed == ["T"]
        routes.refreshed.clear()

    async def appears(topic: str) -> None:
        routes.table[topic] = route(topic, {"b7": {0: "m7:10911"}})

    routes.refresh = appears  # type: ignore[method-assign, assignment]
    assert await core.master_address("T", "b7") == "m7:10911"
    routes.table.clear()
    assert await core.read_address("T", "b7") == ("m7:10911", False)


async def test_route_of_the_topic_says_where_its_broker_is() -> None:
    core, routes, _ = core_of()
    routes.table["T"] = route("T", {"b0": {0: "new:10911"}, "b1": {}})
    assert await core.master_address("T", "b0") == "new:10911"
    assert await core.master_address("other", "b0") == "m0:10911", "as another topic's route says"
    assert await core.master_address("T", "b1") == "m1:10911", "the route of this one has no address"


def test_calls_go_to_the_vip_channel_only_if_configured() -> None:
    for is_on, address in ((False, "m0:10911"), (True, "m0:10909")):
        core, _, peers = core_of(vip_channel=is_on)
        assert core.channel_address("m0:10911") == address
        core._replaced("m0:10911")
        assert peers.dropped == [(each, REPLACED) for each in ("m0:10911", "m0:10909")[: 1 + is_on]]


# errors of routes and answers


@pytest.mark.spec("PR-10")
async def test_missing_route_names_the_brokers_that_may_have_it() -> None:
    core, routes, peers = core_of()

    async def error_of(find: Any) -> RouteNotFound:
        with pytest.raises(RouteNotFound, match="No route info of this topic: T") as caught:
            await find("T")
        return caught.value

    registered = {name: BrokerData("c", name, ids) for name, ids in {**ADDRESSES, "b2": {1: "s2:10911"}}.items()}
    peers.outcomes["ns:9876"] = Command(0, body=ClusterInfo(broker_addr_table=registered).encode())
    for find in (core.write_route, core.read_route):
        error = await error_of(find)
        assert error.broker == "b2" and error.hint and "(b2)" in error.hint
    _, command, timeout_ms = peers.calls[-1]
    assert (command.code, timeout_ms) == (RequestCode.GET_BROKER_CLUSTER_INFO, 700)
    del registered["b2"]
    routes.addresses["gone"] = {0: "gone:10911"}
    peers.outcomes["ns:9876"] = Command(0, body=ClusterInfo(broker_addr_table=registered).encode())
    assert (await error_of(core.write_route)).broker == "gone", "a cached route names it"
    routes.addresses.clear()
    peers.outcomes["ns:9876"] = Command(0, body=ClusterInfo(broker_addr_table={}).encode())
    assert (await error_of(core.write_route)).broker == "none registered"
    peers.outcomes["ns:9876"] = Command(0, body=ClusterInfo(broker_addr_table=registered).encode())
    for cached, words in ((False, "auto-creation is off"), (True, "auto-creation is on")):
        if cached:
            routes.table["TBW102"] = route("TBW102")
        error = await error_of(core.write_route)
        assert error.broker is None and error.hint and words in error.hint and "-n 'ns:9876'" in error.hint
    error = await error_of(core.read_route)
    assert error.hint and "auto-creation" not in error.hint
    peers.outcomes["ns:9876"] = Command(ResponseCode.SYSTEM_ERROR)
    assert (await error_of(core.write_route)).broker is None


async def test_topic_whose_brokers_have_no_master_is_not_missing() -> None:
    core, routes, peers = core_of()
    routes.table["T"] = route("T", {"b1": {1: "s1:1"}, "b0": {2: "s0:1"}, "b2": {0: "m2:1"}}, queues=0)
    with pytest.raises(BrokerNotExist, match=r"topic T exists, but broker\[b0, b1\] has no master now") as caught:
        await core.write_route("T")
    assert caught.value.broker == "b0, b1" and not peers.calls
    assert (await core.read_route("T")).topic == "T"
    routes.table["T"] = route("T", queues=1)
    assert (await core.write_route("T")).topic == "T"


@pytest.mark.parametrize(
    ("code", "remark", "hint"),
    [
        (ResponseCode.SYSTEM_ERROR, " failed ", None),
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, None, "ns:9876 is not a NameServer"),
    ],
)
async def test_refused_route_names_the_name_server(code: int, remark: str | None, hint: str | None) -> None:
    core, _, peers = core_of()
    peers.outcomes["ns:9876"] = Command(code, remark=remark)
    with pytest.raises(ResponseError) as caught:
        await core._fetch_route("T", 300)
    assert (caught.value.code, caught.value.broker) == (code, "ns:9876") and "failed " not in caught.value.message
    assert (caught.value.hint is None) if hint is None else (hint in (caught.value.hint or ""))
    ((_, command, timeout_ms),) = peers.calls
    assert (command.ext, timeout_ms) == ({"topic": "T", "acceptStandardJsonOnly": "true"}, 300)
    peers.outcomes["ns:9876"] = Command(ResponseCode.TOPIC_NOT_EXIST)
    assert await core._fetch_route("T", 300) is None


# groups


@pytest.mark.spec("PR-06", "CA-04")
async def test_group_is_registered_once_for_each_role() -> None:
    core, routes, _ = core_of()
    core.heartbeat_soon = lambda: None  # type: ignore[method-assign]
    core.add_producer("g")
    core.add_consumer(cast(Any, Member("g")))
    assert routes.used == ["TBW102"] and core.producers == {"g"} and list(core.consumers) == ["g"]
    for again in (lambda: core.add_producer("g"), lambda: core.add_consumer(cast(Any, Member("g")))):
        with pytest.raises(GroupInUse, match=r"group\[g\] has been created before"):
            again()


@pytest.mark.spec("PR-34", "CA-09")
async def test_group_is_unregistered_from_connected_brokers(caplog: pytest.LogCaptureFixture) -> None:
    core, _, peers = core_of()
    core.producers, core.consumers = {"p"}, {"c": cast(Any, Member("c"))}
    peers.outcomes["m0:10911"] = ConnectFailed("lost")
    caplog.set_level(logging.INFO, "saturnmq.client.connection.core")
    await core.remove_producer("p")
    await core.remove_consumer("c")
    await core.remove_consumer("c")
    assert not core.producers and not core.consumers
    connected = ["m0:10911", "m1:10911", "s0:10911"]
    assert [address for address, _, _ in peers.calls] == connected * 3, "t0 has no connection"
    assert {timeout_ms for _, _, timeout_ms in peers.calls} == {700}
    assert {command.code for _, command, _ in peers.calls} == {RequestCode.UNREGISTER_CLIENT}
    groups = [command.ext for _, command, _ in peers.calls]
    assert groups[0] == {"clientID": "client", "producerGroup": "p"}
    assert groups[3] == {"clientID": "client", "consumerGroup": "c"}
    assert caplog.text.count("client not unregistered client=client error=lost") == 3


# heartbeats


@pytest.mark.spec("HB-02", "HB-03")
async def test_heartbeat_learns_version_and_limits_until_the_broker_fails(caplog: pytest.LogCaptureFixture) -> None:
    core, _, peers = core_of()
    core.producers = {"p2", "p1"}
    core.consumers = {"c": cast(Any, Member("c"))}  # has no subscription yet
    peers.outcomes = dict.fromkeys(peers.connected, Command(0, version=395, ext={"timerMaxDelayMs": "5"}))
    await core._send_heartbeat("m0:10911")
    ((address, command, timeout_ms),) = peers.calls
    assert (address, command.code, timeout_ms) == ("m0:10911", RequestCode.HEART_BEAT, 700)
    data = HeartbeatData.decode(command.body or b"")
    assert data.client_id == "client" and not data.consumer_data_set
    assert [producer.group_name for producer in data.producer_data_set] == ["CLIENT_INNER_PRODUCER", "p1", "p2"]
    assert core.broker_versions == {"m0:10911": 395}
    for outcome, words in (
        (Command(ResponseCode.SYSTEM_ERROR, remark="refused"), "heartbeat failed broker=m0:10911 code=1 error=refused"),
        (CallTimeout("late"), "heartbeat failed broker=m0:10911 error=late"),
    ):
        core.outages, core.broker_versions = Outages(), {}
        peers.outcomes["m0:10911"] = outcome
        await core._send_heartbeat("m0:10911")
        assert words in caplog.text and not core.broker_versions
        peers.outcomes["m0:10911"] = Command(0)
        await core._send_heartbeat("m0:10911")
        assert caplog.text.count("heartbeat works again broker=m0:10911") == 1
        caplog.clear()


async def test_heartbeats_go_to_masters_unless_a_consumer_is_there() -> None:
    core, _, peers = core_of()
    await core.heartbeat()
    assert not peers.calls
    core.producers = {"p"}
    core.broker_versions = {"m0:10911": 1, "old:10911": 2}
    await core.heartbeat()
    assert sorted(address for address, _, _ in peers.calls) == ["m0:10911", "m1:10911"]
    assert sorted(core.broker_versions) == ["m0:10911", "m1:10911"], "a broker that no route names is forgotten"
    peers.calls.clear()
    core.consumers = {"c": cast(Any, Member("c"))}
    await core.heartbeat()
    assert sorted(address for address, _, _ in peers.calls) == ["m0:10911", "m1:10911", "s0:10911", "t0:10911"]


async def test_heartbeat_to_a_failed_broker_is_repeated_until_it_answers() -> None:
    core, routes, peers = core_of()
    core.state, core.producers = ClientState.RUNNING, {"p"}
    reports: list[tuple[str, bool]] = []
    core._suspicion = cast(
        Any, SimpleNamespace(report=lambda address, unresponsive=False: reports.append((address, unresponsive)))
    )
    core.broker_versions = {"m0:10911": 395}
    peers.outcomes["m0:10911"] = ConnectFailed("refused")
    core._suspect("m0:10911", True)
    core._suspect("m0:10911", False)
    core._suspect("s0:10911", False)  # gets no heartbeats
    assert reports == [("m0:10911", True), ("m0:10911", False), ("s0:10911", False)] and not core.broker_versions
    repeating = [task for task in core._tasks if "heartbeat to" in task.get_name()]
    assert len(repeating) == 1
    answered = Command(0, version=401)

    async def call(address: str, command: Command, timeout_ms: int) -> Command:
        peers.calls.append((address, command, timeout_ms))
        if len(peers.calls) < 3:
            raise ConnectFailed("refused")
        return answered

    peers.call = call  # type: ignore[method-assign, assignment]
    loop = asyncio.get_running_loop()
    begin = loop.time()
    await asyncio.wait(repeating)
    assert [address for address, _, _ in peers.calls] == ["m0:10911"] * 3 and core.broker_versions == {"m0:10911": 401}
    assert loop.time() - begin > 1.4, "half a second to a second before each"
    core._suspect("m0:10911", False)
    (task,) = (task for task in core._tasks if "heartbeat to" in task.get_name())
    routes.addresses.clear()
    await asyncio.wait([task])
    assert not core._repeating, "a broker that no route names gets no more"


async def test_failure_of_a_vip_channel_is_one_of_its_broker() -> None:
    core, _, _ = core_of(vip_channel=True)
    core._suspect("m0:10909", True)  # without effect before the client runs
    core.state = ClientState.RUNNING
    reports: list[tuple[str, bool]] = []
    core._suspicion = cast(
        Any, SimpleNamespace(report=lambda address, unresponsive=False: reports.append((address, unresponsive)))
    )
    core._suspect("m0:10909", True)
    assert reports == [("m0:10909", True), ("m0:10911", False)]


@pytest.mark.parametrize(
    ("versions", "has_consumer", "heartbeats"),
    [
        ({"m0:10911": 1, "m1:10911": 1}, False, 0),
        ({"m0:10911": 1}, False, 1),
        ({"m0:10911": 1, "m1:10911": 1}, True, 1),
    ],
)
async def test_changed_route_wakes_consumers_and_reaches_new_brokers(
    versions: dict[str, int], has_consumer: bool, heartbeats: int
) -> None:
    core, _, _ = core_of()
    core.producers, core.broker_versions = {"p"}, {**versions, "old:10911": 1}
    member, watcher, sent = Member("c"), asyncio.Event(), []
    core.heartbeat_soon = lambda: sent.append(1)  # type: ignore[method-assign]
    core.route_watchers.add(watcher)
    if has_consumer:
        core.consumers = {"c": cast(Any, member)}
    core._on_route_change(route("T"))
    assert (len(sent), member.wakes, watcher.is_set()) == (heartbeats, int(has_consumer), True)
    assert core.broker_versions == versions


# requests of brokers


def test_request_of_a_broker_goes_to_the_consumer_of_its_group() -> None:
    core, _, _ = core_of()
    handled: list[tuple[Any, ...]] = []
    core.checks = cast(Any, SimpleNamespace(handle=lambda *arguments: handled.append(arguments)))
    core.replies = cast(Any, SimpleNamespace(handle=lambda *arguments: handled.append(arguments) or "reply"))
    member, connection = Member("c"), cast(Any, object())
    core.consumers = {"c": cast(Any, member)}

    def answer(code: int, **ext: str) -> Any:
        return core._on_request(connection, Command(code, ext=ext))

    assert answer(RequestCode.CHECK_TRANSACTION_STATE) is NO_RESPONSE and handled[0][0] is connection
    assert answer(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT) == "reply" and len(handled[1]) == 3
    for ext in ({"consumerGroup": "c"}, {"group": "c"}, {"consumerGroup": "c", "group": "other"}):
        assert answer(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, **ext).code == 0
    assert len(member.commands) == 3
    unknown = answer(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, group="other")
    assert (unknown.code, unknown.remark) == (ResponseCode.SYSTEM_ERROR, "no consumer of group other here")
    without = answer(999)
    assert (without.code, without.remark) == (
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        " request type 999 not supported",
    )
