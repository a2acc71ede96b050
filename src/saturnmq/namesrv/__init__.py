"""The NameServer: broker registrations and topic routes."""

from saturnmq.namesrv.server import NameServer
from saturnmq.namesrv.settings import NameServerSettings

__all__ = ["NameServer", "NameServerSettings"]
