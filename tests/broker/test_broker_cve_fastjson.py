"""The fastjson family (such as CVE-2017-18349 and CVE-2022-25845): a class named in JSON was instantiated.

Bodies are plain data here: a type name has no effect, and YAML is read by the safe loader.

Requirements: SEC-06, SEC-23.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from wire import wire

import saturnmq
from saturnmq.acl.documents import read_document
from saturnmq.protocol import bodies
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import ConfigError, RemoteProtocolError
from saturnmq.protocol.json_dialect import loads
from tolerantjson import tolerant_loads

SOURCE = Path(saturnmq.__file__).parent
PAYLOADS = [
    b'{"@type":"com.sun.rowset.JdbcRowSetImpl","dataSourceName":"ldap://127.0.0.1:1/x","autoCommit":true}',
    b'{"a":{"@type":"java.lang.Class","val":"com.sun.rowset.JdbcRowSetImpl"},"b":{"@type":"java.lang.AutoCloseable"}}',
    b'{"@type":"java.net.Inet4Address","val":"127.0.0.1"}',
    b'{"rand":{"@type":"java.lang.Exception","@type":"org.xxx.Exploit"}}',
    b'{"__class__":"os.system","__reduce__":["id"],"py/object":"subprocess.Popen"}',
    b'Set[{"@type":"x"}]',
    b'TreeSet["a"]',
]
CODES = [RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
         RequestCode.CHECK_CLIENT_CONFIG]  # fmt: skip
DEEP = 100_000


@pytest.mark.spec("SEC-06")
@pytest.mark.parametrize("payload", PAYLOADS)
def test_type_names_are_plain_data(payload: bytes) -> None:
    for parse in (loads, tolerant_loads):
        try:
            value = parse(payload)
        except RemoteProtocolError:
            continue
        assert only_data(value)
        assert json.dumps(value, default=str)


def only_data(value: object) -> bool:
    if isinstance(value, dict):
        return all(only_data(member) for member in value.values())
    if isinstance(value, list):
        return all(only_data(member) for member in value)
    return type(value) in (str, int, float, bool, type(None))


@pytest.mark.spec("SEC-06")
@pytest.mark.parametrize("code", CODES)
async def test_broker_serves_on_after_such_bodies(code: int) -> None:
    async with wire() as w:
        for payload in PAYLOADS:
            await w.call(code, payload)
        assert (await w.send("T")).code == 0


@pytest.mark.spec("SEC-06")
@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_deep_nesting_is_refused(opening: bytes) -> None:
    for parse in (loads, tolerant_loads, bodies.HeartbeatData.decode):
        with pytest.raises(RemoteProtocolError):
            parse(opening * DEEP)


HOSTILE_YAML = [
    b"accounts: !!python/object/apply:os.system ['touch {marker}']",
    b"!!python/object/new:subprocess.Popen [['touch', '{marker}']]",
    b"accounts: !!javax.script.ScriptEngineManager [!!java.net.URLClassLoader [[!!java.net.URL ['http://127.0.0.1:1/']]]]",
    b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]",
    b"[" * DEEP,
]


@pytest.mark.spec("SEC-06")
@pytest.mark.parametrize("text", HOSTILE_YAML)
def test_account_files_make_texts_lists_and_maps_only(tmp_path: Path, text: bytes) -> None:
    marker = tmp_path / "executed"
    try:
        document = read_document(text.replace(b"{marker}", str(marker).encode()))
    except ConfigError:
        document = {}
    assert only_data(document)
    assert not marker.exists()


@pytest.mark.spec("SEC-06")
def test_no_other_module_reads_yaml() -> None:
    users = [path for path in SOURCE.rglob("*.py") if "yaml" in imported(path)]
    assert users == [SOURCE / "acl" / "documents.py"]


def imported(path: Path) -> set[str]:
    """Modules that a source imports by name, if the text names yaml at all: few do, and parsing all takes two seconds."""
    text = path.read_text(encoding="utf-8")
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import)] if "yaml" in text else []
    return {alias.name for node in nodes for alias in node.names}
