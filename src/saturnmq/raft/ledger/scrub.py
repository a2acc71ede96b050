"""Background scrub: re-reads a member's whole ledger slowly and repairs damaged entries from the leader.

Without it, damage in an entry that no client reads would be found only after the other copies have been deleted. An entry has the
same bytes on every member, so the leader's copy overwrites the damaged one. A leader that finds damage transfers the leadership
first. `step` runs on the event loop.

Requirements: DUR-08, DUR-10.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from saturnmq.protocol.errors import SaturnError
from saturnmq.raft.core.actions import Role
from saturnmq.raft.core.entry import Entry
from saturnmq.raft.core.ids import LedgerIndex
from saturnmq.raft.core.messages import Code, GetRequest, GetResponse, Request, Response
from saturnmq.raft.core.node import Node
from saturnmq.raft.core.state import NEVER
from saturnmq.raft.ledger.files import LedgerFiles
from saturnmq.raft.settings import RaftSettings
from saturnmq.store.maintenance.scrub import FIRST_PASS_AFTER_MS, NEXT_PASS_AFTER_MS, STEP_MS, step_bytes

log = logging.getLogger(__name__)

TRY_AGAIN_MS: Final = 1_000
LEADERLESS_MAX: Final = 10  # election timeouts without a leader after which a damaged member runs for election anyway

Send = Callable[[str, Request, int, Callable[[Response | None], None]], None]


class Scrub:
    """next_ms: when the next step is due. send: sends a request to a member. hand_over(peer): transfers the leadership to it."""

    def __init__(
        self,
        settings: RaftSettings,
        files: LedgerFiles,
        send: Send,
        hand_over: Callable[[str], None],
        now_ms: int,
    ) -> None:
        self.next_ms = now_ms + FIRST_PASS_AFTER_MS
        self.passes = 0
        self.damaged = 0  # damaged entries
        self.repaired = 0
        self._first_repair = -1  # index of the entry that made this member fail before its last start; -1: none
        self._leaderless_since_ms = -1
        self._settings = settings
        self._files = files
        self._send = send
        self._hand_over = hand_over
        self._index = -1
        self._requested = -1  # index of the entry requested from the leader; -1: none
        self._reported = -1
        self._tries = 0

    def repair_first(self, *indexes: int) -> None:
        """Begin at once, with the last of these entries; -1: nothing to repair."""
        index = max(indexes)
        if index >= 0:
            self._first_repair = self._index = index
            self.next_ms = 0

    def postpones_election(self, now_ms: int, node: Node) -> bool:
        """Whether this member should not lead: as leader it would read an entry that is known to be damaged, and fail.

        Limited by LEADERLESS_MAX, because no member could be elected if a majority is damaged.
        """
        if max(self._first_repair, self._reported) < 0 or len(node.peers) == 1:
            self._leaderless_since_ms = -1
            return False
        if node.leader_id is not None or self._leaderless_since_ms < 0:
            self._leaderless_since_ms = now_ms
        return now_ms - self._leaderless_since_ms < LEADERLESS_MAX * node.settings.election_timeout_ms

    @property
    def due_ms(self) -> int:
        """When the next `step` is due, in ms; NEVER if scrubbing is off."""
        return NEVER if self._settings.scrub_days <= 0 and self._first_repair < 0 else self.next_ms

    def step(self, now_ms: int, node: Node) -> None:
        """Check a few committed entries if a step is due. Call it often, on the event loop, but not during a truncation."""
        # One repair at a time.
        if now_ms < self.next_ms or self._requested >= 0 or (self._settings.scrub_days <= 0 and self._first_repair < 0):
            return
        self.next_ms = now_ms + STEP_MS
        # Only committed entries have the same bytes on every member.
        files, last = self._files, min(node.committed, self._files.end_index)
        if not files.begin_index <= self._first_repair <= files.end_index:
            self._first_repair = -1  # deleted in the meantime
        if self._first_repair > last:
            return  # not known to be committed yet; the leader will report it soon
        self._index = max(self._index, files.begin_index, 0)
        span_bytes = files.end_pos - files.begin_pos
        # So many per step that one pass takes `scrub_days`.
        left_bytes = step_bytes(span_bytes, self._settings.scrub_days)
        while left_bytes > 0 and files.begin_index <= self._index <= last:
            try:
                entry = files.entry(self._index)
            except SaturnError as error:
                self._damage(now_ms, node, error)
                return
            assert entry is not None, "it lies within begin..end"
            left_bytes -= entry.size
            self._index += 1
            if self._first_repair >= 0:
                self._first_repair, self._index, self.next_ms = -1, -1, now_ms + FIRST_PASS_AFTER_MS
                return
        if self._index > last:
            self._index = -1
            self.passes += 1
            self.next_ms = now_ms + NEXT_PASS_AFTER_MS

    def _damage(self, now_ms: int, node: Node, error: SaturnError) -> None:
        """Start the repair of the current entry and stay at it until it is repaired; without peers, skip it."""
        self.next_ms = now_ms + TRY_AGAIN_MS
        index = self._index
        if self._reported != index:
            self._reported = index
            self.damaged += 1
            log.error("damaged entry found member=%s index=%s error=%s", self._settings.self_id, index, error.message)
        if len(node.peers) == 1:
            self._skip()
        # A leader cannot ask itself for a good copy: another member leads first, then this one is repaired as a follower.
        elif node.role is Role.LEADER:
            held = sorted(
                peer for peer, mark in node.watermarks().items() if peer != node.self_id and mark >= node.committed
            )
            if held:
                # Another member each time: the first may refuse.
                self._tries += 1
                self._hand_over(held[self._tries % len(held)])
        elif node.role is Role.FOLLOWER and node.leader_id is not None:
            request = GetRequest(
                group=self._settings.group,
                remote_id=node.leader_id,
                term=node.term,
                leader_id=node.leader_id,
                begin_index=LedgerIndex(index),
            )
            self._requested = index
            self._send(node.leader_id, request, self._settings.rpc_timeout_ms, self._answered)

    def _answered(self, response: Response | None) -> None:
        index, self._requested = self._requested, -1
        if not isinstance(response, GetResponse) or response.code != Code.SUCCESS:
            return
        # The leader may answer with other entries than the one requested.
        for entry in response.entries:
            if entry.index == index:
                self._repair(entry)

    def _repair(self, entry: Entry) -> None:
        if self._files.repair(entry):
            self.repaired += 1
            # Go on at once: damage seldom comes alone.
            self._reported, self.next_ms = -1, 0
            log.warning("damaged entry repaired member=%s index=%s", self._settings.self_id, entry.index)
        else:
            log.error(
                "damaged entry not repaired, the leader's copy does not fit member=%s index=%s",
                self._settings.self_id,
                entry.index,
            )
            self._skip()

    def _skip(self) -> None:
        """Skip an entry that cannot be repaired now; the next pass tries again."""
        self._index += 1
        self._reported = self._first_repair = -1
