"""Simulates a master and its slave with NameServers and clients in one thread, as simsystem.py does for a group.

Disks forget what was not synced when the power fails, and may tear the last writes. An operator does by hand what
docs/replication.md says: makes the slave the master when the master is lost, runs the repair that a slave asks for,
and sets a slave up again.

`python pairsystem.py FIRST COUNT [SECONDS [DEFECT]]` runs seeds; see simsystem.py.

Requirements: SIM-01, SIM-11, CHA-10.
"""

from __future__ import annotations

import asyncio
import itertools
import shlex
import shutil
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the harness, when this runs as a program

from simsystem import GROUP, QUEUES, TOPIC, Member, System, differing_queues, main, name_of, pause, queue_of

from harness.crash.disk import RecordingDisk
from harness.crash.states import FOLDER, Volume, crash_states
from harness.history.check import Checker
from harness.history.operations import OK
from harness.pairlog import REPAIR, appended, excuses, log_of, unpack
from harness.systemsim.loop import Process
from saturnmq.broker import Broker, BrokerSettings
from saturnmq.net import NetSettings, RemotingClient
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import Message, decode_records
from saturnmq.replication.masterslave import dispatch, opening, slave, stream, tail
from saturnmq.replication.masterslave.acks import SlaveAcks
from saturnmq.replication.masterslave.settings import HaSettings
from saturnmq.store import FlushDiskType, PutStatus, StoreProfile, StoreSettings
from saturnmq.store import store as store_module
from saturnmq.store.tools import repair
from saturnmq.store.tools.scan import log_files
from saturnmq.store.tools.verify import verify

FAULTS = (
    "crash master", "crash slave", "crash both", "power master", "power slave", "power both", "freeze master", "freeze slave",
    "partition", "one way", "slow disk", "slow net", "slave's disk", "master's disk", "master's disk behind",
    "master's disk and power", "old master returns", "heal",
)  # fmt: skip
TAKE_OVERS = ("master's disk behind", "master's disk", "master's disk and power", "old master returns")
GROUPS = ("subscribed",)
LATEST_S = 30.0  # how long a pair that is up may take until its slave has everything


class Node(Member):
    """A master or slave. Its folder holds what programs see; volume: what of it is durable."""

    def __init__(self, name: str, number: int, folder: Path) -> None:
        super().__init__(name, number, folder)
        self.folder.mkdir()
        self.volume = Volume()
        self.disk: RecordingDisk | None = None

    def store(self, flush: FlushDiskType) -> StoreSettings:
        return StoreSettings(
            store_path_root_dir=str(self.folder / "store"),
            profile=StoreProfile.SMALL,
            commit_log_file_bytes=65_536,
            consume_queue_file_bytes=4000,
            index_slots_max=100,
            index_entries_max=400,
            flush_disk_type=flush,
        )

    def new_disk(self) -> RecordingDisk:
        self.disk = RecordingDisk(self.folder, self.volume)
        return self.disk

    def settle(self) -> None:
        """The process has ended: the volume follows what it did."""
        if self.disk is not None:
            for operation in self.disk.operations:
                self.volume.do(operation)
            self.disk = None

    def empty(self) -> None:
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        self.volume = Volume()

    def lose_power(self, rng: Any) -> None:
        """What was not synced is lost, survives in part, or is torn."""
        state = rng.choice([one for one in crash_states(self.volume, None, rng, 3) if one.power] or [None])
        if state is not None:
            after = state.after()
            shutil.rmtree(self.folder)
            self.folder.mkdir()
            state.content().write(self.folder)
            self.volume = after

    def all_durable(self) -> None:
        """Everything in the folder is durable, such as after a command that changed it."""
        volume = Volume()
        for path in sorted(self.folder.rglob("*")):
            name = path.relative_to(self.folder).as_posix()
            if path.is_dir():
                volume.names[name] = FOLDER
            else:
                volume.names[name] = volume.next_inode
                volume.files[volume.next_inode] = bytearray(path.read_bytes())
                volume.next_inode += 1
        self.volume = volume


class PairSystem(System):
    """seed % 4: 0 and 2 SYNC_MASTER with SYNC_FLUSH, 1 ASYNC_MASTER with ASYNC_FLUSH, 3 ASYNC_MASTER with SYNC_FLUSH."""

    healed_s = 60.0
    replaces_members = False
    members: list[Node]  # type: ignore[assignment]

    def __init__(self, seed: int, folder: Path, seconds: float) -> None:
        super().__init__(seed, folder, seconds)
        self.plain, self.auto = True, False
        self.members = [Node(f"b{at}", at, folder) for at in range(2)]
        self.master, self.slave = self.members
        self.sync = seed % 2 == 0
        self.flush = FlushDiskType.ASYNC_FLUSH if seed % 4 == 1 else FlushDiskType.SYNC_FLUSH
        self.mix = (
            *self.rng.sample(FAULTS, self.rng.randrange(3, 8)),
            TAKE_OVERS[0] if seed % 4 == 0 else self.rng.choice(TAKE_OVERS),
        )
        self.fixed_address = self.rng.random() < 0.5
        self.batch_bytes = self.rng.choice((300, 32_768))
        self.lost: dict[tuple[str, int], Message] = {}
        self.places: set[tuple[str, int, int]] = set()  # topic, queue and offset of lost records: used again
        self.took_over = 0
        self.needed = 0  # where the master's log ended when the other disk was lost
        self.offsets: dict[tuple[int, str, str, int], int] = {}  # of the slave, by life
        self.masters_offsets: dict[tuple[str, str, int], int] = {}
        self.compared: tuple[int, int] = (0, 0)  # life of the slave, and how much of its log was compared
        self.life = 0
        self.operating = False
        self.broken: Exception | None = None
        self.differing: list[str] = []
        self.forked = False  # the master lost what its slave has: the slave is ahead until it is set up again
        self.returned = False  # the slave was the master, and its log has not been compared with the new one's yet

    @property
    def safe(self) -> bool:
        return self.sync and self.flush is FlushDiskType.SYNC_FLUSH

    @property
    def leader(self) -> Member | None:
        return self.master

    # processes

    def broker_of(self, member: Member) -> Broker:
        is_master = member is self.master
        assert isinstance(member, Node)
        role = "SLAVE" if not is_master else "SYNC_MASTER" if self.sync else "ASYNC_MASTER"
        settings = BrokerSettings(
            broker_name=GROUP,
            broker_id=0 if is_master else 1,
            broker_role=role,
            namesrv_addr=self.at,
            bind_address=member.host,
            listen_port=10911,
            fast_port_enable=False,
            admin_addresses="10.0.*.*",
            register_period_ms=10_000,
            slave_read_enable=True,
            transaction_timeout_ms=1000,
            transaction_interval_ms=1000,
        )
        ha = HaSettings(
            allowed_text="10.0.1.*",
            master_address=f"{self.master.host}:10912" if self.fixed_address else "",
            from_oldest=True,
            batch_bytes=self.batch_bytes,
            slave_timeout_ms=1000,
        )
        member.new_disk()
        opening.Disk = store_module.Disk = lambda: member.disk  # type: ignore[assignment,misc]
        self.life += 1
        return Broker(settings, member.store(self.flush), NetSettings(), ha=ha)

    def crash(self, member: Member) -> None:
        super().crash(member)
        assert isinstance(member, Node)
        member.settle()

    async def stop(self, member: Node) -> None:
        """As SIGTERM does."""
        process, broker = member.process, member.broker
        if process is not None and process.alive and broker is not None:
            if process.frozen:
                self.loop.thaw(process)
            process.disk_s = 0.002
            await self.loop.run_as(process, broker.stop())
            self.seen["stopped"] += 1
        self.crash(member)

    # faults

    async def faults(self) -> None:
        rng = self.rng
        while self.loading:
            await pause(rng.random() * 2 * self.every_s)
            if not self.loading:
                return
            if self.operating:
                continue
            fault = rng.choice(self.mix)
            self.seen[fault] += 1
            self.schedule.append(f"{self.loop.now - 1000:.1f} s {fault} (master {self.master.name})")
            with self.noted():
                await self.inflict(fault)

    async def inflict(self, fault: str) -> None:
        if fault in TAKE_OVERS:
            await asyncio.shield(self.loop.create_task(self.operate(self.take_over(fault))))
        else:
            self.fault(fault, self.master)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Keep the first failure of tasks that are not awaited."""
        try:
            yield
        except Exception as error:
            self.broken = self.broken or error
            raise

    def fault(self, fault: str, member: Member) -> None:
        rng, net = self.rng, self.loop.net
        what, _, whom = fault.partition(" ")
        chosen = {"master": [self.master], "slave": [self.slave], "both": self.members}.get(whom, [])
        if what == "crash":
            for one in chosen:
                self.crash(one)
                self.again_soon(one)
        elif what == "power":
            for one in chosen:
                self.power(one)
                self.again_soon(one)
        elif what == "freeze":
            for process in [one.process for one in chosen if one.up]:
                assert process is not None
                self.loop.freeze(process)
                self.loop.call_later(rng.random() * 6, lambda process=process: self.loop.thaw(process))
        elif fault == "partition":
            net.partition([self.master.name], [self.slave.name, *self._some_clients()])
        elif fault == "one way":
            names = [self.master.name, self.slave.name]
            rng.shuffle(names)
            net.cut.add((names[0], names[1]))
        elif fault == "slow disk":
            process = rng.choice(self.members).process
            if process is not None:
                process.disk_s = rng.choice((0.002, 0.2, 1.0))
        elif fault == "slow net":
            net.slow = rng.choice((0.0, 0.01, 0.05))
        elif fault == "slave's disk":
            if self.both_have(self.needed):
                self.needed = self.end_of(self.master)
                self.crash(self.slave)
                self.slave.empty()
                self.again_soon(self.slave)
        else:
            net.heal()

    def again_soon(self, member: Member) -> None:
        def restart() -> None:
            if not member.up and not self.operating:
                self.start(member)
            elif not member.up:
                self.loop.call_later(1.0, restart)

        self.loop.call_later(self.rng.random() * 5, restart)

    def end_of(self, member: Node) -> int:
        return len(log_of(member.store(self.flush)))

    def both_have(self, end: int) -> bool:
        """Whether no second disk may be lost because the other one is not restored yet."""
        broker = self.slave.broker
        copied = broker is not None and TOPIC in broker.topics.table
        return copied and not self.forked and not self.returned and min(self.end_of(one) for one in self.members) >= end

    def power(self, member: Node) -> None:
        """The power of one machine fails. What its log loses is lost, if it is the master's and ASYNC_FLUSH."""
        self.crash(member)
        before = whole_records(member.store(self.flush))
        member.lose_power(self.rng)
        if member is self.master:
            self.forked = self.forked or self.flush is FlushDiskType.ASYNC_FLUSH
            self.lose(before, whole_records(member.store(self.flush)))

    def lose(self, before: list[Message], kept: list[Message]) -> None:
        """Note what a log had that the new one has not; with SYNC_MASTER and SYNC_FLUSH nothing of it was acknowledged."""
        has, at = {appended(one) for one in kept}, {(one.physical_offset, appended(one)) for one in kept}
        self.lost |= {appended(one): one for one in before if appended(one) not in has}
        lost = [one for one in before if (one.physical_offset, appended(one)) not in at]
        self.places |= {(one.topic, one.queue_id, one.queue_offset) for one in lost}
        acknowledged = ({appended(one) for one in before} - has) & self.acknowledged()
        assert not acknowledged or not self.safe, f"acknowledged messages are lost: {sorted(acknowledged)}"
        self.seen["lost"] += len(acknowledged)
        self.seen["lacked"] += len(lost)

    def acknowledged(self) -> set[tuple[str, int]]:
        sends = [op for op in self.history if op["op"] == "send" and op["result"] == OK]
        return {(value, op["attempt"]) for op in sends for value, _ in op["messages"]}

    # the operator

    async def operate(self, work: Coroutine[Any, Any, None]) -> None:
        self.operating = True
        try:
            with self.noted():
                await work
        finally:
            self.operating = False

    async def take_over(self, fault: str) -> None:
        """The master is lost; its slave becomes the master (docs/replication.md, take-over by hand)."""
        old, new = self.master, self.slave
        if not self.both_have(self.needed) or not new.up:
            return
        self.loop.net.heal()
        if fault == "master's disk behind" or fault == "old master returns":
            self.loop.net.partition([old.name], [new.name])
            await pause(1 + self.rng.random() * 2)
        if fault == "master's disk and power":
            assert new.process is not None
            new.process.disk_s = 1.0  # so that more was received than is durable
            await pause(self.rng.random() * 2)
            self.power(old)
            self.crash(new)
            new.lose_power(self.rng)
        else:
            self.crash(old)
        await pause(self.rng.random() * 3)
        await self.stop(new)
        kept, had = log_of(new.store(self.flush)), log_of(old.store(self.flush))
        whole = whole_records(new.store(self.flush))
        assert self.forked or fault == "master's disk and power" or had.startswith(kept), "the slave's log is no prefix"
        self.lose(whole_records(old.store(self.flush)), whole)
        self.master, self.slave, self.took_over = new, old, self.took_over + 1
        self.loop.net.heal()
        self.seen["took over"] += 1
        if fault != "old master returns":
            old.empty()
            self.needed = len(kept)
        self.forked, self.returned = False, fault == "old master returns"
        self.start(new)
        await pause(self.rng.random() * 3)
        self.start(old)

    async def operator(self) -> None:
        """Do what a slave that does not follow says; set it up again if nothing else helps."""
        stuck_s = 0.0
        while True:
            await pause(1.0)
            broker = self.slave.broker
            if self.operating or broker is None or broker.ha_slave is None or not (self.slave.up and self.master.up):
                stuck_s = 0.0
                continue
            said = REPAIR.search(broker.ha_slave.client._last_reason)
            stuck_s = 0.0 if broker.ha_slave.client.connected else stuck_s + 1.0
            if said is not None:
                await self.operate(self.repair(said[1]))
            elif self.reason_to_set_up(broker, stuck_s):
                assert not self.safe, f"the slave does not follow: {broker.ha_slave.client._last_reason}"
                self.seen["set up again"] += 1
                await self.stop(self.slave)
                self.slave.empty()
                self.forked = False
                self.start(self.slave)

    def reason_to_set_up(self, broker: Broker, stuck_s: float) -> bool:
        """Whether the slave's store has failed, or it is not served, though nothing is wrong with the network."""
        healthy = not self.loop.net.cut and not self.loop.net.slow
        frozen = any(one.process is not None and one.process.frozen for one in self.members)
        return broker.store.failure is not None or (stuck_s > LATEST_S and healthy and not frozen)

    async def repair(self, command: str) -> None:
        """Run `saturnmq store repair --data FOLDER --at OFFSET --yes` while the slave is stopped."""
        words = shlex.split(command)
        settings = self.slave.store(self.flush)
        assert words[words.index("--data") + 1] == str(settings.root)
        await self.stop(self.slave)
        loss = repair.loss_at(settings, int(words[words.index("--at") + 1]))
        repair._rebuild_files = lambda *arguments: (
            None
        )  # it has a loop of its own: the next start rebuilds what it has to
        repair.cut(settings, loss)
        self.slave.all_durable()
        self.seen["repaired"] += 1
        self.start(self.slave)

    # load

    def load(self) -> list[tuple[Process, Coroutine[Any, Any, None]]]:
        one, two, three = self.clients
        return [
            (one, self.sender(0)),
            (two, self.sender(1)),
            (one, self.reader()),
            (two, self.subscribed(0, ordered=False)),
            (three, self.subscribed(1, ordered=False)),
            (three, self.routes()),
            (two, self.slave_reader()),
        ]

    async def run(self) -> None:
        watching = [self.loop.create_task(work) for work in (self.watch(), self.operator())]
        whole = self.loop.create_task(super().run())
        await asyncio.wait([whole, *watching], return_when=asyncio.FIRST_COMPLETED)
        for task in (*watching, whole):
            if task.done():
                task.result()
            task.cancel()

    async def level(self) -> None:
        """Wait until the slave has everything."""
        async with asyncio.timeout(2 * LATEST_S + 30):
            while self.operating or len({self.end_of(one) for one in self.members}) > 1 or not self.dispatched:
                await pause(0.5)
        stores = [one.broker.store for one in self.members if one.broker is not None]
        self.differing = differing_queues(*stores)
        for one in (self.slave, self.master):
            await self.stop(one)

    @property
    def dispatched(self) -> bool:
        brokers = [one.broker for one in self.members]
        return all(one is not None and not one.store.behind_bytes for one in brokers)

    def calm(self) -> None:
        """Heal; the operator and a take-over that has begun go on."""
        self.loading = False
        self.loop.net.slow = 0.0
        self.loop.net.heal()
        for member in self.members:
            if member.process is not None:
                if member.process.frozen:
                    self.loop.thaw(member.process)
                member.process.disk_s = 0.002
            if not member.up and not self.operating:
                self.start(member)

    async def slave_reader(self) -> None:
        """Pull from the slave, also where only the master has something: it must answer with what it has, and send no one back."""
        net, at, life = RemotingClient(settings=NetSettings()), dict.fromkeys(range(QUEUES), 0), -1
        while self.loading:
            await pause(self.rng.random() * 0.4)
            member, number = self.slave, self.rng.randrange(QUEUES)
            if life != self.life:
                life, at = self.life, dict.fromkeys(range(QUEUES), 0)
            ahead = self.rng.random() < 0.3
            offset = at[number] + (5 if ahead else 0)
            ext = {
                "consumerGroup": "slave-reader", "topic": TOPIC, "queueId": str(number), "queueOffset": str(offset),
                "maxMsgNums": "8", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
                "subVersion": "0", "expressionType": "TAG",
            }  # fmt: skip
            begin = self.now
            try:
                answer = await net.invoke(f"{member.host}:10911", Command(RequestCode.PULL_MESSAGE, ext=ext), 1500)
            except SaturnError:
                continue
            self.seen[f"slave pull {answer.code}"] += 1
            if member is not self.slave or life != self.life or member.broker is None:
                continue
            if answer.code != ResponseCode.SUCCESS:
                assert "nextBeginOffset" not in answer.ext or int(answer.ext["nextBeginOffset"]) >= offset, (
                    f"the slave sends a reader back from {offset}: {answer.code} {answer.ext}"
                )
                continue
            log = member.broker.store.log
            found = decode_records(answer.body or b"")
            for message in found:
                has = log.view(message.physical_offset, message.store_bytes)
                assert has is not None, f"the slave serves {message.physical_offset}, which it does not have"
            polled = [[message.queue_offset, *unpack(bytes(message.body))] for message in found]
            reader = f"slave {begin}" if ahead else f"slave {life}"
            self.history.add(
                "poll", reader, begin, self.now, group="slave", queue=name_of(queue_of(number)), mode="assigned", messages=polled
            )  # fmt: skip
            if not ahead:
                at[number] = int(answer.ext["nextBeginOffset"])

    # invariants

    async def watch(self) -> None:
        """Check what must always hold: a served slave's log is a prefix of its master's, offsets do not go back."""
        while True:
            await pause(0.25)
            broker, leader = self.slave.broker, self.master.broker
            if broker is None or leader is None or broker.ha_slave is None or leader.ha_slave is not None:
                continue
            if not (self.slave.up and self.master.up):
                continue
            if broker.ha_slave.client.connected and not self.operating:
                self.returned = False
                self.check_prefix(broker, leader)
            self.check_offsets(broker, leader)

    def check_prefix(self, broker: Broker, leader: Broker) -> None:
        life, done = self.compared
        at = done if life == self.life else 0
        ours, theirs = broker.store.log, leader.store.log
        at, end = max(at, ours.first_position, theirs.first_position), ours.end
        while at < end:
            size = min(end, (at // 65_536 + 1) * 65_536) - at
            left, right = ours.view(at, size), theirs.view(at, size)
            assert left is not None and right is not None and left == right, (
                f"the slave's log to {end} is no prefix of the master's, which ends at {theirs.end}, from {at} on"
            )
            at += size
        self.compared = (self.life, at)
        self.seen["prefix compared"] += 1

    def check_offsets(self, broker: Broker, leader: Broker) -> None:
        masters = places(leader)
        for place, at in places(broker).items():
            before = self.offsets.get((self.life, *place), 0)
            self.offsets[self.life, *place] = at
            floor = min(before, masters.get(place, before), self.masters_offsets.get(place, before))
            assert at >= floor, f"the slave's offset of {place} fell from {before} to {at}"
        self.masters_offsets = masters

    def check(self) -> None:
        """Check the history, that nothing else is lost than what a log lacked, logs, queues and routes."""
        if self.broken is not None:
            raise self.broken
        checker = Checker()
        checker.report.kept = 10**6
        for operation in self.history:
            checker.add(operation)
        excused = self.excused()
        problems = [text for one in checker.finish().problems if not (text := str(one)).startswith(excused)]
        assert not problems, "\n".join(problems[:40])
        polls = [op for op in self.history if op["op"] == "poll" and op["mode"] == "final"]
        read = {(value, attempt) for op in polls for _, value, attempt in op["messages"]}
        rolled = {(op["value"], 1) for op in self.history if op["op"] == "end"}
        missing = self.acknowledged() - read - self.lost.keys() - rolled
        assert not missing, f"acknowledged, and not there: {sorted(missing)}"
        assert max(self.masters, default=2) <= 1, "a route names two masters, or none was read"
        assert self.seen["send ok"] > 10, "hardly anything was sent"
        left, right = (log_of(one.store(self.flush)) for one in self.members)
        assert left == right, "the logs differ"
        assert not self.differing, f"queues differ: {self.differing}"
        for one in self.members:
            report = verify(one.store(self.flush))
            assert report.sound, report.problems

    def excused(self) -> tuple[str, ...]:
        """What a lost message, and offsets of groups that fall back with a take-over, make the checker say."""
        said = excuses(self.lost.values(), TOPIC, GROUP)
        said += [f"inconsistent-offsets: {topic}/{GROUP}/{queue} offset {at} holds" for topic, queue, at in self.places]
        if self.took_over or self.seen["crashed"]:
            said += ["nonmonotonic-poll: member", "duplicate: 'half-"]
        if self.lost:
            said += ["nonmonotonic-poll: reader", "nonmonotonic-poll: slave"]
        if not self.safe and self.lost:
            said += ["nonmonotonic-send:", "key-order:", "poll-skip:"]
        return tuple(said)


def places(broker: Broker) -> dict[tuple[str, str, int], int]:
    """The consumer offsets of a broker by group, topic and queue."""
    groups = [
        (group, topic, broker.offsets.of(topic, group)) for group in GROUPS for topic in (TOPIC, f"%RETRY%{group}")
    ]
    return {(group, topic, queue): at for group, topic, queues in groups for queue, at in queues.items()}


def whole_records(settings: StoreSettings) -> list[Message]:
    """The messages of clients up to the first gap or damaged record, where the next start ends the log.

    A record whose end was not written is damaged, too: no checksum of its own covers its properties.
    """
    kept: list[Message] = []
    end = len(log_of(settings))
    for file in log_files(settings):
        at = 0
        while isinstance(found := file.record(at), Message) and found.physical_offset + found.store_bytes <= end:
            at += found.store_bytes
            if b"#" in bytes(found.body):
                kept.append(found)
        if found is not None or not file.is_filled(at):
            break
    return kept


def plant(defect: str) -> None:
    """Plant a defect by name, to check that it is found."""
    if defect == "acknowledged before the slave has it":
        SlaveAcks.when_acknowledged = lambda acks, position, callback: callback(PutStatus.PUT_OK, "")
    elif defect == "reported before it is durable":
        dispatch.SlaveDispatch.stored = property(lambda one: one.log.end)  # type: ignore[assignment]
    elif defect == "gaps are accepted":
        slave.check_frame = lambda frame, end, file_bytes: None
        feed, count = stream.TransferDecoder.feed, itertools.count(1)
        slave.TransferDecoder.feed = lambda decoder, data: (frame for frame in feed(decoder, data) if next(count) % 40)
    elif defect == "another log is followed":
        tail.TailCheck.is_complete = property(lambda check: True)  # type: ignore[assignment]
    else:
        raise SystemExit(f"no defect is called {defect!r}")


if __name__ == "__main__":
    main(PairSystem, plant)
