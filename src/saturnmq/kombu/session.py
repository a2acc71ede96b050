"""The client of one kombu connection: queues as consumer groups, exchanges as topics that every bound queue reads.

A durable queue is a topic and a consumer group of the same name; its messages are divided among the workers and settled one by
one. A temporary queue (exclusive or auto-delete: control mailboxes, replies, event monitors) has no topic and no group: it is a
position in the topics of the exchanges that it is bound to, from its declaration on. So the number of topics is that of durable
queues and exchanges, however many workers, monitors and replies there are.

A durable queue that is bound to an exchange with a topic reads that topic too, in its group.

All code runs on the event loop that `open` ran on. `wake` may be called by any thread.

Requirements: INT-05, INT-06, INT-07, API-19.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

from kombu.utils.json import dumps, loads

from saturnmq.admin import Admin
from saturnmq.admin.credentials import AdminAccess
from saturnmq.admin.offsets import TO_THE_END
from saturnmq.client import namespaces
from saturnmq.client.client import Client
from saturnmq.client.connection.core import now_ms
from saturnmq.client.consumer.consumer import Consumer
from saturnmq.client.message import Ack, Message
from saturnmq.errors import AlreadySettled, Unsupported
from saturnmq.kombu.names import escaped, topic_of_exchange, topic_of_queue, unescaped
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import ConfigError, ResponseError, SaturnError
from saturnmq.tasks import cancel

logger = logging.getLogger(__name__)

PRODUCER_GROUP: Final = "kombu-producer"
PULL_WAIT_S: Final = 15.0
PULL_PAUSE_S: Final = 1.0  # after an error
EXCHANGE_QUEUES: Final = 1  # per broker: messages of an exchange stay in order
UNREAD_MAX: Final = 1000  # of a temporary queue; further ones stay at the broker
NOW_S: Final = 0.001  # lets messages that have arrived be taken
DIRECT_EXCHANGE: Final = ""  # the exchange that leads to every queue by its name
CLOCK_SLACK_MS: Final = 60_000  # tolerated difference between the clocks of client and broker
DECLARED_MAX: Final = 10_000
# By NameServers, namespace and queue: when this process declared a temporary queue first, Unix ms. Celery's `rpc://` declares its
# queue on the connection that sends, and reads it on another one, later.
_declared_ms: Final[dict[tuple[object, ...], int]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportOptions:
    """Of `broker_transport_options`; docs/celery.md describes them.

    queues: of a new topic, per broker. visibility_timeout: seconds for which a worker may hold a message. requeue_delay: seconds
    until a requeued message comes again; None takes the broker's delay levels, which grow. client: settings of the client.
    """

    queues: int = 16
    visibility_timeout: float = 3600.0
    requeue_delay: float | None = None
    client: Mapping[str, Any]

    def __post_init__(self) -> None:
        problems = []
        if not isinstance(self.queues, int) or not 1 <= self.queues <= 65_535:
            problems.append(f"queues is {self.queues!r:.40}, must be 1..65535")
        timeout = self.visibility_timeout
        if not isinstance(timeout, int | float) or not 1 <= timeout <= 86_400:
            problems.append(f"visibility_timeout is {timeout!r:.40}, must be 1..86400")
        delay = self.requeue_delay
        if delay is not None and (not isinstance(delay, int | float) or not 0 <= delay <= 86_400):
            problems.append(f"requeue_delay is {delay!r:.40}, must be 0..86400 or None")
        if problems:
            raise ConfigError(problems)


@dataclass(frozen=True, slots=True)
class Binding:
    """Which messages of an exchange a queue gets: those whose routing key matches. key: the only one that does, if there is one."""

    exchange: str
    matches: Callable[[str], bool]
    key: str = ""


@dataclass(frozen=True, slots=True)
class KombuDelivery:
    """A received message. payload: empty if it is not from kombu. message: None if there is nothing to settle."""

    queue: str
    payload: dict[str, Any]
    message: Message[bytes] | None = None


class QueueSource(Protocol):
    """The source of a queue's messages."""

    async def receive(self) -> KombuDelivery: ...
    async def close(self) -> None: ...


class QueueReader:
    """A durable queue: a member of its consumer group.

    unsettled: deliveries that are not settled yet. A reader whose consumer was cancelled keeps its queues until there are none,
    so that running tasks can still be acknowledged.
    """

    def __init__(self, queue: str, consumer: Consumer[bytes], bindings: Sequence[Binding]) -> None:
        self.queue = queue
        self.unsettled = 0
        self.is_cancelled = False
        self._topic = topic_of_queue(queue)
        self._consumer = consumer
        self._bindings: dict[str, list[Binding]] = {}
        for binding in bindings:
            self._bindings.setdefault(topic_of_exchange(binding.exchange), []).append(binding)

    async def open(self) -> None:
        for topic in (self._topic, *self._bindings):
            await self._consumer.subscribe(topic)
        await self._consumer.start()

    async def receive(self) -> KombuDelivery:
        while True:
            message = await self._consumer.recv()
            bindings = self._bindings.get(message.topic)
            if bindings is not None and not _matches(bindings, routing_key_of(message)):
                await message.ack()
                continue
            self.unsettled += 1
            return KombuDelivery(self.queue, payload_of(message.body) or {}, message)

    def committed(self) -> dict[MessageQueue, int]:
        """Where the group is in the queues of this member; the broker's numbers are older."""
        return dict(self._consumer.committed())

    def pause(self) -> None:
        self.is_cancelled = True
        self._consumer.pause()

    def resume(self) -> None:
        if self.is_cancelled:
            self.is_cancelled = False
            self._consumer.resume()

    async def skip(self) -> None:
        """Go to the end of this member's queues at once; a reset by the broker takes a while."""
        if self._consumer.assigned:
            await self._consumer.seek("last")

    async def close(self) -> None:
        await self._consumer.stop()


class TemporaryQueue:
    """Reads the topics of exchanges from the positions at which the queue was bound. Settles nothing.

    declared_ms: what is sent to the queue by its name is read from this time on.
    """

    def __init__(self, queue: str, client: Client, declared_ms: int) -> None:
        self.queue = queue
        self._declared_ms = declared_ms
        self._puller = client.puller()
        self._positions: dict[MessageQueue, int] = {}
        self._bindings: dict[str, list[Binding]] = {}
        self._unread: asyncio.Queue[dict[str, Any]] = asyncio.Queue(UNREAD_MAX)
        self._tasks: dict[MessageQueue, asyncio.Task[None]] = {}

    @property
    def is_bound(self) -> bool:
        return bool(self._bindings)

    def __len__(self) -> int:
        return self._unread.qsize()

    async def bind(self, binding: Binding) -> None:
        """Get the messages of the exchange that match, from now on; its topic exists."""
        topic = topic_of_exchange(binding.exchange)
        if topic not in self._bindings:
            for queue in await self._puller.queues(topic):
                self._positions[queue] = await self._first(queue, binding)
        self._bindings.setdefault(topic, []).append(binding)
        if self._tasks:
            self.start()

    def start(self) -> None:
        """Begin to read; what was sent since `bind` comes first."""
        for queue in self._positions.keys() - self._tasks.keys():
            self._tasks[queue] = asyncio.create_task(self._pull(queue), name=f"pull kombu {self.queue}")

    async def _first(self, queue: MessageQueue, binding: Binding) -> int:
        if binding.exchange != DIRECT_EXCHANGE:
            return await self._puller.max_offset(queue)
        return await self._puller.offset_by_time(queue, self._declared_ms - CLOCK_SLACK_MS)

    async def receive(self) -> KombuDelivery:
        return KombuDelivery(self.queue, await self._unread.get())

    async def close(self) -> None:
        """Stop reading; `start` continues where it was."""
        await cancel(*self._tasks.values())
        self._tasks.clear()

    async def purge(self) -> int:
        count = self._unread.qsize()
        for _ in range(count):
            self._unread.get_nowait()
        return count

    async def _pull(self, queue: MessageQueue) -> None:
        failures = 0
        while True:
            offset = self._positions[queue]
            bindings = self._bindings[queue.topic]
            keys = {binding.key for binding in bindings}
            expression = "*" if "" in keys else " || ".join(sorted(map(escaped, keys)))
            try:
                result = await self._puller.pull(queue, offset, expression=expression, wait=PULL_WAIT_S)
                messages = result.messages()
            except SaturnError as error:
                failures += 1
                if failures == 1:
                    logger.warning("pull failed queue=%s topic=%s error=%s", self.queue, queue.topic, error)
                await asyncio.sleep(PULL_PAUSE_S)
                continue
            if failures:
                logger.warning("pull works again queue=%s topic=%s failures=%d", self.queue, queue.topic, failures)
                failures = 0
            for message in messages:
                if _matches(bindings, routing_key_of(message)) and (payload := payload_of(message.body)):
                    await self._unread.put(payload)
            self._positions[queue] = result.next_offset


class KombuSession:
    """One client, its producer, and the readers of its queues.

    Example:
        session = KombuSession(TransportOptions(client={"name_servers": "127.0.0.1:9876"}))
        await session.open()
        await session.declare("celery")
        await session.publish_to_queue("celery", {"body": "", "properties": {}}, eta=None)
    """

    def __init__(self, options: TransportOptions) -> None:
        self._options = options
        self._client = Client(**options.client)
        self._producer = self._client.producer(PRODUCER_GROUP)
        self._puller = self._client.puller()
        self._topics: set[str] = set()  # that exist
        self._bindings: dict[str, list[Binding]] = {}  # of durable queues
        self._readers: dict[str, QueueReader] = {}
        self._temporary: dict[str, TemporaryQueue] = {}
        self._woken = asyncio.Event()

    async def open(self) -> None:
        """Start the client. Raises NoNameServer if no NameServer answers."""
        await self._client.start()
        try:
            await self._client.topic_exists(topic_of_exchange(DIRECT_EXCHANGE))
            await self._producer.start()
        except BaseException:
            await self._client.stop()
            raise

    async def close(self) -> None:
        """Leave all groups; unsettled messages are delivered to other members."""
        sources: list[QueueSource] = [*self._readers.values(), *self._temporary.values()]
        await asyncio.gather(*(source.close() for source in sources))
        await self._client.stop()

    # declarations

    async def declare(self, queue: str) -> None:
        """Create the topic of a durable queue if there is none."""
        await self._ensure_topic(topic_of_queue(queue), self._options.queues)

    async def declare_temporary(self, queue: str) -> None:
        """Begin a temporary queue: what is sent from now on is read by `consume`, here or on another connection of this process."""
        if queue not in self._temporary:
            declared_ms = _declared_ms.setdefault(self._key(queue), now_ms())
            while len(_declared_ms) > DECLARED_MAX:
                _declared_ms.pop(next(iter(_declared_ms)), None)
            self._temporary[queue] = TemporaryQueue(queue, self._client, declared_ms)

    def _key(self, queue: str) -> tuple[object, ...]:
        return self._client.settings.name_servers, self._client.settings.namespace, queue

    async def exists(self, queue: str) -> bool:
        """Whether a durable queue has its topic, or a temporary one is declared here."""
        return queue in self._temporary or await self._topic_exists(topic_of_queue(queue))

    async def exchange_exists(self, exchange: str) -> bool:
        """Whether an exchange has a topic."""
        return await self._topic_exists(topic_of_exchange(exchange))

    async def bind(self, queue: str, binding: Binding) -> None:
        """Let a queue get messages of an exchange with a topic, from now on."""
        topic = topic_of_exchange(binding.exchange)
        await self._ensure_topic(topic, EXCHANGE_QUEUES)
        if queue in self._temporary:
            await self._temporary[queue].bind(binding)
            return
        self._bindings.setdefault(queue, []).append(binding)
        group = topic_of_queue(queue)
        for message_queue in await self._puller.queues(topic):
            if await self._puller.committed(group, message_queue) is None:
                end = await self._puller.max_offset(message_queue)
                await self._puller.commit(group, message_queue, end)

    async def _ensure_topic(self, topic: str, queues: int) -> None:
        if not await self._topic_exists(topic):
            await self._client.create_topic(topic, queues=queues)
            self._topics.add(topic)

    async def _topic_exists(self, topic: str) -> bool:
        if topic not in self._topics and await self._client.topic_exists(topic):
            self._topics.add(topic)
        return topic in self._topics

    # sending

    async def publish_to_queue(self, queue: str, payload: Mapping[str, Any], eta: datetime | None) -> None:
        """Send to a queue, to be delivered at `eta`; a queue without a topic gets it from the direct exchange."""
        if queue in self._temporary or not await self._topic_exists(topic_of_queue(queue)):
            await self.publish_to_exchange(DIRECT_EXCHANGE, payload, queue)
            return
        await self._send(topic_of_queue(queue), payload, None, eta)

    async def publish_to_exchange(self, exchange: str, payload: Mapping[str, Any], routing_key: str) -> None:
        """Send once, for all queues that are bound to the exchange."""
        topic = topic_of_exchange(exchange)
        await self._ensure_topic(topic, EXCHANGE_QUEUES)
        await self._send(topic, payload, escaped(routing_key) or None, None)

    async def _send(self, topic: str, payload: Mapping[str, Any], tag: str | None, eta: datetime | None) -> None:
        body = dumps(payload).encode()
        task_id = payload.get("headers", {}).get("id")
        keys = [task_id] if isinstance(task_id, str) and task_id.isprintable() else []
        if eta is not None:
            try:
                await self._producer.send(topic, body, tag=tag, keys=keys, deliver_at=eta)
            except Unsupported as error:
                logger.debug("delay not supported, the worker waits topic=%s error=%s", topic, error)
            else:
                return
        await self._producer.send(topic, body, tag=tag, keys=keys)

    # receiving

    async def consume(self, queue: str) -> None:
        """Become a member of the queue's group, or begin to read a temporary queue."""
        if queue in self._temporary:
            temporary = self._temporary[queue]
            if not temporary.is_bound:
                await self.bind(queue, Binding(DIRECT_EXCHANGE, lambda key: key == queue, queue))
            temporary.start()
            return
        if queue in self._readers:
            self._readers[queue].resume()
            return
        consumer = self._client.consumer(
            topic_of_queue(queue), start="first", ack_timeout=self._options.visibility_timeout, route_timeout=None
        )
        reader = QueueReader(queue, consumer, self._bindings.get(queue, ()))
        await reader.open()
        self._readers[queue] = reader

    async def cancel(self, queue: str) -> None:
        """Receive nothing more; leave the group as soon as nothing is unsettled."""
        reader = self._readers.get(queue)
        if reader is not None:
            reader.pause()
            await self._leave_if_settled(reader)
        elif queue in self._temporary:
            await self._temporary[queue].close()

    async def leave(self, queue: str) -> None:
        """Leave the group of a durable queue; what is unsettled is delivered to other members."""
        reader = self._readers.pop(queue, None)
        if reader is not None:
            await reader.close()

    async def receive(self, queues: Sequence[str], timeout: float | None) -> list[KombuDelivery]:
        """At most one message of each queue, as soon as one has any; nothing after `timeout` seconds, or after `wake`.

        Raises what the reader of a queue raises.
        """
        receiving = {
            queue: asyncio.create_task(source.receive())
            for queue in queues
            if (source := self._source(queue)) is not None
        }
        tasks: list[asyncio.Task[Any]] = [*receiving.values(), asyncio.create_task(self._woken.wait())]
        try:
            limit = None if timeout is None else max(timeout, NOW_S)
            await asyncio.wait(tasks, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel(*(task for task in tasks if not task.done()))
        self._woken.clear()
        finished = {queue: task for queue, task in receiving.items() if not task.cancelled()}
        deliveries = [task.result() for task in finished.values() if task.exception() is None]
        if not deliveries:
            for queue, task in finished.items():
                if self._source(queue) is not None:  # otherwise it was closed meanwhile
                    task.result()
        for stranger in [delivery for delivery in deliveries if not delivery.payload]:
            logger.warning("not a message of kombu, rejected queue=%s message=%r", stranger.queue, stranger.message)
            deliveries.remove(stranger)
            await self.settle(stranger, Ack.REJECT)
        return deliveries

    def _source(self, queue: str) -> QueueSource | None:
        return self._readers.get(queue) or self._temporary.get(queue)

    def wake(self) -> None:
        """Let `receive` return."""
        self._woken.set()

    async def settle(self, delivery: KombuDelivery, verdict: Ack) -> None:
        """Acknowledge a message, send it back, or move it to the dead letters of its group."""
        message = delivery.message
        if message is None:
            return
        try:
            if verdict is Ack.SUCCESS:
                await message.ack()
            elif verdict is Ack.RETRY:
                delay_s = self._options.requeue_delay
                after = None if delay_s is None else max(timedelta(seconds=delay_s), timedelta(milliseconds=1))
                await message.retry(after, reason="requeued")
            else:
                await message.reject("rejected")
        except AlreadySettled as error:
            logger.warning("settled after visibility_timeout, delivered again queue=%s error=%s", delivery.queue, error)
        reader = self._readers.get(delivery.queue)
        if reader is not None:
            reader.unsettled -= 1
            await self._leave_if_settled(reader)

    async def _leave_if_settled(self, reader: QueueReader) -> None:
        if reader.is_cancelled and reader.unsettled <= 0:
            await self.leave(reader.queue)

    # administration

    async def size(self, queue: str) -> int:
        """How many messages the queue's group has not consumed; of a temporary queue, those read ahead."""
        if queue in self._temporary:
            return len(self._temporary[queue])
        group = topic_of_queue(queue)
        topics = {group, *(topic_of_exchange(binding.exchange) for binding in self._bindings.get(queue, ()))}
        committed = self._readers[queue].committed() if queue in self._readers else {}
        queues = [item for topic in topics for item in await self._puller.queues(topic)]
        return sum(await asyncio.gather(*(self._backlog(group, item, committed.get(item)) for item in queues)))

    async def _backlog(self, group: str, queue: MessageQueue, position: int | None) -> int:
        if position is None:
            position = await self._puller.committed(group, queue)
        if position is None:
            position = await self._puller.min_offset(queue)
        return await self._puller.max_offset(queue) - position

    async def purge(self, queue: str) -> int:
        """Skip all messages that wait; returns how many did."""
        if queue in self._temporary:
            return await self._temporary[queue].purge()
        count = await self.size(queue)
        group = self._wire(topic_of_queue(queue))
        async with self._admin() as admin:
            await admin.offsets.reset(group, group, TO_THE_END)
        if queue in self._readers:
            await self._readers[queue].skip()
        return count

    async def delete(self, queue: str) -> None:
        """Delete a queue with its messages: topic and group; a temporary one is forgotten."""
        temporary = self._temporary.pop(queue, None)
        if temporary is not None:
            _declared_ms.pop(self._key(queue), None)
            await temporary.close()
            return
        await self.leave(queue)
        self._bindings.pop(queue, None)
        topic = topic_of_queue(queue)
        self._topics.discard(topic)
        if not await self._client.topic_exists(topic):
            return
        wire = self._wire(topic)
        async with self._admin() as admin:
            route = await admin.topics.route(wire)
            for cluster in await admin.topics.clusters(wire):
                await admin.topics.delete_from_brokers(wire, cluster)
                await admin.topics.delete_from_name_servers(wire, cluster)
            for broker in route.broker_datas:
                with contextlib.suppress(KeyError):
                    await self._delete_group(admin, broker.broker_addrs[0], wire)

    async def _delete_group(self, admin: Admin, address: str, group: str) -> None:
        try:
            await admin.groups.delete(address, group, remove_offset=True)
        except ResponseError as error:
            if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise

    def _wire(self, name: str) -> str:
        return namespaces.wrap(self._client.settings.namespace, name)

    def _admin(self) -> Admin:
        settings = self._client.settings
        return Admin(settings.name_servers, access=AdminAccess(**settings.access_settings))


def payload_of(body: bytes) -> dict[str, Any] | None:
    """The message of kombu in a body; None if it is none."""
    try:
        payload = loads(body)
    except ValueError:
        return None
    if not isinstance(payload, dict) or not isinstance(payload.get("properties"), dict):
        return None
    return payload


def _matches(bindings: Sequence[Binding], routing_key: str) -> bool:
    return any(binding.matches(routing_key) for binding in bindings)


def routing_key_of(message: Message[bytes]) -> str:
    """Of a message in an exchange's topic; its tag."""
    return unescaped(message.tag or "")
