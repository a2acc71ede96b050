"""The name and id of a live broker: a stranger beside honest brokers, their failovers, restarts and moves."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from saturnmq.namesrv import NameServer, NameServerSettings, broker_places
from saturnmq.namesrv.broker_places import KEPT_MS, SILENT_MS
from saturnmq.namesrv.processor import process
from saturnmq.net import NetSettings
from saturnmq.protocol.bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigTable
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import ResponseError
from saturnmq.protocol.frames.command import Command

pytestmark = pytest.mark.spec("SEC-17")
ROUNDS = 3
PERIOD_MS = 30_000


class Clock:
    """Unix ms."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.ms


@dataclass(eq=False)
class Broker:
    """A broker, or a stranger that claims to be one, with its connection."""

    server: NameServer
    host: str
    port: int = 10911
    closed: bool = False
    encrypted: bool = False
    claims: str = ""  # the address of another broker
    remote_address: str = field(init=False)

    def __post_init__(self) -> None:
        self.remote_address = f"{self.host}:{40_000 + self.port}"

    @property
    def address(self) -> str:
        return self.claims or f"{self.host}:{self.port}"

    def ask(self, code: int, number: int, body: bytes | None = None, name: str = "broker-a") -> Command:
        ext = {
            "brokerName": name,
            "brokerAddr": self.address,
            "brokerId": str(number),
            "clusterName": "c",
            "haServerAddr": "",
        }
        request = Command(code, ext=ext, body=body, version=407)
        try:
            answer = process(self.server, self, request)
        except ResponseError as error:
            return request.reply(error.code or 1, error.remark)
        assert isinstance(answer, Command)
        return answer

    def register(self, number: int = 0, name: str = "broker-a") -> int:
        table = TopicConfigTable({"T": TopicConfig("T", 4, 4)}, DataVersion(1, 1))
        return self.ask(RequestCode.REGISTER_BROKER, number, RegisterBrokerBody(table, []).encode(), name).code

    def changed(self, number: int = 0) -> bool:
        """The answer to the query that some brokers send instead of a registration."""
        answer = self.ask(RequestCode.QUERY_DATA_VERSION, number, DataVersion(1, 1).encode())
        assert answer.ext is not None
        return answer.ext["changed"] == "true"

    def disconnect(self) -> None:
        self.closed = True
        self.server.routes.connection_closed(self)


class Case:
    """A NameServer with a master and a slave of one name on two hosts, and a stranger on a third."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.server = NameServer(
            NameServerSettings(kv_config_path=str(folder / "kv.json"), config_store_path=str(folder / "ns.properties")),
            NetSettings(), clock_ms=self.clock,
        )  # fmt: skip
        self.master, self.slave, self.stranger = (Broker(self.server, f"10.0.0.{n}") for n in (1, 2, 9))
        assert self.master.register() == self.slave.register(1) == 0

    @property
    def addresses(self) -> dict[int, str]:
        return dict(self.server.routes.brokers["broker-a"].broker_addrs)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


@pytest.mark.parametrize("number", [0, 1])
def test_stranger_does_not_take_the_place_of_a_live_broker(
    number: int, case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    honest = case.addresses
    for _ in range(ROUNDS):
        assert case.stranger.register(number) == 16
        assert case.master.register() == case.slave.register(1) == 0
        route = case.server.routes.route("T")
        assert route is not None and route.broker_datas[0].broker_addrs == honest, "clients reach the honest brokers"
        assert not case.master.changed()
        case.clock.ms += PERIOD_MS
    lines = [record.getMessage() for record in caplog.records if record.name == "saturnmq.audit"]
    assert len(lines) == ROUNDS and "peer=10.0.0.9" in lines[0] and "and live" in lines[0]


def test_stranger_who_joined_as_a_slave_holds_the_place_for_one_period(case: Case) -> None:
    """A slave that claims the place of its master looks like a failover, until the master registers again."""
    intruder = Broker(case.server, case.stranger.host, 10913)
    assert intruder.register(7) == 0
    assert intruder.register(0) == 0 and case.addresses[0] == intruder.address
    assert case.master.changed(), "it registers again"
    assert case.master.register() == 0 and case.addresses[0] == case.master.address
    for number in range(ROUNDS):
        case.clock.ms += PERIOD_MS
        again = Broker(case.server, case.stranger.host, 20_000 + number)
        assert again.register(7) == 0, "slaves join without a secret"
        assert again.register(0) == intruder.register(0) == 16
        assert case.master.register() == 0 and case.addresses[0] == case.master.address


def test_failover_is_taken_at_once_and_back(case: Case) -> None:
    """The members of a DLedger group: the new leader registers before or after the former one has become a slave, or died."""
    for _ in range(ROUNDS):
        assert case.slave.register(0) == 0 and case.addresses[0] == case.slave.address
        assert case.master.register(2) == 0
        assert case.addresses == {0: case.slave.address, 2: case.master.address}
        assert case.slave.register(1) == case.master.register(0) == 0
        assert case.addresses == {0: case.master.address, 1: case.slave.address}
        case.clock.ms += PERIOD_MS
    case.master.disconnect()
    assert case.slave.register(0) == 0 and case.addresses == {0: case.slave.address}
    assert case.stranger.register(0) == 16 and case.slave.register(0) == 0


def test_broker_returns_to_its_place_after_an_interruption(case: Case) -> None:
    """A stranger that takes the place meanwhile would otherwise keep it."""
    case.master.disconnect()
    assert case.stranger.register(0) == 0, "a standby on another host takes over at once"
    case.clock.ms += KEPT_MS
    returned = Broker(case.server, case.master.host)
    assert returned.register(0) == 0 and case.addresses[0] == returned.address
    assert case.stranger.register(0) == 16 and case.addresses[0] == returned.address


@pytest.mark.parametrize("name", ["broker-a", "other"])
def test_broker_gets_its_address_back_from_a_stranger_who_claimed_it_meanwhile(name: str, case: Case) -> None:
    """The stranger's topics would replace its own, and its registrations would be refused."""
    case.master.disconnect()
    thief = Broker(case.server, case.stranger.host, claims=case.master.address)
    assert thief.register(0, name) == 0, "no connection says whose address it is"
    returned = Broker(case.server, case.master.host)
    assert returned.register(0) == 0 and case.addresses[0] == returned.address
    assert "other" not in case.server.routes.brokers
    assert thief.register(0, name) == 16
    thief.disconnect()
    assert case.addresses[0] == returned.address and not returned.changed()


def test_stranger_cannot_give_up_the_place_of_a_broker_that_is_away(case: Case) -> None:
    """It would get the place for itself, and the broker that comes back would be refused."""
    case.master.disconnect()
    thief = Broker(case.server, case.stranger.host, claims=case.master.address)
    assert thief.register(0) == 0
    assert thief.ask(RequestCode.UNREGISTER_BROKER, 0).code == 0
    assert case.stranger.register(0) == 0, "a standby on another host takes over at once"
    returned = Broker(case.server, case.master.host)
    assert returned.register(0) == 0 and case.addresses[0] == returned.address
    assert case.stranger.register(0) == 16
    assert returned.ask(RequestCode.UNREGISTER_BROKER, 0).code == 0
    assert case.stranger.register(0) == 0, "a broker that leaves gives its place up"


def test_broker_on_another_host_keeps_the_place_of_one_that_stays_away(case: Case) -> None:
    case.master.disconnect()
    moved = Broker(case.server, "10.0.0.3")
    case.clock.ms += KEPT_MS + 1
    assert moved.register(0) == 0
    assert Broker(case.server, case.master.host).register(0) == 16, "it is no member any more, its slave neither"
    assert case.addresses[0] == moved.address


def test_place_of_a_silent_or_unregistered_broker_is_free(case: Case) -> None:
    case.clock.ms += SILENT_MS
    assert case.stranger.register(0) == 16
    case.clock.ms += 1
    assert case.stranger.register(0) == 0, "its host may have lost power, which closes no connection"
    assert case.slave.register(1) == case.slave.register(1) == 0
    assert case.slave.ask(RequestCode.UNREGISTER_BROKER, 1).code == 0
    assert case.stranger.register(1) == 0


def test_broker_of_the_same_host_replaces_a_live_one(case: Case) -> None:
    """Two processes of one host are not distinguished: a second one may be its replacement."""
    other = Broker(case.server, case.master.host, 10915)
    assert other.register(0) == 0 and case.addresses[0] == other.address
    assert case.stranger.register(0) == 16


def test_places_are_bounded_and_live_brokers_keep_theirs(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """One address that registers under ever new names leaves no traces that grow."""
    monkeypatch.setattr(broker_places, "_SENIORS_MAX", 16)
    for number in range(1000):
        assert case.stranger.register(0, f"x{number}") == 0
        assert len(case.server.broker_places) <= 16
        case.clock.ms += 10
    assert case.stranger.register(0) == 16 and case.master.register() == 0
