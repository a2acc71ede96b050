"""A master and its slave as processes, two NameServers, and clients that load them; the slave can be made the master.

Requirements: CHA-10.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from chaosbrokers import QUEUES, TOPIC, BrokerGroup, PlainBroker
from chaosgroup import DEADLINE_SECONDS, PRODUCERS
from chaosproxy import Network, pause

from harness.history.operations import OK
from harness.pairlog import REPAIR, appended, excuses, log_of, records_behind
from ports import free_port
from saturnmq.store import StoreProfile, StoreSettings
from saturnmq.store.tools.verify import verify

FILE_BYTES = 1_048_576
SHORT_LANES, SHORT_RATE_MAX = 2, 200  # keys of each producer, sends per second
# A slave copies consumer offsets every 10 s: after it became the master, members of a group read these seconds again. What a
# transaction ended with is recorded after its message: if only the first was replicated, the half message is checked again.
AGAIN = ("nonmonotonic-poll: member", "nonmonotonic-poll: ordered", "duplicate: 'half-")


class Pair(PlainBroker):
    """master: the member that is the master now.

    lost: acknowledged messages that only the store of a lost master had. counts: how many these are, and how many others it had.
    long: the load of `make chaos`; otherwise keyed sends and one reader.
    """

    size = 2
    long = True
    ends_never_fall = False
    settings: Mapping[str, str] = {
        **PlainBroker.settings,
        "mappedFileSizeCommitLog": str(FILE_BYTES),
        "haTransferFromOldestFile": "true",
        "registerNameServerPeriod": "10000",
    }
    role = "ASYNC_MASTER"

    def __init__(self, folder: Path, *, size: int, heartbeat_ms: int, seed: int) -> None:
        super().__init__(folder, size=size, heartbeat_ms=heartbeat_ms, seed=seed)
        ports = {name: free_port((0, 1)) for name in self.names}
        self.addresses = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
        self.network = Network({name: f"127.0.0.1:{port + 1}" for name, port in ports.items()}, seed)
        self.master, self.slave = self.names
        self.lost: set[tuple[str, int]] = set()
        self.counts = {"lacked": 0, "lost": 0}

    @property
    def sync(self) -> bool:
        """Whether a send is acknowledged only when the slave has it."""
        return self.role == "SYNC_MASTER"

    @property
    def safe(self) -> bool:
        """Whether nothing acknowledged may be lost with one disk."""
        return self.sync and self.settings["flushDiskType"] == "SYNC_FLUSH"

    def acknowledged(self) -> set[tuple[str, int]]:
        """Value and attempt of each keyed message that was acknowledged."""
        sends = [op for op in self.history if op["op"] == "send" and op["result"] == OK and "key" in op]
        return {(value, op["attempt"]) for op in sends for value, _ in op["messages"]}

    def store(self, name: str) -> StoreSettings:
        return StoreSettings(str(self.folder / name), profile=StoreProfile.SMALL, commit_log_file_bytes=FILE_BYTES)

    def command(self, name: str) -> list[str]:
        """A master, or a slave that reaches the master's HA port through the proxy."""
        port = self.addresses[name].rpartition(":")[2]
        values = dict(self.settings) | {"storePathRootDir": str(self.folder / name), "listenPort": port}
        if name == self.master:
            values |= {"brokerRole": self.role, "brokerId": "0"}
        else:
            values |= {
                "brokerRole": "SLAVE",
                "brokerId": "1",
                "haMasterAddress": self.network.addresses[name, self.master],
            }
        words = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
        return ["-m", "saturnmq.cli", "broker", "-n", self.at, *words]

    async def start(self) -> None:
        """Wait until the slave has copied the topic, too: it is not in the log."""
        await super().start()
        topics = self.folder / self.slave / "config" / "topics.json"
        await self.until(lambda: topics.exists() and f'"{TOPIC}"' in topics.read_text())

    def load(self, per_second: float) -> list[Coroutine[Any, Any, None]]:
        if self.long:
            return BrokerGroup.load(self, per_second)
        per_second = min(per_second, SHORT_RATE_MAX)
        lanes = [(producer, key) for producer in range(PRODUCERS) for key in range(SHORT_LANES)]
        return [*(self.lane(*lane, per_second / len(lanes)) for lane in lanes), self.assigned()]

    async def heal(self) -> None:
        """In the short form the master is up before its slave, which waits 5 s otherwise, and a send has succeeded since."""
        if self.long:
            await super().heal()
            return
        if not self.members[self.master].up:
            await self.members[self.master].start()
            await self.members[self.master].ready()
        await super().heal()
        await self.until(partial(self.acknowledged_since, self.now()))

    async def until(self, condition: Callable[[], object]) -> None:
        """Poll until the condition holds."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not condition():
                await pause(0.1)

    def acknowledged_since(self, begin_ms: float) -> bool:
        """Whether one of the last sends began after this time and succeeded."""
        last = self.history.operations[-100:]
        return any(op["op"] == "send" and op["result"] == OK and op["begin"] > begin_ms for op in last)

    # the loss of a disk

    async def caught_up(self) -> None:
        """Wait until the slave has what the master has now: two disks are never lost at once."""
        end = len(log_of(self.store(self.master)))
        await self.until(lambda: len(log_of(self.store(self.slave))) >= end)

    async def fall_behind(self) -> None:
        """Cut the slave off and wait until it misses a message, with ASYNC_MASTER an acknowledged one."""
        await self.caught_up()
        self.network.partition([self.master], [self.slave])
        cut_ms, end = self.now(), len(log_of(self.store(self.slave)))
        await self.until(lambda: len(log_of(self.store(self.master))) > end)
        if not self.sync:
            await self.until(lambda: self.acknowledged_since(cut_ms))

    async def take_over(self, *, disk_lost: bool) -> None:
        """The master is dead: its slave is stopped and becomes the master, the other its slave."""
        old, new = self.master, self.slave
        assert await self.members[new].end(signal.SIGTERM) == 0
        kept, had = log_of(self.store(new)), log_of(self.store(old))
        assert had[: len(kept)] == kept, "the slave's log is no prefix of its master's"
        lacked = records_behind(self.store(old), len(kept))
        gone = {appended(message) for message in lacked} & self.acknowledged()
        assert not gone or not self.safe, f"acknowledged messages are not at the slave: {gone}"
        self.lost |= gone
        self.owed.difference_update(map(appended, lacked))
        self.counts = {"lacked": self.counts["lacked"] + len(lacked), "lost": len(self.lost)}
        self.excused = (*self.excused, *(AGAIN if self.long else ()), *excuses(lacked, TOPIC, "g"))
        if lacked:  # a reader that had them begins where the new log ends
            self.excused = (*self.excused, "nonmonotonic-poll: reader")
        if not self.sync:  # offsets of lost messages are used again
            self.excused = (*self.excused, "nonmonotonic-send:", "key-order:")
        if disk_lost:
            self.empty(old)
        self.master, self.slave = new, old

    async def repair_slave(self) -> None:
        """Start both, wait until the slave has logged the command that removes what its master does not have, and run it."""
        log = self.folder / f"{self.slave}.log"
        seen = len(log.read_text())
        for name in (self.master, self.slave):
            await self.members[name].start()
            await self.members[name].ready()
        await self.until(lambda: REPAIR.search(log.read_text(), seen))
        said = REPAIR.search(log.read_text(), seen)
        assert said is not None
        assert await self.members[self.slave].end(signal.SIGTERM) == 0
        program, *words = said[1].split()
        assert program == "saturnmq" and words[3] == str(self.folder / self.slave)
        done = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "saturnmq.cli",
            *words,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert await done.wait() == 0

    def empty(self, name: str) -> None:
        """A new disk."""
        shutil.rmtree(self.folder / name)

    # the end

    async def all_equal(self) -> None:
        if self.long:
            await super().all_equal()
        else:
            await self.send("marker", "marker-0", "m0")
        await self.until(lambda: log_of(self.store(self.master)) == log_of(self.store(self.slave)))

    async def settled(self) -> None:
        """After a loss offsets are used again: a reader that was ahead of the new master passed over what is there now."""
        if self.counts["lacked"]:
            self.reader, self.next_offsets = "second reader", dict.fromkeys(range(QUEUES), 0)
        await super().settled()

    def check_ledgers(self) -> None:
        """Exactly what is counted is lost, the logs are equal, queues and index follow from them, no route named two masters."""
        polls = [op for op in self.history if op["op"] == "poll" and op["mode"] == "final"]
        read = {(value, attempt) for op in polls for _, value, attempt in op["messages"]}
        missing = self.acknowledged() - read
        assert missing == self.lost, (
            f"lost and not counted: {sorted(missing - self.lost)}; counted and read: {sorted(self.lost - missing)}"
        )
        assert log_of(self.store(self.master)) == log_of(self.store(self.slave))
        for name in self.names:
            report = verify(self.store(name))
            assert report.sound, report.problems
        assert max(self.masters, default=0) <= 1


class SyncPair(Pair):
    settings: Mapping[str, str] = {**Pair.settings, "flushDiskType": "SYNC_FLUSH"}
    role = "SYNC_MASTER"


class ShortPair(Pair):
    long = False


class ShortSyncPair(SyncPair):
    long = False
