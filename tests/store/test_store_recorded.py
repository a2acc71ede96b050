"""Recorded runs of a store: each disk operation, each answer and each line about damage is the one in recorded_runs.txt.

The runs are those of the crash matrix (harness/crash/run.py), which checks what must hold after a crash. This one notices each
change of what is written, synced or returned.
"""

from __future__ import annotations

import itertools
import random
import re
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from harness.crash import run as crash
from harness.crash.campaign import life_of
from harness.crash.check import CrashStore, QuickDisk, snapshot
from harness.crash.states import text_of
from harness.harm import damaged
from loglines import own_messages
from recordedruns import attempt, check_run
from saturnmq.store import MessageStore, StoreSettings
from saturnmq.store.files.mapped_file import numbered_files
from saturnmq.store.tools.dump import Dumped, by_offset, by_place, by_queue, fields
from saturnmq.store.tools.repair import cut, find_loss, loss_at, rebuild
from saturnmq.store.tools.verify import verify

RECORDED: Final = Path(__file__).with_name("recorded_runs.txt")
GIVEN: Final = frozenset({"mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum"})
LIVES: Final = [(0, 2), (1, 2), (2, 0), (3, 2), (5, 1), (8, 1)]


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Index files are named by the local time."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def shown(store: MessageStore) -> str:
    """What a store says of itself."""
    lines = [f"{store.writable} {store.dispatched} {store.last_store_ms} {store.has_unconfirmed} {store.behind_bytes}"]
    log, queues, index, waiting = store.log, store.queues, store.index, store.index_queue
    lines.append(f"{log.first_position} {log.readable_end} {log.confirmed_end} {log.free_buffers} {log.first_store_ms}")
    lines.append(f"{[(file.start, file.end) for file in log.files]} {queues.max_physical} {queues.min_physical}")
    lines += [
        f"{key} {queue.first_offset} {queue.min_offset} {queue.max_offset} {queue.next_offset} {queue.dirty_bytes}"
        for key, queue in sorted(queues.by_key.items())
    ]
    if index is not None and waiting is not None:
        lines.append(
            f"{[path.name for path in index.paths]} {index.last_update} {index.dispatch_from} {index.sealed_ms}"
        )
        lines.append(
            f"{index.synced} {index.total_bytes} {waiting.complete} {waiting.lagging} {waiting.covered(log.end)}"
        )
    lines.append(f"{store.checkpoint.note} {store.checkpoint.safe_ms} {store.checkpoint.index_ms}")
    return "\n".join(lines)


@pytest.mark.parametrize(("seed", "number"), LIVES)
def test_store_writes_and_syncs_as_recorded(
    tmp_path: Path, seed: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    views: list[tuple[int, str]] = []
    mark = crash._Run.mark

    def noted(run: crash._Run, **changes: object) -> None:
        mark(run, **changes)
        if run.name == f"{seed}.{number}":
            views.append((len(run.disk.operations), shown(run.store)))

    monkeypatch.setattr(crash._Run, "mark", noted)
    life = life_of(seed, number, tmp_path)
    ends = [(0, ""), *views, (len(life.operations), "")]
    steps = [
        "\n".join([*map(text_of, life.operations[begin:end]), view])
        for (begin, _), (end, view) in itertools.pairwise(ends)
    ]
    check_run(RECORDED, f"operations {seed}.{number}", steps)


def answers(store: MessageStore, *, brief: bool = False) -> Iterator[str]:
    """What a client and a broker ask, for each queue, key and time; brief: without filters and limits."""
    times = set()
    for key in sorted(store.queues.by_key):
        low, high = store.min_offset(*key), store.max_offset(*key)
        yield f"queue {key} {low} {high} {store.queues.by_key[key].next_offset}"
        for offset in range(low - 1, high + 1):
            times.add(stored := store.store_time(*key, offset))
            yield f"{stored} {store.physical_offset(*key, offset)} {store.properties(*key, offset)!r}"
            options: list[dict[str, Any]] = [
                {}, {"max_bytes": 700}, {"bulk_bytes": 900}, {"codes": frozenset({97, 99})},
                {"accept_record": lambda raw: b"k1" in raw},
                {"accept_record": lambda raw: b"TAGS" in raw, "codes": frozenset({98})},
            ]  # fmt: skip
            for more in options[: 1 if brief else None]:
                for count in (1, 3, 32)[: 1 if brief else None]:
                    result = store.get(*key, offset, count, **more)
                    yield f"{result.status} {result.next_offset} {result.count} {result.total_bytes} {result.behind_memory}"
                    yield f"{result.min_offset} {result.max_offset} {b''.join(result.buffers).hex()}"
    for key in sorted(store.queues.by_key):
        for stored in sorted(times):
            yield f"{[store.offset_by_time(*key, stored + more) for more in (-400, -1, 0, 1, 400)]}"
    for topic in crash.TOPICS:
        for word in range(2 if brief else 9):
            for count, begin, end in ((1, 0, 2**62), (64, 0, 2**62), (64, min(times) + 1, max(times) - 1)):
                query = store.query(topic, f"k{word}", count, begin, end)
                yield f"{query.last_update_ms} {query.last_update_offset} {[record.hex() for record in query.records]}"
    log = store.log
    yield f"{log.first_position} {log.end} {log.readable_end} {log.confirmed_end} {store.earliest_store_ms} {store.behind_bytes}"
    yield f"{store.dispatched} {store.last_store_ms} {store.checkpoint.note} {store.checkpoint.safe_ms} {store.checkpoint.index_ms}"


@pytest.mark.parametrize(("seed", "number"), LIVES[:4])
def test_store_answers_as_recorded(tmp_path: Path, seed: int, number: int) -> None:
    life = life_of(seed, number, tmp_path)
    folder = tmp_path / f"life{number}"
    store = CrashStore(
        crash.settings_of(seed, folder), clock_ms=lambda: life.promises[-1][1].clock_ms, disk=QuickDisk()
    )
    store.open()
    lines = list(answers(store))
    store.close_files()
    check_run(RECORDED, f"answers {seed}.{number}", ["\n".join(lines[at : at + 40]) for at in range(0, len(lines), 40)])


# ---- damage


def fields_of(find: Callable[..., Dumped], *arguments: Any) -> list[tuple[str, object]]:
    return fields(find(*arguments))


def tools_of(settings: StoreSettings, chance: random.Random) -> Iterator[str]:
    """What the operator's tools say about a store, which they only read."""
    yield attempt(verify, settings, GIVEN).replace("), ", "),\n")
    yield attempt(find_loss, settings)
    for _ in range(3):
        offset = chance.randrange(9000)
        yield attempt(loss_at, settings, offset)
        yield attempt(fields_of, by_offset, settings, offset)
        yield attempt(fields_of, by_queue, settings, "alpha", 0, offset // 400)
        if files := numbered_files(settings.root / "commitlog"):
            yield attempt(fields_of, by_place, settings, chance.choice(files), offset % 2048)


def repaired(settings: StoreSettings) -> str:
    loss = find_loss(settings)
    return str(cut(settings, loss, disk=QuickDisk()) if loss is not None else rebuild(settings, disk=QuickDisk()))


@pytest.mark.parametrize("seed", range(4))
def test_damage_is_reported_and_repaired_as_recorded(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "saturnmq.store.tools.repair.MessageStore", partial(CrashStore, clock_ms=lambda: crash.START_MS)
    )
    life_of(seed, 0, tmp_path)
    whole, chance, steps = tmp_path / "life0", random.Random(f"damage {seed}"), []
    for number in range(12):
        folder = tmp_path / f"damaged{number}"
        shutil.copytree(whole, folder)
        if number % 3 == 0:
            (folder / crash.ROOT / "abort").touch()
        settings = crash.settings_of(seed, folder)
        lines = [damaged(folder / crash.ROOT, chance) for _ in range(number % 2 + 1)]
        lines += tools_of(settings, chance)
        caplog.clear()
        store = CrashStore(settings, clock_ms=lambda: crash.START_MS + 10_000, disk=QuickDisk())
        lines.append(opened := attempt(store.open))
        if opened == "None":
            lines += answers(store, brief=True)
        store.close_files()
        lines += [attempt(repaired, settings), attempt(verify, settings, GIVEN), *own_messages(caplog)]
        lines += [f"{name} {zlib.crc32(data):08x}" for name, data in sorted(snapshot(folder).items())]
        steps.append(re.sub(r"-\d{8}T\d{6}", "-TIME", "\n".join(lines)).replace(str(folder), "FOLDER"))
    check_run(RECORDED, f"damage {seed}", steps)
