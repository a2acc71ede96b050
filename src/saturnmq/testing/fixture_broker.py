"""What the fixtures `saturn_broker` and `saturn_clock` hand to a test: a broker in a thread of its own, or a real one.

The broker's loop is not the test's: plain tests may block, async tests may use any loop, and neither disturbs the broker.
Source: TST-02..07.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, Final, NoReturn, TypeVar

from saturnmq.broker import BrokerSettings
from saturnmq.client.client import Client
from saturnmq.client.message import Message
from saturnmq.net import Connection
from saturnmq.protocol.codes import DLQ_PREFIX
from saturnmq.store import StoreSettings
from saturnmq.testing.embedded import START_SECONDS_MAX, EmbeddedBroker
from saturnmq.testing.inspection import Inspection
from saturnmq.testing.loop_thread import LoopThread, Pending
from saturnmq.testing.requests_seen import SENDS, Request
from saturnmq.testing.travel_clock import TravelClock, Traveller

T = TypeVar("T")
ALL_CONNECTIONS: Final = ""


class BrokerFixture:
    """A running broker and NameServer, how to look inside, and what can go wrong with it.

    Made with a URL it is a real broker, which can be looked into; what needs the embedded one skips the test then.
    """

    def __init__(
        self, url: str | None = None, *, settings: BrokerSettings | None = None, store: StoreSettings | None = None
    ) -> None:
        self._clock = TravelClock()
        self._server = EmbeddedBroker(settings=settings, store=store, clock_ms=self._clock.now_ms) if not url else None
        self._remote_url = url or ""
        self._thread = LoopThread("fixture")
        self._client: Client | None = None
        self._inspection: Inspection | None = None
        self._traveller = Traveller(self._server, self._clock) if self._server is not None else None

    # ---- life

    def start(self) -> None:
        """Start both, or only what looks into the real broker."""
        self._thread.start()
        try:
            self._thread.call(self._start(), START_SECONDS_MAX)
        except BaseException:
            self.stop()
            raise

    async def _start(self) -> None:
        if self._server is not None:
            await self._server.start()
        self._client = Client.from_url(self.url, timeout=10.0)
        await self._client.start()
        self._inspection = Inspection(self._client)

    def stop(self) -> None:
        """End everything; a temporary store is removed."""
        try:
            self._thread.call(self._stop(), START_SECONDS_MAX)
        finally:
            self._thread.stop()

    async def _stop(self) -> None:
        if self._client is not None:
            await self._client.stop()
        if self._server is not None:
            await self._server.stop()

    # ---- where it is

    @property
    def embedded(self) -> bool:
        """Whether it is in this process."""
        return self._server is not None

    @property
    def url(self) -> str:
        """For `Client.from_url`."""
        return self._server.url if self._server is not None else self._remote_url

    @property
    def name_servers(self) -> str:
        """`host:port`, or several with `;` between them."""
        return ";".join(self._reader_client.settings.name_servers)

    @property
    def server(self) -> EmbeddedBroker:
        """The embedded broker itself; it lives on another thread's loop. Skips the test on a real one."""
        if self._server is None:
            _skip("this needs the embedded broker, and --saturn-url names a real one")
        return self._server

    def ports(self) -> set[int]:
        """Local ports of the sockets that are the kit's own."""
        return self._thread.call(self._ports())

    async def _ports(self) -> set[int]:
        endpoints: list[Any] = [self._reader_client._core.remote._client]
        found: set[int] = set()
        if self._server is not None:
            found.add(int(self._server.name_servers.rpartition(":")[2]))
            if self._server._broker is not None:
                broker = self._server.broker
                endpoints += [broker.registrar._client, broker._server, broker._fast]
                found.add(int(broker.address.rpartition(":")[2]))
                found |= {sock.getsockname()[1] for sock in getattr(broker._fast._server, "sockets", ())}
            endpoints.append(self._server.namesrv._server)
        for endpoint in endpoints:
            found |= {int(c.local_address.rpartition(":")[2]) for c in endpoint.connections if c.local_address}
        return found

    # ---- looking inside

    @property
    def requests(self) -> list[Request]:
        """The last 10,000 requests that the broker has got, decoded, oldest first."""
        return list(self.server.tap.requests)

    def create_topic(self, topic: str, *, queues: int = 4) -> None:
        """Make a topic, so that consumers find it before anybody sends."""
        self._thread.call(self._create_topic(topic, queues))

    async def _create_topic(self, topic: str, queues: int) -> None:
        await self._reader_client.create_topic(topic, queues=queues)
        await self._announce(topic)

    def published(self, topic: str) -> list[Message[bytes]]:
        """All messages that consumers of a topic can see now, in the order in which they were stored."""
        return self._thread.call(self._published(topic))

    async def _published(self, topic: str) -> list[Message[bytes]]:
        await self._announce(topic)
        return await self._reader.published(topic)

    def dead_letters(self, group: str) -> list[Message[bytes]]:
        """The messages that a group gave up."""
        return self.published(DLQ_PREFIX + group)

    def lag(self, group: str, topic: str) -> int:
        """How many messages of a topic are behind the group's committed offsets. Consumers commit now and then, not at once."""
        return self._thread.call(self._reader.lag(group, topic))

    def expect(self, topic: str, n: int, within: float = 5.0) -> Pending[list[Message[bytes]]]:
        """The n messages of a topic: `await` it, or take its `result()`. Raises AssertionError listing what arrived.

        within: seconds of real time. With n=0 it waits all of them.
        """
        return self._thread.submit("saturn_broker.expect", self._expect(topic, n, within))

    async def _expect(self, topic: str, n: int, within: float) -> list[Message[bytes]]:
        await self._announce(topic)
        return await self._reader.expect(topic, n, within)

    async def _announce(self, topic: str) -> None:
        """A broker tells the NameServer of a new topic a moment after it has made it: not later than now."""
        if self._server is not None and self._server._broker is not None:
            known = topic in self._server.broker.topics.table
            if known and self._server.namesrv.routes.route(topic) is None:
                await self._server.broker.registrar.register()

    @property
    def _reader(self) -> Inspection:
        assert self._inspection is not None, "not started"
        return self._inspection

    @property
    def _reader_client(self) -> Client:
        assert self._client is not None, "not started"
        return self._client

    # ---- time

    @property
    def clock(self) -> ClockFixture:
        """The clock of the embedded broker."""
        self.server  # noqa: B018 - skips on a real one
        assert self._traveller is not None
        return ClockFixture(self._clock, self._traveller, self._thread)

    # ---- what goes wrong

    def answer_next(
        self, code: int, *, to: int | Iterable[int] = SENDS, remark: str = "made by a test", times: int = 1
    ) -> None:
        """The next `times` requests with one of these request codes are answered with response code `code`, and not handled."""
        codes = (to,) if isinstance(to, int) else tuple(to)
        self.on_loop(lambda: self.server.tap.answer_next(codes, code, remark, times))

    def drop_connections(self, client_id: str = ALL_CONNECTIONS) -> int:
        """Cut the connections of a client, or all of them, with nothing said; how many."""

        def cut() -> int:
            chosen = self._connections(client_id)
            for connection in chosen:
                connection.abort()
            return len(chosen)

        return self.on_loop(cut)

    def stall_connections(self, client_id: str = ALL_CONNECTIONS) -> int:
        """Answer nothing any more on the connections that a client, or anybody, has now; how many.

        To the broker their heartbeats are missing too: `saturn_clock` lets such a client expire.
        """
        return self.on_loop(lambda: self.server.tap.stall(self._connections(client_id), self.server.broker.ctx.hold))

    def resume_connections(self) -> None:
        """Work off what came on stalled connections meanwhile, and go on."""
        self.on_loop(lambda: self.server.tap.resume(self.server.broker._handle))

    def kill(self) -> None:
        """End the broker as SIGKILL would. `restart` starts it again."""
        self._thread.call(self.server.kill_broker())

    def restart(self) -> None:
        """Start the broker again on its port and store; one that still runs is stopped in good order before."""
        self._thread.call(self._restart(self.server))

    async def _restart(self, server: EmbeddedBroker) -> None:
        await server.stop_broker()
        await server.start_broker()

    def fail_flush(self) -> None:
        """Every flush to disk fails from now on; the store then takes no more messages until a restart."""
        self.on_loop(lambda: self.server.disk.fail_flush())

    def slow_flush(self, seconds: float) -> None:
        """Every flush to disk takes so much longer."""
        self.on_loop(lambda: self.server.disk.slow_flush(seconds))

    def fill_disk(self) -> None:
        """The disk is full."""
        self.on_loop(lambda: self.server.disk.fill())

    def heal_disk(self) -> None:
        """The disk is well again; a store whose flush failed stays as it is until a restart."""
        self.on_loop(lambda: self.server.disk.heal())

    def _connections(self, client_id: str) -> list[Connection]:
        broker = self.server.broker
        everybody = [*broker._server.connections, *broker._fast.connections]
        if not client_id:
            own = {c.local_address for c in self._reader_client._core.remote._client.connections}
            return [connection for connection in everybody if connection.remote_address not in own]
        clients = broker.ctx.clients
        tables = [*clients.producers.values(), *(group.members for group in clients.consumers.values())]
        members = {c for table in tables for c, info in table.items() if info.client_id == client_id}
        return [connection for connection in everybody if connection in members]

    def on_loop(self, work: Callable[[], T]) -> T:
        """The result of work, run on the embedded broker's loop: the way to its insides."""
        self.server  # noqa: B018 - skips on a real one

        async def on_its_loop() -> T:
            return work()

        return self._thread.call(on_its_loop())


class ClockFixture:
    """The time of the embedded broker: it runs, and a test can put it forward."""

    def __init__(self, clock: TravelClock, traveller: Traveller, thread: LoopThread) -> None:
        self._clock = clock
        self._traveller = traveller
        self._thread = thread

    def now(self) -> datetime:
        """The broker's time, aware UTC."""
        return self._clock.now()

    def now_ms(self) -> int:
        """The same as Unix ms."""
        return self._clock.now_ms()

    def advance(self, delta: timedelta) -> Pending[None]:
        """Put the broker's clock forward: `await` it, or take its `result()`. Done when all that became due has happened.

        Delays, retries, checks of transactions, expiry of clients and locks, retention; in the order in which they were due.
        """
        return self._thread.submit("saturn_clock.advance", self._traveller.advance(delta))


def _skip(reason: str) -> NoReturn:
    import pytest

    pytest.skip(reason)
