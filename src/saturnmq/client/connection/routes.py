"""Topic routes: decoded from NameServer responses into queues and broker addresses, cached and polled.

Requirements: PR-10..PR-13, PR-35 (spec 01, section 3.2).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from saturnmq.errors import NoNameServer
from saturnmq.protocol.bodies import MessageQueue, QueueData, TopicRouteData
from saturnmq.protocol.codes import MASTER_ID, Perm
from saturnmq.protocol.errors import BodyError, SaturnError
from saturnmq.tasks import cancel

logger = logging.getLogger(__name__)

QUEUES_MAX: Final = 65_536  # of a topic, over all its brokers; each costs about 200 bytes here
ADDRESSES_MAX: Final = 4096  # of the brokers of a topic: a client with a consumer connects to each of them
_QUEUE_COUNTS: Final = ("read_queue_nums", "write_queue_nums")
_COUNT_DIGITS_MAX: Final = 9

Fetch = Callable[[str, int], Awaitable[TopicRouteData | None]]


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The route of one topic. write_queues are on brokers with a known master; read_queues on any with read permission.

    substitute: derived from the default topic's route, because the NameServer has none for this topic yet (PR-13).
    """

    topic: str
    write_queues: tuple[MessageQueue, ...] = ()
    read_queues: tuple[MessageQueue, ...] = ()
    addresses: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    substitute: bool = False

    def master(self, broker_name: str) -> str | None:
        """Address of the master (broker id 0) of this name, None if unknown."""
        return self.addresses.get(broker_name, {}).get(MASTER_ID)


def build_route(topic: str, data: TopicRouteData) -> TopicRoute:
    """Queues ordered by broker name, then id. An order configuration (orderTopicConf) replaces the write queues (PR-12).

    Raises BodyError if the answer claims more than QUEUES_MAX queues, before any of them is created.
    """
    check_route(topic, data)
    addresses = {broker.broker_name: dict(broker.broker_addrs) for broker in data.broker_datas}
    write: list[MessageQueue] = []
    read: list[MessageQueue] = []
    for item in sorted(data.queue_datas, key=lambda queue: queue.broker_name):
        name = item.broker_name
        if item.perm & Perm.READ:
            read += (MessageQueue(topic=topic, broker_name=name, queue_id=n) for n in range(item.read_queue_nums))
        if item.perm & Perm.WRITE and MASTER_ID in addresses.get(name, ()):
            write += (MessageQueue(topic=topic, broker_name=name, queue_id=n) for n in range(item.write_queue_nums))
    if data.order_topic_conf:
        write = _ordered_queues(topic, data.order_topic_conf)
    return TopicRoute(topic, tuple(write), tuple(read), addresses)


def check_route(topic: str, data: TopicRouteData) -> None:
    """Check the number of queues per broker and of the whole topic, and of broker addresses. Raises BodyError."""
    addresses = sum(len(broker.broker_addrs) for broker in data.broker_datas)
    if addresses > ADDRESSES_MAX:
        raise BodyError(
            f"route of topic {topic:.255}: {addresses} broker addresses, at most {ADDRESSES_MAX} are allowed"
        )
    for item in data.queue_datas:
        for kind, count in (("read", item.read_queue_nums), ("write", item.write_queue_nums)):
            if not 0 <= count <= QUEUES_MAX:
                raise BodyError(
                    f"route of topic {topic:.255}: broker {item.broker_name:.255} has {count} {kind} queues, "
                    f"allowed are 0..{QUEUES_MAX}"
                )
    reads, writes = (sum(getattr(item, name) for item in data.queue_datas) for name in _QUEUE_COUNTS)
    if max(reads, writes) > QUEUES_MAX:
        raise BodyError(
            f"route of topic {topic:.255}: {max(reads, writes)} queues on {len(data.queue_datas)} brokers, at most "
            f"{QUEUES_MAX} are allowed"
        )


def _ordered_queues(topic: str, text: str) -> list[MessageQueue]:
    """Queues of `brokerA:4;brokerB:4`; parts that do not parse are skipped. Raises BodyError for too many queues."""
    queues: list[MessageQueue] = []
    for part in text.split(";"):
        name, _, digits = part.strip().rpartition(":")
        if not name or not digits.isdecimal():
            continue
        # Not parsed: a number of thousands of digits takes long.
        count = int(digits) if len(digits) <= _COUNT_DIGITS_MAX else QUEUES_MAX + 1
        if len(queues) + count > QUEUES_MAX:
            raise BodyError(
                f"order configuration of topic {topic:.255}: broker {name:.255} has {digits:.20} queues, the topic "
                f"may have {QUEUES_MAX} in all"
            )
        queues += (MessageQueue(topic=topic, broker_name=name, queue_id=n) for n in range(count))
    return queues


def substitute_route(data: TopicRouteData, queues: int) -> TopicRouteData:
    """The default topic's route with at most `queues` queues on each broker (PR-13)."""

    def shrink(item: QueueData) -> QueueData:
        count = min(queues, item.read_queue_nums)
        return replace(item, read_queue_nums=count, write_queue_nums=count)

    return replace(data, queue_datas=[shrink(item) for item in data.queue_datas])


class RouteCache:
    """Routes by topic. Concurrent refreshes of a topic share one request.

    fetch: requests a route, with a timeout in ms. on_change: called with each route that is new or differs from the cached one.
    """

    def __init__(
        self,
        fetch: Fetch,
        *,
        default_topic: str,
        default_queues: int,
        timeout_ms: int,
        on_change: Callable[[TopicRoute], None] | None = None,
    ) -> None:
        self._fetch = fetch
        self._default_topic = default_topic
        self._default_queues = default_queues
        self._timeout_ms = timeout_ms
        self._on_change = on_change
        self._routes: dict[str, TopicRoute] = {}
        self._in_use: set[str] = set()
        self._pending: dict[tuple[str, bool], asyncio.Task[TopicRoute | None]] = {}

    def cached_for_send(self, topic: str) -> TopicRoute | None:
        """The cached route if it has write queues, else None. On the hot path of every send."""
        route = self._routes.get(topic)
        return route if route is not None and route.write_queues else None

    def cached(self, topic: str) -> TopicRoute | None:
        """The cached route, even without write queues; None if there is none."""
        return self._routes.get(topic)

    def use(self, topic: str) -> None:
        """Include the topic in polling from now on."""
        self._in_use.add(topic)

    @property
    def topics(self) -> list[str]:
        """Topics that are polled, sorted."""
        return sorted(self._in_use)

    def brokers(self) -> dict[str, dict[int, str]]:
        """Addresses of all cached routes by broker name and id; a broker that no route names any more is not included (PR-35)."""
        merged: dict[str, dict[int, str]] = {}
        for route in self._routes.values():
            for name, addresses in route.addresses.items():
                merged.setdefault(name, {}).update(addresses)
        return merged

    def topics_at(self, address: str) -> list[str]:
        """Topics in use whose cached route names a broker at this address, sorted."""
        used_routes = (route for topic, route in self._routes.items() if topic in self._in_use)
        return sorted(r.topic for r in used_routes if any(address in ids.values() for ids in r.addresses.values()))

    async def for_send(self, topic: str) -> TopicRoute | None:
        """The route to send by: cached, requested, or derived from the default topic (spec 01, section 3.2).

        None if the NameServer has neither. Raises NoNameServer if none is reachable and nothing is cached.
        """
        route = self.cached_for_send(topic)
        if route is not None:
            return route
        self.use(topic)
        refreshed = await self.refresh(topic)
        cached = self._routes.get(topic)
        # A real route that is cached counts more than one of the default topic.
        if refreshed is not None or (cached is not None and not cached.substitute):
            return cached
        await self.refresh(topic, substitute=True)
        return self._routes.get(topic)

    async def for_read(self, topic: str) -> TopicRoute | None:
        """The route to read by: cached or requested, None if the NameServer has none and none is cached.

        Never one that `for_send` derived from the default topic: its queues do not exist yet.
        """
        route = self._routes.get(topic)
        if route is not None and route.read_queues and not route.substitute:
            return route
        self.use(topic)
        await self.refresh(topic)
        route = self._routes.get(topic)
        return None if route is None or route.substitute else route

    async def refresh(self, topic: str, *, substitute: bool = False) -> TopicRoute | None:
        """Request the route now and cache it. None if the NameServer has none; a cached route is kept then.

        The request goes on for other callers if one caller is cancelled.
        """
        key = (topic, substitute)
        task = self._pending.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(
                self._request(topic, substitute), name=f"saturnmq route {topic}"
            )
            self._pending[key] = task
            task.add_done_callback(lambda ended_task: self._forget(key, ended_task))
        # One caller's cancellation must not end the request of the others.
        return await asyncio.shield(task)

    def _forget(self, key: tuple[str, bool], task: asyncio.Task[TopicRoute | None]) -> None:
        if self._pending.get(key) is task:
            del self._pending[key]
        if not task.cancelled():
            task.exception()  # marks it as retrieved, also if every caller was cancelled

    async def _request(self, topic: str, substitute: bool) -> TopicRoute | None:
        data = await self._fetch(self._default_topic if substitute else topic, self._timeout_ms)
        if data is None:
            return None
        if substitute:
            data = substitute_route(data, self._default_queues)
        route = build_route(topic, data)
        if substitute:
            route = replace(route, substitute=True)
        self._store(route)
        return route

    def _store(self, route: TopicRoute) -> None:
        """Cache the route and poll its topic from now on, so that callers that only name queues get a new master too."""
        self._in_use.add(route.topic)
        # Without a change no rebalance is triggered.
        if self._routes.get(route.topic) == route:
            return
        self._routes[route.topic] = route
        logger.info(
            "route changed topic=%s write_queues=%d brokers=%s substitute=%s",
            route.topic,
            len(route.write_queues),
            ",".join(sorted(route.addresses)),
            route.substitute,
        )
        if self._on_change is not None:
            self._on_change(route)

    async def poll(self) -> None:
        """Refresh the routes of all topics in use once. A failed request keeps the old route (PR-11)."""
        for topic in self.topics:
            try:
                await self.refresh(topic)
            except NoNameServer as error:
                logger.warning("routes not refreshed error=%s", error)
                return
            except SaturnError as error:
                logger.warning("route not refreshed topic=%s error=%s", topic, error)

    async def close(self) -> None:
        """Cancel pending requests and await them."""
        await cancel(*self._pending.values())
