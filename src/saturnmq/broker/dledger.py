"""Switches a broker's services with its role in a DLedger group, and answers requests that the role does not allow.

Role changes arrive from the raft driver as (role, term) events and are handled one at a time by one task. A leader serves only
after its whole log is committed and dispatched and the state outside the log was copied from the other members: until then it
answers no read either, because its queues may end before what an earlier leader has shown.

While the leadership is transferred, what only a leader may do waits as if no leader were known (forwarding.py): this member serves
it if the transfer fails, else the next leader.

Requirements: DL-C01..DL-C10, DL-L02, DL-X08, DL-X18, DL-X19, DL-X22, DL-X23.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from saturnmq.broker.dledger_sync import LeaderCopy
from saturnmq.broker.forwarding import Forwarding
from saturnmq.broker.requests.context import RuntimeContext
from saturnmq.broker.requests.pull_answer import fields
from saturnmq.broker.requests.runtime import runtime_info
from saturnmq.broker.requests.table import FORWARDED, LEADER_ONLY, READER_ONLY, SHOW_ENDS
from saturnmq.broker.services.delay import DelayService
from saturnmq.broker.services.long_polling import LongPolling
from saturnmq.broker.services.registrar import Registrar
from saturnmq.broker.settings import BrokerSettings
from saturnmq.net import Connection, Later, NetSettings, Reply, TlsSettings
from saturnmq.protocol.addresses import host_of
from saturnmq.protocol.bodies import DelayOffsetTable, KVTable
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers.numbers import int64_or
from saturnmq.raft.core.actions import Role
from saturnmq.raft.core.messages import Code
from saturnmq.raft.settings import RaftSettings, broker_id
from saturnmq.replication.dledger.member import GroupMember
from saturnmq.store import StoreSettings
from saturnmq.tasks import cancel, supervised

log = logging.getLogger(__name__)

MASTER_ID: Final = 0
NO_ROLE: Final = -1
POLL_SECONDS: Final = 0.02
RETRY_SECONDS: Final = (
    1.0  # pause before a failed role change, or a registration that no NameServer accepted, is retried
)
PULL_PAUSE_SECONDS: Final = 0.2  # delays the answer: the client pulls again immediately
TRANSFER_SECONDS: Final = 1.0
_READS: Final = READER_ONLY | SHOW_ENDS


def group_member(
    settings: BrokerSettings,
    store: StoreSettings,
    raft: RaftSettings,
    net: NetSettings,
    tls: TlsSettings | None,
    clock_ms: Callable[[], int],
) -> GroupMember:
    """The member of a group that a broker with these settings is."""
    return GroupMember(
        store,
        raft,
        net,
        tls=tls,
        admin_addresses=settings.admin_addresses,
        protected=settings.acl_enable,
        clock_ms=clock_ms,
    )


class LedgerDelay(DelayService):
    """Delay service whose reported and persisted progress covers only deliveries that the group has committed.

    Each snapshot of the progress is held back until the log end at the time of the snapshot is committed.
    """

    def load(self) -> None:
        super().load()
        self._published = super().encode()
        self._next: tuple[int, bytes] | None = None

    def encode(self) -> bytes:
        # Committed meanwhile: a later snapshot may be shown, and the next one taken.
        if self._next is not None and self._next[0] <= self._store.log.readable_end:
            self._published, self._next = self._next[1], None
        if self._next is None:
            self._next = self._store.log.end, DelayOffsetTable(self.offsets()).encode()
        return self._published


class LedgerRole:
    """Role of a group member, as its store sees it."""

    __slots__ = ("_group",)

    def __init__(self, group: GroupMember) -> None:
        self._group = group

    @property
    def slave(self) -> bool:
        return not self._group.leads


class DLedger:
    """Follows the role of this group member.

    serve: the broker's handlers, whatever the role. start_services and stop_services: for what only the leader runs.
    """

    def __init__(
        self,
        group: GroupMember,
        runtime: RuntimeContext,
        long_polling: LongPolling,
        registrar: Registrar,
        copy: LeaderCopy,
        forwarding: Forwarding,
        *,
        serve: Callable[[Connection, Command], Reply],
        start_services: Callable[[], None],
        stop_services: Callable[[], Awaitable[None]],
    ) -> None:
        self.group = group
        self._runtime = runtime
        self._long_polling = long_polling
        self._registrar = registrar
        self.copy = copy
        self.changes = copy.changes
        self.forwarding = forwarding
        self._serve = serve
        self._start_services = start_services
        self._stop_services = stop_services
        self._task: asyncio.Task[None] | None = None
        self._events: asyncio.Queue[tuple[Role, int]] = asyncio.Queue()
        self._register_soon: asyncio.Task[None] | None = None
        self._following = False  # copies in progress come from the leader that this member currently follows
        self._successor = ""  # the member that leadership is being transferred to
        self._successor_copied = (
            asyncio.Event()
        )  # it copied the state outside the log, after this broker stopped leading
        self._successor_serves = asyncio.Event()
        self.broker_id = NO_ROLE
        self._led_until: float | None = None  # event-loop time at which this member stopped leading, or began to
        group.on_role = self._role_changed
        group.dispatch.on_foreign = copy.replicated
        group.has_queue = copy.has_queue
        copy.copied.subscribe(self._copied)
        copy.served.subscribe(self._copied_by)

    # ---- lifecycle

    async def start(self) -> None:
        """Join the group; services and registration start with the first role (DL-B14, DL-X19). Raises StartError."""
        self.changes.start()
        self._set_outdated(True)
        assert self.group.member is not None, "the store is open"
        # From the start, before this member has a role: others may ask it first.
        self.group.member.peers.serve_state = self.copy.report
        self.forwarding.start()
        self._task = supervised(self._run(), "role changes")
        await self.group.take_part()

    async def stop(self) -> None:
        """Transfer leadership if a follower can take it, forward for a while, then stop following role changes."""
        await self._transfer_leadership()
        await self._forward_a_while()
        await cancel(self._task, self._register_soon)
        self._task = self._register_soon = None
        self.group.on_role = None
        await self.forwarding.close()
        await self.copy.close()
        await self.changes.stop()

    async def _transfer_leadership(self) -> None:
        """Transfer leadership on an orderly stop, so that a follower leads at once and not after its election timeout.

        Followers are tried by watermark, highest first. A follower refuses if it has not yet copied the state outside the log
        (DL-X18); then the next is tried. After a success, waits until that member has copied the state outside the log from here,
        and serves: what clients have sent meanwhile is passed on to it.
        """
        member = self.group.member
        if member is None or self._task is None or not member.leads:
            return
        status = member.status()
        watermarks = {name: mark for name, mark in status.watermarks.items() if name != status.self_id}
        try:
            # For all attempts together: a stop must end.
            async with asyncio.timeout(2 * TRANSFER_SECONDS):
                for best in sorted(watermarks, key=lambda name: watermarks[name], reverse=True):
                    # Set before the transfer: the copy may be read before its answer comes.
                    self._successor = best
                    self._successor_copied.clear()
                    self._successor_serves.clear()
                    answer = await member.transfer(best)
                    log.info("leadership transferred to=%s code=%s", best, answer.code)
                    if answer.code == Code.SUCCESS:
                        async with asyncio.timeout(TRANSFER_SECONDS):
                            await self._successor_copied.wait()
                            log.info("state copied by the new leader member=%s", best)
                            await self._successor_serves.wait()
                        return
        except TimeoutError:
            log.info("leadership transfer timed out")

    async def _forward_a_while(self) -> None:
        """A stopping member that led goes on as a follower until clients have the new route, if forwardDrainMs says so."""
        drain_seconds = self._runtime.settings.forward_drain_ms / 1000
        if drain_seconds <= 0 or self._led_until is None or self._task is None or not self.forwarding.possible:
            return
        clock = asyncio.get_running_loop().time
        if self.broker_id == MASTER_ID:
            self._led_until = clock()
        left_seconds = max(self._led_until + drain_seconds - clock(), 0)
        log.info("forwarding before the stop left_s=%.1f", left_seconds)
        await asyncio.sleep(left_seconds)
        # Its clients would otherwise wait for an election.
        await self._transfer_leadership()  # if it was elected again meanwhile

    # ---- roles

    def _role_changed(self) -> None:
        # First undo what this member recorded as the leader and the group has not decided.
        self.changes.undo()
        member = self.group.member
        if member is not None:
            status = member.status()
            self._following = False
            self._set_outdated(status.role is not Role.LEADER)
            # With its term: the task may be an election behind.
            self._events.put_nowait((status.role, status.term))
            self.forwarding.changed()

    def _set_outdated(self, outdated: bool) -> None:
        """Set whether the copied state may be outdated; the core then refuses a transfer by preference (DL-X18)."""
        if self.group.member is not None and self.group.member.node is not None:
            self.group.member.node.set_outdated(outdated)

    def _copied(self, _address: str) -> None:
        # A copy of an earlier leader's state does not count.
        if self._following:
            self._set_outdated(False)
            self._successor_serves.set()

    def _copied_by(self, member: str) -> None:
        # Only the member that is to lead next: others copy all the time.
        if member and member == self._successor:
            self._successor_copied.set()

    def _copied_by_java(self, address: str) -> None:
        """Consumer offsets were read from this address, as a Java member does before it leads."""
        member, host = self.group.member, self.group.host(self._successor)
        if member is not None and host and member.peers.access.is_host(host_of(address), host):
            self._successor_copied.set()
            self._successor_serves.set()

    async def _run(self) -> None:
        """Handle role changes one at a time and in their order; a failed one is retried before the next (DL-C01)."""
        while True:
            role, term = await self._events.get()
            await self._apply(role, term)

    async def _apply(self, role: Role, term: int) -> None:
        while True:
            try:
                if role is Role.LEADER:
                    await self._lead(term)
                # A candidate goes on as a slave; only a member that led, or has no role yet, changes.
                elif role is Role.FOLLOWER or self.broker_id in (MASTER_ID, NO_ROLE):  # DL-C02
                    await self._follow()
                return
            except Exception:
                log.exception("role change failed role=%s term=%s retry_s=%s", role.value, term, RETRY_SECONDS)
                # Half a role change must not serve.
                self.group.stop_serving()
            await asyncio.sleep(RETRY_SECONDS)

    def _is_leader(self, term: int) -> bool:
        member = self.group.member
        if member is None:
            return False
        status = member.status()
        return status.role is Role.LEADER and status.term == term

    async def _lead(self, term: int) -> None:
        """Start serving once the whole log is committed and dispatched (DL-C03, DL-C05)."""
        if self.group.serving:
            return
        while not self.group.caught_up:
            if not self._is_leader(term):
                return
            await asyncio.sleep(POLL_SECONDS)
        await self.copy.stop()
        await self.copy.copy_last(self._unresponsive, self._patience_ms, lambda: self._is_leader(term))
        # Checked after each wait.
        if not self._events.empty():
            return  # a later role change decides; a leader may have stepped down and been elected again in this term
        if not self._is_leader(term) or not self.group.caught_up:
            if self._is_leader(term):
                # It still leads, but entries have come meanwhile: the same change again.
                self._events.put_nowait((Role.LEADER, term))
            return
        # No wait from the checks above to here.
        self.group.begin_serving()
        self.copy.recreate_topics()
        self._start_services()
        self.forwarding.changed()
        self.broker_id = MASTER_ID
        self._led_until = asyncio.get_running_loop().time()
        log.info("became master term=%s", term)
        self._register()

    def _unresponsive(self) -> int:
        """Members that did not answer the last heartbeat of this leader, or were not sent one yet."""
        node = self.group.member.node if self.group.member is not None else None
        return 0 if node is None else len(node.unanswered_peers())

    @property
    def _patience_ms(self) -> int:
        """Time that a new leader waits to copy from members that have not answered yet, ms: half a heartbeat interval."""
        node = self.group.member.node if self.group.member is not None else None
        return 0 if node is None else node.settings.heartbeat_interval_ms // 2

    async def _follow(self) -> None:
        """Become a slave: stop master-only services, answer parked pulls, copy from the new leader (DL-C04)."""
        before = self.broker_id
        # Before the services stop, which takes time.
        if before == MASTER_ID:
            self._led_until = asyncio.get_running_loop().time()
        self.broker_id = broker_id(self.group.raft.self_id)
        await self._stop_services()
        # Parked pulls are answered by the new role: the client asks the master.
        self._long_polling.wake_all()
        if before != self.broker_id:
            log.info("became slave id=%s", self.broker_id)
        await self.copy.restart()
        # Not if a further change waits: this leader may be one of the past.
        self._following = self._events.empty()
        self._register()

    def _register(self) -> None:
        """Register with the NameServers, and retry until one has accepted (DL-C06, DL-X19)."""
        # One at a time: the newest role is registered.
        if self._register_soon is not None:
            self._register_soon.cancel()
        self._register_soon = supervised(self._register_until_accepted(), "registration after a role change")

    async def _register_until_accepted(self) -> None:
        if not self._registrar.name_servers:
            return
        while True:
            try:
                if await self._registrar.register(force=True):
                    return
            except Exception:
                log.exception("registration failed retry_s=%s", RETRY_SECONDS)
            await asyncio.sleep(RETRY_SECONDS)

    # ---- requests

    def instead(self, connection: Connection, request: Command) -> Reply | None:
        """Answer in place of the ordinary handler; None if the request is to be served as on any broker.

        A member that does not lead, or has no quorum, rejects what only a leader may do (DL-X08), and queries that would show
        the ends of its own queues.
        """
        code = request.code
        # Any member shows its own state.
        if code == RequestCode.GET_BROKER_RUNTIME_INFO:
            return self._runtime_info(connection, request)
        if self.takes_all:
            return None
        possible = code in FORWARDED and self.forwarding.possible
        # A leader that transfers lets changes wait; reads it serves itself.
        if self._leads and not (possible and code in LEADER_ONLY):
            return None
        if not possible or (code in _READS and self._reads_here):
            return self._follower_answer(connection, request)
        if code == RequestCode.UNLOCK_BATCH_MQ:
            self._serve(connection, request)  # releases what this member granted as a leader
        return self.forwarding.instead(connection, request, self._unled)

    @property
    def _leads(self) -> bool:
        return self.group.serving and self.group.leads

    @property
    def takes_all(self) -> bool:
        """Whether this member serves every request, as the leader of its group."""
        return self._leads and not self.group.transferring

    @property
    def serves_pulls(self) -> bool:
        """Whether this member serves pulls as any broker does: as the leader, or a follower that serves reads."""
        return self._leads or self._reads_here

    @property
    def _reads_here(self) -> bool:
        """Whether this member serves reads without leading; not between its election and `_lead`, when it would answer 21."""
        will_serve = self.group.elected and not self.group.serving
        return self._runtime.settings.slave_read_enable and not will_serve

    def _follower_answer(self, connection: Connection, request: Command) -> Command | Later | None:
        """The refusal of what only a leader may do; None if a follower serves it too."""
        code = request.code
        if code in LEADER_ONLY:
            return self._refusal(request)
        if code in _READS and not self._reads_here:
            return Later(self._pull_later(request)) if code in READER_ONLY else self._refusal(request)
        if code == RequestCode.GET_ALL_CONSUMER_OFFSET:
            self._copied_by_java(connection.remote_address)
        return None

    def _unled(self, connection: Connection, request: Command) -> Reply:
        """The answer to a request that could not be forwarded, since no leader is known or serves."""
        serves_clients = self._reads_here or not self.forwarding.possible
        if request.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP and not serves_clients:
            # Members may know only a part of a group that restarted; consumers keep their queues upon an error.
            text = f"no leader of the group {self.group.raft.group} is known, keep the present assignment"
            return request.reply(ResponseCode.SYSTEM_ERROR, text)
        refused = self._follower_answer(connection, request)
        if refused is not None:
            return refused
        answer = self._serve(connection, request)
        if request.code == RequestCode.QUERY_CONSUMER_OFFSET and _is_not_found(answer) and not serves_clients:
            # The copy may not have the offset yet: a consumer would take the group for a new one, and skip messages.
            text = f"no leader of the group {self.group.raft.group} is known, and no offset here: ask again"
            return request.reply(ResponseCode.SYSTEM_ERROR, text)
        return answer

    def _refusal(self, request: Command) -> Command:
        """Reject with a code that makes clients look for another broker (DL-B06)."""
        member = self.group.member
        leader = member.status().leader_id if member is not None else None
        text = f"this broker does not lead its group {self.group.raft.group}, the leader is {leader or 'not known'}"
        if request.code == RequestCode.END_TRANSACTION:
            return request.reply(ResponseCode.SLAVE_NOT_AVAILABLE, text)
        return request.reply(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            "service not available now. It may be caused by one of the following reasons: the broker's disk is full, "
            f"messages are put to the slave, the broker is shutting down. ({text})",
        )

    async def _pull_later(self, request: Command) -> Command:
        """Direct the client to the master, after a pause (DL-C09, BP-06)."""
        offset = int64_or(request.ext, "queueOffset", 0)
        if not self.forwarding.closed:  # a stop does not wait, and closes the connection
            await asyncio.sleep(PULL_PAUSE_SECONDS)
        return request.reply(ResponseCode.PULL_RETRY_IMMEDIATELY, "ask the master", ext=fields(MASTER_ID, offset, 0, 0))

    def _runtime_info(self, connection: Connection, request: Command) -> Command:
        """GET_BROKER_RUNTIME_INFO (28), extended by the state of the group (DL-Q06)."""
        reply = runtime_info(self._runtime, connection, request, None)
        return request.reply(body=KVTable(KVTable.decode(reply.body).table | self.figures()).encode())

    def figures(self) -> dict[str, str]:
        """Group state as rows of the runtime information: role, term, leader, log indexes, watermark of each member."""
        if self.group.member is None:
            return {}
        status = self.group.member.status()
        rows = {
            "dledgerRole": status.role.value,
            "dledgerServing": str(self.group.serving).lower(),
            "dledgerTerm": str(status.term),
            "dledgerLeaderId": status.leader_id or "",
            "dledgerBeginIndex": str(status.begin_index),
            "dledgerEndIndex": str(status.end_index),
            "dledgerCommittedIndex": str(status.committed_index),
            "dledgerFailed": status.failed or "",
            "dledgerHeartBeatMs": str(status.heartbeat_interval_ms),
            "dledgerPeers": status.configuration.peers_text,
            "dledgerLearners": ",".join(sorted(status.configuration.learners)),
            "dledgerVotes": str(status.votes).lower(),
            "dledgerRecovering": str(status.recovering).lower(),
            "dledgerCopies": str(self.copy.count),
            "dledgerForwarded": str(self.forwarding.forwarded),
            "dledgerServedForwarded": str(self.forwarding.served),
            "dledgerQuarantined": str(self.group.dispatch.quarantine.count),
            "dledgerLastQuarantinedOffset": str(self.group.dispatch.quarantine.last),
        }
        return rows | {f"dledgerWatermark_{name}": str(mark) for name, mark in sorted(status.watermarks.items())}


def _is_not_found(answer: Reply) -> bool:
    return isinstance(answer, Command) and answer.code == ResponseCode.QUERY_NOT_FOUND
