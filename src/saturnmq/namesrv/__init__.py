"""The NameServer: which broker serves which topic."""

from saturnmq.namesrv.server import NameServer
from saturnmq.namesrv.settings import NameServerSettings

__all__ = ["NameServer", "NameServerSettings"]
