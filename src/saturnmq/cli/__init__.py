"""The `saturnmq` command line. `commands` holds the table from which parser, help and docs/commands.md are made.

A module is imported when its command runs: `--help` and `--version` import neither broker, store nor Spark packages.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    from saturnmq.cli.run import main as run

    return run(argv)
