"""The NameServer's table of request codes: complete, and honest about what changes state."""

from __future__ import annotations

import asyncio
import copy
import re
from pathlib import Path
from typing import Any

import pytest

from saturnmq.broker.requests import table as broker_table
from saturnmq.namesrv import NameServer, NameServerSettings
from saturnmq.namesrv.processor import NOT_SERVED, ROUTES, TABLE, process
from saturnmq.net import NetSettings
from saturnmq.protocol.bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigTable
from saturnmq.protocol.codes import Perm, RequestCode
from saturnmq.protocol.frames.command import Command

SPEC = Path(__file__).parents[2] / "docs" / "spec"
ROW = re.compile(r"^\| (\d+(?: / \d+)*) \| ([^|]*) \| ([^|]*->NS\b[^|]*) \|", re.M)

BROKER = {
    "brokerName": "broker-a",
    "brokerAddr": "127.0.0.1:10911",
    "clusterName": "c",
    "haServerAddr": "",
    "brokerId": "0",
}
# The topic is written only: both changes of its permission have an effect.
TOPIC = TopicConfig("T", 4, 4, int(Perm.WRITE))
REGISTRATION = RegisterBrokerBody(TopicConfigTable({"T": TOPIC}, DataVersion(1, 1)), []).encode()
# A valid request of each code: extFields and body.
REQUESTS: dict[RequestCode, tuple[dict[str, str], bytes | None]] = {
    RequestCode.REGISTER_BROKER: (BROKER | {"brokerName": "broker-b", "brokerAddr": "127.0.0.1:10921"}, REGISTRATION),
    RequestCode.UNREGISTER_BROKER: (BROKER, None),
    RequestCode.QUERY_DATA_VERSION: (BROKER, DataVersion(1, 1).encode()),
    RequestCode.GET_BROKER_CLUSTER_INFO: ({}, None),
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: ({"brokerName": "broker-a"}, None),
    RequestCode.ADD_WRITE_PERM_OF_BROKER: ({"brokerName": "broker-a"}, None),
    RequestCode.GET_ROUTEINFO_BY_TOPIC: ({"topic": "T"}, None),
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: ({}, None),
    RequestCode.GET_TOPICS_BY_CLUSTER: ({"cluster": "c"}, None),
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: ({}, None),
    RequestCode.GET_UNIT_TOPIC_LIST: ({}, None),
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: ({}, None),
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: ({}, None),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: ({"topic": "T"}, None),
    RequestCode.PUT_KV_CONFIG: ({"namespace": "n", "key": "k", "value": "new"}, None),
    RequestCode.GET_KV_CONFIG: ({"namespace": "n", "key": "k"}, None),
    RequestCode.DELETE_KV_CONFIG: ({"namespace": "n", "key": "k"}, None),
    RequestCode.GET_KVLIST_BY_NAMESPACE: ({"namespace": "n"}, None),
    RequestCode.UPDATE_NAMESRV_CONFIG: ({}, b"orderMessageEnable=true"),
    RequestCode.GET_NAMESRV_CONFIG: ({}, None),
}


class Local:
    """A connection of this machine."""

    remote_address = "127.0.0.1:5000"
    closed = False


LOCAL = Local()


async def serve(server: NameServer, request: Command) -> Command:
    """The response that a handler returned or completes later."""
    answer = process(server, LOCAL, request)
    return answer if isinstance(answer, Command) else await answer


def codes_in_specification() -> set[int]:
    """The codes that 4.9.7's NameServer serves: those sent to NS in docs/spec/00 section 5."""
    (page,) = SPEC.glob("00*.md")
    return {int(code) for row in ROW.finditer(page.read_text()) for code in row[1].split(" / ")}


def test_every_name_server_code_has_a_row_or_a_reason() -> None:
    expected = codes_in_specification()
    assert len(expected) == 20
    for code in expected:
        assert (code in TABLE) != (code in NOT_SERVED), RequestCode(code).name
    assert expected == set(TABLE) | set(NOT_SERVED)
    assert all(NOT_SERVED.values())


def test_a_name_server_code_has_one_row() -> None:
    assert len(TABLE) == len(ROUTES)


def test_broker_and_name_server_serve_no_common_code() -> None:
    assert not broker_table.TABLE.keys() & TABLE.keys()
    assert TABLE.keys() <= broker_table.NOT_SERVED.keys()


def filled(tmp_path: Path) -> NameServer:
    """A NameServer with one broker, one topic and one KV entry, whose clock advances at each reading."""
    settings = NameServerSettings(
        kv_config_path=str(tmp_path / "kv.json"),
        config_store_path=str(tmp_path / "ns.properties"),
    )
    times = iter(range(1_000_000, 2_000_000))
    server = NameServer(settings, NetSettings(), clock_ms=lambda: next(times))
    process(server, LOCAL, Command(RequestCode.REGISTER_BROKER, ext=dict(BROKER), body=REGISTRATION))
    ext = {"namespace": "n", "key": "k", "value": "v"}
    asyncio.run(serve(server, Command(RequestCode.PUT_KV_CONFIG, ext=ext)))
    return server


def state(server: NameServer, folder: Path) -> Any:
    """Everything that a request could change, except the order of internal counters."""
    routes = {name: value for name, value in vars(server.routes).items() if name not in ("changes", "_discard")}
    live = {address: (one.updated_ms, one.version, one.ha_address) for address, one in routes.pop("live").items()}
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return copy.deepcopy((routes, live, server.kv.table, server.settings, files))


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.code.name)
def test_only_rows_that_say_so_change_state(route: Any, tmp_path: Path) -> None:
    server = filled(tmp_path)
    before = state(server, tmp_path)
    ext, body = REQUESTS[route.code]
    answer = asyncio.run(serve(server, Command(route.code, ext=dict(ext), body=body)))
    assert answer.code == 0, answer.remark
    assert (state(server, tmp_path) != before) == route.changes
