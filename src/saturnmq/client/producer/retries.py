"""Which failed attempts of a send are repeated, until when, and with which pauses.

A cause that passes is retried until the deadline: no connection, no response, no master, no NameServer, a busy broker, and no route
while a broker is not registered that may have the topic. A topic that no server has is asked for again for MISSING_SECONDS, because
the NameServers may not agree yet. A broker that denies
permission is not asked again, though another may be. Other retried response codes are bounded by the setting `attempts`; with
attempts=1 nothing is retried.

Requirements: PR-15, PR-16, PR-18, API-28, API-29.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

from saturnmq.client.connection.deadline import Deadline
from saturnmq.errors import (
    BrokerNotExist,
    CallTimeout,
    ConnectFailed,
    FailedAttempt,
    NoNameServer,
    RouteNotFound,
    listed,
)
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import SaturnError

BACKOFF_MS: Final = (10, 1000)
GROWTH_MAX: Final = 8  # steps after which the pause no longer grows
LEAST_REMAINING_MS: Final = 20  # no attempt begins with less time than this
MISSING_SECONDS: Final = 1.0  # how long a topic that no server has is asked for again
_PASSING_CODES: Final = frozenset(
    {int(ResponseCode.SERVICE_NOT_AVAILABLE), int(ResponseCode.SYSTEM_BUSY), int(ResponseCode.FLOW_CONTROL)}
)
_MISSING_CODES: Final = frozenset({int(ResponseCode.TOPIC_NOT_EXIST), RouteNotFound.code})


def backoff_ms(attempt: int, chance: float) -> float:
    """Back-off in ms before retry number `attempt`, counted from 1: 10 ms, growing fourfold up to 1000 ms (API-28).

    chance: a random number in 0..1 for the jitter, which halves the pause at most, but not below 10 ms.
    """
    least, most = BACKOFF_MS
    # Jitter, or the senders of one outage would return together.
    return max(min(least * 4.0 ** min(attempt - 1, GROWTH_MAX), most) * (0.5 + chance / 2), least)


class Retries:
    """The failed attempts of one call, and whether another one follows.

    fixed: only one broker can be asked, so that it gets all the time to answer. address: set by the caller before each request, to
    appear in the list of attempts. brokers: names of those that a request was sent to.
    """

    def __init__(self, attempts: int, deadline: Deadline, *, fixed: bool = False) -> None:
        self.deadline = deadline
        self.failures: list[FailedAttempt] = []
        self.brokers: list[str] = []
        self.address = ""
        self._attempts = attempts
        # One broker only: dividing its time would help no other.
        self._shares_left = 1 if fixed else attempts
        self._answers = 0
        self._missing_from_ms: int | None = None
        self._denied_by: set[str] = set()
        # With one attempt the first failure is the last.
        self._ended = attempts == 1

    @property
    def share_ms(self) -> int:
        """The timeout of the next attempt: brokers that do not answer use up `attempts` equal shares of the time (API-28)."""
        return self.deadline.share_ms(self._shares_left)

    def failed(self, error: SaturnError, broker: str = "", candidates: frozenset[str] = frozenset()) -> None:
        """Record a failed attempt. broker: the name of the broker asked. candidates: the names of those that could be asked."""
        elapsed_ms = self.deadline.elapsed_ms
        self.failures.append(FailedAttempt(broker, self.address, elapsed_ms, error))
        self.address = ""
        # Only failures in a row count.
        missing_from_ms, self._missing_from_ms = self._missing_from_ms, None
        # Only a silent broker uses up its share; a quick refusal leaves the time.
        if isinstance(error, CallTimeout):
            self._shares_left = max(self._shares_left - 1, 1)
        elif isinstance(error, RouteNotFound) and error.broker:
            return  # brokers that may have the topic are not registered
        elif error.code in _MISSING_CODES:
            # From the first such answer.
            self._missing_from_ms = elapsed_ms if missing_from_ms is None else missing_from_ms
            self._ended |= elapsed_ms - self._missing_from_ms >= MISSING_SECONDS * 1000
        elif error.code == ResponseCode.NO_PERMISSION:
            self._denied_by.add(broker)
            # All that could be asked have denied it.
            self._ended |= candidates <= self._denied_by
        elif not (isinstance(error, ConnectFailed | BrokerNotExist | NoNameServer) or error.code in _PASSING_CODES):
            self.answered()

    def answered(self) -> None:
        """Count a response that is retried at most `attempts` times in all."""
        self._answers += 1
        self._ended |= self._answers >= self._attempts

    @property
    def text(self) -> str:
        """The failed attempts, for an error."""
        return listed(self.failures)

    async def again(self) -> bool:
        """Wait for the back-off before the next attempt; False at once if there is none.

        The pauses shrink near the deadline, so that the last attempt is made just before it.
        """
        remaining_ms = self.deadline.remaining_ms
        # An attempt could not end in less.
        if self._ended or remaining_ms < LEAST_REMAINING_MS:
            return False
        # Half of what is left: the pauses shrink, and the last attempts are close to the deadline.
        pause_ms = min(backoff_ms(max(len(self.failures), 1), random.random()), remaining_ms / 2)
        await asyncio.sleep(pause_ms / 1000)
        # The event loop may have been late.
        return self.deadline.remaining_ms > 0
