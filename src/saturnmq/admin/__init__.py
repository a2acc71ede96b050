"""Administration: one operation per function. The command line, which reads options and prints, is in `saturnmq.cli`."""

from saturnmq.admin.admin import Admin
from saturnmq.admin.credentials import AdminAccess, read_access

__all__ = ["Admin", "AdminAccess", "read_access"]
