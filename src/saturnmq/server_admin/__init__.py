"""Administration of a server: who may send administrative requests, their audit log, and configuration changed at run time."""

from saturnmq.server_admin.admin_addresses import LOOPBACK, Administration, addresses_problems
from saturnmq.server_admin.configuration import Configuration, parse_pairs, set_log_level

__all__ = ["LOOPBACK", "Administration", "Configuration", "addresses_problems", "parse_pairs", "set_log_level"]
