"""Rates that the members of consumer groups report about themselves, asked for each minute while the metrics port is open.

The exporter of Apache RocketMQ does the same with code 307 through the broker. What a member answers is bounded
and believed for its own rows only: topics that the broker does not have are left out.

Requirements: EXP-02, INT-12.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterator
from typing import Final

from saturnmq.broker.requests.table_row import BODY_BUDGET
from saturnmq.broker.state.clients import Clients
from saturnmq.broker.state.topics import Topics
from saturnmq.net import Connection
from saturnmq.protocol.bodies import ConsumerRunningInfo, ConsumeStatus
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.frames.command import Command

log = logging.getLogger(__name__)

FIRST_SECONDS: Final = 15.0
PERIOD_SECONDS: Final = 60.0
TIMEOUT_MS: Final = 3000
MEMBERS_MAX: Final = 2000  # asked in a round
AT_ONCE: Final = 8
TOPICS_MAX: Final = 64  # of one member
ANSWER_BYTES_MAX: Final = 262_144
_NUMBERS: Final = ("pull_rt", "pull_tps", "consume_rt", "consume_ok_tps", "consume_failed_tps", "consume_failed_msgs")

Labels = tuple[str, str, str, str]  # client address, client id, group, topic


class ClientRates:
    """The rates of the last round."""

    def __init__(self, clients: Clients, topics: Topics) -> None:
        self._clients, self._topics = clients, topics
        self._rows: list[tuple[Labels, ConsumeStatus]] = []

    def rows(self) -> Iterator[tuple[Labels, ConsumeStatus]]:
        """Labels and rates of each member and topic."""
        return iter(self._rows)

    async def poll(self) -> None:
        """Ask the members, a few at a time; those that do not answer have no rows until the next round."""
        waiting = self._members()
        rows: list[tuple[Labels, ConsumeStatus]] = []

        async def ask() -> None:
            for group, member, client_id in waiting:
                rows.extend(await self._rates(group, member, client_id))

        await asyncio.gather(*[ask() for _ in range(AT_ONCE)])
        self._rows = rows

    def _members(self) -> Iterator[tuple[str, Connection, str]]:
        member_count = 0
        for group in list(self._clients.consumers.values()):
            for member, info in list(group.members.items()):
                if member_count >= MEMBERS_MAX:
                    log.info("not all members asked for their rates limit=%s", MEMBERS_MAX)
                    return
                if not (member.closed or member.output_full):
                    member_count += 1
                    yield group.name, member, info.client_id

    async def _rates(self, group: str, member: Connection, client_id: str) -> list[tuple[Labels, ConsumeStatus]]:
        ext = {"consumerGroup": group, "clientId": client_id, "jstackEnable": "false"}
        try:
            answer = await member.invoke(Command(RequestCode.GET_CONSUMER_RUNNING_INFO, ext=ext), TIMEOUT_MS)
            if answer.code != ResponseCode.SUCCESS or not answer.body or len(answer.body) > ANSWER_BYTES_MAX:
                return []
            table = ConsumerRunningInfo.decode(answer.body, budget=BODY_BUDGET).status_table
        except SaturnError:  # a timeout, a closed connection, an answer that cannot be read
            return []
        topic_statuses = [
            (topic, status) for topic, status in table.items() if topic in self._topics.table and _finite(status)
        ]
        return [
            ((member.remote_address, client_id, group, topic), status) for topic, status in topic_statuses[:TOPICS_MAX]
        ]


def _finite(status: ConsumeStatus) -> bool:
    return all(math.isfinite(getattr(status, name)) for name in _NUMBERS)
