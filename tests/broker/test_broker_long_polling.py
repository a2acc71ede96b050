"""Parked pulls under attack: what they may cost, and what an honest client beside them gets.

Requirements: LP-01..LP-04, LIM-09, LIM-11, LIM-13, REM-14.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import FrameType
from typing import Any

import pytest
from wire import Wire, wire

from saturnmq.broker.services import long_polling as polling
from saturnmq.broker.services.long_polling import ParkedPull
from saturnmq.net import NetSettings, RemotingClient
from saturnmq.net.fairness import THROTTLE_SECONDS
from saturnmq.protocol.bodies import TopicConfig
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.frames.command import Command, encode_frame
from saturnmq.protocol.frames.decoder import FrameDecoder

MIB = 1024 * 1024


def pull_frame(opaque: int = 1, remark: str | None = None, **changed: object) -> bytes:
    fields: dict[str, object] = {
        "consumerGroup": "G", "topic": "T", "queueId": 0, "queueOffset": 1, "maxMsgNums": 32, "sysFlag": 6, "commitOffset": 0,
        "suspendTimeoutMillis": 60_000, "subscription": "*", "subVersion": 0, "expressionType": "TAG",
    }  # fmt: skip
    ext = {name: str(value) for name, value in (fields | changed).items()}
    return encode_frame(Command(RequestCode.PULL_MESSAGE, opaque=opaque, remark=remark, ext=ext))


@asynccontextmanager
async def peer(w: Wire, receive_bytes: int = 0) -> AsyncIterator[socket.socket]:
    """A plain socket to the broker. receive_bytes: its receive buffer, if not the system's."""
    host, _, port = w.server.broker_address.rpartition(":")
    sock = socket.socket()
    try:
        if receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        yield sock
    finally:
        sock.close()


async def park(w: Wire, sock: socket.socket, frames: list[bytes]) -> None:
    """Send pulls and wait until all of them are parked."""
    wanted = w.broker.long_polling.count + len(frames)
    await asyncio.get_running_loop().sock_sendall(sock, b"".join(frames))
    await until(lambda: w.broker.long_polling.count == wanted)


async def until(reached: Callable[[], bool]) -> None:
    while not reached():
        await asyncio.sleep(0.001)  # poll


async def answers(sock: socket.socket, count: int) -> list[Command]:
    decoder, found = FrameDecoder(), list[Command]()
    while len(found) < count:
        data = await asyncio.get_running_loop().sock_recv(sock, 65_536)
        assert data, "closed"
        found += decoder.feed(data)
    return found


# ---- memory of parked pulls


def characters(request: Command) -> int:
    """What a request keeps in memory, in characters and bytes."""
    return sum(len(part or "") for part in (request.body, request.remark, *request.ext.values()))


@pytest.mark.parametrize(
    "hidden", [{"remark": "\U0001f600" + "x" * 200_000}, {"commitOffset": "1" * 200_000}, {"other": "x" * 200_000}]
)
async def test_parked_pull_keeps_only_what_is_counted(hidden: dict[str, str]) -> None:
    """A remark of 230 KB, or a field that nothing reads, stayed in memory for a minute: 40 GB from one address."""
    async with wire() as w, peer(w) as sock:
        await w.send()
        await park(w, sock, [pull_frame(n, **hidden) for n in range(8)])
        kept = [characters(parked.request) for parked in w.broker.long_polling.parked()]
        assert len(kept) == 8 and max(kept) < 1000, kept
        assert (await w.send()).code == 0
        assert len(await answers(sock, 8)) == 8


# ---- one message for many pulls of a peer that does not read


@pytest.mark.spec("LIM-11", "LP-04")
async def test_woken_pulls_wait_while_their_peer_does_not_read() -> None:
    """300 parked pulls and one message of 1 MB used to take 300 MB, and the limits allowed 40 GB from one socket."""
    async with wire() as w, peer(w, receive_bytes=4096) as attacker:
        await w.send(body=b"first")
        await park(w, attacker, [pull_frame(n) for n in range(300)])
        honest = asyncio.create_task(w.pull(offset=1, suspend_ms=20_000))
        await until(lambda: w.broker.long_polling.count == 301)
        tracemalloc.start()
        try:
            assert (await w.send(body=bytes(100_000))).code == 0
            answer = await honest
            assert answer.code == 0 and len(answer.body or b"") > 100_000
            assert [(await w.send(body=b"next")).code for _ in range(20)] == [0] * 20
            await until(lambda: bool(w.broker.long_polling._blocked) and not w.broker.long_polling._ready)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 10 * MIB
        (connection,) = w.broker.long_polling._blocked
        assert connection.unread_bytes < 4 * MIB
        assert w.broker.long_polling.count > 200, "they still count, so that the peer cannot park as many again"

        got = await answers(attacker, 300)  # and are answered when the peer reads
        assert {(one.code, len(one.body or b"") > 100_000) for one in got} == {(0, True)}
        assert sorted(one.opaque for one in got) == list(range(300))
        assert w.broker.long_polling.count == 0 and not w.broker.long_polling._blocked


async def test_parked_pulls_of_a_closed_connection_leave_the_index(wire: Wire) -> None:
    """Consumers that come and go would otherwise fill the memory, and each message would wake their pulls."""
    await wire.send()
    async with peer(wire) as sock:
        await park(wire, sock, [pull_frame(1), pull_frame(2)])
        assert wire.broker.long_polling._queues
    await until(lambda: wire.broker.long_polling.count == 0)
    assert not wire.broker.long_polling._queues and not wire.broker.long_polling._by_due_tick


@pytest.mark.spec("LIM-11", "HB-06")
async def test_closed_peer_with_unread_responses_leaves_nothing_behind(wire: Wire) -> None:
    await wire.send()
    async with peer(wire, receive_bytes=4096) as attacker:
        await park(wire, attacker, [pull_frame(n) for n in range(50)])
        await wire.send(body=bytes(400_000))
        await until(lambda: bool(wire.broker.long_polling._blocked))
    await until(lambda: wire.broker.long_polling.count == 0)
    left = wire.broker.long_polling
    assert not (
        left._blocked or left._ready or left._by_group or left._count_by_address or left._queues or left._by_due_tick
    )
    assert left._memory_shares.total == 0


@pytest.mark.spec("LP-03", "LIM-11")
async def test_ready_pulls_are_answered_in_slices_and_in_turn() -> None:
    """A connection with 2,000 pulls on a queue must not delay the one pull of another, nor a send."""
    async with wire() as w, peer(w) as many, peer(w) as one:
        await w.send(queue=0)
        order: list[tuple[int, int]] = []  # event-loop iteration and opaque of each answer
        inner, iteration = w.broker.long_polling._resume, 0

        def resume(parked: ParkedPull) -> None:
            order.append((iteration, parked.request.opaque))
            inner(parked)

        def count() -> None:
            nonlocal iteration
            iteration += 1
            asyncio.get_running_loop().call_soon(count)

        await park(w, many, [pull_frame(n, maxMsgNums=1) for n in range(2000)])
        await park(w, one, [pull_frame(9999, maxMsgNums=1)])
        w.broker.long_polling._resume = resume
        count()
        assert (await w.send(body=bytes(50_000))).code == 0
        reading = asyncio.create_task(answers(many, 2000))
        assert (await answers(one, 1))[0].opaque == 9999
        await reading
        assert [opaque for _, opaque in order].index(9999) == 1, "second in turn"
        per_iteration = max(sum(1 for at, _ in order if at == n) for n in {at for at, _ in order})
        assert per_iteration * 50_000 <= polling.SLICE_BYTES + 100_000


# ---- many pulls that nothing wakes


class Calls:
    """Counts calls of Python functions."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, _frame: FrameType, event: str, _argument: Any) -> None:
        self.count += event == "call"


async def calls_of_sends(w: Wire, sends: int) -> int:
    """Calls for so many sends to queue 0, client included."""
    calls = Calls()
    sys.setprofile(calls)
    try:
        for _ in range(sends):
            assert (await w.send(properties={"TAGS": "known"})).code == 0
    finally:
        sys.setprofile(None)
    return calls.count


@pytest.mark.spec("LP-03", "LIM-13")
async def test_pulls_with_other_tags_cost_a_send_nothing() -> None:
    """30,000 parked pulls with an unknown tag used to reduce 6,027 sends per second to 296."""
    async with wire(pull_queue_max=100_000, parked_per_queue=30_000, parked_per_group=30_000) as w:
        await w.send()
        honest_before = await calls_of_sends(w, 100)
        async with peer(w) as a, peer(w) as b, peer(w) as c:
            for sock in (a, b, c):
                frames = [pull_frame(n, queueOffset=101, subscription=f"unknown-{n % 500}") for n in range(10_000)]
                await park(w, sock, frames)
            assert w.broker.long_polling.count == 30_000
            honest_during = min([await calls_of_sends(w, 100) for _ in range(3)])
            assert honest_during * 0.8 <= honest_before, "sends keep 80 % of their rate"
            assert w.broker.long_polling.count == 30_000
            queue = w.broker.long_polling._queues["T", 0]
            assert len(queue.by_code) == 500 and not queue.by_filter


@pytest.mark.spec("LP-03", "LIM-13")
async def test_each_filter_is_evaluated_once_per_message() -> None:
    async with wire(short_polling_ms=1) as w:
        await w.send()
        words = [f"tag-{n}" for n in range(polling.TAGS_CODES_MAX + 1)]
        async with peer(w) as sock:
            same = "||".join(words)
            await park(w, sock, [pull_frame(n, subscription=same) for n in range(100)])
            queue = w.broker.long_polling._queues["T", 0]
            assert len(queue.by_filter) == 1
            different = ["||".join([f"x{n}", *words]) for n in range(polling.FILTERS_MAX)]
            frames = [pull_frame(1000 + n, subscription=text) for n, text in enumerate(different)]
            await asyncio.get_running_loop().sock_sendall(sock, b"".join(frames))
            await until(lambda: w.broker.rejections.counts.get("parked_pulls") == 1)
            assert len(queue.by_filter) == polling.FILTERS_MAX
            delayed = await answers(sock, 1)
            assert {one.code for one in delayed} == {ResponseCode.PULL_NOT_FOUND}
            await w.send(properties={"TAGS": "tag-7"})
            await answers(sock, 100 + polling.FILTERS_MAX - 1)
            assert w.broker.long_polling.count == 0


@pytest.mark.spec("LP-03", "FIL-02")
async def test_pull_with_several_tags_is_woken_by_each(wire: Wire) -> None:
    await wire.send()
    for number, tag in enumerate(("a", "b")):
        waiting = asyncio.create_task(wire.pull(offset=1 + number * 2, suspend_ms=20_000, subscription="a || b"))
        await until(lambda: wire.broker.long_polling.count == 1)
        await wire.send(properties={"TAGS": "other"})
        assert wire.broker.long_polling.count == 1
        await wire.send(properties={"TAGS": tag})
        assert (await waiting).code == 0
        assert not wire.broker.long_polling._queues, "its other tag waits no longer"


async def test_pulls_of_a_queue_that_vanishes_are_answered_and_others_wait() -> None:
    """A topic gets fewer queues: pulls of the queue that is not there any more must not wait out their time."""
    async with wire() as w, peer(w) as sock:
        polling_service = w.broker.long_polling
        for name in ("T", "Other"):
            w.broker.topics.set(TopicConfig(name, 2, 2))
            for queue in (0, 1):
                await w.send(topic=name, queue=queue)
        await park(w, sock, [pull_frame(3, queueId=1), pull_frame(4, topic="Other")])
        w.broker.topics.set(TopicConfig("T", 1, 1))
        (answer,) = await answers(sock, 1)
        assert (answer.opaque, answer.code) == (3, ResponseCode.SYSTEM_ERROR) and "queueId[1] is illegal" in str(
            answer.remark
        )
        assert polling_service.count == 1 and polling_service._queue_ids_by_topic == {"Other": {0}}
        w.broker.topics.delete("Other")
        (answer,) = await answers(sock, 1)
        assert (answer.opaque, answer.code) == (4, ResponseCode.TOPIC_NOT_EXIST)
        assert polling_service._queue_ids_by_topic == {}


# ---- limits


@pytest.mark.spec("LIM-13", "REM-14")
@pytest.mark.parametrize(
    ("limit", "name", "other"),
    [
        ("parked_per_queue", "parkedPullsMaxPerQueue=2", {"queueId": 1, "queueOffset": 0}),
        ("parked_per_group", "parkedPullsMaxPerGroup=2", {"consumerGroup": "H"}),
        ("parked_per_address", "parkedPullsMaxPerAddress=2", None),
        ("pull_queue_max", "pullThreadPoolQueueCapacity=2", None),
    ],
)
async def test_pull_over_a_limit_is_delayed(
    caplog: pytest.LogCaptureFixture, limit: str, name: str, other: dict[str, object] | None
) -> None:
    """It used to be answered at once, and clients repeat it at once."""
    async with wire(**({"short_polling_ms": 1000, "pull_queue_max": 100} | {limit: 2})) as w:
        await w.send()
        async with peer(w) as a, peer(w) as b:
            await park(w, a, [pull_frame(1)])
            await park(w, b, [pull_frame(2)])
            loop = asyncio.get_running_loop()
            began = loop.time()
            await loop.sock_sendall(b, pull_frame(3))
            await until(lambda: w.broker.rejections.counts.get("parked_pulls") == 1)
            (connection,) = [c for c in w.broker.connections if c.in_flight]
            assert connection.in_flight == 1, "it counts as in flight, so a connection has few of them"
            assert w.broker.long_polling.count == 2
            if other is not None:
                await park(w, b, [pull_frame(4, **other)])
            (late,) = await answers(b, 1)
            assert (late.opaque, late.code) == (3, ResponseCode.PULL_NOT_FOUND)
            assert loop.time() - began >= 1.0
            assert connection.in_flight == 0
            await w.send()  # a message wakes the parked ones
            assert [(await answers(sock, 1))[0].opaque for sock in (a, b)] == [1, 2]
    assert f"detail=pull delayed: {name} pulls are parked" in caplog.text


@pytest.mark.spec("LIM-13")
async def test_delayed_pull_returns_what_has_arrived_meanwhile() -> None:
    async with wire(parked_per_queue=1, short_polling_ms=1) as w:
        await w.send()
        parked = asyncio.create_task(w.pull(offset=1, suspend_ms=20_000))
        await until(lambda: w.broker.long_polling.count == 1)
        delayed = asyncio.create_task(w.pull(offset=1, suspend_ms=20_000))
        await until(lambda: w.broker.rejections.counts.get("parked_pulls") == 1)
        await w.send(body=b"new")
        assert [(await pull).code for pull in (parked, delayed)] == [0, 0]


async def delay(w: Wire, sock: socket.socket, count: int, of: int = 0) -> None:
    """Send pulls and wait until all of them are delayed. of: number of those sent together, on several connections."""
    rejected = w.broker.rejections.counts.get("parked_pulls", 0) + (of or count)
    await asyncio.get_running_loop().sock_sendall(sock, b"".join(pull_frame(n) for n in range(count)))
    await until(lambda: w.broker.rejections.counts.get("parked_pulls") == rejected)


async def test_delayed_pulls_are_handled_at_a_bounded_rate_beside_sends() -> None:
    """20,000 of them took most of the event loop for seconds when they arrived: a sender without a pause fell to a quarter."""
    async with wire(parked_per_queue=1) as w, peer(w) as keeper, peer(w) as a, peer(w) as b, peer(w) as c:
        await w.send()
        await park(w, keeper, [pull_frame(1)])
        rejected, loop = w.broker.rejections.counts, asyncio.get_running_loop()
        began = loop.time()
        for sock in (a, b, c):
            await loop.sock_sendall(sock, b"".join(pull_frame(n) for n in range(200)))
        for _ in range(100):
            assert (await w.send(queue=1)).code == 0
        allowed = 3 + (loop.time() - began) / THROTTLE_SECONDS
        assert 3 <= rejected["parked_pulls"] <= allowed, "each connection may have one before it is throttled"
        await until(lambda: rejected["parked_pulls"] == 600)
        assert loop.time() - began >= 597 * THROTTLE_SECONDS


async def test_request_after_a_delayed_pull_is_handled_soon() -> None:
    """A client may have its pulls and all other requests on one connection."""
    async with wire(parked_per_queue=1) as w, peer(w) as keeper:
        await w.send()
        await park(w, keeper, [pull_frame(1)])
        began, delayed = asyncio.get_running_loop().time(), asyncio.create_task(w.pull(offset=1, suspend_ms=20_000))
        await until(lambda: w.broker.rejections.counts.get("parked_pulls") == 1)
        assert (await w.send(queue=1)).code == 0
        assert asyncio.get_running_loop().time() - began < 0.1
        assert (await delayed).code == ResponseCode.PULL_NOT_FOUND


async def test_tick_answers_a_bounded_number_of_delayed_pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    """20,000 pulls over a limit, each repeated when answered, were answered in every second: a sender fell to a tenth."""
    ready: list[int] = []  # pulls that each tick has made ready
    tick = polling.LongPolling._tick

    def counted(service: polling.LongPolling) -> None:
        before = service.ready
        tick(service)
        ready.append(service.ready - before)

    async def repeat(sock: socket.socket, least: int) -> None:
        loop, decoder, answered = asyncio.get_running_loop(), FrameDecoder(), 0
        while answered < least:
            count = len(decoder.feed(await loop.sock_recv(sock, 65_536)))
            await loop.sock_sendall(sock, pull_frame() * count)
            answered += count

    monkeypatch.setattr(polling.LongPolling, "_tick", counted)

    async with wire(parked_per_queue=1) as w, peer(w) as keeper, peer(w) as a, peer(w) as b, peer(w) as c:
        await w.send()
        await park(w, keeper, [pull_frame(1)])
        for sock in (a, b, c):
            await delay(w, sock, 200)
        del ready[:]
        await asyncio.gather(*(repeat(sock, 400) for sock in (a, b, c)))
    assert sum(ready) >= 1200
    assert max(ready) <= 250, "at most 500 a second"


async def test_one_delayed_pull_does_not_wait_for_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "DELAYED_PER_TICK", 10)
    async with wire(parked_per_queue=1) as w, peer(w) as keeper, peer(w) as many, peer(w) as one:
        await w.send()
        await park(w, keeper, [pull_frame(1)])
        answered: list[int] = []  # local ports of the peers
        inner = w.broker.long_polling._resume

        def resume(parked: ParkedPull) -> None:
            answered.append(int(parked.connection.remote_address.rpartition(":")[2]))
            inner(parked)

        w.broker.long_polling._resume = resume
        await delay(w, many, 200)
        await delay(w, one, 1)
        await asyncio.gather(answers(many, 200), answers(one, 1))
        before = answered.index(one.getsockname()[1])
        assert before <= 100, "answered in its turn, not after the 200 that were sent before it"


async def test_delayed_pulls_end_when_their_connection_closes() -> None:
    """They stayed in memory, in flight, until their delay was over."""
    async with wire(parked_per_queue=1, short_polling_ms=3_600_000) as w, peer(w) as keeper:
        await w.send()
        await park(w, keeper, [pull_frame(1)])
        async with peer(w) as closing:
            await delay(w, closing, 10)
            assert w.broker._server.later_count == 10
        await until(lambda: w.broker._server.later_count == 0)


@pytest.mark.spec("LIM-13")
async def test_delayed_pulls_of_closed_connection_and_of_stop_are_released() -> None:
    async with wire(parked_per_queue=1, short_polling_ms=1) as w:
        await w.send()
        async with peer(w) as keeper:
            await park(w, keeper, [pull_frame(1)])
            async with peer(w) as left:
                await asyncio.get_running_loop().sock_sendall(left, pull_frame(2))
                await until(lambda: w.broker.rejections.counts.get("parked_pulls") == 1)
            await until(lambda: w.broker._server.later_count == 0)
            other = RemotingClient(settings=NetSettings())
            ext = {"consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "1", "maxMsgNums": "1", "sysFlag": "6",
                   "suspendTimeoutMillis": "60000", "subscription": "*"}  # fmt: skip
            waiting = asyncio.create_task(
                other.invoke(w.server.broker_address, Command(RequestCode.PULL_MESSAGE, ext=ext), 20_000)
            )
            await until(lambda: w.broker.rejections.counts.get("parked_pulls") == 2)
            w.broker.long_polling.stop()
            assert (await waiting).code == ResponseCode.PULL_NOT_FOUND
            assert w.broker._server.later_count == 0 and w.broker.long_polling.count == 0
            await other.close()


@pytest.mark.spec("LIM-13")
async def test_memory_of_parked_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "PARKED_BYTES_MAX", 50_000)
    async with wire(short_polling_ms=1) as w:
        await w.send()
        async with peer(w) as sock:
            await park(w, sock, [pull_frame(1, subscription="a" * 30_000)])
            await asyncio.get_running_loop().sock_sendall(sock, pull_frame(2, subscription="b" * 30_000))
            await until(lambda: w.broker.rejections.counts.get("parked_pulls") == 1)
            await park(w, sock, [pull_frame(3)])
            assert (await answers(sock, 1))[0].opaque == 2


@pytest.mark.spec("LIM-13")
@pytest.mark.parametrize(
    ("subscription", "least"),
    [("\U0001f600" + "x" * 10_000, 40_000), ("||".join(f"t{n}" for n in range(60)), 60 * polling.TAGS_CODE_BYTES)],
)
async def test_parked_pull_counts_the_memory_it_takes(wire: Wire, subscription: str, least: int) -> None:
    """Counted in characters, pulls with 60 tags, or with a character beyond the first 65,536, took four to six times the limit."""
    await wire.send()
    async with peer(wire) as sock:
        await park(wire, sock, [pull_frame(1, subscription=subscription)])
        (parked,) = wire.broker.long_polling.parked()
        assert least < parked.memory_bytes < least + 10_000
        assert wire.broker.long_polling._memory_shares.total == parked.memory_bytes


@pytest.mark.spec("LP-01")
async def test_wait_of_a_parked_pull_is_at_most_60_s(wire: Wire) -> None:
    await wire.send()
    async with peer(wire) as sock:
        now = asyncio.get_running_loop().time()
        await park(wire, sock, [pull_frame(1, suspendTimeoutMillis=2**62)])
        (parked,) = wire.broker.long_polling.parked()
        assert now + 59 < parked.deadline <= asyncio.get_running_loop().time() + 60
