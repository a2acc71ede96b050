"""saturnmq.sync: listeners with blocking handlers, and a run that ends by Ctrl-C, signals or `stop`."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

import saturnmq
from saturnmq import Ack, ConfigError, sync
from saturnmq.testing import SyncEmbeddedBroker


@dataclass
class Order:
    number: int


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with SyncEmbeddedBroker() as server:
        yield server.url


@pytest.fixture(autouse=True)
def _python_signals() -> Iterator[None]:
    """Shells start background processes with SIGINT ignored."""
    found = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, found)


def fill(client: sync.Client, topic: str, *bodies: bytes) -> saturnmq.MessageQueue:
    """Send messages to a new topic with one queue."""
    client.create_topic(topic, queues=1)
    with client.producer("filler") as out:
        queues = [out.send(topic, body).queue for body in bodies]
    return queues[0]


def until(condition: Callable[[], bool], within_s: float = 30.0) -> bool:
    """Poll in this thread until the condition holds; False after within_s seconds."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)  # poll
    return True


def stopping(client: sync.Client) -> bool:
    """Wait in a handler's thread until the listeners drain."""
    return until(lambda: client._inner._feeders[0]._stopping)


def settled(client: sync.Client, group: str, queue: saturnmq.MessageQueue, count: int) -> bool:
    """Wait until the running listener of the group has settled this many messages of the queue."""
    return until(lambda: client._inner._core.consumers[group].offsets.cached(queue) == count)  # type: ignore[attr-defined]


def interrupt(number: signal.Signals = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.spec("API-31", "API-16", "API-19", "API-08")
def test_sync_listener_settles_by_result_and_by_blocking_calls(url: str) -> None:
    with sync.Client.from_url(url) as client:
        queue = fill(client, "SyncListen", *(b'{"number":%d}' % n for n in range(5)))
        threads: set[str] = set()
        attempts: list[tuple[int, int]] = []
        done = threading.Event()

        @client.listener("SyncListen", group="sl", start="first", retry=saturnmq.Retry(after=timedelta(seconds=1)))
        def handle(message: sync.Message[Order]) -> Ack | None:
            assert isinstance(message, sync.Message) and isinstance(message.value, Order)
            threads.add(threading.current_thread().name)
            attempts.append((message.value.number, message.attempt))
            if message.value.number == 1 and message.attempt == 1:
                return Ack.RETRY
            if message.value.number == 2:
                message.ack()
                raise OSError("too late to matter")
            if message.value.number == 3:
                message.reject("never")
            if (1, 2) in attempts and len(attempts) == 6:
                done.set()
            return None

        assert handle.__name__ == "handle"
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(client.run)
            assert done.wait(30) and settled(client, "sl", queue, 5), attempts
            client.set_concurrency("sl", 3)
            client.stop()
            running.result(30)
        assert sorted(attempts) == [(0, 1), (1, 1), (1, 2), (2, 1), (3, 1), (4, 1)]
        assert all(name.startswith("saturnmq-sl") for name in threads)
    with sync.Client.from_url(url) as client:
        assert client.puller().committed("sl", queue) == 5
        dead = client.puller().queues("%DLQ%sl")
        assert sum(client.puller().max_offset(one) for one in dead) == 1


@pytest.mark.spec("API-31", "CC-03", "SPR-04")
def test_sync_listener_takes_batches_and_answers_requests(url: str) -> None:
    with sync.Client.from_url(url) as client:
        queue = fill(client, "SyncBatch", *(b"%d" % n for n in range(4)))
        client.create_topic("SyncAsk", queues=1)
        batches: list[list[str]] = []
        done = threading.Event()

        @client.listener("SyncBatch", group="sb", start="first", batch=4, concurrency=1)
        def store(batch: sync.Batch[str]) -> None:
            batches.append([message.value for message in batch])
            if batch[0].attempt == 1:
                batch.ack_index = 2
            done.set()

        @client.listener("SyncAsk", group="sa", start="first")
        def answer(message: sync.Message[str]) -> str:
            return message.value * 2

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(client.run)
            with client.producer("asker") as out:
                assert out.request("SyncAsk", b"ab", timeout=20).body == b"abab"
            assert done.wait(30) and settled(client, "sb", queue, 4)
            client.stop()
            running.result(30)
        assert batches[0] == ["0", "1", "2", "3"]
    with sync.Client.from_url(url) as client:
        assert client.puller().committed("sb", queue) == 4
        retries = client.puller().queues("%RETRY%sb")
        assert retries, "the last one was sent back"


@pytest.mark.spec("API-31", "API-27")
def test_ctrl_c_drains_sync_handlers_and_is_raised(url: str) -> None:
    with sync.Client.from_url(url) as client:
        queue = fill(client, "SyncCtrlC", b"x")
        outcome: list[bool] = []

        @client.listener("SyncCtrlC", group="sc", start="first")
        def handle(message: sync.Message[bytes]) -> None:
            interrupt()
            outcome.append(stopping(client))

        with pytest.raises(KeyboardInterrupt):
            client.run()
        assert outcome == [True]
        assert client.puller().committed("sc", queue) == 1, "the handler finished, its offset is stored"
        assert client._inner._feeders == []


@pytest.mark.spec("API-31", "API-27", "API-19")
@pytest.mark.parametrize("handle_signals", [False, True])
def test_second_interrupt_leaves_stuck_sync_handlers(url: str, handle_signals: bool) -> None:
    topic = f"SyncStuck{handle_signals}"
    with sync.Client.from_url(url) as client:
        queue = fill(client, topic, b"x")
        release = threading.Event()

        @client.listener(topic, group=topic, start="first")
        def handle(message: sync.Message[bytes]) -> None:
            interrupt()
            stopping(client)
            interrupt(signal.SIGTERM if handle_signals else signal.SIGINT)
            release.wait(30)

        before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
        try:
            if handle_signals:
                client.run(drain_timeout=100, handle_signals=True)
            else:
                with pytest.raises(KeyboardInterrupt):
                    client.run(drain_timeout=100)
            assert not release.is_set()
            assert client.puller().committed(topic, queue) in (None, 0), "unsettled: it is redelivered"
        finally:
            release.set()
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


@pytest.mark.spec("API-31", "API-27", "SPR-10")
def test_sigterm_ends_a_sync_run_that_handles_signals(url: str) -> None:
    with sync.Client.from_url(url) as client:
        queue = fill(client, "SyncTerm", b"x")

        @client.listener("SyncTerm", group="st", start="first")
        def handle(message: sync.Message[bytes]) -> None:
            interrupt(signal.SIGTERM)
            assert stopping(client)

        client.run(handle_signals=True)
        assert client.puller().committed("st", queue) == 1


def test_sync_run_outside_of_the_main_thread_handles_no_signals(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with sync.Client.from_url(url) as client:
        fill(client, "SyncThread", b"x")
        seen = threading.Event()
        client.listener("SyncThread", group="sth", start="first")(lambda message: seen.set())
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(client.run, handle_signals=True)
            assert seen.wait(30)
            client.stop()
            running.result(30)
    warned = [r.getMessage() for r in caplog.records if r.message.startswith("signal not handled")]
    assert [text.split()[3] for text in warned] == ["signal=SIGTERM", "signal=SIGINT"]


@pytest.mark.spec("API-31")
def test_sync_run_raises_what_the_async_one_raises(url: str) -> None:
    with sync.Client.from_url(url) as client:
        with pytest.raises(ConfigError, match="nothing to run"):
            client.run()
        client.listener("SyncNowhere", group="sn", route_timeout=0.01)(lambda message: None)
        with pytest.raises(saturnmq.RouteNotFound, match="SyncNowhere"):
            client.run()

        async def inside() -> None:
            client.run()

        with pytest.raises(saturnmq.WrongLoop, match=r"await Client\.run\(\.\.\.\)"):
            asyncio.run(inside())
    with pytest.raises(saturnmq.Closed):
        client.run()


@pytest.mark.spec("API-31")
def test_sync_listener_rejects_bad_handlers_and_options() -> None:
    client = sync.Client(name_servers="h:1")

    async def coroutine(message: sync.Message[bytes]) -> None: ...
    def values(order: Order) -> None: ...
    def single(message: sync.Message[Order]) -> None: ...
    def batch(batch: sync.Batch[Order]) -> None: ...
    def several(batch: list[sync.Message[Order]]) -> None: ...
    def loose(message: Any) -> None: ...
    def bare(message: sync.Message) -> None: ...  # type: ignore[type-arg]

    with pytest.raises(ConfigError, match="coroutine is a coroutine function, must be a plain one"):
        client.listener("T", group="g")(coroutine)
    with pytest.raises(ConfigError, match=r"parameter 'order' .* Message\[Order\]"):
        client.listener("T", group="g")(values)
    with pytest.raises(ConfigError, match=r"parameter 'message' is a Message, must be Batch"):
        client.listener("T", group="g", batch=2)(single)
    with pytest.raises(ConfigError, match="must be a function"):
        client.listener("T", group="g")("handler")  # type: ignore[type-var]
    with pytest.raises(ConfigError, match="must take the message as its one positional argument"):
        client.listener("T", group="g")(lambda: None)  # type: ignore[misc]
    with pytest.raises(ConfigError, match="concurrency is 0"):
        client.listener("T", group="g", concurrency=0)(single)
    with pytest.raises(ConfigError, match="did you mean 'prefetch'"):
        client.listener("T", group="g", prefetsch=1)  # type: ignore[call-arg]
    assert client._inner._listeners == [] and client._registrations == []
    for handler in (single, loose, bare):
        assert client.listener("T", group="g")(handler) is handler
    for handler in (batch, several):
        client.listener("T", group="g", batch=2)(handler)
    decoded = [spec.codec.decode(b'{"number":1}') for spec in client._inner._listeners]
    assert decoded == [Order(1), b'{"number":1}', b'{"number":1}', Order(1), Order(1)]


@pytest.mark.spec("API-32")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked_child_runs_the_listeners_that_the_parent_declared(url: str) -> None:
    code = f"""
import os, signal, saturnmq.sync as s
signal.signal(signal.SIGINT, signal.default_int_handler)
client = s.Client.from_url({url!r})
client.start()
client.create_topic("SyncFork", queues=1)
@client.listener("SyncFork", group="sf", start="first")
def handle(message: s.Message[str]) -> None:
    print(message.value, flush=True)
    os.kill(os.getpid(), signal.SIGINT)
with client.producer("p") as out:
    out.send("SyncFork", b"hello")
if os.fork() == 0:
    try:
        client.run()
    except KeyboardInterrupt:
        os._exit(7)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
