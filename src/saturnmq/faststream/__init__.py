"""A FastStream broker for SaturnMQ and Apache RocketMQ: subscribers, publishers, routers, a test broker, the AsyncAPI document.

    from faststream import FastStream
    from saturnmq.faststream import RocketBroker

    broker = RocketBroker("rmq://127.0.0.1:9876")
    app = FastStream(broker)

    @broker.subscriber("orders", group="billing", filter="paid || refunded")
    @broker.publisher("invoices")
    async def bill(order: dict) -> dict:
        return {"order": order["id"]}

Needs the extra `faststream`. FastStream has no public interface for brokers: this package builds on its `_internal` modules, and
so on one minor version (docs/decisions/0039-faststream.md lists what it uses of them).

Requirements: INT-01, INT-02.
"""

from __future__ import annotations

try:
    import faststream as _faststream  # noqa: F401 - to know whether it is there
except ImportError as error:
    from saturnmq.extras import install_command

    raise ImportError(
        f"saturnmq.faststream needs FastStream: {install_command('faststream')}", name=error.name
    ) from error

from saturnmq.faststream.annotations import RocketMessage
from saturnmq.faststream.broker import RocketBroker
from saturnmq.faststream.commands import RocketResponse
from saturnmq.faststream.router import RocketPublisher, RocketRoute, RocketRouter
from saturnmq.faststream.testing import TestRocketBroker

__all__ = [
    "RocketBroker",
    "RocketMessage",
    "RocketPublisher",
    "RocketResponse",
    "RocketRoute",
    "RocketRouter",
    "TestRocketBroker",
]
