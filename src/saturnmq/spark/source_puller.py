"""Pullers of the source that choose a broker: of masters only, and of a chosen broker id.

A slave may be behind its master, so only a master's answer decides where a plan begins and ends and which messages no longer exist
(docs/decisions/0031-masters-decide.md). Does not import pyspark.

Requirements: SRC-02, SRC-14, SRC-15.
"""

from __future__ import annotations

import contextlib

from saturnmq.client.connection.core import Core
from saturnmq.client.puller.puller import Puller, PullResult
from saturnmq.errors import BrokerNotExist
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import MASTER_ID
from saturnmq.protocol.errors import SaturnError


class NoMaster(BrokerNotExist):
    """A broker name has slaves but no master at the moment, as during the election of a DLedger leader."""


class MasterPuller(Puller):
    """Sends every request to masters. Raises NoMaster while a broker name has slaves only."""

    async def _address(self, wire: MessageQueue, code: int) -> str:
        address, is_slave = await self._core.read_address(wire.topic, wire.broker_name, MASTER_ID)
        if is_slave:
            with contextlib.suppress(SaturnError):  # without a NameServer the cached route stays in use (DG-01)
                await self._core.routes.refresh(wire.topic)
            address, is_slave = await self._core.read_address(wire.topic, wire.broker_name, MASTER_ID)
        if is_slave:
            raise NoMaster(
                f"broker {wire.broker_name} has no master, only a slave at {address}", broker=wire.broker_name
            )
        return address


class SteadyPuller(Puller):
    """Pulls from the chosen broker id and ignores brokers' suggestions.

    While that broker does not answer, it pulls from another id of the same broker name.
    """

    def __init__(self, core: Core, group: str, broker_id: int) -> None:
        super().__init__(core, group)
        self._home = broker_id

    def _answered(self, wire: MessageQueue, result: PullResult) -> None:
        self._suggested.pop(wire, None)
