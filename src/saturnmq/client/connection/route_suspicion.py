"""Doubts about a route: a broker that cannot be reached, or says that it is not the master, may have a successor.

The NameServers are asked at once for the topics whose route names it, and while doubts come again and again, not more often than
a few times a second: a switch of a DLedger group's leader is learnt when it is known, not with the next poll. Source: spec 01
PR-11, spec 04 DL-B06, DL-C09.
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

PAUSE_SECONDS: Final = 0.25  # between two rounds of questions
SILENT_SECONDS: Final = 10.0  # how long routes are asked for that name a broker which did not answer
REST: Final = 3  # times as long as the last round took: slow NameServers are asked less often


def casts_doubt(request: Command, answer: Command) -> bool:
    """Whether an answer says that its broker is not the master (any more).

    14 is a follower's refusal; 20 without a step forward its "ask the master" to a pull (a filter that matched nothing steps on).
    """
    if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
        return True
    return (
        answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        and request.code == RequestCode.PULL_MESSAGE
        and answer.ext.get("nextBeginOffset") == request.ext.get("queueOffset")
    )


class Doubts:
    """Asks again for routes that somebody doubts. spawn makes the task, of which there is one at most.

    A broker that was silent is asked about for some seconds more, because other calls may wait for it; on_replaced is told its
    address when no route names it any more.
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
        self._topics: dict[str, None] = {}  # in the order of the doubts
        self._silent: dict[str, float] = {}  # address -> until when it is asked about, loop's clock
        self._task: asyncio.Task[Any] | None = None

    def tell(self, address: str, *, silent: bool = False) -> None:
        """A broker at this address failed, or refused as one that does not lead; silent: it did not answer."""
        topics = self._routes.naming(address)
        self._topics |= dict.fromkeys(topics)
        if silent and topics:
            self._silent[address] = asyncio.get_running_loop().time() + SILENT_SECONDS
        if self._topics and (self._task is None or self._task.done()):
            self._task = self._spawn("doubted routes", self._ask())

    async def _ask(self) -> None:
        clock = asyncio.get_running_loop().time
        while self._topics:
            began, topics = clock(), list(self._topics)
            self._topics = {}
            for topic in topics:
                try:
                    await self._routes.refresh(topic)
                except SaturnError as error:
                    logger.info("doubted route not refreshed topic=%s error=%s", topic, error)
            self._look_for_the_silent(clock())
            await asyncio.sleep(max(self._pause_seconds, REST * (clock() - began)))

    def _look_for_the_silent(self, now: float) -> None:
        for address, until in list(self._silent.items()):
            topics = self._routes.naming(address)
            if topics and now < until:
                self._topics |= dict.fromkeys(topics)
                continue
            del self._silent[address]
            if not topics:
                self._on_replaced(address)
