"""Copies to a slave its master's state that is not in the log: topics, groups, consumer offsets, progress of delayed messages.

The master is the one that NameServers report. Each table is copied on its own, so that a failure of one affects no other. The
master learns nothing from a slave, except what clients pull and commit there.

Requirements: MS-01..MS-05, MS-09, HA-20.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from saturnmq.broker.services.registrar import Registrar
from saturnmq.broker.state.groups import Groups
from saturnmq.broker.state.offsets import Offsets
from saturnmq.broker.state.topics import Topics
from saturnmq.net import NetSettings, RemotingClient, TlsSettings
from saturnmq.protocol.bodies import ConsumerOffsetTable, DelayOffsetTable, SubscriptionGroupTable, TopicConfigTable
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import RemoteProtocolError, SaturnError, response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.store import StateFile
from saturnmq.tasks import supervised

log = logging.getLogger(__name__)

FIRST_SECONDS: Final = 3.0
PERIOD_SECONDS: Final = 10.0
TIMEOUT_MS: Final = 3000


class MasterCopy:
    """Copies periodically while it runs. own_address: the address that this broker registers."""

    def __init__(
        self,
        broker_name: str,
        registrar: Registrar,
        topics: Topics,
        groups: Groups,
        offsets: Offsets,
        delay_file: StateFile,
        net: NetSettings,
        tls: TlsSettings | None,
        own_address: Callable[[], str],
    ) -> None:
        self._broker_name = broker_name
        self._registrar = registrar
        self._topics, self._groups, self._offsets = topics, groups, offsets
        self._delay_file = delay_file
        self._client = RemotingClient(settings=net, tls=tls)
        self._own_address = own_address
        self._masters: dict[str, dict[int, int]] = {}  # the master's offsets at the last copy
        self._errors: dict[str, str] = {}  # last error by table
        self._missing: dict[str, int] = {}  # topics that only replicated messages have, and the queues they need
        self._task: asyncio.Task[None] | None = None

    @property
    def ports(self) -> set[int]:
        """Local ports of the connections to the master."""
        return self._client.ports

    def start(self) -> None:
        """Copy in the background."""
        self._task = supervised(self._run(), "copies from the master")

    async def stop(self) -> None:
        """Stop copying and close the connection."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._client.close()
        self._recreate()

    def replicated(self, topic: str, queue_id: int) -> None:
        """Called for each replicated message: note a topic that is not in the table."""
        if topic not in self._topics.table:
            self._missing[topic] = max(self._missing.get(topic, 0), queue_id + 1)

    def _recreate(self) -> None:
        """Create the topics whose messages arrived and which no copy of the master's topics decided about."""
        missing, self._missing = self._missing, {}
        self._topics.recreate(missing)

    async def _run(self) -> None:
        await asyncio.sleep(FIRST_SECONDS)
        while True:
            await self.copy()
            await asyncio.sleep(PERIOD_SECONDS)

    async def copy(self) -> None:
        """Copy all tables once, in the order of Apache RocketMQ (MS-02); nothing while the master is unknown."""
        address = self._registrar.master_address
        if not address or address == self._own_address():
            self._recreate()
            return
        await self._guarded("topics", self._copy_topics, address)
        await self._guarded("consumer offsets", self._copy_offsets, address)
        await self._guarded("delay offsets", self._copy_delays, address)
        await self._guarded("groups", self._copy_groups, address)

    async def _guarded(self, what: str, work: Callable[[str], Awaitable[None]], address: str) -> None:
        text = ""
        try:
            await work(address)
        except (SaturnError, OSError, ValueError, KeyError, TypeError) as error:
            text = str(error) or repr(error)
        if text and text != self._errors.get(what):
            log.warning("copy from master failed table=%s master=%s error=%s", what, address, text)
        self._errors[what] = text

    async def _ask(self, address: str, code: RequestCode) -> bytes:
        answer = await self._client.invoke(address, Command(code), TIMEOUT_MS)
        if answer.code != ResponseCode.SUCCESS:
            raise response_error(answer.code, answer.remark, broker=address)
        return answer.body or b""

    async def _copy_topics(self, address: str) -> None:
        decided = list(self._missing)
        try:
            answer = await self._ask(address, RequestCode.GET_ALL_TOPIC_CONFIG)
        except SaturnError:
            self._recreate()  # the master may be lost, and this broker become the master
            raise
        found = TopicConfigTable.decode(answer)
        if self._broker_name not in found.topic_config_table:  # every broker has a topic of its name
            raise RemoteProtocolError(f"the topics of {address} are not of a broker {self._broker_name}")
        for name in decided:
            self._missing.pop(name, None)
        if found.data_version != self._topics.version:
            self._topics.take(found)
            log.info("topics copied master=%s count=%s", address, len(found.topic_config_table))

    async def _copy_offsets(self, address: str) -> None:
        """Take over what changed on the master since the last copy; of a first copy, only greater offsets.

        Offsets that clients committed here while the master was down are kept until the master has newer ones, and a reset on
        the master reaches the slave, too.
        """
        found = ConsumerOffsetTable.decode(await self._ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET)).offset_table
        for name, queues in found.items():
            before = self._masters.get(name, {})
            changed = {queue: offset for queue, offset in queues.items() if before.get(queue, offset) != offset}
            new = {queue: offset for queue, offset in queues.items() if queue not in before}
            if changed:
                self._offsets.take({name: changed})
            if new:
                self._offsets.take({name: new}, forward=True)
        self._masters = found
        await self._offsets.save()

    async def _copy_delays(self, address: str) -> None:
        data = DelayOffsetTable.decode(await self._ask(address, RequestCode.GET_ALL_DELAY_OFFSET)).encode()
        await asyncio.get_running_loop().run_in_executor(None, _write_changed, self._delay_file, data)

    async def _copy_groups(self, address: str) -> None:
        found = SubscriptionGroupTable.decode(await self._ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
        if found.data_version != self._groups.version:
            self._groups.take(found)
            log.info("groups copied master=%s count=%s", address, len(found.subscription_group_table))


def _write_changed(file: StateFile, data: bytes) -> None:
    if file.candidates()[:1] != [data]:
        file.write(data)
