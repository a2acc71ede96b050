"""Connected clients: consumers, producers, running information.

Requirements: ADM-09, C-36, C-38..C-40.
"""

from __future__ import annotations

from saturnmq.admin.connection import AdminConnection, ask_each
from saturnmq.admin.consumption import consumer_connection, group_brokers, topic_brokers
from saturnmq.admin.listings import SLOW
from saturnmq.protocol.bodies import (
    Connection,
    ConsumerConnection,
    ConsumerRunningInfo,
    MessageQueue,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
)
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import SaturnError, response_error
from saturnmq.protocol.headers.messaging import GetConsumerRunningInfo, GetProducerConnectionList


class Clients:
    """Connected clients: consumers, producers, running information.

    Example:
        for client in (await admin.clients.consumers("billing")).connection_set:
            print(client.client_id, client.client_addr)
    """

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    async def consumers(self, group: str, broker: str | None = None) -> ConsumerConnection:
        """Clients and subscriptions of a consumer group (203), on all its brokers or one. Raises ConsumerNotOnline (206)."""
        return await consumer_connection(self._connection, group, [broker] if broker else [])

    async def producers(self, group: str, topic: str) -> list[Connection]:
        """Clients of a producer group (204), on all brokers of a topic. Raises the first error if no broker has one."""

        async def ask(address: str) -> list[Connection]:
            header = GetProducerConnectionList(producer_group=group)
            answer = await self._connection.read(address, RequestCode.GET_PRODUCER_CONNECTION_LIST, header)
            return ProducerConnection.decode(answer.body).connection_set

        outcomes = await ask_each(await topic_brokers(self._connection, topic), ask)
        connections = {
            c.client_id: c for outcome in outcomes.values() if not isinstance(outcome, SaturnError) for c in outcome
        }
        if not connections:
            for outcome in outcomes.values():
                if isinstance(outcome, SaturnError):
                    raise outcome
            raise response_error(ResponseCode.SYSTEM_ERROR, "Not found the producer group connection")
        return [connections[name] for name in sorted(connections)]

    async def all_producers(self, broker: str) -> dict[str, list[ProducerInfo]]:
        """All producers of a broker by group (328)."""
        answer = await self._connection.read(broker, RequestCode.GET_ALL_PRODUCER_INFO)
        return ProducerTableInfo.decode(answer.body).data

    async def running_info(self, group: str, client_id: str, *, jstack: bool = False) -> ConsumerRunningInfo:
        """Running information of a consumer client (307). jstack: with the stacks of its threads.

        Apache's tools ask the first broker; here the next one is asked if a broker does not know the client.
        """
        header = GetConsumerRunningInfo(consumer_group=group, client_id=client_id, jstack_enable=jstack)
        timeout_ms = self._connection.timeout_ms * SLOW
        failure: SaturnError | None = None
        for address in await group_brokers(self._connection, group):
            silent = self._connection.silent.get(address)
            if silent is not None:  # the next one may know the client, too
                failure = failure or silent
                continue
            try:
                answer = await self._connection.read(
                    address, RequestCode.GET_CONSUMER_RUNNING_INFO, header, timeout_ms=timeout_ms
                )
                return ConsumerRunningInfo.decode(answer.body)
            except SaturnError as error:
                failure = failure or error
        raise failure or response_error(ResponseCode.CONSUMER_NOT_ONLINE, f"no broker serves the group {group}")

    async def owners(self, group: str) -> dict[MessageQueue, str]:
        """Client id by the queue that it consumes; empty if the group is offline."""
        owners: dict[MessageQueue, str] = {}
        try:
            dead = self._connection.silent
            for client in (await consumer_connection(self._connection, group, without=dead)).connection_set:
                info = await self.running_info(group, client.client_id)
                owners |= dict.fromkeys(info.mq_table, client.client_id)
        except SaturnError:  # as far as they are known
            return owners
        return owners
