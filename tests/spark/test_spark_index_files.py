"""mode=files, keys looked up in the store's index: the same rows as a full scan, reading little of the log."""

from __future__ import annotations

import asyncio
import pickle
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from saturnmq import Outgoing
from saturnmq.client.client import Client
from saturnmq.protocol.errors import CorruptRecord
from saturnmq.spark import index_files
from saturnmq.spark.source import RocketMQDataSource
from saturnmq.store import StoreProfile, StoreSettings
from saturnmq.testing import EmbeddedBroker

# Files of 100 slots and 399 entries: 1,200 messages of two or three entries each fill many files, and chains mix several hashes.
SMALL = StoreSettings(
    profile=StoreProfile.SMALL, commit_log_file_bytes=65_536, index_slots_max=100, index_entries_max=400
)
COUNT = 1200
SAME_HASH = {400: "AaAa", 402: "BBBB"}  # keys of two messages; Java gives them one hash


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a broker that was shut down cleanly."""
    folder = tmp_path_factory.mktemp("indexed")

    async def main() -> None:
        async with (
            EmbeddedBroker(folder, store=SMALL) as server,
            Client(name_servers=server.name_servers) as client,
            client.producer("index-tests") as out,
        ):
            for topic in ("keyed", "other"):
                await client.create_topic(topic, queues=2)
            for at in range(0, COUNT, 50):
                some = [
                    Outgoing(value=b"%d" % n * 20, keys=[SAME_HASH.get(n, str(1000 + n % 400)), "all"][: 1 + n % 2])
                    for n in range(at, at + 50)
                ]
                await out.send_many(("keyed", "other")[at // 50 % 2], some)

    asyncio.run(main())
    return folder / "store"


def copy(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "store"))


def reader(store: Path, **options: str) -> Any:
    given = {
        "mode": "files",
        "path": str(store),
        "columns": "topic,queueId,queueOffset,keys,uniqKey,body",
    }
    source = RocketMQDataSource(given | {"topic": "keyed"} | options)
    made: Any = source.reader(source.schema())
    return made


def rows(made: Any, pieces: Any = None) -> list[tuple[Any, ...]]:
    parts = made.partitions() if pieces is None else pieces
    return sorted(tuple(row.values()) for p in parts for b in made.read(p) for row in b.to_pylist())


def share_walked(made: Any, store: Path) -> tuple[int, float]:
    """Return (number of places from the index, share of the log that is scanned)."""
    pieces = [part.piece for part in made.partitions() if part.piece]
    walked = sum(piece[3] - piece[2] for piece in pieces if piece[0] not in ("index", "queue"))
    found = sum(len(piece[3]) for piece in pieces if piece[0] == "index")
    return found, walked / sum(path.stat().st_size for path in (store / "commitlog").iterdir())


KEYS = ["1034", "1035", "1008,1009,none"]


@pytest.mark.spec("FMD-09")
@pytest.mark.parametrize("keys", KEYS, ids=["only", "first", "several"])
def test_keys_are_looked_up_in_covering_index(stopped: Path, keys: str) -> None:
    assert len(list((stopped / "index").iterdir())) > 5
    made = reader(stopped, keys=keys)
    found, walked = share_walked(made, stopped)
    everything = rows(reader(stopped, keys=keys, plan="log"))
    assert rows(made) == everything and len(everything) >= 1
    assert len(everything) <= found < 60 and walked < 0.1
    assert all(len(pickle.dumps(part)) < 1024 for part in made.partitions())


@pytest.mark.spec("FMD-09")
@pytest.mark.parametrize("key", SAME_HASH.values())
def test_keys_of_one_hash_are_compared_as_texts(stopped: Path, key: str) -> None:
    made = reader(stopped, keys=key)
    assert share_walked(made, stopped)[0] == 2, "the index names both records"
    assert [row[3] for row in rows(made)] == [key]


@pytest.mark.spec("FMD-09")
def test_index_finds_message_by_unique_key(stopped: Path) -> None:
    everything = rows(reader(stopped, plan="log"))
    assert len(everything) == COUNT // 2
    for row in everything[::23]:
        made = reader(stopped, uniqKeys=row[4])
        assert rows(made) == [row] and share_walked(made, stopped)[1] < 0.1
    assert rows(reader(stopped, uniqKeys="of no message")) == []


@pytest.mark.spec("FMD-09")
def test_records_at_index_file_borders_are_read_once(stopped: Path) -> None:
    """Their entries may be in two files, and they are read together with the gap that follows."""
    ends = {struct.unpack_from(">q", path.read_bytes(), 24)[0] for path in (stopped / "index").iterdir()}
    options = {"topic": "keyed,other", "columns": "physicalOffset,uniqKey"}
    at_ends = [row for row in rows(reader(stopped, plan="log", **options)) if row[0] in ends]
    assert len(at_ends) == len(ends) > 5
    for row in at_ends:
        assert rows(reader(stopped, uniqKeys=row[1], **options)) == [row]


@pytest.mark.spec("FMD-09")
@pytest.mark.parametrize("missing", ["first", "middle", "last"])
def test_log_outside_index_is_scanned(stopped: Path, tmp_path: Path, missing: str) -> None:
    store, keys = copy(stopped, tmp_path), "1034,1035"
    everything = rows(reader(store, keys=keys, plan="log"))
    files = sorted((store / "index").iterdir())
    for path in {"first": files[:2], "middle": files[2:4], "last": files[-2:]}[missing]:
        path.unlink()
    made = reader(store, keys=keys)
    found, walked = share_walked(made, store)
    assert found and 0.03 < walked < 0.9
    assert rows(made) == everything


@pytest.mark.spec("FMD-09")
@pytest.mark.parametrize("why", ["crashed", "damaged", "shape", "absent", "no topic", "reported", "long", "packed"])
def test_unreliable_index_is_not_used(stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    store, keys, options = copy(stopped, tmp_path), "1034", {}
    everything = rows(reader(store, keys=keys, plan="log"))
    second = sorted((store / "index").iterdir())[1]
    if why == "crashed":
        (store / "abort").write_bytes(b"")
    elif why == "damaged":
        content = second.read_bytes()
        second.write_bytes(content[:460] + content[860:880] + content[480:])  # replaces its first entry
    elif why == "shape":
        second.write_bytes(second.read_bytes() + bytes(8400))
    elif why == "absent":
        shutil.rmtree(store / "index")
    elif why == "reported":
        options = {"plan": "log"}
    elif why == "long":
        monkeypatch.setattr(index_files, "OFFSETS_MAX", 2)
    elif why == "packed":
        (store / "commitlog" / f"{65536 * 50:020d}.gz").write_bytes(b"")
    made = reader(store, keys=keys, **options)
    if why == "packed":
        assert index_files.plan_by_index(made._options) is None
        return
    if why == "no topic":
        source = RocketMQDataSource({"mode": "files", "path": str(store), "keys": keys})
        made = source.reader(source.schema())
        assert share_walked(made, store)[0] == 0
        return
    assert share_walked(made, store)[0] == 0
    assert rows(made) == everything


@pytest.mark.spec("FMD-06", "FMD-09")
def test_index_entry_without_record_is_damage(stopped: Path, tmp_path: Path) -> None:
    store, keys = copy(stopped, tmp_path), "1034"
    everything = rows(reader(store, keys=keys))
    (piece, *_) = [p.piece for p in reader(store, keys=keys).partitions() if p.piece[0] == "index"]
    path, at = Path(piece[1]), piece[3][0]
    content = bytearray(path.read_bytes())
    content[at + 4 : at + 8] = b"none"
    path.write_bytes(content)
    with pytest.raises(CorruptRecord, match=f"damaged at byte {at}: an entry of the index leads there"):
        rows(reader(store, keys=keys))
    assert len(rows(reader(store, keys=keys, corrupt="skip"))) == len(everything) - 1
