"""CVE-2023-33246: an unauthenticated UPDATE_BROKER_CONFIG set `rocketmqHome`, from which the broker built a shell command.

Requirements: SEC-02, SEC-23.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from wire import Wire, wire

import saturnmq
from saturnmq.protocol.codes import RequestCode, ResponseCode

SOURCE = Path(saturnmq.__file__).parent
# Calls that run text as code or as a command, or unpack objects.
FORBIDDEN_NAMES = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_ATTRIBUTES = {("os", "system"), ("os", "popen"), ("subprocess", "getoutput"), ("subprocess", "getstatusoutput"),
                        ("asyncio", "create_subprocess_shell"), ("yaml", "unsafe_load")}  # fmt: skip
# A source without any of these names, as a word of its own, has no such call; parsing all sources takes two seconds.
SUSPECTED = re.compile(
    rf"(?<![.\w])(?:{'|'.join(sorted(FORBIDDEN_NAMES))})\b|\b(?:{'|'.join(sorted(name for _, name in FORBIDDEN_ATTRIBUTES))})\b"
)
# Where a compiler of our own text is used: the header codecs are generated from class annotations, never from input.
ALLOWED = {"protocol/headers/fields.py"}


@pytest.mark.spec("SEC-02", "SEC-07", "G12")
@pytest.mark.parametrize("end", ["rocketmqHome=-c $@|sh . echo touch {marker};\n", "rocketmqHome={marker}\n"])
async def test_published_request_is_refused(tmp_path: Path, end: str, caplog: pytest.LogCaptureFixture) -> None:
    marker = tmp_path / "executed"
    body = "filterServerNums=1\n" + end.format(marker=marker)

    async with wire(data=tmp_path / "data") as w:
        before = (await w.call(RequestCode.GET_BROKER_CONFIG)).body
        answer = await w.call(RequestCode.UPDATE_BROKER_CONFIG, body.encode())
        assert answer.code == ResponseCode.NO_PERMISSION
        assert (await w.call(RequestCode.GET_BROKER_CONFIG)).body == before, "nothing was set"
        assert (await w.send("T")).code == 0
    assert not marker.exists()
    (line,) = [record.getMessage() for record in caplog.records if record.name == "saturnmq.audit"]
    assert "code=25 name=UPDATE_BROKER_CONFIG" in line and 'result="code 16: ' in line


@pytest.mark.spec("SEC-02", "PRC-08")
@pytest.mark.parametrize("code", [RequestCode.REGISTER_FILTER_SERVER, RequestCode.REGISTER_MESSAGE_FILTER_CLASS])
async def test_there_are_no_filter_servers(wire: Wire, code: int) -> None:
    answer = await wire.call(code, b"x", filterServerAddr="127.0.0.1:1")
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


@pytest.mark.spec("SEC-02")
def test_no_source_runs_text() -> None:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        name, text = str(path.relative_to(SOURCE)), path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if SUSPECTED.search(text) else ():
            if not isinstance(node, ast.Call):
                continue
            function = node.func
            if isinstance(function, ast.Name) and function.id in FORBIDDEN_NAMES and name not in ALLOWED:
                found.append(f"{name}:{node.lineno} {function.id}")
            owner = function.value if isinstance(function, ast.Attribute) else None
            if isinstance(owner, ast.Name) and (owner.id, function.attr) in FORBIDDEN_ATTRIBUTES:
                found.append(f"{name}:{node.lineno} {owner.id}.{function.attr}")
    assert not found


@pytest.mark.spec("SEC-02")
def test_servers_import_no_module_that_a_request_names() -> None:
    """import_module with a computed name is allowed in the packages that run on the user's side only."""
    found = []
    for package in ("protocol", "config", "net", "store", "filter", "raft", "replication", "broker", "namesrv"):
        for path in sorted((SOURCE / package).rglob("*.py")):
            if "import_module(" in path.read_text(encoding="utf-8"):
                found.append(str(path.relative_to(SOURCE)))
    assert not found
