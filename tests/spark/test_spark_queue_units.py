"""mode=files planned by consume queues: the same rows as from the log, reading only what is requested."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from saturnmq import Outgoing
from saturnmq.client.client import Client
from saturnmq.protocol.errors import ConfigError, CorruptRecord
from saturnmq.protocol.message import java_hash
from saturnmq.spark import queue_units
from saturnmq.spark.source import RocketMQDataSource
from saturnmq.store import StoreProfile, StoreSettings
from saturnmq.testing import EmbeddedBroker

UNIT_COLUMNS = "topic,queueId,queueOffset,physicalOffset,storeSize,tagsCode"
COLUMNS = f"{UNIT_COLUMNS},tags,keys,body"
SMALL = StoreSettings(profile=StoreProfile.SMALL, commit_log_file_bytes=65_536)


def reader(path: Path, **options: Any) -> Any:
    given = {"mode": "files", "path": str(path), "columns": COLUMNS} | {k: str(v) for k, v in options.items()}
    source = RocketMQDataSource(given)
    made: Any = source.reader(source.schema())
    return made


def order(row: dict[str, Any]) -> tuple[str, int, int]:
    return row["topic"], row["queueId"], row["queueOffset"]


def read(path: Path, **options: Any) -> list[dict[str, Any]]:
    made = reader(path, **options)
    return sorted((row for p in made.partitions() for b in made.read(p) for row in b.to_pylist()), key=order)


async def fill(server: EmbeddedBroker, topic: str, count: int, queues: int = 2) -> None:
    async with Client(name_servers=server.name_servers) as client, client.producer("unit-tests") as out:
        await client.create_topic(topic, queues=queues)
        for at in range(0, count, 50):
            await out.send_many(
                topic,
                [
                    Outgoing(value=b"%d" % n * 20, tag="ab"[n % 2], keys=[str(n)])
                    for n in range(at, min(at + 50, count))
                ],
            )


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a broker that was shut down: topic asked with 400 messages, other with 300."""
    folder = tmp_path_factory.mktemp("units")

    async def main() -> None:
        async with EmbeddedBroker(folder, store=SMALL) as server:
            await fill(server, "asked", 400)
            await fill(server, "other", 300)

    asyncio.run(main())
    assert not (folder / "store" / "abort").exists()
    return folder / "store"


@pytest.fixture
def store(stopped: Path, tmp_path: Path) -> Path:
    """A copy that the test may change."""
    return Path(shutil.copytree(stopped, tmp_path / "store"))


def blank(folder: Path, but: set[int]) -> None:
    """Overwrite every byte of the log with 0x5A, except those in `but`."""
    for path in (folder / "commitlog").iterdir():
        data = bytearray(path.read_bytes())
        base = int(path.name)
        for n in range(len(data)):
            if base + n not in but:
                data[n] = 0x5A
        path.write_bytes(data)


@pytest.mark.spec("FMD-02")
def test_rows_by_queues_equal_rows_of_log(store: Path) -> None:
    by_log = read(store, topic="asked", plan="log")
    assert len(by_log) == 400
    assert read(store, topic="asked", plan="queues") == read(store, topic="asked") == by_log
    assert read(store, topic="asked", plan="queues", maxRecordsPerPartition=7) == by_log
    assert read(store / "commitlog", topic="asked", plan="queues") == by_log
    everything = read(store, plan="log")
    assert len(everything) == 700 and read(store, plan="queues") == everything
    tagged = [row for row in by_log if row["tags"] == "a"]
    assert read(store, topic="asked", subExpression="a", plan="queues") == tagged and len(tagged) == 200
    of_queue = [row for row in by_log if row["queueId"] == 1]
    assert read(store, topic="asked", queues="1") == of_queue and of_queue
    assert read(store, topic="asked", queues="1", plan="log") == of_queue
    assert read(store, topic="asked", brokerName="b") == by_log


@pytest.mark.spec("FMD-02")
def test_unit_columns_are_read_without_log(store: Path) -> None:
    """The log files are truncated to nothing; only their names remain."""
    expected = [{name: row[name] for name in UNIT_COLUMNS.split(",")} for row in read(store, plan="log")]
    assert len(expected) == 700 and expected[0]["tagsCode"] in (java_hash("a"), java_hash("b"))
    for path in (store / "commitlog").iterdir():
        os.truncate(path, 0)
    assert read(store, columns=UNIT_COLUMNS) == expected
    assert read(store, columns="queueOffset,topic,queueId", topic="asked", minPartitions=9) == [
        {"queueOffset": row["queueOffset"], "topic": "asked", "queueId": row["queueId"]}
        for row in expected
        if row["topic"] == "asked"
    ]
    with pytest.raises(CorruptRecord):
        read(store, columns=UNIT_COLUMNS + ",body", topic="asked")


@pytest.mark.spec("FMD-02")
def test_only_matching_records_are_read_from_log(store: Path) -> None:
    """Records of other topics, queues and tags are overwritten, so that reading them would fail."""
    wanted = [r for r in read(store, topic="asked", plan="log") if r["queueId"] == 0 and r["tags"] == "b"]
    kept = {at for r in wanted for at in range(r["physicalOffset"], r["physicalOffset"] + r["storeSize"])}
    blank(store, kept)
    found = read(store, queues="0", topic="asked", tags="b")
    assert found == wanted and len(found) > 50
    with pytest.raises(CorruptRecord):
        read(store, topic="asked", subExpression="b", plan="log")


@pytest.mark.spec("FMD-02", "FMD-06")
def test_record_contradicting_its_unit_is_damage(store: Path, tmp_path: Path) -> None:
    rows = read(store, topic="asked")
    victim = rows[10]
    path = next(
        p for p in sorted((store / "commitlog").iterdir(), reverse=True) if int(p.name) <= victim["physicalOffset"]
    )
    data = bytearray(path.read_bytes())
    at = victim["physicalOffset"] - int(path.name)
    data[at + 20 : at + 28] = (99_999).to_bytes(8, "big")  # the record's queue offset
    path.write_bytes(data)
    with pytest.raises(
        CorruptRecord, match=rf"{path.name}: damaged at byte {at}: topic asked queue {victim['queueId']}"
    ):
        read(store, topic="asked")
    without = [row for row in rows if row is not victim]
    assert read(store, topic="asked", corrupt="skip") == without
    assert read(store, topic="asked", corrupt="report", dataLossLog=tmp_path / "holes") == without
    (note,) = (tmp_path / "holes").iterdir()
    assert f'"begin": {at}, "end": {at + victim["storeSize"]}' in note.read_text()


@pytest.mark.spec("FMD-02", "FMD-01")
def test_running_or_crashed_store_yields_each_record_once(tmp_path: Path) -> None:
    """Queues lag behind the log: records whose units are not reliably on disk are read from the log."""

    async def main() -> None:
        async with EmbeddedBroker(tmp_path, store=SMALL) as server:
            await fill(server, "asked", 500)
            await asyncio.to_thread(shutil.copytree, tmp_path / "store", tmp_path / "crashed")

    asyncio.run(main())
    crashed = tmp_path / "crashed"
    assert (crashed / "abort").exists()
    by_log = read(crashed, topic="asked", plan="log")
    assert len(by_log) == 500
    assert read(crashed, topic="asked") == by_log
    for path in (crashed / "consumequeue" / "asked").rglob("0*"):  # power failure: no unit was on disk
        path.write_bytes(bytes(path.stat().st_size))
    noted = queue_units._trusted(crashed, queue_units._logs(crashed))
    assert noted is not None and noted <= by_log[0]["physicalOffset"], "the note was made before the first message"
    assert read(crashed, topic="asked") == by_log
    (crashed / "checkpoint").unlink()  # nothing shows which units are reliable
    assert read(crashed, topic="asked") == by_log
    with pytest.raises(ConfigError, match=r"plan=queues: .* can be relied on"):
        read(crashed, topic="asked", plan="queues")


@pytest.mark.spec("FMD-02")
def test_any_border_between_queues_and_log_gives_same_rows(store: Path) -> None:
    """Below the trusted offset rows are read by queues, above it from the log."""
    by_log = read(store, topic="asked", plan="log")
    for border in (0, by_log[150]["physicalOffset"], by_log[399]["physicalOffset"] + by_log[399]["storeSize"]):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(queue_units, "_trusted", lambda _root, _logs, border=border: border)
            assert read(store, topic="asked") == by_log, border
            assert read(store, columns=COLUMNS, topic="asked", subExpression="a") == [
                row for row in by_log if row["tags"] == "a"
            ]


@pytest.mark.spec("FMD-02", "SPK-10")
def test_missing_queues_fall_back_to_log(store: Path) -> None:
    assert read(store, topic="asked,gone") == read(store, topic="asked", plan="log")  # a topic without queues
    shutil.rmtree(store / "consumequeue" / "asked")  # a deleted topic: its records remain until the files are deleted
    assert len(read(store, topic="asked")) == 400
    shutil.rmtree(store / "consumequeue")
    assert len(read(store, topic="asked")) == 400
    with pytest.raises(ConfigError, match="no consume queues"):
        read(store, plan="queues", topic="asked")
    with pytest.raises(ConfigError, match="option subscribePattern needs a broker"):
        read(store, subscribePattern="a.*")
