"""Memory of a reader: batches and decompression are bounded by decoded bytes."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from saturnmq.protocol.codes import SysFlag
from saturnmq.protocol.errors import CorruptRecord
from saturnmq.protocol.message import Host, Message, encode_record
from saturnmq.spark import decode, reading
from saturnmq.spark.fetch import DataLossError
from saturnmq.spark.options import SourceOptions
from saturnmq.spark.ranges import QueueRange
from saturnmq.spark.source import RocketMQDataSource
from saturnmq.sync import Client
from saturnmq.testing import SyncEmbeddedBroker

MIB = 1024 * 1024
WORKER_BYTES = 512 * MIB
ZLIB = int(SysFlag.COMPRESSED | SysFlag.ZLIB)
HOSTS = {"fast": Host("127.0.0.1", 1), "slow": Host("::1", 1)}  # records with IPv6 hosts are decoded one by one


def stored(n: int, body: bytes, *, sys_flag: int = ZLIB, host: str = "fast", **more: Any) -> bytes:
    """Return a record of topic T with queue offset n; more: fields of the message."""
    fields: dict[str, Any] = {"properties_raw": b"", "queue_offset": n, "store_timestamp_ms": 1000} | more
    return encode_record(Message("T", body, sys_flag=sys_flag, store_host=HOSTS[host], born_host=HOSTS[host], **fields))


def batches_of(
    records: list[bytes], columns: tuple[str, ...], mapper: Any = None, **more: Any
) -> Iterator[pa.RecordBatch]:
    """Return what a worker makes of a block with these records."""
    options = SourceOptions(name_server="x:1", topics=("T",), **more)
    piece = QueueRange("T", "broker-x", 7, 0, len(records))
    blocks = reading.Blocks(options, columns, piece, reading.selection(options, piece))
    block = b"".join(records)
    batches = decode.rebatched(blocks.batches(block, [len(block)]), options.batch_rows)
    return reading.mapped(batches, mapper, options.batch_rows)


def enlarged(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with twelve times its bodies, as a function of option mapArrow could."""
    return pa.record_batch(
        [batch.column(0), pa.array([body * 12 for body in batch.column(1).to_pylist()])], batch.schema
    )


def write_log(folder: Path, records: list[bytes], first: int = 0) -> Path:
    """Write the records, whose physical offsets must follow each other, as a commit log."""
    (folder / "commitlog").mkdir(parents=True)
    (folder / "commitlog" / f"{first:020d}").write_bytes(b"".join(records))
    return folder


@pytest.mark.spec("SRC-08")
@pytest.mark.parametrize("host", ["fast", "slow"])
def test_batches_are_bounded_by_decoded_bytes(host: str) -> None:
    """Bodies of 1 MB, one of 15.9 MiB and one of 16 MiB, all stored in a few KB; every third record is filtered out by its tag."""
    sizes = [1_000_000] * 20 + [16 * MIB - 60_000, 5, 16 * MIB] + [1_000_000] * 20
    records = [
        stored(n, zlib.compress(bytes(size)), host=host, properties_raw=b"TAGS\x01a") for n, size in enumerate(sizes)
    ]
    rows: list[tuple[int, int]] = []
    for batch in batches_of(records, ("queueOffset", "body")):
        assert batch.num_rows == 1 or batch.nbytes <= decode.BATCH_BYTES_MAX == 16 * MIB
        rows += zip(batch.column(0).to_pylist(), map(len, batch.column(1).to_pylist()), strict=True)
    assert rows == list(enumerate(sizes))
    raw = list(batches_of(records, ("body",), decompress=False))
    assert [batch.num_rows for batch in raw] == [len(sizes)], "small as stored: one batch"


@pytest.mark.spec("SRC-08")
def test_batches_of_filtered_records_keep_every_selected_row() -> None:
    records = [
        stored(n, zlib.compress(b"%d " % n * 300_000), properties_raw=b"TAGS\x01" + b"ab"[n % 2 : n % 2 + 1])
        for n in range(80)
    ]
    rows = [
        (offset, body)
        for batch in batches_of(records, ("queueOffset", "body"), expression="a")
        for offset, body in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
    ]
    assert rows == [(n, b"%d " % n * 300_000) for n in range(0, 80, 2)]


@pytest.mark.spec("SRC-08", "SRC-10")
def test_batches_of_properties_and_mapped_batches_are_bounded() -> None:
    pairs = b"".join(b"name%d\x01%d\x02" % (n, n) for n in range(2400))
    records = [stored(n, b"", sys_flag=0, properties_raw=pairs) for n in range(400)]
    columns = ("propertiesMap", "properties", "properties:json", "topic")
    rows = 0
    for batch in batches_of(records, columns):
        assert batch.nbytes <= decode.BATCH_BYTES_MAX
        first = batch.slice(0, 1).to_pylist()[0]
        assert len(first["propertiesMap"]) == 2400
        rows += batch.num_rows
    assert rows == 400
    records = [stored(n, bytes(1_000_000), sys_flag=0) for n in range(8)]
    mapped = list(batches_of(records, ("queueOffset", "body"), enlarged))
    assert all(batch.num_rows == 1 or batch.nbytes <= decode.BATCH_BYTES_MAX for batch in mapped)
    assert [n for batch in mapped for n in batch.column(0).to_pylist()] == list(range(8))
    assert {len(body) for batch in mapped for body in batch.column(1).to_pylist()} == {12_000_000}


@pytest.mark.spec("LIM-05", "SRC-15")
@pytest.mark.parametrize("host", ["fast", "slow"])
def test_oversized_compressed_body_is_an_error_that_names_it(host: str, tmp_path: Path) -> None:
    bomb = zlib.compress(bytes(17 * MIB))
    bodies = [zlib.compress(b"good"), zlib.compress(b"good"), bomb, zlib.compress(b"good")]
    records = [stored(n, body, host=host) for n, body in enumerate(bodies)]
    reason = r"decompresses to more than 16777216 bytes, the largest frame; option decompress=false returns bodies as they are"
    with pytest.raises(DataLossError, match=f"topic T, broker broker-x, queue 7, offsets 2..3: .*{reason}"):
        list(batches_of(records, ("queueOffset", "body")))
    rows = [n for batch in batches_of(records, ("queueOffset", "body"), fail_on_data_loss=False)
            for n in batch.column(0).to_pylist()]  # fmt: skip
    assert rows == [0, 1, 3]
    assert sum(batch.num_rows for batch in batches_of(records, ("body",), decompress=False)) == 4
    placed, at = [], 0
    for n, body in enumerate(bodies):
        placed.append(stored(n, body, host=host, physical_offset=at))
        at += len(placed[-1])
    store = write_log(tmp_path / "store", placed)
    source = RocketMQDataSource({"mode": "files", "path": str(store), "columns": "queueOffset,body"})
    made = source.reader(source.schema())
    begin = len(placed[0]) + len(placed[1])
    with pytest.raises(CorruptRecord, match=f"{0:020d}: damaged at byte {begin}: .*{reason}"):
        [list(made.read(p)) for p in made.partitions()]


# Prints the rows, the decoded bytes and the peak memory of a worker that reads with these options. It keeps no batch.
WORKER = """
import json, re, sys
from pathlib import Path
from saturnmq.spark.connect import close_all
from saturnmq.spark.source import RocketMQDataSource
source = RocketMQDataSource(json.loads(sys.argv[1]))
made = source.reader(source.schema())
rows = size = largest = 0
for partition in made.partitions():
    for batch in made.read(partition):
        rows, size, largest = rows + batch.num_rows, size + batch.nbytes, max(largest, batch.nbytes)
close_all()
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())  # ru_maxrss includes the parent's memory
print(json.dumps([rows, size, largest, int(peak[1]) * 1024]))
"""


@pytest.mark.spec("SCL-06")
@pytest.mark.parametrize("mode", ["broker", "files"])
def test_worker_of_512_mb_reads_compressed_messages_of_4_mib(
    mode: str, server: SyncEmbeddedBroker, tmp_path: Path
) -> None:
    """50 messages of 4 MiB, which compress to 4 KB each: 200 MiB of bodies in 200 KB of the log."""
    count, body = 50, bytes(4 * MIB)
    if mode == "broker":
        options = {"nameServer": server.name_servers, "topic": "large", "columns": "queueOffset,body"}
        with Client(name_servers=server.name_servers, compress_level=1) as client, client.producer("large") as out:
            client.create_topic("large", queues=1)
            for _ in range(count):
                out.send("large", body)
    else:
        records, at, packed = [], 0, zlib.compress(body)
        for n in range(count):
            records.append(stored(n, packed, physical_offset=at))
            at += len(records[-1])
        store = write_log(tmp_path / "store", records)
        options = {"mode": "files", "path": str(store), "columns": "queueOffset,body"}
    ended = subprocess.run(
        [sys.executable, "-c", WORKER, json.dumps(options)], capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    rows, size, largest, peak = json.loads(ended.stdout)
    assert rows == count and size >= count * len(body) and largest <= decode.BATCH_BYTES_MAX
    print(f"{peak / MIB:.0f} MiB")
    assert peak < WORKER_BYTES, f"{peak / MIB:.0f} MiB"
