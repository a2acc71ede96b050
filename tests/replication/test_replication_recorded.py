"""Recorded runs of the parts of replication that do no I/O, and of a slave that receives a log: as in recorded_runs.txt.

Inputs are drawn by a seed: reports and frames cut anywhere, impossible ones among them, records that another broker has made up,
bytes of a log with a bit flipped.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from slavestub import BROKER, CLIENT, log_bytes
from test_broker_dledger import Alone

from loglines import own_messages
from recordedruns import attempt, check_run, public
from saturnmq.protocol.codes import SCHEDULE_TOPIC, SysFlag
from saturnmq.protocol.message import Message
from saturnmq.protocol.offsets import PhysicalOffset, QueueOffset
from saturnmq.replication.masterslave.acks import SlaveAcks
from saturnmq.replication.masterslave.dispatch import SlaveDispatch
from saturnmq.replication.masterslave.opening import slave_dispatch
from saturnmq.replication.masterslave.stream import (
    DATA_BYTES_MAX,
    HEADER,
    OFFSET_MAX,
    Extent,
    Frame,
    SlavePosition,
    TransferDecoder,
    check_frame,
    encode_heartbeat,
    encode_report,
)
from saturnmq.replication.masterslave.tail import EQUAL_BYTES_MIN, TailCheck
from saturnmq.replication.records import (
    QUEUE_OFFSET_MAX,
    QUEUES_MAX,
    STORE_MS_MAX,
    check_fields,
    check_place,
    queue_for,
)
from saturnmq.store import MessageStore, PutStatus, StoreProfile, StoreSettings

RECORDED: Final = Path(__file__).with_name("recorded_runs.txt")
FILE: Final = 4096
START_MS: Final = 1_700_000_000_000


def settings_of(path: Path, **more: Any) -> StoreSettings:
    values = {"commit_log_file_bytes": FILE, "consume_queue_file_bytes": 200, "profile": StoreProfile.SMALL} | more
    return StoreSettings(store_path_root_dir=str(path), **values)


def near(chance: random.Random, *values: int) -> int:
    """One of these numbers, or a neighbour."""
    return chance.choice(values) + chance.choice((-1, 0, 0, 1))


def test_positions_of_a_slave_as_recorded() -> None:
    steps = []
    for seed in range(60):
        chance, lines = random.Random(f"position {seed}"), []
        position = SlavePosition(from_oldest=seed % 2 == 0)
        first = chance.choice((-1, 0, FILE, 3 * FILE))
        end = max(first, 0) + chance.randrange(3 * FILE)
        rest = b""
        for _ in range(12):
            extent = Extent(PhysicalOffset(first), PhysicalOffset(end), FILE)
            reported = near(chance, 0, first, end, end - end % FILE, position.position or 0, position.acknowledged)
            rest += encode_report(PhysicalOffset(reported)) * chance.choice((0, 1, 1, 2))
            at = chance.randrange(len(rest) + 1)
            lines.append(attempt(position.received, rest[:at], extent))
            rest = rest[at:]
            offset, size = position.next_data(extent, chance.choice((100, FILE, DATA_BYTES_MAX)))
            lines.append(f"{offset} {size} {position.position} {position.acknowledged}")
            if size:
                position.sent(chance.choice((size, size // 2)))
            end += chance.randrange(FILE)
        steps.append("\n".join(lines))
    check_run(RECORDED, "positions", steps)


def test_frames_as_recorded() -> None:
    steps = []
    for seed in range(40):
        chance, lines, data = random.Random(f"frames {seed}"), [], b""
        for _ in range(8):
            offset = near(chance, 0, FILE, OFFSET_MAX)
            size = chance.randrange(200)
            claimed = near(chance, DATA_BYTES_MAX, -1) if chance.random() < 0.05 else size
            data += encode_heartbeat(PhysicalOffset(max(offset, 0))) + HEADER.pack(offset, claimed) + bytes(size)
        decoder = TransferDecoder()
        while data:
            at = chance.randrange(1, 300)
            lines.append(attempt(lambda piece=data[:at]: list(decoder.feed(piece))))  # noqa: B023
            data = data[at:]
        for _ in range(20):
            frame = Frame(near(chance, 0, FILE, 100, OFFSET_MAX), bytes(near(chance, 1, FILE, 100, FILE - 100)))
            lines.append(attempt(check_frame, frame, near(chance, 0, 1, FILE, 100), FILE))
        steps.append("\n".join(lines))
    check_run(RECORDED, "frames", steps)


async def test_acknowledgements_as_recorded() -> None:
    steps = []
    for seed in range(20):
        chance, lines = random.Random(f"acks {seed}"), list[str]()
        acks = SlaveAcks(fall_behind_max=1000, timeout_ms=3000)
        clock = asyncio.get_running_loop().time
        begin = clock()
        acks.on_wait = lambda: lines.append("sends wait")  # noqa: B023
        position = 0
        for number in range(40):
            kind = chance.choice(("set", "set", "wait", "wait", "wait", "remove", "pause", "now"))
            if kind == "set":
                acks.set(f"s{chance.randrange(3)}", PhysicalOffset(near(chance, position, position - 500)))
            elif kind == "wait":
                position = max(position, near(chance, position + 100, acks.highest + 1000, acks.highest))

                def outcome(status: PutStatus, reason: str, number: int = number) -> None:
                    lines.append(f"{number} {status.name} {reason} after {clock() - begin:.1f}")  # noqa: B023

                acks.when_acknowledged(PhysicalOffset(position), outcome)
            elif kind == "remove":
                acks.remove(f"s{chance.randrange(3)}")
            elif kind == "pause":
                later = asyncio.Event()
                asyncio.get_running_loop().call_later(chance.choice((0.7, 1.7, 3.3)), later.set)
                await later.wait()
            else:
                acks.send_now()
            lines.append(f"{number} {kind} {public(acks)} {clock() - begin:.1f}")
        acks.stop()
        lines.append(f"{acks.seconds.count} {acks.seconds.sum:.1f}")
        steps.append("\n".join(lines))
    check_run(RECORDED, "acknowledgements", steps)


def filled(path: Path, chance: random.Random) -> MessageStore:
    """A master's store with messages of all kinds, and topics that were deleted and created again."""
    ms = iter(range(START_MS, START_MS + 10**9, 700))
    store = MessageStore(settings_of(path), clock_ms=lambda: next(ms))
    store.open()
    for number in range(60):
        topic = chance.choice(("A", "B", "B", SCHEDULE_TOPIC))
        flag = chance.choice((0, 0, 0, 0, SysFlag.PREPARED, SysFlag.COMMIT, SysFlag.ROLLBACK))
        raw = b"KEYS\x01k%d\x02TAGS\x01t%d\x02UNIQ_KEY\x01u%d" % (number % 7, number % 3, number)
        body = b"%03d" % number * chance.choice((1, 20, 200))
        made = Message(topic, body, raw, number % 2, sys_flag=int(flag), born_host=CLIENT, store_host=BROKER)
        assert store.put(made).status is PutStatus.PUT_OK
        if chance.random() < 0.05:
            store.delete_topic("B")
    return store


def shown(dispatch: SlaveDispatch) -> Iterator[str]:
    store, log = dispatch.store, dispatch.log
    yield f"{dispatch.stored} {log.end} {log.received} {log.has_record} {log.confirmed_end} {log.readable_end}"
    yield f"{store.dispatched} {store.last_store_ms} {store.behind_bytes} {store.writable} {log.first_position}"
    for key, queue in sorted(store.queues.by_key.items()):
        units = list(queue.units(queue.min_offset, QueueOffset(queue.max_offset)))
        yield f"{key} {queue.min_offset} {queue.max_offset} {units}"


@pytest.mark.parametrize("seed", range(6))
def test_a_slave_receives_a_log_as_recorded(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("saturnmq.replication.masterslave.dispatch.STEP_SECONDS", 60)
    chance, steps = random.Random(f"slave {seed}"), list[str]()
    master = filled(tmp_path / "master", chance)
    data = bytearray(log_bytes(master))
    if seed % 2:
        data[chance.randrange(2 * FILE, len(data))] ^= 1 << chance.randrange(8)
    dispatch = slave_dispatch(settings_of(tmp_path / "slave"), lambda: START_MS)
    store, log, at = dispatch.store, dispatch.log, 0
    store.open()
    dispatch.on_message = lambda topic, queue_id: lines.append(f"{topic}/{queue_id}")
    while at < len(data):
        lines: list[str] = []
        size = min(chance.choice((1, 8, 100, 700, 3000)), len(data) - at, FILE - at % FILE)
        log.receive(bytes(data[at : at + size]))
        at += size
        lines.append(verdict := attempt(dispatch.step))
        lines += [attempt(log.record_start, chance.randrange(max(log.end, 1))), *shown(dispatch)]
        if chance.random() < 0.05:
            dispatch.discard_rest()
            at = log.received
        steps.append("\n".join(lines).replace(str(tmp_path), "FOLDER"))
        if not verdict.startswith("DispatchStep"):
            break
    for compared in (300, EQUAL_BYTES_MIN, 8 << 20):
        for flipped in (-1, log.end - 1, log.end // 2, 0):
            check, lines = TailCheck(log, compared), []
            sent = bytearray(data[: log.end] + b"after")
            if flipped >= 0:
                sent[flipped] ^= 1
            begin = check.first
            for end in [*sorted(chance.sample(range(begin, len(sent)), min(3, len(sent) - begin))), len(sent)]:
                lines.append(attempt(check.received, bytes(sent[begin:end])))
                lines.append(f"{check.first} {check.at} {check.is_complete} {check.is_certain(check.at)}")
                begin = end
            lines.append(attempt(TailCheck(log, compared).received, b""))
            steps.append("\n".join(lines))
    store.close_files()
    master.close_files()
    steps.append("\n".join(own_messages(caplog)).replace(str(tmp_path), "FOLDER"))
    check_run(RECORDED, f"slave {seed}", steps)


def test_records_of_another_broker_as_recorded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    chance, lines = random.Random("records"), list[str]()
    store = filled(tmp_path, chance)
    names = ("", ".", "..", "a/b", "a\n", "t" * 255, "t" * 256, "é" * 127 + "a", "é" * 128, "A", "B", "B")
    for _ in range(300):
        queue_id, number = near(chance, 0, 1, QUEUES_MAX), near(chance, 0, 5, 10, QUEUE_OFFSET_MAX)
        made = Message(chance.choice(names), b"", b"", queue_id, born_host=CLIENT, store_host=BROKER)
        made.queue_offset, made.store_timestamp_ms = QueueOffset(number), near(chance, 0, START_MS, STORE_MS_MAX)
        made.physical_offset = PhysicalOffset(near(chance, 0, store.log.end // 2, store.log.end))
        made.sys_flag = int(chance.choice((0, SysFlag.PREPARED, SysFlag.COMMIT, SysFlag.ROLLBACK)))
        lines.append(verdict := attempt(check_fields, made))
        if verdict != "None":
            continue
        queue = queue_for(store.queues, made)
        lines.append(attempt(check_place, queue, made))
        if queue is not None:
            lines.append(f"{queue.min_offset} {queue.max_offset} {queue.next_offset}")
    store.close_files()
    check_run(
        RECORDED, "records", ["\n".join(lines[at : at + 20]) for at in range(0, len(lines), 20)] + own_messages(caplog)
    )


# ---- the store of a group


def state_of(store: MessageStore) -> Iterator[str]:
    """What is in a store, without times, which the wall clock decides."""
    log = store.log
    yield f"{log.first_position} {log.end} {log.readable_end} {log.confirmed_end} {store.dispatched} {store.writable}"
    yield f"{[(file.start, file.end) for file in log.files]} {log.cut_file!r} {store.behind_bytes}"
    for key, queue in sorted(store.queues.by_key.items()):
        yield f"{key} {queue.min_offset} {queue.max_offset} {list(queue.units(queue.min_offset, queue.max_offset))}"
        for offset in range(queue.min_offset, queue.max_offset):
            place = store.physical_offset(*key, QueueOffset(offset))
            yield f"{store.place_of(place)} {store.properties(*key, QueueOffset(offset))!r}"
    for word in range(7):
        yield f"{[len(record) for record in store.query('A', f'k{word}', 64, 0, 2**62).records]}"


def lose(kind: str, root: Path) -> None:
    """What happened to a store since it was stopped."""
    if kind != "clean":
        (root / "abort").touch()
    if kind in ("queues", "checkpoint"):
        shutil.rmtree(root / "consumequeue" / "A")
    if kind == "index":
        shutil.rmtree(root / "index")
    if kind == "checkpoint":
        (root / "checkpoint").unlink()


@pytest.mark.parametrize("old", [False, True], ids=["new", "old log"])
async def test_store_of_a_group_recovers_as_recorded(
    tmp_path: Path, old: bool, caplog: pytest.LogCaptureFixture
) -> None:
    chance, steps = random.Random(f"group {old}"), list[str]()
    if old:
        await filled(tmp_path, chance).stop()
    for kind in ("clean", "clean", "killed", "queues", "index", "checkpoint", "clean"):
        caplog.clear()
        lose(kind, tmp_path)
        async with Alone(tmp_path, commit_log_file_bytes=FILE, consume_queue_file_bytes=200) as store:
            lines = [kind, *state_of(store)]
            for number in range(10):
                topic = chance.choice(("A", "A", "B"))
                flag = chance.choice((0, 0, 0, SysFlag.PREPARED, SysFlag.COMMIT, SysFlag.ROLLBACK))
                raw = b"KEYS\x01k%d\x02TAGS\x01t%d" % (number % 7, number % 3)
                body = b"%03d" % number * chance.choice((1, 20, 200))
                made = Message(topic, body, raw, number % 2, sys_flag=int(flag), born_host=CLIENT, store_host=BROKER)
                result = store.put(made)
                lines.append(f"{result.status} {result.physical_offset} {result.queue_offset} {result.end_offset}")
                lines.append(f"{await store.wait_confirmed(result)} {store.log.readable_end}")
            while store.dispatched < store.log.end:
                await asyncio.sleep(0)
            lines += state_of(store)
        texts = (record.getMessage() for record in caplog.records if record.name.startswith("saturnmq.replication"))
        steps.append("\n".join([*lines, *texts]).replace(str(tmp_path), "FOLDER"))
    check_run(RECORDED, f"group {old}", steps)
