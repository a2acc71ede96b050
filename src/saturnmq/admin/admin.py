"""`Admin`: every administrative operation on a cluster, in families: `admin.topics`, `admin.brokers`, ...

Requirements: ADM-09.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from saturnmq.admin.accounts import Accounts
from saturnmq.admin.brokers import Brokers
from saturnmq.admin.clients import Clients
from saturnmq.admin.connection import TIMEOUT_MS, AdminConnection
from saturnmq.admin.credentials import AdminAccess
from saturnmq.admin.dead_letters import DeadLetters
from saturnmq.admin.export import Export
from saturnmq.admin.groups import Groups
from saturnmq.admin.messages import Messages
from saturnmq.admin.name_servers import NameServers
from saturnmq.admin.offsets import Offsets
from saturnmq.admin.statistics import Statistics
from saturnmq.admin.topics import Topics
from saturnmq.admin.traces import Traces
from saturnmq.admin.waiting import WaitingMessages


class Admin:
    """Administration of one cluster, of SaturnMQ or of Apache RocketMQ 4.9 and 5.

    name_servers: "host:port", several separated by `;`, or a sequence. access: TLS and credentials. timeout_ms: of one request.
    vip_channel: brokers are asked at their port minus 2. dry_run: is called with a line per change, which is then not sent.

    Example:
        from saturnmq.admin import Admin

        async with Admin("127.0.0.1:9876") as admin:
            print(await admin.topics.names())
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        access: AdminAccess | None = None,
        timeout_ms: int = TIMEOUT_MS,
        vip_channel: bool = False,
        dry_run: Callable[[str], None] | None = None,
    ) -> None:
        self.connection = AdminConnection(
            name_servers, access=access, timeout_ms=timeout_ms, vip_channel=vip_channel, dry_run=dry_run
        )
        self.topics = Topics(self.connection)
        self.groups = Groups(self.connection)
        self.brokers = Brokers(self.connection)
        self.name_servers = NameServers(self.connection)
        self.messages = Messages(self.connection)
        self.clients = Clients(self.connection)
        self.dead_letters = DeadLetters(self.connection, self.topics, self.messages, self.clients)
        self.traces = Traces(self.messages)
        self.waiting = WaitingMessages(self.connection, self.messages)
        self.offsets = Offsets(self.connection)
        self.statistics = Statistics(self.connection)
        self.accounts = Accounts(self.connection)
        self.export = Export(self.connection, self.brokers, self.groups, self.statistics)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self.connection.close()
