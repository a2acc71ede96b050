"""Copies to a follower the leader's state that is not in the log: topics, groups, consumer offsets, delay progress.

The state comes from the member that this one follows, over its DLedger port, with that port's checks of address and signature. What
NameServers report is not used, since any process may register with them. Only a leader that does not know the exchange, a Java
broker, is asked with the request codes of an Apache RocketMQ slave (21, 201, 43, 45), at the address that NameServers report,
provided that it has the leader's host in dLegerPeers.

Tables of another group, empty ones, and such from a member that does not lead are refused. Before this member leads, offsets and
progress are limited to what its own queues hold.

Changes of topics and groups are in the log (table_changes.py). Whole tables are still copied: from leaders that do not write them
there, and for members that are not complete. A new leader that is complete takes no topics and groups of other members that
write changes to the log: its log has all that were acknowledged, and a stale table would bring back what was deleted.

Requirements: DL-C07, DL-X18, SEC-18.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from saturnmq.broker.dledger_state import MemberState
from saturnmq.broker.events import EventEmitter
from saturnmq.broker.services.master_services import MasterServices
from saturnmq.broker.services.registrar import Registrar
from saturnmq.broker.services.timer import PROGRESS_FIELD, encode_progress, parse_progress
from saturnmq.broker.state.groups import Groups
from saturnmq.broker.state.offsets import Offsets
from saturnmq.broker.state.topics import Topics
from saturnmq.broker.table_changes import TableChanges
from saturnmq.net import NetSettings, RemotingClient, TlsSettings
from saturnmq.protocol.addresses import host_of
from saturnmq.protocol.bodies import (
    ConsumerOffsetTable,
    DataVersion,
    DelayOffsetTable,
    SubscriptionGroupTable,
    TopicConfigTable,
)
from saturnmq.protocol.codes import SCHEDULE_TOPIC, RequestCode, ResponseCode
from saturnmq.protocol.errors import RemoteProtocolError, SaturnError, response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.offsets import NO_QUEUE_OFFSET, QueueOffset
from saturnmq.raft.core.voting import quorum
from saturnmq.replication.dledger.member import GroupMember
from saturnmq.slices import Slices, joined
from saturnmq.store import StateFile
from saturnmq.tasks import cancel, supervised

log = logging.getLogger(__name__)

SYNC_SECONDS: Final = 1.0
START_SECONDS: Final = 0.05  # while the leader does not serve yet
SYNC_SECONDS_MAX: Final = 10.0  # the period of Apache RocketMQ
PAUSE_FACTOR: Final = 10  # pause after a copy, as a multiple of its duration: large tables are copied less often
TIMEOUT_MS: Final = 3000
LAST_TIMEOUT_MS: Final = 1000  # of the final copy before this member leads; the previous leader may be down
LAST_POLL_SECONDS: Final = 0.01
INCOMPLETE_SECONDS: Final = 0.1  # pause before a leader without a whole table asks the others again


class _NotServing(SaturnError):
    """The member does not lead, or does not serve yet; this is normal for a short time after an election."""


class LeaderCopy:
    """Copies periodically (SYNC_SECONDS to SYNC_SECONDS_MAX) from the leader, while it runs; reports the own state to others."""

    def __init__(
        self,
        group: GroupMember,
        registrar: Registrar,
        topics: Topics,
        groups: Groups,
        offsets: Offsets,
        master: MasterServices,
        broker_name: str,
        clock_ms: Callable[[], int],
        net: NetSettings,
        state_file: Callable[[str], StateFile],
        tls: TlsSettings | None,
    ) -> None:
        self._group = group
        self._topics, self._groups, self._offsets = topics, groups, offsets
        self.changes = TableChanges(group, topics, groups, offsets, state_file("groupTables.json"), clock_ms)
        self.changes.deleted = self._topic_deleted
        self._unlogged = False  # the last leader that was copied from does not write changes to the log
        self._answered: set[str] = set()  # members that have answered since this one was elected
        self._broker_name = broker_name
        self._clock_ms = clock_ms
        self._registrar = registrar
        self._client = RemotingClient(settings=net, tls=tls)
        self._delay_file = state_file("delayOffset.json")
        self._timer_file = state_file("timer.json")
        self._master = master
        self._slices = Slices()
        self._task: asyncio.Task[None] | None = None
        self._leader = ""  # the last leader that answered: its member id, or the address of a Java one
        self._last_error = ""
        self._leader_starts = False  # the leader that was asked last does not serve yet
        self._writing = asyncio.Lock()
        self.missing_topics: dict[str, int] = {}  # topics found in replicated messages only, and the queues they need
        self.count = 0  # successful copies
        self.copied: EventEmitter[str] = EventEmitter()  # after each of them: the member copied from
        self.served: EventEmitter[str] = (
            EventEmitter()
        )  # after a report of this member's state while it does not lead: for which member

    # ---- lifecycle

    async def restart(self) -> None:
        """Copy from the leader that this member follows from now on (DL-C04)."""
        await self.stop()
        self._registrar.master_address = ""
        self._task = supervised(self._run(), "copies from the leader")

    async def stop(self) -> None:
        task, self._task = self._task, None
        await cancel(task)

    async def close(self) -> None:
        await self.stop()
        await self._client.close()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                leader = self._followed()
                if leader is not None:
                    await self.copy(leader, TIMEOUT_MS)
            except Exception:
                log.exception("copy from leader failed retry_s=%s", SYNC_SECONDS)
            pause = START_SECONDS if self._leader_starts else SYNC_SECONDS
            await asyncio.sleep(min(max(pause, PAUSE_FACTOR * (loop.time() - began)), SYNC_SECONDS_MAX))

    def _followed(self) -> str | None:
        """The member that this one follows."""
        member = self._group.member
        leader = member.status().leader_id if member is not None else None
        return leader if leader != self._group.raft.self_id else None

    async def copy_last(self, unresponsive: Callable[[], int], patience_ms: int, leads: Callable[[], bool]) -> None:
        """Before this member leads: take over newer state from all other reachable members, limited to the own queues.

        The previous leader is among them unless it died; in that case another member may have copied from it later than this one.
        Frozen or partitioned members are not waited for: after patience_ms, waiting ends once at most unresponsive() copies are
        outstanding. unresponsive() counts the members that did not answer the last heartbeat.

        A member that is not complete asks until another one that is has answered, or a majority of the voters has that is not
        either, or leads() is false: a group with a live majority never waits for a member that is down.
        """
        self._answered = {self._group.raft.self_id}
        await self._copy_others(unresponsive, patience_ms)
        while not self.changes.complete and leads() and not self._majority_answered:
            await asyncio.sleep(INCOMPLETE_SECONDS)
            await self._copy_others(unresponsive, patience_ms)
        await self._limit()

    @property
    def _majority_answered(self) -> bool:
        """Learners do not count: all that is committed is on a majority of the voters."""
        voters = self._group.voters
        return len(self._answered.intersection(voters)) >= quorum(len(voters))

    async def _copy_others(self, unresponsive: Callable[[], int], patience_ms: int) -> None:
        clock = asyncio.get_running_loop().time
        patient_until = clock() + min(patience_ms, LAST_TIMEOUT_MS) / 1000
        raft = self._group.raft
        missing = {
            asyncio.ensure_future(self.copy(name, LAST_TIMEOUT_MS, last=True))
            for name in sorted(self._group.peers)
            if name != raft.self_id
        }
        try:
            while missing and (clock() < patient_until or len(missing) > unresponsive()):
                completed, missing = await asyncio.wait(missing, timeout=LAST_POLL_SECONDS)
                for copy in completed:
                    copy.result()
            if missing:
                log.info("final copy ended without unresponsive members missing=%s", len(missing))
        finally:
            await cancel(*missing)

    # ---- one copy

    async def report(self, to: str) -> bytes:
        """The state of this member, for the given one."""
        member = self._group.member
        assert member is not None, "the port is open"
        leads, term = self._group.serving and self._group.leads, member.status().term
        changes, covered = self.changes, int(self._group.store.dispatched)
        complete, undecided = changes.complete, changes.any_undecided
        pieces = self._topics.pieces(), self._groups.pieces(), self._offsets.pieces()  # of one moment
        tables = [await self._slices.result(joined(table_pieces)) for table_pieces in pieces]
        raft, delays = self._group.raft, self._master.delay.encode()
        timer = self._master.timer.published_progress() or ""
        state = MemberState(
            raft.group, raft.self_id, leads, term, timer, tables[0], tables[1], tables[2], delays, covered, complete, undecided
        )  # fmt: skip
        if not self._group.serving:
            self.served.emit(to)
        return state.encode()

    async def copy(self, name: str, timeout_ms: int, *, last: bool = False) -> bool:
        """Take over the tables of a member, with `last` only what is newer; returns False and logs if it did not answer."""
        missing_before = list(self.missing_topics)
        self._leader_starts = False
        try:
            source, state = await self._state_of(name, timeout_ms, last=last)
            await self._take(state, missing_before, last=last, sure=not last or source == self._leader)
        except (SaturnError, OSError, ValueError, KeyError, TypeError) as error:
            if str(error) != self._last_error:
                level = logging.INFO if isinstance(error, _NotServing) else logging.WARNING
                log.log(level, "copy from leader failed member=%s error=%s", name, error)
            self._last_error = str(error)
            self._leader_starts = isinstance(error, _NotServing)
            return False
        if last:
            return True
        self._unlogged = state.covered < 0
        if self._leader != source:
            log.info("copying from leader member=%s source=%s", name, source)
        self._leader, self._last_error = source, ""
        self.count += 1
        self.copied.emit(source)
        return True

    async def _state_of(self, name: str, timeout_ms: int, *, last: bool) -> tuple[str, MemberState]:
        """A member's state and its source. Raises SaturnError for one that must not be taken over."""
        member, raft = self._group.member, self._group.raft
        assert member is not None, "open() comes first"
        body = await member.peers.ask_state(name, timeout_ms, raft.self_id)
        if body is None:
            self._answered.add(name)
            address = await self._java_address(name, timeout_ms)
            return address, await self._state_of_java(name, address, timeout_ms)
        state = MemberState.decode(body)
        if (state.group, state.member) != (raft.group, name):
            raise RemoteProtocolError(f"state of {state.group}/{state.member} where {raft.group}/{name} is expected")
        self._answered.add(name)
        now = member.status()
        if not last and not (state.leads and state.term == now.term and now.leader_id == name):
            raise _NotServing(f"member {name} does not serve as leader of term {now.term}")
        return name, state

    async def _java_address(self, name: str, timeout_ms: int) -> str:
        """The broker address of a Java member: one that NameServers report for this group, with the member's host."""
        member = self._group.member
        assert member is not None, "open() comes first"
        if not self._registrar.master_address:
            await self._registrar.register()  # the response names the leader
        addresses = {self._registrar.master_address, *await self._registrar.siblings(timeout_ms)} - {""}
        host = self._group.host(name)
        host_addresses = sorted(address for address in addresses if member.peers.access.is_host(host_of(address), host))
        if not host_addresses:
            raise RemoteProtocolError(f"no broker on the host {host} of member {name} among {sorted(addresses)}")
        master = self._registrar.master_address
        if master not in host_addresses:
            self._registrar.master_address = ""  # asked again with the next copy
        return master if master in host_addresses else host_addresses[0]

    async def _state_of_java(self, name: str, address: str, timeout_ms: int) -> MemberState:
        topics, groups, offsets, delays = await asyncio.gather(
            self._ask(address, RequestCode.GET_ALL_TOPIC_CONFIG, timeout_ms),
            self._ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, timeout_ms),
            self._ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET, timeout_ms),
            self._ask(address, RequestCode.GET_ALL_DELAY_OFFSET, timeout_ms),
        )
        bodies = [answer.body or b"" for answer in (topics, groups, offsets, delays)]
        timer = delays.ext.get(PROGRESS_FIELD, "")
        return MemberState(self._group.raft.group, name, True, -1, timer, bodies[0], bodies[1], bodies[2], bodies[3])

    async def _take(self, state: MemberState, missing_before: list[str], *, last: bool, sure: bool) -> None:
        """Take over the tables. Raises SaturnError for tables of another broker, and what cannot be parsed."""
        topics = TopicConfigTable.decode(state.topics)
        groups = SubscriptionGroupTable.decode(state.groups)
        offsets = ConsumerOffsetTable.decode(state.offsets)
        if self._broker_name not in topics.topic_config_table:  # every broker has a topic of its name
            raise RemoteProtocolError(f"the topics of member {state.member} are not of broker {self._broker_name}")
        if self._takes_tables(state, topics, groups, last=last):
            self._take_topics(topics, missing_before, last=last, sure=sure)
            if groups.subscription_group_table:
                self._take_groups(groups, last=last, sure=sure)
            if not last:
                self.changes.took(max(state.covered, 0))
        self._offsets.take(offsets.offset_table, forward=last)
        await self._take_progress(state, last=last)

    def _takes_tables(
        self, state: MemberState, topics: TopicConfigTable, groups: SubscriptionGroupTable, *, last: bool
    ) -> bool:
        """Whether to compare topics and groups with this member's; adopts the tables that an incomplete new leader needs."""
        changes = self.changes
        if state.covered < 0:
            return True
        if not last:
            return not state.undecided and changes.takes(state.covered)
        if state.complete and not state.undecided and changes.adopts(state.covered):
            log.info("topics and groups taken over member=%s", state.member)
            changes.adopt(topics, groups, state.covered)
            return False
        return self._unlogged

    async def _limit(self) -> None:
        """Limit offsets and progress to the messages of this member's queues, and to its clock."""
        store = self._group.store
        lowered = await self._slices.result(self._offsets.limit(store.max_offset))
        if lowered:
            log.warning("consumer offsets above the end of their queues lowered count=%s", lowered)
        async with self._writing:
            delay_table = self._delay_file.read(DelayOffsetTable.decode) or DelayOffsetTable()
            limited = {
                level: QueueOffset(min(offset, store.max_offset(SCHEDULE_TOPIC, level - 1)))
                for level, offset in delay_table.offset_table.items()
            }
            if limited != delay_table.offset_table:
                log.warning(
                    "progress of delayed messages above the end of its queue lowered from=%s", delay_table.offset_table
                )
                await self._write(self._delay_file, DelayOffsetTable(limited).encode())
            timed = self._timer_file.read(parse_progress) or (0, 0)
            most = min(timed[0], self._clock_ms()), min(timed[1], store.log.end)
            if most != timed:
                log.warning("progress of timed messages above clock and log lowered from=%s to=%s", timed, most)
                await self._write(self._timer_file, encode_progress(*most).encode())

    async def _write(self, file: StateFile, data: bytes) -> None:
        await asyncio.get_running_loop().run_in_executor(None, _write_changed, file, data)

    async def _ask(self, address: str, code: RequestCode, timeout_ms: int) -> Command:
        answer = await self._client.invoke(address, Command(code), timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            raise response_error(answer.code, answer.remark, broker=address)
        return answer

    def _take_topics(
        self, member_table: TopicConfigTable, missing_before: list[str], *, last: bool, sure: bool
    ) -> None:
        """Take over the leader's topic table; from a member that may not have led (sure=False), only missing topics."""
        topics = self._topics
        whole = not last and not self.changes.complete
        if sure and (whole or _is_other(member_table.data_version, topics.version, last=last)):
            topics.take(member_table)
        missing = (
            {name: c for name, c in member_table.topic_config_table.items() if name not in topics.table} if last else {}
        )
        if missing:
            topics.take(TopicConfigTable(topics.table | missing, topics.version.next(self._clock_ms())))
        for name in missing_before if not last else ():  # decided by the leader's table: present in it, or deleted
            self.missing_topics.pop(name, None)

    def _take_groups(self, member_table: SubscriptionGroupTable, *, last: bool, sure: bool) -> None:
        groups = self._groups
        whole = not last and not self.changes.complete
        if sure and (whole or _is_other(member_table.data_version, groups.version, last=last)):
            groups.take(member_table)
        table = member_table.subscription_group_table
        missing = {name: config for name, config in table.items() if name not in groups.table} if last else {}
        if missing:
            groups.take(SubscriptionGroupTable(groups.table | missing, groups.version.next(self._clock_ms())))

    async def _take_progress(self, state: MemberState, *, last: bool) -> None:
        """Write delay and timer progress to the files that the services load when this member leads."""
        async with self._writing:
            delays = DelayOffsetTable.decode(state.delays).offset_table
            if last:
                delay_table = self._delay_file.read(DelayOffsetTable.decode) or DelayOffsetTable()
                before = delay_table.offset_table
                newer = {level: max(before.get(level, NO_QUEUE_OFFSET), offset) for level, offset in delays.items()}
                delays = before | newer
            await self._write(self._delay_file, DelayOffsetTable(delays).encode())
            timer = state.timer.encode()
            if timer and (parse_progress(timer) > (self._timer_file.read(parse_progress) or (0, 0)) or not last):
                await self._write(self._timer_file, timer)

    # ---- topics that only the log has

    def replicated(self, topic: str, queue_id: int) -> None:
        """Called for each replicated message: remember a topic or queue that is missing from the table."""
        config = self._topics.table.get(topic)
        if config is None or queue_id >= config.write_queue_nums:
            self.missing_topics[topic] = max(self.missing_topics.get(topic, 0), queue_id + 1)

    def _topic_deleted(self, topic: str) -> None:
        """A leader has deleted a topic: its messages so far do not bring it back."""
        self.missing_topics.pop(topic, None)

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """Whether clients of the DLedger port may append to this queue: the topic has it, and is not a system topic."""
        config = self._topics.table.get(topic)
        return config is not None and queue_id < config.write_queue_nums and topic not in self._topics.system

    def recreate_topics(self) -> None:
        """As this member begins to lead: recreate topics that appear only in the log, since a leader of another kind created them.

        Without them their messages could not be consumed.
        """
        self._unlogged = False
        self.changes.serving()
        missing_topics, self.missing_topics = self.missing_topics, {}
        self._topics.recreate(missing_topics)


def _is_other(member: DataVersion, local: DataVersion, *, last: bool) -> bool:
    return (member.timestamp, member.counter) > (local.timestamp, local.counter) if last else member != local


def _write_changed(file: StateFile, data: bytes) -> None:
    if file.candidates()[:1] != [data]:
        file.write(data)
