"""The virtual transport: channels as kombu calls them, in front of one KombuSession on a thread of its own.

kombu and Celery call from several threads: the consuming one waits in `drain_events`, others settle and publish. Each connection
has an event loop in one thread, on which its KombuSession runs; every call here waits for a coroutine there. `saturnmq.sync`
does the same but refuses inside a running loop, where applications do call `task.delay()`.

In a forked child, as those of the prefork pool, an inherited connection raises ForkedClient, which kombu takes for a lost
connection: it makes a new one.

Requirements: INT-03, INT-04, INT-05, INT-06.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from queue import Empty
from typing import Any, Final, TypeVar

from kombu.transport import virtual
from kombu.transport.virtual.exchange import DirectExchange, FanoutExchange, TopicExchange
from kombu.utils.uuid import uuid

from saturnmq import __version__
from saturnmq.client.connection import forks
from saturnmq.client.message import Ack
from saturnmq.client.sync.loop_thread import LoopThread
from saturnmq.errors import (
    CallTimeout,
    Closed,
    ConnectFailed,
    ConsumerStopped,
    ForkedClient,
    NoNameServer,
    ProducerStopped,
    RouteNotFound,
    SendFailed,
)
from saturnmq.kombu.session import Binding, KombuDelivery, KombuSession, TransportOptions
from saturnmq.protocol.errors import ConfigError, ResponseError

R = TypeVar("R")

PERSIST_MS: Final = 1000  # what was acknowledged since is delivered again after a crash of the worker
GET_WAIT_S: Final = 0.5  # how long `basic_get` waits for a message
CANCEL_SECONDS: Final = 5.0
OWN_OPTIONS: Final = ("queues", "visibility_timeout", "requeue_delay")


class QoS(virtual.QoS):
    """Unsettled messages of a channel. Closing it leaves them unsettled: the broker delivers them again."""

    restore_at_shutdown = False

    def ack(self, delivery_tag: str) -> None:
        self._settle(delivery_tag, Ack.SUCCESS)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        self._settle(delivery_tag, Ack.RETRY if requeue else Ack.REJECT)

    def restore_unacked(self) -> None:
        self._flush()
        for delivery_tag in list(self._delivered):
            self.reject(delivery_tag, requeue=True)

    def restore_unacked_once(self, stderr: object = None) -> None:
        self._on_collect.cancel()
        self._delivered.clear()

    def _settle(self, delivery_tag: str, verdict: Ack) -> None:
        was_full = not self.can_consume()
        self.channel.settle(delivery_tag, verdict)
        super().ack(delivery_tag)
        if was_full:
            self.channel.connection.wake()


class LoggedDirectExchange(DirectExchange):
    """A direct exchange that is not durable has a topic: who sends to it, such as a reply, knows no binding."""

    def deliver(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> None:
        if self.channel.has_topic(exchange):
            self.channel._put_fanout(exchange, message, routing_key, **kwargs)
        else:
            super().deliver(message, exchange, routing_key, **kwargs)


class LoggedTopicExchange(TopicExchange):
    """A topic exchange has a topic; each queue selects from it."""

    def deliver(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> None:
        self.channel._put_fanout(exchange, message, routing_key, **kwargs)


class Channel(virtual.Channel):
    """A channel of kombu over the KombuSession of its connection."""

    QoS = QoS
    do_restore = False
    supports_fanout = True
    exchange_types: Mapping[str, Any] = {
        "direct": LoggedDirectExchange,
        "topic": LoggedTopicExchange,
        "fanout": FanoutExchange,
    }

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._unsettled: dict[str, KombuDelivery] = {}
        self._acked_on_delivery: set[str] = set()  # queues with a consumer of no_ack
        self._read: set[str] = set()  # queues that were consumed

    @property
    def _session(self) -> KombuSession:
        """The session. Raises Closed, and ForkedClient in a forked child."""
        connection: Transport | None = self.connection
        if connection is None:
            raise Closed("the channel is closed: its messages are delivered again")
        return connection.session

    # declarations

    def has_topic(self, exchange: str) -> bool:
        """Whether messages to the exchange are sent to a topic of it, not to the queues that are bound here.

        One that this connection has not declared, as that of Celery's Broadcast at a sender, is looked up.
        """
        declared = self.state.exchanges.get(exchange)
        if declared is None:
            return self._run(self._session.exchange_exists, exchange)
        return declared["type"] != "direct" or not declared["durable"]

    def queue_declare(self, queue: str | None = None, passive: bool = False, **kwargs: Any) -> Any:
        """As in the base class, but only a passive declaration counts messages: that asks every queue of a topic."""
        if passive:
            return super().queue_declare(queue, passive=True, **kwargs)
        queue = queue or f"amq.gen-{uuid()}"
        self._new_queue(queue, **kwargs)
        return virtual.base.queue_declare_ok_t(queue, 0, 0)

    def _new_queue(self, queue: str, exclusive: bool = False, auto_delete: bool = False, **kwargs: Any) -> None:
        session = self._session
        self._run(session.declare_temporary if exclusive or auto_delete else session.declare, queue)

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return self._run(self._session.exists, queue)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        if not self.has_topic(exchange):
            return
        exchange_type = self.typeof(exchange)
        if exchange_type.type == "fanout":
            binding = Binding(exchange, lambda key: True)
        elif exchange_type.type == "topic":
            binding = Binding(exchange, lambda key: exchange_type._match(pattern, key) is not None)
        else:
            binding = Binding(exchange, lambda key: key == routing_key, routing_key)
        self._run(self._session.bind, queue, binding)

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Delete the exchange and its bindings; queues and the messages in them stay."""
        for routing_key, _, queue in list(self.state.exchanges.get(exchange, {}).get("table", ())):
            self.queue_unbind(queue, exchange, routing_key)
        self.state.exchanges.pop(exchange, None)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> None:
        if if_empty and self._size(queue):
            return
        for exchange, routing_key, arguments in list(self.state.queue_bindings(queue)):
            self.queue_unbind(queue, exchange, routing_key, arguments)
        self.state.queue_bindings_delete(queue)
        self._delete(queue)

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        self._run(self._session.delete, queue)

    def _size(self, queue: str) -> int:
        return self._run(self._session.size, queue)

    def _purge(self, queue: str) -> int:
        return self._run(self._session.purge, queue)

    # sending

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        self._run(self._session.publish_to_queue, queue, message, eta_of(message))

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str | None, **kwargs: Any) -> None:
        self._run(self._session.publish_to_exchange, exchange, message, routing_key or "")

    # receiving

    def basic_consume(self, queue: str, no_ack: bool, *args: Any, **kwargs: Any) -> None:
        super().basic_consume(queue, no_ack, *args, **kwargs)
        if no_ack:
            self._acked_on_delivery.add(queue)
        self._consume(queue)
        self.connection.wake()

    def _consume(self, queue: str) -> None:
        self._read.add(queue)
        self._run(self._session.consume, queue)

    def basic_cancel(self, consumer_tag: str) -> None:
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is not None and queue not in self._active_queues:
            self._acked_on_delivery.discard(queue)
            self._run(self._session.cancel, queue)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        message = super().basic_get(queue, no_ack, **kwargs)
        if message is not None and no_ack:
            self.settle(message.delivery_tag, Ack.SUCCESS)
        return message

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        self._consume(queue)
        for delivery in self._run(self._session.receive, [queue], GET_WAIT_S if timeout is None else timeout):
            return self._register(delivery)
        raise Empty

    def deliver(self, delivery: KombuDelivery) -> None:
        """Hand a message to the consumer of its queue."""
        payload = self._register(delivery)
        if delivery.queue in self._acked_on_delivery:
            self.settle(payload["properties"]["delivery_tag"], Ack.SUCCESS)
        self.connection._callbacks[delivery.queue](payload)

    def _register(self, delivery: KombuDelivery) -> dict[str, Any]:
        """The payload with a delivery tag of its own, under which the message is settled."""
        payload = delivery.payload
        properties = payload["properties"]
        tag = properties["delivery_tag"] = uuid()
        if delivery.message is not None and delivery.message.attempt > 1:
            properties.setdefault("delivery_info", {})["redelivered"] = True
        self._unsettled[tag] = delivery
        return payload

    def settle(self, delivery_tag: str, verdict: Ack) -> None:
        """Settle a message once; further calls do nothing. It stays unsettled if that raises."""
        delivery = self._unsettled.get(delivery_tag)
        if delivery is None:
            return
        self._run(self._session.settle, delivery, verdict)
        self._unsettled.pop(delivery_tag, None)

    def close(self) -> None:
        """Close the channel; what it left unsettled is delivered to other members of the queue's group."""
        connection: Transport | None = self.connection
        if connection is None or not connection.is_usable:  # closed before, or in a forked child
            self.closed = True
            return
        super().close()
        active_queues = {queue for channel in connection.channels for queue in channel._active_queues}
        for queue in self._read - active_queues:
            connection.run(connection.session.leave, queue)

    def _run(self, method: Callable[..., Coroutine[Any, Any, R]], *args: Any) -> R:
        connection: Transport = self.connection
        return connection.run(method, *args)


class Transport(virtual.Transport):
    """The transport, and the connection that it establishes."""

    Channel = Channel
    default_port = 9876
    driver_type = "rocketmq"
    driver_name = "saturnmq"
    implements = virtual.Transport.implements.extend(exchange_type=frozenset(["direct", "topic", "fanout"]))
    connection_errors = (
        *virtual.Transport.connection_errors,
        ConnectFailed, CallTimeout, NoNameServer, SendFailed, Closed, ForkedClient, ConsumerStopped, ProducerStopped,
    )  # fmt: skip
    channel_errors = (*virtual.Transport.channel_errors, ResponseError, RouteNotFound)

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self._thread: LoopThread | None = None
        self._session: KombuSession | None = None
        self._generation = forks.generation

    def driver_version(self) -> str:
        return __version__

    # lifecycle

    def establish_connection(self) -> Transport:
        session = KombuSession(self._options())
        self._thread, self._generation = LoopThread("saturnmq-kombu"), forks.generation
        try:
            self.run(session.open)
        except BaseException:
            self._thread.stop()
            raise
        self._session = session
        super().establish_connection()
        return self

    def close_connection(self, connection: Transport) -> None:
        super().close_connection(connection)
        session, self._session = self._session, None
        if session is not None and self._thread is not None and self._generation == forks.generation:
            self.run(session.close)
            self._thread.stop()

    @property
    def is_usable(self) -> bool:
        """Whether it is open, and not inherited by a forked child."""
        return self._session is not None and self._generation == forks.generation

    @property
    def session(self) -> KombuSession:
        """The session. Raises Closed, and ForkedClient in a forked child."""
        forks.check(self._generation)
        if self._session is None:
            raise Closed("the connection is closed")
        return self._session

    def run(self, method: Callable[..., Coroutine[Any, Any, R]], *args: Any) -> R:
        """Run a coroutine method of the session on its loop, and wait for the result."""
        forks.check(self._generation)
        assert self._thread is not None
        return self._thread.run(method(*args), cancel_seconds=CANCEL_SECONDS)

    def wake(self) -> None:
        """Let `drain_events` look again at which channels can consume."""
        if self._thread is not None and self._session is not None and (loop := self._thread.running) is not None:
            loop.call_soon_threadsafe(self._session.wake)

    def _options(self) -> TransportOptions:
        """The options of a connection. Raises ConfigError naming every bad value."""
        parameters, options = self.client, self.client.transport_options or {}
        address = f"{parameters.hostname or '127.0.0.1'}:{parameters.port or self.default_port}"
        client: dict[str, Any] = {
            "name_servers": options.get("name_servers") or address,
            "persist_offsets_ms": PERSIST_MS,
        }
        if namespace := (parameters.virtual_host or "").strip("/"):
            client["namespace"] = namespace
        if parameters.userid:
            client |= {"access_key": parameters.userid, "secret_key": parameters.password}
        if parameters.ssl:
            if parameters.ssl is not True:
                raise ConfigError(
                    "broker_use_ssl must be True: certificates are the settings tls_ca, tls_cert and tls_key in "
                    "broker_transport_options['client']"
                )
            client["tls"] = True
        client |= options.get("client", {})
        return TransportOptions(client=client, **{name: options[name] for name in OWN_OPTIONS if name in options})

    # receiving

    def drain_events(self, connection: Transport, timeout: float | None = None) -> None:
        """Wait for messages and deliver them. Raises socket.timeout if none comes within `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            channels = {
                queue: channel
                for channel in self.channels
                if channel.qos.can_consume()
                for queue in channel._active_queues
            }
            remaining_s = None if deadline is None else deadline - time.monotonic()
            deliveries = self.run(self.session.receive, list(channels), remaining_s)
            for delivery in deliveries:
                channels[delivery.queue].deliver(delivery)
            if deliveries:
                return
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError


def eta_of(message: Mapping[str, Any]) -> datetime | None:
    """When a task is to start: its header `eta`; None for a time without a zone, for which the worker waits."""
    try:
        eta = datetime.fromisoformat(message["headers"]["eta"])
    except (KeyError, TypeError, ValueError):
        return None
    return eta if eta.tzinfo is not None else None
