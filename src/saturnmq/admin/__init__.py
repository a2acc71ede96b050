"""Administration: the commands of `saturnmq admin`. Heavy imports are deferred until a command runs."""

from saturnmq.admin.ledger import configure, run

__all__ = ["configure", "run"]
