"""What a NameServer's scrape holds, over its HTTP port."""

from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path

import pytest

from metricstext import families, values
from ports import free_port
from saturnmq.namesrv import NameServer, NameServerSettings
from saturnmq.net import NetSettings, RemotingClient
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command


def settings(tmp_path: Path, port: int) -> NameServerSettings:
    return NameServerSettings(
        kv_config_path=str(tmp_path / "kv.json"), config_store_path=str(tmp_path / "n.properties"), metrics_port=port
    )


@pytest.mark.spec("INT-11")
def test_a_name_server_serves_its_tables_and_requests(tmp_path: Path) -> None:
    async def main() -> str:
        port = free_port()
        server = NameServer(settings(tmp_path, port), NetSettings())
        host, bound = await server.start("127.0.0.1", 0)
        client = RemotingClient(settings=NetSettings())
        try:
            assert server.unauthenticated == {"namesrv": f"{host}:{bound}", "metrics": f"127.0.0.1:{port}"}
            kv = {"namespace": "N", "key": "K", "value": "V"}
            await client.invoke(f"{host}:{bound}", Command(RequestCode.PUT_KV_CONFIG, ext=kv), 10_000)
            await client.invoke(f"{host}:{bound}", Command(9999), 10_000)
            url = f"http://127.0.0.1:{port}/metrics"
            return (await asyncio.to_thread(lambda: urllib.request.urlopen(url).read())).decode()
        finally:
            await client.close()
            await server.stop()

    text = asyncio.run(main())
    assert values(text, "saturnmq_namesrv_kv_entries") == {(): 1}
    assert values(text, "saturnmq_namesrv_brokers") == {(): 0}
    assert values(text, "saturnmq_connections") == {(("port", "main"),): 1}
    assert set(values(text, "saturnmq_request_seconds_count").values()) == {1}
    assert {dict(labels)["code"] for labels in values(text, "saturnmq_request_seconds_count")} == {"100", "other"}
    assert {name for name in families(text) if not name.startswith("saturnmq_")} == set()


def test_the_port_is_closed_unless_it_is_set(tmp_path: Path) -> None:
    async def main() -> None:
        server = NameServer(settings(tmp_path, 0), NetSettings())
        await server.start("127.0.0.1", 0)
        assert "metrics" not in server.unauthenticated
        assert server._server.request_seconds is None
        await server.stop()

    assert NameServerSettings().metrics_port == 0
    asyncio.run(main())
