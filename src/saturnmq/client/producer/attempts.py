"""The send loop of a producer group: choice of queue and broker for each attempt, and classification of its outcome.

All attempts of a message share one deadline and carry the same unique id. Module `retries` decides which failures are retried. A
message with a fixed queue stays on it.

Requirements: PR-15..PR-18, PR-21, PR-30, API-22, API-25, API-28, API-29.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from saturnmq.client import namespaces
from saturnmq.client.connection.core import ClientState, Core, now_ms
from saturnmq.client.connection.deadline import Deadline
from saturnmq.client.connection.in_flight import InFlightLimit
from saturnmq.client.connection.routes import TopicRoute
from saturnmq.client.hints import unreachable_broker
from saturnmq.client.hooks import SendContext, SendHook, run_quietly
from saturnmq.client.producer.retries import Retries
from saturnmq.client.producer.send_request import Prepared, receipts, send_command
from saturnmq.client.producer.settings import ProducerSettings
from saturnmq.client.receipt import STATUS_BY_CODE, Receipt, SendStatus
from saturnmq.client.selection import RoundRobin, shard
from saturnmq.errors import (
    BrokerNotExist,
    CallTimeout,
    ClientError,
    ConnectFailed,
    MessageRefused,
    NoNameServer,
    RouteNotFound,
    SendFailed,
)
from saturnmq.protocol.addresses import plain_address
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import ResponseError, SaturnError
from saturnmq.protocol.frames.command import Command

Selector = Callable[[Sequence[MessageQueue], Any], MessageQueue]
# How the caller of a send chooses the queue: (shard_by, queue, selector, selector_arg), at most one of the first three.
Choice: TypeAlias = tuple[str | int | None, MessageQueue | None, Selector | None, Any]

IN_FLIGHT_BYTES: Final = 64 * 1024 * 1024


@dataclass(slots=True)
class ProducerStats:
    """Counters of a producer since it was created.

    requests: attempts, without one-way ones. failed: attempts that got an error or no answer. messages: stored ones. request_ms:
    time of all attempts together. in_flight, in_flight_bytes: messages that are being sent now, and their bodies.

    Example:
        stats = out.stats
        print(stats.messages, stats.failed, stats.request_ms / max(stats.requests, 1))
    """

    requests: int = 0
    failed: int = 0
    messages: int = 0
    request_ms: float = 0.0
    in_flight: int = 0
    in_flight_bytes: int = 0


class Attempts:
    """Sends prepared messages for one producer group."""

    def __init__(self, core: Core, group: str, settings: ProducerSettings) -> None:
        self._core = core
        self.group = namespaces.wrap(core.settings.namespace, group)
        self._stats = ProducerStats()
        self._in_flight = InFlightLimit(settings.max_in_flight, IN_FLIGHT_BYTES)
        self._hooks: tuple[SendHook, ...] = tuple(settings.hooks)
        self._retry_codes = frozenset(settings.retry_codes)
        # A random start: producers that begin together do not all send to the first queue.
        self._counter = RoundRobin(random.randrange(1 << 16))
        self._default_queues = str(core.settings.default_queues)

    async def _acquire(self, size: int, deadline: Deadline, prepared: Prepared) -> None:
        """Wait for an in-flight slot, within the deadline. Raises SendFailed (API-22)."""
        try:
            async with asyncio.timeout(max(deadline.remaining_ms, 0) / 1000):
                await self._in_flight.acquire(size)
        except TimeoutError:
            # Nothing was sent, so that the outcome is known.
            cause = CallTimeout("send call timeout: too many messages were in flight")
            raise self._failure(prepared, Retries(1, deadline), cause, outcome_unknown=False) from cause

    async def _fixed(self, topic: str, choice: Choice, deadline: Deadline) -> MessageQueue | None:
        """The queue that the caller chose, None if it gave neither shard_by nor queue nor selector (PR-21)."""
        key, queue, selector, argument = choice
        if (key is not None) + (queue is not None) + (selector is not None) > 1:
            raise MessageRefused("give one of shard_by, queue and selector, not several")
        if queue is not None:
            # The caller may give a queue of `queues`, without the namespace.
            if queue.topic != topic and namespaces.wrap(self._core.settings.namespace, queue.topic) != topic:
                raise MessageRefused(f"message's topic {topic} is not equal to the queue's topic {queue.topic}")
            return queue
        if key is None and selector is None:
            return None
        route = await self._route(topic, deadline)
        if key is not None:
            # The hash of Java clients, over the same queues.
            return shard(route.write_queues, key)
        assert selector is not None
        try:
            chosen = selector(route.write_queues, argument)
        # The application's function: whatever it raises is its own.
        except Exception as error:
            raise MessageRefused(f"select message queue threw exception: {type(error).__name__}: {error}") from error
        if not isinstance(chosen, MessageQueue):
            raise MessageRefused("select message queue returned no queue")
        return chosen

    async def _route(self, topic: str, deadline: Deadline) -> TopicRoute:
        """The route to send by; while the topic has no route or no master that can be found, asks again.

        Raises CallTimeout, NoNameServer, BrokerNotExist, and RouteNotFound for a topic that does not exist.
        """
        route = self._core.routes.cached_for_send(topic)
        retries = None
        while route is None:
            try:
                # One lookup may not use more than the time of the send.
                async with asyncio.timeout(max(deadline.remaining_ms, 0) / 1000):
                    route = await self._core.write_route(topic)
            except TimeoutError:
                raise CallTimeout(f"send call timeout: no route of topic {topic} in {deadline.elapsed_ms} ms") from None
            except (NoNameServer, BrokerNotExist, RouteNotFound) as error:
                # Made on the first failure: nearly all calls find the route cached.
                retries = retries or Retries(self._core.settings.attempts, deadline)
                retries.failed(error, error.broker or "")
                if not await self._again(retries):
                    error.add_note(f"Attempts: {retries.text}")
                    raise
        return route

    async def _again(self, retries: Retries) -> bool:
        """Whether to try once more, after the back-off; not when the client is stopping."""
        return self._core.state is ClientState.RUNNING and await retries.again()

    async def _route_for(self, prepared: Prepared, deadline: Deadline) -> TopicRoute:
        """The route to pick a queue from; for a delay that is not a level, reduced to the brokers that support it."""
        route = await self._route(prepared.topic, deadline)
        if prepared.timer is None:
            return route
        names = {queue.broker_name for queue in route.write_queues}
        masters = {name: address for name in names if (address := route.master(name)) is not None}
        fit = await self._core.timer_limits.brokers_for(prepared.timer, masters, deadline)
        # Other brokers would deliver the message at once.
        return replace(route, write_queues=tuple(queue for queue in route.write_queues if queue.broker_name in fit))

    def _pick(self, route: TopicRoute, avoid: str | None) -> MessageQueue:
        if self._core.settings.latency_fault:
            return self._core.faults.pick(route.write_queues, self._counter, now_ms(), avoid)
        return self._counter.pick(route.write_queues, avoid)

    async def _address_for(self, prepared: Prepared, queue: MessageQueue, deadline: Deadline) -> str:
        """The master's address for this queue. Raises BrokerNotExist, and Unsupported for a delay the broker does not support."""
        address = await self._address(queue, deadline)
        if prepared.timer is not None:  # checked again for a picked queue: another broker may have become master
            # Limits are stored by the plain address.
            master = plain_address(address) if self._core.settings.vip_channel else address
            await self._core.timer_limits.brokers_for(prepared.timer, {queue.broker_name: master}, deadline)
        return address

    async def _address(self, queue: MessageQueue, deadline: Deadline) -> str:
        """The master's address; if unknown, the route is refreshed within the deadline. Raises BrokerNotExist."""
        core = self._core
        topic = namespaces.wrap(core.settings.namespace, queue.topic)
        route = core.routes.cached(topic)
        address = route.master(queue.broker_name) if route is not None else None
        if address is None:
            try:
                async with asyncio.timeout(max(deadline.remaining_ms, 0) / 1000):
                    address = await core.master_address(topic, queue.broker_name)
            except TimeoutError:
                # The cause that passes: a new master may be elected within the time.
                raise BrokerNotExist(
                    f"The broker[{queue.broker_name}] not exist: no route of topic {topic} in {deadline.elapsed_ms} ms",
                    broker=queue.broker_name,
                ) from None
        return core.channel_address(address)

    def _command(self, prepared: Prepared, queue: MessageQueue) -> Command:
        settings = self._core.settings
        return send_command(
            prepared,
            queue,
            group=self.group,
            default_topic=settings.create_topic_key,
            default_queues=self._default_queues,
            now_ms=now_ms(),
            smart=settings.smart_send,
        )

    async def _deliver(self, prepared: Prepared, fixed: MessageQueue | None, deadline: Deadline) -> list[Receipt]:
        """Try until the message is stored, an error cannot pass, or time or attempts are exhausted (PR-15..PR-18).

        An attempt that finds no queue sends nothing and fails like any other. Only if no request was sent before are the errors
        of the route lookup, and Unsupported, raised directly: later they would hide what the earlier requests did (API-25).
        """
        settings = self._core.settings
        retries = Retries(settings.attempts, deadline, fixed=fixed is not None)
        stored: list[Receipt] | None = None
        outcome_unknown = False
        # Ends at the deadline, or as `Retries` decides.
        while True:
            sent_to = retries.brokers
            try:
                # Not the broker of the attempt before, if another one has a queue.
                queue = fixed or self._pick(await self._route_for(prepared, deadline), sent_to[-1] if sent_to else None)
            except SaturnError as error:
                last = error
                if not sent_to and not isinstance(error, ConnectFailed):  # ConnectFailed: no response to a heartbeat
                    raise
                retries.failed(error)
            else:
                sent_to.append(queue.broker_name)
                try:
                    outcome = await self._attempt(prepared, queue, retries)
                except (ConnectFailed, CallTimeout) as error:
                    # A request that was written may be stored, whatever later attempts say.
                    last, outcome_unknown = error, outcome_unknown or isinstance(error, CallTimeout) or error.sent
                    retries.failed(error, queue.broker_name)
                except (ResponseError, ClientError) as error:
                    if isinstance(error, ResponseError):
                        # A refusal that no repetition changes.
                        if error.code not in self._retry_codes:
                            raise
                    elif not error.retryable:
                        raise
                    last = error
                    retries.failed(error, queue.broker_name, self._candidates(prepared.topic, queue, fixed))
                    if isinstance(error, ResponseError) and error.refresh_route:
                        # Another broker may have the topic now.
                        await self._refresh(prepared.topic, retries.share_ms)
                else:
                    # Any other status: it is stored, but was not flushed or replicated in time.
                    if outcome[0].status is SendStatus.SEND_OK or not settings.retry_not_stored:
                        return outcome
                    # A later failure does not hide that the message is stored.
                    stored = outcome
                    retries.answered()
            if not await self._again(retries):
                break
        if stored is not None:
            return stored
        raise self._failure(prepared, retries, last, outcome_unknown=outcome_unknown) from last

    def _candidates(self, topic: str, queue: MessageQueue, fixed: MessageQueue | None) -> frozenset[str]:
        """The brokers that may be asked to store the message."""
        route = self._core.routes.cached_for_send(topic)
        if fixed is not None or route is None:
            # Without a route, as if only this broker had the topic.
            return frozenset({queue.broker_name})
        return frozenset(item.broker_name for item in route.write_queues)

    def _failure(
        self, prepared: Prepared, retries: Retries, cause: SaturnError, *, outcome_unknown: bool
    ) -> SendFailed:
        return SendFailed(
            topic=namespaces.strip(self._core.settings.namespace, prepared.topic),
            group=self.group,
            attempts=len(retries.failures),
            elapsed_ms=retries.deadline.elapsed_ms,
            brokers=retries.brokers,
            cause=cause,
            outcome_unknown=outcome_unknown,
            failures=retries.failures,
        )

    async def _deliver_oneway(self, prepared: Prepared, choice: Choice, deadline: Deadline) -> None:
        """Write a one-way request; tried again only as long as nothing was written. Raises the error of the last attempt."""
        # Hooks read the shard key from here.
        prepared.shard_by = choice[0]
        fixed = await self._fixed(prepared.topic, choice, deadline)
        retries = Retries(self._core.settings.attempts, deadline)
        while True:
            try:
                # No answers come, so that no broker is known to have failed.
                queue = fixed or self._pick(await self._route_for(prepared, deadline), None)
                retries.brokers.append(queue.broker_name)
                return await self._attempt_oneway(prepared, queue, retries)
            except (ConnectFailed, BrokerNotExist, NoNameServer) as error:
                # Written: a second request could store the message twice.
                if isinstance(error, ConnectFailed) and error.sent:
                    raise
                retries.failed(error, error.broker or "")
                if not await self._again(retries):
                    error.add_note(f"Attempts: {retries.text}")
                    raise

    async def _refresh(self, topic: str, timeout_ms: int) -> None:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._core.routes.refresh(topic)
        except (SaturnError, TimeoutError):
            return  # the next attempt uses the old route (PR-11)

    async def _attempt(self, prepared: Prepared, queue: MessageQueue, retries: Retries) -> list[Receipt]:
        """One attempt: one request to one broker, with the hooks around it. Its share of the time includes the address lookup."""
        # A silent broker leaves time for the others.
        deadline = Deadline(retries.share_ms)
        retries.address = address = await self._address_for(prepared, queue, deadline)
        if not self._hooks:
            return await self._exchange(prepared, queue, address, deadline)
        return await self._with_hooks(
            prepared, queue, address, lambda changed: self._exchange(changed, queue, address, deadline)
        )

    async def _attempt_oneway(self, prepared: Prepared, queue: MessageQueue, retries: Retries) -> None:
        """Write one one-way request, with the hooks around it."""
        deadline = retries.deadline
        retries.address = address = await self._address_for(prepared, queue, deadline)

        async def write(changed: Prepared) -> list[Receipt]:
            # The born time is that of the attempt.
            command = self._command(changed, queue)
            await self._core.remote.call_oneway(address, command, max(deadline.remaining_ms, 1))
            return []

        await (self._with_hooks(prepared, queue, address, write) if self._hooks else write(prepared))

    async def _exchange(
        self, prepared: Prepared, queue: MessageQueue, address: str, deadline: Deadline
    ) -> list[Receipt]:
        """Send one request and record latency and failure in the fault table; a cancellation is not a failure (PR-30)."""
        core = self._core
        begin = time.monotonic()
        # Whatever raises counts as failed, except a cancellation.
        failed = True
        try:
            answer = await core.remote.call(address, self._command(prepared, queue), max(deadline.remaining_ms, 0))
            if answer.code not in STATUS_BY_CODE:
                raise core.answer_error(
                    answer, f"{queue.broker_name}@{address}", topic=prepared.topic, group=self.group
                )
            failed = False
            # Counted here, so that a batch counts as its messages.
            self._stats.messages += len(prepared.ids)
            outcome = receipts(prepared, namespaces.strip_queue(core.settings.namespace, queue), answer)
        except asyncio.CancelledError:
            failed = False
            raise
        except ConnectFailed as error:
            # The network layer knows addresses only.
            error.broker = queue.broker_name
            if not error.sent:
                error.hint = unreachable_broker(prepared.topic, queue.broker_name, address)
            raise
        finally:
            stats, took_ms = self._stats, (time.monotonic() - begin) * 1000
            stats.requests += 1
            stats.failed += failed
            stats.request_ms += took_ms
            if core.settings.latency_fault:
                elapsed_ms = int(took_ms)
                # Fast answers leave an empty table empty: `pick` is cheap then.
                if failed or elapsed_ms >= 100 or len(core.faults):
                    core.faults.record(queue.broker_name, elapsed_ms, now_ms(), failed=failed)
        return outcome

    async def _with_hooks(
        self,
        prepared: Prepared,
        queue: MessageQueue,
        address: str,
        send: Callable[[Prepared], Awaitable[list[Receipt]]],
    ) -> list[Receipt]:
        """Send with the hooks around it. Properties that they set apply to this attempt only; hooks run again for the next."""
        topic = namespaces.strip(self._core.settings.namespace, prepared.topic)
        context = SendContext(
            self.group,
            topic,
            queue,
            address,
            prepared.ids,
            properties=prepared.properties,
            body_bytes=len(prepared.body),
            client_id=self._core.client_id,
            shard_by=prepared.shard_by,
        )
        for hook in self._hooks:
            # Errors of `check` refuse the message; those of the other hooks are logged.
            hook.check(context)
        run_quietly(self._hooks, "before", context)
        changed = replace(prepared, properties=context.applied_to(prepared.properties))
        try:
            outcome = await send(changed)
            # Of a batch the first one stands for all.
            context.receipts, context.receipt = outcome, outcome[0] if outcome else None
        except BaseException as error:
            context.error = error
            raise
        finally:
            run_quietly(self._hooks, "after", context)
        return outcome
