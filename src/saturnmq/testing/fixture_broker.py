"""The objects behind the fixtures `saturn_broker` and `saturn_clock`: a broker on its own thread, or a real one.

The broker's event loop is not the test's: plain tests may block and async tests may use any loop without disturbing the
broker. Everything that touches the broker therefore runs through `FixtureLoopThread`; see `on_loop`.

Requirements: TST-02..07.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Final, NoReturn, TypeVar

from saturnmq.broker import BrokerSettings
from saturnmq.client.client import Client
from saturnmq.client.message import Message
from saturnmq.net import Connection
from saturnmq.protocol.addresses import port_of
from saturnmq.protocol.codes import DLQ_PREFIX
from saturnmq.store import StoreSettings
from saturnmq.testing.embedded import START_SECONDS_MAX, EmbeddedBroker
from saturnmq.testing.inspection import Inspection
from saturnmq.testing.loop_thread import FixtureLoopThread, PendingResult
from saturnmq.testing.requests_seen import SENDS, Request
from saturnmq.testing.travel_clock import TravelClock, Traveller

T = TypeVar("T")
ALL_CONNECTIONS: Final = ""


class BrokerFixture:
    """A running broker and NameServer with inspection and fault injection; the fixture `saturn_broker` yields one.

    Example:
        def test_orders_survive_a_crash(saturn_broker, saturn_topic):
            with saturnmq.sync.Client.from_url(saturn_broker.url) as client, client.producer("p") as out:
                out.send(saturn_topic, b"one")
                saturn_broker.kill()
                saturn_broker.restart()
                out.send(saturn_topic, b"two")
            assert len(saturn_broker.published(saturn_topic)) == 2

    Created with a URL it represents a real broker, SaturnMQ's or Apache's: inspection works, and whatever needs the
    embedded broker (clock, faults, `requests`) skips the test.
    """

    def __init__(
        self, url: str | None = None, *, settings: BrokerSettings | None = None, store: StoreSettings | None = None
    ) -> None:
        self._clock = TravelClock()
        self._server = EmbeddedBroker(settings=settings, store=store, clock_ms=self._clock.now_ms) if not url else None
        self._remote_url = url or ""
        self._thread = FixtureLoopThread("fixture")
        self._client: Client | None = None
        self._inspection: Inspection | None = None
        self._traveller = Traveller(self._server, self._clock) if self._server is not None else None

    # ---- life cycle

    def start(self) -> None:
        """Start the broker and the inspection client; with a URL only the client."""
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
        """Stop everything; remove a temporary store."""
        try:
            self._thread.call(self._stop(), START_SECONDS_MAX)
        finally:
            self._thread.stop()

    async def _stop(self) -> None:
        if self._client is not None:
            await self._client.stop()
        if self._server is not None:
            await self._server.stop()

    # ---- addresses

    @property
    def embedded(self) -> bool:
        """Whether the broker runs in this process."""
        return self._server is not None

    @property
    def url(self) -> str:
        """URL of the NameServer, `rmq://host:port`, for `Client.from_url`."""
        return self._server.url if self._server is not None else self._remote_url

    @property
    def name_servers(self) -> str:
        """NameServer addresses: `host:port`, separated by `;`."""
        return ";".join(self._reader_client.settings.name_servers)

    @property
    def server(self) -> EmbeddedBroker:
        """The embedded broker; it belongs to another thread's event loop (see `on_loop`). Skips the test on a real broker."""
        if self._server is None:
            _skip("this needs the embedded broker, and --saturn-url names a real one")
        return self._server

    def ports(self) -> set[int]:
        """Local ports of the sockets that belong to this fixture, which are no leak of the test."""
        return self._thread.call(self._ports())

    async def _ports(self) -> set[int]:
        ports = {port_of(address) for address in self._own_addresses()}
        return ports | self._server.ports if self._server is not None else ports

    def _own_addresses(self) -> set[str]:
        """Local addresses of the inspection client's connections."""
        return {c.local_address for c in self._reader_client._core.remote._client.connections if c.local_address}

    # ---- inspection

    @property
    def requests(self) -> list[Request]:
        """The last 10,000 requests that the broker received, decoded, oldest first.

        Example:
            sends = [request for request in saturn_broker.requests if request.name == "SEND_MESSAGE_V2"]
        """
        return list(self.server.tap.requests)

    def create_topic(self, topic: str, *, queues: int = 4) -> None:
        """Create a topic, so that consumers find it before the first send."""
        self._thread.call(self._create_topic(topic, queues))

    async def _create_topic(self, topic: str, queues: int) -> None:
        await self._reader_client.create_topic(topic, queues=queues)
        await self._announce(topic)

    def published(self, topic: str) -> list[Message[bytes]]:
        """All messages of a topic that consumers can see now, in store order; `[]` for an unknown topic.

        Example:
            assert [message.body for message in saturn_broker.published("orders")] == [b"one", b"two"]
        """
        return self._thread.call(self._published(topic))

    async def _published(self, topic: str) -> list[Message[bytes]]:
        await self._announce(topic)
        return await self._reader.published(topic)

    def dead_letters(self, group: str) -> list[Message[bytes]]:
        """The messages in a group's dead-letter queue."""
        return self.published(DLQ_PREFIX + group)

    def lag(self, group: str, topic: str) -> int:
        """A group's backlog in a topic: messages after its committed offsets. Consumers commit periodically, not per message."""
        return self._thread.call(self._reader.lag(group, topic))

    def expect(self, topic: str, n: int, within: float = 5.0) -> PendingResult[list[Message[bytes]]]:
        """Wait until a topic holds exactly `n` messages: `await` the result, or call `result()` on it.

        Example:
            (message,) = await saturn_broker.expect(saturn_topic, 1, within=5)

        within: seconds of real time; with n=0 all of them pass, since a message may still arrive. Raises AssertionError
        that lists what arrived.
        """
        return self._thread.submit("saturn_broker.expect", self._expect(topic, n, within))

    async def _expect(self, topic: str, n: int, within: float) -> list[Message[bytes]]:
        await self._announce(topic)
        return await self._reader.expect(topic, n, within)

    async def _announce(self, topic: str) -> None:
        """Register a new topic with the NameServer now; the broker itself does so a moment after creating it."""
        if self._server is not None and self._server.running:
            is_created = topic in self._server.broker.topics.table
            if is_created and self._server.namesrv.routes.route(topic) is None:
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
        """The embedded broker's clock. Skips the test on a real broker."""
        self.server  # noqa: B018 - skips on a real one
        assert self._traveller is not None
        return ClockFixture(self._clock, self._traveller, self._thread)

    # ---- fault injection

    def answer_next(
        self, code: int, *, to: int | Iterable[int] = SENDS, remark: str = "made by a test", times: int = 1
    ) -> None:
        """Answer the next `times` requests that have one of the request codes `to` with response code `code`, unhandled.

        Example:
            from saturnmq.protocol.codes import ResponseCode

            saturn_broker.answer_next(ResponseCode.SYSTEM_BUSY)  # rejects the next send

        to: a request code or several; all send requests by default. One-way requests get no response.
        """
        codes = (to,) if isinstance(to, int) else tuple(to)
        self.on_loop(lambda: self.server.tap.answer_next(codes, code, remark, times))

    def drop_connections(self, client_id: str = ALL_CONNECTIONS) -> int:
        """Abort the connections of one client, or all of them; returns how many. Clients see a reset."""

        def cut() -> int:
            chosen = self._connections(client_id)
            for connection in chosen:
                connection.abort()
            return len(chosen)

        return self.on_loop(cut)

    def stall_connections(self, client_id: str = ALL_CONNECTIONS) -> int:
        """Stop answering on the connections that a client, or every client, has now; returns how many.

        The broker sees no heartbeats on them either, so that `saturn_clock` lets such a client expire. New connections
        are not affected.
        """
        return self.on_loop(
            lambda: self.server.tap.stall(self._connections(client_id), self.server.broker.long_polling)
        )

    def resume_connections(self) -> None:
        """Handle, in order, the requests that arrived on stalled connections, and stop stalling."""
        self.on_loop(lambda: self.server.tap.resume(self.server.broker.handle))

    def kill(self) -> None:
        """End the broker as SIGKILL would: nothing is flushed or unregistered. `restart` starts it again."""
        self._thread.call(self.server.kill_broker())

    def restart(self) -> None:
        """Start the broker on its old port and store; a running broker is stopped cleanly first."""
        self._thread.call(self._restart(self.server))

    async def _restart(self, server: EmbeddedBroker) -> None:
        await server.stop_broker()
        await server.start_broker()

    def fail_flush(self) -> None:
        """Make every flush to disk fail. The store rejects messages after the first failure, until `restart`."""
        self.on_loop(lambda: self.server.disk.fail_flush())

    def slow_flush(self, seconds: float) -> None:
        """Make every flush to disk take `seconds` longer."""
        self.on_loop(lambda: self.server.disk.slow_flush(seconds))

    def fill_disk(self) -> None:
        """Report the disk as full."""
        self.on_loop(lambda: self.server.disk.fill())

    def heal_disk(self) -> None:
        """Undo the disk faults. A store whose flush failed stays closed for writes until `restart`."""
        self.on_loop(lambda: self.server.disk.heal())

    def _connections(self, client_id: str) -> list[Connection]:
        broker = self.server.broker
        if not client_id:
            own_addresses = self._own_addresses()
            return [connection for connection in broker.connections if connection.remote_address not in own_addresses]
        clients = broker.clients
        tables = [*clients.producers.values(), *(group.members for group in clients.consumers.values())]
        members = {c for table in tables for c, info in table.items() if info.client_id == client_id}
        return [connection for connection in broker.connections if connection in members]

    def on_loop(self, work: Callable[[], T]) -> T:
        """Run `work` on the embedded broker's event loop and return its result; the only safe way to its internals.

        Example:
            offset = saturn_broker.on_loop(lambda: saturn_broker.server.broker.store.min_physical_offset)
        """
        self.server  # noqa: B018 - skips on a real one

        async def on_its_loop() -> T:
            return work()

        return self._thread.call(on_its_loop())


class ClockFixture:
    """The embedded broker's clock, which runs with real time and can be advanced; the fixture `saturn_clock` returns one.

    Example:
        async def test_a_reminder_arrives(saturn_broker, saturn_client, saturn_topic, saturn_clock):
            async with saturn_client as client, client.producer("p") as out:
                await out.send(saturn_topic, b"tea", delay=timedelta(hours=2))
                await saturn_clock.advance(timedelta(hours=2))
                await saturn_broker.expect(saturn_topic, 1)
    """

    def __init__(self, clock: TravelClock, traveller: Traveller, thread: FixtureLoopThread) -> None:
        self._clock = clock
        self._traveller = traveller
        self._thread = thread

    def now(self) -> datetime:
        """The broker's current time, an aware datetime in UTC."""
        return self._clock.now()

    def now_ms(self) -> int:
        """The broker's current time, Unix ms."""
        return self._clock.now_ms()

    def advance(self, delta: timedelta) -> PendingResult[None]:
        """Advance the broker's clock: `await` the result, or call `result()` on it. Completes when everything due has run.

        Due are delayed messages, retries, transaction checks, expiry of clients and locks, and retention; they happen
        in the order of their due times.
        """
        return self._thread.submit("saturn_clock.advance", self._traveller.advance(delta))


def _skip(reason: str) -> NoReturn:
    import pytest

    pytest.skip(reason)
