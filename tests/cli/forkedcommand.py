"""Runs commands in processes forked from one that has imported the modules of the commands.

The imports of `python -m saturnmq.cli` take most of a second of processor time. A module of its own: processes find functions by
the name of their module.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path
from subprocess import CompletedProcess
from typing import Final

MODULES: Final = ("run", "servers", "store", "admin", "everyday.send", "everyday.tail", "everyday.doctor")


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


def completed(
    args: tuple[str, ...], folder: Path, env: dict[str, str] | None = None, stdin: bytes = b""
) -> CompletedProcess[str]:
    """Run one command to completion; its standard streams are files in `folder`."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([f"saturnmq.cli.{name}" for name in MODULES])
    given, out, err = (folder / name for name in ("in", "out", "err"))
    given.write_bytes(stdin)
    process = processes.Process(
        target=run_command, args=(args, os.environ | (env or {}), str(out), str(err), str(given))
    )
    process.start()
    try:
        process.join(60)
        assert process.exitcode is not None, f"{args} did not end"
        return CompletedProcess(args, process.exitcode, out.read_text(), err.read_text())
    finally:
        process.kill()
        process.join()
        process.close()
