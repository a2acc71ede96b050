"""What an operator asks of servers: the commands of `saturnmq admin`. Imports what it asks with when it does."""

from saturnmq.admin.ledger import configure, run

__all__ = ["configure", "run"]
