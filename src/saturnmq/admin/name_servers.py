"""NameServers: configuration, keys and values, write permission of brokers.

Requirements: ADM-09.
"""

from __future__ import annotations

from saturnmq.admin.connection import AdminConnection
from saturnmq.config.settings import parse_properties
from saturnmq.protocol.codes import RequestCode


class NameServers:
    """NameServers: configuration, keys and values, write permission of brokers."""

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    async def configuration(self) -> dict[str, dict[str, str]]:
        """Keys and values of each NameServer (319), by its address."""
        found = {}
        for address in self._connection.name_servers:
            answer = await self._connection.read(address, RequestCode.GET_NAMESRV_CONFIG, main_port=True)
            found[address] = parse_properties((answer.body or b"").decode())
        return found
