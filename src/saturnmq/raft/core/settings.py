"""Timers and limits of the core, with DLedger's defaults (docs/spec/04-dledger.md sections 2.1 to 2.7 and 2.13)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """All times in ms. raft/settings.py reads them from a file; `Node.settings` may be replaced at run time (DL-E02)."""

    elector_enabled: bool = True  # enableLeaderElector
    heartbeat_interval_ms: int = 2000  # between the leader's heartbeats (DL-H01)
    heartbeat_leak_max: int = 3  # intervals without a heartbeat until a follower becomes candidate (DL-H07)
    lease_ms: int = 0  # a leader without a quorum for this long steps down (DL-X08); 0: 2.5 heartbeat intervals
    vote_interval_min_ms: int = 300  # random wait before the next round of votes, minimum and maximum (DL-E07)
    vote_interval_max_ms: int = 1000
    take_vote_interval_min_ms: int = 30  # the same while taking leadership in a transfer
    take_vote_interval_max_ms: int = 100
    vote_wait_ms: int = 2000  # longest wait for the answers of a round of votes (DL-E10)
    rpc_timeout_ms: int = 3000  # timeout of calls between members (DL-M08)
    append_wait_ms: int = 2500  # maxWaitAckTimeMs: an append not committed by then fails (DL-A07)
    pending_requests_max: int = 10_000  # uncommitted entries above which appends are refused (DL-A01)
    push_pending_max: int = 1000  # unanswered pushes per peer (DL-P07)
    push_timeout_ms: int = 1000  # maxPushTimeOutMs: re-push (DL-P10) and gap (DL-F10)
    commit_idle_ms: int = 1000  # how often an idle follower receives the committed index (DL-P08)
    push_error_pause_ms: int = 500  # pause before COMPARE after an error (DL-P01)
    push_requests_max: int = 1024  # appends that may wait on a follower (DL-F02)
    batch_push: bool = False  # enableBatchPush
    batch_push_bytes: int = 4096  # maxBatchPushSize (DL-P15)
    batch_push_auto: bool = False  # push batches to every peer known to support them (DL-X14)
    batch_push_auto_bytes: int = 131_072  # size of those batches
    push_throttle_bytes: int = 314_572_800  # peerPushThrottlePoint (DL-P14)
    push_throttle_entries: int = 1000
    push_quota_bytes: int = 20_971_520  # peerPushQuota, per second
    transfer_lag_max: int = 1000  # maxLeadershipTransferWaitIndex (DL-L01)
    transfer_wait_ms: int = 1000  # leadershipTransferWaitTimeout (DL-L04)
    preferred_check_ms: int = 1000  # between checks for a preferred leader (DL-L09)
    preferred_leaders: tuple[str, ...] = ()
    sync_before_ack: bool = True  # SYNC_FLUSH: an entry counts towards the quorum once it is synced (DL-X02)
    file_bytes: int = 1_073_741_824  # equal on all members (DL-S03)
    learner_lag_max: int = 1000  # a learner that is more entries behind is not made a voter
    announces_interval: bool = False  # heartbeats announce their interval, see raft/core/timers.py
    fast: CoreSettings | None = None  # used instead while all members announce or echo it; None: never

    @property
    def election_timeout_ms(self) -> int:
        """A follower that receives no heartbeat for longer becomes candidate."""
        return self.heartbeat_interval_ms * self.heartbeat_leak_max

    @property
    def gap_wait_ms(self) -> int:
        """Time that a follower keeps an append whose predecessors are missing (DL-F10).

        Less than the RPC timeout: the leader must still be waiting for the refusal.
        """
        return min(self.push_timeout_ms, self.rpc_timeout_ms // 2)

    @property
    def lease_timeout_ms(self) -> int:
        """A leader that no quorum answered for longer steps down; shorter than the election timeout (DL-X08)."""
        return self.lease_ms or self.heartbeat_interval_ms * 5 // 2

    def validate(self) -> list[str]:
        """Return the problems, one sentence each; empty if the settings are valid."""
        problems = []
        if not 0 < self.vote_interval_min_ms < self.vote_interval_max_ms:
            problems.append("vote interval: 0 < minimum < maximum must hold")
        if not 0 < self.take_vote_interval_min_ms < self.take_vote_interval_max_ms:
            problems.append("vote interval while taking leadership: 0 < minimum < maximum must hold")
        if self.heartbeat_interval_ms < 1 or self.heartbeat_leak_max < 2:
            problems.append("heartbeat interval must be at least 1 ms, and at least 2 of them may be missed")
        if self.lease_timeout_ms >= self.election_timeout_ms:
            problems.append(
                f"lease of {self.lease_timeout_ms} ms must be shorter than the election timeout of "
                f"{self.election_timeout_ms} ms"
            )
        return problems
