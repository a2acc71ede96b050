"""Operations on a DLedger group: status, leadership transfer, verification and comparison of the ledgers of stopped members.

Requirements: DL-M09, DL-L01, DL-Q06.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from saturnmq.admin.connection import AdminConnection, ask_each
from saturnmq.admin.credentials import AdminAccess
from saturnmq.admin.listings import runtime_integer, runtime_values
from saturnmq.protocol.errors import ConfigError, ResponseError, SaturnError
from saturnmq.raft.core.messages import ChangeKind, ChangeResponse, Code
from saturnmq.raft.ledger import check
from saturnmq.raft.settings import parse_peers
from saturnmq.raft.tool import GroupTool

REQUEST_TIMEOUT_MS: Final = 3000
WATERMARK: Final = "dledgerWatermark_"
_FIELDS: Final = {
    "role": "dledgerRole",
    "serving": "dledgerServing",
    "term": "dledgerTerm",
    "leader": "dledgerLeaderId",
    "begin": "dledgerBeginIndex",
    "end": "dledgerEndIndex",
    "committed": "dledgerCommittedIndex",
    "peers": "dledgerPeers",
    "learners": "dledgerLearners",
    "votes": "dledgerVotes",
    "recovering": "dledgerRecovering",
    "failed": "dledgerFailed",
}


_NUMBERS: Final = ("term", "begin", "end", "committed")
_FLAGS: Final = ("serving", "votes", "recovering")


@dataclass(frozen=True)
class GroupStatus:
    """One row per broker of a group, as registered at a NameServer: address, state, and the watermarks that the leader reports."""

    rows: list[dict[str, Any]]

    @property
    def healthy(self) -> bool:
        """Whether one broker leads and every broker answers and reports no failure."""
        leaders = {row["broker"] for row in self.rows if row["role"] == "LEADER"}
        return len(leaders) == 1 and all(row["role"] is not None and not row["failed"] for row in self.rows)


async def group_status(name_servers: str, group: str, access: AdminAccess | None = None) -> GroupStatus:
    """Request the runtime information (code 28) of each broker of a group. Raises ConfigError, NoNameServer."""
    connection = AdminConnection(name_servers, access=access, timeout_ms=REQUEST_TIMEOUT_MS)
    try:
        brokers_by_name = (await connection.cluster()).broker_addr_table
        if group not in brokers_by_name:
            names = ", ".join(sorted(brokers_by_name)) or "none"
            raise ConfigError(
                f"-g {group}: no broker of that name at NameServer {name_servers}; registered are: {names}"
            )
        if not brokers_by_name[group].broker_addrs:
            raise ConfigError(f"-g {group}: NameServer {name_servers} has no address of a member")
        addresses = [broker for _, broker in sorted(brokers_by_name[group].broker_addrs.items())]
        runtimes = await ask_each(addresses, partial(runtime_values, connection), seconds=REQUEST_TIMEOUT_MS / 1000)
        return GroupStatus([_row(address, runtime) for address, runtime in runtimes.items()])
    finally:
        await connection.close()


def _row(address: str, runtime: Mapping[str, str] | SaturnError) -> dict[str, Any]:
    row: dict[str, Any] = {"broker": address, **dict.fromkeys(_FIELDS), "watermarks": {}}
    if isinstance(runtime, ResponseError):
        return row | {"failed": f"refused: {runtime.message or runtime.code}"}
    if isinstance(runtime, SaturnError):
        return row | {"failed": f"no response: {runtime.message}"}
    if _FIELDS["role"] not in runtime:
        return row | {"failed": "reports no group: not a member of one, or an Apache broker"}
    row |= {name: runtime.get(key, "") for name, key in _FIELDS.items()}
    row |= {name: runtime_integer(runtime, _FIELDS[name], -1) for name in _NUMBERS}
    row |= {name: row[name] == "true" for name in _FLAGS}
    marks = sorted(name for name in runtime if name.startswith(WATERMARK))
    return row | {"watermarks": {name.removeprefix(WATERMARK): runtime_integer(runtime, name, -1) for name in marks}}


async def transfer_leadership(group: str, peers: str, to: str, access: AdminAccess | None = None) -> Code:
    """Ask the leader of a group to hand over to a member; return its response code. Raises ConfigError, SaturnError.

    A group with `dledger.requireClusterSecret=true` needs `access.cluster_secret`.
    """
    try:
        members = parse_peers(peers)
    except ValueError as error:
        raise ConfigError(f"--peers: {error}") from error
    if to not in members:
        raise ConfigError(f"--to {to} is not a member; the peers are {', '.join(members)}")
    access = access or AdminAccess()
    tool = GroupTool(group, members, tls=access.tls_settings, secret=access.cluster_secret)
    try:
        return await tool.transfer(to)
    finally:
        await tool.close()


async def change_members(
    kind: ChangeKind, group: str, peers: str, member: str, access: AdminAccess | None = None, *, dry_run: bool = False
) -> ChangeResponse:
    """Ask the leader of a group to add, promote or remove a member; return its response. Raises ConfigError, SaturnError.

    member: `id-host:port` of a new member, else its id. A group with `dledger.requireClusterSecret=true` needs
    `access.cluster_secret`.
    """
    try:
        members = parse_peers(peers)
    except ValueError as error:
        raise ConfigError(f"--peers: {error}") from error
    name, address = member, None
    if kind is ChangeKind.ADD_LEARNER:
        try:
            ((name, address),) = parse_peers(member).items()
        except ValueError as error:
            raise ConfigError(f"--member {member}: a new member is named as id-host:port") from error
    access = access or AdminAccess()
    tool = GroupTool(group, members, tls=access.tls_settings, secret=access.cluster_secret)
    try:
        return await tool.change(kind, name, address, dry_run=dry_run)
    finally:
        await tool.close()


def verify_ledgers(folders: Sequence[Path]) -> list[check.LedgerReport]:
    """Read each ledger completely; one report per folder. Raises ConfigError."""
    _require_ledgers(folders)
    return [check.verify(folder) for folder in folders]


def compare_ledgers(folders: Sequence[Path]) -> check.Difference | None:
    """The first difference between ledgers, or None. Raises ConfigError."""
    if len(folders) < 2:
        raise ConfigError(f"a comparison needs at least 2 folders, {len(folders)} is given")
    _require_ledgers(folders)
    return check.compare(list(folders))


def _require_ledgers(folders: Sequence[Path]) -> None:
    for folder in folders:
        if not (folder / "data").is_dir():
            raise ConfigError(
                f"{folder} is not a ledger: it has no folder data; name the dledger-ID of a member's store"
            )
