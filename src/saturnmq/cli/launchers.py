"""The programs of Apache RocketMQ's bin folder: mqbroker, mqnamesrv and mqshutdown, for scripts that call them.

`saturnmq launchers DIR` writes them into a folder that the user names, so that they hide no program of an Apache installation
unasked. A server that they start holds a lock on a file below the user's home while it runs. `mqshutdown` sends SIGTERM to the
processes that hold such locks, as the kernel reports them: to no other process, and to none of another user.

Requirements: ADM-29.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from saturnmq.cli.output import EXIT_DONE, EXIT_USAGE, emit, warn, write
from saturnmq.config.settings import MASK
from saturnmq.protocol.errors import ConfigError, SaturnError, StoreError
from saturnmq.store.files.lock_file import LockFile

MARK: Final = "# a launcher of SaturnMQ"
SERVERS: Final = {"mqbroker": "broker", "mqnamesrv": "namesrv"}
PROGRAMS: Final = (*SERVERS, "mqshutdown")
# Exit codes of Apache RocketMQ's programs: -1, -2 and -3 as a shell sees them.
NOT_RUNNING: Final = 255
NO_HOME: Final = 254
BAD_ADDRESS_OR_ID: Final = 253
_HOME: Final = "ROCKETMQ_HOME"


def run_folder() -> Path:
    """Where servers that launchers started keep their lock files."""
    return Path.home() / ".saturnmq" / "run"


def run_launchers(args: argparse.Namespace) -> int:
    """Write the programs into a folder. Raises ConfigError if a file there is not ours, and then writes none."""
    folder: Path = args.folder
    paths = [folder / name for name in PROGRAMS]
    for path in paths:
        if path.exists() and MARK not in path.read_text(errors="replace"):
            raise ConfigError(f"{path} exists and is no launcher of SaturnMQ: name another folder, or remove it")
    folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        program = f"{shlex.quote(sys.executable)} -m {__name__} {path.name}"
        path.write_text(f'#!/bin/sh\n{MARK}\nexec {program} "$@"\n')
        path.chmod(0o755)
    if args.json:
        emit("launchers", [{"path": str(path)} for path in paths])
    else:
        for path in paths:
            write(str(path))
    return EXIT_DONE


def main(argv: Sequence[str]) -> int:
    """Run one of the programs; argv[0] is its name. Returns its exit code."""
    name, *words = argv
    return _shut_down(words) if name == "mqshutdown" else _serve(name, words)


def _serve(name: str, words: list[str]) -> int:
    """Run a server with the options of Apache's program; further words are options of `saturnmq broker` or `namesrv`."""
    kind = SERVERS[name]
    home = os.environ.get(_HOME, "")
    if home and not Path(home).is_dir():
        write(f"Please set the {_HOME} variable in your environment to match the location of the RocketMQ installation")
        return NO_HOME
    options, further_options = _parser(name).parse_known_args(words)
    command = [kind]
    for option, value in (("-c", options.config), ("-n", options.addresses)):
        command += [option, value] if value is not None else []
    command += ["-p"] if options.all else ["-m"] if getattr(options, "important", False) else []
    command += further_options
    if kind == "broker" and (refusal := _refusal(command)):
        write(refusal)
        return BAD_ADDRESS_OR_ID
    from saturnmq.cli.run import main as run

    with _listed(kind):
        return run(command)


def _parser(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=name, allow_abbrev=False, epilog="Other options: saturnmq broker --help")
    parser.add_argument("-c", "--configFile", dest="config", metavar="FILE", help="properties file")
    parser.add_argument("-n", "--namesrvAddr", dest="addresses", metavar="HOST:PORT;...", help="list of NameServers")
    parser.add_argument("-p", "--printConfigItem", dest="all", action="store_true", help="print all keys and exit")
    if name == "mqbroker":
        more = "print the important keys and exit"
        parser.add_argument("-m", "--printImportantConfig", dest="important", action="store_true", help=more)
    return parser


def _refusal(command: Sequence[str]) -> str:
    """Why Apache's broker would end with -3: its list of NameServers, or a slave's id; "" if neither is wrong."""
    from saturnmq.cli.commands import build_parser
    from saturnmq.cli.settings import broker_classes, configure

    with contextlib.redirect_stderr(io.StringIO()):  # warnings are printed when the broker starts
        try:
            configured = configure(broker_classes(), build_parser().parse_args(command), {})
        except ConfigError as error:
            problem = next((text for text in error.problems if text.startswith("namesrvAddr ")), "")
            return problem and (
                f'The Name Server Address[{MASK}] illegal, please set it as follows, "127.0.0.1:9876;192.168.0.1:9876": {problem}'
            )
    group = configured.part("raft").enabled
    return "" if group or configured.part("broker").role_problem() is None else "Slave's brokerId must be > 0"


@contextlib.contextmanager
def _listed(kind: str) -> Iterator[None]:
    """Let `mqshutdown` find this process meanwhile."""
    lock = LockFile(run_folder() / f"{kind}-{os.getpid()}")
    try:
        lock.acquire()
    except SaturnError as error:
        warn(f"warning: mqshutdown will not find this process: {error.message}")
        yield
        return
    try:
        yield
    finally:
        lock.path.unlink(missing_ok=True)
        lock.release()


def _running(kind: str) -> list[int]:
    """Ids of the processes that hold a lock file of this kind. The files of ended processes are removed."""
    pids = []
    for path in sorted(run_folder().glob(f"{kind}-[0-9]*")):
        with contextlib.suppress(StoreError):
            owner = LockFile(path).owner()
            if owner is None:
                path.unlink(missing_ok=True)
            elif owner > 0 and path.name == f"{kind}-{owner}":
                pids.append(owner)
    return pids


def _shut_down(words: Sequence[str]) -> int:
    kind = words[0] if len(words) == 1 else ""
    if kind not in SERVERS.values():
        write("Usage: mqshutdown broker | namesrv")
        return EXIT_USAGE
    pids = _running(kind)
    if not pids:
        write(f"No mq{kind} running.")
        return NOT_RUNNING
    for pid in pids:
        write(f"The mq{kind}({pid}) is running...")
        os.kill(pid, signal.SIGTERM)
        write(f"Send shutdown request to mq{kind}({pid}) OK")
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
