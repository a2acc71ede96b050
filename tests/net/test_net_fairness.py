"""A connection that sends as fast as it can does not delay the requests of others."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
import termios
from collections.abc import Callable

import pytest
import uvloop
from netpair import pair

from saturnmq.net import NO_RESPONSE, Connection, fairness, requests
from saturnmq.net import connection as connection_module
from saturnmq.net.budget import ACCEPTED_AT_ONCE
from saturnmq.net.fairness import DECODED_AT_ONCE, QUANTUM_SECONDS
from saturnmq.protocol.codes import CommandFlag
from saturnmq.protocol.frames.command import Command, encode_frame
from waiting import until

DEADLINE_SECONDS = 20
ONEWAY, PROBE = 11, 22
READ_BYTES = 262_144  # the most that either event loop reads at once


def oneway(number: int) -> bytes:
    command = Command(ONEWAY, opaque=number)
    command.flag |= CommandFlag.ONEWAY
    return encode_frame(command)


def fill(peer: socket.socket, frames: memoryview) -> int:
    """Write until the kernel takes no more, before the event loop can read; how many bytes it took."""
    peer.setblocking(False)
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while sent < len(frames):
            sent += peer.send(frames[sent:])
    return sent


class Seen:
    """Counts one-way requests, and how many came before the probe."""

    def __init__(self, clock: list[float] | None = None) -> None:
        self.numbers: list[int] = []
        self.before_probe = -1
        self._clock = clock

    def handle(self, connection: Connection, request: Command) -> Command | bytes:
        if request.code == PROBE:
            self.before_probe = len(self.numbers)
            return request.reply()
        self.numbers.append(request.opaque)
        if self._clock is not None:
            self._clock[0] += 0.001
        return NO_RESPONSE


def readable(connection: Connection) -> int:
    """Bytes that the kernel holds for a connection of the server."""
    assert connection.transport is not None
    descriptor = connection.transport.get_extra_info("socket").fileno()
    return int(struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))[0])


async def flood(seen: Seen, frames: int, readable_min: int) -> int:
    """Fill one connection until readable_min bytes wait, then send a probe over another; return when all is handled.

    Returns how many one-way requests were handled between the last filling and the probe. The kernel enlarges its receive
    buffer with the traffic, so a connection is filled and read until it is large enough.
    """
    content = memoryview(oneway(7) * frames)
    async with asyncio.timeout(DEADLINE_SECONDS), pair(seen.handle) as p:
        with socket.create_connection((p.host, p.port)) as busy, socket.create_connection((p.host, p.port)) as other:
            while len(p.server.connections) < 2:
                await asyncio.sleep(0)
            full, handled = False, 0
            while not full:
                handled = len(seen.numbers)
                sent = fill(busy, content)
                full = max(map(readable, p.server.connections)) >= readable_min
                if full:
                    other.sendall(encode_frame(Command(PROBE, opaque=1)))
                await asyncio.get_running_loop().sock_sendall(busy, content[sent:])
                while len(seen.numbers) < handled + frames:
                    await asyncio.sleep(0)
            while seen.before_probe < 0:
                await asyncio.sleep(0)
    return seen.before_probe - handled


LOOPS = pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])


@LOOPS
def test_fairness_other_connection_is_served_after_one_read(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        before_probe = runner.run(flood(Seen(), 36_000, 3 * READ_BYTES))
    assert before_probe <= READ_BYTES / len(oneway(7)) + 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that fair queueing sees, in seconds; each request takes 1 ms of it."""
    now = [1.0]
    for module in (connection_module, fairness, requests):
        monkeypatch.setattr(module, "monotonic", lambda: now[0])
    return now


IN_QUANTUM = int(QUANTUM_SECONDS / 0.001) + 1  # requests that a connection may have in a quantum of that clock


@LOOPS
def test_fairness_other_connection_is_served_after_a_quantum_of_requests(
    new_loop: Callable[[], asyncio.AbstractEventLoop], clock: list[float]
) -> None:
    seen = Seen(clock)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        before_probe = runner.run(flood(seen, 300, 300 * len(oneway(7))))
    assert before_probe <= 2 * IN_QUANTUM
    assert len(seen.numbers) == 300


async def flood_all(seen: Seen, flooders: int, frames: int) -> tuple[int, int]:
    """Fill many connections, and send a probe over another once each has used its quantum; return when all is handled.

    Returns how many requests were handled between the probe's sending and its handling, and the most that was decoded in advance.
    """
    content = memoryview(b"".join(map(oneway, range(frames))))
    async with asyncio.timeout(DEADLINE_SECONDS), pair(seen.handle) as p, contextlib.AsyncExitStack() as stack:
        busy = [stack.enter_context(socket.create_connection((p.host, p.port))) for _ in range(flooders)]
        other = stack.enter_context(socket.create_connection((p.host, p.port)))
        while len(p.server.connections) <= flooders:
            await asyncio.sleep(0)
        assert all(fill(one, content) == len(content) for one in busy)
        while len(seen.numbers) < 2 * flooders * IN_QUANTUM:
            await asyncio.sleep(0)
        assert len(seen.numbers) < flooders * frames / 2, "the flood lasts"
        handled = len(seen.numbers)
        other.sendall(encode_frame(Command(PROBE, opaque=1)))
        decoded = 0
        while seen.before_probe < 0:
            decoded = max(decoded, *(len(one.limits.backlog) for one in p.server.connections))
            await asyncio.sleep(0)
        while len(seen.numbers) < flooders * frames:
            await asyncio.sleep(0)
    return seen.before_probe - handled, decoded


@LOOPS
def test_fairness_request_waits_no_longer_beside_many_floods(
    new_loop: Callable[[], asyncio.AbstractEventLoop], clock: list[float]
) -> None:
    seen = Seen(clock)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        before_probe, decoded = runner.run(flood_all(seen, 12, 500))
    assert before_probe <= 3 * IN_QUANTUM  # of the probe's iteration and of one before it, not of 12
    assert decoded <= DECODED_AT_ONCE
    for number in range(500):
        assert seen.numbers.count(number) == 12


@LOOPS
def test_fairness_held_requests_of_a_connection_keep_their_order(
    new_loop: Callable[[], asyncio.AbstractEventLoop], clock: list[float]
) -> None:
    seen = Seen(clock)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(flood_all(seen, 1, 1000))
    assert seen.numbers == list(range(1000))


@LOOPS
def test_fairness_held_requests_of_a_peer_that_closed_are_handled(
    new_loop: Callable[[], asyncio.AbstractEventLoop], clock: list[float]
) -> None:
    seen = Seen(clock)

    async def work() -> None:
        async with asyncio.timeout(DEADLINE_SECONDS), pair(seen.handle) as p:
            with socket.create_connection((p.host, p.port)) as busy:
                busy.sendall(b"".join(map(oneway, range(1000))))
            while len(seen.numbers) < 1000:
                await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(work())
    assert seen.numbers == list(range(1000))


def test_fairness_connection_is_expensive_by_processor_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    wall, work = 1.0, 1.0
    monkeypatch.setattr(fairness, "monotonic", lambda: wall)
    monkeypatch.setattr(fairness, "thread_time", lambda: work)
    expense = fairness.Expense()

    def read(*, paused: float = 0.0, used: float = 0.0) -> bool:
        nonlocal wall, work
        began = expense.begin()
        wall, work = wall + paused + used, work + used
        expense.end(began)
        return expense.expensive

    assert not any(read(paused=1.0) for _ in range(100)), "the host paused the process"
    assert [read(used=0.003) for _ in range(3)] == [False, True, True]
    assert [read(used=0.001) for _ in range(fairness.CHEAP_READS)] == [True] * (fairness.CHEAP_READS - 1) + [False]
    assert not read(used=0.003) and read(used=0.003)


async def rounds_of_requests(
    clock: list[float],
    connections: int,
    rounds: int,
    *,
    seconds: float = 0.003,
    each: int = 1,
    burst: int = 1,
    host: str = "127.0.0.1",
) -> list[int]:
    """Requests by many connections at a time: how many are handled before a probe of 1 ms, by round.

    seconds: that each of them takes. each: that a connection sends in one write. burst: how many probes the fourth round has, in
    one write. host: of the probe's client.
    """
    handled, seen = 0, list[int]()

    def handle(connection: Connection, request: Command) -> Command:
        nonlocal handled
        if request.code == PROBE:
            seen.append(handled)
            clock[0] += 0.001
        else:
            handled += 1
            clock[0] += seconds
        return request.reply()

    async with asyncio.timeout(DEADLINE_SECONDS), pair(handle) as p, contextlib.AsyncExitStack() as stack:
        loop = asyncio.get_running_loop()
        busy = [stack.enter_context(socket.create_connection((p.host, p.port))) for _ in range(connections)]
        honest = stack.enter_context(socket.create_connection((p.host, p.port), source_address=(host, 0)))
        for one in (*busy, honest):
            one.setblocking(False)
        while len(p.server.connections) <= connections:
            await asyncio.sleep(0)
        counts = []
        for number in range(rounds):
            before, expected = handled, len(seen) + (burst if number == 3 else 1)
            for one in busy:
                one.send(encode_frame(Command(10, opaque=number)) * each)
            honest.send(encode_frame(Command(PROBE, opaque=number)) * (expected - len(seen)))  # the probe comes last
            for one in (*busy, honest):
                await loop.sock_recv(one, 65536)
            while len(seen) < expected:
                await loop.sock_recv(honest, 65536)
            counts.append(seen[-1] - before)
        return counts


@LOOPS
@pytest.mark.parametrize("burst", [1, 20])
def test_fairness_requests_of_expensive_connections_take_turns(
    new_loop: Callable[[], asyncio.AbstractEventLoop], burst: int, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 connections with one request of 3 ms each were all served in one iteration: others waited 600 ms.

    A client that sent many requests at once before is served as any other once they are handled.
    """
    monkeypatch.setattr(fairness, "thread_time", lambda: clock[0])
    with asyncio.Runner(loop_factory=new_loop) as runner:
        counts = runner.run(rounds_of_requests(clock, 50, 12, burst=burst))
    assert max(counts[6:]) <= 5, "after two rounds each connection is known to be expensive"


@LOOPS
@pytest.mark.parametrize(("host", "most"), [("127.0.0.2", 6), ("127.0.0.1", 50)])
def test_fairness_addresses_share_the_loop_whatever_their_connections(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    host: str,
    most: int,
    clock: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """50 connections with one cheap request each were all served before another client: its share was one in 51.

    From another address it waits for DIRECT_SECONDS of theirs and the turns of an iteration; at the same address it is one of 51.
    """
    monkeypatch.setattr(fairness, "thread_time", lambda: clock[0])
    with asyncio.Runner(loop_factory=new_loop) as runner:
        counts = runner.run(rounds_of_requests(clock, 50, 12, seconds=0.001, host=host))
    assert max(counts) <= most
    assert host != "127.0.0.1" or max(counts) > 25


@LOOPS
def test_fairness_quantum_is_shorter_the_more_connections_wait(
    new_loop: Callable[[], asyncio.AbstractEventLoop], clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of ten reads had a whole quantum: another client waited for ten of them, 20 ms."""
    monkeypatch.setattr(fairness, "thread_time", lambda: clock[0])
    with asyncio.Runner(loop_factory=new_loop) as runner:
        (count,) = runner.run(rounds_of_requests(clock, 10, 1, seconds=0.0002, each=100))
    seconds = sum(max(QUANTUM_SECONDS / n, fairness.QUANTUM_SECONDS_MIN) + 0.0002 for n in range(1, 11))
    assert count <= (seconds + fairness.ITERATION_SECONDS) / 0.0002 + 1 < 10 * QUANTUM_SECONDS / 0.0002


class NamedTurns:
    """A connection of a network; each turn adds the network to `order`."""

    def __init__(self, network: str, order: list[str], *, closed: bool = False) -> None:
        self.network = network
        self.order = order
        self.closed = closed

    def take_turn(self) -> None:
        self.order.append(self.network)


async def test_fairness_turns_alternate_between_networks() -> None:
    queue, order = fairness.FairQueue(), list[str]()
    for network in ("a", "a", "a", "a", "b", "c", "b"):
        queue.wait(NamedTurns(network, order))
    while queue:
        await asyncio.sleep(0)
    assert order == ["a", "b", "c", "a", "b", "a", "a"]


async def test_fairness_throttled_connections_continue_at_a_rate() -> None:
    """Those of a network with few soon, behind one of each network with many; connections that wait for turns are not held up."""
    queue, order, waiting = fairness.FairQueue(), list[str](), list[str]()
    loop = asyncio.get_running_loop()
    began = loop.time()
    for network in ("a",) * 10 + ("b", "c"):
        queue.throttle(NamedTurns(network, order))
    queue.wait(NamedTurns("a", waiting))
    await until(lambda: waiting)
    for count in (3, 12):
        await until(lambda count=count: len(order) >= count)
        assert loop.time() - began >= len(order) * fairness.THROTTLE_SECONDS
    assert order == ["a", "b", "c"] + ["a"] * 9
    queue.throttle(NamedTurns("d", order))
    await until(lambda: order[-1] == "d")


async def test_fairness_closed_connections_are_not_kept_in_the_line_of_throttled_ones() -> None:
    queue, order = fairness.FairQueue(), list[str]()
    for closed in [True] * (fairness.CLOSED_AT_ONCE + 10) + [False, False]:
        queue.throttle(NamedTurns("a", order, closed=closed))
    began = asyncio.get_running_loop().time()
    await until(lambda: len(order) == fairness.CLOSED_AT_ONCE + 12)
    assert asyncio.get_running_loop().time() - began < len(order) * fairness.THROTTLE_SECONDS / 10


async def test_fairness_network_is_overdrawn_for_one_iteration_only() -> None:
    queue = fairness.FairQueue()
    queue.joined("a")
    assert not queue.shared
    queue.joined("b")
    assert queue.shared
    queue.spend("a", fairness.DIRECT_SECONDS / 2)
    queue.spend("b", fairness.DIRECT_SECONDS / 2)
    assert not queue.overdrawn
    queue.spend("a", fairness.DIRECT_SECONDS / 2)
    assert queue.overdrawn == {"a"}
    await asyncio.sleep(0)
    assert not queue.overdrawn
    queue.departed("b")
    assert not queue.shared


@LOOPS
def test_fairness_client_behind_many_connects_is_accepted_soon(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """uvloop accepted one connection per iteration: behind 480 busy ones, whose requests come first each time, one waited 9 s."""
    iterations = 0

    async def work() -> None:
        nonlocal iterations
        async with asyncio.timeout(DEADLINE_SECONDS), pair() as p, contextlib.AsyncExitStack() as stack:
            for _ in range(64):
                stack.enter_context(socket.create_connection((p.host, p.port)))
            while len(p.server.connections) < 64:
                iterations += 1
                await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(work())
    assert iterations <= 64 / ACCEPTED_AT_ONCE + 4
