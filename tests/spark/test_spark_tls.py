"""A cluster that accepts only TLS with client certificates: reads, offset commits of a driver, answers to check-backs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from certificates import write_certificate
from saturnmq import Outgoing
from saturnmq.broker import Broker, BrokerSettings
from saturnmq.client.receipt import TransactionState
from saturnmq.errors import NoNameServer, RouteNotFound
from saturnmq.namesrv import NameServer, NameServerSettings
from saturnmq.net import NetSettings, TlsSettings
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import ConfigError, SaturnError
from saturnmq.spark import sink, transactional
from saturnmq.spark.connect import ConnectionOptions, linked
from saturnmq.spark.decision_log import DecisionLog
from saturnmq.spark.offset_tracker import Tracker, track
from saturnmq.spark.sink_options import SinkOptions
from saturnmq.spark.source import RocketMQDataSource
from saturnmq.store import StoreProfile, StoreSettings
from saturnmq.sync import Client
from saturnmq.testing.loop_thread import FixtureLoopThread

HOST = "127.0.0.1"
PASSWORD = "hush of the key"


@dataclass(frozen=True)
class Cluster:
    """A TLS cluster, and what a client needs to connect."""

    name_servers: str
    folder: Path
    ca: str
    cert: str
    key: str
    elsewhere: str  # a name server with a certificate for another host
    elsewhere_ca: str

    @property
    def settings(self) -> dict[str, Any]:
        """As keyword arguments of the Python client."""
        return {
            "tls": True,
            "tls_ca": self.ca,
            "tls_cert": self.cert,
            "tls_key": self.key,
            "tls_key_password": PASSWORD,
        }

    @property
    def options(self) -> dict[str, str]:
        """As Spark options."""
        return {
            "nameServer": self.name_servers,
            "tls": "true",
            "tlsCa": self.ca,
            "tlsCert": self.cert,
            "tlsKey": self.key,
            "tlsKeyPassword": PASSWORD,
        }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A name server and a broker that accept only TLS and require a client certificate."""
    folder = tmp_path_factory.mktemp("tls")
    made = [write_certificate(folder, "server"), write_certificate(folder, "client", password=PASSWORD.encode())]
    made.append(write_certificate(folder, "other", "127.0.0.9"))
    server, client, other = [(str(certificate), str(key)) for certificate, key in made]
    tls = TlsSettings(
        mode="enforcing", enable=True, need_client_auth="require", server_cert_path=server[0], server_key_path=server[1],
        server_trust_path=client[0], client_trust_path=server[0], client_cert_path=client[0], client_key_path=client[1],
        client_key_password=PASSWORD,
    )  # fmt: skip
    thread = FixtureLoopThread("tls")
    thread.start()

    async def start() -> tuple[NameServer, Broker, NameServer, str, str]:
        names = NameServer(NameServerSettings(kv_config_path=str(folder / "kv.json")), NetSettings(), tls=tls)
        host, port = await names.start(HOST, 0)
        strange = replace(tls, server_cert_path=other[0], server_key_path=other[1])
        away = NameServer(NameServerSettings(kv_config_path=str(folder / "kv2.json")), NetSettings(), tls=strange)
        _, away_port = await away.start(HOST, 0)
        settings = BrokerSettings(
            namesrv_addr=f"{host}:{port}", bind_address=HOST, listen_port=0, transaction_interval_ms=50,
            transaction_timeout_ms=100, transaction_check_max=10_000,  # the link may need longer than 15 checks to connect
        )  # fmt: skip
        store = StoreSettings(profile=StoreProfile.SMALL, store_path_root_dir=str(folder / "store"))
        broker = Broker(settings, store, NetSettings(), tls=tls)
        await broker.start()
        return names, broker, away, f"{host}:{port}", f"{HOST}:{away_port}"

    names, broker, away, address, away_address = thread.call(start())
    try:
        yield Cluster(address, folder, server[0], *client, away_address, other[0])
    finally:
        thread.call(broker.stop())
        thread.call(names.stop())
        thread.call(away.stop())
        thread.stop()


@pytest.fixture(scope="module")
def topic(cluster: Cluster) -> str:
    """Topic "sealed" with 30 messages in 2 queues."""
    with Client(name_servers=cluster.name_servers, **cluster.settings) as client, client.producer("P") as out:
        client.create_topic("sealed", queues=2)
        out.send_many("sealed", [Outgoing(value=b"%d" % n) for n in range(30)])
    return "sealed"


def bodies(topic: str, options: dict[str, str]) -> list[int]:
    """Return what workers read."""
    source = RocketMQDataSource({"topic": topic, "columns": "body", "pullTimeoutMs": "10000", **options})
    made = source.reader(source.schema())
    return sorted(int(row["body"]) for p in made.partitions() for b in made.read(p) for row in b.to_pylist())


@pytest.mark.spec("SRC-20")
def test_tls_read_sends_certificate_and_verifies_server(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bodies(topic, cluster.options) == list(range(30))
    with monkeypatch.context() as patch:
        patch.setenv("SATURNMQ_TLS_KEY_PASSWORD", PASSWORD)
        assert bodies(topic, {k: v for k, v in cluster.options.items() if k != "tlsKeyPassword"}) == list(range(30))
    for change in (
        {"tlsCert": "", "tlsKey": "", "tlsKeyPassword": ""},
        {"tlsCa": cluster.cert},
        {"tls": "", "tlsCa": "", "tlsCert": "", "tlsKey": "", "tlsKeyPassword": ""},
    ):
        options = {name: value for name, value in (cluster.options | change).items() if value}
        with pytest.raises(SaturnError, match=cluster.name_servers):
            bodies(topic, options)
    unsure = cluster.options | {"tlsCa": cluster.cert, "tlsVerify": "false"}
    assert bodies(topic, unsure) == list(range(30))
    with pytest.raises(ConfigError, match=r"tls.client.certPath=.*missing.pem"):
        bodies(topic, cluster.options | {"tlsCert": str(cluster.folder / "missing.pem")})
    with pytest.raises(ConfigError, match=r"tls\.client") as caught:
        bodies(topic, cluster.options | {"tlsKeyPassword": "another secret"})
    assert "another secret" not in str(caught.value)


@pytest.mark.spec("SRC-20")
def test_tls_certificate_for_other_host_is_rejected(cluster: Cluster) -> None:
    """The certificate is signed by a trusted authority; only the host name is wrong."""
    settings = cluster.settings | {"tls_ca": cluster.elsewhere_ca, "attempts": 1}
    with Client(name_servers=cluster.elsewhere, **settings) as client, pytest.raises(NoNameServer):
        client.create_topic("T", queues=1)
    trusting = settings | {"tls_verify": False}
    with Client(name_servers=cluster.elsewhere, **trusting) as client, pytest.raises(RouteNotFound):
        client.create_topic("T", queues=1)  # the connection succeeded: this name server has no broker
    away = cluster.options | {"nameServer": cluster.elsewhere, "tlsCa": cluster.elsewhere_ca, "readTimeoutMs": "2000"}
    with pytest.raises(SaturnError, match=cluster.elsewhere):
        bodies("T", away)
    with pytest.raises(SaturnError, match="'T' cannot be read from"):
        bodies("T", away | {"tlsCheckHost": "false"})


class Listeners:
    """The part of a session that `track` uses."""

    def __init__(self) -> None:
        self.added: list[Any] = []
        self.streams = SimpleNamespace(addListener=self.added.append)


@pytest.mark.spec("STR-12", "SRC-20")
def test_tls_cluster_receives_driver_offsets(cluster: Cluster, topic: str) -> None:
    session: Any = Listeners()
    tracker = track(session, cluster.name_servers, interval_ms=0, **cluster.settings)
    try:
        assert session.added == [tracker] and isinstance(tracker, Tracker)
        tracker._events.put(("CG-tls", {(topic, "broker-a", 0): 7}))
        assert tracker.flush(20)
    finally:
        tracker.stop()
    with linked(ConnectionOptions(cluster.name_servers, **cluster.settings)) as link:
        link.run(link.puller.queues(topic))
        assert link.run(link.puller.committed("CG-tls", MessageQueue(topic, "broker-a", 0))) == 7


@pytest.mark.spec("SNK-17", "SRC-20")
def test_tls_cluster_check_backs_are_answered(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa

    with Client(name_servers=cluster.name_servers, **cluster.settings) as client:
        client.create_topic("sealed-tx", queues=1)
    options = SinkOptions(cluster.name_servers, **cluster.settings, topic="sealed-tx", delivery="transactional", ack="durable",
                          own_group="G-tls", decision_log=str(tmp_path / "log"), check_after_ms=-1000)  # fmt: skip
    stored = sink.write_batches(options, iter([pa.RecordBatch.from_pydict({"body": [b"1", b"2"]})]), "0")
    assert isinstance(stored, sink.Stored)
    asked, answer = threading.Event(), transactional.verdict

    def noted(log: DecisionLog, message: Any) -> TransactionState:
        asked.set()
        return answer(log, message)

    monkeypatch.setattr(transactional, "verdict", noted)
    with transactional.answering(cluster.name_servers, str(tmp_path / "log"), "G-tls", **cluster.settings):
        assert asked.wait(20)
