"""An embedded broker for tests: NameServer and broker in this process, on free loopback ports. Source: TST-01."""

from saturnmq.testing.embedded import EmbeddedBroker, SyncEmbeddedBroker

__all__ = ["EmbeddedBroker", "SyncEmbeddedBroker"]
