"""Hooks around a send, the end of a transaction and the handling of a message. Source: PR-26, CC-02, TR-03, TR-05, TR-06."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from saturnmq.client.checks import check_properties, check_property_bytes
from saturnmq.client.message import Ack, Message, Receipt
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.message import NAME_SEPARATOR, PAIR_SEPARATOR

if TYPE_CHECKING:
    from saturnmq.client.producer.transactions import TransactionState

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class SendContext:
    """One attempt of a send, as a hook sees it. receipt or error is set when `after` is called.

    receipts: one for each message; receipt is the first; a one-way send has none. properties: the property string of the
    message, of a batch only what counts for all of it; `set_property` changes it. body_bytes: as it travels. started:
    monotonic seconds.
    """

    group: str
    topic: str
    queue: MessageQueue
    address: str
    message_ids: tuple[str, ...]
    receipt: Receipt | None = None
    error: BaseException | None = None
    properties: str = ""
    body_bytes: int = 0
    receipts: Sequence[Receipt] = ()
    started: float = field(default_factory=time.monotonic)
    _added: dict[str, str] = field(default_factory=dict, init=False, repr=False)

    def set_property(self, name: str, value: str) -> None:
        """Add a user property to the message before it is sent, or replace one; of a batch, to all its messages.

        For `check` and `before`, which run for every attempt. Raises MessageRefused where `send` would refuse the property.

            class Tracing(SendHook):
                def before(self, context: SendContext) -> None:
                    context.set_property("traceparent", current_span())
        """
        check_properties({name: value})
        self.properties = with_properties(self.properties, {name: value})
        self._added[name] = value

    def applied_to(self, properties: str) -> str:
        """The property string to send: this one with what hooks have set."""
        return with_properties(properties, self._added) if self._added else properties

    @property
    def elapsed_ms(self) -> int:
        """Since the request was about to be written."""
        return int((time.monotonic() - self.started) * 1000)


def with_properties(text: str, added: Mapping[str, str]) -> str:
    """A property string with these properties added or replaced. Raises MessageRefused when it gets too long."""
    kept = [pair for pair in text.split(PAIR_SEPARATOR) if pair and pair.partition(NAME_SEPARATOR)[0] not in added]
    joined = PAIR_SEPARATOR.join([*kept, *(f"{name}{NAME_SEPARATOR}{value}" for name, value in added.items())])
    check_property_bytes(joined)
    return joined


@dataclass(slots=True)
class EndContext:
    """The end of a transaction, as a hook sees it. asked: the broker asked for it, there is no receipt then.

    topic: the user's name of it. message_id: of the half message. address: of the broker that is told.
    """

    group: str
    topic: str
    message_id: str
    properties: Mapping[str, str]
    address: str
    state: TransactionState
    asked: bool
    receipt: Receipt | None = None


class SendHook:
    """Base with four empty methods. `check` may veto by raising; errors of the others are logged only.

    They run around every attempt of `send`, `send_many`, `send_oneway`, `request`, `reply` and the first half of a transaction.
    """

    def check(self, context: SendContext) -> None:
        """Raise to forbid the send."""

    def before(self, context: SendContext) -> None:
        """Just before the request is written; may call `context.set_property`."""

    def after(self, context: SendContext) -> None:
        """After the answer or any exception; of a one-way send, after it was written."""

    def ended(self, context: EndContext) -> None:
        """A transaction was decided, or left for `check` to decide; the broker is about to be told."""


def run_quietly(hooks: Sequence[SendHook], name: str, context: SendContext | EndContext) -> None:
    """Call `before`, `after` or `ended` of all; what they raise is logged."""
    for hook in hooks:
        try:
            getattr(hook, name)(context)
        except Exception:
            logger.exception("send hook failed hook=%s stage=%s", type(hook).__name__, name)


@dataclass(slots=True)
class ConsumeContext:
    """One delivery of a message, as a hook sees it. The last three are set when `after` is called.

    verdict: what was said about the message. reason: why it failed, as far as was told. timed_out: nobody said anything
    within ack_timeout. started: monotonic seconds. notes: what a hook wants to find again in `after`, under a key of its own.
    """

    group: str
    message: Message[Any]
    started: float = field(default_factory=time.monotonic)
    notes: dict[object, Any] = field(default_factory=dict)
    verdict: Ack | None = None
    reason: str = ""
    timed_out: bool = False

    @property
    def elapsed_ms(self) -> int:
        """Since the message was handed out."""
        return int((time.monotonic() - self.started) * 1000)


class ConsumeHook:
    """Base with two empty methods; what they raise is logged only.

    A delivery that ends without a verdict, because the queue moved away or the consumer stopped, has no `after`.
    """

    def before(self, context: ConsumeContext) -> None:
        """A message is handed out."""

    def after(self, context: ConsumeContext) -> None:
        """It was settled, or nobody settled it in time."""


def run_consume_hooks(hooks: Sequence[ConsumeHook], name: str, context: ConsumeContext) -> None:
    """Call `before` or `after` of all; what they raise is logged."""
    for hook in hooks:
        try:
            getattr(hook, name)(context)
        except Exception:
            logger.exception("consume hook failed hook=%s stage=%s", type(hook).__name__, name)
