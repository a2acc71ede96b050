"""A puller that stays with one broker id. Source: SRC-14, option readFrom."""

from __future__ import annotations

from saturnmq.client.connection.core import Core
from saturnmq.client.puller.puller import Puller, PullResult
from saturnmq.protocol.bodies import MessageQueue


class SteadyPuller(Puller):
    """Pulls from the broker id that was chosen, whatever brokers suggest; from another of the name while it does not answer."""

    def __init__(self, core: Core, group: str, broker_id: int) -> None:
        super().__init__(core, group)
        self._home = broker_id

    def _answered(self, wire: MessageQueue, result: PullResult) -> None:
        self._suggested.pop(wire, None)
