"""Settings of a member of a DLedger group, with the keys of Apache RocketMQ's broker.conf.

Timers and limits that RocketMQ 4.9.7 does not expose are keys `dledger.*` with DLedger's defaults. The fast profile shortens the
timers that determine the fail-over time: a new leader within 3 s instead of 10 s. AUTO uses it where every member supports it.

Requirements: DL-M02..DL-M04, CHA-07, SEC-18. Keys: docs/spec/04-dledger.md section 2.13.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from saturnmq.acl.addresses import parse_list
from saturnmq.config.settings import key
from saturnmq.protocol.addresses import host_of
from saturnmq.protocol.errors import ConfigError
from saturnmq.raft.cluster_secret import SECRET_BYTES_MIN
from saturnmq.raft.ledger import INDEX_FILE_UNITS
from saturnmq.store.settings import PATH_SPLITTER, split_folders

if TYPE_CHECKING:
    from saturnmq.raft.core.settings import CoreSettings

_SELF_ID: Final = re.compile(r"[a-zA-Z]\d+")


class RaftProfile(Enum):
    """STANDARD: DLedger's timers. FAST: heartbeats every 500 ms, vote intervals of 150 to 500 ms. AUTO: see raft/core/timers.py."""

    AUTO = "auto"
    STANDARD = "standard"
    FAST = "fast"


_TIMERS: Final = (
    "heartbeat_interval_ms",
    "vote_interval_min_ms",
    "vote_interval_max_ms",
    "commit_idle_ms",
    "vote_wait_ms",
)
_PROFILES: Final = {  # values of _TIMERS, where the file does not set the key (0 in the fields below)
    RaftProfile.STANDARD: dict(zip(_TIMERS, (2000, 300, 1000, 1000, 2000), strict=True)),
    RaftProfile.FAST: dict(zip(_TIMERS, (500, 150, 500, 50, 500), strict=True)),
}


def parse_peers(text: str) -> dict[str, str]:
    """Parse `n0-127.0.0.1:40911;n1-...` into member id -> host:port; the host may contain `-` (DL-M02). Raises ValueError."""
    peers: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        # Only at the first dash: host names have dashes.
        name, dash, address = part.partition("-")
        host, colon, port = address.partition(":")
        if not name or not dash or not host or not colon or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"{part!r} must be id-host:port, for instance n0-127.0.0.1:40911")
        if name in peers:
            raise ValueError(f"id {name!r} is listed twice")
        # Two members at one address would vote twice from one process.
        if address in peers.values():
            raise ValueError(f"address {address} is listed twice")
        peers[name] = address
    if not peers:
        raise ValueError("no members are listed")
    return peers


def broker_id(self_id: str) -> int:
    """Broker id of a member that is not the leader: the number in its member id plus 1 (DL-M03, DL-C04)."""
    # 0 is the id of the leader's broker.
    return int(self_id[1:]) + 1


@dataclass(frozen=True, slots=True)
class RaftSettings:
    """Settings of one member of one group."""

    enabled: bool = key("enableDLegerCommitLog", False, spec="DL-B01")
    group: str = key("dLegerGroup", "", spec="DL-M04")
    peers_text: str = key("dLegerPeers", "", spec="DL-M02")
    self_id: str = key("dLegerSelfId", "", spec="DL-M03")
    learner: bool = key("dledger.learner", False, spec="DL-X21")
    preferred_leader_id: str = key("preferredLeaderId", "", spec="DL-L09")
    batch_push: bool = key("enableBatchPush", False, spec="DL-P15")
    batch_push_java: bool = key("isEnableBatchPush", False, spec="DL-P15")
    batch_push_auto: bool = key("dledger.autoBatchPush", True, spec="DL-X14")
    batch_push_auto_bytes: int = key(
        "dledger.autoBatchPushSize", 131_072, unit="bytes", low=1, high=4_194_304, spec="DL-X14"
    )
    data_folders_text: str = key("storePathDLedgerCommitLog", "", spec="DL-S13")
    read_only_text: str = key("readOnlyCommitLogStorePaths", "", spec="DL-S13")
    path_splitter: str = key(PATH_SPLITTER, ",", spec="ST-20")
    bind_address: str = key("dledger.bindAddress", "", spec="DL-X17")
    allowed_text: str = key("dledger.allowedAddresses", "", spec="SEC-18")
    cluster_secret: str = key("dledger.clusterSecret", "", spec="SEC-18", secret=True)
    require_secret: bool = key("dledger.requireClusterSecret", False, spec="SEC-18")
    profile: RaftProfile = key("dledger.profile", RaftProfile.AUTO, spec="CHA-07")
    heartbeat_interval_ms: int = key("dledger.heartBeatTimeIntervalMs", 0, unit="ms", low=0, spec="DL-H01")
    heartbeat_leak_max: int = key("dledger.maxHeartBeatLeak", 3, low=2, spec="DL-H03")
    vote_interval_min_ms: int = key("dledger.minVoteIntervalMs", 0, unit="ms", low=0, spec="DL-E07")
    vote_interval_max_ms: int = key("dledger.maxVoteIntervalMs", 0, unit="ms", low=0, spec="DL-E07")
    vote_wait_ms: int = key("dledger.voteWaitMs", 0, unit="ms", low=0, spec="DL-E10")
    take_vote_interval_min_ms: int = key("dledger.minTakeLeadershipVoteIntervalMs", 30, unit="ms", low=1, spec="DL-E07")
    take_vote_interval_max_ms: int = key(
        "dledger.maxTakeLeadershipVoteIntervalMs", 100, unit="ms", low=2, spec="DL-E07"
    )
    lease_ms: int = key("dledger.leaderLeaseMs", 0, unit="ms", low=0, spec="DL-X08")
    rpc_timeout_ms: int = key("dledger.rpcTimeoutMs", 3000, unit="ms", low=1, spec="DL-M08")
    append_wait_ms: int = key("dledger.maxWaitAckTimeMs", 2500, unit="ms", low=1, spec="DL-A07")
    pending_requests_max: int = key("dledger.maxPendingRequestsNum", 10_000, low=1, spec="DL-A01")
    push_timeout_ms: int = key("dledger.maxPushTimeOutMs", 1000, unit="ms", low=1, spec="DL-P10")
    commit_idle_ms: int = key("dledger.commitIdleMs", 0, unit="ms", low=0, spec="DL-P08")
    batch_push_bytes: int = key("dledger.maxBatchPushSize", 4096, unit="bytes", low=1, high=4_194_304, spec="DL-P15")
    push_throttle_bytes: int = key("dledger.peerPushThrottlePoint", 314_572_800, unit="bytes", low=0, spec="DL-P14")
    push_quota_bytes: int = key("dledger.peerPushQuota", 20_971_520, unit="bytes", low=1, spec="DL-P14")
    transfer_lag_max: int = key("dledger.maxLeadershipTransferWaitIndex", 1000, low=1, spec="DL-L01")
    transfer_wait_ms: int = key("dledger.leadershipTransferWaitTimeout", 1000, unit="ms", low=1, spec="DL-L04")
    checkpoint_interval_ms: int = key("dledger.checkPointInterval", 3000, unit="ms", low=1, spec="DL-Q07")
    flush_interval_ms: int = key("dledger.flushFileInterval", 10, unit="ms", low=1, spec="DL-S04")
    index_file_units: int = key("dledger.indexFileUnits", INDEX_FILE_UNITS, low=16, spec="DL-S01")
    scrub_days: int = key("dledger.scrubDays", 7, unit="days", low=0, spec="DUR-08")
    force_vote_damaged: bool = key("dledger.forceVoteDamaged", False, spec="DUR-10")
    force_without_term: bool = key("dledger.forceStartWithoutTerm", False, spec="DL-X01")

    @property
    def peers(self) -> dict[str, str]:
        """Member id -> host:port. Raises ValueError."""
        return parse_peers(self.peers_text)

    @property
    def preferred_leaders(self) -> tuple[str, ...]:
        return tuple(filter(None, (name.strip() for name in self.preferred_leader_id.split(";"))))

    @property
    def hosts(self) -> dict[str, str]:
        """Member id -> host."""
        return {name: host_of(address) for name, address in self.peers.items()}

    @property
    def data_folders(self) -> tuple[Path, ...]:
        """Folders of the data files, read-only ones included; empty: the member's own folder."""
        folders = split_folders(self.data_folders_text, self.path_splitter)
        return tuple(dict.fromkeys([*folders, *self._read_only]))

    @property
    def read_only_folders(self) -> frozenset[Path]:
        """The data folders in which no new files are created."""
        return frozenset(self._read_only)

    @property
    def _read_only(self) -> tuple[Path, ...]:
        return split_folders(self.read_only_text, self.path_splitter)

    @property
    def listen_address(self) -> tuple[str, int]:
        """Host and port to listen on: the port of this member in the peers, on bindAddress or the host named there."""
        host, _, port = self.peers[self.self_id].partition(":")
        return self.bind_address or host, int(port)

    def folder(self, root: Path) -> Path:
        """The member's directory below the store's root: `dledger-<id>`, as in DLedger."""
        return root / f"dledger-{self.self_id}"

    def validate(self) -> list[str]:
        """Return the problems, one sentence each; empty if the settings are valid or DLedger is off."""
        if not self.enabled:
            return []
        problems = []
        if not self.group:
            problems.append("dLegerGroup is missing; the broker name is a good one")
        try:
            peers = self.peers
        except ValueError as error:
            return [*problems, f"dLegerPeers={self.peers_text!r}: {error}"]
        if self.self_id not in peers:
            problems.append(f"dLegerSelfId={self.self_id!r} is not among the ids of dLegerPeers: {', '.join(peers)}")
        elif not _SELF_ID.fullmatch(self.self_id):
            problems.append(f"dLegerSelfId={self.self_id!r} must be one letter and digits, such as n0 (DL-M03)")
        if self.learner and len(peers) == 1:
            problems.append("dledger.learner=true needs the other members of the group in dLegerPeers")
        problems += [
            f"preferredLeaderId: {name!r} is not among the ids of dLegerPeers"
            for name in self.preferred_leaders
            if name not in peers
        ]
        try:
            parse_list(self.allowed_text)
        except ConfigError as error:
            problems += [f"dledger.allowedAddresses={self.allowed_text}: {problem}" for problem in error.problems]
        # New files need a folder.
        if self.read_only_text and not set(self.data_folders) - self.read_only_folders:
            problems.append(
                f"readOnlyCommitLogStorePaths={self.read_only_text}: storePathDLedgerCommitLog names no folder for new files"
            )
        if self.require_secret and not self.cluster_secret:
            problems.append("dledger.requireClusterSecret=true needs dledger.clusterSecret")
        if 0 < len(self.cluster_secret.encode()) < SECRET_BYTES_MIN:
            problems.append(f"dledger.clusterSecret must have at least {SECRET_BYTES_MIN} bytes")
        return problems + self.core(1_073_741_824, sync_before_ack=True).validate()

    def core(self, file_bytes: int, *, sync_before_ack: bool) -> CoreSettings:
        """The settings of the core. file_bytes: mappedFileSizeCommitLog; sync_before_ack: flushDiskType is SYNC_FLUSH.

        With AUTO, `fast` is None if the timers set in the file do not fit the fast ones.
        """
        if self.profile is not RaftProfile.AUTO:
            return self._of(self.profile, file_bytes, sync_before_ack)
        fast = self._of(RaftProfile.FAST, file_bytes, sync_before_ack)
        standard = self._of(RaftProfile.STANDARD, file_bytes, sync_before_ack)
        # The timers set in the file may contradict the fast ones (lease and election timeout).
        return replace(standard, announces_interval=True, fast=None if fast.validate() else fast)

    @property
    def auto_is_standard(self) -> bool:
        """Whether the profile is AUTO, but timers set in the file do not fit the fast ones."""
        return self.profile is RaftProfile.AUTO and self.core(1, sync_before_ack=True).fast is None

    def _of(self, profile: RaftProfile, file_bytes: int, sync_before_ack: bool) -> CoreSettings:
        from saturnmq.raft.core.settings import CoreSettings  # a broker without DLedger needs none

        shared = {each.name: getattr(self, each.name) for each in fields(CoreSettings) if hasattr(self, each.name)}
        # 0 in the file means: by the profile.
        timers = {name: shared[name] or default for name, default in _PROFILES[profile].items()}
        return CoreSettings(
            **shared | timers | {"batch_push": self.batch_push or self.batch_push_java},
            sync_before_ack=sync_before_ack,
            file_bytes=file_bytes,
            announces_interval=profile is not RaftProfile.STANDARD,
        )
