"""Real server processes under attack: a NameServer, a broker with its fast port, a group of one member, a broker with accounts.

Requirements: FUZ-03.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ports import free_port

READY_SECONDS: Final = 60
CONTEXT_LINES: Final = 30
PROGRAM: Final = ("-m", "saturnmq.cli")
ACCOUNT: Final = ("fuzzing", "fuzzing-secret")
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# A log line below ERROR, or what a server prints about itself. Anything else is an error, a traceback or a forged line.
_EXPECTED: Final = re.compile(
    r"\d{4}-\d\d-\d\d [\d:,]+ (?!ERROR|CRITICAL)|saturnmq: |The (Name Server|broker\[[^\]]*\]) boot success\. "
)


class Server:
    """A child process that prints `ready`; its output is read by a thread, which keeps unexpected lines only."""

    def __init__(self, name: str, arguments: Sequence[str], program: Sequence[str] = PROGRAM) -> None:
        """Start `saturnmq` with these arguments; returns when it is ready. Raises RuntimeError if it does not get so far.

        program: the arguments of Python that run it.
        """
        self.name = name
        self.bad_lines: list[str] = []
        self.context: list[str] = []  # what followed the first ones, such as tracebacks
        self._more = 0
        self._last: list[str] = []
        self._ready = threading.Event()
        env = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
        self.process = subprocess.Popen(
            [sys.executable, *program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._ready.wait(READY_SECONDS) or self.process.poll() is not None:
            self.process.kill()
            raise RuntimeError(f"{name} was not ready in {READY_SECONDS} s:\n" + "\n".join(self._last))

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._last = [*self._last[-30:], line.rstrip()]
            if line.startswith("saturnmq: ready "):
                self._ready.set()
            elif not _EXPECTED.match(line) and len(self.bad_lines) < 1000:
                self.bad_lines.append(line.rstrip())
                self._more = CONTEXT_LINES
            elif self._more:
                self._more -= 1
                self.context.append(line.rstrip())
        self._ready.set()

    @property
    def last_lines(self) -> list[str]:
        """The end of its output."""
        return list(self._last)

    def rss_bytes(self) -> int:
        """Resident memory; 0 once the process has ended."""
        try:
            return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * PAGE_BYTES
        except (OSError, IndexError):
            return 0

    def cpu_s(self) -> float:
        """CPU seconds of the process so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> int:
        """End the process as an operator does (SIGTERM); returns its exit status."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            code = self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self._reader.join(5)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code


class Port(NamedTuple):
    """A listen port under attack. kind: names the request codes that it serves."""

    kind: str
    number: int
    server: Server


class Servers:
    """The servers of a campaign and their ports, below a folder. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        name_port, broker_port = free_port(), free_port((-2, 0, 1))
        member_port, ledger_port = free_port((-2, 0, 1)), free_port()
        signed_port = free_port((-2, 0, 1))
        self.all: list[Server] = []
        try:
            names = self._start(
                "NameServer",
                [
                    "namesrv",
                    "--port",
                    str(name_port),
                    "--set",
                    f"kvConfigPath={folder}/kvConfig.json",
                    "--set",
                    f"configStorePath={folder}/namesrv.properties",
                ],
            )
            broker = self._start("broker", _broker(folder / "plain", "fuzz-a", broker_port, name_port))
            group = {
                "enableDLegerCommitLog": "true",
                "dLegerGroup": "fuzz-b",
                "dLegerSelfId": "n0",
                "dLegerPeers": f"n0-127.0.0.1:{ledger_port}",
            }
            protected = {"aclEnable": "true", "rocketmqHome": str(folder / "home")}
            _write_account(folder / "home")
            signed = self._start(
                "protected broker", _broker(folder / "signed", "fuzz-c", signed_port, name_port, protected)
            )
            member = self._start("group member", _broker(folder / "group", "fuzz-b", member_port, name_port, group))
        except BaseException:
            self.stop()
            raise
        self.broker_port = broker_port
        self.ports = [
            Port("namesrv", name_port, names),
            Port("broker", broker_port, broker),
            Port("broker", broker_port - 2, broker),
            Port("broker", member_port, member),
            Port("dledger", ledger_port, member),
            Port("signed", signed_port, signed),
        ]

    def _start(self, name: str, arguments: Sequence[str]) -> Server:
        server = Server(name, [*arguments, "--quiet"])
        self.all.append(server)
        return server

    def stop(self) -> dict[str, int]:
        """Stop all; server name -> exit status."""
        return {server.name: server.stop() for server in reversed(self.all)}

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _write_account(home: Path) -> None:
    """The account of the attackers: an administrator, so that every handler is reached."""
    path = home / "conf" / "plain_acl.yml"
    path.parent.mkdir(parents=True)
    path.write_text(f"accounts:\n  - accessKey: {ACCOUNT[0]}\n    secretKey: {ACCOUNT[1]}\n    admin: true\n")
    path.chmod(0o600)


def _broker(folder: Path, name: str, port: int, name_port: int, more: dict[str, str] | None = None) -> list[str]:
    settings = {
        "brokerName": name,
        "listenPort": str(port),
        "storePathRootDir": str(folder),
        "storeProfile": "small",
        **(more or {}),
    }
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return ["broker", "-n", f"127.0.0.1:{name_port}", *sets]
