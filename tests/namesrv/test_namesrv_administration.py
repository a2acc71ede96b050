"""Administrative requests at a NameServer, and what it accepts about brokers that are live."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from saturnmq.namesrv import NameServer, NameServerSettings
from saturnmq.namesrv.processor import ROUTES, process
from saturnmq.net import NetSettings
from saturnmq.protocol.bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigTable
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import ResponseError
from saturnmq.protocol.frames.command import Command

ADMINISTRATIVE = {100, 102, 205, 216, 318, 327}
BROKER = {
    "brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "c", "haServerAddr": "", "brokerId": "0",
}  # fmt: skip
BODY = RegisterBrokerBody(TopicConfigTable({"T": TopicConfig("T", 4, 4)}, DataVersion(1, 1)), []).encode()


@dataclass(eq=False)
class Peer:
    """A connection from an address."""

    remote_address: str
    closed: bool = False


def name_server(folder: Path, **settings: str) -> NameServer:
    return NameServer(NameServerSettings(kv_config_path=str(folder / "kv.json"), **settings), NetSettings())


def ask(server: NameServer, peer: Peer, code: int, body: bytes | None = None, **ext: str) -> Command:
    """The answer, as the connection would send it."""
    request = Command(code, ext=ext, body=body)
    try:
        answer = process(server, peer, request)
    except ResponseError as error:
        return request.reply(error.code or 1, error.remark)
    assert isinstance(answer, Command)
    return answer


def register(server: NameServer, peer: Peer, **ext: str) -> Command:
    return ask(server, peer, RequestCode.REGISTER_BROKER, BODY, **(BROKER | ext))


def audited(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "saturnmq.audit"]


def test_administrative_codes_of_the_name_server() -> None:
    assert {int(route.code) for route in ROUTES if route.administrative} == ADMINISTRATIVE


@pytest.mark.spec("UX-12")
@pytest.mark.parametrize("code", sorted(ADMINISTRATIVE))
def test_administrative_requests_from_elsewhere_change_nothing(
    code: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server, stranger = name_server(tmp_path), Peer("10.9.9.9:4000")
    assert register(server, Peer("10.0.0.1:5000")).code == 0
    before = server.routes.cluster_info(), server.routes.route("T"), dict(server.kv.table), server.settings
    fields = {"namespace": "n", "key": "k", "value": "v", "brokerName": "broker-a", "topic": "T"}
    answer = ask(server, stranger, code, b"orderMessageEnable=true", **fields)
    assert answer.code == 16 and "adminAddresses=127.*.*.*,::1 only, not from 10.9.9.9" in (answer.remark or "")
    assert (server.routes.cluster_info(), server.routes.route("T"), dict(server.kv.table), server.settings) == before
    (line,) = audited(caplog)
    assert f"peer=10.9.9.9:4000 code={code} " in line and 'result="refused' in line
    assert ask(server, stranger, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T").code == 0, "reading is open"


def test_listed_addresses_administer_the_name_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = name_server(tmp_path, admin_addresses="10.1.*.*,10.2.0.1")
    register(server, Peer("10.0.0.1:5000"))
    for peer, code in (("10.1.2.3:1", 0), ("10.2.0.1:1", 0), ("10.2.0.2:1", 16), ("127.0.0.1:1", 16)):
        assert ask(server, Peer(peer), RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a").code == code
    assert [line.split(" result=")[1][:3] for line in audited(caplog)] == ["ok ", "ok ", '"re', '"re']


def test_address_of_a_live_broker_is_not_taken_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = name_server(tmp_path)
    broker, stranger = Peer("10.0.0.1:5000"), Peer("10.9.9.9:4000")
    assert register(server, broker).code == 0
    for ext in ({}, {"brokerName": "mine"}, {"clusterName": "mine"}, {"brokerId": "7"}):
        answer = register(server, stranger, **ext)
        assert answer.code == 16 and answer.remark == "10.0.0.1:10911 is registered from 10.0.0.1:5000 and live", ext
    same_host = Peer("10.0.0.1:5001")
    for ext, text in (({"brokerName": "b"}, "under broker name broker-a"), ({"clusterName": "d"}, "in cluster c")):
        answer = register(server, same_host, **ext)
        assert answer.code == 16 and text in (answer.remark or "")
    assert len(audited(caplog)) == 6
    assert server.routes.live["10.0.0.1:10911"].connection is broker and set(server.routes.brokers) == {"broker-a"}
    assert server.routes.cluster_info().cluster_addr_table == {"c": ["broker-a"]}
    # The broker itself: again, over a new connection, and renamed after its end.
    assert register(server, broker).code == 0
    assert register(server, same_host).code == 0
    same_host.closed = True
    assert register(server, Peer("10.0.0.1:5002"), brokerName="renamed").code == 0
    assert set(server.routes.brokers) == {"renamed"}


def test_live_broker_is_unregistered_by_its_host_or_an_administrator_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server, owner = name_server(tmp_path), Peer("10.0.0.1:5000")
    for peer, code in (("10.9.9.9:4000", 16), ("10.0.0.1:5001", 0), ("127.0.0.1:4000", 0)):
        assert register(server, owner).code == 0
        assert ask(server, Peer(peer), RequestCode.UNREGISTER_BROKER, **BROKER).code == code
        assert bool(server.routes.brokers) == (code != 0), peer
    assert len(audited(caplog)) == 1


def test_version_query_of_another_connection_does_not_bind_the_broker(tmp_path: Path) -> None:
    server, owner = name_server(tmp_path), Peer("10.0.0.1:5000")
    assert register(server, owner).code == 0
    stranger = Peer("10.9.9.9:4000")
    version = DataVersion(1, 1).encode()
    answer = ask(server, stranger, RequestCode.QUERY_DATA_VERSION, version, **BROKER)
    assert answer.ext == {"changed": "true"} and answer.body is None
    assert server.routes.connection_closed(stranger) == [], "its end removes no broker"
    answer = ask(server, owner, RequestCode.QUERY_DATA_VERSION, version, **BROKER)
    assert answer.ext == {"changed": "false"}
    owner.closed = True
    assert ask(server, Peer("10.0.0.1:5001"), RequestCode.QUERY_DATA_VERSION, version, **BROKER).ext == {
        "changed": "false"
    }
