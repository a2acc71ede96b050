"""The connection manager of one Client: connections, NameServers, routes, heartbeats and timers.

Core corresponds to MQClientInstance of Apache RocketMQ. It owns every background task of the client, and `stop` cancels and
awaits them all. It lives on the event loop that started it; nothing in it is thread-safe. Producers and consumers register
their groups here; heartbeats report the groups to the brokers.

Requirements: PR-05..PR-08, PR-11, PR-22, PR-34, PR-35, HB-01..HB-03, CA-10, PL-05.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from enum import Enum
from typing import Any, Final, Protocol

from saturnmq.client import hints
from saturnmq.client.connection import forks
from saturnmq.client.connection.access import with_key_file
from saturnmq.client.connection.address_server import FIRST_REFRESH_MS, REFRESH_MS, fetch_addresses
from saturnmq.client.connection.heartbeat import SharedCalls, heartbeat_addresses, heartbeat_body
from saturnmq.client.connection.identity import MessageIds, client_id, local_ip
from saturnmq.client.connection.name_servers import NameServerList
from saturnmq.client.connection.outages import Outages
from saturnmq.client.connection.remote import Remote
from saturnmq.client.connection.replies import Replies
from saturnmq.client.connection.route_suspicion import RouteSuspicion
from saturnmq.client.connection.routes import RouteCache, TopicRoute
from saturnmq.client.connection.timer_limits import TimerLimits
from saturnmq.client.connection.transaction_checks import Checks
from saturnmq.client.connection.url import ClientSettings
from saturnmq.client.selection import FaultTable
from saturnmq.client.tracing import Tracing
from saturnmq.errors import (
    BrokerNotExist,
    ClientError,
    Closed,
    GroupInUse,
    NoNameServer,
    NotStarted,
    RouteNotFound,
    WrongLoop,
)
from saturnmq.net import NO_RESPONSE, Connection, Reply
from saturnmq.net.reconnection import RECONNECT_SECONDS_MAX, chance, reconnect_seconds
from saturnmq.protocol.addresses import plain_address, vip_address
from saturnmq.protocol.bodies import ClusterInfo, ConsumerData, TopicRouteData
from saturnmq.protocol.codes import MASTER_ID, RequestCode, ResponseCode
from saturnmq.protocol.errors import SaturnError, response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.tasks import cancel, one_round

logger = logging.getLogger(__name__)

FIRST_ROUTE_POLL_MS: Final = 10
FIRST_HEARTBEAT_MS: Final = 1_000
HEARTBEAT_RETRY_SECONDS: Final = 1.0  # between heartbeats to a broker that failed; less jitter, at most half
OFFSET_FIRST_MS: Final = 10_000
REPLACED: Final = "no response, and the route names another broker"


class ClientState(Enum):
    """Lifecycle of a client, producer or consumer; the values are the state names of Apache RocketMQ's clients (PR-05)."""

    NEW = "CREATE_JUST"
    STARTING = "START_FAILED"
    RUNNING = "RUNNING"
    STOPPED = "SHUTDOWN_ALREADY"


class RegisteredConsumer(Protocol):
    """The interface of a consumer towards the connection manager."""

    group: str

    def heartbeat_data(self) -> ConsumerData | None: ...
    def stop(self) -> Awaitable[None]: ...
    def wake_rebalance(self) -> None: ...
    def persist_offsets(self) -> Awaitable[None]: ...
    def handle(self, command: Command) -> Reply: ...
    def fail(self, cause: BaseException) -> None: ...


def check_state(role: str, state: ClientState) -> None:
    """Raise NotStarted or Closed, with the state in the text, unless the state is RUNNING."""
    if state is ClientState.RUNNING:
        return
    text = f"The {role} service state not OK, {state.value}."
    if state is ClientState.STOPPED:
        raise Closed(text, hint=f"It was stopped and cannot be started again: make a new {role}.")
    raise NotStarted(text, hint=f"Use `async with`, or `await {role}.start()` first.")


class Core:
    """The connection manager; one per Client, and one more per client for its message trace."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self.state = ClientState.NEW
        self.client_id = ""
        self.ids: MessageIds
        self.remote: Remote
        self.name_servers: NameServerList
        self.routes: RouteCache
        self._suspicion: RouteSuspicion | None = None
        self.faults = FaultTable(avoid_ms_max=settings.avoid_ms_max, start=random.randrange(1000))
        self.broker_versions: dict[str, int] = {}
        self._heartbeats = SharedCalls(lambda name, work: self.spawn(name, work, vital=False), self._send_heartbeat)
        self.timer_limits = TimerLimits(
            self._heartbeats.call,
            lambda name, work: self.spawn(name, work, vital=False),
        )
        self.producers: set[str] = set()
        self.consumers: dict[str, RegisteredConsumer] = {}
        self.checks = Checks(
            settings.namespace,
            lambda name, work: self.spawn(name, work, vital=False),
            lambda connection, command: self.remote.answer_oneway(connection, command),
        )
        self.replies = Replies()
        self.outages = Outages()
        self.tracing: Tracing | None = None  # set by Client; None in the Core of the trace itself, which is not traced
        self.failure: BaseException | None = None
        self.route_watchers: set[asyncio.Event] = set()  # set when any route changes, and when the client stops
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._repeating: set[str] = set()  # addresses whose heartbeat is repeated until they respond
        self._reconnecting = False  # to a NameServer
        self._stopping: asyncio.Task[None] | None = None

    # lifecycle

    async def start(self) -> None:
        """Create the connection pool and start the timers. Waits for no server, except a configured address server."""
        settings = self.settings = await with_key_file(self.settings)
        self._loop = asyncio.get_running_loop()
        addresses = settings.name_servers
        if not addresses and settings.address_server:
            addresses = await fetch_addresses(settings.address_server, settings.unit)
        # The local address from which the NameServer is reached becomes part of the client id.
        ip = local_ip(addresses[0])
        self.client_id = client_id(ip, settings.instance, settings.unit)
        self.ids = MessageIds(ip)
        self.remote = Remote(settings, self._on_request, self._suspect, self._on_closed)
        self.name_servers = NameServerList(addresses, self.remote)
        self.routes = RouteCache(
            self._fetch_route,
            default_topic=settings.create_topic_key,
            default_queues=settings.default_queues,
            timeout_ms=settings.api_timeout_ms,
            on_change=self._on_route_change,
        )
        self._suspicion = RouteSuspicion(self.routes, self.spawn, self._replaced)
        self.state = ClientState.RUNNING
        # A configured list is not refreshed.
        if not settings.name_servers:
            self._every("name servers", FIRST_REFRESH_MS, REFRESH_MS, self._refresh_name_servers)
        self._every("routes", FIRST_ROUTE_POLL_MS, settings.route_poll_ms, self.routes.poll)
        self._every("heartbeat", FIRST_HEARTBEAT_MS, settings.heartbeat_ms, self.heartbeat)
        offset_ms = settings.persist_offsets_ms
        self._every("offsets", min(OFFSET_FIRST_MS, 2 * offset_ms), offset_ms, self._persist_offsets)
        self._every("rebalance", settings.rebalance_ms, settings.rebalance_ms, self._rebalance)

    async def stop(self) -> None:
        """Stop consumers, unregister producers, cancel and await every task, close every connection. Idempotent.

        Concurrent calls wait for the same shutdown, which goes on if a caller is cancelled.
        """
        if self.state is not ClientState.RUNNING:
            self.state = ClientState.STOPPED
            if self._stopping is not None:
                await asyncio.shield(self._stopping)
            return
        if self.forked:
            self.state = ClientState.STOPPED  # its tasks and connections are the parent's
            return
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._stop(), name="saturnmq stop client")
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        if self.tracing is not None:
            self.tracing.begin_shutdown()
        # Stopping removes them from the table.
        for consumer in list(self.consumers.values()):
            await consumer.stop()
        for group in list(self.producers):
            await self.remove_producer(group)
        if self.tracing is not None:
            await self.tracing.close()
        self.state = ClientState.STOPPED
        # Readers that wait for a route change end with Closed.
        for watcher in self.route_watchers:
            watcher.set()
        self.replies.close()
        try:
            await cancel(*self._tasks)
        finally:
            await self.routes.close()
            await self.remote.close()

    @property
    def forked(self) -> bool:
        """Whether this process is a forked child of the one that started the client (API-32)."""
        return self.remote.generation != forks.generation

    def check_running(self, role: str = "client") -> None:
        """Raise unless the client is running, healthy, and used on its own event loop and in its own process.

        Raises NotStarted, Closed, ForkedClient, WrongLoop, or ClientError if a vital task died (API-04, API-05, API-26, API-32).
        """
        if self.state is not ClientState.RUNNING:
            check_state(role, self.state)
        if self.remote.generation != forks.generation:
            forks.check(self.remote.generation)
        if asyncio.get_running_loop() is not self._loop:
            raise WrongLoop(f"this {role} was started on another event loop; use saturnmq.sync across threads")
        if self.failure is not None:
            raise ClientError(f"a background task of the client died: {self.failure}") from self.failure

    # tasks

    def spawn(self, name: str, work: Coroutine[Any, Any, Any], *, vital: bool = True) -> asyncio.Task[Any]:
        """Start a task that `stop` cancels and awaits. If a vital task dies, `check_running` and readers raise."""
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(work, name=f"saturnmq {name}")
        self._tasks.add(task)
        task.add_done_callback(lambda ended_task: self._task_done(ended_task, vital))
        return task

    def _task_done(self, task: asyncio.Task[Any], vital: bool) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("task failed name=%r", task.get_name(), exc_info=error)
            if vital:
                # The first failure counts.
                self.failure = self.failure or error
                for consumer in self.consumers.values():
                    consumer.fail(self.failure)

    def _every(self, name: str, first_ms: int, period_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            await asyncio.sleep(first_ms / 1000)
            while True:
                await one_round(name, work)
                await asyncio.sleep(period_ms / 1000)

        self.spawn(name, run())

    # name servers and routes

    async def _refresh_name_servers(self) -> None:
        url = self.settings.address_server
        if url is not None:
            self.name_servers.update(await fetch_addresses(url, self.settings.unit))

    def _on_closed(self) -> None:
        """If the connection to the chosen NameServer is lost, reconnect in the background."""
        if self.state is not ClientState.RUNNING or self._stopping is not None or self._reconnecting or self.forked:
            return
        chosen = self.name_servers.chosen
        if chosen is not None and not self.remote.is_connected(chosen):
            self._reconnecting = True
            self.spawn("name server reconnection", self._reconnect(), vital=False)

    async def _reconnect(self) -> None:
        """Query the routes as soon as a NameServer answers, and again when its brokers had time to register.

        Jitter keeps the clients of a NameServer that was restarted from returning together.
        """
        try:
            for attempt in itertools.count(1):
                # Before the first attempt too: all clients of a NameServer lose it at the same moment.
                await asyncio.sleep(reconnect_seconds(attempt, chance()))
                topics = self.routes.topics
                try:
                    if topics:
                        await self.routes.refresh(topics[0])
                except NoNameServer:
                    continue
                except SaturnError as error:
                    logger.info("route not refreshed topic=%s error=%s", topics[0], error)
                break
            await self.routes.poll()
        finally:
            self._reconnecting = False
        # The brokers of a restarted NameServer register again within this time.
        await asyncio.sleep(RECONNECT_SECONDS_MAX * (1 + chance()))
        await self.routes.poll()

    async def _fetch_route(self, topic: str, timeout_ms: int) -> TopicRouteData | None:
        """Request the route of a topic from a NameServer; None if it has none (code 17).

        Raises NoNameServer, ResponseError, BodyError.
        """
        command = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": topic, "acceptStandardJsonOnly": "true"})
        answer = await self.name_servers.call(command, timeout_ms)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if answer.code != ResponseCode.SUCCESS:
            chosen = self.name_servers.chosen
            # A broker answers "not supported" to this request: the address is not a NameServer's.
            hint = hints.not_a_name_server(chosen) if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED else None
            raise response_error(answer.code, (answer.remark or "").strip(), broker=chosen, hint=hint)
        return TopicRouteData.decode(answer.body or b"{}")

    def _suspect(self, address: str, unresponsive: bool) -> None:
        """Handle a failed call to a peer, or a response that says that it is not the master.

        Refreshes the routes that name the address, because it may have a successor; forgets the delays that the broker
        supported; and repeats heartbeats until it responds, because a restarted broker does not have our groups.
        """
        if self._suspicion is None or self.state is not ClientState.RUNNING or self._stopping is not None:
            return
        self._suspicion.report(address, unresponsive=unresponsive)
        # A successor may support other limits.
        self.timer_limits.forget(address)
        self.broker_versions.pop(address, None)
        if address not in self._repeating and address in self._heartbeat_addresses():
            self._repeating.add(address)
            self.spawn(f"heartbeat to {address}", self._repeat_heartbeat(address))
        # Routes name the plain address, calls go to the VIP address.
        if self.settings.vip_channel:
            self._suspicion.report(plain_address(address))
            self.timer_limits.forget(plain_address(address))

    def _replaced(self, address: str) -> None:
        """Close the connections to an unresponsive broker that no route names any more, so that pending calls fail at once."""
        self.remote.drop(address, REPLACED)
        if self.settings.vip_channel:
            self.remote.drop(vip_address(address), REPLACED)

    def _on_route_change(self, route: TopicRoute) -> None:
        for watcher in self.route_watchers:
            watcher.set()
        addresses = set(self._heartbeat_addresses())
        self._forget_brokers(addresses)  # one that returns may have restarted, without our groups
        # A new broker must have our consumers before they pull from it, and our producers before it checks transactions.
        if self.consumers or addresses - self.broker_versions.keys():
            self.heartbeat_soon()
        for consumer in self.consumers.values():
            consumer.wake_rebalance()

    async def write_route(self, topic: str) -> TopicRoute:
        """The route to send to a topic. Raises RouteNotFound (10005) with a hint, BrokerNotExist if its brokers have no master."""
        route = await self.routes.for_send(topic)
        if route is None or not route.write_queues:
            leaderless = [] if route is None else [name for name in route.addresses if route.master(name) is None]
            # The topic exists but its broker has no master: creating the topic would not help.
            if leaderless:
                names = ", ".join(sorted(leaderless))
                raise BrokerNotExist(f"topic {topic} exists, but broker[{names}] has no master now", broker=names)
            raise self.route_not_found(topic, absent=await self._absent_brokers())
        return route

    async def read_route(self, topic: str) -> TopicRoute:
        """The route to read a topic. Raises RouteNotFound (10005)."""
        route = await self.routes.for_read(topic)
        if route is None:
            raise self.route_not_found(topic, reading=True, absent=await self._absent_brokers())
        return route

    async def _absent_brokers(self) -> str:
        """Names of brokers without a registered master, which may have a topic that has no route; empty if there is none.

        "none registered" if the NameServer has no broker; empty if it does not answer that query. Raises NoNameServer.
        """
        command = Command(RequestCode.GET_BROKER_CLUSTER_INFO)
        answer = await self.name_servers.call(command, self.settings.api_timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            return ""
        table = ClusterInfo.decode(answer.body or b"{}").broker_addr_table
        masters = {name for name, data in table.items() if MASTER_ID in data.broker_addrs}
        absent = sorted((table.keys() | self.routes.brokers().keys()) - masters)
        return ", ".join(absent) if absent or masters else "none registered"

    def channel_address(self, address: str) -> str:
        """The address for calls to a broker: its own, or that of its VIP channel if the settings say so (PR-31)."""
        return vip_address(address) if self.settings.vip_channel else address

    def route_not_found(self, topic: str, *, reading: bool = False, absent: str = "") -> RouteNotFound:
        """RouteNotFound with the command that creates the topic as hint (PR-10, UX-08), unless absent brokers may have it.

        reading: leave out whether topics are created automatically, because readers do not request the default topic's route.
        """
        text = f"No route info of this topic: {topic}."
        if absent:
            return RouteNotFound(text, broker=absent, hint=hints.topic_of_absent_brokers(absent))
        auto_create = None if reading else self.routes.cached(self.settings.create_topic_key) is not None
        hint = hints.missing_topic(topic, self.name_servers.addresses, auto_create=auto_create)
        return RouteNotFound(text, hint=hint)

    async def master_address(self, topic: str, broker_name: str) -> str:
        """The master's address; if unknown, the route is refreshed once. Raises BrokerNotExist (PR-22)."""
        for attempt in range(2):
            addresses = self._addresses(topic, broker_name)
            if MASTER_ID in addresses:
                return addresses[MASTER_ID]
            if attempt == 0:
                await self.routes.refresh(topic)
        raise BrokerNotExist(f"The broker[{broker_name}] not exist", broker=broker_name)

    async def read_address(self, topic: str, broker_name: str, broker_id: int = 0) -> tuple[str, bool]:
        """(address, whether it is a slave) of the broker to pull from (PL-05).

        Prefers broker_id; if that is a slave id, then the next higher id; then the lowest id of that name. If the name is
        unknown, the route is refreshed once. Raises BrokerNotExist.
        """
        for attempt in range(2):
            addresses = self._addresses(topic, broker_name)
            candidates = [broker_id] if broker_id == 0 else [broker_id, broker_id + 1]
            # Any broker of the name is better than none.
            for number in [*candidates, *sorted(addresses)]:
                if number in addresses:
                    return addresses[number], number != 0
            if attempt == 0:
                await self.routes.refresh(topic)
        raise BrokerNotExist(f"The broker[{broker_name}] not exist", broker=broker_name)

    def _addresses(self, topic: str, broker_name: str) -> dict[int, str]:
        route = self.routes.cached(topic)
        addresses = route.addresses.get(broker_name) if route is not None else None
        return dict(addresses) if addresses else self.routes.brokers().get(broker_name, {})

    async def call_broker(self, address: str, command: Command, timeout_ms: int, *, topic: str = "") -> Command:
        """Call a broker and return its successful response.

        Raises ConnectFailed, CallTimeout, or the error class of the response code with a hint.
        """
        answer = await self.remote.call(address, command, timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            raise self.answer_error(answer, address, topic=topic)
        return answer

    def answer_error(self, answer: Command, broker: str, *, topic: str = "", group: str = "") -> SaturnError:
        """The error for a response code, with a hint."""
        hint = hints.for_response(
            answer.code,
            answer.remark or "",
            topic=topic,
            group=group,
            name_servers=self.name_servers.addresses,
            auto_create=self.routes.cached(self.settings.create_topic_key) is not None,
        )
        return response_error(answer.code, answer.remark, broker=broker, hint=hint)

    # groups and heartbeats

    def add_producer(self, group: str) -> None:
        """Register a producer group. Raises GroupInUse (PR-06)."""
        if group in self.producers:
            raise GroupInUse(f"The producer group[{group}] has been created before, specify another name please.")
        self.producers.add(group)
        self.routes.use(self.settings.create_topic_key)
        self.heartbeat_soon()

    def add_consumer(self, consumer: RegisteredConsumer) -> None:
        """Register a consumer group. Raises GroupInUse (CA-04)."""
        if consumer.group in self.consumers:
            raise GroupInUse(
                f"The consumer group[{consumer.group}] has been created before, specify another name please."
            )
        self.consumers[consumer.group] = consumer

    async def remove_producer(self, group: str) -> None:
        """Remove a producer group and unregister it from every connected broker (PR-34)."""
        self.producers.discard(group)
        await self._unregister({"clientID": self.client_id, "producerGroup": group})

    async def remove_consumer(self, group: str) -> None:
        """Remove a consumer and unregister its group from every connected broker (CA-09)."""
        self.consumers.pop(group, None)
        await self.unregister_consumer(group)

    async def unregister_consumer(self, group: str) -> None:
        """Unregister this client as a member of a consumer group from every connected broker."""
        await self._unregister({"clientID": self.client_id, "consumerGroup": group})

    async def _unregister(self, ext: dict[str, str]) -> None:
        """Send UNREGISTER_CLIENT to every broker with an open connection; failures are only logged."""
        addresses = {address for ids in self.routes.brokers().values() for address in ids.values()}
        calls = [
            self.remote.call(
                address, Command(RequestCode.UNREGISTER_CLIENT, ext=dict(ext)), self.settings.api_timeout_ms
            )
            for address in sorted(addresses)
            # The others do not have the group, or notice the closed connection.
            if self.remote.is_connected(address)
        ]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, SaturnError):
                logger.info("client not unregistered client=%s error=%s", self.client_id, outcome)

    def heartbeat_soon(self) -> None:
        """Send heartbeats in the background, to each broker after the one that it has not answered yet."""
        self._start_heartbeats()

    def _heartbeat_addresses(self) -> list[str]:
        brokers = self.routes.brokers()
        return heartbeat_addresses(brokers, has_producers=bool(self.producers), has_consumers=bool(self.consumers))

    async def heartbeat(self) -> None:
        """Send heartbeats to the brokers of the cached routes concurrently, and store their versions (HB-01..HB-03).

        Before that, forgets the other brokers (PR-35). Concurrent calls share heartbeats: each has all groups.
        """
        if tasks := self._start_heartbeats():
            await asyncio.wait(tasks)

    def _start_heartbeats(self) -> list[asyncio.Task[Any]]:
        addresses = self._heartbeat_addresses()
        self._forget_brokers(set(addresses))
        return [self._heartbeats.start(address) for address in addresses]

    def _forget_brokers(self, live_addresses: set[str]) -> None:
        """Forget the version and the limits of every broker at another address."""
        for address in self.broker_versions.keys() - live_addresses:
            del self.broker_versions[address]
            self.timer_limits.forget(address)

    def _heartbeat_body(self) -> bytes:
        consumers = [data for consumer in self.consumers.values() if (data := consumer.heartbeat_data()) is not None]
        return heartbeat_body(self.client_id, sorted(self.producers), consumers)

    async def _repeat_heartbeat(self, address: str) -> None:
        """Repeat heartbeats to a broker that failed until it responds, so that it has our groups at once, not 30 s later."""
        try:
            # A successful heartbeat stores the version.
            while address not in self.broker_versions and address in self._heartbeat_addresses():
                await asyncio.sleep(HEARTBEAT_RETRY_SECONDS * (1 + chance()) / 2)
                await self._heartbeats.call(address)
        finally:
            self._repeating.discard(address)

    async def _send_heartbeat(self, address: str) -> None:
        command = Command(RequestCode.HEART_BEAT, body=self._heartbeat_body())
        try:
            answer = await self.remote.call(address, command, self.settings.api_timeout_ms)
        except SaturnError as error:
            self.outages.failed("heartbeat", address, f"broker={address}", error)
            return
        if answer.code == ResponseCode.SUCCESS:
            self.outages.succeeded("heartbeat", address)
            self.broker_versions[address] = answer.version
            self.timer_limits.learn(address, answer.ext)
        else:
            self.outages.failed("heartbeat", address, f"broker={address} code={answer.code}", answer.remark)

    # timers of consumers

    async def _persist_offsets(self) -> None:
        for consumer in list(self.consumers.values()):
            await one_round(f"offsets of {consumer.group}", consumer.persist_offsets)

    async def _rebalance(self) -> None:
        for consumer in self.consumers.values():
            consumer.wake_rebalance()

    # requests of brokers

    def _on_request(self, connection: Connection, command: Command) -> Reply:
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            self.checks.handle(connection, command)
            return NO_RESPONSE
        if command.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            return self.replies.handle(connection, command, now_ms())
        # Brokers name the group in one of two fields.
        group = command.ext.get("consumerGroup") or command.ext.get("group")
        consumer = self.consumers.get(group or "")
        if consumer is not None:
            return consumer.handle(command)
        return command.reply(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED if group is None else ResponseCode.SYSTEM_ERROR,
            f" request type {command.code} not supported" if group is None else f"no consumer of group {group} here",
        )


def now_ms() -> int:
    """Unix ms."""
    return int(time.time() * 1000)
