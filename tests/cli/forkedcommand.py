"""What a process forked for one command runs. A module of its own: processes find functions by the name of their module."""

from __future__ import annotations

import os
import sys


def run_command(args: tuple[str, ...], env: dict[str, str], out: str, err: str, stdin: str = os.devnull) -> None:
    """Run one command in this process, which is new, with these files as standard streams; end with its exit code."""
    os.dup2(os.open(stdin, os.O_RDONLY), 0)
    sys.stdin = os.fdopen(0)
    for path, descriptor in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["saturnmq", *args]
    from saturnmq.cli import main

    sys.exit(main())
