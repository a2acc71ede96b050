"""Changes of the configuration of a running server, by UPDATE_BROKER_CONFIG (25), UPDATE_NAMESRV_CONFIG (318) and SIGHUP.

A change that a request makes is persisted before it takes effect, if the server has a configuration file.

Requirements: SEC-03, SEC-07, NS-29, OPS-03, ADM-13, ADM-14.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from saturnmq.config.runtime import BlackListedKey, FixedKey, RuntimeSettings, SettingChange
from saturnmq.config.settings import parse_properties
from saturnmq.protocol.bodies import DataVersion
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import ConfigError, RemoteProtocolError, response_error
from saturnmq.store.files.properties_file import set_values

log = logging.getLogger(__name__)

BLACK_LISTED: Final = "Can not update config in black list."  # as Apache RocketMQ 4.9.8, which console scripts look for
FIXED: Final = "Can not update config."


class ServerConfiguration:
    """Changes of one server's settings. file: rewritten with each change; None: changes last until the server stops.

    effects: what to do once the key has its new value, for keys that are not read at each use. shown: the values of keys that an
    administrator may name without changing them, such as those of other parts of the configuration.
    """

    def __init__(
        self,
        settings: RuntimeSettings,
        file: Path | None,
        *,
        effects: Mapping[str, Callable[[], object]],
        shown: Callable[[], Mapping[str, str]],
    ) -> None:
        self._settings = settings
        self._file = file
        self._effects = effects
        self._shown = shown
        self._lock = asyncio.Lock()
        self.version = DataVersion()  # of the values: counts the changes since the start (ADM-12)
        self.overridden: Mapping[str, str] = {}  # key: where a value comes from that overrides the one in the file

    async def update(self, body: bytes, peer: str) -> None:
        """Apply the `key=value` lines of a request, all or none.

        Raises RemoteProtocolError; ResponseError: code 16 for keys that cannot change, 1 for invalid values; StoreError if the file
        cannot be written, in which case nothing has changed.
        """
        pairs = parse_pairs(body)
        async with self._lock:
            try:
                changes = self._settings.parse(pairs, self._shown())
            except FixedKey as error:
                kind = BLACK_LISTED if isinstance(error, BlackListedKey) else FIXED
                raise response_error(ResponseCode.NO_PERMISSION, f"{kind} {error.message}") from error
            except ConfigError as error:
                raise response_error(ResponseCode.SYSTEM_ERROR, error.message) from error
            if self._file is not None and changes:
                values = {change.name: change.after for change in changes}
                await asyncio.get_running_loop().run_in_executor(None, set_values, self._file, values)
                for name in set(values) & set(self.overridden):
                    log.warning(
                        "configuration change lasts until the next start key=%s overridden_by=%s",
                        name, f'"{self.overridden[name]}"',
                    )  # fmt: skip
            self._apply(changes, peer)

    async def reload(self, parts: Iterable[Any]) -> list[str]:
        """Take the values of settings that were read again, for the keys that can change; returns the names of those that did.

        Raises ConfigError, in which case nothing has changed.
        """
        async with self._lock:
            changes = self._settings.parse_reloaded(parts)
            self._apply(changes, "reload")
        return [change.name for change in changes]

    def live(self, cls: type[Any]) -> Any | None:
        """The settings of this class that the server runs with; None if no key of them can change."""
        return self._settings.part(cls)

    @property
    def reloadable(self) -> list[str]:
        """The keys that can change when the file is read again, sorted."""
        return self._settings.reloadable

    def _apply(self, changes: Iterable[SettingChange], by: str) -> None:
        changes = list(changes)
        self._settings.apply(changes)
        if changes:
            self.version = self.version.next(time.time_ns() // 1_000_000)
        for change in changes:
            log.info("configuration changed key=%s from=%s to=%s by=%s", change.name, change.before, change.after, by)
            effect = self._effects.get(change.name)
            if effect is not None:
                effect()


def parse_pairs(body: bytes) -> dict[str, str]:
    """The `key=value` lines of a request. Raises RemoteProtocolError."""
    try:
        return parse_properties(body.decode())
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"the configuration text is not UTF-8: {error}") from error


def set_log_level(level: str) -> None:
    """Set the level of all SaturnMQ loggers except the audit log; empty: that of the command line."""
    logging.getLogger("saturnmq").setLevel(level or logging.NOTSET)
