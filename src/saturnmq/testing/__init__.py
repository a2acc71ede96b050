"""Embedded broker for tests and the objects that the pytest plugin's fixtures return.

Example:
    from saturnmq import Client
    from saturnmq.testing import EmbeddedBroker

    async with EmbeddedBroker() as server, Client.from_url(server.url) as client, client.producer("p") as out:
        assert (await out.send("orders", b"first")).offset == 0

With pytest no setup is needed: the fixtures `saturn_broker`, `saturn_client`, `saturn_topic`, `saturn_group` and
`saturn_clock` are available wherever SaturnMQ is installed. Names are loaded on first use, because pytest imports this
package in every session.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from saturnmq.testing.embedded import EmbeddedBroker as EmbeddedBroker
    from saturnmq.testing.embedded import SyncEmbeddedBroker as SyncEmbeddedBroker
    from saturnmq.testing.fixture_broker import BrokerFixture as BrokerFixture
    from saturnmq.testing.fixture_broker import ClockFixture as ClockFixture
    from saturnmq.testing.requests_seen import Request as Request
    from saturnmq.testing.travel_clock import TravelClock as TravelClock

_MODULE_OF: Final = {
    "BrokerFixture": "saturnmq.testing.fixture_broker",
    "ClockFixture": "saturnmq.testing.fixture_broker",
    "EmbeddedBroker": "saturnmq.testing.embedded",
    "Request": "saturnmq.testing.requests_seen",
    "SyncEmbeddedBroker": "saturnmq.testing.embedded",
    "TravelClock": "saturnmq.testing.travel_clock",
}

__all__ = ["BrokerFixture", "ClockFixture", "EmbeddedBroker", "Request", "SyncEmbeddedBroker", "TravelClock"]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'saturnmq.testing' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value
