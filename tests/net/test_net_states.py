"""The table of connection states, and the causes for which a connection is not read."""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct

import pytest

from saturnmq.net import NO_RESPONSE, BaseConnectionListener, Connection, NetSettings, RemotingServer
from saturnmq.net import connection as connection_module
from saturnmq.net.limits import Limits, RequestMemory
from saturnmq.net.states import CLOSED_STATES, TRANSITIONS, ConnectionEvent, ConnectionState
from saturnmq.protocol.frames.command import Command, encode_frame

RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class Seen(BaseConnectionListener):
    """States of the connections of a server, in the order of their events."""

    def __init__(self) -> None:
        self.states: list[ConnectionState] = []
        self.over = asyncio.Event()

    def connected(self, connection: Connection) -> None:
        self.states.append(connection.state)

    def closed(self, connection: Connection, reason: str) -> None:
        self.states.append(connection.state)
        self.over.set()


def test_states_every_open_or_closing_connection_can_close_and_be_lost() -> None:
    for state in set(ConnectionState) - {ConnectionState.NEW}:
        assert (state, ConnectionEvent.CLOSE) in TRANSITIONS and (state, ConnectionEvent.LOST) in TRANSITIONS
        assert TRANSITIONS[state, ConnectionEvent.LOST] is ConnectionState.CLOSED


def test_states_closed_connection_stays_closed() -> None:
    for (state, _), after in TRANSITIONS.items():
        assert after in CLOSED_STATES or state not in CLOSED_STATES
    assert {after for (state, _), after in TRANSITIONS.items() if state is ConnectionState.CLOSED} == {
        ConnectionState.CLOSED
    }


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_states_of_connection_that_its_peer_ends(reset: bool) -> None:
    async def work() -> list[ConnectionState]:
        seen, peer = Seen(), socket.socket()

        def handle(connection: Connection, command: Command) -> Command | bytes:
            seen.states.append(connection.state)
            if command.opaque == 0 and reset:
                peer.sendall(encode_frame(Command(10, opaque=1)))
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
            if command.opaque == 0:
                peer.close()
            return command.reply() if reset else NO_RESPONSE

        server = RemotingServer(handle, settings=NetSettings(), listener=seen)
        try:
            peer.connect(await server.start("127.0.0.1", 0))
            peer.sendall(encode_frame(Command(10, opaque=0)))
            await seen.over.wait()
        finally:
            peer.close()
            await server.stop()
        return seen.states

    states = asyncio.run(asyncio.wait_for(work(), 10))
    assert states == [
        ConnectionState.OPEN,
        ConnectionState.OPEN,
        *([ConnectionState.DRAINING] if reset else []),
        ConnectionState.CLOSED,
    ]


def test_bytes_after_invalid_ones_of_reset_connection_are_not_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    chunk = 64
    monkeypatch.setattr(connection_module, "_UNREAD_BYTES_MAX", 2 * chunk)
    handled: list[int] = []

    async def work() -> None:
        seen, peer = Seen(), socket.socket()

        def handle(connection: Connection, command: Command) -> Command:
            handled.append(command.opaque)
            if command.opaque == 0:
                peer.sendall(b"\xff" * chunk + encode_frame(Command(10, opaque=1)))
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
                peer.close()
            return command.reply()

        server = RemotingServer(handle, settings=NetSettings(), listener=seen)
        try:
            peer.connect(await server.start("127.0.0.1", 0))
            peer.sendall(encode_frame(Command(10, opaque=0)))
            await seen.over.wait()
        finally:
            peer.close()
            await server.stop()

    asyncio.run(asyncio.wait_for(work(), 10))
    assert handled == [0]


class FakeTransport:
    """Records whether reading is paused; fails on a repeated pause or resume."""

    def __init__(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True


@pytest.mark.spec("LIM-09", "LIM-11")
def test_connection_is_read_exactly_while_no_cause_holds() -> None:
    limits, transport = Limits(NetSettings(in_flight_max=2), RequestMemory(1 << 20)), FakeTransport()
    limits.transport = transport
    waiting, second = Command(10), Command(10)
    for write_paused, full, yielding, backlog in itertools.product((False, True), repeat=4):
        limits.write_paused, limits.yielding = write_paused, yielding
        if full:
            limits.begin(waiting)
            limits.begin(second)
        if backlog:
            limits.backlog.append(waiting)
        limits.update_reading()
        assert transport.reading == (not (write_paused or full or yielding or backlog))
        assert limits.read_paused == (not transport.reading)
        if full:
            limits.end(waiting)
            limits.end(second)
        limits.backlog.clear()
    assert limits.in_flight == limits.in_flight_bytes == 0


@pytest.mark.spec("LIM-09", "LIM-10")
def test_in_flight_limit_counts_requests_and_bytes() -> None:
    memory = RequestMemory(1 << 20)
    limits = Limits(NetSettings(in_flight_max=3, in_flight_bytes_max=5000), memory)
    large, small, third, fourth = (Command(10, body=bytes(size)) for size in (3000, 0, 0, 3000))
    limits.begin(large)
    limits.begin(small)
    assert not limits.full and memory.used == 3000
    limits.begin(third)
    assert limits.full
    limits.end(third)
    assert not limits.full
    limits.begin(fourth)
    assert limits.full and (limits.in_flight_bytes, memory.used) == (6000, 6000)
    for request in (large, small, fourth):
        limits.end(request)
    assert (limits.in_flight, limits.in_flight_bytes, memory.used, limits.full) == (0, 0, 0, False)
