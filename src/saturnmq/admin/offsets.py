"""Committed offsets of groups: reset by time, skip, clone.

Requirements: ADM-09, ADM-26, C-41..C-43.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Final

from saturnmq.admin.connection import AdminConnection, read_address
from saturnmq.admin.consumption import (
    by_queue,
    consume_stats,
    consumer_connection,
    queue_order,
    topic_brokers,
)
from saturnmq.admin.listings import group_offsets, topic_offsets
from saturnmq.protocol.bodies import (
    GetConsumerStatusBody,
    MessageQueue,
    OffsetWrapper,
    ResetOffsetBody,
)
from saturnmq.protocol.codes import Language, RequestCode, ResponseCode
from saturnmq.protocol.errors import ConfigError, ResponseError, response_error
from saturnmq.protocol.headers.messaging import (
    GetConsumerStatus,
    OffsetResponse,
    ResetOffset,
    SearchOffsetByTimestamp,
    TopicQueue,
    UpdateConsumerOffset,
)
from saturnmq.protocol.offsets import QueueOffset

TO_THE_END: Final = -1  # as a time: skip everything stored


@dataclass(frozen=True)
class Rollback:
    """One queue of a reset for a group without clients. target: the offset at the time; chosen: the committed offset now."""

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    target: int
    chosen: int


@dataclass(frozen=True)
class Position:
    """One queue of a group. first, end: of the queue; committed: of the group, the first message if it has none."""

    queue: MessageQueue
    first: int
    end: int
    committed: int


class Offsets:
    """Committed offsets of groups: reset by time, skip, clone.

    Example:
        from saturnmq.admin.offsets import TO_THE_END

        await admin.offsets.reset("billing", "orders", TO_THE_END)
    """

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    async def reset(
        self, group: str, topic: str, time_ms: int, *, force: bool = True, cpp: bool = False
    ) -> dict[MessageQueue, QueueOffset] | list[Rollback]:
        """Set a group back, or forward, to the messages stored at a time: through its clients (222), else on the brokers.

        time_ms: Unix ms, or TO_THE_END. force: move forward too. cpp: for clients in C++. The mapping is returned if clients are
        connected, which apply it within 10 s; the list if none is, and in a dry run.
        """
        if not self._connection.is_dry_run:
            try:
                return await self.reset_online(group, topic, time_ms, force=force, cpp=cpp)
            except ResponseError as error:
                if not await self._is_offline(group, error):
                    raise
        return await self.reset_offline(group, topic, time_ms, force=force)

    async def _is_offline(self, group: str, error: ResponseError) -> bool:
        """Whether a refusal of code 222 means that no client of the group is connected.

        Brokers refuse a group that has no committed offset before they look for its clients; such a group can be positioned too.
        """
        if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return True
        if error.code != ResponseCode.SYSTEM_ERROR or "consumer group" not in error.remark:
            return False
        try:
            await consumer_connection(self._connection, group)
        except ResponseError as absent:
            return absent.code in (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.TOPIC_NOT_EXIST)
        return False

    async def reset_online(
        self, group: str, topic: str, time_ms: int, *, force: bool = True, cpp: bool = False
    ) -> dict[MessageQueue, QueueOffset]:
        """Let brokers push new offsets to the clients of a group (222). Raises ConsumerNotOnline (206) without clients."""
        offsets: dict[MessageQueue, QueueOffset] = {}
        header = ResetOffset(topic=topic, group=group, timestamp=time_ms, is_force=force)
        language = Language.CPP if cpp else Language.PYTHON
        for address in await topic_brokers(self._connection, topic):
            code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
            answer = await self._connection.change(address, code, header, language=language)
            if answer.body:
                offsets.update(ResetOffsetBody.decode(answer.body).offset_table)
        return offsets

    async def reset_offline(self, group: str, topic: str, time_ms: int, *, force: bool = True) -> list[Rollback]:
        """Commit new offsets on the brokers (15). Only while no client of the group runs: a client would commit over them."""
        rollbacks = []
        async for address, queues in self._by_broker(group, topic):
            for queue, offsets in queues:
                rollbacks.append(await self._roll_back(address, group, queue, offsets, time_ms, force=force))
        return rollbacks

    async def positions(self, group: str, topic: str) -> list[Position]:
        """Where a group is in each queue of a topic, in order. Raises TopicNotExist, and the first error of a broker."""
        positions = []
        async for address, queues in self._by_broker(group, topic):
            bounds = (await topic_offsets(self._connection, address, topic)).offset_table
            for queue, offsets in queues:
                if queue in bounds:
                    low, high = bounds[queue].min_offset, bounds[queue].max_offset
                    positions.append(Position(queue, low, high, offsets.consumer_offset))
        return positions

    async def set(self, group: str, topic: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit offsets by broker name and queue id (15). Raises ConfigError while a client of the group is connected.

        A client would commit its own offsets over them. Raises the first error; the queues before it are changed.
        """
        try:
            clients = (await consumer_connection(self._connection, group)).connection_set
        except ResponseError as error:
            if error.code not in (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.TOPIC_NOT_EXIST):
                raise
            clients = []
        if clients:
            raise ConfigError(
                f"{len(clients)} clients of {group} are connected and would commit over the offsets; "
                "stop them first, or reset to a time"
            )
        brokers = {
            broker.broker_name: read_address(broker) for broker in (await self._connection.route(topic)).broker_datas
        }
        for (name, number), offset in offsets.items():
            address = brokers.get(name)
            if address is None:
                raise ConfigError(f"no broker {name:.200} serves {topic}")
            await self._commit(address, group, MessageQueue(topic, name, number), offset)

    async def _by_broker(
        self, group: str, topic: str
    ) -> AsyncIterator[tuple[str, list[tuple[MessageQueue, OffsetWrapper]]]]:
        """The brokers of a topic by address, with the queues of each and where the group is in them."""
        route = await self._connection.route(topic)
        widths = {queue_data.broker_name: queue_data.read_queue_nums for queue_data in route.queue_datas}
        for broker in route.broker_datas:
            address, name = read_address(broker), broker.broker_name
            if address is not None:
                yield address, await self._queues(group, topic, address, name, widths.get(name, 0))

    async def _queues(
        self, group: str, topic: str, address: str, broker_name: str, width: int
    ) -> list[tuple[MessageQueue, OffsetWrapper]]:
        """Queues of a topic on a broker with the group's offsets; of a queue without one, its bounds."""
        progress = await group_offsets(self._connection, address, group)
        offsets_by_queue = {queue: offsets for queue, offsets in by_queue(progress) if queue.topic == topic}
        queues = [MessageQueue(topic, broker_name, number) for number in range(width)]
        if any(queue not in offsets_by_queue for queue in queues):
            bounds = (await topic_offsets(self._connection, address, topic)).offset_table
            for queue in queues:
                if queue in bounds and queue not in offsets_by_queue:
                    low, high = bounds[queue].min_offset, bounds[queue].max_offset
                    offsets_by_queue[queue] = OffsetWrapper(broker_offset=high, consumer_offset=low)
        return sorted(offsets_by_queue.items(), key=lambda item: queue_order(item[0]))

    async def _roll_back(
        self, address: str, group: str, queue: MessageQueue, offsets: OffsetWrapper, time_ms: int, *, force: bool
    ) -> Rollback:
        target = await self._offset_at(address, queue, time_ms)
        chosen = offsets.consumer_offset
        if force or target <= chosen:
            chosen = target
            await self._commit(address, group, queue, target)
        return Rollback(queue, offsets.broker_offset, offsets.consumer_offset, target, chosen)

    async def _offset_at(self, address: str, queue: MessageQueue, time_ms: int) -> int:
        topic, number, name = queue.topic, queue.queue_id, queue.broker_name
        if time_ms == TO_THE_END:
            end = TopicQueue(topic=topic, queue_id=number, broker_name=name)
            answer = await self._connection.read(address, RequestCode.GET_MAX_OFFSET, end)
        else:
            header = SearchOffsetByTimestamp(topic=topic, queue_id=number, timestamp=time_ms, broker_name=name)
            answer = await self._connection.read(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        return OffsetResponse.decode(answer.ext).offset

    async def _commit(self, address: str, group: str, queue: MessageQueue, offset: int) -> None:
        header = UpdateConsumerOffset(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
            broker_name=queue.broker_name,
        )
        await self._connection.change(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def clone(self, source: str, destination: str, topic: str) -> dict[MessageQueue, int]:
        """Commit the offsets of one group for another (15); all topics of the source on the brokers of `topic`, as Apache does.

        Other topics on brokers without `topic` are left out. Returns the offsets by queue. Raises ConsumerNotOnline (206) if the
        source has consumed nothing.
        """
        progress = await consume_stats(self._connection, source)
        route = await self._connection.route(topic)
        addresses = {broker.broker_name: read_address(broker) for broker in route.broker_datas}
        commits: list[tuple[str, MessageQueue, int]] = []
        for queue, offsets in by_queue(progress):
            address = addresses.get(queue.broker_name)
            if address is not None:
                commits.append((address, queue, offsets.consumer_offset))
            elif queue.topic == topic:
                text = f"broker {queue.broker_name} has offsets of {topic}, and is not in its route; nothing was cloned"
                raise response_error(ResponseCode.SYSTEM_ERROR, text)
        for address, queue, offset in commits:
            await self._commit(address, destination, queue, offset)
        return {queue: offset for _, queue, offset in commits}

    async def of_clients(
        self, group: str, topic: str, client_id: str = ""
    ) -> dict[str, dict[MessageQueue, QueueOffset]]:
        """Offsets that the clients of a group hold, by client id (223); client_id: of one client."""
        header = GetConsumerStatus(topic=topic, group=group, client_addr=client_id)
        offsets_by_client: dict[str, dict[MessageQueue, QueueOffset]] = {}
        for address in await topic_brokers(self._connection, topic):
            answer = await self._connection.read(address, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)
            for client, offsets in GetConsumerStatusBody.decode(answer.body).consumer_table.items():
                offsets_by_client.setdefault(client, {}).update(offsets)
        return offsets_by_client
