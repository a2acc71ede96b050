"""A simulated member: the real core, on a disk and a clock that can fail.

Requirements: SIM-04, SIM-05.
"""

from __future__ import annotations

import dataclasses
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from harness.raftsim.disk import Flip, StoredLog, recover
from harness.raftsim.observer import Ledger
from harness.raftsim.simulation import Journal
from saturnmq.protocol.errors import CorruptRecord, InvariantBroken
from saturnmq.raft.core.actions import (
    Action,
    AppendEntries,
    Commit,
    CutLog,
    PersistMembers,
    PersistTerm,
    Reply,
    Role,
    RoleChanged,
    Send,
    SyncLog,
)
from saturnmq.raft.core.configuration import ConfigurationGeneration
from saturnmq.raft.core.ids import NO_INDEX, LedgerIndex
from saturnmq.raft.core.messages import HeartBeatRequest, Request, Response, VoteRequest, VoteResponse
from saturnmq.raft.core.node import Node
from saturnmq.raft.core.settings import CoreSettings
from saturnmq.raft.core.state import HardState

if TYPE_CHECKING:
    from harness.raftsim.group import Cluster

GROUP: Final = "g"
NOTE_EVERY_MS: Final = 3000
FLUSH_EVERY_MS: Final = 500  # with ASYNC_FLUSH
STALL_MS_MIN: Final = 5000  # from here on a delay counts as a stall
Input = Callable[[Node], list[Action]]


class Member:
    """One simulated process: its disk survives a crash, its Node does not.

    Inputs are handled one after the other; an action that waits for the disk blocks the actions behind it and all
    inputs.
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.log: Journal[Ledger] = Journal(Ledger(), Ledger.apply, Ledger.copy)
        self.hard = HardState()
        self.configurations: tuple[ConfigurationGeneration, ...] = ()  # in the file `members`
        self.learner = False  # dledger.learner
        self.named = list(dict.fromkeys((*cluster.names, name)))  # in dLegerPeers
        self.retired = False  # removed and switched off for good
        self.checkpoint = NO_INDEX
        self.rots = False  # its disk loses synced entries at crashes; at most one member of a group
        self.has_space = True  # whether its disk has space for another file
        self.flips: dict[int, Flip] = {}  # damaged entries that still exist, by index
        self.known_bad: set[int] = set()  # those that were read
        self.unit_lost: set[int] = set()  # entries whose index units the last crash took
        self.lost_to = -1  # last index that was lost to damage
        self.noted = NO_INDEX  # the synced index in the checkpoint file
        self.incomplete = False  # in the checkpoint file too
        self._next_note_ms = self._next_flush_ms = 0.0
        self.recovering = False
        self.committed = NO_INDEX
        self.incarnation = 0
        self.node: Node | None = None
        self.frozen = False
        self.settings: CoreSettings | None = None  # of its next start; None: the cluster's
        self.plain = False  # its heartbeats and vote requests, and those that it receives, lose our fields, as with a Java member
        self.keeps_writes = False  # a crash ends the process, not the power
        self.clock_offset_ms = cluster.rng.randrange(10**6)
        self.clock_rate = 1.0
        self._inputs: deque[Input] = deque()
        self._actions: deque[Action] = deque()
        self._running = False
        self._waits: Callable[[], None] | None = None  # ends the wait for the disk
        self._sync: SyncLog | None = None
        self._sync_running = False
        self._sync_ends: Callable[[], None] | None = None
        self._tokens: dict[int, Callable[[Response], None]] = {}
        self._token = 0

    @property
    def alive(self) -> bool:
        return self.node is not None

    @property
    def busy(self) -> bool:
        """Whether actions are left that wait for the disk."""
        return self._waits is not None or bool(self._actions)

    @property
    def now_ms(self) -> int:
        return int(self.clock_offset_ms + self.cluster.events.now_ms * self.clock_rate)

    @property
    def role(self) -> Role | None:
        return self.node.role if self.node is not None else None

    @property
    def hurt(self) -> bool:
        """Whether an entry that it acknowledged is damaged, or lost and not recovered yet."""
        recovering = self.node.recovering if self.node is not None else self.recovering
        return self.rots or bool(self.flips) or recovering

    def start(self) -> None:
        self.incarnation += 1
        self._forget_all()
        self._recover()
        self.committed = self.checkpoint = min(self.checkpoint, self.log.live.end_index)
        self.incomplete = self.incomplete or self.noted > self.log.live.end_index
        cluster = self.cluster
        self.node = Node(
            group=GROUP,
            self_id=self.name,
            peers={name: f"{name}:1" for name in self.named},
            settings=self.settings or cluster.settings,
            reader=StoredLog(self.log.live, self.flips, self.known_bad.add),
            hard_state=self.hard,
            committed=self.checkpoint,
            chance=cluster.rng.randrange,
            noop=cluster.noop,
            incomplete=self.incomplete,
            codec=cluster.codec,
            configurations=self.configurations,
            learner=self.learner,
        )
        cluster.trace.add(cluster.events.now_ms, self.name, f"start {self.incarnation}")
        self._tick(self.incarnation)

    def crash(self) -> None:
        if self.node is None:
            return
        self.recovering = self.node.recovering
        self.node = None
        self._forget_all()
        if self.keeps_writes:
            self.log.sync(self.log.mark())
        file_bytes = self.cluster.settings.file_bytes
        end_pos = self.log.live.end_pos
        lost = self.log.crash(self.cluster.rng)
        end_pos = max(end_pos, self.log.live.end_pos)  # the crash may have undone a truncation
        self.cluster.seen["crash"] += 1
        ledger = self.log.live
        if self.rots and ledger.entries and ledger.begin <= self.noted and self.cluster.rng.random() < 0.7:
            first = self.cluster.rng.randrange(ledger.begin, min(ledger.end_index, self.noted) + 1)
            self._lose_from(LedgerIndex(first))
            self.cluster.seen["rot"] += 1
        if not self.keeps_writes:
            self._lose_units(end_pos - end_pos % file_bytes - file_bytes)
        if lost:
            self.cluster.seen["lost unsynced"] += 1
        self.cluster.trace.add(self.cluster.events.now_ms, self.name, f"crash, {lost} lost")

    def _lose_units(self, begin: int) -> None:
        """A power loss takes any index units of the entries from a position on, those of the last two data files."""
        rng = random.Random(f"units {self.cluster.seed} {self.name} {self.incarnation}")  # not in the trace of the seed
        chance = rng.choice((0.0, 0.1, 0.5, 1.0))
        for entry in self.log.live.entries:
            if entry.pos >= begin and rng.random() < chance and entry.index not in self.flips:
                self.unit_lost.add(entry.index)

    def _forget_all(self) -> None:
        """Drop what the process had in memory."""
        self._inputs.clear()
        self._actions.clear()
        self._waits = self._sync_ends = self._sync = None
        self._sync_running, self._tokens = False, {}

    def _tick(self, incarnation: int) -> None:
        if incarnation != self.incarnation or self.node is None:
            return
        self.cluster.events.after(self.cluster.tick_ms, partial(self._tick, incarnation))
        if self.frozen:
            return
        node = self.node
        if node.is_disk_full is self.has_space and node.failed is None and self._waits is None:
            full = not self.has_space
            self.cluster.seen["full"] += full
            self.feed(lambda node: node.disk_full(self.now_ms, full))
        if node.failed is None and self._waits is None and self.cluster.events.now_ms >= self._next_note_ms:
            self._note(node)
        if not node.settings.sync_before_ack and self.cluster.events.now_ms >= self._next_flush_ms:
            self._flush(node)
        if not self._inputs and (self.cluster.tick_always or node.next_due_ms() <= self.now_ms):
            self.feed(lambda node: node.tick(self.now_ms))

    # inputs

    def ask(self, request: Request, answer: Callable[[Response], None]) -> None:
        """Receive a request."""
        if self.node is None or self.frozen:
            return
        self._token = token = self._token + 1
        self._tokens[token] = answer
        received = self._as_spoken(request)
        self.feed(lambda node: node.request(self.now_ms, token, received))

    def _as_spoken(self, request: Request) -> Request:
        """The request without the fields that a Java member neither sends nor reads, if this one is `plain`."""
        if self.plain and isinstance(request, HeartBeatRequest):
            return dataclasses.replace(request, interval_ms=None)
        if self.plain and isinstance(request, VoteRequest):
            return dataclasses.replace(request, transfer=None)
        return request

    def answered(self, incarnation: int, call: int, response: Response | None) -> None:
        if self.node is not None and incarnation == self.incarnation:
            if self.frozen:
                self.cluster.events.after(50, lambda: self.answered(incarnation, call, response))
            else:
                self.feed(lambda node: node.response(self.now_ms, call, response))

    def propose(self, bodies: list[bytes], answer: Callable[[Response], None]) -> None:
        if self.node is None or self.frozen:
            return
        self._token = token = self._token + 1
        self._tokens[token] = answer
        self.feed(lambda node: node.propose(self.now_ms, token, bodies))

    def trim(self, begin: LedgerIndex) -> None:
        """Delete old entries, as retention does; not while an action waits for the disk."""
        if self.node is not None and self._waits is None and begin > self.log.live.begin:
            self.log.change(begin)
            self._flips_within(begin, self.log.live.end_index)
            self.feed(lambda node: node.trimmed(self.now_ms, begin))

    # outputs

    def feed(self, given: Input) -> None:
        """Handle an input now, or after those before it."""
        self._inputs.append(given)
        if not self._running:
            self._run()

    def _run(self) -> None:
        """Execute actions in order; a crash may happen between any two of them."""
        cluster = self.cluster
        self._running = True
        try:
            while self.node is not None and self._waits is None and (self._actions or self._inputs):
                if not self._actions:
                    self._actions.extend(self._decide(self.node, self._inputs.popleft()))
                    continue
                if cluster.crash_between and cluster.rng.random() < cluster.crash_between:
                    self.crash()
                    cluster.events.after(cluster.rng.random() * 3000, partial(cluster.restart, self))
                    return
                action = self._actions.popleft()
                cluster.trace.add(cluster.events.now_ms, self.name, action)
                self._one(action)
        finally:
            self._running = False

    def _decide(self, node: Node, given: Input) -> list[Action]:
        """Return the core's actions; damage that it reads stops this member until it is restarted."""
        try:
            return given(node)
        except (CorruptRecord, InvariantBroken) as error:
            if isinstance(error, InvariantBroken) and not self.known_bad:
                raise
            self.cluster.seen["flip read"] += 1
            self.cluster.damage_read_ms = self.cluster.events.now_ms
            why = str(error)
            self._inputs.appendleft(lambda node: node.disk_failed(self.now_ms, why))
            self.cluster.start_again(self)
            return []

    def _one(self, action: Action) -> None:
        cluster = self.cluster
        if isinstance(action, PersistTerm):
            self._slow_write(partial(self._persist, action))
        elif isinstance(action, PersistMembers):
            self._slow_write(partial(self._persist_members, action))
        elif isinstance(action, AppendEntries):
            cluster.observer.appended(self)
            self.log.change(action)
        elif isinstance(action, CutLog):
            cluster.observer.cut(self, action)
            self.log.change(action)
            self._flips_within(0, self.log.live.end_index)
            assert self.node is not None
            self._note(self.node)
            if cluster.rng.random() < cluster.crash_after_cut:
                cluster.events.after(cluster.rng.random() * 200, partial(cluster.crash_soon_back, self))
            self._slow_write(lambda: None)
        elif isinstance(action, SyncLog):
            self._sync = action
            self._start_sync()
        elif isinstance(action, Send):
            self._send(action)
        elif isinstance(action, Reply):
            answer = self._tokens.pop(action.token, None)
            if isinstance(action.response, VoteResponse):
                cluster.observer.voted(self, action.response)
            if answer is not None:
                answer(action.response)
        elif isinstance(action, Commit):
            cluster.observer.committed(self, action)
            self.committed = action.index
            if cluster.rng.random() < 0.1:
                self.checkpoint = self._committed_on_disk(action.index)
        elif isinstance(action, RoleChanged):
            cluster.observer.role(self, action)

    def _persist(self, action: PersistTerm) -> None:
        self.cluster.observer.term_stored(self, action)
        self.hard = HardState(action.term, action.voted_for)

    def _persist_members(self, action: PersistMembers) -> None:
        self.configurations = action.generations

    def _note(self, node: Node) -> None:
        """Write the checkpoint file: the synced index, and whether the log is incomplete, until it is recovered."""
        self._next_note_ms = self.cluster.events.now_ms + NOTE_EVERY_MS
        self.noted, self.incomplete = node.synced_index, node.recovering

    def _flush(self, node: Node) -> None:
        """Sync the log in the background (DL-S04)."""
        self._next_flush_ms = self.cluster.events.now_ms + FLUSH_EVERY_MS
        if node.failed is None and self._waits is None and node.synced_index < node.end_index:
            self._sync = SyncLog(node.log_epoch, node.end_index)
            self._start_sync()

    def _committed_on_disk(self, committed: LedgerIndex) -> LedgerIndex:
        """The committed index for the checkpoint: excludes a committed entry that a crash could still replace."""
        assert self.node is not None
        return min(committed, self.node.synced_index)

    def _send(self, send: Send) -> None:
        cluster, incarnation = self.cluster, self.incarnation
        peer = cluster.members[send.peer]
        cluster.events.after(send.timeout_ms, partial(self.answered, incarnation, send.call, None))

        def back(response: Response) -> None:
            cluster.network.deliver(peer.name, self.name, lambda: self.answered(incarnation, send.call, response))

        if not cluster.drop(send.request):
            request = self._as_spoken(send.request)
            cluster.network.deliver(self.name, send.peer, lambda: peer.ask(request, back))

    # disk

    def _slow_write(self, write: Callable[[], None]) -> None:
        """Write now, or block all actions until the write is done; a crash meanwhile happens before or after it."""
        faults, rng, incarnation = self.cluster.disk, self.cluster.disk_rng, self.incarnation
        if not faults.slow_write or rng.random() >= faults.slow_write:
            write()
            return
        if rng.random() < 0.5:
            write()
            write = _nothing

        def done() -> None:
            if self._waits is not done:
                return
            if self.frozen:
                self.cluster.events.after(50, done)
                return
            assert self.incarnation == incarnation
            self._waits = None
            write()
            self._run()

        self._waits = done
        self.cluster.events.after(self._stall_ms(), done)

    def _stall_ms(self) -> float:
        took_ms = self.cluster.disk_rng.random() * self.cluster.disk.stall_ms
        self.cluster.seen["stall"] += took_ms >= STALL_MS_MIN
        return took_ms

    def _start_sync(self) -> None:
        if self._sync is None or self._sync_running:
            return
        wanted, self._sync, self._sync_running = self._sync, None, True
        faults, rng = self.cluster.disk, self.cluster.rng
        delay_ms = rng.random() * faults.sync_ms
        if rng.random() < faults.stall:
            delay_ms += self._stall_ms()
        mark, failed, incarnation = self.log.mark(), rng.random() < faults.eio, self.incarnation

        def done() -> None:
            if self._sync_ends is done:
                self._sync_ends = None
                self._synced(incarnation, wanted, mark, failed)

        self._sync_ends = done
        self.cluster.events.after(delay_ms, done)

    def _synced(self, incarnation: int, wanted: SyncLog, mark: int, failed: bool) -> None:
        if incarnation != self.incarnation or self.node is None:
            return
        self._sync_running = False
        if failed:
            self.cluster.seen["disk failed"] += 1
            self.feed(lambda node: node.disk_failed(self.now_ms, "EIO"))
            return
        self.log.sync(mark)
        self.feed(lambda node: node.synced(self.now_ms, wanted.epoch, wanted.end_index))
        self._start_sync()

    def disk_is_well(self) -> None:
        """Restore disk space and complete every hanging operation."""
        self.has_space = True
        for ends in (self._waits, self._sync_ends):
            if ends is not None:
                ends()

    # damage

    def flip(self, index: int, kind: Flip) -> None:
        """Damage an entry on the disk, and drop everything up to it from the in-memory cache."""
        self.flips[index] = kind
        self.cluster.seen["flip"] += 1
        if self.node is not None:
            log = self.node._state.log
            for evicted in [known for known in log._cache if known <= index]:
                log._evict(evicted)

    def _flips_within(self, first: int, last: int) -> None:
        """Forget flips outside of first..last: those entries no longer exist."""
        for index in [index for index in self.flips if not first <= index <= last]:
            del self.flips[index]
            self.known_bad.discard(index)

    def _recover(self) -> None:
        """Truncate at the damaged entry; where recovery cannot help, empty the ledger as an operator would."""
        self._flips_within(max(self.log.live.begin, 0), self.log.live.end_index)
        ledger, seen = self.log.live, self.cluster.seen
        units, self.unit_lost = self.unit_lost & {entry.index for entry in ledger.entries}, set()
        if not self.flips and not units:
            return
        try:
            made = recover(ledger, dict.fromkeys(units, Flip.UNIT_GONE) | self.flips, self.cluster.settings.file_bytes)
        except CorruptRecord:
            self._empty()
            return
        if units and made.end_index >= min(units):
            seen["units rewritten"] += 1
            whole = made.index_from is not None and made.index_from <= min(units)
            self.cluster.observer.check(whole, f"{self.name} does not rewrite index unit {min(units)}")
        if made.index_from is not None:
            for index in [index for index in self.flips if index >= made.index_from]:
                if self.flips[index] is not Flip.BODY:  # rewritten
                    seen["flip mended"] += 1
                    del self.flips[index]
                    self.known_bad.discard(index)
        if made.end_index < ledger.end_index:
            seen["flip at start"] += 1
            self._lose_from(LedgerIndex(made.end_index + 1) if made.end_index >= 0 else ledger.begin)
            self._flips_within(0, self.log.live.end_index)
        if self.known_bad:
            self._empty()

    def _empty(self) -> None:
        self.cluster.seen["emptied"] += 1
        self.lost_to = max(self.lost_to, self.log.live.end_index)
        self.log.damage(CutLog(LedgerIndex(0), 0, restart=True))
        self.flips.clear()
        self.known_bad.clear()

    def _lose_from(self, first_gone: LedgerIndex) -> None:
        ledger = self.log.live
        self.lost_to = max(self.lost_to, ledger.end_index)
        before = ledger.entry(first_gone - 1)
        self.log.damage(CutLog(first_gone, before.end_pos if before is not None else ledger.entries[0].pos))


def _nothing() -> None:
    """The write was executed before."""
