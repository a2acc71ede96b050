"""What the core asks its caller to do, in order. The caller's duties stand in raft/core/__init__.py."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from saturnmq.raft.core.entry import Entry
from saturnmq.raft.core.messages import Request, Response


class Role(Enum):
    """A member starts as CANDIDATE (DL-E01)."""

    LEADER = "LEADER"
    FOLLOWER = "FOLLOWER"
    CANDIDATE = "CANDIDATE"


@dataclass(frozen=True, slots=True)
class PersistTerm:
    """Term and vote must survive power loss before the next action is executed (DL-X01, DUR-11)."""

    term: int
    voted_for: str | None


@dataclass(frozen=True, slots=True)
class AppendEntries:
    """Write entries behind the end of the log."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class CutLog:
    """Remove every entry from index on; the log then ends at byte end_pos.

    restart: the log becomes empty, and its next entry lies at end_pos with this index (spec 04 section 3.5).
    """

    index: int
    end_pos: int
    restart: bool = False


@dataclass(frozen=True, slots=True)
class SyncLog:
    """Bring the log to disk. Report `synced(now, epoch, end_index)` of the last request that the sync covers."""

    epoch: int
    end_index: int


@dataclass(frozen=True, slots=True)
class Send:
    """Ask a member. Answer with `response(now, call, answer or None)`, at the latest after timeout_ms."""

    call: int
    peer: str
    request: Request
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the request, or the proposal, that came with this token."""

    token: int
    response: Response


@dataclass(frozen=True, slots=True)
class Commit:
    """Entries up to index are committed; end_pos is the byte behind them (DL-Q02)."""

    index: int
    end_pos: int


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """Fired at every change, also when a candidate becomes candidate again (DL-E20..22)."""

    role: Role
    term: int
    leader_id: str | None


@dataclass(frozen=True, slots=True)
class Alarm:
    """A fact that an operator should see."""

    text: str


Action = PersistTerm | AppendEntries | CutLog | SyncLog | Send | Reply | Commit | RoleChanged | Alarm
