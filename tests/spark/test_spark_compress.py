"""Option compress of the sink: stored bodies, decompressed by a library other than the one that compressed them."""

from __future__ import annotations

import random
import zlib

import pyarrow as pa
import pytest

from saturnmq.client.compression import decompress
from saturnmq.protocol.errors import ConfigError, MessageError, SaturnError
from saturnmq.spark import sink
from saturnmq.spark.body_codecs import CODECS
from saturnmq.spark.sink_options import BODY_BYTES_MAX, parse_sink_options
from saturnmq.spark.source import RocketMQDataSource
from saturnmq.sync import Client
from saturnmq.testing import SyncEmbeddedBroker

FLAGS = {"zlib": 0x301, "lz4": 0x101, "zstd": 0x201}
LONG = b"a long body " * 1000


def unpacked(kind: str, data: bytes) -> bytes:
    if kind == "zlib":
        return zlib.decompress(data)
    return bytes(pa.input_stream(pa.BufferReader(data), compression=kind).read())


@pytest.mark.spec("SNK-01", "MSG-07")
@pytest.mark.parametrize("kind", FLAGS)
def test_sink_compresses_only_long_bodies(server: SyncEmbeddedBroker, kind: str) -> None:
    topic = f"packed-{kind}"
    with Client(name_servers=server.name_servers) as client:
        client.create_topic(topic, queues=1)
    given = {"nameServer": server.name_servers, "topic": topic, "compress": kind, "compressAbove": "100"}
    rows = pa.RecordBatch.from_pydict({"body": [LONG, b"short", LONG[:-1]]})
    sink.write_batches(parse_sink_options(given, {"body": "binary"}), iter([rows]))
    source = RocketMQDataSource(
        {"nameServer": server.name_servers, "topic": topic, "columns": "body,sysFlag", "decompress": "false"}
    )
    made = source.reader(source.schema())
    found = [(row["sysFlag"], row["body"]) for p in made.partitions() for b in made.read(p) for row in b.to_pylist()]
    packed = sorted(unpacked(kind, body) for flag, body in found if flag == FLAGS[kind])
    assert packed == sorted([LONG, LONG[:-1]]) and [body for flag, body in found if not flag] == [b"short"]
    assert all(len(body) < 1000 for _, body in found)


@pytest.mark.spec("SNK-01", "MSG-07")
@pytest.mark.parametrize("kind", FLAGS)
def test_body_codec_round_trips_any_body(kind: str) -> None:
    pack, flags = CODECS[kind]
    assert flags == FLAGS[kind]
    dull = random.Random(1).randbytes(BODY_BYTES_MAX)  # incompressible
    for body in (b"x", b"x" * 65_537, LONG * 20, dull, dull[:70_000] + bytes(BODY_BYTES_MAX - 70_000)):
        data = pack(body)
        assert unpacked(kind, data) == body and len(data) <= len(body) + len(body) // 255 + 64
        try:
            assert decompress(data, flags) == body
        except MessageError:
            raise
        except SaturnError as error:  # the optional package is not installed
            assert kind in str(error) or "zstandard" in str(error)
    with pytest.raises(ConfigError, match="must be none or zlib or lz4 or zstd"):
        parse_sink_options({"nameServer": "h:1", "topic": "T", "compress": "gzip"}, {"body": "binary"})


@pytest.mark.spec("MSG-07")
def test_lz4_frame_has_independent_blocks() -> None:
    """Java's reader rejects linked blocks; a body of more than 64 KiB would show them."""
    frame = CODECS["lz4"][0](LONG * 20)
    assert frame[:7] == bytes.fromhex("04224d18607073") and frame[-4:] == bytes(4)
    assert int.from_bytes(frame[7:11], "little") == len(frame) - 15  # a single block
