"""Requests and responses between the members of a group, as objects; raft/wire/codec.py encodes them.

Names follow DLedger's. Wire facts: docs/spec/04-dledger.md section 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum, auto

from saturnmq.raft.core.configuration import Configuration
from saturnmq.raft.core.entry import Entry
from saturnmq.raft.core.ids import NO_INDEX, NO_TERM, LedgerIndex, Term


class Code(IntEnum):
    """The field `code` of every body."""

    UNKNOWN = -1
    SUCCESS = 200
    TIMEOUT = 300
    METADATA_ERROR = 301
    NETWORK_ERROR = 302
    UNSUPPORTED = 303
    UNKNOWN_GROUP = 400
    UNKNOWN_MEMBER = 401
    UNEXPECTED_MEMBER = 402
    EXPIRED_TERM = 403
    NOT_LEADER = 404
    NOT_FOLLOWER = 405
    INCONSISTENT_STATE = 406
    INCONSISTENT_TERM = 407
    INCONSISTENT_INDEX = 408
    INCONSISTENT_LEADER = 409
    INDEX_OUT_OF_RANGE = 410
    UNEXPECTED_ARGUMENT = 411
    REPEATED_REQUEST = 412
    REPEATED_PUSH = 413
    DISK_ERROR = 414
    DISK_FULL = 415
    TERM_NOT_READY = 416
    FALL_BEHIND_TOO_MUCH = 417
    TAKE_LEADERSHIP_FAILED = 418
    INDEX_LESS_THAN_LOCAL_BEGIN = 419
    REQUEST_WITH_EMPTY_BODYS = 420
    PUSH_REQUEST_IS_FULL = 421
    INTERNAL_ERROR = 500
    TERM_CHANGED = 501
    WAIT_QUORUM_ACK_TIMEOUT = 502
    LEADER_PENDING_FULL = 503
    ILLEGAL_MEMBER_STATE = 504
    LEADER_NOT_READY = 505
    LEADER_TRANSFERRING = 506


class VoteResult(Enum):
    """Answer to a vote request; encoded by name."""

    UNKNOWN = auto()
    ACCEPT = auto()
    REJECT_UNKNOWN_LEADER = auto()
    REJECT_UNEXPECTED_LEADER = auto()
    REJECT_EXPIRED_VOTE_TERM = auto()
    REJECT_ALREADY_VOTED = auto()
    REJECT_ALREADY_HAS_LEADER = auto()
    REJECT_TERM_NOT_READY = auto()
    REJECT_TERM_SMALL_THAN_LEDGER = auto()
    REJECT_EXPIRED_LEDGER_TERM = auto()
    REJECT_SMALL_LEDGER_END_INDEX = auto()
    REJECT_TAKING_LEADERSHIP = auto()


class PushKind(Enum):
    """Kind of a push; encoded by name."""

    APPEND = auto()
    COMMIT = auto()
    COMPARE = auto()
    TRUNCATE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class DLedgerMessage:
    """Fields of every body. remote_id: receiver of the request; local_id: its sender."""

    group: str | None = None
    remote_id: str | None = None
    local_id: str | None = None
    code: int = Code.SUCCESS
    leader_id: str | None = None
    term: Term = NO_TERM


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequest(DLedgerMessage):
    """Request for a vote; leader_id is the candidate. changes: index of its configuration, None if it is the initial one.

    transfer: whether the leader asked the candidate to take the leadership; None: not said, as by Java members
    and those with standard timers set.
    """

    ledger_end_index: LedgerIndex = NO_INDEX
    ledger_end_term: Term = NO_TERM
    changes: int | None = None
    transfer: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponse(DLedgerMessage):
    vote_result: VoteResult | None = VoteResult.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartBeatRequest(DLedgerMessage):
    """interval_ms: the sender's interval from now on; 0: it leads no longer; None: not announced, as by Java members.

    changes: index of the sender's configuration, -1 if it is the initial one; None: it supports no changes, as Java members.
    """

    interval_ms: int | None = None
    changes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartBeatResponse(DLedgerMessage):
    """interval_ms: the announced interval of the request, unless the member does not know that field or does not use it.

    changes: as in the request, if that has one.
    """

    interval_ms: int | None = None
    changes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRequest(DLedgerMessage):
    """entries: one or more for APPEND, one for COMPARE and TRUNCATE, none for COMMIT. batch: encoded as a list.

    members: with TRUNCATE, the configuration in use before the entry, if it is not the initial one.
    """

    kind: PushKind | None = PushKind.APPEND
    commit_index: LedgerIndex = NO_INDEX
    entries: tuple[Entry, ...] = ()
    batch: bool = False
    members: Configuration | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PushResponse(DLedgerMessage):
    """index: index of the first entry of the push, None for COMMIT."""

    index: LedgerIndex | None = None
    count: int = 0
    begin_index: LedgerIndex = NO_INDEX
    end_index: LedgerIndex = NO_INDEX


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRequest(DLedgerMessage):
    """LEADERSHIP_TRANSFER: sent to the leader (transfer_id is the leader's id), and by it to the transferee."""

    transfer_id: str | None = None
    transferee_id: str | None = None
    take_leadership_ledger_index: LedgerIndex = LedgerIndex(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferResponse(DLedgerMessage):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRequest(DLedgerMessage):
    body: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendResponse(DLedgerMessage):
    """positions: positions of all entries of a batch proposed in this process; not on the wire (DL-A03)."""

    index: LedgerIndex = NO_INDEX
    pos: int = -1
    positions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GetRequest(DLedgerMessage):
    begin_index: LedgerIndex = LedgerIndex(0)
    max_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GetResponse(DLedgerMessage):
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest(DLedgerMessage):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponse(DLedgerMessage):
    """learners: ids of members that do not vote; None: there are none."""

    peers: dict[str, str] | None = None
    learners: tuple[str, ...] | None = None


class ChangeKind(Enum):
    """A change of the group's members; encoded by name."""

    ADD_LEARNER = "ADD_LEARNER"
    PROMOTE = "PROMOTE"
    REMOVE = "REMOVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRequest(DLedgerMessage):
    """MEMBERS: a change of one member, sent to the leader. address: host:port of a new member. dry_run: only check it."""

    kind: ChangeKind | None = None
    member_id: str | None = None
    address: str | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeResponse(DLedgerMessage):
    """reason: why the change is refused. members: the configuration after the change, or the present one after a refusal."""

    reason: str | None = None
    members: Configuration | None = None


Request = (
    VoteRequest
    | HeartBeatRequest
    | PushRequest
    | TransferRequest
    | AppendRequest
    | GetRequest
    | MetadataRequest
    | ChangeRequest
)
Response = (
    VoteResponse
    | HeartBeatResponse
    | PushResponse
    | TransferResponse
    | AppendResponse
    | GetResponse
    | MetadataResponse
    | ChangeResponse
)
