"""State files of a broker: which exist, when they are written, and what a start reads from them."""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from wire import Wire, wire

from saturnmq.broker import Broker
from saturnmq.broker.access_control import AccessControl
from saturnmq.broker.services.delay import DelayService
from saturnmq.broker.services.reporting import Reporting
from saturnmq.broker.services.timer import TimerService
from saturnmq.broker.services.transactions import Transactions
from saturnmq.broker.state import filters
from saturnmq.namesrv.kv_config import KVConfig
from saturnmq.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import CorruptRecord
from saturnmq.protocol.json_dialect import BODY_BYTES_MAX
from saturnmq.store import StateFile

SLOW: dict[str, Any] = {"flush_offsets_ms": 3_600_000, "flush_delay_ms": 3_600_000}
FILES = ["consumerFilter.json", "consumerOffset.json", "delayOffset.json", "subscriptionGroup.json", "topics.json"]


async def commit(w: Wire, value: int) -> None:
    fields = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": value}
    await w.call(RequestCode.UPDATE_CONSUMER_OFFSET, **fields)


async def subscribe(w: Wire) -> None:
    subscription = SubscriptionData("T", "a > 1", sub_version=7, expression_type="SQL92")
    beat = HeartbeatData("c1", [], [ConsumerData("G", subscription_data_set=[subscription])])
    assert (await w.call(RequestCode.HEART_BEAT, beat.encode())).code == 0


@pytest.mark.spec("CF-01", "CF-03")
async def test_every_state_file_is_written_at_stop(tmp_path: Path) -> None:
    async with wire(data=tmp_path, property_filter_enable=True, **SLOW) as w:
        root = Path(w.broker.store.settings.root)
        config = root / "config"
        await w.send(properties={"KEYS": "k"})
        assert "T" in json.loads((config / "topics.json").read_bytes())["topicConfigTable"]  # on change
        await subscribe(w)
        await w.pull()
        await commit(w, 7)
        await w.send(properties={"DELAY": "1"})
        while w.broker.master.delay.offsets().get(1) != 1:  # delivered after a second
            await w.pull(offset=2, suspend_ms=100)
        assert not (config / "consumerOffset.json").exists()  # written periodically or at stop only
    assert sorted(path.name for path in config.iterdir() if path.name in FILES) == FILES
    assert json.loads((config / "consumerOffset.json").read_bytes())["offsetTable"] == {"T@G": {"0": 7}}
    assert json.loads((config / "delayOffset.json").read_bytes())["offsetTable"]["1"] == 1
    assert "G" in json.loads((config / "subscriptionGroup.json").read_bytes())["subscriptionGroupTable"]
    assert "T" in json.loads((config / "consumerFilter.json").read_bytes())["filterDataByTopic"]
    names = {path.name for path in root.iterdir()}
    assert {"commitlog", "consumequeue", "index", "config", "checkpoint", "lock"} <= names and "abort" not in names
    assert (root / "lock").read_bytes() == b"lock"


@pytest.mark.spec("CF-03")
async def test_periodic_work_of_a_broker_runs_at_its_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    intervals_s = {
        (Broker, "_save_offsets"): 5,
        (Broker, "expire_clients"): 10,
        (filters.Filters, "save_soon"): 10,
        (DelayService, "save"): 10,
        (TimerService, "save"): 10,
        (AccessControl, "reload"): 5,
        (Reporting, "tick"): 1,
        (Transactions, "note_progress"): 1,
    }
    loop, runs = asyncio.get_running_loop(), defaultdict[str, list[int]](list)

    def noted(owner: type, name: str) -> Callable[..., Any]:
        work = getattr(owner, name)

        def run(self: Any) -> Any:
            runs[f"{owner.__name__}.{name}"].append(round(loop.time() - began))
            return work(self)

        return run

    for owner, name in intervals_s:
        monkeypatch.setattr(owner, name, noted(owner, name))
    began = loop.time()
    async with wire():
        await asyncio.sleep(30.5)  # poll: virtual time
        expected = {f"{owner.__name__}.{name}": list(range(s, 31, s)) for (owner, name), s in intervals_s.items()}
        assert {name: [at for at in times if at] for name, times in runs.items()} == expected


@pytest.mark.spec("CF-04")
async def test_offset_decrease_is_stored_with_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with wire() as w:
        await w.send()
        await commit(w, 7)
        assert "offset set backwards" not in caplog.text
        await commit(w, 3)
        assert w.broker.offsets.get("T", "G", 0) == 3
    assert "offset set backwards topic=T group=G queue=0 from=7 to=3" in caplog.text


GOOD, OLD, BAD, EMPTY = b'{"v":2}', b'{"v":1}', b'{"v":', b""


@pytest.mark.spec("CF-02")
@pytest.mark.parametrize(
    ("main", "backup", "found"),
    [
        (GOOD, OLD, {"v": 2}),
        (GOOD, BAD, {"v": 2}),
        (None, OLD, {"v": 1}),
        (EMPTY, OLD, {"v": 1}),
        (BAD, OLD, {"v": 1}),
        (None, None, None),
        (BAD, BAD, CorruptRecord),
        (EMPTY, BAD, CorruptRecord),
        (None, BAD, CorruptRecord),
        (BAD, None, CorruptRecord),
    ],
)
def test_state_file_or_its_backup_is_read(tmp_path: Path, main: bytes | None, backup: bytes | None, found: Any) -> None:
    file = StateFile(tmp_path / "x.json")
    for path, data in ((file.path, main), (file.backup, backup)):
        if data is not None:
            path.write_bytes(data)
    if found is CorruptRecord:
        with pytest.raises(CorruptRecord, match=r"x\.json and its backup x\.json\.bak cannot be read"):
            file.read(json.loads)
    else:
        assert file.read(json.loads) == found


@pytest.mark.spec("CF-02", "DUR-14")
def test_state_file_is_replaced_by_rename_with_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = StateFile(tmp_path / "x.json")
    file.write(OLD)
    assert not file.backup.exists()
    steps: list[tuple[str, ...]] = []
    disk = file._disk
    for name in ("write_file", "link", "replace", "sync_folder"):
        real = getattr(disk, name)

        def step(*args: Any, name: str = name, real: Any = real) -> None:
            real(*args)
            steps.append((name, *(arg.name for arg in args if isinstance(arg, Path))))

        monkeypatch.setattr(disk, name, step)
    file.write(GOOD)
    assert steps == [
        ("write_file", "x.json.tmp"),
        ("link", "x.json", "x.json.bak.tmp"),
        ("replace", "x.json.bak.tmp", "x.json.bak"),
        ("replace", "x.json.tmp", "x.json"),
        ("sync_folder", tmp_path.name),
    ]
    assert (file.path.read_bytes(), file.backup.read_bytes()) == (GOOD, OLD)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.json", "x.json.bak"]


@pytest.mark.spec("CF-02")
async def test_state_files_longer_than_a_frame_are_read(tmp_path: Path) -> None:
    """A broker refused to start with 70,000 offsets of groups with long names, which any client can commit."""
    async with wire(data=tmp_path) as w:
        await w.send()
        for number in range(70_000):
            assert w.broker.offsets.set("T", f"{number:06d}" + "g" * 249, 0, 1)
        config = Path(w.broker.store.settings.root) / "config"
    assert (config / "consumerOffset.json").stat().st_size > BODY_BYTES_MAX
    for name in ("topics.json", "subscriptionGroup.json", "consumerFilter.json"):
        path = config / name
        if path.exists():
            path.write_bytes(path.read_bytes() + b" " * BODY_BYTES_MAX)
    async with wire(data=tmp_path) as w:
        assert w.broker.offsets.get("T", "069999" + "g" * 249, 0) == 1 and "T" in w.broker.topics.table


def test_key_value_file_longer_than_a_frame_is_read(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_bytes(b'{"configTable":{"n":{"k":"v"}}}' + b" " * BODY_BYTES_MAX)
    kv = KVConfig(path)
    kv.load()
    assert kv.get("n", "k") == "v"


async def test_background_work_is_finished_before_the_files_are_written() -> None:
    """Clients that have just left make filters offline; files of queues are removed. Each step of the work takes 1 ms."""

    def steps(done: list[str], name: str, broker: Broker) -> Iterator[None]:
        for _ in range(100):
            until = time.thread_time() + 0.001
            while time.thread_time() < until:
                pass
            yield
        done.append(f"{name} {broker.store.writable}")

    done: list[str] = []
    async with wire() as w:
        w.broker.cleaning.add(steps(done, "cleaning", w.broker))
        w.broker.removals.add(steps(done, "removals", w.broker))
        await w.broker.stop()
        assert sorted(done) == ["cleaning True", "removals True"], "before the store is closed"
        assert not w.broker.cleaning.busy and not w.broker.removals.busy
