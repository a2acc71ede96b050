"""CVE-2023-37582: an unauthenticated UPDATE_NAMESRV_CONFIG set `configStorePath`, so that the NameServer wrote any file.

Requirements: SEC-03, SEC-07, SEC-23.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from wire import wire

from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.frames.command import Command


@pytest.mark.spec("SEC-03", "G12")
@pytest.mark.parametrize("key", ["configStorePath", "configStorePathName", "kvConfigPath", "rocketmqHome"])
async def test_published_request_writes_no_file(tmp_path: Path, key: str, caplog: pytest.LogCaptureFixture) -> None:
    target = tmp_path / "written-by-request"
    body = f"{key}={target}\nproductEnvName=test/path\\ntest"

    async with wire(data=tmp_path / "data") as w:
        request = Command(RequestCode.UPDATE_NAMESRV_CONFIG, body=body.encode())
        answer = await w.client.invoke(w.server.name_servers, request, 5000)
        assert answer.code == ResponseCode.NO_PERMISSION
        config = await w.client.invoke(w.server.name_servers, Command(RequestCode.GET_NAMESRV_CONFIG), 5000)
        assert str(target).encode() not in (config.body or b"")
        put = Command(RequestCode.PUT_KV_CONFIG, ext={"namespace": "n", "key": "k", "value": "v"})
        await w.client.invoke(w.server.name_servers, put, 5000)
    assert not target.exists()
    lines = [record.getMessage() for record in caplog.records if record.name == "saturnmq.audit"]
    assert sum("code=318 name=UPDATE_NAMESRV_CONFIG" in line and 'result="code 16: ' in line for line in lines) == 1


@pytest.mark.spec("SEC-03")
@pytest.mark.parametrize(
    "key", ["storePathRootDir", "storePathCommitLog", "rocketmqHome", "brokerConfigPath", "tlsServerKeyPath"]
)
async def test_no_path_of_a_broker_can_be_set(tmp_path: Path, key: str) -> None:
    async with wire(data=tmp_path / "data") as w:
        answer = await w.call(RequestCode.UPDATE_BROKER_CONFIG, f"{key}={tmp_path / 'x'}\n".encode())
        assert answer.code == ResponseCode.NO_PERMISSION
    assert not (tmp_path / "x").exists()
