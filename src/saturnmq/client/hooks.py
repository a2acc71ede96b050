"""Hooks around a send. Source: PR-26."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from saturnmq.client.message import Receipt
from saturnmq.protocol.bodies import MessageQueue

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class SendContext:
    """One attempt of a send, as a hook sees it. receipt or error is set when `after` is called."""

    group: str
    topic: str
    queue: MessageQueue
    address: str
    message_ids: tuple[str, ...]
    receipt: Receipt | None = None
    error: BaseException | None = None


class SendHook:
    """Base with three empty methods. `check` may veto by raising; errors of the others are logged only."""

    def check(self, context: SendContext) -> None:
        """Raise to forbid the send."""

    def before(self, context: SendContext) -> None:
        """Just before the request is written."""

    def after(self, context: SendContext) -> None:
        """After the answer or any exception."""


def run_quietly(hooks: tuple[SendHook, ...], name: str, context: SendContext) -> None:
    """Call `before` or `after` of all; what they raise is logged."""
    for hook in hooks:
        try:
            getattr(hook, name)(context)
        except Exception:
            logger.exception("send hook failed hook=%s stage=%s", type(hook).__name__, name)
