"""A puller that stays with one broker id, for option readFrom.

Requirements: SRC-14.
"""

from __future__ import annotations

from saturnmq.client.connection.core import Core
from saturnmq.client.puller.puller import Puller, PullResult
from saturnmq.protocol.bodies import MessageQueue


class SteadyPuller(Puller):
    """Pulls from the chosen broker id and ignores brokers' suggestions.

    While that broker does not answer, it pulls from another id of the same broker name.
    """

    def __init__(self, core: Core, group: str, broker_id: int) -> None:
        super().__init__(core, group)
        self._home = broker_id

    def _answered(self, wire: MessageQueue, result: PullResult) -> None:
        self._suggested.pop(wire, None)
