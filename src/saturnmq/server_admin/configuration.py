"""Changes of the configuration of a running server, for UPDATE_BROKER_CONFIG (25) and UPDATE_NAMESRV_CONFIG (318).

A change is persisted before it takes effect, if the server has a configuration file.

Requirements: SEC-03, SEC-07, NS-29, OPS-03.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from saturnmq.config.runtime import FixedKey, RuntimeSettings
from saturnmq.config.settings import parse_properties
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import ConfigError, RemoteProtocolError, response_error
from saturnmq.store.files.properties_file import set_values

log = logging.getLogger(__name__)


class Configuration:
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
                raise response_error(ResponseCode.NO_PERMISSION, error.message) from error
            except ConfigError as error:
                raise response_error(ResponseCode.SYSTEM_ERROR, error.message) from error
            if self._file is not None and changes:
                values = {change.name: change.after for change in changes}
                await asyncio.get_running_loop().run_in_executor(None, set_values, self._file, values)
            self._settings.apply(changes)
            for change in changes:
                log.info(
                    "configuration changed key=%s from=%s to=%s by=%s", change.name, change.before, change.after, peer
                )
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
