"""`saturnmq doctor` checks this machine, a configuration file and a cluster, `saturnmq deploy check` what clients reach.

Both say what to do about each finding. Requirements: CLI-06, OPS-09, UX-04.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from saturnmq.cli.cluster import admin_of, run
from saturnmq.cli.everyday.checks import host
from saturnmq.cli.everyday.checks.finding import Finding, Result
from saturnmq.cli.output import EXIT_DONE, EXIT_PROBLEMS, emit, write
from saturnmq.escaping import escaped

if TYPE_CHECKING:
    from saturnmq.cli.everyday.checks.configuration import NodeFile

SECONDS: Final = 3.0
QUICK_SECONDS: Final = 0.6  # per step; there are at most two steps over the network
FLUSHES: Final = 50
QUICK_FLUSHES: Final = 3


def run_doctor(args: argparse.Namespace) -> int:
    """Print every finding; exit code 3 if one of them is a problem."""
    node = None
    if args.config is not None:
        from saturnmq.cli.everyday.checks.configuration import NodeFile

        node = NodeFile(args.config)
        args.name_servers = args.name_servers or node.name_servers or None

    async def main() -> int:
        local = asyncio.to_thread(_local, args, node)
        findings, remote = await asyncio.gather(local, _remote(args))
        return _report([*findings, *remote], args)

    return run(main, args)


def run_deploy_check(args: argparse.Namespace) -> int:
    """Print whether NameServers and brokers can be reached at the addresses that clients are given; exit code 3 if not."""

    async def main() -> int:
        from saturnmq.cli.everyday.checks.cluster import check_addresses

        async with admin_of(args, timeout_ms=round(SECONDS * 1000)) as admin:
            return _report(await check_addresses(admin, seconds=SECONDS), args)

    return run(main, args)


def _local(args: argparse.Namespace, node: NodeFile | None) -> list[Finding]:
    """The checks of this machine, which block."""
    folder: Path = args.data or (node.store if node is not None else None) or Path()
    findings = [
        *host.versions(),
        *host.descriptors(host.descriptor_limits()),
        *host.kernel(),
        *host.scheduler(folder),
        *host.disk_space(folder),
        *host.flush_time(folder, QUICK_FLUSHES if args.quick else FLUSHES),
    ]
    return findings if node is None else [*findings, *node.findings(datetime.now(UTC))]


async def _remote(args: argparse.Namespace) -> list[Finding]:
    from saturnmq.cli.everyday.checks.cluster import check_cluster

    seconds = QUICK_SECONDS if args.quick else SECONDS
    async with admin_of(args, timeout_ms=round(seconds * 1000)) as admin:
        return await check_cluster(admin, seconds=seconds, tls=admin.connection.access.tls)


def _report(findings: list[Finding], args: argparse.Namespace) -> int:
    counts = Counter(finding.result for finding in findings)
    if args.json:
        rows = [each._asdict() | {"result": each.result.value, "advice": each.advice or None} for each in findings]
        emit(args.command.name, rows, well=not counts[Result.PROBLEM])
    else:
        for each in findings:
            if not args.quiet or each.result is not Result.OK:
                write(f"{each.result.value:8}{each.check}: {escaped(f'{each.subject}: {each.text}')}")
                if each.advice:
                    write(f"        what to do: {escaped(each.advice)}")
        write(f"{len(findings)} checks: " + ", ".join(f"{counts[result]} {result.value}" for result in Result))
    return EXIT_PROBLEMS if counts[Result.PROBLEM] else EXIT_DONE
