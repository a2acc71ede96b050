"""Callbacks of the application about its assignment."""

from __future__ import annotations

import inspect
import logging

from saturnmq.client.consumer.settings import OnQueues
from saturnmq.protocol.bodies import MessageQueue

logger = logging.getLogger(__name__)


async def notify(callback: OnQueues | None, group: str, queues: list[MessageQueue]) -> None:
    """Call and await the callback, unless there is none or no queue; its error is logged."""
    if callback is None or not queues:
        return
    try:
        outcome = callback(queues)
        if inspect.isawaitable(outcome):
            await outcome
    except Exception:  # user code
        logger.exception("callback failed group=%s queues=%d", group, len(queues))
