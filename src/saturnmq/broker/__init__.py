"""The broker: one handler per request code, groups, offsets, long polling, registration."""

from saturnmq.broker.broker import Broker
from saturnmq.broker.settings import BrokerSettings

__all__ = ["Broker", "BrokerSettings"]
