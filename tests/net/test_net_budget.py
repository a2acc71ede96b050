"""The connection budget of a process: one for all listeners, with a share for each; log lines of failed accepts."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
from netpair import Pair, pair

from saturnmq import descriptors
from saturnmq.net import NetSettings
from saturnmq.net import server as server_module
from saturnmq.net.budget import LISTENER_SHARE, AcceptErrors, ConnectionBudget
from saturnmq.protocol.frames.command import Command
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.file_cache import OPEN_FILES_MAX, FileCache
from waiting import until

LIMIT = 2 * LISTENER_SHARE


@pytest.fixture
def small_budget(monkeypatch: pytest.MonkeyPatch) -> ConnectionBudget:
    """A budget of LIMIT connections for the servers of the test."""
    budget = ConnectionBudget()
    monkeypatch.setattr(server_module, "PROCESS_BUDGET", budget)
    monkeypatch.setattr(server_module, "descriptors_left", lambda reserved: LIMIT)
    return budget


async def idle_sockets(p: Pair, count: int) -> list[asyncio.StreamWriter]:
    """Connections that send nothing and are open at the server."""
    before = len(p.server.connections)
    writers = [(await p.socket())[1] for _ in range(count)]
    await until(lambda: len(p.server.connections) == before + count)
    return writers


async def is_closed_at_once(p: Pair) -> bool:
    reader, writer = await p.socket()
    closed = await reader.read() == b""
    writer.close()
    return closed


@pytest.mark.spec("LIM-08")
async def test_listeners_share_one_budget_and_close_what_exceeds_it(small_budget: ConnectionBudget) -> None:
    async with pair() as one, pair() as two:
        assert (await one.call(Command(10))).code == 0
        assert (await two.call(Command(10))).code == 0
        idle = await idle_sockets(one, LIMIT - LISTENER_SHARE - 1) + await idle_sockets(two, LISTENER_SHARE - 1)
        assert small_budget.used == LIMIT
        for p in (one, two):
            assert await is_closed_at_once(p)
            assert p.server.rejections.counts == {"descriptors": 1}
            assert (await p.call(Command(10))).code == 0  # existing connections are unaffected
        idle.pop().close()
        await until(lambda: small_budget.used == LIMIT - 1)
        idle += await idle_sockets(one, 1)  # released by the other listener
        for writer in idle:
            writer.close()


@pytest.mark.spec("LIM-08")
async def test_flood_of_one_listener_leaves_a_share_to_another(small_budget: ConnectionBudget) -> None:
    async with pair() as flooded, pair() as other:
        idle = await idle_sockets(flooded, LIMIT)
        assert await is_closed_at_once(flooded)
        assert (await other.call(Command(10))).code == 0
        idle += await idle_sockets(other, LISTENER_SHARE - 1)
        assert await is_closed_at_once(other)
        for writer in idle:
            writer.close()


@pytest.mark.spec("LIM-07")
async def test_silent_connections_are_closed_when_process_is_crowded(small_budget: ConnectionBudget) -> None:
    settings = NetSettings(first_frame_ms=50)
    async with pair(settings=settings) as one, pair(settings=settings) as two:
        assert (await one.call(Command(10))).code == 0
        idle = [(await p.socket())[1] for p in (one, two) for _ in range(LIMIT // 4 + 1)]
        await until(lambda: small_budget.used <= LIMIT // 2)
        assert one.server.rejections.counts.keys() | two.server.rejections.counts.keys() == {"silent"}
        assert (await one.call(Command(10))).code == 0
        for writer in idle:
            writer.close()


@pytest.mark.spec("LIM-08")
def test_unreferenced_listener_does_not_count() -> None:
    class Listener:
        def __init__(self) -> None:
            self.connections = {1, 2, 3}

    budget, kept, dropped = ConnectionBudget(), Listener(), Listener()
    budget.join(kept)
    budget.join(dropped)
    assert budget.used == 6
    del dropped
    gc.collect()
    assert budget.used == 3


@pytest.mark.spec("LIM-08")
def test_failed_accepts_are_logged_once_per_second(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    handler = AcceptErrors(lambda: now)
    loop = asyncio.new_event_loop()
    failed = {"message": "out of system resource", "exception": OSError(errno.EMFILE, "Too many"), "socket": object()}
    with caplog.at_level(logging.ERROR):
        for _ in range(1000):
            handler(loop, failed)
        assert [record.name for record in caplog.records] == ["saturnmq.net.budget"]
        now += 1
        handler(loop, failed)
        assert "suppressed=999" in caplog.messages[-1]
        handler(loop, {"message": "other failure", "exception": ValueError("x")})
        assert "other failure" in caplog.messages[-1]
    loop.close()


@pytest.mark.spec("LIM-08")
@pytest.mark.parametrize(
    ("soft", "hard", "most", "raised"),
    [(512, 4096, 65_536, 4096), (512, -1, 65_536, 65_536), (4096, 4096, 65_536, None), (100_000, -1, 65_536, None)],
)
def test_soft_limit_is_raised_to_bounded_hard_limit(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, most: int, raised: int | None
) -> None:
    limits = [(soft, hard)]
    monkeypatch.setattr(
        descriptors,
        "resource",
        SimpleNamespace(
            RLIMIT_NOFILE=7,
            RLIM_INFINITY=-1,
            getrlimit=lambda _: limits[-1],
            setrlimit=lambda _, pair: limits.append(pair),
        ),
    )
    assert descriptors.raise_descriptor_limit(most) == (raised or soft)
    assert limits[1:] == ([(raised, hard)] if raised else [])


@pytest.mark.spec("LIM-08")
def test_cached_files_take_an_eighth_of_a_small_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(OPEN_FILES_MAX + 1)]
    for path in paths:
        path.write_bytes(b"x")
    for limit, most in ((512, 64), (65_536, OPEN_FILES_MAX)):
        monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        cache = FileCache(Disk())
        for path in paths:
            assert cache.read(path, 0, 1) == b"x"
        assert len(cache) == most
        cache.close()
