"""Listeners inside an ASGI application: the server handles signals, the lifespan owns the client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import saturnmq.sync
from saturnmq.testing.fixture_broker import BrokerFixture

pytestmark = pytest.mark.realtime
APPLICATION = """
import asyncio, os, sys
from saturnmq import Client

client = Client.from_env()

@client.listener(os.environ["TOPIC"], group=os.environ["GROUP"], start="first")
async def handle(message):
    print("handled", message.body.decode(), flush=True)

async def app(scope, receive, send):
    assert scope["type"] == "lifespan"
    assert (await receive())["type"] == "lifespan.startup"
    await client.start()
    service = asyncio.create_task(client.run())
    await send({"type": "lifespan.startup.complete"})
    assert (await receive())["type"] == "lifespan.shutdown"
    service.cancel()
    await asyncio.gather(service, return_exceptions=True)
    await client.stop()
    print("client stopped", flush=True)
    await send({"type": "lifespan.shutdown.complete"})
"""


@contextmanager
def uvicorn(folder: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A uvicorn process that serves APPLICATION; killed after a minute and on exit."""
    (folder / "application.py").write_text(APPLICATION)
    command = [sys.executable, "-m", "uvicorn", "application:app", "--port", "0", "--log-level", "warning"]
    process = subprocess.Popen(
        command, cwd=folder, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
    )
    limit = threading.Timer(60, process.kill)
    limit.start()
    try:
        with process:
            yield process
            process.kill()
    finally:
        limit.cancel()
        limit.join()


@pytest.mark.spec("SPR-09", "SPR-10")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_uvicorn_application_with_listeners_stops_on_a_signal(
    saturn_broker: BrokerFixture, saturn_topic: str, saturn_group: str, tmp_path: Path, number: signal.Signals
) -> None:
    with saturnmq.sync.Client.from_url(saturn_broker.url) as client, client.producer("p") as out:
        out.send(saturn_topic, b"one")
    environment = {"SATURNMQ_URL": saturn_broker.url, "TOPIC": saturn_topic, "GROUP": saturn_group}
    with uvicorn(tmp_path, **environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "handled one\n"
        process.send_signal(number)
        assert process.stdout.read() == "client stopped\n"
        assert process.wait(timeout=30) in (0, -number), "it was not killed"
    assert saturn_broker.lag(saturn_group, saturn_topic) == 0
