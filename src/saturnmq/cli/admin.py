"""The commands of `saturnmq admin`: reads options and prints; `saturnmq.admin` does the work.

stdout carries results, stderr everything else. Exit code 3: the check found a problem.

Requirements: DL-M09, DL-L01, DL-Q06, CLI-01..CLI-08, ACL-20.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
from collections.abc import Mapping

from saturnmq.admin import ledger
from saturnmq.admin.credentials import read_access
from saturnmq.cli.cluster import chosen_cluster
from saturnmq.cli.output import EXIT_DONE, EXIT_FAILED, EXIT_PROBLEMS, emit, show_rows, write
from saturnmq.escaping import escaped
from saturnmq.raft.core.messages import ChangeKind, Code


def run_status(args: argparse.Namespace) -> int:
    """Print the state of each broker of a group; exit code 3 unless the group is healthy."""
    name_servers, access = chosen_cluster(args)
    status = asyncio.run(ledger.group_status(name_servers, args.group, access))
    if args.json:
        emit(args.command.name, status.rows, well=status.healthy)
    else:
        show_rows([row | {"watermarks": _marks(row["watermarks"])} for row in status.rows])
    return EXIT_DONE if status.healthy else EXIT_PROBLEMS


def _marks(watermarks: Mapping[str, int]) -> str:
    return " ".join(f"{name}={mark}" for name, mark in watermarks.items())


def run_transfer(args: argparse.Namespace) -> int:
    """Transfer the leadership of a group."""
    code = asyncio.run(ledger.transfer_leadership(args.group, args.peers, args.to, read_access(config=args.config)))
    if args.json:
        emit(args.command.name, [{"to": args.to, "code": code.value, "name": code.name}])
    else:
        write(f"transfer to {args.to}: {code.value} {code.name}")
    return EXIT_DONE if code is Code.SUCCESS else EXIT_FAILED


def run_add_learner(args: argparse.Namespace) -> int:
    """Add a member that does not vote yet."""
    return _change(args, ChangeKind.ADD_LEARNER)


def run_promote(args: argparse.Namespace) -> int:
    """Make a learner a voter."""
    return _change(args, ChangeKind.PROMOTE)


def run_remove(args: argparse.Namespace) -> int:
    """Remove a member."""
    return _change(args, ChangeKind.REMOVE)


def _change(args: argparse.Namespace, kind: ChangeKind) -> int:
    access = read_access(config=args.config)
    answer = asyncio.run(ledger.change_members(kind, args.group, args.peers, args.member, access, dry_run=args.dry_run))
    code, now = Code(answer.code), answer.members
    row = {
        "code": code.value,
        "name": code.name,
        "reason": answer.reason or "",
        "peers": now.peers_text if now is not None else "",
        "learners": ",".join(sorted(now.learners)) if now is not None else "",
    }
    if args.json:
        emit(args.command.name, [row], dry_run=args.dry_run)
    else:
        verdict = "possible, nothing changed" if args.dry_run and code is Code.SUCCESS else "done"
        write(verdict if code is Code.SUCCESS else escaped(f"refused: {code.value} {code.name}: {answer.reason or ''}"))
        write(escaped(f"peers={row['peers']} learners={row['learners'] or 'none'}"))
    return EXIT_DONE if code is Code.SUCCESS else EXIT_FAILED


def run_verify(args: argparse.Namespace) -> int:
    """Report what is damaged in ledgers."""
    reports = ledger.verify_ledgers(args.folders)
    rows = [dataclasses.asdict(report) for report in reports]
    if args.json:
        emit(args.command.name, rows)
    else:
        show_rows([row | {"problems": len(row["problems"])} for row in rows])
        for report in reports:
            for problem in report.problems:
                write(escaped(f"{report.folder}: {problem}"))
    return EXIT_PROBLEMS if any(report.problems for report in reports) else EXIT_DONE


def run_compare(args: argparse.Namespace) -> int:
    """Print the first entry at which ledgers differ."""
    difference = ledger.compare_ledgers(args.folders)
    rows = (
        []
        if difference is None
        else [{"folder": folder, "entry": entry} for folder, entry in difference.entries.items()]
    )
    if args.json:
        emit(args.command.name, rows, equal=difference is None, index=None if difference is None else difference.index)
    elif difference is None:
        write("the ledgers are equal from the first entry that all have")
    else:
        write(f"entry {difference.index} differs (term, position, size):")
        show_rows(rows)
    return EXIT_DONE if difference is None else EXIT_PROBLEMS
