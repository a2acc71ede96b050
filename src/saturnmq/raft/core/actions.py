"""The outputs of the core: actions that the caller executes in order. The caller's duties are in raft/core/__init__.py."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from saturnmq.raft.core.configuration import Configuration, ConfigurationGeneration
from saturnmq.raft.core.entry import Entry
from saturnmq.raft.core.ids import LedgerIndex, Term
from saturnmq.raft.core.messages import Request, Response


class Role(Enum):
    """A member starts as CANDIDATE (DL-E01)."""

    LEADER = "LEADER"
    FOLLOWER = "FOLLOWER"
    CANDIDATE = "CANDIDATE"


@dataclass(frozen=True, slots=True)
class PersistTerm:
    """Make term and vote durable (they survive power loss) before the next action is executed (DL-X01, DUR-11)."""

    term: Term
    voted_for: str | None


@dataclass(frozen=True, slots=True)
class PersistMembers:
    """Make the configurations durable before the next action is executed; they replace those stored before."""

    generations: tuple[ConfigurationGeneration, ...]


@dataclass(frozen=True, slots=True)
class AppendEntries:
    """Append entries to the log."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class CutLog:
    """Remove every entry from index on; the log then ends at byte end_pos.

    restart: the log becomes empty, and its next entry has this index and lies at end_pos (docs/spec/04-dledger.md section 3.5).
    """

    index: LedgerIndex
    end_pos: int
    restart: bool = False


@dataclass(frozen=True, slots=True)
class SyncLog:
    """Fsync the log. When done, call `Node.synced` with epoch and end_index of the last SyncLog that the fsync covers."""

    epoch: int
    end_index: LedgerIndex


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request to a member; call `Node.response` with the response, or with None after timeout_ms at the latest."""

    call: int
    peer: str
    request: Request
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the request or proposal that was passed in with this token."""

    token: int
    response: Response


@dataclass(frozen=True, slots=True)
class Commit:
    """Entries up to index are committed; end_pos is the byte after the last of them (DL-Q02)."""

    index: LedgerIndex
    end_pos: int


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """The role was set; also emitted when a candidate becomes candidate again (DL-E20..DL-E22)."""

    role: Role
    term: Term
    leader_id: str | None


@dataclass(frozen=True, slots=True)
class TimersChanged:
    """The fast timers are in use from now on, or the standard ones."""

    fast: bool


@dataclass(frozen=True, slots=True)
class MembersChanged:
    """This configuration is in use from now on, or committed now.

    former: addresses of other members that are still needed: of the configuration before, until this one is committed, and of
    removed ones that the leader informs.
    """

    configuration: Configuration
    former: dict[str, str]


@dataclass(frozen=True, slots=True)
class RaiseAlarm:
    """An event that an operator should see; the caller logs it."""

    text: str


Action = (
    PersistTerm
    | PersistMembers
    | AppendEntries
    | CutLog
    | SyncLog
    | Send
    | Reply
    | Commit
    | RoleChanged
    | TimersChanged
    | MembersChanged
    | RaiseAlarm
)
