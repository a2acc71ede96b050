"""mode=files: records from many small reads are decoded together, and separately after damage."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from saturnmq import Outgoing
from saturnmq.client.client import Client
from saturnmq.protocol.errors import CorruptRecord
from saturnmq.spark import files, queue_units
from saturnmq.spark.source import RocketMQDataSource
from saturnmq.store import StoreProfile, StoreSettings
from saturnmq.testing import EmbeddedBroker

COUNT = 120
SMALL = StoreSettings(profile=StoreProfile.SMALL, commit_log_file_bytes=65_536)


def rows(path: Path, **options: str) -> list[dict[str, Any]]:
    given = {"mode": "files", "path": str(path), "topic": "T", "plan": "queues", "columns": "queueId,queueOffset,body"}
    source = RocketMQDataSource(given | options)
    made: Any = source.reader(source.schema())
    found = [row for p in made.partitions() for b in made.read(p) for row in b.to_pylist()]
    return sorted(found, key=lambda row: (row["queueId"], row["queueOffset"]))


@pytest.mark.spec("FMD-02", "FMD-06")
def test_chunks_are_decoded_together_and_singly_after_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fill() -> None:
        async with (
            EmbeddedBroker(tmp_path, store=SMALL) as server,
            Client(name_servers=server.name_servers) as client,
            client.producer("joined") as out,
        ):
            await client.create_topic("T", queues=2)
            for at in range(0, COUNT, 4):
                await out.send_many("T", [Outgoing(value=b"body %d." % n * 9) for n in range(at, at + 4)])

    asyncio.run(fill())
    store = tmp_path / "store"
    whole = rows(store)
    assert len(whole) == COUNT
    monkeypatch.setattr(queue_units, "GAP_BYTES", 0)  # every batch becomes a separate read
    decoded: list[int] = []
    before = files.decode_block

    def counted(*block: Any, positions: Any, **options: Any) -> Any:
        decoded.append(len(positions))
        return before(*block, positions=positions, **options)

    monkeypatch.setattr(files, "decode_block", counted)
    assert rows(store) == whole
    assert sum(decoded) == COUNT and len(decoded) == 2  # one block per queue
    log = next((store / "commitlog").iterdir())
    data = bytearray(log.read_bytes())
    hurt = whole[COUNT // 2]
    data[data.index(hurt["body"])] ^= 0xFF
    log.write_bytes(data)
    with pytest.raises(CorruptRecord, match="damaged at byte"):
        rows(store)
    assert rows(store, corrupt="skip") == [row for row in whole if row != hurt]
    monkeypatch.setattr(files, "JOINED_BYTES", 1)  # every chunk alone
    assert rows(store, corrupt="skip") == [row for row in whole if row != hurt]
