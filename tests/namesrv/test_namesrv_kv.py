"""KV configuration: persistence of changes, and their effect on cached routes."""

from __future__ import annotations

from pathlib import Path

import pytest

from saturnmq.namesrv import NameServer, NameServerSettings
from saturnmq.namesrv.processor import process
from saturnmq.namesrv.routes import Registration
from saturnmq.net import NetSettings
from saturnmq.protocol.bodies import DataVersion, TopicConfig, TopicRouteData
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command

ORDER = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"}


def name_server(folder: Path) -> NameServer:
    """A NameServer that has loaded its KV file, with broker-a and topic T registered."""
    settings = NameServerSettings(kv_config_path=str(folder / "kv.json"), order_message_enable=True)
    made = NameServer(settings, NetSettings())
    made.kv.load()
    version, topics = DataVersion(1, 1), {"T": TopicConfig("T")}
    made.routes.register(Registration("c", "broker-a", 0, "10.0.0.1:10911", "10.0.0.1:10912", version, topics), "x", 0)
    return made


def call(server: NameServer, code: int, **ext: str) -> Command:
    return process(server, object(), Command(code, ext=ext))


def order(server: NameServer) -> str | None:
    answer = call(server, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
    assert answer.code == 0
    return TopicRouteData.decode(answer.body).order_topic_conf


@pytest.mark.spec("NS-21", "NS-24")
def test_route_reflects_each_change_of_order_configuration(tmp_path: Path) -> None:
    server = name_server(tmp_path)
    assert order(server) is None
    for value in ("broker-a:4", "broker-a:8"):
        assert call(server, RequestCode.PUT_KV_CONFIG, value=value, **ORDER).code == 0
        assert order(server) == value
    assert call(server, RequestCode.DELETE_KV_CONFIG, **ORDER).code == 0
    assert order(server) is None


@pytest.mark.spec("NS-24")
def test_kv_change_is_persisted_before_response(tmp_path: Path) -> None:
    server = name_server(tmp_path)
    for key in ("T", "kept"):
        assert call(server, RequestCode.PUT_KV_CONFIG, value="broker-a:4", **(ORDER | {"key": key})).code == 0
    assert order(name_server(tmp_path)) == "broker-a:4"
    assert call(server, RequestCode.DELETE_KV_CONFIG, **ORDER).code == 0
    again = name_server(tmp_path)
    assert again.kv.table == {"ORDER_TOPIC_CONFIG": {"kept": "broker-a:4"}} and order(again) is None
