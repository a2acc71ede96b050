"""A DLedger group of processes with its faults, its load and its history.

Requirements: CHA-01..CHA-11.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import time
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from chaosproxy import Network, pause

from harness.history.operations import FAIL, OK, UNKNOWN, History
from ports import free_ports
from saturnmq.errors import ConnectFailed
from saturnmq.net.client import RemotingClient
from saturnmq.net.settings import NetSettings
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.raft.core.messages import AppendRequest, Code, MetadataRequest, Request
from saturnmq.raft.ledger.check import compare, verify
from saturnmq.raft.ledger.files import LedgerFiles
from saturnmq.raft.wire.codec import RESPONSE_HEADER_CODE, code_of, decode_response, encode

SCRIPT = Path(__file__).parent / "ledgerprocess.py"
CLOCK = Path(__file__).parent / "clockprocess.py"
QUEUE = "ledger"
PRODUCERS, KEYS = 4, 8
CALL_MS = 1500
# No promise: how long a start, an election, a catch-up or the end of a run may take on a busy machine before the run is given up.
DEADLINE_SECONDS = 600.0
# Rejected before anything was written, so certainly not stored. Entries with 414, 501 or 502 may be stored, now or later.
REFUSED = {
    Code.NOT_LEADER, Code.DISK_FULL, Code.LEADER_PENDING_FULL, Code.LEADER_NOT_READY, Code.LEADER_TRANSFERRING,
}  # fmt: skip


def outcome(code: int) -> str:
    """The history result for an append's code (CHA-06, for members that are called directly)."""
    if code == Code.SUCCESS:
        return OK
    return FAIL if code in REFUSED else UNKNOWN


class Member:
    """A member process and its stdout. `reported`: the last index that it reported as committed."""

    def __init__(self, group: Group, name: str) -> None:
        self.group = group
        self.name = name
        self.process: asyncio.subprocess.Process | None = None
        self.frozen = False
        self.reported = -1
        self._ready = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None

    @property
    def up(self) -> bool:
        return self.process is not None

    async def start(self) -> None:
        group = self.group
        self._ready.clear()
        log = (group.folder / f"{self.name}.log").open("ab")
        try:
            self.process = await asyncio.create_subprocess_exec(
                *group.program(self.name), stdout=asyncio.subprocess.PIPE, stderr=log, limit=1 << 24,
                env=group.environment(self.name),
            )  # fmt: skip
        finally:
            log.close()
        group.history.add("assign", self.name, group.now(), group.now())
        assert self.process.stdout is not None
        self._listening = asyncio.get_running_loop().create_task(self._listen(self.process.stdout))

    async def ready(self) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await self._ready.wait()

    async def _listen(self, stdout: asyncio.StreamReader) -> None:
        group = self.group
        while line := await stdout.readline():
            if not line.endswith(b"\n"):
                return  # killed during a write
            if line == b"ready\n" or line.startswith(b"saturnmq: ready ") or b"boot success" in line:
                self._ready.set()
            elif line.startswith(b"["):
                found = [[index, *unpack(body)] for index, body in json.loads(line)]
                now = group.now()
                more = {"group": self.name, "mode": "assigned", "queue": QUEUE, "messages": found}
                group.history.add("poll", self.name, now, now, **more)
                self.reported = found[-1][0]

    def send_signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)

    async def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Send the signal and wait; returns the exit code."""
        process, self.process = self.process, None
        if process is None:
            return 0
        with suppress(ProcessLookupError):
            process.send_signal(number)
        code = await process.wait()
        if self._listening is not None:
            await self._listening
        transport: Any = process._transport  # type: ignore[attr-defined]
        transport.close()
        self.frozen = False
        return code


def unpack(body: str) -> tuple[str, int]:
    value, _, attempt = body.partition("#")
    return value, int(attempt.rstrip("."))


class Group:
    reads_while_running = False  # final polls go to running members
    size: int | None = None  # fixed size of groups of this kind
    ends_with = frozenset({0})  # exit codes after SIGTERM
    excused: tuple[str, ...] = ()  # prefixes of checker problems that are reported but do not fail the run

    def __init__(self, folder: Path, *, size: int, heartbeat_ms: int, seed: int) -> None:
        self.folder = folder
        self.heartbeat_ms = heartbeat_ms
        self.rng = random.Random(seed)
        self.names = [f"n{number}" for number in range(size)]
        self.addresses = {name: f"127.0.0.1:{port}" for name, port in zip(self.names, free_ports(size), strict=True)}
        self.network = Network(self.addresses, seed)
        self.history = History()
        self.members = {name: Member(self, name) for name in self.names}
        self.guess = self.names[0]
        self.loading = True
        self.jumped = False  # whether any wall clock jumped
        self.counts: dict[str, int] = {}  # measurements of this kind of group only
        self.client = RemotingClient(settings=NetSettings())
        self._looking: asyncio.Task[None] | None = None
        (folder / "faults").mkdir(parents=True)

    def now(self) -> float:
        return time.monotonic() * 1000

    def peers(self, name: str) -> str:
        """The peer list for this member: the other members are reached through proxies."""
        return ";".join(
            f"{other}-{address if other == name else self.network.addresses[name, other]}"
            for other, address in self.addresses.items()
        )

    def command(self, name: str) -> list[str]:
        """The program of a member, as arguments of Python."""
        return [str(SCRIPT), str(self.folder), self.peers(name), name, str(self.heartbeat_ms)]

    def ledger(self, name: str) -> Path:
        """The folder of a member's ledger."""
        return self.folder / f"dledger-{name}"

    def program(self, name: str) -> list[str]:
        """The command line of a member, wrapped so that its wall clock can be set."""
        return [sys.executable, str(CLOCK), str(self._clock_of(name)), *self.command(name)]

    def environment(self, name: str) -> dict[str, str] | None:
        """The environment of a member; None: that of this process."""
        return None

    async def start(self) -> None:
        await self.network.start()
        for member in self.members.values():
            await member.start()
        await asyncio.gather(*(member.ready() for member in self.members.values()))

    async def stop(self) -> list[int]:
        """Stop everything with SIGTERM; returns the exit codes."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await self.client.close()
        for member in self.members.values():
            member.send_signal(signal.SIGCONT)
        codes = await asyncio.gather(*(m.end(signal.SIGTERM) for m in self.members.values() if m.up))
        await self.network.stop()
        return codes

    async def ask(self, name: str, request: Request, timeout_ms: int = CALL_MS) -> Any:
        """Call a member. Raises SaturnError."""
        reply = await self.client.invoke(
            self.addresses[name], Command(code_of(request), body=encode(request)), timeout_ms
        )
        if reply.code != RESPONSE_HEADER_CODE:
            raise SaturnError(f"code {reply.code}: {reply.remark}")
        return decode_response(code_of(request), reply.body)

    # leader discovery

    async def look(self) -> None:
        """Find a member that calls itself leader; concurrent callers share one search."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look())
        await asyncio.wait([self._looking])

    async def _look(self) -> None:
        while True:
            await pause(0.02)
            up = [name for name, member in self.members.items() if member.up and not member.frozen]
            named = dict(zip(up, await asyncio.gather(*map(self._named_by, up)), strict=True))
            leaders = [name for name in up if named[name] == name]
            if leaders:  # of two that claim to lead, the one that more members follow
                self.guess = max(leaders, key=list(named.values()).count)
                return

    async def _named_by(self, name: str) -> str | None:
        try:
            said = await self.ask(name, MetadataRequest(group="g", remote_id=name), 300)
        except SaturnError:
            return None
        leader: str | None = said.leader_id
        return leader

    async def leader(self) -> str:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await self.look()
            return self.guess

    # load

    async def lane(self, producer: int, key: int, per_second: float) -> None:
        """One sequential producer of one key: each value is retried until it is acknowledged (CHA-04, CHA-05)."""
        process, number = f"p{producer}.k{key}", 0
        next_ms = self.now() + self.rng.random() * 1000 / per_second
        while self.loading:
            await pause(max(0.0, next_ms - self.now()) / 1000)
            next_ms = max(next_ms + 1000 / per_second, self.now() - 500)
            number += 1
            await self.send(process, f"{process}-{number}", f"k{key}")

    async def send(self, process: str, value: str, key: str) -> None:
        attempt = 0
        while True:
            attempt += 1
            begin, name, index = self.now(), self.guess, None
            try:
                request = AppendRequest(group="g", remote_id=name, body=f"{value}#{attempt}".ljust(100, ".").encode())
                said = await self.ask(name, request)
                result, index = outcome(said.code), said.index
            except ConnectFailed as error:
                result = UNKNOWN if error.sent else FAIL
            except SaturnError:
                result = UNKNOWN
            reported = [[value, index if result == OK else None]]
            more = {"result": result, "attempt": attempt, "messages": reported, "queue": QUEUE, "key": key, "to": name}
            self.history.add("send", process, begin, self.now(), **more)
            if result == OK:
                return
            await self.look()

    # faults

    async def kill(self, *names: str) -> None:
        await asyncio.gather(*(self.members[name].end() for name in names))

    def freeze(self, *names: str) -> None:
        for name in names:
            self.members[name].send_signal(signal.SIGSTOP)
            self.members[name].frozen = True

    def disk(self, name: str, fault: str) -> None:
        (self.folder / "faults" / f"{name}.{fault}").touch()

    def jump(self, name: str, ahead_seconds: int) -> None:
        """Set a member's wall clock ahead by so many seconds until the heal; negative: behind."""
        self.jumped = True
        self._clock_of(name).write_text(str(ahead_seconds))

    def ahead_seconds(self, name: str) -> int:
        """The clock offset that the process reported when it last noticed a jump."""
        reported = Path(f"{self._clock_of(name)}.ahead")
        return int(reported.read_text() or 0) if reported.exists() else 0

    def _clock_of(self, name: str) -> Path:
        return self.folder / "faults" / f"{name}.clock"

    async def heal(self) -> None:
        """Heal all faults: every member runs, is connected, and has a working disk."""
        self.network.heal()
        for file in (self.folder / "faults").iterdir():
            file.unlink()
            if file.suffix in (".eio", ".failed"):  # a store whose flush failed rejects writes until a restart (DUR-06)
                await self.members[file.stem].end()
        for member in self.members.values():
            if member.frozen:
                member.send_signal(signal.SIGCONT)
                member.frozen = False
        down = [member for member in self.members.values() if not member.up]
        for member in down:
            await member.start()
        await asyncio.gather(*(member.ready() for member in down))

    def load(self, per_second: float) -> list[Coroutine[Any, Any, None]]:
        """The clients; they run until `loading` is false (CHA-04)."""
        lanes = [(producer, key) for producer in range(PRODUCERS) for key in range(KEYS)]
        return [self.lane(*lane, per_second / len(lanes)) for lane in lanes]

    async def all_equal(self) -> None:
        """Wait until every member holds everything acknowledged."""
        marker = 0
        while True:  # an entry of the last term commits older ones; a leader change requires another one
            marker += 1
            await self.send("marker", f"marker-{marker}", "marker")
            last = self.history.operations[-1]["messages"][0][1]
            for _ in range(100):
                if all(member.reported >= last for member in self.members.values()):
                    return
                await pause(0.02)

    # the end

    async def settled(self) -> None:
        """Wait until what was acknowledged and arrives later has arrived; entries of a bare ledger arrive at once."""

    def check_ledgers(self) -> None:
        """Check the ledgers of stopped members: undamaged and equal."""
        folders = [self.ledger(name) for name in self.names]
        assert [verify(one).problems for one in folders] == [[]] * len(folders)
        assert compare(folders) is None

    async def final_polls(self) -> None:
        """Record the content of each stopped member's ledger, read from its files."""
        for name in self.names:
            files = LedgerFiles(self.folder / f"dledger-{name}", file_bytes=262_144, index_file_units=16_384)
            files.open()
            try:
                entries = filter(None, map(files.entry, range(max(files.begin_index, 0), files.end_index + 1)))
                found = [[entry.index, *unpack(entry.body.decode())] for entry in entries]
            finally:
                files.close()
            now = self.now()
            more = {"group": "final", "mode": "final", "queue": QUEUE, "messages": found}
            self.history.add("poll", f"final-{name}", now, now, **more)


def failovers(history: History, faults: list[tuple[float, float]]) -> list[float]:
    """RTO of each fault in ms: from the start of the first unsuccessful send to the next success (CHA-07).

    faults: (begin, time from which a majority was up). A send in flight when the fault began counts. If it is still in
    flight when the next fault begins, and other sends succeeded in between, it counts for that next fault.
    """
    sends = sorted((op for op in history if op["op"] == "send"), key=lambda op: op["begin"])
    took = []
    for at, (begin, majority) in enumerate(faults):
        until = faults[at + 1][0] if at + 1 < len(faults) else float("inf")
        bad = [op for op in sends if op["result"] != OK and op["end"] >= begin and op["begin"] < until]
        back = max(begin, majority)
        served = any(op["result"] == OK and op["begin"] >= back and op["end"] < until for op in sends)
        if not bad or (served and all(op["end"] >= until for op in bad)):
            took.append(0.0)
            continue
        start = max(bad[0]["begin"], begin if majority <= begin else majority)
        good = [op["end"] for op in sends if op["result"] == OK and op["begin"] >= start]
        took.append(min(good) - start if good else float("inf"))
    return took
