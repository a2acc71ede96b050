"""How many handlers of a listener run at a time: in threads too, and changed while the listener runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from saturnmq import Client, ConfigError, Message
from saturnmq.client.consumer import running_info
from waiting import until

Run = Callable[[Callable[[], Any]], Any]


def messages(c: Any, count: int) -> None:
    """Topic T with one queue."""
    for topic in ("T", "%RETRY%g"):
        c.add(topic, c.route(read=1, write=1))
    for n in range(count):
        c.broker.put("T", 0, b"%d" % n)


def workers() -> int:
    """How many workers of listeners there are."""
    return sum(task.get_name().startswith("saturnmq listener") for task in asyncio.all_tasks())


class Handlers:
    """Handlers that wait until `finish` lets some of them end."""

    def __init__(self) -> None:
        self.busy = self.done = 0
        self._may_end = asyncio.Semaphore(0)

    async def handle(self, message: Message[bytes]) -> None:
        self.busy += 1
        try:
            await self._may_end.acquire()
        finally:
            self.busy -= 1
        self.done += 1

    async def finish(self, count: int) -> None:
        """Let this many handlers end, and wait for it."""
        done = self.done + count
        for _ in range(count):
            self._may_end.release()
        await until(lambda: self.done == done)
        for _ in range(10):
            await asyncio.sleep(0)  # more handlers would begin now


@pytest.mark.spec("CA-02")
async def test_concurrency_of_a_running_listener_rises_and_falls(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        messages(c, 40)
        handlers = Handlers()
        client.listener("T", group="g", start="first", concurrency=5)(handlers.handle)
        client.set_concurrency("g", 2)
        running = asyncio.ensure_future(client.run())
        await until(lambda: handlers.busy == 2)
        await handlers.finish(3)
        assert handlers.busy == 2, "changed before the start"
        client.set_concurrency("g", 6)
        await until(lambda: handlers.busy == 6)
        properties = running_info.running_info(client._core.consumers["g"], with_stacks=False).properties  # type: ignore[arg-type]
        assert properties["PROP_THREADPOOL_CORE_SIZE"] == "6"
        client.set_concurrency("g", 3)
        assert handlers.busy == 6, "running handlers are not cancelled"
        await handlers.finish(3)
        assert handlers.busy == 3
        await handlers.finish(4)
        assert handlers.busy == 3
        client.set_concurrency("g", 1)
        client.set_concurrency("g", 4)  # before the surplus has ended
        await until(lambda: handlers.busy == 4)
        await handlers.finish(40 - handlers.done)
        assert handlers.busy == 0 and handlers.done == 40
        client.set_concurrency("g", 2)  # idle workers end at once
        await until(lambda: workers() == 2, why=workers)
        assert not running.done()
        for n in range(4):
            c.broker.put("T", 0, b"%d" % n)
        await until(lambda: handlers.busy == 2)
        await handlers.finish(4)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert c.broker.offsets["g", "T", 0] == 44 and not c.broker.sent_back


@pytest.mark.spec("CA-07")
async def test_each_group_has_a_concurrency_of_its_own(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        messages(c, 10)
        c.add("%RETRY%h", c.route(read=1, write=1))
        first, second = Handlers(), Handlers()
        client.listener("T", group="g", start="first", concurrency=2)(first.handle)
        client.listener("T", group="h", start="first", concurrency=3)(second.handle)
        running = asyncio.ensure_future(client.run())
        await until(lambda: (first.busy, second.busy) == (2, 3), why=lambda: (first.busy, second.busy))
        await first.finish(4)
        assert (first.busy, second.busy) == (2, 3), "the other group neither gives nor takes"
        await second.finish(10)
        assert (first.busy, second.busy) == (2, 0)
        await first.finish(6)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert c.broker.offsets["g", "T", 0] == c.broker.offsets["h", "T", 0] == 10


@pytest.mark.spec("CA-02")
async def test_raised_concurrency_raises_the_derived_prefetch(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        messages(c, 600)
        handlers = Handlers()
        client.listener("T", group="g", start="first", concurrency=1)(handlers.handle)
        running = asyncio.ensure_future(client.run())
        await until(lambda: handlers.busy == 1)
        consumer: Any = client._core.consumers["g"]
        await until(lambda: len(consumer._inbox) == 255)  # pulling pauses
        client.set_concurrency("g", 600)
        await until(lambda: handlers.busy == 600)
        await handlers.finish(600)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert c.broker.offsets["g", "T", 0] == 600


@pytest.mark.spec("CA-02", "API-16")
async def test_plain_handlers_run_in_as_many_threads_as_configured(cluster: Any) -> None:
    """More than the default executor of asyncio has on a small machine."""
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        messages(c, 80)
        together = threading.Barrier(40)
        met: list[str] = []

        @client.listener("T", group="g", start="first", concurrency=40)
        def handle(message: Message[bytes]) -> None:
            together.wait(20)
            met.append(threading.current_thread().name)

        running = asyncio.ensure_future(client.run())
        await until(lambda: len(met) == 80)
        assert all(name.startswith("saturnmq-g") for name in met)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert c.broker.offsets["g", "T", 0] == 80 and not c.broker.sent_back


@pytest.mark.spec("CA-02")
async def test_threads_of_plain_handlers_follow_the_concurrency(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        messages(c, 12)
        together, done = threading.Barrier(12), []

        @client.listener("T", group="g", start="first", concurrency=2)
        def handle(message: Message[bytes]) -> None:
            together.wait(20)
            done.append(message.offset)

        running = asyncio.ensure_future(client.run())
        await until(lambda: together.n_waiting == 2)
        client.set_concurrency("g", 12)
        await until(lambda: len(done) == 12, why=lambda: together.n_waiting)
        client.set_concurrency("g", 1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert c.broker.offsets["g", "T", 0] == 12 and not c.broker.sent_back


@pytest.mark.spec("CA-06")
def test_concurrency_outside_its_range_or_without_listener_is_rejected() -> None:
    client = Client(name_servers="h:1")
    with pytest.raises(ConfigError, match="group 'g' has no listener, this client has: none"):
        client.set_concurrency("g", 1)
    client.listener("T", group="g")(lambda message: None)
    for wrong in (0, 1001, 1.5, True):
        with pytest.raises(ConfigError, match=r"concurrency is .*, must be 1\.\.1000"):
            client.set_concurrency("g", wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="group 'h' has no listener, this client has: g"):
        client.set_concurrency("h", 1)
    client.set_concurrency("g", 1000)
    assert [spec.concurrency for spec in client._listeners] == [1000]


async def test_failed_worker_of_a_raised_concurrency_ends_the_run(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        messages(c, 1)
        handlers = Handlers()
        client.listener("T", group="g", start="first", concurrency=1)(handlers.handle)
        running = asyncio.ensure_future(client.run(drain_timeout=0.01))
        await until(lambda: handlers.busy == 1)
        client.set_concurrency("g", 3)
        await asyncio.sleep(0)
        (pull,) = [task for task in asyncio.all_tasks() if task.get_name() == "saturnmq pull T 0"]
        consumer: Any = client._core.consumers["g"]
        consumer._inbox.close(lambda: consumer._stopped(OSError("no")))
        pull.cancel()
        with pytest.raises(Exception, match="a background task of consumer g died: OSError: no"):
            await running
