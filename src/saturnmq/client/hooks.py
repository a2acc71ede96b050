"""Hooks around a send, the end of a transaction and the handling of a message.

Hooks run on the event loop and must not block. Only `SendHook.check` may raise to veto; errors of all others are logged.
Installed hooks belong to the process: all producers and consumers that applications create afterwards have them.

Requirements: PR-26, CC-02, TR-03, TR-05, TR-06.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from saturnmq.client.checks import check_properties, check_property_bytes
from saturnmq.client.message import Ack, Message, ReceivedMessage
from saturnmq.client.receipt import Receipt, TransactionState
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.message import NAME_SEPARATOR, PAIR_SEPARATOR

logger = logging.getLogger(__name__)

K = TypeVar("K")
FAILED_PREFIX: Final = "handler raised "  # start of ConsumeContext.reason when a listener's handler raised


@dataclass(slots=True)
class SendContext:
    """One attempt of a send, as passed to a SendHook. receipt or error is set when `after` is called.

    topic: as the user named it. address: of the broker. receipts: one per message; receipt is the first; a one-way send has
    none. properties: the encoded property string of the message, of a batch only the properties shared by all its messages;
    changed by `set_property`. body_bytes: size on the wire, after compression. started: monotonic clock, seconds. client_id: as
    brokers list the client. shard_by: that of the send. notes: storage for hooks between `before` and `after`; use the hook itself
    as the key.
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
    started: float = field(default_factory=lambda: time.monotonic())  # looked up at the call: tests replace the clock
    client_id: str = ""
    shard_by: str | int | None = None
    notes: dict[object, Any] = field(default_factory=dict)
    _added: dict[str, str] = field(default_factory=dict, init=False, repr=False)

    def set_property(self, name: str, value: str) -> None:
        """Add or replace a user property of the message before it is sent; in a batch, of all its messages.

        For use in `check` and `before`, which run for every attempt. Raises MessageRefused if `send` would reject the property.

        Example:
            class Tracing(SendHook):
                def before(self, context: SendContext) -> None:
                    context.set_property("traceparent", current_span())
        """
        check_properties({name: value})
        self.properties = with_properties(self.properties, {name: value})
        self._added[name] = value

    def applied_to(self, properties: str) -> str:
        """The given property string with the properties that hooks have set."""
        return with_properties(properties, self._added) if self._added else properties

    @property
    def elapsed_ms(self) -> int:
        """Milliseconds since the attempt started."""
        return int((time.monotonic() - self.started) * 1000)


def with_properties(text: str, added: Mapping[str, str]) -> str:
    """The property string with these properties added or replaced. Raises MessageRefused if it becomes too long."""
    remaining_pairs = [
        pair for pair in text.split(PAIR_SEPARATOR) if pair and pair.partition(NAME_SEPARATOR)[0] not in added
    ]
    joined = PAIR_SEPARATOR.join(
        [*remaining_pairs, *(f"{name}{NAME_SEPARATOR}{value}" for name, value in added.items())]
    )
    check_property_bytes(joined)
    return joined


@dataclass(slots=True)
class EndContext:
    """The end of a transaction, as passed to `SendHook.ended`.

    topic: as the user named it. message_id: of the half message. address: of the broker that is notified. state: the decision;
    UNKNOWN leaves it to `check`. asked: the decision answers a transaction check by the broker; receipt is None then.
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
    """Base class for producer hooks; its four methods do nothing. `check` may veto by raising, errors of the others are logged.

    Hooks run around every attempt of `send`, `send_many`, `send_oneway`, `request`, `reply` and the half message of a
    transaction, on the event loop: they must not block.

    Example:
        class Log(SendHook):
            def after(self, context: SendContext) -> None:
                print(context.topic, context.elapsed_ms, context.error or context.receipt)

        out = client.producer("orders-p", hooks=[Log()])
    """

    def check(self, context: SendContext) -> None:
        """Before each attempt. Raise to reject the send with that error."""

    def before(self, context: SendContext) -> None:
        """After `check`, before the request is written. May call `context.set_property`."""

    def after(self, context: SendContext) -> None:
        """After the response or any exception, including cancellation; for a one-way send, after the write."""

    def ended(self, context: EndContext) -> None:
        """A transaction was decided, or left to `check`; called before the broker is notified."""


def run_quietly(hooks: Sequence[SendHook], name: str, context: SendContext | EndContext) -> None:
    """Call `before`, `after` or `ended` of all hooks; log their exceptions."""
    for hook in hooks:
        try:
            getattr(hook, name)(context)
        except Exception:
            logger.exception("send hook failed hook=%s stage=%s", type(hook).__name__, name)


@dataclass(slots=True)
class ConsumeContext:
    """One delivery of a message, as passed to a ConsumeHook. verdict, reason and timed_out are set when `after` is called.

    group: the consumer group as brokers see it. verdict: how the message was settled. reason: the text given with a failure, or
    empty. timed_out: the message was not settled within ack_timeout. started: monotonic clock, seconds. notes: storage for
    hooks between `before` and `after`; use the hook itself as the key. client_id: as brokers list the client. broadcast: whether
    every member of the group gets all messages. settling_started: when the settlement began, monotonic clock, 0 before.
    """

    group: str
    message: Message[Any]
    started: float = field(default_factory=lambda: time.monotonic())  # looked up at the call: tests replace the clock
    notes: dict[object, Any] = field(default_factory=dict)
    verdict: Ack | None = None
    reason: str = ""
    timed_out: bool = False
    client_id: str = ""
    broadcast: bool = False
    settling_started: float = 0.0

    @property
    def elapsed_ms(self) -> int:
        """Milliseconds since the message was handed out."""
        return int((time.monotonic() - self.started) * 1000)


class ConsumeHook:
    """Base class for consumer hooks; its methods do nothing. Their exceptions are logged, but not those at the end of `processing`.

    A delivery is reported by `before`, then by `received` or `processing`, then by `after`. `after` is not called for a delivery
    that ends without a verdict, because the queue was reassigned or the consumer stopped. Hooks run on the event loop, `processing`
    also in threads of the application: they must not block.

    Example:
        class Log(ConsumeHook):
            def after(self, context: ConsumeContext) -> None:
                print(context.message.message_id, context.verdict, context.elapsed_ms)

        inbox = client.consumer("billing", hooks=[Log()])
    """

    def before(self, context: ConsumeContext) -> None:
        """Before a message is handed to the application."""

    def received(self, contexts: Sequence[ConsumeContext], started: float) -> None:
        """`recv`, an iteration or `batches` returns messages. started: when it was called, monotonic clock.

        Not called for a listener, which gets its messages as they come.
        """

    def processing(self, contexts: Sequence[ConsumeContext]) -> AbstractContextManager[object]:
        """The block within which a listener's handler runs, or the application's code in `Consumer.processing`."""
        return nullcontext()

    def settle_failed(self, context: ConsumeContext, error: BaseException) -> None:
        """A message could not be sent back or moved to the dead-letter queue; it is still unsettled."""

    def after(self, context: ConsumeContext) -> None:
        """After the message was settled, or ack_timeout expired."""


def run_consume_hooks(hooks: Sequence[ConsumeHook], name: str, *arguments: object) -> None:
    """Call this method of all hooks; log their exceptions."""
    for hook in hooks:
        try:
            getattr(hook, name)(*arguments)
        except Exception:
            logger.exception("consume hook failed hook=%s stage=%s", type(hook).__name__, name)


def contexts_of(messages: Sequence[ReceivedMessage[Any]]) -> list[ConsumeContext]:
    """The contexts of the messages that are delivered and not settled."""
    contexts = (getattr(message._settler, "contexts", {}).get(message.offset) for message in messages)
    return [context for context in contexts if context is not None]


@contextmanager
def processing(hooks: Sequence[ConsumeHook], messages: Sequence[ReceivedMessage[Any]]) -> Iterator[None]:
    """The blocks `processing` of all hooks, the first one outermost; exceptions when they are entered are logged."""
    with ExitStack() as blocks:
        if contexts := contexts_of(messages):
            for hook in hooks:
                try:
                    blocks.enter_context(hook.processing(contexts))
                except Exception:
                    logger.exception("consume hook failed hook=%s stage=processing", type(hook).__name__)
        yield


installed: Final[list[SendHook | ConsumeHook]] = []


def install_hooks(*hooks: SendHook | ConsumeHook) -> None:
    """Add hooks to all producers and consumers that applications create from now on in this process.

    Example:
        metrics = ClientMetrics()
        install_hooks(metrics.sends, metrics.deliveries)
    """
    installed.extend(hooks)


def remove_hooks(*hooks: SendHook | ConsumeHook) -> None:
    """Undo `install_hooks`; existing producers and consumers keep their hooks. Hooks that are not installed are ignored.

    Example:
        remove_hooks(tenant)
    """
    installed[:] = [hook for hook in installed if hook not in hooks]


def with_installed(hooks: Sequence[K], kind: type[K]) -> Sequence[K]:
    """The hooks of a producer or consumer, and those of its kind that are installed in the process."""
    return (*hooks, *(hook for hook in installed if isinstance(hook, kind)))
