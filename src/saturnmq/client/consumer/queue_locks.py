"""Queue locks held at the brokers: only the holder may consume a queue in order. Request codes 41 and 42.

A lock is valid for 30 s after the request that acquired or renewed it was sent, half of the broker's 60 s expiry.

Requirements: OR-02, OR-05, PL-13.
"""

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
LIVE_S: Final = 30.0  # half of the broker's 60 s: a holder that cannot renew stops well before another may acquire


class MemberLocks:
    """The queue locks of one group member. Queues carry namespaced topic names."""

    def __init__(self, core: Core, group: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._core = core
        self._group = group
        self._clock = clock
        self._held: dict[MessageQueue, float] = {}
        # Locks that a broker may hold for us, including requests that were never answered.
        self._possibly_locked: set[MessageQueue] = set()

    def valid(self, queue: MessageQueue) -> bool:
        """Whether this member certainly holds the lock."""
        since = self._held.get(queue)
        # By this clock, from before the request was sent: the broker's validity begins later.
        return since is not None and self._clock() - since < LIVE_S

    def forget(self, queue: MessageQueue) -> None:
        """Drop the local record of a lock: it expired, was released or was denied."""
        self._held.pop(queue, None)
        self._possibly_locked.discard(queue)

    def possibly_locked(self) -> set[MessageQueue]:
        """Queues that a broker may have locked for us: granted, or requested without an answer."""
        return set(self._possibly_locked)

    async def lock(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, bool]:
        """Acquire or renew locks; returns by queue whether it was granted. Queues whose broker did not answer are omitted."""
        verdicts: dict[MessageQueue, bool] = {}
        for broker, broker_queues in _by_broker(queues).items():
            # Before the request, not at the answer: the broker's time runs from in between.
            requested_at = self._clock()
            # Before the call: a request without an answer may have been granted.
            self._possibly_locked.update(broker_queues)
            try:
                answer = await self._call(RequestCode.LOCK_BATCH_MQ, broker, broker_queues)
                held = set(LockBatchResponse.decode(answer.body).lock_ok_mq_set)
            except SaturnError as error:
                self._core.outages.failed("queue lock", (self._group, broker), f"broker={broker}", error)
                # Neither granted nor denied: an earlier grant stays valid until it ends by itself.
                continue
            self._core.outages.succeeded("queue lock", (self._group, broker))
            for queue in broker_queues:
                verdicts[queue] = queue in held
                if queue in held:
                    self._held[queue] = requested_at
                else:
                    self.forget(queue)
        return verdicts

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Release locks; one whose release fails expires at the broker."""
        for broker, broker_queues in _by_broker(queues).items():
            for queue in broker_queues:
                # Before the call: from now on nothing may be consumed, whether the release succeeds or not.
                self.forget(queue)
            try:
                await self._call(RequestCode.UNLOCK_BATCH_MQ, broker, broker_queues)
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
