"""Administration of a server: who may send administrative requests, their audit log, and configuration changed at run time."""

from saturnmq.server_admin.admin_addresses import LOOPBACK, Administration, addresses_problems
from saturnmq.server_admin.configuration import ServerConfiguration, parse_pairs, set_log_level

__all__ = ["LOOPBACK", "Administration", "ServerConfiguration", "addresses_problems", "parse_pairs", "set_log_level"]
