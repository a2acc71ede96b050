"""Answers of hostile or faulty NameServers and brokers to an administrator: named errors, bounded work."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from saturnmq.admin import ledger
from saturnmq.admin.brokers import Brokers, BrokerState
from saturnmq.admin.connection import AdminConnection
from saturnmq.admin.listings import LARGE_BYTES, decoded
from saturnmq.admin.offsets import Offsets
from saturnmq.admin.topics import Topics
from saturnmq.net import RemotingClient
from saturnmq.protocol.bodies import BrokerData, ClusterInfo, QueueData, TopicList, TopicRouteData
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import BodyError, ConfigError
from saturnmq.protocol.frames.command import Command

QUEUES = 2**31 - 1


class Hostile(AdminConnection):
    """Answers every request with the same body."""

    def __init__(self, body: bytes) -> None:
        super().__init__("127.0.0.1:1")
        self._body = body

    async def read(self, *_: Any, **__: Any) -> Command:
        return Command(ResponseCode.SUCCESS, body=self._body)

    async def ask_name_server(self, *_: Any, **__: Any) -> Command:
        return await self.read()


async def test_route_with_too_many_queues_is_refused_by_all_operations() -> None:
    route = TopicRouteData([QueueData("b0", QUEUES, QUEUES, 6)], [BrokerData("c", "b0", {0: "127.0.0.1:1"})])
    connection = Hostile(route.encode())
    for operation in (
        lambda: Topics(connection).readable_queues("orders"),
        lambda: Offsets(connection).reset_offline("g", "orders", 0),
        lambda: connection.route("orders"),
    ):
        with pytest.raises(BodyError, match=f"topic orders: broker b0 has {QUEUES} read queues"):
            await operation()


def test_configuration_that_is_no_text_is_shown_with_replacements() -> None:
    found = asyncio.run(Brokers(Hostile(b"brokerName=\xff\xfe\n")).configuration("127.0.0.1:1"))
    assert found == {"brokerName": "\ufffd\ufffd"}


@pytest.mark.parametrize("text", ["9" * 400, "-" + "9" * 400, "x", "", str(2**63)])
def test_runtime_value_beyond_64_bits_counts_as_missing(text: str) -> None:
    state = BrokerState("c", "b0", 0, "127.0.0.1:1", {"earliestMessageTimeStamp": text})
    assert state.integer("earliestMessageTimeStamp") == 0


def test_group_without_addresses_is_a_named_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(*_: Any) -> Command:
        return Command(ResponseCode.SUCCESS, body=ClusterInfo({"g": BrokerData("c", "g", {})}, {"c": ["g"]}).encode())

    monkeypatch.setattr(RemotingClient, "invoke", answer)
    with pytest.raises(ConfigError, match=r"-g g: NameServer 127\.0\.0\.1:1 has no address"):
        asyncio.run(ledger.group_status("127.0.0.1:1", "g"))


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_large_answer_is_decoded_beside_the_event_loop(large: bool) -> None:
    threads: list[int] = []

    class Seen(TopicList):
        @classmethod
        def decode(cls, data: bytes | None, *, budget: int = 0) -> Any:
            threads.append(threading.get_ident())
            return cls([])

    asyncio.run(decoded(Seen, b" " * (LARGE_BYTES if large else LARGE_BYTES - 1)))
    assert (threads == [threading.get_ident()]) is not large
