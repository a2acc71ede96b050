"""Composes a broker from its store, state tables, services and servers, and starts and stops them in order.

Everything here runs on one event loop. The constructor creates the parts in order of dependency; handlers see only the groups of
services in `requests/context.py`. The DLedger role switch (`dledger.py`) starts and stops the master-only services through
`_lead` and `_follow`.

Requirements: SND-01..SND-16, REM-28, NS-32..NS-36, HB-04, HB-06.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from saturnmq.broker.dledger import DLedger, LedgerDelay, LedgerRole, refuse_unread_ledger
from saturnmq.broker.dledger_sync import LeaderCopy
from saturnmq.broker.requests import pull
from saturnmq.broker.requests.context import (
    AdminContext,
    ClientContext,
    MessageContext,
    OffsetContext,
    ProgressContext,
    PullContext,
    ReplyContext,
    RuntimeContext,
    SendContext,
    TransactionContext,
)
from saturnmq.broker.requests.route import Answer
from saturnmq.broker.requests.send_answer import SendAnswers
from saturnmq.broker.requests.table import FAST_CODES, BoundRoute, bind
from saturnmq.broker.services.delay import DelayService
from saturnmq.broker.services.long_polling import LongPolling
from saturnmq.broker.services.master import MasterServices
from saturnmq.broker.services.registrar import Registrar
from saturnmq.broker.services.slow_groups import CHECK_SECONDS, disable_slow
from saturnmq.broker.services.statistics import SAMPLE_SECONDS, Stats
from saturnmq.broker.services.timer import TimerService
from saturnmq.broker.services.transactions import Transactions
from saturnmq.broker.settings import BrokerSettings
from saturnmq.broker.state.clients import Clients, ConsumerGroup
from saturnmq.broker.state.creation_quota import CreationQuota
from saturnmq.broker.state.filters import SAVE_SECONDS, Filters
from saturnmq.broker.state.groups import Groups
from saturnmq.broker.state.identity import Identity
from saturnmq.broker.state.load import Load
from saturnmq.broker.state.locks import QueueLocks
from saturnmq.broker.state.offset_moved import OffsetMovedEvents
from saturnmq.broker.state.offsets import Offsets
from saturnmq.broker.state.role import FixedRole, Role
from saturnmq.broker.state.topics import Topics
from saturnmq.config.settings import format_properties, to_properties
from saturnmq.net import CHOSEN_BY, Connection, NetSettings, RemotingServer, SendFailed
from saturnmq.net.connection import Handler
from saturnmq.net.refusals import Refusals
from saturnmq.net.tls import TlsSettings
from saturnmq.protocol.codes import PropertyKey, RequestCode, ResponseCode
from saturnmq.protocol.errors import ConfigError, SaturnError, StoreError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers.messaging import decode_header
from saturnmq.protocol.message import Host
from saturnmq.raft.settings import RaftSettings
from saturnmq.replication.dledger.member import GroupMember
from saturnmq.store import MessageStore, StateFile, StoreFailureAction, StoreSettings, wall_clock_ms

log = logging.getLogger(__name__)

LOG_SECONDS: Final = 60
LOG_FIRST_SECONDS: Final = 10
NOTIFY_SECONDS: Final = 0.02  # changes of a group within this window cause one notification
_WILDCARDS = ("0.0.0.0", "::", "")  # noqa: S104 - compared, not bound


def own_address(family: socket.AddressFamily) -> str:
    """Local address of the route to other hosts, or the loopback address if there is no route.

    A UDP socket is connected to a documentation address to ask the kernel; no packet is sent.
    """
    elsewhere, loopback = ("2001:db8::1", "::1") if family == socket.AF_INET6 else ("192.0.2.1", "127.0.0.1")
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((elsewhere, 9))
        except OSError:
            return loopback
        return str(probe.getsockname()[0])


class Broker:
    """One broker: `start` opens the store and serves, `stop` flushes all state to disk."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: StoreSettings,
        net: NetSettings,
        *,
        tls: TlsSettings | None = None,
        clock_ms: Callable[[], int] = wall_clock_ms,
        raft: RaftSettings | None = None,
    ) -> None:
        """raft: if it enables DLedger (enableDLegerCommitLog), the broker is a group member and the group decides its role."""
        self.settings = settings
        self._store_settings = store
        self._net = net
        self._clock_ms = clock_ms
        self._raft = raft
        self._config = Path(store.root) / "config"
        self._tasks: list[asyncio.Task[None]] = []
        self._changed_groups: dict[str, None] = {}  # groups whose members are to be notified; an ordered set
        self._notify: asyncio.TimerHandle | None = None
        self._bound = ("", 0)
        self._advertised_host = ""
        self.failed = asyncio.Event()  # the broker cannot go on because of `failure`; the owner then stops it
        self.failure: SaturnError | None = None

        group = GroupMember(store, raft, net, clock_ms=clock_ms) if raft is not None and raft.enabled else None
        self.store = group.store if group is not None else MessageStore(store, clock_ms=clock_ms)
        self.store.on_failure = self._store_failed
        self.role: Role = FixedRole() if group is None else LedgerRole(group)
        self._make_state()
        self._make_services(tls, DelayService if group is None else LedgerDelay)
        self._make_requests(tls, group)

    def _make_state(self) -> None:
        settings, clock_ms = self.settings, self._clock_ms
        self.refusals = Refusals()
        self.identity = Identity()
        self.load = Load()
        self.topics = Topics(settings, self._state_file("topics.json"), clock_ms, self.refusals)
        self.groups = self._make_groups()
        self.offsets = Offsets(
            self._state_file("consumerOffset.json"), most=settings.offsets_max, refusals=self.refusals
        )
        self.clients = Clients(settings.live_groups_max)
        self.locks = QueueLocks(settings.locks_max)
        self.filters = Filters(settings, self._state_file("consumerFilter.json"), clock_ms)
        self.clients.changed.subscribe(self._members_changed)
        self.clients.offline.subscribe(self.filters.group_offline)
        if settings.calc_filter_bit_map and self._store_settings.queue_extension_enable:
            self.store.bit_map = self.filters.bit_map

    def _make_services(self, tls: TlsSettings | None, delay_class: type[DelayService]) -> None:
        settings = self.settings
        self._delay_class = delay_class
        self.stats = Stats(self._clock_ms())
        self.master = MasterServices(self._make_master_services, self._task_failed)
        self.long_polling = LongPolling(
            lambda parked: pull.resume(self._pull_context, parked),
            limit=settings.pull_queue_max,
            properties=self.store.properties,
            queue_end=lambda topic, queue: self.store.max_offset(topic, queue) if self.role.slave else 0,
        )
        self.registrar = Registrar(
            settings,
            self._net,
            self.topics,
            address=lambda: self.advertised_address,
            ha_address=lambda: self._ha_address,
            tls=tls,
            broker_id=lambda: settings.broker_id if self.dledger is None else self.dledger.broker_id,
        )

    def _make_requests(self, tls: TlsSettings | None, group: GroupMember | None) -> None:
        runtime = RuntimeContext(self.settings, self.store, self.stats, self._clock_ms, self.load, self.refusals, self.master,
                                 self._config_text)  # fmt: skip
        self._pull_context = self._make_pull_context()
        self._routes = bind([runtime, self._pull_context, *self._make_contexts()])
        self._fast_routes = {code: route for code, route in self._routes.items() if code in FAST_CODES}
        self.dledger = self._make_dledger(group, runtime, tls) if group is not None else None
        handler, fast_handler = self.handle, self._handle_fast
        if group is not None:
            handler, fast_handler = self._handle_member, self._handle_member_fast
        self._server = RemotingServer(handler, settings=self._net, tls=tls, listener=self)
        self._fast = RemotingServer(fast_handler, settings=self._net, tls=tls, listener=self)
        self._server.refusals = self._fast.refusals = self.refusals

    def _make_groups(self) -> Groups:
        settings = self.settings
        quota = CreationQuota(
            "groups",
            in_all=settings.groups_max,
            per_hour=settings.groups_per_hour,
            clock_ms=self._clock_ms,
            refusals=self.refusals,
        )
        file = self._state_file("subscriptionGroup.json")
        return Groups(file, self._clock_ms, auto_create=settings.auto_create_group, quota=quota)

    def _make_master_services(self) -> tuple[DelayService, TimerService, Transactions]:
        store, stats, clock_ms = self.store, self.stats, self._clock_ms
        return (
            self._delay_class(store, self._state_file("delayOffset.json"), stats, clock_ms),
            TimerService(store, self._state_file("timer.json"), stats, clock_ms),
            Transactions(
                self.settings,
                store,
                self._state_file("transactionChecks.json"),
                topics=self.topics,
                offsets=self.offsets,
                clients=self.clients,
                stats=stats,
                identity=self.identity,
                clock_ms=clock_ms,
            ),
        )

    def _make_pull_context(self) -> PullContext:
        events = OffsetMovedEvents(self.store, self.settings.broker_name, self._clock_ms)
        return PullContext(self.settings, self.store, self.topics, self.groups, self.offsets, self.clients, self.filters,
                           self.stats, self.identity, self.role, self.long_polling, events)  # fmt: skip

    def _make_contexts(self) -> Iterator[object]:
        """The services of each family of handlers, except pulls and runtime information."""
        settings, store, topics, groups, offsets = self.settings, self.store, self.topics, self.groups, self.offsets
        clients, clock_ms, identity, master = self.clients, self._clock_ms, self.identity, self.master
        answers = SendAnswers(settings.region_id, settings.trace_on, identity)
        suffix = f"\x02{PropertyKey.CLUSTER}\x01{settings.cluster_name}"
        send = SendContext(
            settings, store, topics, groups, self.stats, clock_ms, master, identity, answers, self.load, suffix
        )
        yield send
        yield ReplyContext(send, clients)
        yield TransactionContext(master)
        yield MessageContext(settings, store, clients)
        yield ClientContext(settings, topics, groups, clients, self.filters, self.locks, self.long_polling, self.refusals,
                            clock_ms)  # fmt: skip
        yield OffsetContext(store, topics, offsets, master)
        yield AdminContext(store, topics, groups, offsets, self.registrar)
        yield ProgressContext(settings, store, topics, groups, offsets, clients, clock_ms, identity)

    def _make_dledger(self, group: GroupMember, runtime: RuntimeContext, tls: TlsSettings | None) -> DLedger:
        copy = LeaderCopy(
            self.registrar,
            self.topics,
            self.groups,
            self.offsets,
            self.identity,
            self._clock_ms,
            self._net,
            self._state_file("delayOffset.json"),
            self._state_file("timer.json"),
            tls,
        )
        return DLedger(
            group,
            runtime,
            self.long_polling,
            self.registrar,
            copy,
            start_services=self._lead,
            stop_services=self._follow,
        )

    # ---- lifecycle

    @property
    def name(self) -> str:
        return self.settings.broker_name

    @property
    def address(self) -> str:
        """Bound listen address, `host:port`."""
        return f"{self._bound[0]}:{self._bound[1]}"

    @property
    def advertised_address(self) -> str:
        """Address registered with NameServers and returned to clients, `host:port`."""
        return f"{self._advertised_host}:{self._bound[1]}"

    @property
    def _ha_address(self) -> str:
        return f"{self.settings.broker_ip2 or self._advertised_host}:{self._bound[1] + 1}"

    def _state_file(self, name: str) -> StateFile:
        return StateFile(self._config / name, self.store.disk, self.store.reserve)

    def _store_failed(self, failure: SaturnError) -> None:
        if self._store_settings.store_failure_action is StoreFailureAction.EXIT:
            self._fail(failure)

    def _task_failed(self, error: BaseException) -> None:
        self._fail(SaturnError(f"a background task ended with {error!r}", hint="The log has the trace."))

    def _fail(self, failure: SaturnError) -> None:
        self.failure = self.failure or failure
        self.failed.set()

    def _lead(self) -> None:
        """Become master of the DLedger group: create, load and start the master-only services (DL-C05)."""
        self.store.on_append = self.long_polling.appended
        self.master.restart()

    async def _follow(self) -> None:
        """Stop the master-only services (DL-C04); appends from the leader do not wake parked pulls (DL-C09)."""
        self.store.on_append = None
        await self.master.stop()

    async def start(self) -> None:
        """Open the store, listen and register. Raises StoreError, StartError; on failure everything is closed again."""
        if self.dledger is None:
            refuse_unread_ledger(Path(self._store_settings.root))
        elif self._raft is not None and (problems := self._raft.validate()):
            raise ConfigError(problems)
        self.filters.load()  # before the store opens: its recovery computes filter bit maps
        self.store.open()
        try:
            for part in (self.topics, self.groups, self.offsets):
                part.load()
            self.master.delay.load()
            self.master.timer.load()
            if self.dledger is None:
                self.master.transactions.load()
                self.store.on_append = self.long_polling.appended
            await self.store.start()
            self.topics.changed.subscribe(self.registrar.topics_changed)
            await self._listen()
            loop = asyncio.get_running_loop()
            self._tasks = [
                loop.create_task(self._every(self.settings.flush_offsets_ms / 1000, self._save_offsets)),
                loop.create_task(self._every(self.settings.client_scan_ms / 1000, self.expire_clients)),
                loop.create_task(self._every(SAVE_SECONDS, self.filters.save_soon)),
                loop.create_task(self._every(SAMPLE_SECONDS, self._sample)),
                loop.create_task(self._every(CHECK_SECONDS, self._disable_slow_groups)),
                loop.create_task(self._every(self.settings.flush_delay_ms / 1000, lambda: self.master.delay.save())),
                loop.create_task(self._every(self.settings.flush_delay_ms / 1000, lambda: self.master.timer.save())),
                loop.create_task(self._every(SAMPLE_SECONDS, lambda: self.master.transactions.note_progress())),
                loop.create_task(self._every(LOG_SECONDS, self._log_behind, LOG_FIRST_SECONDS)),
            ]
            if self.dledger is None and self.settings.broker_role != "SLAVE":
                self.master.start()
            await self.registrar.start()
            if self.dledger is not None:
                await self.dledger.start()
        except BaseException:
            await self.stop()
            raise

    async def _listen(self) -> None:
        host, port = self.settings.bind_address, self.settings.listen_port
        self._bound = await self._server.start(host, port)
        self._set_address()  # no await since the bind: requests may arrive in the next event-loop iteration
        if self.settings.fast_port_enable:
            fast = self._bound[1] - 2 if port else 0
            await self._fast.start(host, fast, chosen_by=f"the fast port is 2 below the main one: {CHOSEN_BY}")

    def _set_address(self) -> None:
        host = self.settings.broker_ip1 or self._bound[0]
        if host in _WILDCARDS:
            host = own_address(socket.AF_INET6 if host == "::" else socket.AF_INET)
        self._advertised_host = host
        try:
            ip = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]
        except OSError as error:
            raise ConfigError(f"brokerIP1={host!r} is no address and cannot be looked up: {error}") from error
        self.identity.set(Host(str(ip), self._bound[1]), self.advertised_address)

    async def abort(self) -> None:
        """End as SIGKILL would: no responses, no unregistration, nothing flushed. Data in the OS page cache survives.

        A write that a worker thread has begun is awaited, because a thread cannot be killed. Not for members of a DLedger
        group.
        """
        self.long_polling.abort()
        if self._notify is not None:
            self._notify.cancel()
            self._notify = None
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        master = self.master
        services = (self._server, self._fast, self.registrar, master.delay, master.timer, master.transactions)
        await asyncio.gather(*(service.abort() for service in services), *tasks, return_exceptions=True)
        for table in (self.topics, self.groups):
            await table.writer.settle()
        await self.store.abort()

    async def stop(self) -> None:
        """Unregister from NameServers, stop serving, then flush all state to disk. Raises StoreError."""
        try:
            if self.dledger is not None:
                await self.dledger.stop()
            await self.registrar.stop()
            self.long_polling.stop()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._tasks = []
            await asyncio.gather(self._server.stop(), self._fast.stop(), self.master.delay.stop())
            await asyncio.gather(self.master.timer.stop(), self.master.transactions.stop())
            if self._notify is not None:
                self._notify.cancel()
                self._notify = None
            await asyncio.gather(
                self.topics.writer.saved(),
                self.groups.writer.saved(),
                self.offsets.save(),
                self.filters.saved(),
            )
        finally:
            await self.store.stop()

    # ---- requests

    def intercept(self, wrap: Callable[[Handler], Handler]) -> None:
        """Pass the requests of both ports through `wrap(handler)`; call it before `start`."""
        for server in (self._server, self._fast):
            server.handler = wrap(server.handler)

    @property
    def connections(self) -> list[Connection]:
        """Open connections of both ports."""
        return [*self._server.connections, *self._fast.connections]

    @property
    def ports(self) -> set[int]:
        """Listening ports and the local ports of all open connections."""
        return self._server.ports | self._fast.ports | self.registrar.ports

    def handle(self, connection: Connection, request: Command) -> Answer:
        """Serve a request of the main port; returns the response, or what completes it later."""
        return self._run(self._routes.get(request.code), connection, request)

    def _handle_fast(self, connection: Connection, request: Command) -> Answer:
        return self._run(self._fast_routes.get(request.code), connection, request)

    def _handle_member(self, connection: Connection, request: Command) -> Answer:
        """Serve what the member's role allows; `DLedger.instead` answers the rest."""
        refused = self.dledger.instead(connection, request) if self.dledger is not None else None
        return self.handle(connection, request) if refused is None else refused

    def _handle_member_fast(self, connection: Connection, request: Command) -> Answer:
        refused = self.dledger.instead(connection, request) if self.dledger is not None else None
        return self._handle_fast(connection, request) if refused is None else refused

    def _run(self, route: BoundRoute | None, connection: Connection, request: Command) -> Answer:
        if route is None:
            text = f" request type {request.code} not supported"
            return request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text)
        if route.header is None:
            return route.handler(route.context, connection, request)
        if request.body is not None and len(request.body) > route.body_max:
            text = f"a body of {len(request.body)} bytes is too long for request {route.code.name}, at most {route.body_max}"
            return request.reply(ResponseCode.SYSTEM_ERROR, text)
        return route.handler(route.context, connection, request, decode_header(route.header, request.ext))

    def _config_text(self) -> str:
        parts = to_properties(self.settings) | to_properties(self._store_settings) | to_properties(self._net)
        if self._raft is not None:
            parts |= to_properties(self._raft)
        if self.dledger is not None:
            role = "SYNC_MASTER" if self.dledger.broker_id == 0 else "SLAVE"
            parts |= {"brokerId": str(self.dledger.broker_id), "brokerRole": role}
        return format_properties(parts)

    # ---- events

    def connected(self, connection: Connection) -> None:
        """Connection listener; nothing to do."""

    def closed(self, connection: Connection, reason: str) -> None:
        """Unregister the clients of a closed connection and drop its parked pulls (HB-06)."""
        self.clients.connection_closed(connection)
        self.long_polling.connection_closed(connection)

    def _members_changed(self, group: ConsumerGroup) -> None:
        """Schedule a rebalance notification to every member of the group (HB-04).

        Changes within NOTIFY_SECONDS are merged: when many consumers start at once, each would otherwise notify all others.
        """
        config = self.groups.table.get(group.name)
        if not self.settings.notify_ids_changed or (
            config is not None and not config.notify_consumer_ids_changed_enable
        ):
            return
        self._changed_groups[group.name] = None
        if self._notify is None:
            self._notify = asyncio.get_running_loop().call_later(NOTIFY_SECONDS, self._notify_members)

    def _notify_members(self) -> None:
        """Send the notifications; congested members are skipped, as clients also rebalance by themselves every 20 s."""
        names, self._changed_groups, self._notify = self._changed_groups, {}, None
        for name in names:
            group = self.clients.consumers.get(name)
            for member in list(group.members) if group is not None else ():
                if not member.congested:
                    with contextlib.suppress(SendFailed):
                        member.invoke_oneway(
                            Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext={"consumerGroup": name})
                        )

    # ---- timers

    async def _every(self, seconds: float, work: Callable[[], object], first_seconds: float | None = None) -> None:
        wait_seconds = seconds if first_seconds is None else first_seconds
        while True:
            await asyncio.sleep(wait_seconds)
            wait_seconds = seconds
            try:
                result = work()
                if asyncio.iscoroutine(result):
                    await result
            except Exception:
                log.exception("periodic work failed retry_s=%s", seconds)

    async def _save_offsets(self) -> None:
        with contextlib.suppress(StoreError):  # already logged by the state writer; retried at the next tick
            await self.offsets.save()

    def expire_clients(self) -> None:
        """Close the connections of clients without a recent heartbeat; drop expired queue locks."""
        self.locks.forget_expired(self._clock_ms())
        for connection in self.clients.expired(self._clock_ms(), self.settings.client_expiry_ms):
            log.warning(
                "client expired address=%s limit_ms=%s", connection.remote_address, self.settings.client_expiry_ms
            )
            connection.close(f"no heartbeat for {self.settings.client_expiry_ms} ms")

    def _disable_slow_groups(self) -> None:
        if self.settings.disable_slow_groups and not self.role.slave:
            disable_slow(self.store, self.groups, self.offsets, self.settings.slow_group_bytes)

    def _log_behind(self) -> None:
        log.info("dispatch behind commit log %s bytes", self.store.behind_bytes)  # DG-10

    def _sample(self) -> None:
        self.stats.sample(asyncio.get_running_loop().time())
