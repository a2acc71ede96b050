"""Runs one Raft member: timers, disk and network around the pure core.

Inputs are handled one at a time, on the event loop. An action that must wait for the disk (persisting term and vote, a truncation)
blocks the following actions and all inputs until it is done.

Threading: entries are written to the mapped files on the event loop and synced by a thread of their own, one sync for all entries
written meanwhile (group commit). Term, vote and checkpoint are written by a second thread, in order. While a sync is running, no
file may be closed: truncation waits for it and retention is deferred.

Requirements: DL-M01..DL-M10, DL-Q06, DL-Q07, DL-S04, DL-S09, DL-S10, DL-X15, DUR-11, DUR-12.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from saturnmq.net.settings import NetSettings
from saturnmq.net.tls import TlsSettings
from saturnmq.protocol.errors import CorruptRecord, InvariantBroken, ResourceExhausted, SaturnError
from saturnmq.raft.access import PeerAccess
from saturnmq.raft.cluster_secret import ClusterSecret
from saturnmq.raft.core.actions import (
    Action,
    AppendEntries,
    Commit,
    CutLog,
    MembersChanged,
    PersistMembers,
    PersistTerm,
    RaiseAlarm,
    Reply,
    RoleChanged,
    Send,
    SyncLog,
    TimersChanged,
)
from saturnmq.raft.core.configuration import ConfigurationCodec
from saturnmq.raft.core.ids import NO_INDEX, LedgerIndex
from saturnmq.raft.core.leader import Stamp
from saturnmq.raft.core.messages import (
    AppendRequest,
    AppendResponse,
    Code,
    Request,
    Response,
    TransferRequest,
    TransferResponse,
)
from saturnmq.raft.core.node import Node, keep_body
from saturnmq.raft.core.state import HardState
from saturnmq.raft.ledger.files import BodyCheck, LedgerFiles, any_body
from saturnmq.raft.ledger.layout import LedgerCheckpoint
from saturnmq.raft.ledger.member_entries import MembersFile
from saturnmq.raft.ledger.opened import CheckpointRounds, checkpoint_of, open_ledger
from saturnmq.raft.ledger.retention import HOUR_MS, DiskState, RetentionSettings, disk_state, files_to_delete
from saturnmq.raft.ledger.scrub import Scrub
from saturnmq.raft.ledger.space import member_ratio, takes_files
from saturnmq.raft.ledger.term_file import CheckpointFile, DamageMark, TermFile
from saturnmq.raft.listener import Listener
from saturnmq.raft.member_status import MemberStatus
from saturnmq.raft.peers import ADMIN_CODES, Peers
from saturnmq.raft.settings import RaftSettings
from saturnmq.raft.ticker import SyncPause, Ticker, wait_until
from saturnmq.raft.wire.codec import DLedgerCode
from saturnmq.server_admin import LOOPBACK
from saturnmq.store.files.disk import Disk
from saturnmq.store.maintenance.clock_watch import ClockWatch
from saturnmq.tasks import cancel, supervised

log = logging.getLogger(__name__)

CLEAN_INTERVAL_MS = 10_000
SLOW_SYNC_MS = 500  # a sync that takes longer is logged (DL-S04)

Input = Callable[[], list[Action]]


class RaftMember:
    """One member of a group.

    folder: the member's directory. file_bytes: size of a data file, equal on all members. sync_before_ack: an entry counts
    towards the quorum once it is on disk (SYNC_FLUSH). stamp, noop: see `raft.core.leader.Leader`. body_is_good: checks an entry's
    body on receipt, on every read and at recovery. start_pos: physical offset at which an empty ledger begins.
    codec: how changes of the members are written as entries; None: there are none. admin_addresses, admin_codes: see raft/access.py
    and raft/peers.py.
    """

    keep_from: Callable[[], int] | None = None  # files that end after this position are still needed
    # Appends what a client sends to the DLedger port, in place of this member; see `_receive`.
    append_for_client: Callable[[bytes, Callable[[Response], None]], None] | None = None

    def __init__(
        self,
        settings: RaftSettings,
        folder: Path,
        net: NetSettings,
        *,
        file_bytes: int,
        sync_before_ack: bool,
        stamp: Stamp = keep_body,
        noop: bytes | None = None,
        body_is_good: BodyCheck = any_body,
        codec: ConfigurationCodec | None = None,
        start_pos: int = 0,
        listener: Listener | None = None,
        disk: Disk | None = None,
        retention: RetentionSettings | None = None,
        tls: TlsSettings | None = None,
        admin_addresses: str = LOOPBACK,
        admin_codes: frozenset[DLedgerCode] = ADMIN_CODES,
        clock_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    ) -> None:
        self.settings = settings
        self.listener = listener or Listener()
        self.retention = retention or RetentionSettings()
        self.files = LedgerFiles(
            folder,
            file_bytes=file_bytes,
            index_file_units=settings.index_file_units,
            start_pos=start_pos,
            body_is_good=body_is_good,
            disk=disk,
            data_folders=settings.data_folders,
            may_grow=self._may_grow,
        )
        self._core = settings.core(file_bytes, sync_before_ack=sync_before_ack)
        self._stamp, self._noop, self._codec = stamp, noop, codec
        self._clock_ms = clock_ms
        self._term_file, self._checkpoint = TermFile(folder, disk), CheckpointFile(folder, disk)
        self._checkpoints = CheckpointRounds(self.files, self._checkpoint, settings.self_id)
        self._damage_mark, self._members_file = DamageMark(folder, disk), MembersFile(folder, disk)
        self.peers = Peers(
            settings.peers,
            net,
            self._receive,
            access=PeerAccess(settings.hosts.values(), allowed=settings.allowed_text, admins=admin_addresses),
            admin_codes=admin_codes,
            secret=ClusterSecret.of(settings.cluster_secret, required=settings.require_secret),
            body_is_good=lambda body: body_is_good(memoryview(body)),
            tls=tls,
        )
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"raft-{settings.self_id}")
        self._sync_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"raft-sync-{settings.self_id}")
        self._inputs: deque[Input] = deque()
        self._actions: deque[Action] = deque()
        self._blocked: asyncio.Task[None] | None = None
        self._sync: asyncio.Task[None] | None = None
        self._sync_wanted: SyncLog | None = None  # the newest request covers all before it
        self._background: asyncio.Task[None] | None = None
        self._scrub = Scrub(settings, self.files, self.peers.send, self._hand_over, clock_ms())
        self._ticker = Ticker(self._tick, self._due_in_ms)
        self._work = asyncio.Event()  # the log has changed: wakes housekeeping
        self._proposals: list[tuple[int, Sequence[bytes]]] = []
        self._push_soon = self._running = self._stopped = False
        self._answers: dict[int, Callable[[Response], None]] = {}
        self._token = 0
        self._next_clean_ms, self._too_full = 0, False
        self._clean_due: tuple[float, float, int] | None = None  # arguments of a `clean` deferred until files are free
        self._sync_pause = SyncPause()
        self.node: Node | None = None
        self.address = ("", 0)

    # start, stop

    def open(self) -> None:
        """Load and recover the ledger; no timer or socket is started. Raises CorruptRecord, ConfigError, StoreError."""
        self._clock_watch = ClockWatch(self.retention.reserved_hours * HOUR_MS)
        checkpoint = open_ledger(self.files, self._checkpoint)
        hard_state = self._term_file.read(
            ledger_is_empty=self.files.end_index < 0, force=self.settings.force_without_term
        )
        self._term_file.reserve()
        self.node = Node(
            group=self.settings.group,
            self_id=self.settings.self_id,
            peers=self.settings.peers,
            settings=self._core,
            reader=self.files,
            hard_state=hard_state,
            committed=checkpoint.committed_index,
            incomplete=checkpoint.incomplete and not self.settings.force_vote_damaged,  # an operator's override
            chance=random.SystemRandom().randrange,
            stamp=self._stamp,
            noop=self._noop,
            codec=self._codec,
            configurations=self._members_file.read(),
            learner=self.settings.learner,
        )
        self._scrub.repair_first(self._damage_mark.damaged(self.files), self.files.first_differing, self.files.damaged)
        log.info(
            "ledger opened member=%s begin=%s end=%s term=%s committed=%s stopped_by=%s",
            *(self.settings.self_id, self.files.begin_index, self.files.end_index, hard_state.term),
            *(self.node.committed, self.files.recovered.stopped_by or "end"),
        )

    async def start(self) -> None:
        """Listen and join the group, calling `open` first if needed (DL-M10). Raises StartError."""
        if self.node is None:
            self.open()
        self.address = await self.peers.start(*self.settings.listen_address)
        self._background = supervised(self._housekeeping(), "ledger housekeeping", self._housekeeping_failed)
        self._ticker.start()

    async def stop(self) -> None:
        """Stop, flush and write the checkpoint; pending requests fail with TERM_CHANGED. Raises StoreError, OSError."""
        if self._stopped:
            return
        self._stopped = True
        self._ticker.stop()  # in this order: no new inputs, then no requests of peers, then what is still being written
        await cancel(self._background)
        await self.peers.stop()
        for task in (self._blocked, self._sync):
            if task is not None:
                await asyncio.gather(task, return_exceptions=True)  # their failure was handled when it happened
        self._inputs.clear()  # from here on an input would change a log that is being closed
        for answer in list(self._answers.values()):
            answer(AppendResponse(code=Code.TERM_CHANGED))
        self._answers.clear()
        try:
            if self.node is not None and self.node.failed is None:
                end = self.node.end_index
                self.files.request_index_sync()  # so that the next start needs no scan to rebuild units
                await self._in_thread(self.files.sync_job())
                self.node.synced_at_stop(end)
                await self._in_thread(self._write_checkpoint)
                self.files.forget_sums()  # the checkpoint just written covers what the checksums said
        finally:
            self._threads.shutdown(wait=True)
            self._sync_thread.shutdown(wait=True)
            self.files.close()

    def readdress(self, name: str, address: str) -> None:
        """Connect to a member at another address, for instance through a proxy."""
        self.peers.readdress(name, address)

    # callers

    async def append(self, bodies: Sequence[bytes]) -> AppendResponse:
        """Append on the leader. Returns when a quorum holds the entries, or with the code of the failure."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Response] = loop.create_future()
        token = self._answer_with(lambda response: None if future.done() else future.set_result(response))
        if self._stopped:
            self._answers.pop(token)
            return AppendResponse(code=Code.TERM_CHANGED)
        if not self._proposals:  # the first of an iteration schedules `_propose`; the others join it
            loop.call_soon(self._propose)
        self._proposals.append((token, bodies))
        response = await future
        assert isinstance(response, AppendResponse)
        return response

    def _propose(self) -> None:
        """Submit all proposals of one event-loop iteration together: one write, one sync, full batches."""
        proposals, self._proposals = self._proposals, []
        node = self._node()
        self._feed(lambda: node.propose_all(self._clock_ms(), proposals))

    def offer(self, bodies: Sequence[bytes], answered: Callable[[Response], None]) -> AppendResponse:
        """Append on the leader synchronously. Returns the positions of the entries, or the code of the refusal.

        answered is called when a quorum holds the entries, or with the code of the failure; for a refusal by the core, before
        this returns. It is not called if LEADER_NOT_READY is returned, because an earlier input is still being handled,
        or DISK_ERROR, because the core failed. Entries offered in one event-loop iteration are pushed together.
        """
        node = self._node()
        if self._stopped or self._running or self._blocked is not None or self._inputs:  # else the order would break
            return AppendResponse(code=Code.LEADER_NOT_READY)
        self._token = token = self._token + 1  # inlined `_answer_with`: this is called for every message of a leader
        self._answers[token] = answered
        try:
            response, actions = node.offer(self._clock_ms(), token, bodies)
        except Exception as error:
            self._answers.pop(token, None)
            self._core_failed(error)
            response, actions = AppendResponse(code=Code.DISK_ERROR), []
        self._actions.extend(actions)  # the entries are in the files when this returns
        self._run()
        if not self._push_soon:
            self._push_soon = True
            asyncio.get_running_loop().call_soon(self.push)
        return response

    def push(self) -> None:
        """Push the offered entries now instead of at the end of this event-loop iteration."""
        if self._push_soon:
            self._push_soon = False
            node = self._node()
            self._feed(lambda: node.push(self._clock_ms()))

    async def transfer(self, transferee: str) -> TransferResponse:
        """Transfer the leadership to a member (DL-L01). A member that stops meanwhile answers TERM_CHANGED."""
        request = self._transfer_request(transferee)
        response = await self._request_core(lambda now, token, node: node.request(now, token, request))
        if not isinstance(response, TransferResponse):  # `stop` answers every request alike
            return TransferResponse(group=self.settings.group, code=response.code)
        return response

    def _hand_over(self, transferee: str) -> None:
        self._receive(self._transfer_request(transferee), lambda response: None)  # with the checks of a request

    def _transfer_request(self, transferee: str) -> TransferRequest:
        name, term = self.settings.self_id, self._node().term
        return TransferRequest(
            group=self.settings.group, remote_id=name, transfer_id=name, transferee_id=transferee, term=term
        )

    @property
    def leads(self) -> bool:
        """Whether this member leads and its lease holds; only then may state kept outside the log change (DL-X08)."""
        return self._node().holds_lease(self._clock_ms())

    def status(self) -> MemberStatus:
        return MemberStatus.of(self._node())

    def _node(self) -> Node:
        assert self.node is not None, "open() comes first"
        return self.node

    async def _request_core(self, step: Callable[[int, int, Node], list[Action]]) -> Response:
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        token = self._answer_with(lambda response: None if future.done() else future.set_result(response))
        node = self._node()
        self._feed(lambda: step(self._clock_ms(), token, node))
        return await future

    def _answer_with(self, answer: Callable[[Response], None]) -> int:
        self._token += 1
        self._answers[self._token] = answer
        return self._token

    def _receive(self, request: Request, answer: Callable[[Response], None]) -> None:
        if isinstance(request, AppendRequest) and self.append_for_client is not None:
            is_here = (request.remote_id, request.group) == (self.settings.self_id, self.settings.group)
            # Without the lease the broker must not number messages; the core then answers with the code of the refusal.
            if is_here and self._node().append_refusal is None and self.leads:
                self.append_for_client(request.body or b"", answer)
                return
        token, node = self._answer_with(answer), self._node()
        self._feed(lambda: node.request(self._clock_ms(), token, request))

    # inputs and actions

    def _tick(self) -> None:
        if not self._inputs:  # a queued input makes the tick late, not lost: the ticker asks again (`_due_in_ms`)
            self._feed(self._ticked)

    def _due_in_ms(self) -> int:
        waiting = self._inputs or self._actions or self._blocked is not None
        return 0 if waiting else self._node().next_due_ms() - self._clock_ms()  # 0: again at the next tick

    def _ticked(self) -> list[Action]:
        node, now_ms = self._node(), self._clock_ms()
        node.set_barred(self._scrub.postpones_election(now_ms, node))  # the tick may start a round of votes
        return node.tick(now_ms)

    def _feed(self, step: Input) -> None:
        """Handle an input now, or after the queued ones."""
        if self._stopped:  # the log is closed or about to be; the caller has its answer from `stop`
            return
        self._inputs.append(step)
        self._ticker.wake()
        if not self._running and self._blocked is None:  # else it waits: the core handles one at a time
            self._run()

    def _run(self) -> None:
        """Execute actions and inputs until there are none left, or one has to wait for the disk."""
        self._running = True
        try:
            while (self._actions or self._inputs) and not self._stopped:  # actions first: duty 1 of the core's caller
                if not self._actions:
                    self._actions.extend(self._decide(self._inputs.popleft()))
                    continue
                waits = self._execute(self._actions.popleft())
                if waits is not None:
                    self._blocked = supervised(self._wait_for(waits), "ledger writes", self._housekeeping_failed)
                    return
        finally:
            self._running = False

    def _decide(self, step: Input) -> list[Action]:
        """Feed an input to the core. If it raises (damage on disk, a broken invariant), this member fails until a restart."""
        try:
            return step()
        except Exception as error:
            self._core_failed(error)
            return []

    def _core_failed(self, error: Exception) -> None:
        log.exception("core failed member=%s", self.settings.self_id)
        if isinstance(error, CorruptRecord) and self.files.damaged >= 0:
            self._damage_mark.leave(self.files.damaged)
        if self._node().failed is None:  # else reported already
            self._failed(error)

    async def _wait_for(self, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception as error:
            self._failed(error)
        self._blocked = None
        self._start_sync()  # a sync that was requested while a truncation or a term was being written was put off
        self._run()

    def _execute(self, action: Action) -> Awaitable[None] | None:
        """Execute an action. Returns disk work that must be awaited before the next action, else None."""
        if isinstance(action, Send):
            self._send(action)
        elif isinstance(action, Reply):
            answer = self._answers.pop(action.token, None)  # None if `stop` or `_failed` has answered
            if answer is not None:
                answer(action.response)
        elif isinstance(action, AppendEntries):
            self._work.set()  # wakes housekeeping, which flushes without waiters
            try:
                self.files.append(action.entries)
            except (SaturnError, OSError) as error:
                self._failed(error)
        elif isinstance(action, SyncLog):
            self._sync_wanted = action
            self._start_sync()
        elif isinstance(action, Commit):
            self.listener.committed(action.index, action.end_pos)
        elif isinstance(action, PersistTerm):
            state = HardState(action.term, action.voted_for)
            return self._in_thread(lambda: self._term_file.write(state))
        elif isinstance(action, CutLog):
            self._work.set()
            return self._cut(action)
        elif isinstance(action, RoleChanged):
            facts = action.role.value, action.term, action.leader_id, self.settings.self_id
            log.info("role changed role=%s term=%s leader=%s member=%s", *facts)
            self.listener.role_changed(action.role, action.term, action.leader_id)
        elif isinstance(action, PersistMembers):
            generations = action.generations
            return self._in_thread(lambda: self._members_file.write(generations))
        elif isinstance(action, MembersChanged):
            self.peers.use_members(self.settings, action.configuration, action.former)
        elif isinstance(action, TimersChanged):
            log.info("timers changed fast=%s member=%s", action.fast, self.settings.self_id)
        elif isinstance(action, RaiseAlarm):
            log.warning("%s member=%s", action.text, self.settings.self_id)
        return None

    def _housekeeping_failed(self, error: BaseException) -> None:
        """Report a storage failure: no flush or checkpoint would follow."""
        self._disk_failed(f"housekeeping failed: {error!r}")

    def _disk_failed(self, why: str) -> None:
        node = self._node()
        self._feed(lambda: node.disk_failed(self._clock_ms(), why))

    def _failed(self, error: BaseException) -> None:
        """Drop the remaining actions and report the storage failure to the core (DL-X15)."""
        if isinstance(error, InvariantBroken):
            log.error("invariant broken member=%s", self.settings.self_id, exc_info=error)
        node = self._node()
        void = [action for action in self._actions if isinstance(action, Reply)]  # they confirm what failed
        self._actions.clear()
        for reply in void:
            answer = self._answers.pop(reply.token, None)
            if answer is not None and isinstance(reply.response, AppendResponse | TransferResponse):
                answer(type(reply.response)(code=Code.DISK_ERROR))  # a local caller has no timeout; a peer has one
        self._inputs.appendleft(lambda: node.disk_failed(self._clock_ms(), str(error)))  # before what is queued

    def _send(self, send: Send) -> None:
        node = self._node()

        def answered(response: Response | None) -> None:
            self._feed(lambda: node.response(self._clock_ms(), send.call, response))

        self.peers.send(send.peer, send.request, send.timeout_ms, answered)

    async def _cut(self, action: CutLog) -> None:
        """Truncate the log, after a running sync: truncation closes files."""
        if self._sync is not None:
            await asyncio.gather(self._sync, return_exceptions=True)  # its own handler reports an error
        last_index = NO_INDEX if action.restart else LedgerIndex(action.index - 1)
        now = checkpoint_of(self._node())
        before = LedgerCheckpoint(min(now.end_index, last_index), min(now.committed_index, last_index), now.incomplete)
        # Lower the checkpoint first: else the next start would take the truncated entries for damage.
        await self._in_thread(lambda: self._checkpoint.write(before))
        self.files.cut(action.index, action.end_pos, restart=action.restart)

    # disk

    def _start_sync(self) -> None:
        """Start a sync unless one is running; all requests made meanwhile share the next one (group commit)."""
        if self._sync is None and self._sync_wanted is not None:  # one at a time: files are closed in between
            request, self._sync_wanted = self._sync_wanted, None
            self._sync = self._sync_task(request)

    def _sync_task(self, request: SyncLog) -> asyncio.Task[None]:
        return supervised(self._run_sync(request, self.files.sync_job()), "ledger sync", self._housekeeping_failed)

    async def _run_sync(self, request: SyncLog, job: Callable[[], None]) -> None:
        node, began_ms = self._node(), self._clock_ms()
        try:
            await asyncio.get_running_loop().run_in_executor(self._sync_thread, job)  # a vote must not wait for it
            took_ms = self._clock_ms() - began_ms
            self._sync_pause.sync_ended(self._clock_ms(), took_ms)
            if took_ms > SLOW_SYNC_MS:
                log.warning("slow sync member=%s elapsed_ms=%s", self.settings.self_id, took_ms)
        except (SaturnError, OSError) as error:
            self._disk_failed(f"sync failed: {error}")
            # `stop` awaits it; a failed fsync is never repeated, because the kernel may have dropped the dirty pages (DUR-06).
            return  # self._sync stays set: no further sync starts and nothing more is acknowledged
        self._feed(lambda: node.synced(self._clock_ms(), request.epoch, request.end_index))
        self._sync = None  # only after the input: a sync that it requests must not start before `_clean_now`
        if self._blocked is None:
            self._clean_now()  # under load the next sync starts at once, so this is the only chance
            self._start_sync()

    async def _in_thread(self, call: Callable[[], None]) -> None:
        """Run on the thread that writes term, vote and checkpoint, in order."""
        await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def _housekeeping(self) -> None:
        """Periodic work: asynchronous flush (DL-S04), checkpoint (DL-Q07), status log (DL-Q06), retention, scrub."""
        next_checkpoint_ms = self._clock_ms()
        while True:
            await wait_until(self._work_in_ms(next_checkpoint_ms), self._work)
            await asyncio.sleep(self.settings.flush_interval_ms / 1000)  # a flush per append would be SYNC_FLUSH
            self._work.clear()
            self._check_space()
            if self._blocked is None and self._node().failed is None:  # a truncation may close what it reads
                self._scrub.step(self._clock_ms(), self._node())
            quiet = self._sync is None and self._blocked is None
            flush = not self._core.sync_before_ack and self.files.dirty and self._sync_pause.is_over(self._clock_ms())
            if self._clock_ms() >= next_checkpoint_ms and self._node().failed is None:
                flush |= self.files.request_index_sync()  # if a sync is running, the next one syncs the index
            if flush and quiet:
                behind = SyncLog(self._node().log_epoch, self._node().end_index)
                self._sync = self._sync_task(behind)
            if self._clock_ms() < next_checkpoint_ms:
                continue
            next_checkpoint_ms = self._clock_ms() + self.settings.checkpoint_interval_ms  # not one per missed interval
            log.debug("%s", self.status())
            if self._node().failed is None:
                try:
                    await self._checkpoints.round(
                        checkpoint_of(self._node()), partial(self._in_thread, self._write_checkpoint)
                    )
                except SaturnError as error:
                    self._disk_failed(f"checkpoint not written: {error}")

    def _work_in_ms(self, checkpoint_ms: int) -> int:
        """ms until housekeeping is due if the log does not change; 0 while work is pending or the disk is full."""
        due_ms = checkpoint_ms
        node, dirty = self._node(), self.files.dirty and not self._core.sync_before_ack
        if node.failed is None:
            if dirty or node.is_disk_full or self._too_full or self._clean_due is not None or self._blocked is not None:
                return 0
            due_ms = min(due_ms, self._next_clean_ms, self._scrub.due_ms)
        return due_ms - self._clock_ms()

    def _check_space(self) -> None:
        """Run retention and preallocate the next file; without space for it appends are refused until there is (DL-S10)."""
        node, now_ms = self._node(), self._clock_ms()
        if self._blocked is not None or node.failed is not None:
            return
        if self._clean_due is not None:
            self._clean_now()
        elif now_ms >= self._next_clean_ms:
            self._next_clean_ms = now_ms + CLEAN_INTERVAL_MS
            try:
                used = member_ratio(self.files.folder, self.files.data.folders, self.settings.read_only_folders)
                newest = [int(file.path.stat().st_mtime * 1000) for file in self.files.data.files[-1:]]
            except OSError as error:
                log.warning("disk usage unknown member=%s error=%s", self.settings.self_id, error)
            else:
                now_s = time.time()
                expiry_ms = self._clock_watch.now_for_expiry(int(now_s * 1000), now_ms, max(newest, default=-1))
                self.clean(used, expiry_ms / 1000, time.localtime(now_s).tm_hour)
        try:
            self.files.prepare()
            full = self._too_full  # space for the next file is not enough above the full ratio (DL-S10)
        except ResourceExhausted as error:
            full = True
            if not node.is_disk_full:  # logged on the change only; this runs every few milliseconds
                log.error(
                    "no space or descriptor for the next file, appends refused member=%s error=%s",
                    self.settings.self_id,
                    error,
                )
        except (SaturnError, OSError) as error:
            self._disk_failed(str(error))
            return
        if full != node.is_disk_full:  # the core is notified of changes only
            log.warning("disk state changed member=%s full=%s", self.settings.self_id, full)
            self._feed(lambda: node.disk_full(self._clock_ms(), full))

    @property
    def damaged_entries(self) -> int:
        """Damaged entries that the scrub has found since the start (DUR-08)."""
        return self._scrub.damaged

    def _may_grow(self, folder: Path) -> bool:
        """Whether new data files may be created in a folder (DL-S13)."""
        settings = self.settings
        return takes_files(folder, settings.data_folders, settings.read_only_folders, self.retention.clean_ratio)

    def clean(self, used_ratio: float, now_s: float, hour: int) -> int:
        """Delete old files (DL-S09), a few per call. Returns how many.

        Returns 0 while a sync is running; the deletion is then done after it.
        """
        self._clean_due = used_ratio, now_s, hour
        self._work.set()
        return self._clean_now()

    def _clean_now(self) -> int:
        """Run a requested `clean` unless another thread uses the files. On a disk error this member fails."""
        if self._clean_due is None:
            return 0
        used_ratio, now_s, hour = self._clean_due
        disk = disk_state(self.retention, used_ratio)
        self._too_full = disk is DiskState.FULL  # also while the deletion has to wait for a sync
        if self._sync is not None or self._blocked is not None:
            return 0
        self._clean_due = None
        # Expired files stay as long as recovery would read them.
        needed = self.keep_from() if self.keep_from is not None else 1 << 62
        files = self.files.data.files
        behind = sum(file.end <= needed for file in files)
        node, begin = self._node(), NO_INDEX
        try:
            candidates = files[: behind + 1]  # files_to_delete always keeps the last of them
            modified = [int(file.path.stat().st_mtime * 1000) for file in candidates]
            count = files_to_delete(self.retention, modified, now_ms=int(now_s * 1000), hour=hour, disk=disk)
            for _ in range(count):
                begin = self.files.delete_oldest()
        except (SaturnError, OSError) as error:
            self._disk_failed(f"old files cannot be deleted: {error}")
            return 0
        if count > 0:
            log.info("ledger files deleted count=%s begin=%s member=%s", count, begin, self.settings.self_id)
            self._feed(lambda: node.trimmed(self._clock_ms(), begin))  # they are not offered to peers any more
        return count

    def _write_checkpoint(self) -> None:
        self._term_file.reserve()
        self._checkpoints.write(checkpoint_of(self._node()))
