"""The NameServer process: listener, timers, and configuration that administrators read and change at run time.

Routes are kept in memory; only the KV configuration and the changed settings are written to disk. Runs on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from saturnmq.config.settings import format_properties, load, to_properties
from saturnmq.namesrv.kv_config import KVConfig
from saturnmq.namesrv.processor import process
from saturnmq.namesrv.routes import RouteTable
from saturnmq.namesrv.settings import NameServerSettings
from saturnmq.net import CHOSEN_BY, Connection, NetSettings, RemotingServer
from saturnmq.net.tls import TlsSettings
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import ConfigError, response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.state_file import StateFile

log = logging.getLogger(__name__)

_PATH_KEYS: Final = ("kvConfigPath", "configStorePath")
# Keys that take effect at start only.
_START_KEYS: Final = frozenset({"listenPort", "bindAddress", "rocketmqHome", "remoteConfigEnable"})
_CACHED_ROUTES_MAX: Final = 10_000


class _PrivateDisk(Disk):
    """Disk access for files that contain a password: only the owner may read them."""

    def write_file(self, path: Path, data: bytes) -> None:
        path.touch(mode=0o600)
        path.chmod(0o600)
        super().write_file(path, data)


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
        self.settings = settings
        self.net = net
        self.routes = RouteTable()
        self.kv = KVConfig(Path(settings.kv_config_path))
        self._unknown = dict(unknown_keys or {})
        self._tls = tls or TlsSettings()
        self._clock_ms = clock_ms or (lambda: time.time_ns() // 1_000_000)
        self._server = RemotingServer(self._handle, settings=net, tls=tls, listener=self)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._cache: dict[str, bytes] = {}
        self._cached_at = -1

    async def start(self, host: str, port: int, *, chosen_by: str = CHOSEN_BY) -> tuple[str, int]:
        """Listen and start the timers; return the bound address. chosen_by: see RemotingServer.start.

        Raises StartError, StoreError.
        """
        self.kv.load()
        bound = await self._server.start(host, port, chosen_by=chosen_by)
        settings = self.settings
        self._schedule("scan", settings.scan_first_ms, lambda: self.settings.scan_interval_ms, self.scan)
        self._schedule("kv", settings.kv_log_first_ms, lambda: self.settings.kv_log_interval_ms, self._log_kv)
        return bound

    @property
    def ports(self) -> set[int]:
        """Listening ports and the local ports of the open connections."""
        return self._server.ports

    async def stop(self) -> None:
        """Close the listener, answer requests in flight, close connections."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        await self._server.stop()

    def _schedule(self, name: str, first_ms: int, interval_ms: Callable[[], int], work: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()

        def tick() -> None:
            self._timers[name] = loop.call_later(interval_ms() / 1000, tick)
            work()

        self._timers[name] = loop.call_later(first_ms / 1000, tick)

    # ---- timers and events

    def scan(self) -> None:
        """Remove and disconnect brokers that have not registered within brokerChannelExpiredTime (NS-15)."""
        for address, connection in self.routes.expired(self.now_ms(), self.settings.broker_expiry_ms):
            log.warning("broker expired address=%s expiry_ms=%s", address, self.settings.broker_expiry_ms)
            if isinstance(connection, Connection):
                connection.close(f"no registration for {self.settings.broker_expiry_ms} ms")

    def _log_kv(self) -> None:
        for namespace, entries in self.kv.table.items():
            log.info("kv configuration namespace=%s keys=%s", namespace, sorted(entries))

    def connected(self, connection: Connection) -> None:
        """Nothing to do until the peer registers."""

    def closed(self, connection: Connection, reason: str) -> None:
        """Remove the brokers that registered over this connection from the routes at once (NS-16)."""
        address = self.routes.connection_closed(connection)
        if address is not None:
            log.info("broker disconnected address=%s reason=%s", address, reason)

    # ---- Context of the request handlers

    def _handle(self, connection: Connection, request: Command) -> Command:
        return process(self, connection, request)

    def now_ms(self) -> int:
        return self._clock_ms()

    def order_messages(self) -> bool:
        return self.settings.order_message_enable

    def route_bytes(self, topic: str, encode: Callable[[], bytes | None]) -> bytes | None:
        """The encoded route of a topic, cached until the route table changes."""
        if self._cached_at != self.routes.changes or len(self._cache) > _CACHED_ROUTES_MAX:
            self._cache.clear()
            self._cached_at = self.routes.changes
        body = self._cache.get(topic)
        if body is None:
            body = encode()
            if body is not None:
                self._cache[topic] = body
        return body

    def config_text(self) -> str:
        """`key=value` lines of all settings, including unknown keys (NS-02, NS-29)."""
        return format_properties(to_properties(self.settings) | to_properties(self.net) | self._unknown)

    def update_config(self, pairs: dict[str, str]) -> None:
        """Change settings and write them to configStorePath; unknown keys are ignored (NS-29).

        Raises ConfigError for an invalid value or a key that cannot change at run time, NoPermission if not allowed.
        """
        if any(name in pairs for name in _PATH_KEYS):
            raise response_error(ResponseCode.NO_PERMISSION, "Can not update config path")
        if not self.settings.remote_config_enable:
            raise response_error(
                ResponseCode.NO_PERMISSION,
                "remote configuration is disabled; set remoteConfigEnable=true in the configuration file and restart "
                "this NameServer",
            )
        present = to_properties(self.settings, secrets=True)
        fixed = to_properties(self.net) | self._unknown | {name: present[name] for name in _START_KEYS}
        refused = [name for name, text in pairs.items() if name in fixed and text.strip() != fixed[name].strip()]
        if refused:
            raise ConfigError(
                f"{', '.join(sorted(refused))} cannot change at run time; nothing was changed. "
                "Set it in the configuration file and restart this NameServer"
            )
        changes = {name: text for name, text in pairs.items() if name in present and name not in _START_KEYS}
        updated = load(NameServerSettings, ("present", present), ("update", changes)).settings
        persisted = to_properties(updated, secrets=True) | to_properties(self.net, secrets=True) | self._tls_keys()
        disk = _PrivateDisk() if self._tls.server_key_password else Disk()
        StateFile(Path(updated.config_store_path), disk).write(format_properties(persisted | self._unknown).encode())
        self.settings = updated
        self.routes.changes += 1

    def _tls_keys(self) -> dict[str, str]:
        """The `tls.*` keys that differ from their defaults: without them the written file would disable TLS at the next start."""
        defaults = to_properties(TlsSettings())
        return {name: text for name, text in to_properties(self._tls, secrets=True).items() if text != defaults[name]}
