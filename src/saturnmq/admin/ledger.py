"""Operations on a DLedger group: status, leadership transfer, verification and comparison of the ledgers of stopped members.

Requirements: DL-M09, DL-L01, DL-Q06.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from saturnmq.admin.credentials import AdminAccess
from saturnmq.client.connection.url import parse_addresses
from saturnmq.net import RemotingClient
from saturnmq.protocol.bodies import ClusterInfo, KVTable
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import ConfigError, SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.raft.core.messages import Code
from saturnmq.raft.ledger import check
from saturnmq.raft.settings import parse_peers
from saturnmq.raft.tool import GroupTool

REQUEST_TIMEOUT_MS: Final = 3000
_WATERMARK: Final = "dledgerWatermark_"
_FIELDS: Final = {
    "role": "dledgerRole",
    "serving": "dledgerServing",
    "term": "dledgerTerm",
    "leader": "dledgerLeaderId",
    "begin": "dledgerBeginIndex",
    "end": "dledgerEndIndex",
    "committed": "dledgerCommittedIndex",
    "failed": "dledgerFailed",
}


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
    """Request the runtime information (code 28) of each broker of a group. Raises ConfigError, ConnectionError."""
    client = (access or AdminAccess()).client()
    try:
        addresses = await _brokers(client, name_servers, group)
        return GroupStatus(await asyncio.gather(*(_broker_status(client, address) for address in addresses)))
    finally:
        await client.close()


async def _brokers(client: RemotingClient, name_servers: str, group: str) -> list[str]:
    problems = []
    for address in parse_addresses(name_servers):
        try:
            answer = await client.invoke(address, Command(RequestCode.GET_BROKER_CLUSTER_INFO), REQUEST_TIMEOUT_MS)
        except SaturnError as error:
            problems.append(error.message)
            continue
        if answer.code != ResponseCode.SUCCESS:
            problems.append(f"{address} refused: {answer.remark or answer.code}")
            continue
        known = ClusterInfo.decode(answer.body or b"{}").broker_addr_table
        if group not in known:
            names = ", ".join(sorted(known)) or "none"
            raise ConfigError(f"-g {group}: no broker of that name at NameServer {address}; registered are: {names}")
        if not known[group].broker_addrs:
            raise ConfigError(f"-g {group}: NameServer {address} has no address of a member")
        return [broker for _, broker in sorted(known[group].broker_addrs.items())]
    raise ConnectionError("; ".join(problems) or f"-n {name_servers!r} names no NameServer")


async def _broker_status(client: RemotingClient, address: str) -> dict[str, Any]:
    row: dict[str, Any] = {"broker": address, **dict.fromkeys(_FIELDS), "watermarks": ""}
    try:
        answer = await client.invoke(address, Command(RequestCode.GET_BROKER_RUNTIME_INFO), REQUEST_TIMEOUT_MS)
    except SaturnError as error:
        return row | {"failed": f"no response: {error.message}"}
    if answer.code != ResponseCode.SUCCESS:
        return row | {"failed": f"refused: {answer.remark or answer.code}"}
    table = KVTable.decode(answer.body or b"{}").table
    if _FIELDS["role"] not in table:
        return row | {"failed": "reports no group: not a member of one, or an Apache broker"}
    marks = {name.removeprefix(_WATERMARK): mark for name, mark in table.items() if name.startswith(_WATERMARK)}
    watermarks = " ".join(f"{name}={mark}" for name, mark in sorted(marks.items()))
    return row | {name: table.get(key, "") for name, key in _FIELDS.items()} | {"watermarks": watermarks}


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
    tool = GroupTool(group, members, tls=access.tls, secret=access.cluster_secret)
    try:
        return await tool.transfer(to)
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
