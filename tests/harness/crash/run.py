"""Recorded runs ("lives") of a store: a seed decides what it does; every step records what it then guarantees.

Requirements: DUR-13, DUR-14.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from harness.crash.check import (
    BROKER,
    STATE_FILE,
    CrashStore,
    InlineExecutor,
    Promise,
    TinySettings,
    parse_state,
    remembered,
    snapshot,
    survivors,
)
from harness.crash.disk import RecordingDisk
from harness.crash.states import Operation, State, Volume, promised_states
from saturnmq.protocol.codes import SCHEDULE_TOPIC, SysFlag
from saturnmq.protocol.message import Message, encode_properties
from saturnmq.protocol.offsets import NO_PHYSICAL_OFFSET, QueueOffset
from saturnmq.store import (
    FlushDiskType,
    MessageStore,
    PutResult,
    PutStatus,
    StateFile,
    StoreProfile,
    StoreSettings,
    wait_confirmed,
)

ROOT: Final = "store"
TOPICS: Final = ("alpha", "beta", "gamma", SCHEDULE_TOPIC)
START_MS: Final = 2_000_000_000_000  # later than any file's modification time, so that all files count as expired
STEPS: Final = 28


def settings_of(seed: int, top: Path) -> StoreSettings:
    """Store settings of a seed: flush mode, file sizes, transient pool or not, small or standard profile (index by mapping)."""
    rng = random.Random(f"settings {seed}")
    sync = seed % 2 == 0
    return TinySettings(
        store_path_root_dir=str(top / ROOT),
        flush_disk_type=FlushDiskType.SYNC_FLUSH if sync else FlushDiskType.ASYNC_FLUSH,
        transient_pool_enable=not sync and seed % 10 == 5,
        profile=StoreProfile.STANDARD if rng.random() < 0.3 else StoreProfile.SMALL,
        commit_log_file_bytes=rng.choice((2048, 3072, 4096)),
        consume_queue_file_bytes=rng.choice((100, 160, 200)),
        index_slots_max=20,
        index_entries_max=30,
        file_reserved_hours=0,
        delete_pause_ms=0,
        delete_queue_pause_ms=0,
    )


@dataclass(slots=True)
class Life:
    """A recording: the initial disk, the operations, and the promises with the number of operations before each.

    opened: number of operations that belong to the recovery. whole: nothing was unsynced at the start.
    """

    seed: int
    number: int
    begin: Volume
    operations: list[Operation]
    promises: list[tuple[int, Promise]]
    opened: int
    whole: bool

    def states(self) -> Iterator[tuple[int, int, State, Promise]]:
        """(cut, variant, state, promise) of every crash state. Use a state before requesting the next."""
        return promised_states(f"{self.seed} {self.number}", self.begin, self.operations, self.promises)


def lives(seed: int, top: Path, count: int) -> Iterator[Life]:
    """The lives of one store: each begins with a crash state of the previous one. top is an empty folder."""
    life = record(seed, 0, top, Volume(), Promise(clock_ms=START_MS), whole=True)
    yield life
    for number in range(1, count):
        rng = random.Random(f"life {seed} {number}")
        power = rng.random() < 0.6
        cut = rng.randrange(len(life.operations) + 1)
        chosen = [found for found in _states_at(life, cut) if found[0].power == power] or list(_states_at(life, cut))
        state, promise = rng.choice(chosen)
        if state.power:
            promise = replace(promise, kept_kill=promise.kept_power)
        life = record(seed, number, top, state.after(), replace(promise, recovered={}), whole=state.power)
        yield life


def _states_at(life: Life, wanted: int) -> list[tuple[State, Promise]]:
    found = []
    for cut, _, state, promise in life.states():
        if cut > wanted:
            break
        if cut == wanted:
            found.append((State(state.volume.copy(), list(state.survived), state.power, state.how), promise))
    return found


def record(seed: int, number: int, top: Path, begin: Volume, promise: Promise, *, whole: bool) -> Life:
    """Run a store on a recording disk, in its own folder below top."""
    folder = top / f"life{number}"
    folder.mkdir()
    begin.content(begin.pending).write(folder)
    disk = RecordingDisk(folder, begin)
    run = _Run(seed, number, folder, disk, promise)
    disk.threads = InlineExecutor(disk)
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(run.live())
    finally:
        loop.close()
    return Life(seed, number, begin, disk.operations, run.promises, run.opened, whole)


class _Run:
    """One life while it runs."""

    def __init__(self, seed: int, number: int, folder: Path, disk: RecordingDisk, promise: Promise) -> None:
        self.rng = random.Random(f"run {seed} {number}")
        self.name = f"{seed}.{number}"
        self.disk = disk
        self.settings = settings_of(seed, folder)
        self.promises = [(0, promise)]
        self.promise = promise
        self.clock_ms = promise.clock_ms
        self.opened = 0
        self.store: MessageStore = CrashStore(self.settings, clock_ms=lambda: self.clock_ms, disk=disk)
        self.state = StateFile(self.settings.root / STATE_FILE, disk)
        self.waiting: list[PutResult] = []
        self.count = 0

    def mark(self, **changes: object) -> None:
        """Record what the store guarantees from this operation on."""
        store, history = self.store, self.promise.history
        safe = sum(put.end <= store.log.confirmed_end for put in history)
        written = sum(put.end <= store.log.readable_end for put in history)
        now: dict[str, object] = {
            "kept_power": max(self.promise.kept_power, safe),
            "kept_kill": max(self.promise.kept_kill, written if store.confirms_at_once else safe),
            "clock_ms": self.clock_ms,
        }
        self.promise = replace(self.promise, **(now | changes))  # type: ignore[arg-type]
        self.promises.append((len(self.disk.operations), self.promise))

    async def live(self) -> None:
        self.store.open()
        self.promise.recovered.update(snapshot(self.settings.root))
        self.opened = len(self.disk.operations)
        old = self.promise
        count, problems = survivors(self.store, old.history)
        assert not problems, f"{self.name} begins with a broken store: {problems}"
        value = self.state.read(parse_state) or 0
        self.promise = Promise(
            old.history[:count],
            start=max(self.store.log.first_position, 0),
            saved=(old.saved[0], max(value, old.saved[0])),
            deleted={topic: min(born, count) for topic, born in old.deleted.items()},
        )
        self.mark()
        self.disk.between = self._meanwhile
        for _ in range(STEPS):
            self.clock_ms += self.rng.randrange(1500)
            await self._step()
            self.mark()
        self.disk.between = None
        if self.rng.random() < 0.3:
            await self._restart()
        self.store.close_files()

    def _meanwhile(self) -> None:
        """Runs while another thread writes: the event loop appends messages and sometimes deletes a topic."""
        chance = self.rng.random()
        if chance < 0.1 and self.store.writable:
            self._send()
            self.mark()
        elif chance > 0.995 and not self.store.queues.lock.locked():
            self._delete_topic()
            self.mark()

    async def _step(self) -> None:
        steps: list[tuple[int, Callable[[], object]]] = [
            (40, self._send),
            (8, self._batch),
            (12, self._confirm),
            (6, self._flush),
            (7, self._round),
            (5, self.store.write_all),
            (4, self._spare),
            (5, self._save),
            (2, self._delete_topic),
            (3, self._clean),
            (2, self._restart),
            (2, self._jump),
            (4, self.store.commit),
        ]
        _, step = self.rng.choices(steps, [weight for weight, _ in steps])[0]
        done = step()
        if asyncio.iscoroutine(done):
            await done

    # ---- messages

    def _message(self, topic: str, queue_id: int, flag: int = 0) -> tuple[Message, tuple[str, ...]]:
        rng = self.rng
        self.count += 1
        unique = f"U{self.name}.{self.count}"
        words = [f"k{rng.randrange(9)}" for _ in range(rng.choice((0, 0, 1, 1, 2, 3)))]
        properties: dict[str, str | None] = {"UNIQ_KEY": unique, "KEYS": " ".join(words) or None}
        if rng.random() < 0.5:
            properties["TAGS"] = rng.choice("abc")
        if topic == SCHEDULE_TOPIC:
            properties["DELAY"] = str(queue_id + 1)
        if rng.random() < 0.15:
            properties["long"] = "x" * rng.randrange(200, 700)
        raw = encode_properties(properties)
        if rng.random() < 0.05:
            raw, unique, words = b"", "", []
        body = (unique or "plain").encode() * rng.choice((0, 1, 1, 2, 5, 20, 40))
        message = Message(
            topic,
            body,
            raw,
            queue_id,
            sys_flag=flag,
            born_host=BROKER,
            store_host=BROKER,
            physical_offset=NO_PHYSICAL_OFFSET,
        )
        return message, (unique, *words) if unique else ()

    def _send(self) -> None:
        rng = self.rng
        topic = rng.choice(TOPICS)
        flag = rng.choice((SysFlag.PREPARED, SysFlag.ROLLBACK, SysFlag.COMMIT)) if rng.random() < 0.15 else 0
        message, words = self._message(topic, rng.randrange(2), int(flag))
        self._taken(self.store.put(message), [(message, words)])

    def _batch(self) -> None:
        topic, queue_id = self.rng.choice(TOPICS[:3]), self.rng.randrange(2)
        items = [self._message(topic, queue_id) for _ in range(self.rng.randrange(1, 4))]
        if sum(len(m.body) + len(m.properties_raw) + 200 for m, _ in items) < self.settings.commit_log_bytes:
            self._taken(self._put_batch([message for message, _ in items]), items)

    def _put_batch(self, messages: list[Message]) -> PutResult:
        result = self.store.put_batch(messages[0], [message.entry for message in messages])
        ends = (*result.physical_offsets[1:], result.end_offset)
        for number, (message, at, end) in enumerate(zip(messages, result.physical_offsets, ends, strict=False)):
            message.physical_offset, message.store_bytes = at, end - at
            message.queue_offset = QueueOffset(result.queue_offset + number)
            message.store_timestamp_ms = result.store_timestamp_ms
        return result

    def _taken(self, result: PutResult, items: list[tuple[Message, tuple[str, ...]]]) -> None:
        if self.store.log.pooled and result.status is PutStatus.CREATE_MAPPED_FILE_FAILED:
            self.promise.history.extend(
                remembered(self.store, message, words) for message, words in items if message.physical_offset >= 0
            )
            return  # no buffer is left until the next commit
        assert result.status is PutStatus.PUT_OK, f"{result.status} {result.reason}"
        self.promise.history.extend(remembered(self.store, message, words) for message, words in items)
        self.waiting.append(result)

    async def _confirm(self) -> None:
        waiting, self.waiting = self.waiting, []
        for status in await asyncio.gather(*(self.store.wait_confirmed(result) for result in waiting)):
            assert status is PutStatus.PUT_OK, status

    # ---- maintenance

    async def _flush(self) -> None:
        self.store.commit()
        await wait_confirmed(self.store.log, self.store.log.readable_end, 60_000)

    async def _round(self) -> None:
        await self.store._maintenance._write_queues(1)

    async def _spare(self) -> None:
        await self.store._maintenance._prepare_file()

    def _save(self) -> None:
        low, high = self.promise.saved
        self.mark(saved=(low, high + 1))
        self.state.write(json.dumps({"n": high + 1}).encode())
        self.mark(saved=(high + 1, high + 1))

    def _delete_topic(self) -> None:
        topic = self.rng.choice(TOPICS[:3])
        if self.store.behind_bytes:
            return  # it has unconfirmed messages
        self.mark(deleted={**self.promise.deleted, topic: len(self.promise.history)})
        self.store.delete_topic(topic)

    async def _clean(self) -> None:
        if self.store.log.files:
            self.mark(start=self.store.log.files[-1].start)
            self.store.delete_expired_files()
            await self.store._maintenance.clean()
            self.mark(start=self.store.log.first_position)

    def _jump(self) -> None:
        self.clock_ms += self.rng.choice((-3_600_000, 3_600_000))

    async def _restart(self) -> None:
        await self._confirm()
        between, self.disk.between = self.disk.between, None
        await self.store.stop()
        self.mark(kept_power=len(self.promise.history), kept_kill=len(self.promise.history))
        self.store = CrashStore(self.settings, clock_ms=lambda: self.clock_ms, disk=self.disk)
        self.store.open()
        self.disk.between = between
