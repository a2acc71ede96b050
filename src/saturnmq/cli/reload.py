"""Reloading of the configuration of a running server on SIGHUP.

The file and all other sources are read as at the start. Keys that may change while the server runs get their new values, all or
none; other keys whose values differ are reported as needing a restart. Anything invalid changes nothing.

Requirements: CLI-10, SEC-07.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
from typing import Any

from saturnmq.cli.settings import Configured, configure
from saturnmq.config.settings import keys_of
from saturnmq.protocol.errors import ConfigError
from saturnmq.server_admin import ServerConfiguration

log = logging.getLogger(__name__)


class Reload:
    """Reads the configuration of one server again. started: as the server was started with it."""

    def __init__(
        self, classes: dict[str, type[Any]], args: argparse.Namespace, preset: dict[str, str], started: Configured
    ) -> None:
        self._classes = classes
        self._args = args
        self._preset = preset
        self._started = {name: loaded.settings for name, loaded in started.parts.items()}
        self._overrides = {
            name: origin
            for loaded in started.parts.values()
            for name, origin in loaded.origins.items()
            if origin in ("option", "--set") or origin.startswith(("environment ", "shard "))
        }
        self._running: asyncio.Task[None] | None = None

    def on_signal(self, configuration: ServerConfiguration) -> None:
        """Reload at each SIGHUP from now on. Call it on the event loop, when the server serves.

        A server without a file has nothing to read: SIGHUP, as of a terminal that closes, ends it as before.
        """
        if self._args.config is None:
            return
        configuration.overridden = self._overrides
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._begin, configuration)

    def _begin(self, configuration: ServerConfiguration) -> None:
        previous = self._running

        async def run() -> None:
            if previous is not None:
                await previous
            try:
                await self.once(configuration)
            except Exception:
                log.exception("configuration not reloaded")

        self._running = asyncio.create_task(run(), name="reload")

    async def once(self, configuration: ServerConfiguration) -> None:
        """Reload now; the outcome is logged."""
        try:
            configured = configure(self._classes, self._args, self._preset)
            changed = await configuration.reload([loaded.settings for loaded in configured.parts.values()])
        except ConfigError as error:
            for problem in error.problems:
                log.error("configuration not reloaded file=%s reason=%s", self._args.config, problem)
            return
        restart_keys = self._restart_needed(configured, configuration)
        log.info("configuration reloaded file=%s changed=%s", self._args.config, ",".join(changed) or "none")
        if restart_keys:
            log.warning("restart needed keys=%s", ",".join(restart_keys))

    def _restart_needed(self, configured: Configured, configuration: ServerConfiguration) -> list[str]:
        """The keys whose value the server was not started with, and that it cannot take now."""
        names = set()
        for part, loaded in configured.parts.items():
            started, live = self._started[part], configuration.live(type(loaded.settings))
            for name, (attribute, _) in keys_of(type(loaded.settings)).items():
                runs = live if live is not None and name in configuration.reloadable else started
                if getattr(loaded.settings, attribute) != getattr(runs, attribute):
                    names.add(name)
        return sorted(names)
