"""Damage of members' files, syncs that fail, and the load of transactions: the faults of goals G04, G06 and G09.

Requirements: G04, G06, G09, DUR-06, DUR-10.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import signal
import subprocess
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

from chaosbrokers import BrokerGroup
from chaosgroup import DEADLINE_SECONDS, PRODUCERS, Group
from chaosproxy import pause

from harness.history.operations import OK
from saturnmq.raft.ledger.check import LedgerReport, verify
from saturnmq.raft.ledger.layout import INDEX_UNIT

SHIM = Path(__file__).with_name("syncshim.c")
SYNCS_MAX = 40  # the n-th sync from now is the one that fails
TRANSACTION_LANES = 4
OPERATIONS_MIN = 100
HEADER_CHECKED_BYTES = 32  # magic, size, index, term, position; the fields behind them are always 0
# Where the body of a message begins in its entry: 48 bytes of the entry, 84 of the message up to the length of its body, which the
# harness's addresses (IPv4) fix, and 4 of that length.
BODY_AT = 48 + 84 + 4
# How a member names the place of damage.
REFUSED = re.compile(r"the ledger is damaged at \d+|is \d+ bytes long|byte \d+")


def compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def built_shim(folder: Path) -> Path:
    """The shared library that makes syncs fail. Needs a C compiler."""
    made = folder / "syncshim.so"
    cc = compiler()
    assert cc is not None
    subprocess.run([cc, "-shared", "-fPIC", "-O1", "-o", str(made), str(SHIM), "-ldl", "-lpthread"], check=True)
    return made


class WithShim(Group):
    """A replicated log whose members' syncs can be made to fail. out_ms: from each failure until the member led no longer."""

    def __init__(self, folder: Path, *, size: int, heartbeat_ms: int, seed: int) -> None:
        super().__init__(folder, size=size, heartbeat_ms=heartbeat_ms, seed=seed)
        self.shim = built_shim(folder)
        self.failures: list[tuple[str, float, float]] = []  # member, when its sync failed, when it was restarted
        self.out_ms: list[float] = []

    def environment(self, name: str) -> dict[str, str] | None:
        faults = self.folder / "faults"
        # A checkpoint whose sync fails is not renamed, and the one before it stays: only syncs of entries are final.
        shim = {
            "SHIM_SWITCH": f"{faults}/{name}.fsync",
            "SHIM_FAILED": f"{faults}/{name}.failed",
            "SHIM_MATCH": "/data/",
        }
        return {**os.environ, "LD_PRELOAD": str(self.shim), **shim}

    def check_ledgers(self) -> None:
        """No send that began after the failure was acknowledged by the member whose sync had failed."""
        super().check_ledgers()
        assert self.failures, "no sync failed"
        for name, failed_ms, until_ms in self.failures:
            late = [
                op
                for op in self.history
                if op["op"] == "send"
                and op.get("to") == name
                and op["result"] == OK
                and failed_ms < op["begin"] < until_ms
            ]
            assert not late, f"{name} acknowledged after its sync had failed: {late[:3]}"
        self.counts["out_ms"] = int(max(self.out_ms))


async def fsync_eio(group: Any, seconds: float) -> bool:
    """The n-th sync of the leader fails once; later ones would succeed. It must leave, not go on."""
    name = await group.leader()
    failed, switch = (group.folder / "faults" / f"{name}.{what}" for what in ("failed", "fsync"))
    switch.write_text(f"{group.rng.randint(1, SYNCS_MAX)}\n")
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not failed.exists() or not failed.read_text().endswith("\n"):
            await pause(0.01)
        at_ms = float(failed.read_text())
        while await group._named_by(name) == name:
            await pause(0.01)
    group.out_ms.append(group.now() - at_ms)
    await pause(seconds)
    group.failures.append((name, at_ms, group.now()))
    return False


async def corrupt(group: Group, seconds: float) -> bool:
    """Stop as many members as may fail, flip a bit or cut a file of each, and start them under load.

    A member that refuses to start must name the place; its log is then moved away, as the error says, and the leader sends it.
    Its term, vote and checkpoint stay, so that it neither votes nor stands for election before it has what it had.
    """
    count = len(group.names) - (len(group.names) // 2 + 1)
    names = group.rng.sample(group.names, count)
    while len(group.history) < OPERATIONS_MIN:  # there is something to damage
        await pause(0.05)
    assert [await group.members[name].end(signal.SIGTERM) for name in names] == [0] * count
    for what in ("damaged", "refused"):
        group.counts.setdefault(what, 0)
    for name in names:
        done = await asyncio.to_thread(damage, group.ledger(name), group.rng)
        with (group.folder / "damage.txt").open("a") as file:
            file.write(f"{name}: {done}\n")
        group.counts["damaged"] += done is not None
        if not await started(group, name):
            group.counts["refused"] += 1
            for part in ("data", "index"):
                shutil.move(group.ledger(name) / part, group.ledger(name) / f"{part}.damaged{group.counts['refused']}")
            assert await started(group, name), f"{name} does not start without its damaged log"
    await pause(seconds)
    return False


async def started(group: Group, name: str) -> bool:
    """Start a member; False if it refuses because of damage, whose place it logs."""
    member, log = group.members[name], group.folder / f"{name}.log"
    before = len(log.read_text())
    await member.start()
    assert member.process is not None
    ready, ended = asyncio.ensure_future(member.ready()), asyncio.ensure_future(member.process.wait())
    await asyncio.wait([ready, ended], return_when=asyncio.FIRST_COMPLETED)
    refused = ended.done()
    for one in (ready, ended):
        one.cancel()
    await asyncio.gather(ready, ended, return_exceptions=True)
    if refused:
        said = log.read_text()[before:]
        assert REFUSED.search(said), f"{name} ended at its start without naming damage: {said[-600:]}"
        await member.end()
    return not refused


def damage(folder: Path, rng: random.Random) -> str | None:
    """Flip one bit of what a ledger uses of its files, or cut one of them there. Returns what was done; None: it was not whole."""
    report = verify(folder)
    if report.problems or report.end_pos <= 0:
        return None
    kind, at = chosen_place(folder, report, rng)
    files = sorted(file for file in (folder / kind).iterdir() if file.name.isdigit())
    file = max((one for one in files if int(one.name) <= at), key=lambda one: int(one.name))
    place = at - int(file.name)
    if rng.random() < 0.25:
        os.truncate(file, place)
        return f"{kind}/{file.name} cut at {place}"
    with file.open("r+b") as bytes_of:
        bytes_of.seek(place)
        byte = bytes_of.read(1)[0]
        bytes_of.seek(place)
        bytes_of.write(bytes((byte ^ 1 << rng.randrange(8),)))
    return f"{kind}/{file.name} one bit of byte {place}"


def chosen_place(folder: Path, report: LedgerReport, rng: random.Random) -> tuple[str, int]:
    """Kind of file and offset: in a message's body, an entry's header or the index, or with CHAOS_DAMAGE=any anywhere in use.

    Elsewhere a message has properties and fields that the formats of 4.9.7 protect with no checksum.
    """
    kind = rng.choice(("body", "header", "index"))
    index = rng.randint(max(report.begin_index, 0), report.end_index)
    units = (folder / "index" / f"{0:020}").read_bytes()
    unit = INDEX_UNIT.unpack_from(units, index * INDEX_UNIT.size)
    if os.environ.get("CHAOS_DAMAGE") == "any":
        return "data", rng.randrange(report.end_pos)
    if kind == "index":
        return "index", index * INDEX_UNIT.size + rng.randrange(INDEX_UNIT.size)
    pos = unit[1]
    if kind == "header":
        return "data", pos + rng.randrange(HEADER_CHECKED_BYTES)
    return "data", pos + BODY_AT


FAULTS_OF_GOALS: Mapping[str, Any] = {"corrupt": corrupt, "fsync-eio": fsync_eio}


class TransactionGroup(BrokerGroup):
    """Ordered and transactional load only (MODEL=tx)."""

    transaction_seconds = 0.02

    def load(self, per_second: float) -> list[Coroutine[Any, Any, None]]:
        lanes = [(producer, key) for producer in range(PRODUCERS) for key in range(2)]
        return [
            *(self.lane(*lane, per_second / 2 / len(lanes)) for lane in lanes),
            *(self.transactions(f"{number}-") for number in range(TRANSACTION_LANES)),
            self.assigned(),
            self.subscribed(),
            self.ordered(),
            self.routes(),
        ]
