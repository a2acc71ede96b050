"""KV configuration: persistence of changes, and their effect on cached routes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from saturnmq.namesrv import NameServer, NameServerSettings
from saturnmq.namesrv.processor import process
from saturnmq.namesrv.routes import Registration, pack
from saturnmq.net import NetSettings
from saturnmq.protocol.bodies import DataVersion, TopicConfig, TopicRouteData
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import ResponseError
from saturnmq.protocol.frames.command import Command

ORDER = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"}


class Local:
    """A connection of this machine."""

    remote_address = "127.0.0.1:5000"
    closed = False


def name_server(folder: Path) -> NameServer:
    """A NameServer that has loaded its KV file, with broker-a and topic T registered."""
    settings = NameServerSettings(kv_config_path=str(folder / "kv.json"), order_message_enable=True)
    made = NameServer(settings, NetSettings())
    made.kv.load()
    version, topics = DataVersion(1, 1), {"T": pack(TopicConfig("T"))}
    made.routes.register(Registration("c", "broker-a", 0, "10.0.0.1:10911", "10.0.0.1:10912", version, topics), "x", 0)
    return made


def call(server: NameServer, code: int, **ext: str) -> Command:
    async def work() -> Command:
        answer = process(server, Local(), Command(code, ext=ext))
        return answer if isinstance(answer, Command) else await answer

    return asyncio.run(work())


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


def test_deleted_namespaces_leave_the_file(tmp_path: Path) -> None:
    """A namespace without keys stayed in the file, where it counted towards no limit."""
    server = name_server(tmp_path)
    for number in range(50):
        where = {"namespace": f"n{number}", "key": "k"}
        assert call(server, RequestCode.PUT_KV_CONFIG, value="v", **where).code == 0
        assert call(server, RequestCode.DELETE_KV_CONFIG, **where).code == 0
    assert server.kv.table == {} and (tmp_path / "kv.json").read_bytes() == b'{"configTable":{}}'


def test_size_of_kv_configuration_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 values of 64 KiB each were accepted: every change wrote a file of 640 MB."""
    monkeypatch.setattr("saturnmq.namesrv.processor.BYTES_MAX", 10_000)
    server = name_server(tmp_path)

    def put(key: str, size: int) -> Command:
        try:
            return call(server, RequestCode.PUT_KV_CONFIG, namespace="n", key=key, value="\x01" * size)
        except ResponseError as error:
            return Command(error.code, remark=error.remark)

    assert put("a", 500).code == put("b", 900).code == 0, "a control character takes six bytes"
    refused = put("c", 500)
    assert refused.code == 2 and "at most 10000" in (refused.remark or "")
    assert put("b", 300).code == put("c", 500).code == 0, "the old value no longer counts"
    assert call(server, RequestCode.DELETE_KV_CONFIG, namespace="n", key="c").code == 0
    assert put("d", 500).code == 0
    assert name_server(tmp_path).kv.size_with("n", "d", "") == (3, server.kv.size_with("n", "d", "")[1])
    for where in ({"namespace": "n" * 301, "key": "k"}, {"namespace": "n", "key": "k" * 301}):
        with pytest.raises(ResponseError, match="300 characters"):
            call(server, RequestCode.PUT_KV_CONFIG, value="v", **where)
