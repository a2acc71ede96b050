"""Administration: one operation per function. The command line, which reads options and prints, is in `saturnmq.cli`.

Errors are those of the client, the same classes as in `saturnmq`. `Admin` is imported on first access: a command that sends
messages needs only the credentials.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from saturnmq.admin.credentials import AdminAccess, read_access
from saturnmq.errors import CallTimeout, ClientError, ConnectFailed, NoNameServer
from saturnmq.protocol.errors import ConfigError, ResponseError, SaturnError

if TYPE_CHECKING:
    from saturnmq.admin.admin import Admin

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


def __getattr__(name: str) -> Any:
    if name != "Admin":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from saturnmq.admin import admin

    globals()[name] = admin.Admin
    return admin.Admin
