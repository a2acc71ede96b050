"""The broker: request handlers, topic, group and offset state, long polling, and registration with NameServers."""

from saturnmq.broker.broker import Broker
from saturnmq.broker.settings import BrokerSettings

__all__ = ["Broker", "BrokerSettings"]
