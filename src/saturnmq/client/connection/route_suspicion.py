"""Route suspicion: refreshes routes whose broker is unreachable or says that it is not the master.

Such a broker may have a successor. The routes that name it are refreshed at once, and at most a few times a second while
failures continue. A change of leader in a DLedger group is thus seen as soon as the NameServers have it, not at the next poll.

Requirements: PR-11, DL-B06, DL-C09.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from saturnmq.client.connection.routes import RouteCache
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.frames.command import Command

logger = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 0.25  # minimum pause between two refresh rounds
UNRESPONSIVE_SECONDS: Final = 10.0  # how long the routes of a broker that timed out are refreshed
PAUSE_FACTOR: Final = 3  # the pause is at least this multiple of the last round's duration, to spare slow NameServers


def is_no_master(request: Command, answer: Command) -> bool:
    """Whether a response says that the broker is not, or no longer, the master.

    Code 14 is a follower's rejection. Code 20 to a pull whose offset does not advance means "pull from the master"; a filter
    that matched nothing also yields 20, but advances the offset.
    """
    if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
        return True
    return (
        answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        and request.code == RequestCode.PULL_MESSAGE
        and answer.ext.get("nextBeginOffset") == request.ext.get("queueOffset")
    )


class RouteSuspicion:
    """Refreshes the routes of suspected brokers, in at most one task, which is started by spawn.

    The routes of a broker that timed out are refreshed for UNRESPONSIVE_SECONDS, because other calls may still be waiting for it;
    on_replaced is called with its address once no route names it any more.
    """

    def __init__(
        self,
        routes: RouteCache,
        spawn: Callable[[str, Coroutine[Any, Any, None]], asyncio.Task[Any]],
        on_replaced: Callable[[str], None],
        *,
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        self._routes = routes
        self._spawn = spawn
        self._on_replaced = on_replaced
        self._pause_seconds = pause_seconds
        self._topics: dict[str, None] = {}  # topics to refresh, in the order of the reports
        self._unresponsive: dict[str, float] = {}  # address -> when to give up refreshing, event-loop clock, seconds
        self._task: asyncio.Task[Any] | None = None

    def report(self, address: str, *, unresponsive: bool = False) -> None:
        """Report that the broker at this address failed or is not the master. unresponsive: it did not respond in time."""
        topics = self._routes.topics_at(address)
        self._topics |= dict.fromkeys(topics)
        if unresponsive and topics:
            self._unresponsive[address] = asyncio.get_running_loop().time() + UNRESPONSIVE_SECONDS
        if self._topics and (self._task is None or self._task.done()):
            self._task = self._spawn("suspected routes", self._refresh())

    async def _refresh(self) -> None:
        clock = asyncio.get_running_loop().time
        while self._topics:
            began, topics = clock(), list(self._topics)
            # Reports during the round are for the next one.
            self._topics = {}
            for topic in topics:
                try:
                    await self._routes.refresh(topic)
                except Exception as error:
                    unexpected = not isinstance(error, SaturnError)
                    logger.info("suspected route not refreshed topic=%s error=%s", topic, error, exc_info=unexpected)
            self._check_unresponsive(clock())
            await asyncio.sleep(max(self._pause_seconds, PAUSE_FACTOR * (clock() - began)))

    def _check_unresponsive(self, now: float) -> None:
        for address, until in list(self._unresponsive.items()):
            topics = self._routes.topics_at(address)
            if topics and now < until:
                self._topics |= dict.fromkeys(topics)
                continue
            # Replaced or given up: in both cases it is not watched any more.
            del self._unresponsive[address]
            if not topics:
                self._on_replaced(address)
