"""Copies to a follower the leader's state that is not in the log: topics, groups, consumer offsets, delay progress.

Uses the request codes of an Apache RocketMQ slave (21, 201, 43, 45), so the leader may also be a Java broker.

Requirements: DL-C07, DL-X18.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Final

from saturnmq.broker.events import Event
from saturnmq.broker.services.registrar import Registrar
from saturnmq.broker.state.groups import Groups
from saturnmq.broker.state.identity import Identity
from saturnmq.broker.state.offsets import Offsets
from saturnmq.broker.state.topics import Topics
from saturnmq.net import NetSettings, RemotingClient, TlsSettings
from saturnmq.protocol.bodies import (
    ConsumerOffsetTable,
    DataVersion,
    DelayOffsetTable,
    SubscriptionGroupTable,
    TopicConfigTable,
)
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import SaturnError, response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.store import StateFile

log = logging.getLogger(__name__)

SYNC_SECONDS: Final = 1.0
SYNC_SECONDS_MAX: Final = 10.0  # the period of Apache RocketMQ
REST: Final = 10  # pause after a copy, as a multiple of its duration: large tables are copied less often
TIMEOUT_MS: Final = 3000
LAST_TIMEOUT_MS: Final = 1000  # of the final copy before this member leads; the previous leader may be down
LAST_POLL_SECONDS: Final = 0.01
QUEUES_MIN: Final = 4  # queues of a topic recreated from the log: what producers request on a first send
TIMER_FIELD: Final = "saturnmqTimer"  # extField of the answer to code 45 with the progress of timed messages


class LeaderCopy:
    """Copies periodically (SYNC_SECONDS to SYNC_SECONDS_MAX) from the leader that the NameServers report, while it runs."""

    def __init__(
        self,
        registrar: Registrar,
        topics: Topics,
        groups: Groups,
        offsets: Offsets,
        identity: Identity,
        clock_ms: Callable[[], int],
        net: NetSettings,
        delay_file: StateFile,
        timer_file: StateFile,
        tls: TlsSettings | None,
    ) -> None:
        self._topics, self._groups, self._offsets = topics, groups, offsets
        self._identity = identity
        self._clock_ms = clock_ms
        self._registrar = registrar
        self._client = RemotingClient(settings=net, tls=tls)
        self._delay_file = delay_file
        self._timer_file = timer_file
        self._task: asyncio.Task[None] | None = None
        self._leader = ""  # address of the last leader that answered
        self._last_error = ""
        self._writing = asyncio.Lock()
        self.missing_topics: dict[str, int] = {}  # topics found in replicated messages only, and the queues they need
        self.count = 0  # successful copies
        self.copied: Event[str] = Event()  # after each of them: the address copied from

    # ---- lifecycle

    async def restart(self) -> None:
        """Copy from the leader that the NameServers report from now on (DL-C04)."""
        await self.stop()
        self._registrar.master_address = ""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        await self.stop()
        await self._client.close()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                address = self._registrar.master_address
                if not address or not await self.copy(address, TIMEOUT_MS):
                    await self._registrar.register()  # the response names the leader
                    began = loop.time()
            except Exception:
                log.exception("copy from leader failed retry_s=%s", SYNC_SECONDS)
            await asyncio.sleep(min(max(SYNC_SECONDS, REST * (loop.time() - began)), SYNC_SECONDS_MAX))

    async def copy_last(self, unresponsive: Callable[[], int], patience_ms: int) -> None:
        """Before this member leads: take over newer state from all other reachable members.

        The previous leader is among them unless it died; in that case another member may have copied from it later than this one.
        Frozen or partitioned members are not waited for: after patience_ms, waiting ends once at most unresponsive() copies are
        outstanding. unresponsive() counts the members that did not answer the last heartbeat.
        """
        clock = asyncio.get_running_loop().time
        patient_until = clock() + min(patience_ms, LAST_TIMEOUT_MS) / 1000
        try:
            addresses = set(await self._registrar.siblings(LAST_TIMEOUT_MS))
        except SaturnError as error:
            log.warning("brokers of the group unknown error=%s", error)
            addresses = set()
        if self._leader:
            addresses.add(self._leader)
        missing = {
            asyncio.ensure_future(self.copy(address, LAST_TIMEOUT_MS, last=True)) for address in sorted(addresses)
        }
        try:
            while missing and (clock() < patient_until or len(missing) > unresponsive()):
                done, missing = await asyncio.wait(missing, timeout=LAST_POLL_SECONDS)
                for copy in done:
                    copy.result()
            if missing:
                log.info("final copy ended without unresponsive members missing=%s", len(missing))
        finally:
            for copy in missing:
                copy.cancel()
            await asyncio.gather(*missing, return_exceptions=True)

    # ---- one copy

    async def copy(self, address: str, timeout_ms: int, *, last: bool = False) -> bool:
        """Take over the tables of one member, with `last` only what is newer; returns False and logs if it did not answer."""
        if address == self._identity.address:
            return False
        known = list(self.missing_topics)
        try:
            topics, groups, offsets, delays = await asyncio.gather(
                self._ask(address, RequestCode.GET_ALL_TOPIC_CONFIG, timeout_ms),
                self._ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, timeout_ms),
                self._ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET, timeout_ms),
                self._ask(address, RequestCode.GET_ALL_DELAY_OFFSET, timeout_ms),
            )
            sure = not last or address == self._leader
            self._take_topics(TopicConfigTable.decode(topics.body), known, last=last, sure=sure)
            self._take_groups(SubscriptionGroupTable.decode(groups.body), last=last, sure=sure)
            self._offsets.take(ConsumerOffsetTable.decode(offsets.body).offset_table, forward=last)
            await self._take_progress(delays, last=last)
        except (SaturnError, OSError, ValueError, KeyError, TypeError) as error:
            if str(error) != self._last_error:
                log.warning("copy from leader failed address=%s error=%s", address, error)
            self._last_error = str(error)
            return False
        if last:
            return True
        if self._leader != address:
            log.info("copying from leader address=%s", address)
        self._leader, self._last_error = address, ""
        self.count += 1
        self.copied.emit(address)
        return True

    async def _ask(self, address: str, code: RequestCode, timeout_ms: int) -> Command:
        answer = await self._client.invoke(address, Command(code), timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            raise response_error(answer.code, answer.remark, broker=address)
        return answer

    def _take_topics(self, found: TopicConfigTable, known: list[str], *, last: bool, sure: bool) -> None:
        """Take over the leader's topic table; from a member that may not have led (sure=False), only missing topics."""
        topics = self._topics
        if sure and _is_other(found.data_version, topics.version, last=last):
            topics.take(found)
        missing = {name: c for name, c in found.topic_config_table.items() if name not in topics.table} if last else {}
        if missing:
            topics.take(TopicConfigTable(topics.table | missing, topics.version.next(self._clock_ms())))
        for name in known if not last else ():  # decided by the leader's table: present in it, or deleted
            self.missing_topics.pop(name, None)

    def _take_groups(self, found: SubscriptionGroupTable, *, last: bool, sure: bool) -> None:
        groups = self._groups
        if sure and _is_other(found.data_version, groups.version, last=last):
            groups.take(found)
        table = found.subscription_group_table
        missing = {name: config for name, config in table.items() if name not in groups.table} if last else {}
        if missing:
            groups.take(SubscriptionGroupTable(groups.table | missing, groups.version.next(self._clock_ms())))

    async def _take_progress(self, answer: Command, *, last: bool) -> None:
        """Write delay and timer progress to the files that the services load when this member leads."""
        async with self._writing:
            await self._write_progress(answer, last=last)

    async def _write_progress(self, answer: Command, *, last: bool) -> None:
        loop = asyncio.get_running_loop()
        delays = DelayOffsetTable.decode(answer.body).offset_table
        if last:
            own = self._delay_file.read(DelayOffsetTable.decode) or DelayOffsetTable()
            delays = {level: max(own.offset_table.get(level, -1), offset) for level, offset in delays.items()}
        await loop.run_in_executor(None, _write_changed, self._delay_file, DelayOffsetTable(delays).encode())
        timer = answer.ext.get(TIMER_FIELD)
        if timer and (not last or json.loads(timer)["doneMs"] > (self._timer_file.read(_done_ms) or 0)):
            json.loads(timer)
            await loop.run_in_executor(None, _write_changed, self._timer_file, timer.encode())

    # ---- topics that only the log has

    def replicated(self, topic: str, queue_id: int) -> None:
        """Called for each replicated message: remember a topic or queue that is missing from the table."""
        config = self._topics.table.get(topic)
        if config is None or queue_id >= config.write_queue_nums:
            self.missing_topics[topic] = max(self.missing_topics.get(topic, 0), queue_id + 1)

    def recreate_topics(self) -> None:
        """Before this member leads: recreate topics that were created after the last copy and appear only in the log.

        Without them their messages could not be consumed.
        """
        missing_topics, self.missing_topics = self.missing_topics, {}
        for topic, queues in missing_topics.items():
            if self._topics.get(topic) is None:
                if topic not in self._topics.system:
                    queues = max(queues, QUEUES_MIN)
                log.warning(
                    "topic found in the log but not in topics.json, recreated topic=%s queues=%s", topic, queues
                )
                try:
                    self._topics.ensure(topic, queues)
                except SaturnError as error:
                    log.error("topic not recreated topic=%r error=%s", topic, error)


def _done_ms(data: bytes) -> int:
    return int(json.loads(data)["doneMs"])


def _is_other(found: DataVersion, own: DataVersion, *, last: bool) -> bool:
    return (found.timestamp, found.counter) > (own.timestamp, own.counter) if last else found != own


def _write_changed(file: StateFile, data: bytes) -> None:
    if file.candidates()[:1] != [data]:
        file.write(data)
