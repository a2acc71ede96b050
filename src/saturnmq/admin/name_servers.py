"""NameServers: configuration, keys and values, write permission of brokers.

Requirements: ADM-09, OPS-05.
"""

from __future__ import annotations

from saturnmq.admin.connection import AdminConnection, ask_each
from saturnmq.config.settings import parse_properties, property_line
from saturnmq.protocol.bodies import ClusterInfo
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.headers import messaging as h


class NameServers:
    """NameServers: configuration, keys and values, write permission of brokers."""

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    # ---- configuration

    async def configuration(self) -> dict[str, dict[str, str]]:
        """Keys and values of each NameServer (319), by its address. Raises the first error."""
        configurations = {}
        for address in self._connection.name_servers:
            answer = await self._connection.read(address, RequestCode.GET_NAMESRV_CONFIG, main_port=True)
            configurations[address] = parse_properties((answer.body or b"").decode(errors="replace"))
        return configurations

    async def update_configuration(self, key: str, value: str) -> None:
        """Set a key on every NameServer (318). Raises the first error."""
        await self._connection.change_name_servers(
            RequestCode.UPDATE_NAMESRV_CONFIG, body=property_line(key, value).encode()
        )

    async def broker_count(self, address: str) -> int:
        """Number of brokers that are registered at one NameServer (106), masters and slaves."""
        answer = await self._connection.read(address, RequestCode.GET_BROKER_CLUSTER_INFO, main_port=True)
        return sum(len(broker.broker_addrs) for broker in ClusterInfo.decode(answer.body).broker_addr_table.values())

    # ---- keys and values

    async def value(self, namespace: str, key: str) -> str:
        """The value of a key (101), from the first NameServer that answers. Raises QueryNotFound."""
        return await self._connection.key_value(namespace, key)

    async def set_value(self, namespace: str, key: str, value: str) -> None:
        """Set a key on every NameServer (100), which persists it."""
        await self._connection.set_key_value(namespace, key, value)

    async def delete_value(self, namespace: str, key: str) -> None:
        """Delete a key on every NameServer (102)."""
        await self._connection.delete_key_value(namespace, key)

    # ---- write permission

    async def wipe_write_permission(self, broker_name: str) -> dict[str, int | SaturnError]:
        """Take the write permission from all topics of a broker in the routes of each NameServer (205).

        Returns the number of topics, or the error, by address. Only the NameServer's memory changes: the permission comes back
        when the broker registers a changed topic, or with the NameServer's next start.
        """

        async def wipe(address: str) -> int:
            header = h.WipeWritePermOfBroker(broker_name=broker_name)
            answer = await self._connection.change(
                address, RequestCode.WIPE_WRITE_PERM_OF_BROKER, header, main_port=True
            )
            return int(answer.ext.get("wipeTopicCount", "0"))

        return await ask_each(self._connection.name_servers, wipe, seconds=self._connection.timeout_ms / 1000)

    async def add_write_permission(self, broker_name: str) -> dict[str, int | SaturnError]:
        """Set all topics of a broker to read and write in the routes of each NameServer (327). Returns as the other one."""

        async def add(address: str) -> int:
            header = h.AddWritePermOfBroker(broker_name=broker_name)
            answer = await self._connection.change(
                address, RequestCode.ADD_WRITE_PERM_OF_BROKER, header, main_port=True
            )
            return int(answer.ext.get("addTopicCount", "0"))

        return await ask_each(self._connection.name_servers, add, seconds=self._connection.timeout_ms / 1000)
