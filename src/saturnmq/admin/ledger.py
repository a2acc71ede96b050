"""The DLedger commands of `saturnmq admin`: group status, leadership transfer, verification and comparison of ledgers.

stdout carries results, stderr everything else. Exit codes as for all commands; 3: the check found a problem.

Requirements: DL-M09, DL-L01, DL-Q06, CLI-01..CLI-08.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from saturnmq.protocol.errors import ConfigError, SaturnError

if TYPE_CHECKING:  # the raft and net packages are imported only on use (CLI-01)
    from saturnmq.net import RemotingClient

EXIT_DONE: Final = 0
EXIT_FAILED: Final = 1
EXIT_PROBLEMS: Final = 3
ASK_TIMEOUT_MS: Final = 3000
_PIPE_COLUMNS: Final = 200
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


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the commands and their options."""
    every = argparse.ArgumentParser(add_help=False)
    for name, text in (("json", "one JSON document on stdout"), ("quiet", "no progress"), ("debug", "show tracebacks")):
        every.add_argument(f"--{name}", action="store_true", default=argparse.SUPPRESS, help=text)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(name: str, text: str, example: str) -> argparse.ArgumentParser:
        return actions.add_parser(
            name, help=text, description=text[0].upper() + text[1:] + ".", epilog=f"example: {example}", parents=[every]
        )

    status = action(
        "ledgerStatus",
        "role, term, log and watermarks of each broker of a DLedger group",
        "saturnmq admin ledgerStatus -n 127.0.0.1:9876 -g RaftNode00",
    )
    status.add_argument(
        "-n", "--name-servers", required=True, metavar="HOST:PORT;...", help="NameServers that know the group"
    )
    status.add_argument("-g", "--group", required=True, metavar="NAME", help="brokerName of the group")
    transfer = action(
        "ledgerTransfer",
        "hand the leadership of a DLedger group to a member",
        "saturnmq admin ledgerTransfer -g RaftNode00 -p 'n0-127.0.0.1:40911;n1-127.0.0.1:40912' -t n1",
    )
    transfer.add_argument("-g", "--group", required=True, metavar="NAME", help="dLegerGroup")
    transfer.add_argument("-p", "--peers", required=True, metavar="ID-HOST:PORT;...", help="dLegerPeers")
    transfer.add_argument("-t", "--to", required=True, metavar="ID", help="the member that is to lead")
    verify = action(
        "ledgerVerify",
        "read ledgers of stopped members whole and say what is wrong; changes nothing",
        "saturnmq admin ledgerVerify ./store/dledger-n0",
    )
    verify.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="dledger-ID in a member's store")
    compare = action(
        "ledgerCompare",
        "name the first entry at which ledgers of stopped members differ",
        "saturnmq admin ledgerCompare ./n0/dledger-n0 ./n1/dledger-n1",
    )
    compare.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="dledger-ID in a member's store")


def run(args: argparse.Namespace) -> int:
    """Run one command. Raises ConfigError, SaturnError, ConnectionError."""
    return {"ledgerStatus": _status, "ledgerTransfer": _transfer, "ledgerVerify": _verify, "ledgerCompare": _compare}[
        args.action
    ](args)


# ---- output


def _write(text: str) -> None:
    sys.stdout.write(text + "\n")


def _emit(args: argparse.Namespace, rows: list[dict[str, Any]], **more: Any) -> None:
    """Print one JSON document on stdout (CLI-02)."""
    _write(json.dumps({"schema": 1, "command": f"admin {args.action}", "rows": rows, **more}, default=str))


def _show(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*rows[0], box=None)
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row.values()))
    console = Console(file=sys.stdout)
    (console if console.is_terminal else Console(file=sys.stdout, width=_PIPE_COLUMNS)).print(table)


# ---- running groups


def _status(args: argparse.Namespace) -> int:
    import asyncio

    rows = asyncio.run(_ask_group(args.name_servers, args.group))
    leaders = {row["broker"] for row in rows if row["role"] == "LEADER"}
    well = len(leaders) == 1 and all(row["role"] is not None and not row["failed"] for row in rows)
    if args.json:
        _emit(args, rows, well=well)
    else:
        _show(rows)
    return EXIT_DONE if well else EXIT_PROBLEMS


async def _ask_group(name_servers: str, group: str) -> list[dict[str, Any]]:
    """One row per broker: address, runtime info (request 28), and the member watermarks that the leader reports."""
    import asyncio

    from saturnmq.net import NetSettings, RemotingClient

    client = RemotingClient(settings=NetSettings())
    try:
        addresses = await _brokers(client, name_servers, group)
        return await asyncio.gather(*(_ask_broker(client, address) for address in addresses))
    finally:
        await client.close()


async def _brokers(client: RemotingClient, name_servers: str, group: str) -> list[str]:
    from saturnmq.protocol.bodies import ClusterInfo
    from saturnmq.protocol.codes import RequestCode
    from saturnmq.protocol.frames.command import Command

    problems = []
    for address in filter(None, name_servers.replace(",", ";").split(";")):
        try:
            answer = await client.invoke(address, Command(RequestCode.GET_BROKER_CLUSTER_INFO), ASK_TIMEOUT_MS)
        except SaturnError as error:
            problems.append(error.message)
            continue
        known = ClusterInfo.decode(answer.body or b"{}").broker_addr_table
        if group not in known:
            names = ", ".join(sorted(known)) or "none"
            raise ConfigError(f"-g {group}: NameServer {address} knows no broker of that name; it knows {names}")
        return [broker for _, broker in sorted(known[group].broker_addrs.items())]
    raise ConnectionError("; ".join(problems) or f"-n {name_servers!r} names no NameServer")


async def _ask_broker(client: RemotingClient, address: str) -> dict[str, Any]:
    from saturnmq.protocol.bodies import KVTable
    from saturnmq.protocol.codes import RequestCode
    from saturnmq.protocol.frames.command import Command

    row: dict[str, Any] = {"broker": address, **dict.fromkeys(_FIELDS), "watermarks": ""}
    try:
        answer = await client.invoke(address, Command(RequestCode.GET_BROKER_RUNTIME_INFO), ASK_TIMEOUT_MS)
    except SaturnError as error:
        return row | {"failed": f"no answer: {error.message}"}
    table = KVTable.decode(answer.body or b"{}").table
    if _FIELDS["role"] not in table:
        return row | {"failed": "it tells nothing of a group: it is no member of one, or a broker of the original"}
    marks = {name.removeprefix(_WATERMARK): mark for name, mark in table.items() if name.startswith(_WATERMARK)}
    told = " ".join(f"{name}={mark}" for name, mark in sorted(marks.items()))
    return row | {name: table.get(key, "") for name, key in _FIELDS.items()} | {"watermarks": told}


def _transfer(args: argparse.Namespace) -> int:
    import asyncio

    from saturnmq.raft.core.messages import Code
    from saturnmq.raft.settings import parse_peers
    from saturnmq.raft.tool import GroupTool

    try:
        peers = parse_peers(args.peers)
    except ValueError as error:
        raise ConfigError(f"--peers: {error}") from error
    if args.to not in peers:
        raise ConfigError(f"--to {args.to} is no member; the peers are {', '.join(peers)}")

    async def ask() -> Code:
        tool = GroupTool(args.group, peers)
        try:
            return await tool.transfer(args.to)
        finally:
            await tool.close()

    code = asyncio.run(ask())
    if args.json:
        _emit(args, [{"to": args.to, "code": code.value, "name": code.name}])
    else:
        _write(f"transfer to {args.to}: {code.value} {code.name}")
    return EXIT_DONE if code is Code.SUCCESS else EXIT_FAILED


# ---- stopped members


def _folders(args: argparse.Namespace, least: int) -> list[Path]:
    folders: list[Path] = args.folders
    if len(folders) < least:
        raise ConfigError(f"{args.action} needs {least} folders at least, {len(folders)} is given")
    for folder in folders:
        if not (folder / "data").is_dir():
            raise ConfigError(f"{folder} is no ledger: it has no folder data; name the dledger-ID of a member's store")
    return folders


def _verify(args: argparse.Namespace) -> int:
    from saturnmq.raft.ledger.check import verify

    reports = [verify(folder) for folder in _folders(args, 1)]
    rows = [dataclasses.asdict(report) for report in reports]
    if args.json:
        _emit(args, rows)
    else:
        _show([row | {"problems": len(row["problems"])} for row in rows])
        for report in reports:
            for problem in report.problems:
                _write(f"{report.folder}: {problem}")
    return EXIT_PROBLEMS if any(report.problems for report in reports) else EXIT_DONE


def _compare(args: argparse.Namespace) -> int:
    from saturnmq.raft.ledger.check import compare

    found = compare(_folders(args, 2))
    rows = [] if found is None else [{"folder": folder, "entry": what} for folder, what in found.found.items()]
    if args.json:
        _emit(args, rows, equal=found is None, index=None if found is None else found.index)
    elif found is None:
        _write("the ledgers are equal from the first entry that all have")
    else:
        _write(f"entry {found.index} differs (term, position, size):")
        _show(rows)
    return EXIT_DONE if found is None else EXIT_PROBLEMS
