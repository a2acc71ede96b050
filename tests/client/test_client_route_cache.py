"""The cache of routes: what a reader and a sender get from it, from the NameServer, and from the default topic."""

from __future__ import annotations

import asyncio

import pytest

from saturnmq.client.connection.routes import RouteCache
from saturnmq.protocol.bodies import BrokerData, QueueData, TopicRouteData

DEFAULT = "TBW102"


def data(read: int, write: int, perm: int = 6) -> TopicRouteData:
    return TopicRouteData([QueueData("b0", read, write, perm)], [BrokerData("c", "b0", {0: "127.0.0.1:1"})])


READABLE, WRITE_ONLY, READ_ONLY = data(2, 2), data(2, 2, perm=2), data(2, 2, perm=4)


class NameServer:
    """Answers from `routes` and notes what was requested."""

    def __init__(self, routes: dict[str, TopicRouteData]) -> None:
        self.routes = routes
        self.requests: list[str] = []

    async def fetch(self, topic: str, timeout_ms: int) -> TopicRouteData | None:
        self.requests.append(topic)
        assert timeout_ms == 700
        return self.routes.get(topic)

    def cache(self) -> RouteCache:
        return RouteCache(self.fetch, default_topic=DEFAULT, default_queues=1, timeout_ms=700)


@pytest.mark.parametrize(
    ("cached", "answer", "requests", "queues"),
    [
        (None, None, 1, None),
        (None, READABLE, 1, 2),
        (READABLE, None, 0, 2),
        (WRITE_ONLY, READABLE, 1, 2),
        (WRITE_ONLY, None, 1, 0),  # the topic exists, although it has nothing to read now
        (WRITE_ONLY, WRITE_ONLY, 1, 0),
    ],
)
@pytest.mark.loop(real=True)
async def test_route_to_read_is_cached_or_requested(
    cached: TopicRouteData | None, answer: TopicRouteData | None, requests: int, queues: int | None
) -> None:
    """queues: of the route that is returned, None if none is."""
    server = NameServer({"T": cached} if cached else {})
    cache = server.cache()
    if cached:
        await cache.refresh("T")
    server.requests.clear()
    server.routes = {"T": answer} if answer else {}
    route = await cache.for_read("T")
    assert (None if route is None else len(route.read_queues)) == queues
    assert server.requests == ["T"] * requests
    assert cache.topics == ["T"], "polled from now on"


@pytest.mark.loop(real=True)
async def test_route_of_the_default_topic_is_for_sending_only() -> None:
    server = NameServer({DEFAULT: data(8, 8)})
    cache = server.cache()
    route = await cache.for_send("T")
    assert server.requests == ["T", DEFAULT]
    assert route is not None and route.substitute and (len(route.write_queues), len(route.read_queues)) == (1, 1)
    assert await cache.for_send("T") is route, "from the cache"
    assert await cache.for_read("T") is None
    server.routes["T"] = READABLE
    read = await cache.for_read("T")
    assert read is not None and not read.substitute and len(read.read_queues) == 2
    assert cache.cached("T") is read and await cache.for_send("T") is read


@pytest.mark.loop(real=True)
async def test_topic_that_cannot_be_written_is_not_replaced_by_the_default_topic() -> None:
    server = NameServer({"T": READ_ONLY, DEFAULT: data(8, 8)})
    cache = server.cache()
    for _ in range(2):
        route = await cache.for_send("T")
        assert route is not None and not route.substitute and not route.write_queues
    del server.routes["T"]
    kept = await cache.for_send("T")
    assert kept is not None and not kept.substitute, "the NameServer may have restarted"
    assert server.requests == ["T"] * 3


@pytest.mark.loop(real=True)
async def test_changes_are_reported_once_each() -> None:
    server = NameServer({"T": READABLE})
    changes: list[int] = []
    cache = RouteCache(
        server.fetch, default_topic=DEFAULT, default_queues=1, timeout_ms=700,
        on_change=lambda route: changes.append(len(route.read_queues)),
    )  # fmt: skip
    for _ in range(2):
        await cache.refresh("T")
    server.routes["T"] = data(3, 3)
    await cache.poll()
    del server.routes["T"]
    await cache.poll()
    known = cache.cached("T")
    assert changes == [2, 3] and known is not None and len(known.read_queues) == 3
    assert cache.brokers() == {"b0": {0: "127.0.0.1:1"}}
    assert (cache.topics_at("127.0.0.1:1"), cache.topics_at("127.0.0.1:2")) == (["T"], [])


@pytest.mark.loop(real=True)
async def test_concurrent_refreshes_share_one_request() -> None:
    answer = asyncio.Event()
    requests: list[str] = []

    async def fetch(topic: str, timeout_ms: int) -> TopicRouteData | None:
        requests.append(topic)
        await answer.wait()
        return READABLE

    cache = RouteCache(fetch, default_topic=DEFAULT, default_queues=1, timeout_ms=700)
    first, second = (asyncio.create_task(cache.refresh("T")) for _ in range(2))
    other = asyncio.create_task(cache.refresh("U"))
    await asyncio.sleep(0)
    first.cancel()
    answer.set()
    route = await second
    assert route is not None and (await other) is not None and sorted(requests) == ["T", "U"]
    assert first.cancelled()
    await cache.refresh("T")
    assert requests.count("T") == 2, "a later one requests again"
    await cache.close()
