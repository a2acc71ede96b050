"""Hours of mixed load on a group of three broker processes, a node killed each minute: SOK-01, SOK-02, G13.

The load runs in chapters of at most ten minutes. Each has a topic and a history of its own, written to a file; a chapter ends with
its final polls and a check by another process while the next one runs, so neither memory nor the time of the check grows with the
run. Topic and groups of a chapter without problems are deleted, so that what the brokers know stays the same. n0 is restarted once,
early, and then lives to the end: its memory and handles are what is bounded. n1 and n2 are killed in turn, every second time as the
leader. In a run whose growth is judged the disk of n1 is almost full twice: once in the warm-up, so that what n0 needs to bring n1
up to date again is not taken for growth, and once after it.

Requirements: SOK-01, SOK-02, G13.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaosbrokers import SETTINGS, BrokerGroup
from chaosgroup import DEADLINE_SECONDS, Group
from chaosproxy import pause

from harness.gate.goals import Goal
from harness.history.operations import History
from harness.soak.options import Options
from harness.soak.samples import Watched
from harness.soak.space import SmallDisk, filled_to
from ports import free_port
from saturnmq.admin import Admin
from saturnmq.admin.groups import Groups
from saturnmq.protocol.errors import SaturnError
from saturnmq.raft.tool import GroupTool

CHAPTER_SECONDS_MAX = 600.0
KILL_SECONDS, DOWN_SECONDS = 60.0, 5.0  # of an hour's run; shorter runs are faster
WARM_SECONDS = 1200.0  # SOK-02
SAMPLE_SECONDS = 10.0
BOUNDED_SECONDS = 600.0  # shorter runs print growth only
FULL_PERCENT, FULL_SECONDS = 95, 60.0
STEADY, MORTAL = "n0", ("n1", "n2")
NAME_SERVERS = 2
BYTES_PER_SECOND = 1_000_000  # of a member's disk at 1,000 sends/s, with a margin
DISK_BYTES_MIN = 256 * 2**20
KILLS_MIN = 3  # the third one is of a leader
PROBE = ("-m", "harness.soak.probe")
CLUSTER = "DefaultCluster"


class FileHistory(History):
    """Operations go to a file at once. sends, acknowledged: how many so far."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.sends = 0
        self.acknowledged = 0
        self._file = path.open("w")

    def add(self, op: str, process: str, begin: float, end: float, **members: Any) -> None:
        super().add(op, process, begin, end, **members)
        self._file.write(json.dumps(self.operations.pop(), separators=(",", ":")) + "\n")
        self.sends += op == "send"
        self.acknowledged += op == "send" and members["result"] == "ok"

    def close(self) -> None:
        self._file.close()


class SoakGroup(BrokerGroup):
    """Members and NameServers as processes, each with a probe inside."""

    settings: Mapping[str, str] = {
        **SETTINGS, "mappedFileSizeCommitLog": str(16 * 2**20), "dledger.indexFileUnits": "524288",
        "cleanFileForciblyEnable": "false",  # at 95 % of the disk nothing is deleted that is not checked yet
    }  # fmt: skip

    def __init__(self, folder: Path, *, seed: int) -> None:
        super().__init__(folder, size=3, heartbeat_ms=500, seed=seed)
        self.routers: list[asyncio.subprocess.Process] = []

    def program(self, name: str) -> list[str]:
        words = self.command(name)
        return [sys.executable, *PROBE, str(self.probe(name)), *words[words.index("broker") :]]

    def probe(self, name: str) -> Path:
        return self.folder / f"{name}.probe"

    async def start(self) -> None:
        ports = [free_port() for _ in range(NAME_SERVERS)]
        for number, port in enumerate(ports):
            words = ["namesrv", "--port", str(port), "--set", f"kvConfigPath={self.folder}/kv{number}.json"]
            words += ["--set", f"configStorePath={self.folder}/namesrv{number}.properties"]
            with (self.folder / f"namesrv{number}.log").open("ab") as log:
                command = [sys.executable, *PROBE, str(self.probe(f"namesrv{number}")), *words]
                self.routers.append(await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log))
        self.at = ";".join(f"127.0.0.1:{port}" for port in ports)
        await Group.start(self)

    async def stop(self) -> list[int]:
        codes = await Group.stop(self)
        for router in self.routers:
            with suppress(ProcessLookupError):
                router.terminate()
            codes.append(await router.wait())
        return codes


class Chapter(BrokerGroup):
    """The clients of one topic of a running group, and their history."""

    def __init__(self, group: SoakGroup, number: int) -> None:
        super().__init__(group.folder / f"chapter{number}", size=3, heartbeat_ms=500, seed=number)
        self.at, self.topic, self.number = group.at, f"soak{number}", number
        self.file = self.history = FileHistory(self.folder / "history.jsonl")
        self._clients: asyncio.Task[None] | None = None

    async def begin(self, rate: float) -> None:
        await self.start_clients()
        self._clients = asyncio.create_task(self._load(rate))

    async def _load(self, rate: float) -> None:
        async with asyncio.TaskGroup() as clients:
            for client in self.load(rate):
                clients.create_task(client)

    async def finish(self) -> dict[str, Any]:
        """End the load, read everything, and return the checker's report."""
        self.loading = False
        assert self._clients is not None
        await self._clients
        async with asyncio.timeout(DEADLINE_SECONDS):
            await self.all_equal()
        await self.settled()
        await self.final_polls()
        await self.stop_clients()
        await self.client.close()
        self.file.close()
        words = ["nice", "-n", "10", sys.executable, "-m", "harness.history.checker", str(self.file.path)]
        checker = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
        out, _ = await checker.communicate()
        report: dict[str, Any] = json.loads(out)
        if report["valid"]:
            self.file.path.unlink()  # a gigabyte per hour
            await self._delete()
        return report

    async def _delete(self) -> None:
        """Delete topic and groups; repeated from the beginning while leaders die."""
        groups = [f"{kind}-{self.topic}" for kind in ("subscribed", "ordered")]
        topics = [self.topic, *(topic for group in groups for topic in Groups.topics_of(group))]
        async with Admin(self.at) as admin, asyncio.timeout(DEADLINE_SECONDS):
            while True:
                with suppress(SaturnError):
                    masters = await admin.connection.masters(CLUSTER)
                    for address in masters.values():
                        for group in groups:
                            await admin.groups.delete(address, group, remove_offset=True)
                    for topic in topics:
                        await admin.topics.delete_from_brokers(topic, CLUSTER)
                    if masters:
                        return
                await pause(0.5)


@dataclass
class Run:
    """One soak run."""

    group: SoakGroup
    options: Options
    disk: SmallDisk | None
    watched: list[Watched] = field(default_factory=list)
    chapters: list[Chapter] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)
    kills: int = 0
    fills: int = 0
    full: str = ""
    began: float = 0.0
    restarted_s: float = 0.0
    covered: asyncio.Event = field(default_factory=asyncio.Event)  # each kind of fault was there

    @property
    def at_s(self) -> float:
        return self.group.now() / 1000 - self.began

    @property
    def bounded(self) -> bool:
        """Whether the run is long enough to judge growth."""
        return self.options.seconds >= BOUNDED_SECONDS

    @property
    def warm_s(self) -> float:
        """From when on growth counts: at least as long after the restart of n0."""
        return max(min(WARM_SECONDS, self.options.seconds / 3), self.restarted_s * 2)

    def status(self) -> str:
        sends, acked = (sum(getattr(one.file, what) for one in self.chapters) for what in ("sends", "acknowledged"))
        steady = self.watched[0].samples
        own = f"{steady[-1].own / 1e6:.0f} MB" if steady else "-"
        lost = sum(report["found"].get(kind, 0) for report in self.reports for kind in ("lost-write", "unseen"))
        return f"{sends:,} sends, {acked:,} acked, {self.kills} kills, {lost} lost, {STEADY} {own}"

    async def all(self) -> list[Goal]:
        options = self.options
        self.watch()
        self.began = self.group.now() / 1000
        async with asyncio.TaskGroup() as work:
            helpers = [work.create_task(one) for one in (self.sampling(), self.killing(), self.showing())]
            chapters = max(round(options.seconds / CHAPTER_SECONDS_MAX), 1)
            finishing: list[asyncio.Task[dict[str, Any]]] = []
            for number in range(chapters):
                chapter = Chapter(self.group, number)
                self.chapters.append(chapter)
                await chapter.begin(options.rate)
                await pause(options.seconds / chapters)
                if number == chapters - 1:
                    await self.covered.wait()
                finishing.append(work.create_task(chapter.finish()))
                finishing[-1].add_done_callback(self._checked)
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            await self.heal()
            await asyncio.gather(*finishing)
        for one in self.watched:
            one.write(self.group.folder / f"samples-{one.name}.jsonl")
        return self.goals()

    def _checked(self, finished: asyncio.Task[dict[str, Any]]) -> None:
        if not finished.cancelled() and finished.exception() is None:
            self.reports.append(finished.result())

    def watch(self) -> None:
        group = self.group

        def of_member(name: str) -> Watched:
            member = group.members[name]
            probe, bounded = group.probe(name), self.bounded and name == STEADY
            return Watched(name, lambda: member.process.pid if member.process else None, probe, bounded)

        self.watched = [of_member(STEADY)]
        for number, router in enumerate(group.routers):
            name = f"namesrv{number}"
            self.watched.append(Watched(name, lambda router=router: router.pid, group.probe(name), self.bounded))
        self.watched += [of_member(name) for name in MORTAL]

    async def sampling(self) -> None:
        while True:
            for one in self.watched:
                one.sample(self.at_s)
            await pause(min(SAMPLE_SECONDS, self.options.seconds / 60))

    async def showing(self) -> None:
        while True:
            self.options.show(self.at_s, self.status())
            await pause(1.0)

    def switched(self, begin_ms: float) -> None:
        for chapter in self.chapters:
            if chapter.loading:
                chapter.history.add("switch", "soak", begin_ms, self.group.now())

    async def killing(self) -> None:
        """Kill n1 and n2 in turn; one rolling restart and one almost full disk in between, also in the shortest run."""
        scale = min(self.options.seconds / 900, 1.0)  # a run of a quarter of an hour or more kills each minute
        every, down = KILL_SECONDS * scale, DOWN_SECONDS * scale
        restart_s = min(self.options.seconds * 0.15, WARM_SECONDS / 2)
        fills_s = [min(self.options.seconds * 0.22, WARM_SECONDS * 0.75)] if self.bounded else []
        fills_s.append(self.options.seconds * 0.6)
        restarted = False
        while True:
            await pause(max(every - down, 0.5))
            begin = self.group.now()
            if not restarted and self.at_s >= restart_s:
                restarted = True
                await self.rolling_restart(down)
                self.watched[0].samples.clear()  # another process now
                self.restarted_s = self.at_s
            elif fills_s and self.at_s >= fills_s[0]:
                del fills_s[0]
                await self.fill(FULL_SECONDS * scale)
            else:
                victim = MORTAL[self.kills % 2]
                if self.kills // 2 % 2:
                    await self.lead(victim)
                await self.group.kill(victim)
                self.switched(begin)
                await pause(down)
                await self.heal()
                self.kills += 1
            self.switched(begin)
            if restarted and not fills_s and self.kills >= KILLS_MIN:
                self.covered.set()

    async def lead(self, name: str) -> None:
        """Make a member the leader, if the group lets it."""
        tool = GroupTool("g", self.group.addresses)
        try:
            with suppress(SaturnError):
                await tool.transfer(name)
        finally:
            await tool.close()

    async def rolling_restart(self, down: float) -> None:
        for member in self.group.members.values():
            begin = self.group.now()
            assert await member.end(signal.SIGTERM) == 0
            await member.start()
            await member.ready()
            self.switched(begin)
            await pause(down)

    async def fill(self, seconds: float) -> None:
        """Fill the disk of n1 to 95 % for a while."""
        if self.disk is None:
            self.full = "disk at 95 %: skipped: no user namespace to mount a small disk in"
            return
        with filled_to(self.disk.folder, FULL_PERCENT):
            used = self.disk.used_percent()
            await pause(seconds)
        self.fills += 1
        self.full = f"disk of {MORTAL[0]} {self.fills} x at {used:.0f} % for {seconds:.0f} s"

    async def heal(self) -> None:
        await self.group.heal()

    def goals(self) -> list[Goal]:
        lines = []
        found: dict[str, int] = {}
        for report in self.reports:
            for kind, count in report["found"].items():
                found[kind] = found.get(kind, 0) + count
        acked = sum(report["counts"].get("messages acknowledged", 0) for report in self.reports)
        unknown = sum(report["counts"].get("sends unknown", 0) for report in self.reports)
        lost = found.get("lost-write", 0) + found.get("unseen", 0)
        seconds = self.options.seconds
        wrong = ", ".join(f"{kind} {count}" for kind, count in found.items()) or "nothing"
        rate = f"{acked / seconds:.0f}/s of {self.options.rate:.0f} offered"
        figure = (
            f"{len(self.reports)} of {len(self.chapters)} histories, {acked:,} acknowledged ({rate}), {unknown} unknown, "
            f"{self.kills} kills, {self.full or 'disk not filled'}; {lost} lost, found wrong: {wrong}"
        )
        whole = len(self.reports) == len(self.chapters) and acked > 0 and self.kills > 0
        lines.append(Goal(f"SOK-01 {seconds / 60:.1f} min", figure, "0 lost, nothing wrong", whole and not found))
        for one in self.watched:
            lines += one.goals("SOK-02", self.warm_s)
        if seconds >= 3600:
            holds = all(line.holds for line in lines)
            lines.append(Goal("G13 soak", f"SOK-01 and SOK-02 over {seconds / 3600:.1f} h", "both", holds))
        return lines


async def run(options: Options) -> list[Goal]:
    """The part `nodes`."""
    group = SoakGroup(options.folder / "run", seed=options.seed)
    bytes_needed = DISK_BYTES_MIN + int(BYTES_PER_SECOND * options.seconds * max(options.rate / 1000, 0.05))
    disk = SmallDisk.mounted(group.folder / MORTAL[0], bytes_needed)
    soak = Run(group, options, disk)
    try:
        await group.start()
        return await soak.all()
    finally:
        await group.stop()
        if disk is not None:
            disk.unmount()
