"""Locks on queues at their brokers: who has one may read the queue in order. Source: spec 03 OR-02, OR-05, PL-13; 41, 42."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from saturnmq.client.connection.core import Core
from saturnmq.protocol.bodies import LockBatchRequest, LockBatchResponse, MessageQueue
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.frames.command import Command

logger = logging.getLogger(__name__)

LOCK_TIMEOUT_MS: Final = 1_000
FIRST_RENEW_S: Final = 1.0
RENEW_S: Final = 20.0
LIVE_S: Final = 30.0  # half of a broker's 60 s: whoever cannot renew stops long before somebody else may begin


class QueueLocks:
    """The locks of one member of a group. Queues carry the topic's name on the wire."""

    def __init__(self, core: Core, group: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._core = core
        self._group = group
        self._clock = clock
        self._held: dict[MessageQueue, float] = {}
        self._asked: set[MessageQueue] = (
            set()
        )  # whatever a broker may hold in our name, an answer that never came included

    def valid(self, queue: MessageQueue) -> bool:
        """Whether the lock is ours for certain."""
        since = self._held.get(queue)
        return since is not None and self._clock() - since < LIVE_S

    def forget(self, queue: MessageQueue) -> None:
        """Not ours any more, or nobody's."""
        self._held.pop(queue, None)
        self._asked.discard(queue)

    def asked(self) -> set[MessageQueue]:
        """Queues that a broker may hold in our name: locked, or asked for without an answer."""
        return set(self._asked)

    async def lock(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, bool]:
        """Take or renew; by queue whether it is ours. A queue whose broker did not answer is missing."""
        verdicts: dict[MessageQueue, bool] = {}
        for broker, wanted in _by_broker(queues).items():
            asked = self._clock()
            self._asked.update(wanted)
            try:
                answer = await self._call(RequestCode.LOCK_BATCH_MQ, broker, wanted)
                held = set(LockBatchResponse.decode(answer.body).lock_ok_mq_set)
            except SaturnError as error:
                logger.warning("queues not locked group=%s broker=%s error=%s", self._group, broker, error)
                continue
            for queue in wanted:
                verdicts[queue] = queue in held
                if queue in held:
                    self._held[queue] = asked
                else:
                    self.forget(queue)
        return verdicts

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Give up locks; one that cannot be given up ends by itself at the broker."""
        for broker, wanted in _by_broker(queues).items():
            for queue in wanted:
                self.forget(queue)
            try:
                await self._call(RequestCode.UNLOCK_BATCH_MQ, broker, wanted)
            except SaturnError as error:
                logger.warning("queues not unlocked group=%s broker=%s error=%s", self._group, broker, error)

    async def _call(self, code: RequestCode, broker: str, queues: list[MessageQueue]) -> Command:
        core = self._core
        address = await core.master_address(queues[0].topic, broker)
        body = LockBatchRequest(self._group, core.client_id, queues).encode()
        answer = await core.remote.call(address, Command(code, body=body), LOCK_TIMEOUT_MS)
        if answer.code != ResponseCode.SUCCESS:
            raise core.answer_error(answer, f"{broker}@{address}", group=self._group)
        return answer


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    brokers: dict[str, list[MessageQueue]] = {}
    for queue in sorted(queues):
        brokers.setdefault(queue.broker_name, []).append(queue)
    return brokers
