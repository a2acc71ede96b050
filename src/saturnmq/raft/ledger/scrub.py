"""Reads a member's whole ledger again, slowly, and gets what is damaged from the leader. Source: DUR-08, DUR-10; G06.

Damage in an entry that nobody reads would be found when the other copies are gone. An entry is the same bytes on every member,
so a good copy of it is put where the damaged one lies. A leader that finds damage hands the leadership over first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from saturnmq.protocol.errors import SaturnError
from saturnmq.raft.core.actions import Role
from saturnmq.raft.core.entry import Entry
from saturnmq.raft.core.messages import Code, GetRequest, GetResponse, Request, Response
from saturnmq.raft.core.node import Node
from saturnmq.raft.core.state import NEVER
from saturnmq.raft.ledger.files import LedgerFiles
from saturnmq.raft.settings import RaftSettings

log = logging.getLogger(__name__)

STEP_MS: Final = 100
STEP_BYTES_MIN: Final = 8192
FIRST_PASS_AFTER_MS: Final = 60_000  # the start has looked at the last files
NEXT_PASS_AFTER_MS: Final = 3_600_000
TRY_AGAIN_MS: Final = 1_000
LEADERLESS_MAX: Final = 10  # election timeouts without a leader until a member stands in spite of its damage
DAY_MS: Final = 86_400_000

Send = Callable[[str, Request, int, Callable[[Response | None], None]], None]


class Scrub:
    """next_ms: when the next step is due. send asks a member; hand_over(peer) asks this member's core to make that one leader."""

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
        self.repaired = 0
        self._mends = -1  # the entry that ended this member's part before its last start; -1: none
        self._leaderless_since_ms = -1
        self._settings = settings
        self._files = files
        self._send = send
        self._hand_over = hand_over
        self._index = -1
        self._asked = -1  # the entry that the leader was asked for; -1: none
        self._told = -1
        self._tries = 0

    def mend_first(self, index: int) -> None:
        """Begin at once, at this entry. -1: nothing to mend."""
        if index >= 0:
            self._mends = self._index = index
            self.next_ms = 0

    def keeps_from_standing(self, now_ms: int, node: Node) -> bool:
        """Whether others should lead: as a leader this member would read the damage, and fail, once more.

        Not for ever: nobody could be elected where a majority is damaged.
        """
        state = node.state
        if self._mends < 0 or len(state.peers) == 1:
            return False
        if state.leader_id is not None or self._leaderless_since_ms < 0:
            self._leaderless_since_ms = now_ms
        return now_ms - self._leaderless_since_ms < LEADERLESS_MAX * state.settings.election_timeout_ms

    @property
    def due_ms(self) -> int:
        """When `step` has something to do, if nothing else happens."""
        return NEVER if self._settings.scrub_days <= 0 and self._mends < 0 else self.next_ms

    def step(self, now_ms: int, node: Node) -> None:
        """Look at a few committed entries, when it is time. To be called often, on the loop, while no cut is under way."""
        if now_ms < self.next_ms or self._asked >= 0 or (self._settings.scrub_days <= 0 and self._mends < 0):
            return
        self.next_ms = now_ms + STEP_MS
        files, last = self._files, min(node.state.committed, self._files.end_index)
        if not files.begin_index <= self._mends <= files.end_index:
            self._mends = -1  # gone meanwhile
        if self._mends > last:
            return  # a leader says soon that it is committed
        self._index = max(self._index, files.begin_index, 0)
        span_bytes = files.end_pos - files.begin_pos
        left_bytes = max(span_bytes * STEP_MS // (max(self._settings.scrub_days, 1) * DAY_MS), STEP_BYTES_MIN)
        while left_bytes > 0 and files.begin_index <= self._index <= last:
            try:
                entry = files.entry(self._index)
            except SaturnError as error:
                self._damage(now_ms, node, error)
                return
            assert entry is not None, "it lies within begin..end"
            left_bytes -= entry.size
            self._index += 1
            if self._mends >= 0:
                self._mends, self._index, self.next_ms = -1, -1, now_ms + FIRST_PASS_AFTER_MS
                return
        if self._index > last:
            self._index = -1
            self.passes += 1
            self.next_ms = now_ms + NEXT_PASS_AFTER_MS

    def _damage(self, now_ms: int, node: Node, error: SaturnError) -> None:
        """Stay at this entry until it is good again, where there is a member to get it from."""
        self.next_ms = now_ms + TRY_AGAIN_MS
        state, index = node.state, self._index
        if self._told != index:
            self._told = index
            log.error("member=%s entry=%s %s", self._settings.self_id, index, error.message)
        if len(state.peers) == 1:
            self._go_on()
        elif state.role is Role.LEADER:
            held = sorted(
                peer
                for peer, mark in node.leader.watermarks().items()
                if peer != state.self_id and mark >= state.committed
            )
            if held:
                self._tries += 1
                self._hand_over(held[self._tries % len(held)])
        elif state.role is Role.FOLLOWER and state.leader_id is not None:
            request = GetRequest(
                group=state.group,
                remote_id=state.leader_id,
                term=state.term,
                leader_id=state.leader_id,
                begin_index=index,
            )
            self._asked = index
            self._send(state.leader_id, request, self._settings.rpc_timeout_ms, self._answered)

    def _answered(self, response: Response | None) -> None:
        index, self._asked = self._asked, -1
        if not isinstance(response, GetResponse) or response.code != Code.SUCCESS:
            return
        for entry in response.entries:
            if entry.index == index:
                self._repair(entry)

    def _repair(self, entry: Entry) -> None:
        if self._files.repair(entry):
            self.repaired += 1
            self._told, self.next_ms = -1, 0
            log.warning("member=%s entry=%s repaired from the leader's copy", self._settings.self_id, entry.index)
        else:
            log.error("member=%s entry=%s the leader's copy does not fit here", self._settings.self_id, entry.index)
            self._go_on()

    def _go_on(self) -> None:
        """Nothing more can be done for this entry; the next pass comes to it again."""
        self._index += 1
        self._told = self._mends = -1
