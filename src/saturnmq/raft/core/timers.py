"""Chooses between standard and fast timers by what the other members are (`CoreSettings.fast`).

A leader announces in each heartbeat the interval that it keeps from then on. SaturnMQ members echo it in their answers; Java
members ignore it. A leader uses the fast timers while the last answer of every peer had the echo, however old that answer is. Its
followers take over its choice for their next election.

Members need not switch at the same time: a follower waits for a multiple of the interval in the heartbeat, and never shorter than
an earlier heartbeat of the same leader allowed; a leader's lease is extended by the length that belongs to the answered heartbeat.

Requirements: CHA-07, DL-H01, DL-H07, DL-X08.
"""

from __future__ import annotations

from typing import Final

from saturnmq.raft.core.actions import Role, TimersChanged
from saturnmq.raft.core.messages import HeartBeatResponse
from saturnmq.raft.core.state import NEVER, MemberState

ANNOUNCED_MS_MAX: Final = 2000  # a longer announced interval counts as this, unless the member's own one is longer


class Timers:
    """The timers in use: `state.settings` is `base` or, while `fast`, `base.fast`.

    has_echo: leader only, whether each peer's last answer had the echo. settles_ms: until then a leader that left the fast timers
    keeps their interval, so that a lost heartbeat does not make a follower that still waits for the next fast one a candidate.
    """

    def __init__(self, state: MemberState) -> None:
        self.state = state
        self.base = state.settings
        self.fast = False
        self.has_echo: dict[str, bool] = {}
        self.settles_ms = -NEVER
        self._fast_from_ms = -NEVER  # limits how often a peer that alternates can switch the timers

    def role_changed(self) -> None:
        """A new leader goes on with what its predecessor knew."""
        if self.state.role is Role.LEADER:
            self.has_echo = dict.fromkeys(self.state.other_members, self.fast)

    def members_changed(self) -> None:
        self.has_echo = {peer: self.has_echo.get(peer, False) for peer in self.state.other_members}

    def due_ms(self) -> int:
        return NEVER

    # the leader's side

    @property
    def interval_ms(self) -> int:
        """ms between heartbeats now."""
        if self.base.fast is not None and self.state.now_ms < self.settles_ms:
            return self.base.fast.heartbeat_interval_ms
        return self.state.settings.heartbeat_interval_ms

    @property
    def announced_ms(self) -> int | None:
        """The interval to announce; None: announce none."""
        return self.state.settings.heartbeat_interval_ms if self.base.announces_interval else None

    def answered(self, peer: str, response: HeartBeatResponse) -> bool:
        """Record a peer's answer; returns whether the timers changed."""
        if not self.base.announces_interval:
            return False
        self.has_echo[peer] = response.interval_ms is not None
        # Only voters: a learner's election timeout elects no leader.
        return self._use(all(self.has_echo[voter] for voter in self.state.other_voters))

    # the follower's side

    def patience_ms(self, announced_ms: int | None) -> int:
        """Wait for the next heartbeat after one that announced this interval.

        A leader that announces none has DLedger's timers, also if this member's own ones are fast.
        """
        base = self.base
        if not base.announces_interval:
            return base.election_timeout_ms
        longest_ms = self._longest_ms
        # A Java leader: its heartbeats come at DLedger's interval, whatever this member prefers.
        if announced_ms is None:
            self._use(False)
            return longest_ms * base.heartbeat_leak_max
        shortest = base.fast or base
        self._use(base.fast is not None and announced_ms <= base.fast.heartbeat_interval_ms)
        # Bounded on both sides: a leader that announces nonsense must not make its followers impatient or patient without end.
        return min(max(announced_ms, shortest.heartbeat_interval_ms), longest_ms) * base.heartbeat_leak_max

    def promised_ms(self, announced_ms: int) -> int:
        """Longest lease that the answer to a heartbeat with this interval extends."""
        return min(announced_ms, self._longest_ms) * self.base.heartbeat_leak_max

    @property
    def _longest_ms(self) -> int:
        """The longest interval that counts as announced."""
        return max(ANNOUNCED_MS_MAX, self.base.heartbeat_interval_ms)

    def _use(self, fast: bool) -> bool:
        state, base = self.state, self.base
        # A peer that alternates between echo and none could otherwise switch the timers with every heartbeat.
        if fast == self.fast or base.fast is None or (fast and state.now_ms < self._fast_from_ms):
            return False
        self.fast = fast
        state.settings = base.fast if fast else base
        if not fast:
            self._fast_from_ms = state.now_ms + base.election_timeout_ms
            # Followers still expect the fast interval until they have a heartbeat that announces the slow one.
            self.settles_ms = state.now_ms + base.fast.election_timeout_ms
        state.out.append(TimersChanged(fast))
        return True
