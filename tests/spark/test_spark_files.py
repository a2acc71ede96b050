"""mode=files: the same rows as from a broker, from read-only folders, intact and damaged."""

from __future__ import annotations

import asyncio
import shutil
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saturnmq import Outgoing
from saturnmq.client.client import Client
from saturnmq.protocol.codes import HALF_TOPIC, OP_HALF_TOPIC
from saturnmq.protocol.errors import ConfigError, CorruptRecord
from saturnmq.protocol.message import BLANK_MAGIC, Host, Message, encode_record
from saturnmq.spark import log_scan
from saturnmq.spark.fetch import DataLossError
from saturnmq.spark.log_scan import chunks, log_files, pieces_of
from saturnmq.spark.options import parse_options
from saturnmq.spark.pipelines.files import check_file
from saturnmq.spark.source import RocketMQDataSource
from saturnmq.store import StoreProfile, StoreSettings
from saturnmq.testing import EmbeddedBroker

FILE_BYTES = 65_536


def read(path: Path, **options: Any) -> list[dict[str, Any]]:
    given_options = {
        "mode": "files",
        "path": str(path),
        "columns": "topic,queueId,queueOffset,physicalOffset,tags,keys,body",
    }
    source = RocketMQDataSource(given_options | {k: str(v) for k, v in options.items()})
    made = source.reader(source.schema())
    return [row for p in made.partitions() for batch in made.read(p) for row in batch.to_pylist()]


def tree(folder: Path) -> dict[str, tuple[int, float]]:
    return {str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(folder.rglob("*"))}


@pytest.mark.spec("FMD-05")
def test_log_end_is_found_before_preallocated_files(tmp_path: Path) -> None:
    """Apache RocketMQ preallocates the next file: zeros, after the file where the log ends."""
    make_log(tmp_path / "commitlog", [b"x" * 100] * 12)
    files = sorted((tmp_path / "commitlog").iterdir())
    before = [row["queueOffset"] for row in read(tmp_path)]
    for number in (len(files), len(files) + 1):
        (tmp_path / "commitlog" / f"{number * 2000:020d}").write_bytes(bytes(2000))
    assert [row["queueOffset"] for row in read(tmp_path)] == before == list(range(12))
    assert [f.last for f in log_files(str(tmp_path))] == [False] * (len(files) - 1) + [True]


@pytest.mark.spec("FMD-01", "FMD-08")
def test_files_of_running_broker_equal_broker_read(tmp_path: Path) -> None:
    """Several files, read while the broker writes: the rows equal those of the broker, and no file changes."""

    async def main() -> None:
        small = StoreSettings(profile=StoreProfile.SMALL, commit_log_file_bytes=FILE_BYTES)
        async with (
            EmbeddedBroker(tmp_path, store=small) as server,
            Client(name_servers=server.name_servers) as client,
            client.producer("files-tests") as out,
        ):
            await client.create_topic("filed", queues=3)

            async def send(first: int, count: int) -> None:
                messages = [
                    Outgoing(value=b"%d" % n * 20, tag="ab"[n % 2], keys=[str(n)]) for n in range(first, first + count)
                ]
                for at in range(0, count, 50):
                    await out.send_many("filed", messages[at : at + 50])

            await send(0, 1000)
            writing = asyncio.create_task(send(1000, 500))
            await asyncio.to_thread(read, tmp_path / "store")  # during writes: no error
            await writing
            source = RocketMQDataSource({"nameServer": server.name_servers, "topic": "filed"})
            made = source.reader(source.schema())
            files_source = RocketMQDataSource(
                {"mode": "files", "path": str(tmp_path / "store"), "topic": "filed", "brokerName": "broker-a"}
            )
            files_made = files_source.reader(files_source.schema())

            def rows(reader: Any) -> list[dict[str, Any]]:
                return [r for p in reader.partitions() for b in reader.read(p) for r in b.to_pylist()]

            from_broker = await asyncio.to_thread(rows, made)
            before = tree(tmp_path / "store" / "commitlog")
            from_files = await asyncio.to_thread(rows, files_made)
            assert tree(tmp_path / "store" / "commitlog") == before and len(before) > 3

            def order(row: dict[str, Any]) -> tuple[int, int]:
                return (row["queueId"], row["queueOffset"])

            assert len(from_broker) == 1500
            assert sorted(from_files, key=order) == sorted(from_broker, key=order)
            tagged = await asyncio.to_thread(lambda: read(tmp_path / "store", topic="filed", subExpression="a"))
            assert len(tagged) == 750 and {r["tags"] for r in tagged} == {"a"}

    asyncio.run(main())
    log = tmp_path / "store" / "commitlog"
    for path in [*log.iterdir(), log]:
        path.chmod(0o500 if path.is_dir() else 0o400)
    try:
        assert len(read(tmp_path / "store", topic="filed")) == 1500
    finally:
        log.chmod(0o700)


def record(n: int, at: int, **more: Any) -> bytes:
    fields: dict[str, Any] = {"topic": "T", "body": b"body %d" % n, "properties_raw": b"KEYS\x01%d" % n, "queue_offset": n,
                              "physical_offset": at, "store_host": Host("1.2.3.4", 5), "store_timestamp_ms": 1000 + n}  # fmt: skip
    return encode_record(Message(**(fields | more)))


def make_log(folder: Path, bodies: list[bytes], file_bytes: int = 2000, ledger: bool = False) -> int:
    """Write records to files as a broker does: filler at file ends, zeros after the last record.

    Return the bytes used in the last file.
    """
    folder.mkdir(parents=True)
    head = 48 if ledger else 0
    base, content = 0, b""

    def finish(blank: bool) -> None:
        left = file_bytes - len(content)
        magic = struct.pack(">ii", -1, left) if ledger else struct.pack(">ii", left, BLANK_MAGIC)
        tail = magic.ljust(left, b"\0") if blank else bytes(left)
        (folder / f"{base:020d}").write_bytes(content + tail)

    for n, body in enumerate(bodies):
        made = record(n, base + len(content) + head, body=body)
        if len(content) + head + len(made) + 8 > file_bytes:
            finish(True)
            base, content = base + file_bytes, b""
            made = record(n, base + head, body=body)
        if ledger:
            content += struct.pack(">iiqqqiiii", 1, 48 + len(made), n, 1, base + len(content), 0, 0, 0, len(made))
        content += made
    finish(False)
    return len(content)


def nested(n: int) -> bytes:
    """Return a body that contains a whole record, a filler and a magic."""
    return record(n, 12345) + struct.pack(">ii", 100, BLANK_MAGIC) + record(n, 0)[:40]


@pytest.mark.spec("FMD-03", "FMD-04", "FMD-05", "FMD-08")
@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.sampled_from([b"x", b"y" * 300, nested(1), nested(2)]), max_size=25),
    st.integers(1, 4000),
    st.sampled_from(["walk", "file", "resync"]),
)
def test_each_record_is_read_once_at_any_split(bodies: list[bytes], piece_bytes: int, split: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_scan, "PIECE_BYTES", piece_bytes)
        patch.setattr(log_scan, "CHUNK_BYTES", 700)
        make_log(Path(folder) / "commitlog", bodies)
        found = read(Path(folder), split=split)
        assert [(r["queueOffset"], r["body"]) for r in found] == list(enumerate(bodies))


@pytest.mark.spec("FMD-03", "FMD-04", "FMD-06")
@pytest.mark.parametrize("ledger", [False, True])
def test_resync_split_reports_hole_in_one_task(tmp_path: Path, ledger: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "dledger-n0" / "data" if ledger else tmp_path / "commitlog"
    make_log(folder, [b"%d" % n * 50 for n in range(200)], file_bytes=60_000, ledger=ledger)
    (path,) = folder.iterdir()
    monkeypatch.setattr(log_scan, "PIECE_BYTES", 3000)
    monkeypatch.setattr(log_scan, "CHUNK_BYTES", 500)
    (file,) = log_files(str(tmp_path))
    walked, cut = pieces_of(file), pieces_of(file, split="resync")
    assert len(cut) > 5 and [p.begin for p in cut[1:]] == [p.end for p in cut[:-1]]
    assert (cut[0].begin, cut[-1].end) == (0, walked[-1].end) and [p.last for p in cut] == [False] * (len(cut) - 1) + [
        True
    ]
    assert [r["queueOffset"] for r in read(tmp_path, split="resync")] == list(range(200))
    # damage in the record before a cut belongs to the earlier task, which reports it even in the last file
    whole = bytearray(path.read_bytes())
    frames = [c.at + int(p) - 48 * ledger for c in chunks(cut[2]) for p in c.positions]
    whole[frames[-1] : frames[-1] + 8] = b"garbage!"
    path.write_bytes(whole)
    with pytest.raises(CorruptRecord, match=f"damaged at byte {frames[-1]}"):
        read(tmp_path, split="resync")
    assert len(read(tmp_path, split="resync", corrupt="skip")) == 199


@pytest.mark.spec("FMD-03")
def test_forged_frame_in_body_misleads_only_resync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why resync is not the default: position and CRC of a record inside a body can be valid."""
    first = record(0, 0)
    head = len(record(1, len(first), body=b"")) - len(b"KEYS\x011") - len("T") - 3  # start of the body
    forged = record(7, len(first) + head)
    folder = tmp_path / "commitlog"
    folder.mkdir()
    content = first + record(1, len(first), body=forged)
    content += record(2, len(content))
    (folder / f"{0:020d}").write_bytes(content)
    monkeypatch.setattr(log_scan, "PIECE_BYTES", len(first) + 10)
    (file,) = log_files(str(tmp_path))
    assert pieces_of(file, split="resync")[1].begin == len(first) + head
    assert [r["queueOffset"] for r in read(tmp_path)] == [0, 1, 2]
    assert [r["queueOffset"] for r in read(tmp_path, split="file")] == [0, 1, 2]


def pack(path: Path, codec: str) -> Path:
    """Replace the file by a compressed one."""
    packed = path.with_name(path.name + (".gz" if codec == "gzip" else ".zst"))
    with pa.output_stream(str(packed), compression=codec) as out:
        out.write(path.read_bytes())
    path.unlink()
    return packed


@pytest.mark.spec("FMD-05", "FMD-09")
@pytest.mark.parametrize("ledger", [False, True])
def test_compressed_files_are_read_with_one_task_each(tmp_path: Path, ledger: bool) -> None:
    folder = tmp_path / "dledger-n0" / "data" if ledger else tmp_path / "commitlog"
    used = make_log(folder, [b"m%d" % n * 20 for n in range(60)], ledger=ledger)
    names = sorted(folder.iterdir())
    content = names[-1].read_bytes()
    names[-1].write_bytes(content[: used - 9] + bytes(len(content) - used + 9))  # the last record is torn
    (folder / f"{len(names) * 2000:020d}").write_bytes(bytes(2000))  # preallocated
    everything = [(r["queueOffset"], r["body"]) for r in read(tmp_path)]
    assert everything[0] == (0, b"m0" * 20) and [n for n, _ in everything] == list(range(59)) and len(names) > 4
    kept = names[1].read_bytes()
    checked = [check_file(file)[1:] for file in log_files(str(tmp_path))]
    for number, path in enumerate(sorted(folder.iterdir())):
        if number != 2:
            pack(path, ("gzip", "zstd")[number % 2])
    before = tree(tmp_path)
    assert [(r["queueOffset"], r["body"]) for r in read(tmp_path)] == everything
    assert [(r["queueOffset"], r["body"]) for r in read(tmp_path, split="resync")] == everything
    assert tree(tmp_path) == before  # nothing is decompressed into the folder
    files = log_files(str(tmp_path))
    assert [check_file(file)[1:] for file in files] == checked
    assert [len(pieces_of(file)) for file in files] == [1] * len(files)
    names[1].write_bytes(kept)  # beside its archive: still read once
    assert [(r["queueOffset"], r["body"]) for r in read(tmp_path)] == everything
    archive = names[0].with_name(names[0].name + ".gz")
    if not ledger:
        alone = [r["queueOffset"] for r in read(archive)]
        assert alone and alone == list(range(len(alone)))
    archive.write_bytes(archive.read_bytes()[:-30])
    with pytest.raises(CorruptRecord, match=f"{archive.name}: cannot be unpacked"):
        read(tmp_path)


@pytest.mark.spec("PIP-14", "FMD-09")
def test_torn_tail_is_reported_for_compressed_file(tmp_path: Path) -> None:
    used = make_log(tmp_path / "commitlog", [bytes([n]) * 300 for n in range(1, 40)], file_bytes=60_000)
    (path,) = (tmp_path / "commitlog").iterdir()
    for rest, torn in ((b"", False), (b"torn", True)):
        path.write_bytes((path.read_bytes()[:used] + rest).ljust(60_000, b"\0"))
        (plain,) = [check_file(file) for file in log_files(str(tmp_path))]
        packed = pack(path, "gzip")
        (other,) = [check_file(file) for file in log_files(str(tmp_path))]
        assert plain[1:] == other[1:] and plain[-1] is torn and plain[3] == 39
        assert packed.stat().st_size < used  # offsets refer to the uncompressed file
        with pa.input_stream(str(packed), compression="gzip") as stream:
            path.write_bytes(stream.read())
        packed.unlink()


@pytest.mark.spec("FMD-09")
def test_store_with_compressed_files_is_not_read_by_queues(tmp_path: Path) -> None:
    """Units contain offsets into log files; those of compressed files would be taken for deleted."""

    async def main() -> None:
        small = StoreSettings(profile=StoreProfile.SMALL, commit_log_file_bytes=FILE_BYTES)
        async with (
            EmbeddedBroker(tmp_path, store=small) as server,
            Client(name_servers=server.name_servers) as client,
            client.producer("files-tests") as out,
        ):
            await client.create_topic("packed", queues=1)
            for at in range(0, 1000, 50):
                await out.send_many("packed", [Outgoing(value=b"%d" % n * 20) for n in range(at, at + 50)])

    asyncio.run(main())
    store = tmp_path / "store"
    assert len(read(store, topic="packed", plan="queues")) == 1000
    pack(min((store / "commitlog").iterdir()), "zstd")
    assert sorted(r["queueOffset"] for r in read(store, topic="packed")) == list(range(1000))
    with pytest.raises(ConfigError, match="plan=queues"):
        read(store, topic="packed", plan="queues")


@pytest.mark.spec("FMD-09")
def test_renamed_file_is_read_with_base_offset(tmp_path: Path) -> None:
    make_log(tmp_path / "commitlog", [b"m%d" % n * 20 for n in range(60)])
    second = sorted((tmp_path / "commitlog").iterdir())[1]
    expected = read(second)
    assert expected and expected[0]["physicalOffset"] == 2000
    copy = second.rename(tmp_path / "copy of a log.bin")
    with pytest.raises(ConfigError, match=r"20 digits.*option baseOffset says it"):
        read(copy)
    assert read(copy, baseOffset=2000) == expected
    assert read(pack(copy, "gzip"), baseOffset=2000) == expected
    with pytest.raises(ConfigError, match="is no file; files of folders have their names"):
        read(tmp_path, baseOffset=0)
    with pytest.raises(ConfigError, match="option baseOffset: only with mode=files"):
        RocketMQDataSource({"nameServer": "h:1", "topic": "T", "baseOffset": "0"}).schema()


@pytest.mark.spec("FMD-06", "PIP-14")
def test_damage_fails_or_is_skipped_and_recorded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bodies = [b"m%d" % n * 10 for n in range(40)]
    make_log(tmp_path / "commitlog", bodies)
    second = sorted((tmp_path / "commitlog").iterdir())[1]
    whole = bytearray(second.read_bytes())
    (chunk,) = chunks(pieces_of(log_files(str(tmp_path))[1])[0])
    third = int(chunk.positions[2])
    fourth, fifth = int(chunk.positions[3]), int(chunk.positions[4])
    lost = read(tmp_path, split="file")[:]
    assert len(lost) == 40
    broken = bytearray(whole)
    broken[third : third + 8] = b"garbage!"
    second.write_bytes(broken)
    with pytest.raises(CorruptRecord, match=rf"{second.name}: damaged at byte {third}"):
        read(tmp_path)
    assert len(read(tmp_path, corrupt="skip")) == 39
    assert f"damage file={second} from={third} to={fourth} reason=" in caplog.text
    log = tmp_path / "holes"
    assert len(read(tmp_path, corrupt="report", dataLossLog=log, split="file")) == 39
    (note,) = log.iterdir()
    assert f'"begin": {third}, "end": {fourth}' in note.read_text()
    for at in (
        whole.index(b"m", fourth + 84),
        fifth - 20,
    ):  # the first byte and another one of the fourth record's body
        broken = bytearray(whole)
        broken[at] ^= 1
        second.write_bytes(broken)
        with pytest.raises(CorruptRecord, match=rf"damaged at byte {fourth}: .*body CRC"):
            read(tmp_path)
        assert len(read(tmp_path, corrupt="skip")) == 39
        assert len(read(tmp_path, verifyCrc="false")) == 40


@pytest.mark.spec("FMD-05")
def test_torn_tail_ends_log_without_error(tmp_path: Path) -> None:
    bodies = [b"m%d" % n * 10 for n in range(10)]
    used = make_log(tmp_path / "commitlog", bodies, file_bytes=8000)
    (path,) = (tmp_path / "commitlog").iterdir()
    whole = path.read_bytes()
    for cut in (used - 1, used - 60, used - 110):
        path.write_bytes(whole[:cut] + bytes(len(whole) - cut))
        assert len(read(tmp_path, corrupt="fail", verifyCrc="true")) in (8, 9)
        path.write_bytes(whole[:cut])
        assert len(read(tmp_path)) in (8, 9)
    path.write_bytes(bytes(8000))
    assert read(tmp_path) == []
    shutil.rmtree(tmp_path / "commitlog")
    (tmp_path / "commitlog").mkdir()
    assert read(tmp_path) == []


@pytest.mark.spec("FMD-05")
def test_plan_fixes_end_and_deleted_file_is_data_loss(tmp_path: Path) -> None:
    folder = tmp_path / "commitlog"
    used = make_log(folder, [b"m%d" % n * 10 for n in range(40)])
    files = sorted(folder.iterdir())
    given = {"mode": "files", "path": str(tmp_path), "columns": "queueOffset"}

    def planned(**more: str) -> Any:
        source = RocketMQDataSource(given | more)
        made = source.reader(source.schema())
        parts = list(made.partitions())
        return lambda: [r["queueOffset"] for p in parts for b in made.read(p) for r in b.to_pylist()]

    strict, tolerant = planned(), planned(failOnDataLoss="false")
    whole = files[-1].read_bytes()
    later = record(40, 2000 * (len(files) - 1) + used, body=b"later")
    assert used + len(later) < 2000
    files[-1].write_bytes((whole[:used] + later).ljust(2000, b"\0"))
    assert strict() == list(range(40)) and planned()() == list(range(41))
    first = len(read(files[0]))
    files[0].unlink()
    with pytest.raises(DataLossError, match=rf"{files[0].name}.*the file was deleted"):
        strict()
    assert tolerant() == list(range(first, 40))


@pytest.mark.spec("FMD-01")
def test_read_of_stopped_store_changes_nothing_and_filters_times(tmp_path: Path) -> None:
    make_log(tmp_path / "commitlog", [b"m%d" % n * 10 for n in range(40)])
    before = tree(tmp_path)
    found = read(tmp_path, startingTimestamp=1010, endingTimestamp=1020, topic="T")  # record n was stored at 1000 + n
    assert [r["queueOffset"] for r in found] == list(range(10, 20))
    assert read(tmp_path, topic="other") == [] and len(read(tmp_path, split="resync")) == 40
    assert tree(tmp_path) == before, "no file is made, not even a lock"
    with pytest.raises(ConfigError, match="expressionType=SQL92 needs a broker"):
        read(tmp_path, subExpression="a > 1", expressionType="SQL92")


@pytest.mark.spec("FMD-03")
def test_file_task_size_and_split_defaults() -> None:
    assert log_scan.PIECE_BYTES == 64 * 1024 * 1024
    options = parse_options({"mode": "files", "path": "/nowhere"})
    assert (options.split, options.corrupt) == ("walk", "fail")


@pytest.mark.spec("FMD-07")
def test_old_log_below_ledger_is_read(tmp_path: Path) -> None:
    """A broker converted to DLedger: its first data file begins at offset 4000."""
    make_log(tmp_path / "commitlog", [b"m%d" % n * 10 for n in range(40)])
    old = [r["queueOffset"] for r in read(tmp_path) if r["physicalOffset"] < 4000]
    made = record(1000, 4000 + 48, body=b"new")
    data = tmp_path / "dledger-n0" / "data"
    data.mkdir(parents=True)
    head = struct.pack(">iiqqqiiii", 1, 48 + len(made), 0, 1, 4000, 0, 0, 0, len(made))
    (data / f"{4000:020d}").write_bytes((head + made).ljust(2000, b"\0"))
    assert len(list((tmp_path / "commitlog").iterdir())) > 2
    assert [r["queueOffset"] for r in read(tmp_path)] == [*old, 1000] and 0 < len(old) < 40


@pytest.mark.spec("FMD-07")
def test_ledger_is_read_up_to_committed_index(tmp_path: Path) -> None:
    bodies = [b"m%d" % n for n in range(30)]
    make_log(tmp_path / "dledger-n0" / "data", bodies, ledger=True)
    assert [r["body"] for r in read(tmp_path)] == bodies
    (tmp_path / "dledger-n0" / "checkpoint").write_text("endIndex=29\ncommittedIndex=21\n")
    assert [r["body"] for r in read(tmp_path)] == bodies[:22]
    assert [r["body"] for r in read(tmp_path / "dledger-n0", uncommitted="true")] == bodies


@pytest.mark.spec("FMD-08")
def test_files_read_hides_records_invisible_to_consumers(tmp_path: Path) -> None:
    folder = tmp_path / "commitlog"
    folder.mkdir()
    content = b""
    kinds = [("T", 0), ("T", 4), ("T", 8), ("T", 12), (HALF_TOPIC, 0), ("SCHEDULE_TOPIC_XXXX", 0), (OP_HALF_TOPIC, 0)]
    for n, (topic, flag) in enumerate(kinds):
        content += record(
            n, len(content), topic=topic, sys_flag=flag, born_host=Host("::1", 9) if n == 2 else Host("1.1.1.1", 9)
        )
    (folder / f"{0:020d}").write_bytes(content)
    assert [r["queueOffset"] for r in read(tmp_path)] == [0, 2]
    assert [r["queueOffset"] for r in read(tmp_path, includeSystem="true")] == list(range(7))
    source = RocketMQDataSource({"mode": "files", "path": str(tmp_path), "columns": "queueOffset", "queues": "0"})
    made: Any = source.reader(source.schema())
    assert [r["queueOffset"] for p in made.partitions() for b in made.read(p) for r in b.to_pylist()] == [0, 2]


@pytest.mark.spec("FMD-01", "FMD-09")
def test_wrong_folder_or_file_name_is_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        read(tmp_path / "missing")
    with pytest.raises(ConfigError, match="holds no commit log"):
        read(tmp_path)
    for name in ("odd", "0" * 19, "0" * 21, f"{0:019d}.gz"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(ConfigError, match="20 digits"):
            read(tmp_path / name)
    with pytest.raises(ConfigError, match="holds no commit log"):
        read(tmp_path)
    with pytest.raises(ConfigError, match="option path is missing"):
        RocketMQDataSource({"mode": "files"}).schema()
