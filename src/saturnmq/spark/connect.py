"""Connections of a planner, worker or driver process: one client per cluster and account, on an event loop in a thread of its own.

Nothing is opened at import, because Spark forks its workers; a forked child starts with an empty cache. A client that was not used
for 60 s is closed. `linked` and `Link.run` may be called from any thread; coroutines run on the loop's thread.

Requirements: SRC-20, SRC-21, SPK-11.
"""

from __future__ import annotations

import asyncio
import atexit
import copy
import os
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, TypeVar

from saturnmq.client.connection.access import ClusterAccess
from saturnmq.client.sync.loop_thread import LoopThread

if TYPE_CHECKING:
    from saturnmq.client.client import Client
    from saturnmq.client.connection.core import Core
    from saturnmq.client.puller.puller import Puller

IDLE_SECONDS: Final = 60.0
READ_GROUP: Final = "CID_RMQ_SYS_SPARK"  # brokers create groups with this prefix on demand (SRC-11)
_BROKER_IDS: Final = {"master": 0, "slave": 1}  # of option readFrom; without a broker of id 1 the client takes id 2
R = TypeVar("R")


@dataclass(frozen=True)
class ConnectionOptions(ClusterAccess):
    """Identity of a client: two connections that differ in any field use two clients. Secrets are not in the repr.

    read_from: auto: the broker id that brokers suggest; master or slave: that one, or another of its name while it does not
    answer.
    """

    name_server: str = ""
    pull_timeout_ms: int = 3000
    read_from: str = "auto"

    @property
    def connection(self) -> ConnectionOptions:
        """Only these fields, of any options that extend them."""
        return ConnectionOptions(**{item.name: getattr(self, item.name) for item in fields(ConnectionOptions)})

    def make_client(self) -> Client:
        """Return a client that is not started. Raises ConfigError."""
        from saturnmq.client.client import Client  # not at import: most planners open no connection

        return Client(name_servers=self.name_server, timeout=self.pull_timeout_ms / 1000, **self.access_settings)


def _puller(client: Client, read_from: str) -> Puller:
    chosen = _BROKER_IDS.get(read_from)
    if chosen is None:
        return client.puller(READ_GROUP)
    from saturnmq.spark.source_puller import SteadyPuller

    return SteadyPuller(client._core, READ_GROUP, chosen)


class Link:
    """A started client and its puller, shared by the users of one connection."""

    def __init__(self, client: Client, read_from: str = "auto") -> None:
        self.client = client
        self.puller = _puller(client, read_from)
        self.users = 0
        self.idle: asyncio.TimerHandle | None = None

    @property
    def core(self) -> Core:
        """Routes and raw requests, for calls that the puller does not have."""
        return self.client._core

    def masters(self) -> Link:
        """Return a link of this client with a puller that asks masters only."""
        from saturnmq.spark.source_puller import MasterPuller

        link = copy.copy(self)  # never in the cache: its users are not counted
        link.puller = MasterPuller(self.core, READ_GROUP)
        return link

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine on the clients' loop and return its result."""
        return run(work)


class _State:
    def __init__(self) -> None:
        self.thread = LoopThread("saturnmq-spark")
        self.lock = threading.Lock()
        self.links: dict[ConnectionOptions, Link] = {}

    def close(self) -> None:
        """Close every client and end the thread."""
        with self.lock:
            links, self.links = list(self.links.values()), {}

        async def stop() -> None:
            for link in links:
                if link.idle is not None:
                    link.idle.cancel()
                await link.client.stop()

        if links:
            self.thread.run(stop())
        self.thread.stop()


_state = _State()
atexit.register(lambda: _state.close())


def _forget() -> None:
    global _state
    _state = _State()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def run(work: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine on the clients' loop and return its result."""
    return _state.thread.run(work)


def close_all() -> None:
    """Close this process's clients; the next use opens new ones."""
    _state.close()


@contextmanager
def linked(options: ConnectionOptions) -> Iterator[Link]:
    """Yield the client for these options, shared inside the process. Raises ConfigError for invalid addresses."""
    state, key = _state, options.connection
    with state.lock:
        link = state.links.get(key)
        if link is None:
            link = Link(key.make_client(), key.read_from)
            state.thread.run(link.client.start())
            state.links[key] = link
        link.users += 1
        if link.idle is not None:
            link.idle.cancel()
            link.idle = None
    try:
        yield link
    finally:
        with state.lock:
            link.users -= 1
            if not link.users and state.links.get(key) is link:
                state.thread.run(_close_later(state, key, link))


async def _close_later(state: _State, key: ConnectionOptions, link: Link) -> None:
    loop = asyncio.get_running_loop()

    def close() -> None:
        if not state.lock.acquire(blocking=False):  # its holder may wait for this loop
            link.idle = loop.call_later(IDLE_SECONDS, close)
            return
        try:
            if link.users or state.links.get(key) is not link:
                return
            del state.links[key]
        finally:
            state.lock.release()
        _closing.add(task := loop.create_task(link.client.stop()))
        task.add_done_callback(_closing.discard)

    link.idle = loop.call_later(IDLE_SECONDS, close)


_closing: set[asyncio.Task[None]] = set()
