"""The embedded broker: start-up time, ports, cleanup."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from saturnmq.net import NetSettings, RemotingClient
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command
from saturnmq.store import StoreProfile
from saturnmq.testing import EmbeddedBroker, SyncEmbeddedBroker


@pytest.mark.spec("TST-01")
def test_embedded_broker_starts_fast_on_free_ports_and_leaves_no_folder() -> None:
    async def once() -> float:
        began = time.perf_counter()
        async with EmbeddedBroker() as first, EmbeddedBroker() as second:
            took = (time.perf_counter() - began) / 2
            assert first.broker_address != second.broker_address
            for address in (first.broker_address, first.name_servers):
                assert address.startswith("127.0.0.1:") and address not in (second.broker_address, second.name_servers)
            folder = first.data
            assert folder is not None and folder.is_dir()
            assert first.broker.store.settings.profile is StoreProfile.SMALL
            assert sum(file.stat().st_blocks * 512 for file in folder.rglob("*")) < 4 * 1024 * 1024
        assert not folder.exists()
        return took

    assert min(asyncio.run(once()) for _ in range(3)) < 0.3


@pytest.mark.spec("TST-01")
def test_sync_embedded_broker_runs_in_its_own_thread_and_ends_it() -> None:
    before = set(threading.enumerate())
    with SyncEmbeddedBroker() as server:
        assert server.url == f"rmq://{server.name_servers}"

        async def ask() -> Command:
            client = RemotingClient(settings=NetSettings())
            try:
                return await client.invoke(server.broker_address, Command(RequestCode.GET_BROKER_CONFIG), 5000)
            finally:
                await client.close()

        assert asyncio.run(ask()).code == 0
    for thread in set(threading.enumerate()) - before:
        thread.join(30)  # threads for disk calls end once they are idle
        assert not thread.is_alive(), thread.name
