"""Topics: create, delete, list, route, statistics.

Requirements: ADM-09.
"""

from __future__ import annotations

from saturnmq.admin.connection import AdminConnection
from saturnmq.protocol.bodies import TopicList, TopicRouteData
from saturnmq.protocol.codes import RequestCode


class Topics:
    """Topics: create, delete, list, route, statistics."""

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    async def names(self) -> list[str]:
        """Names of all topics that the NameServer knows (206), in its order."""
        answer = await self._connection.ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return TopicList.decode(answer.body).topic_list

    async def route(self, topic: str) -> TopicRouteData:
        """Queues and brokers of a topic (105). Raises TopicNotExist."""
        return await self._connection.route(topic)
