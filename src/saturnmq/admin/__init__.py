"""Administration: one operation per function. The command line, which reads options and prints, is in `saturnmq.cli`.

Errors are those of the client, the same classes as in `saturnmq`.
"""

from saturnmq.admin.admin import Admin
from saturnmq.admin.credentials import AdminAccess, read_access
from saturnmq.errors import CallTimeout, ClientError, ConnectFailed, NoNameServer
from saturnmq.protocol.errors import ConfigError, ResponseError, SaturnError

__all__ = [
    "Admin",
    "AdminAccess",
    "CallTimeout",
    "ClientError",
    "ConfigError",
    "ConnectFailed",
    "NoNameServer",
    "ResponseError",
    "SaturnError",
    "read_access",
]
