"""The NameServer process: listener, timers, and configuration that administrators read and change at run time.

Routes are kept in memory; only the KV configuration and the changed settings are written to disk. Runs on one event loop.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from saturnmq.config.runtime import RuntimeSettings
from saturnmq.config.settings import format_properties, masked, to_properties
from saturnmq.log_limit import LogLimit
from saturnmq.namesrv.access_control import RELOAD_MS, SIGNED, NameServerAccounts
from saturnmq.namesrv.answer_cache import AnswerCache
from saturnmq.namesrv.broker_places import BrokerPlaces
from saturnmq.namesrv.disposal import Disposal
from saturnmq.namesrv.kv_config import KVConfig
from saturnmq.namesrv.metrics import NameServerMetrics
from saturnmq.namesrv.processor import TABLE, Peer, process
from saturnmq.namesrv.registration_queue import RegistrationQueue
from saturnmq.namesrv.routes import RouteTable
from saturnmq.namesrv.settings import NameServerSettings
from saturnmq.net import CHOSEN_BY, Connection, NetSettings, RemotingServer, Reply, reply_of
from saturnmq.net.tls import TlsSettings
from saturnmq.protocol.addresses import host_of, join_host_port, network_of
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.server_admin import Administration, ServerConfiguration, parse_pairs, set_log_level
from saturnmq.tasks import supervised

log = logging.getLogger(__name__)

_PATH_KEYS: Final = ("kvConfigPath", "configStorePath")
_SHOWN: Final = 5  # broker addresses or keys in a log line

T = TypeVar("T")


class NameServer:
    """A NameServer: routes in memory, KV configuration on disk."""

    def __init__(
        self,
        settings: NameServerSettings,
        net: NetSettings,
        *,
        tls: TlsSettings | None = None,
        unknown_keys: dict[str, str] | None = None,
        clock_ms: Callable[[], int] | None = None,
    ) -> None:
        self.settings = settings = dataclasses.replace(settings)  # this server's own: the configuration may change
        self.net = net
        self._disposal = Disposal()
        self.routes = RouteTable(self._disposal.add)
        self.broker_places = BrokerPlaces(self.routes)
        self.answers = AnswerCache(lambda: self.routes.changes, net.frame_bytes_max)
        self.kv = KVConfig(Path(settings.kv_config_path))
        self._unknown_keys = {name: masked(name, text) for name, text in (unknown_keys or {}).items()}
        self._clock_ms = clock_ms or (lambda: time.time_ns() // 1_000_000)
        self.configuration = ServerConfiguration(
            RuntimeSettings(settings),
            Path(settings.config_store_path),
            effects={
                "orderMessageEnable": self._routes_changed,
                "logLevel": lambda: set_log_level(settings.log_level),
            },
            shown=self._shown,
        )
        self.administration = Administration(settings.admin_addresses)
        self.accounts = NameServerAccounts(settings, self._clock_ms) if settings.namesrv_access == SIGNED else None
        self._reloading: asyncio.Task[None] | None = None
        self._server = RemotingServer(self._handle, settings=net, tls=tls, listener=self)
        self.metrics = NameServerMetrics(settings, self.routes, self.kv, self._server, TABLE)
        # One large registration at a time: the memory of a parsed body is bounded, and the order is kept.
        self._registrations = RegistrationQueue()
        self._registering: Counter[Peer] = Counter()  # large registrations that wait or run, by connection
        self._parser = ThreadPoolExecutor(1, "registration")
        self._log_limit = LogLimit()
        self._bound = ("", 0)
        self._timers: dict[str, asyncio.TimerHandle] = {}

    async def start(self, host: str, port: int, *, chosen_by: str = CHOSEN_BY) -> tuple[str, int]:
        """Listen and start the timers; return the bound address. chosen_by: see RemotingServer.start.

        Raises StartError, StoreError, ConfigError for account files that cannot be used.
        """
        if self.settings.log_level:
            set_log_level(self.settings.log_level)
        if self.accounts is not None:
            await self.accounts.load()
            self._schedule("accounts", RELOAD_MS, lambda: RELOAD_MS, self._reload_accounts)
        self.kv.load()
        bound = self._bound = await self._server.start(host, port, chosen_by=chosen_by)
        await self.metrics.start()
        settings = self.settings
        self._schedule("scan", settings.scan_first_ms, lambda: self.settings.scan_interval_ms, self.scan)
        self._schedule("kv", settings.kv_log_first_ms, lambda: self.settings.kv_log_interval_ms, self._log_kv)
        return bound

    @property
    def ports(self) -> set[int]:
        """Listening ports and the local ports of the open connections."""
        return self._server.ports

    @property
    def unauthenticated(self) -> dict[str, str]:
        """Name and address of each listening port that checks no account (SEC-16)."""
        ports = {"namesrv": join_host_port(*self._bound)} if self.accounts is None else {}
        return ports | self.metrics.unauthenticated

    async def stop(self) -> None:
        """Close the listener, answer requests in flight, close connections."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._reloading is not None:
            await asyncio.gather(self._reloading, return_exceptions=True)
        await self.metrics.port.stop()
        await self._server.stop()
        await self._registrations.stop()
        await self.answers.stop()
        await self._disposal.stop()
        await self.kv.settle()
        self._parser.shutdown(wait=False, cancel_futures=True)

    def _schedule(self, name: str, first_ms: int, interval_ms: Callable[[], int], work: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()

        def tick() -> None:
            self._timers[name] = loop.call_later(interval_ms() / 1000, tick)
            work()

        self._timers[name] = loop.call_later(first_ms / 1000, tick)

    # ---- timers and events

    def scan(self) -> None:
        """Remove and disconnect brokers that have not registered within brokerChannelExpiredTime (NS-15)."""
        expired = self.routes.expired(self.now_ms(), self.settings.broker_expiry_ms)
        if expired:
            log.warning("brokers expired count=%s addresses=%s expiry_ms=%s", len(expired),
                        _some([address for address, _ in expired]), self.settings.broker_expiry_ms)  # fmt: skip
        for _, connection in expired:
            if isinstance(connection, Connection):
                connection.close(f"no registration for {self.settings.broker_expiry_ms} ms")

    def _reload_accounts(self) -> None:
        if self.accounts is not None and (self._reloading is None or self._reloading.done()):
            self._reloading = supervised(self._reload(self.accounts), "account files")

    async def _reload(self, accounts: NameServerAccounts) -> None:
        try:
            await accounts.reload()
        except Exception:
            log.exception("account files not read retry_ms=%s", RELOAD_MS)

    def _log_kv(self) -> None:
        for namespace in list(self.kv.table)[:_SHOWN]:
            entries = self.kv.table[namespace]
            log.info("kv configuration namespace=%s count=%s keys=%s", namespace, len(entries), _some(sorted(entries)))

    def connected(self, connection: Connection) -> None:
        """Nothing to do until the peer registers."""

    def closed(self, connection: Connection, reason: str) -> None:
        """Remove the brokers that registered over this connection from the routes at once (NS-16)."""
        addresses = self.routes.connection_closed(connection)
        if addresses:
            self.removed(addresses, connection.remote_address, reason)

    # ---- Context of the request handlers

    def _handle(self, connection: Connection, request: Command) -> Reply:
        return reply_of(process(self, connection, request))

    def now_ms(self) -> int:
        return self._clock_ms()

    def is_registering(self, connection: Peer) -> bool:
        return connection in self._registering

    def later(self, connection: Peer, request: Command, work: Callable[[], Awaitable[Command]]) -> Awaitable[Command]:
        """Run the work of a registration after those that arrived before, in turn between addresses. Raises ResponseError 2."""

        def release(_: object) -> None:
            self._registering[connection] -= 1
            if not self._registering[connection]:
                del self._registering[connection]

        address = network_of(host_of(connection.remote_address))
        result = self._registrations.put(address, len(request.body or b""), work)
        self._registering[connection] += 1
        result.add_done_callback(release)
        return result

    async def in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._parser, work)

    def removed(self, addresses: list[str], peer: str, reason: str) -> None:
        """Log that brokers have left the routes."""
        self._line(
            logging.INFO,
            "brokers removed",
            peer,
            f"count={len(addresses)} addresses={_some(addresses)} reason={reason}",
        )

    def report(self, event: str, peer: str, detail: str) -> None:
        """Log what is wrong with a registration."""
        self._line(logging.WARNING, event, peer, f"detail={detail}")

    def _line(self, level: int, event: str, peer: str, text: str) -> None:
        """Write a log line that a peer has caused, unless its network has one of this event in this second."""
        suppressed = self._log_limit.suppressed(f"{event} {network_of(host_of(peer))}")
        if suppressed is not None:
            log.log(level, "%s peer=%s %s suppressed=%s", event, peer, text, suppressed)

    def order_messages(self) -> bool:
        return self.settings.order_message_enable

    def config_text(self) -> str:
        """`key=value` lines of all settings, including unknown keys (NS-02, NS-29)."""
        return format_properties(self._shown())

    def _shown(self) -> dict[str, str]:
        return to_properties(self.settings) | to_properties(self.net) | self._unknown_keys

    def _routes_changed(self) -> None:
        self.routes.changes += 1

    async def update_config(self, body: bytes, peer: str) -> None:
        """Change settings and write them to configStorePath (NS-29). Raises as `ServerConfiguration.update`; code 16 for a path."""
        if any(name in parse_pairs(body) for name in _PATH_KEYS):
            raise response_error(ResponseCode.NO_PERMISSION, "Can not update config path")
        await self.configuration.update(body, peer)


def _some(names: list[str]) -> str:
    """The first of these names, for a log line."""
    return ",".join(names[:_SHOWN]) + (",..." if len(names) > _SHOWN else "")
