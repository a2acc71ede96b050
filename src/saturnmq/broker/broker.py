"""Composes a broker from its store, state tables, services and servers, and starts and stops them in order.

Four layers, each unaware of those above: `state/` (tables in memory and their files: topics, groups, offsets, locks, clients),
`services/` (work in the background: long polling, delays, transactions, registration), `requests/` (a row and a handler per
request code), and this module, which only connects them. A handler sees the services of its context (`requests/context.py`) and
nothing else.

A broker has one of four roles: alone or master; slave (`masterslave.py`); leader or follower of a DLedger group (`dledger.py`).
A role does not change what handlers do. It decides which rows are served (a slave refuses sends), which log the store has, and
whether the services that only a master may run are running: `_lead` starts and `_follow` stops them, in a group at each
election.

The order of the start is the order of promises: access rules, the store with its recovery, the tables, the ports, the services of
a master, and last the registration, because a client that has the route may send at once. `stop` goes back: it unregisters,
finishes the requests in flight, stops the services, flushes and saves. A background task that fails ends the process through
`_fail`, with its reason: a broker that goes on without delayed delivery or flush would look healthy and lose messages.

Everything runs on one event loop; requests that look through whole tables do it in slices (`saturnmq.slices`).

Requirements: SND-01..SND-16, REM-28, NS-32..NS-36, HB-04, HB-06.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from saturnmq.acl.rules import RELOAD_SECONDS
from saturnmq.broker.access_control import AccessControl
from saturnmq.broker.configuration import runtime_configuration, shown_values
from saturnmq.broker.masterslave import Master, Slave
from saturnmq.broker.metrics import BrokerMetrics, Sources
from saturnmq.broker.requests import pull
from saturnmq.broker.requests.context import (
    AclContext,
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
from saturnmq.broker.requests.plain_requests import take_plain
from saturnmq.broker.requests.send_answer import SendAnswers
from saturnmq.broker.requests.table import FAST_CODES, TABLE, BoundRoute, bind
from saturnmq.broker.requests.table_row import CALLER, HandlerResult
from saturnmq.broker.services.admission import Admission, Stage, refuse
from saturnmq.broker.services.delay import DelayService
from saturnmq.broker.services.long_polling import LongPolling
from saturnmq.broker.services.master_services import MasterServices
from saturnmq.broker.services.notices import MemberNotices
from saturnmq.broker.services.registrar import Registrar
from saturnmq.broker.services.reporting import Reporting
from saturnmq.broker.services.slow_groups import CHECK_SECONDS, disable_slow
from saturnmq.broker.services.statistics import SAMPLE_SECONDS, Stats
from saturnmq.broker.services.timer import TimerService
from saturnmq.broker.services.transactions import Transactions
from saturnmq.broker.services.watermark import Watermark
from saturnmq.broker.settings import BrokerSettings, refuse_unread_ledger
from saturnmq.broker.state.clients import Clients, ConsumerGroup
from saturnmq.broker.state.creation_quota import CreationQuota
from saturnmq.broker.state.filters import SAVE_SECONDS, Filters
from saturnmq.broker.state.groups import Groups
from saturnmq.broker.state.identity import BrokerRole, FixedRole, Identity, advertised
from saturnmq.broker.state.in_flight import InFlight, PendingReplies
from saturnmq.broker.state.locks import QueueLockTable
from saturnmq.broker.state.offset_moved import OffsetMovedEvents
from saturnmq.broker.state.offsets import Offsets
from saturnmq.broker.state.relays import Relays
from saturnmq.broker.state.topics import Topics
from saturnmq.config.settings import format_properties
from saturnmq.net import CHOSEN_BY, Connection, NetSettings, RemotingServer, Reply, TlsSettings, reply_of
from saturnmq.net.connection import Handler
from saturnmq.net.endpoint import PlainWrapper
from saturnmq.net.rejections import Rejections
from saturnmq.net.shares import Shares
from saturnmq.protocol.addresses import join_host_port
from saturnmq.protocol.codes import PropertyKey, RequestCode, ResponseCode
from saturnmq.protocol.errors import ConfigError, SaturnError, StoreError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers.messaging import decode_header
from saturnmq.protocol.message import Host
from saturnmq.raft.settings import RaftSettings
from saturnmq.replication.masterslave.settings import HaSettings
from saturnmq.server_admin import Administration, set_log_level
from saturnmq.slices import Background, Slices, Steps
from saturnmq.store import MessageStore, StateFile, StoreFailureAction, StoreSettings, wall_clock_ms
from saturnmq.tasks import cancel, supervised

if TYPE_CHECKING:  # imported at run time only by a broker of that role: a plain broker starts in two thirds of the time
    from saturnmq.broker.dledger import DLedger
    from saturnmq.replication.dledger.member import GroupMember
    from saturnmq.replication.masterslave.dispatch import SlaveDispatch

log = logging.getLogger(__name__)

LOG_SECONDS: Final = 60
LOG_FIRST_SECONDS: Final = 10
HEARTBEAT_SECONDS: Final = 0.003  # a heartbeat that takes longer waits for other long ones


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
        ha: HaSettings | None = None,
        config_file: Path | None = None,
        fixed: Mapping[str, str] | None = None,
    ) -> None:
        """ha: settings of master-slave replication; without them a master opens no HA port.

        raft: if it enables DLedger (enableDLegerCommitLog), the broker is a group member and the group decides its role.

        config_file: properties file that keeps changes of the configuration.

        fixed: keys that cannot change while this broker runs, though they can at others, with the reason.
        """
        self.settings = settings = dataclasses.replace(settings)  # this broker's own: the configuration may change
        store = dataclasses.replace(store)
        self._net = net
        self._tls = tls
        self._clock_ms = clock_ms
        self._raft = raft
        self._ha = ha or HaSettings(port_enable=False)
        self._config = Path(store.root) / "config"
        self._tasks: list[asyncio.Task[None]] = []
        self._bound = self._fast_bound = ("", 0)
        self._advertised = ("", 0)  # host and port
        self.failed = asyncio.Event()  # the broker cannot go on because of `failure`; the owner then stops it
        self.failure: SaturnError | None = None

        group = dispatch = None
        self.role: BrokerRole = FixedRole(slave=settings.broker_role == "SLAVE")
        self._delay_class: type[DelayService] = DelayService
        if raft is not None and raft.enabled:
            from saturnmq.broker.dledger import LedgerDelay, LedgerRole, group_member

            group = group_member(settings, store, raft, net, tls, clock_ms)
            self.role, self._delay_class = LedgerRole(group), LedgerDelay
        elif settings.broker_role == "SLAVE":
            from saturnmq.replication.masterslave.opening import slave_dispatch

            dispatch = slave_dispatch(store, clock_ms)
        composed = group or dispatch
        self.store = composed.store if composed is not None else MessageStore(store, clock_ms=clock_ms)
        self._store_settings = self.store.settings
        self.store.on_failure = self._store_failed
        self._make_state()
        self._make_services(tls)
        stage = Stage.FLUSH if group is None else Stage.REPLICA
        self.admission = Admission(settings, self.in_flight, self.rejections, stage=stage, changed=self._reject)
        self.store.append_watch.listener = self.admission.append_was_slow
        self.ha_master = Master(settings, self._ha, self.store, self.rejections, tls) if composed is None else None
        self.ha_slave = self._make_slave(dispatch, tls) if dispatch is not None else None
        self._make_requests(tls, group)
        self.configuration = runtime_configuration(
            settings, self.store, self.topics, self.registrar, group, file=config_file, fixed=fixed, shown=self._shown
        )

    def _make_state(self) -> None:
        settings, clock_ms = self.settings, self._clock_ms
        self.rejections = Rejections()
        self.administration = Administration(settings.admin_addresses)
        self._access = AccessControl(
            settings, self.store, self.rejections, self.administration, clock_ms, Path(self._store_settings.root)
        )
        self.identity = Identity()
        self.in_flight = InFlight()
        self.topics = Topics(settings, self._state_file("topics.json"), clock_ms, self.rejections)
        self.groups = self._make_groups()
        self.offsets = Offsets(
            self._state_file("consumerOffset.json"),
            most=settings.offsets_max,
            rejections=self.rejections,
            clock_ms=clock_ms,
        )
        self.clients = Clients(
            settings.live_groups_max,
            client_subscriptions_max=settings.client_subscriptions_max,
            subscriptions_max=settings.subscriptions_max,
        )
        self.locks = QueueLockTable(settings.locks_max)
        self.filters = Filters(settings, self._state_file("consumerFilter.json"), clock_ms, self.topics.exists)
        self.notices = MemberNotices(self.clients, self._notifies)
        self.cleaning, self.removals = Background(), Background()  # after connections; of queue files
        self.clients.changed.subscribe(self.notices.changed)
        self.clients.offline.subscribe(self.filters.group_offline)
        self.clients.resubscribed.subscribe(self._resubscribed)
        if settings.calc_filter_bit_map and self._store_settings.queue_extension_enable:
            self.store.bit_map = self.filters.bit_map

    def _make_services(self, tls: TlsSettings | None) -> None:
        settings = self.settings
        self.stats = Stats(settings.cluster_name, self._clock_ms, settings.delete_unused_stats,
                           detail=settings.detail_stats, delays=settings.delay_stats, falls=settings.fall_stats)  # fmt: skip
        self.master = MasterServices(self._make_master_services, self._task_failed)
        self.long_polling = LongPolling(
            lambda parked: pull.resume(self._pull_context, parked),
            limits=settings,
            rejections=self.rejections,
            properties=self.store.properties,
            queue_end=lambda topic, queue: self.store.max_offset(topic, queue) if self.role.slave else 0,
        )
        self._slices = Slices(frame_bytes_max=self._net.frame_bytes_max, places=Shares())
        self.watermark = Watermark(self.in_flight, self.long_polling, self._slices, lambda: self.admission.late_ms)
        self.reporting = Reporting(self.stats, self.watermark, self._clock_ms, lambda: settings.stats_lines_max)
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
        runtime = RuntimeContext(self.settings, self.store, self.stats, self._clock_ms, self.in_flight, self.rejections,
                                 self.master, self._config_text, lambda: self.configuration, self.watermark)  # fmt: skip
        self._pull_context = self._make_pull_context()
        self._all_routes = bind([runtime, self._pull_context, *self._make_contexts()])
        self._reject(frozenset())
        self.dledger = self._make_dledger(group, runtime, tls) if group is not None else None
        handler: Handler = self.handle
        fast_handler: Handler = self._handle_fast
        if group is not None or self.ha_slave is not None:
            handler, fast_handler = self._handle_member, self._handle_member_fast
        if self._access.enabled:
            handler, fast_handler = self._access.wrap(handler), self._access.wrap(fast_handler)
        self._server = RemotingServer(handler, settings=self._net, tls=tls, listener=self)
        self._fast = RemotingServer(fast_handler, settings=self._net, tls=tls, listener=self)
        self._server.rejections = self._fast.rejections = self.rejections
        if self._access.allows_plain:
            ports = self._server, self._fast
            take_plain(ports, self._all_routes, self.admission, self.dledger, self._access.admits)
        self.admission.queues = (self._server.fair_queue, self._fast.fair_queue)
        self.metrics = self._make_metrics(runtime)
        if self.settings.log_level:
            set_log_level(self.settings.log_level)

    def _reject(self, codes: frozenset[int]) -> None:
        """Answer these codes with SYSTEM_BUSY (SND-16), all others by their handlers."""
        busy = {code: BoundRoute(RequestCode(code), None, refuse, self.admission, 0, False) for code in codes}
        self._routes = self._all_routes | busy
        self._fast_routes = {code: route for code, route in self._routes.items() if code in FAST_CODES}

    def _make_groups(self) -> Groups:
        settings = self.settings
        quota = CreationQuota(
            "groups",
            in_all=settings.groups_max,
            per_hour=settings.groups_per_hour,
            clock_ms=self._clock_ms,
            rejections=self.rejections,
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
                may_decide=self._access.may_send,
            ),
        )

    def _make_pull_context(self) -> PullContext:
        events = OffsetMovedEvents(self.store, self.settings.broker_name, self._clock_ms)
        return PullContext(self.settings, self.store, self.topics, self.groups, self.offsets, self.clients, self.filters,
                           self.stats, self.identity, self.role, self.long_polling, self._clock_ms, events,
                           self._access.check_pull)  # fmt: skip

    def _make_contexts(self) -> Iterator[object]:
        """The services of each family of handlers, except pulls and runtime information."""
        settings, store, topics, groups, offsets = self.settings, self.store, self.topics, self.groups, self.offsets
        clients, clock_ms, identity, master = self.clients, self._clock_ms, self.identity, self.master
        answers = SendAnswers(settings.region_id, settings.trace_on, identity)
        suffix = f"\x02{PropertyKey.CLUSTER}\x01{settings.cluster_name}"
        send = self._send_context = SendContext(settings, store, topics, groups, self.stats, clock_ms,
                           master, identity, answers, self.in_flight, suffix, self.rejections)  # fmt: skip
        slices = self._slices
        yield send
        yield ReplyContext(send, clients, PendingReplies(settings.reply_queue_max))
        yield TransactionContext(master, self.rejections)
        yield MessageContext(settings, store, clients, slices, Relays(self._net.server_async_permits))
        yield ClientContext(settings, topics, groups, clients, self.filters, self.locks, self.long_polling, self.rejections,
                            clock_ms, Slices(first_seconds=HEARTBEAT_SECONDS), slices)  # fmt: skip
        yield OffsetContext(store, topics, groups, offsets, master, slices)
        yield AclContext(settings, identity, self._access.plain_validator)
        yield AdminContext(store, topics, groups, offsets, self.registrar, slices, self.stats, self.removals)
        yield ProgressContext(settings, store, topics, groups, offsets, clients, clock_ms, identity, slices, self.stats,
                              self.filters)  # fmt: skip

    def _make_dledger(self, group: GroupMember, runtime: RuntimeContext, tls: TlsSettings | None) -> DLedger:
        from saturnmq.broker.dledger import DLedger
        from saturnmq.broker.dledger_sync import LeaderCopy
        from saturnmq.broker.forwarding import Forwarding

        copy = LeaderCopy(group, self.registrar, self.topics, self.groups, self.offsets, self.master, self.settings.broker_name,
                          self._clock_ms, self._net, self._state_file, tls)  # fmt: skip
        return DLedger(
            group, runtime, self.long_polling, self.registrar, copy,
            Forwarding(group, self.settings, self.rejections, self.handle, lambda: self._server),
            serve=self.handle, start_services=self._lead, stop_services=self._follow,
        )  # fmt: skip

    def _make_slave(self, dispatch: SlaveDispatch, tls: TlsSettings | None) -> Slave:
        from saturnmq.broker.master_copy import MasterCopy

        copy = MasterCopy(
            self.settings.broker_name, self.store, self.registrar, self.topics, self.groups, self.offsets,
            self._state_file("delayOffset.json"), self._state_file("timer.json"), self._net, tls,
            lambda: self.advertised_address, self._ha.signer,
        )  # fmt: skip
        return Slave(self._ha, dispatch, copy, self.registrar, tls)

    def _make_metrics(self, runtime: RuntimeContext) -> BrokerMetrics:
        replicas = self.dledger.group if self.dledger is not None else self.ha_master
        sources = Sources(runtime, self.topics, self.offsets, self.clients, self.admission, self.role, replicas,
                          lambda: self.advertised_address)  # fmt: skip
        ports = {"main": self._server, "fast": self._fast}
        return BrokerMetrics(sources, ports, self._all_routes, self._task_failed)

    # ---- lifecycle

    @property
    def name(self) -> str:
        return self.settings.broker_name

    @property
    def address(self) -> str:
        """Bound listen address, `host:port`."""
        return join_host_port(*self._bound)

    @property
    def advertised_address(self) -> str:
        """Address registered with NameServers and returned to clients, `host:port`."""
        return join_host_port(*self._advertised)

    @property
    def unauthenticated(self) -> dict[str, str]:
        """Name and address of each listening port that checks no account or secret (SEC-16)."""
        ports = dict(self.metrics.unauthenticated)
        if not self._access.enabled:
            ports["broker"] = self.address
            if self._fast_bound[1]:
                ports["fast"] = join_host_port(*self._fast_bound)
        if self.ha_master is not None and self.ha_master.address[1] and not self.ha_master.authenticated:
            ports["ha"] = join_host_port(*self.ha_master.address)
        if self.dledger is not None and self._raft is not None and not self._raft.require_secret:
            ports["dledger"] = self._raft.peers[self._raft.self_id]
        return ports

    @property
    def _ha_address(self) -> str:
        port = self.ha_master.address[1] if self.ha_master is not None else 0
        return join_host_port(self.settings.broker_ip2 or self._advertised[0], port or self._bound[1] + 1)

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
            if (problem := self.settings.role_problem()) is not None:
                raise ConfigError(problem)
        elif self._raft is not None and (problems := self._raft.validate()):
            raise ConfigError(problems)
        await self._access.load()
        self.filters.load()  # before the store opens: its recovery computes filter bit maps
        self.store.open()
        try:
            for part in (self.topics, self.groups, self.offsets):
                part.load()
            self.master.delay.load()
            self.master.timer.load()
            if self.dledger is None:
                if self.ha_slave is None:
                    self.master.transactions.load()
                self.store.on_append = self.long_polling.appended
            await self.store.start()
            self.topics.changed.subscribe(self.registrar.topics_changed)
            self.topics.changed.subscribe(self.long_polling.topics_changed)
            await self._listen()
            self.admission.start()
            periodic = [
                self._every(self.settings.flush_offsets_ms / 1000, self._save_offsets),
                self._every(self.settings.client_scan_ms / 1000, self.expire_clients),
                self._every(SAVE_SECONDS, self.filters.save_soon),
                self._every(SAMPLE_SECONDS, self.reporting.tick, 0),
                self._every(CHECK_SECONDS, lambda: disable_slow(self.settings, self.role, self.stats, self.groups)),
                self._every(self.settings.flush_delay_ms / 1000, lambda: self.master.delay.save()),
                self._every(self.settings.flush_delay_ms / 1000, lambda: self.master.timer.save()),
                self._every(SAMPLE_SECONDS, lambda: self.master.transactions.note_progress()),
                self._every(RELOAD_SECONDS, self._access.reload),
                self._every(LOG_SECONDS, self._log_behind, LOG_FIRST_SECONDS),
            ]
            self._tasks = [supervised(work, "periodic work", self._task_failed) for work in periodic]
            if self.dledger is None and self.ha_slave is None:
                self.master.start()
            await self.registrar.start()
            if self.ha_slave is not None:
                self.ha_slave.start()
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
            chosen_by = f"the fast port is 2 below the main one: {CHOSEN_BY}"
            self._fast_bound = await self._fast.start(host, self._bound[1] - 2 if port else 0, chosen_by=chosen_by)
        if self.ha_master is not None:
            await self.ha_master.start(host, self._bound[1] + 1 if port else 0)
        await self.metrics.start()

    def _set_address(self) -> None:
        host, ip = advertised(self.settings.broker_ip1 or self._bound[0])
        self._advertised = host, self.settings.advertised_port or self._bound[1]
        self.identity.set(Host(ip, self._advertised[1]), self.advertised_address)

    async def abort(self) -> None:
        """End as SIGKILL would: no responses, no unregistration, nothing flushed. Data in the OS page cache survives.

        A write that a worker thread has begun is awaited, because a thread cannot be killed. Not for members of a DLedger
        group.
        """
        self.long_polling.abort()
        self.admission.stop()
        self.reporting.stop()
        self.notices.stop()
        self.removals.drop()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        master = self.master
        services = (self._server, self._fast, self.registrar, master.delay, master.timer, master.transactions)
        ending = [service.abort() for service in services] + [self.metrics.stop()]
        ending += [self.ha_master.port.stop()] if self.ha_master is not None else []
        ending += [self.ha_slave.stop()] if self.ha_slave is not None else []
        await asyncio.gather(*ending, *tasks, return_exceptions=True)
        for table in (self.topics, self.groups):
            await table.writer.settle()
        await self.store.abort()

    async def stop(self) -> None:
        """Unregister from NameServers, stop serving, then flush all state to disk. Raises StoreError."""
        try:
            if self.dledger is not None:
                await self.dledger.stop()
            await asyncio.gather(self.registrar.stop(), self.metrics.stop())
            self.long_polling.stop()
            self.admission.stop()
            await cancel(*self._tasks)
            self._tasks = []
            self.reporting.stop()
            await asyncio.gather(self._server.stop(), self._fast.stop(), self.master.delay.stop())
            await asyncio.gather(self.master.timer.stop(), self.master.transactions.stop())
            self.notices.stop()
            self.cleaning.finish()
            self.removals.finish()
            await asyncio.gather(*(part.stop() for part in (self.ha_master, self.ha_slave) if part is not None))
            await asyncio.gather(
                self.topics.writer.saved(),
                self.groups.writer.saved(),
                self.offsets.save(),
                self.filters.saved(),
            )
        finally:
            await self.store.stop()

    # ---- requests

    def intercept(self, wrap: Callable[[Handler], Handler], wrap_plain: PlainWrapper | None = None) -> None:
        """See `Endpoint.intercept`, for both ports; call it before `start`."""
        for server in (self._server, self._fast):
            server.intercept(wrap, wrap_plain)

    @property
    def connections(self) -> list[Connection]:
        """Open connections of both ports."""
        return [*self._server.connections, *self._fast.connections]

    @property
    def ports(self) -> set[int]:
        """Listening ports and the local ports of all open connections."""
        return self._server.ports | self._fast.ports | self.registrar.ports

    def handle(self, connection: Connection, request: Command) -> Reply:
        """Serve a request of the main port; returns the response, or what completes it later."""
        return self._run(self._routes.get(request.code), connection, request)

    def _handle_fast(self, connection: Connection, request: Command) -> Reply:
        return self._run(self._fast_routes.get(request.code), connection, request)

    def _handle_member(self, connection: Connection, request: Command) -> Reply:
        """Serve what the role of a group's member or a slave allows."""
        refused = self._instead(connection, request)
        return self.handle(connection, request) if refused is None else refused

    def _handle_member_fast(self, connection: Connection, request: Command) -> Reply:
        refused = self._instead(connection, request)
        return self._handle_fast(connection, request) if refused is None else refused

    def _instead(self, connection: Connection, request: Command) -> Reply | None:
        """The answer to a request that the role does not allow; an administrative one is written to the audit log."""
        follower = self.dledger or self.ha_slave
        refused = follower.instead(connection, request) if follower is not None else None
        if refused is not None and TABLE[request.code].administrative:
            return self._serve_admin(connection, request, lambda: refused)
        return refused

    def _run(self, route: BoundRoute | None, connection: Connection, request: Command) -> Reply:
        if route is None:
            text = f" request type {request.code} not supported"
            return request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text)
        if route.header is None:
            return cast("Reply", route.handler(route.context, connection, request))
        if route.administrative:
            return self._serve_admin(connection, request, lambda: self._decoded(route, connection, request))
        return reply_of(self._decoded(route, connection, request))

    def _serve_admin(self, connection: Connection, request: Command, answer: Callable[[], HandlerResult]) -> Reply:
        caller = connection.attributes.get(CALLER)
        account = str(caller) if caller is not None else None
        return reply_of(self.administration.serve(connection.remote_address, request, answer, account=account))

    def _decoded(self, route: BoundRoute, connection: Connection, request: Command) -> HandlerResult:
        """Run the handler of a request with its decoded header, unless the body is too long."""
        assert route.header is not None
        if request.body is not None and len(request.body) > route.body_max:
            text = f"a body of {len(request.body)} bytes is too long for request {route.code.name}, at most {route.body_max}"
            return request.reply(ResponseCode.SYSTEM_ERROR, text)
        return route.handler(route.context, connection, request, decode_header(route.header, request.ext))

    def _config_text(self) -> str:
        return format_properties(self._shown())

    def _shown(self) -> dict[str, str]:
        further_settings = self._net, self._ha, self._raft or RaftSettings()
        port = self._bound[1] or self.settings.listen_port
        parts = shown_values(self.settings, self._store_settings, further_settings, port, self._tls)
        if self.dledger is not None:
            role = "SYNC_MASTER" if self.dledger.broker_id == 0 else "SLAVE"
            parts |= {"brokerId": str(self.dledger.broker_id), "brokerRole": role}
        return parts

    # ---- events

    def connected(self, connection: Connection) -> None:
        """Connection listener; nothing to do."""

    def closed(self, connection: Connection, reason: str) -> None:
        """Unregister the clients of a closed connection and drop its parked pulls (HB-06)."""
        self.cleaning.add(self.clients.leaving(connection))
        self.cleaning.add(self.long_polling.leaving(connection))

    def _resubscribed(self, change: tuple[ConsumerGroup, list[str]]) -> None:
        """Wake pulls that were parked with the subscription of a member that left; its filters go with it."""
        group, topics = change
        self.filters.replace(group.name, [group.subscriptions[topic] for topic in topics])
        for topic in topics:
            self.long_polling.wake(topic, group.name)

    def _notifies(self, group: str) -> bool:
        """Whether the members of a group are notified of changes (HB-04)."""
        config = self.groups.table.get(group)
        return self.settings.notify_ids_changed and (config is None or config.notify_consumer_ids_changed_enable)

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
            await self.offsets.save_periodically()

    def expire_clients(self) -> None:
        """Close the connections of clients without a recent heartbeat; drop expired queue locks. Much is done in slices."""
        self.cleaning.begin(self._expire(self._clock_ms(), self.settings.client_expiry_ms))
        self.cleaning.begin(self.locks.expiring(self._clock_ms()))

    def _expire(self, now_ms: int, expiry_ms: int) -> Steps[None]:
        for connection in (yield from self.clients.expired(now_ms, expiry_ms)):
            log.warning("client expired address=%s limit_ms=%s", connection.remote_address, expiry_ms)
            connection.close(f"no heartbeat for {expiry_ms} ms")
            yield from self.clients.leaving(connection)

    def _log_behind(self) -> None:
        log.info("dispatch behind commit log %s bytes", self.store.behind_bytes)  # DG-10
        if self.ha_master is not None:
            self.ha_master.log_lag()
