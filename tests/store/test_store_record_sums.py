"""Checksums beside the log: damage behind the last checkpoint is distinguished from a record that a power loss has torn."""

from __future__ import annotations

import asyncio
import random
import shutil
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.harm import harmed
from saturnmq.protocol.errors import CorruptRecord
from saturnmq.protocol.message import Host, Message, encode_properties
from saturnmq.store import FlushDiskType, MessageStore, PutStatus, StoreProfile, StoreSettings
from saturnmq.store.files import record_sums
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.record_sums import PREFIX, RecordSums
from saturnmq.store.recovery.checkpoint import Checkpoint
from saturnmq.store.tools.repair import cut, find_loss
from saturnmq.store.tools.scan import Problem, Weight
from saturnmq.store.tools.verify import verify

HOST = Host("127.0.0.1", 10911)
PLACE = list[tuple[int, int]]


def settings_of(root: Path) -> StoreSettings:
    return StoreSettings(
        store_path_root_dir=str(root),
        profile=StoreProfile.SMALL,
        flush_disk_type=FlushDiskType.SYNC_FLUSH,
        commit_log_file_bytes=65536,
    )


def message(number: int) -> Message:
    properties = encode_properties({"KEYS": f"k{number}", "TAGS": "paid", "region": "eu"})
    return Message("orders", b"body %d" % number, properties, number % 2, born_host=HOST, store_host=HOST)


async def killed_store(root: Path, count: int, batch: bool = False) -> PLACE:
    """A store that was killed after it had acknowledged messages; position and size of each record."""
    store = MessageStore(settings_of(root))
    store.open()
    places: PLACE = []
    if batch:
        common = message(0)
        result = store.put_batch(common, [(bytes(m.body), m.properties_raw, 0) for m in map(message, range(count))])
        assert await store.wait_confirmed(result) is PutStatus.PUT_OK
        ends = (*result.physical_offsets[1:], result.end_offset)
        places = [(at, end - at) for at, end in zip(result.physical_offsets, ends, strict=True)]
    else:
        for number in range(count):
            result = store.put(message(number))
            assert await store.wait_confirmed(result) is PutStatus.PUT_OK
            places.append((result.physical_offset, result.end_offset - result.physical_offset))
    await store.abort()
    return places


def log_file(root: Path) -> Path:
    return root / "commitlog" / ("0" * 20)


def damage_first_block(root: Path) -> None:
    """Change a byte in the block of the first record; the other blocks are whole."""
    (sums,) = root.glob(PREFIX + "*")
    flip(sums, 20, 0)


def flip(path: Path, at: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes((byte ^ 1 << bit,)))


def start(root: Path) -> int:
    """Open and close a store; returns the end of its log."""
    store = MessageStore(settings_of(root))
    store.open()
    end = store.log.end
    store.close_files()
    return end


@pytest.mark.spec("DUR-08", "DUR-09")
@pytest.mark.parametrize("batch", [False, True], ids=["single", "batch"])
def test_each_flipped_bit_of_an_acknowledged_record_is_damage(batch: bool, tmp_path: Path) -> None:
    """Every bit of the last record, and a sample of the others: header, body, topic and properties."""
    source = tmp_path / "source"
    places = asyncio.run(killed_store(source, 3, batch))
    rng = random.Random(7)
    last_at, last_size = places[-1]
    bits = [(last_at, byte, bit) for byte in range(last_size) for bit in range(0, 8, 7)]
    bits += [(at, rng.randrange(size), rng.randrange(8)) for at, size in places[:-1] for _ in range(20)]
    before = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}
    for at, byte, bit in bits:
        flip(log_file(source), at + byte, bit)
        with pytest.raises(CorruptRecord, match=rf"damaged \(offset {at}: not the bytes that were synced"):
            start(source)
        flip(log_file(source), at + byte, bit)
        assert log_file(source).read_bytes() == before[log_file(source)]  # a refused start changes nothing
    assert start(source) == sum(places[-1])


@pytest.mark.spec("DUR-09")
@pytest.mark.parametrize("harm", ["gone", "empty", "first byte", "cut"])
def test_without_its_checksum_a_bad_record_is_torn(harm: str, tmp_path: Path) -> None:
    places = asyncio.run(killed_store(tmp_path, 3))
    (sums,) = tmp_path.glob(PREFIX + "*")
    data = sums.read_bytes()
    if harm == "gone":
        sums.unlink()
    else:
        blocks = [data[: len(data) // 3], data[len(data) // 3 : -len(data) // 3], data[-len(data) // 3 :]]
        assert len({len(block) for block in blocks}) == 1
        kept = {"empty": b"", "cut": b"".join(blocks[:2]) + blocks[2][:-3]}
        sums.write_bytes(kept.get(harm, b"".join(blocks[:2]) + b"x" + blocks[2][1:]))
    flip(log_file(tmp_path), places[2][0] + 90, 0)  # in the body
    assert start(tmp_path) == places[2][0]


@pytest.mark.spec("DUR-09")
def test_later_block_proves_an_earlier_record_durable(tmp_path: Path) -> None:
    """The block of the first record is damaged; that of the third one says that everything before it was on disk."""
    places = asyncio.run(killed_store(tmp_path, 3))
    damage_first_block(tmp_path)
    flip(log_file(tmp_path), places[0][0] + 90, 0)
    with pytest.raises(CorruptRecord, match=rf"everything before offset {sum(places[2])} was on disk"):
        start(tmp_path)


@pytest.mark.spec("DUR-09")
def test_repair_cuts_at_the_damage_and_forgets_the_checksums(tmp_path: Path) -> None:
    places = asyncio.run(killed_store(tmp_path, 3))
    flip(log_file(tmp_path), sum(places[1]) - 2, 1)  # its properties, which no other checksum covers
    loss = find_loss(settings_of(tmp_path))
    assert loss is not None
    assert (loss.offset, loss.records) == (places[1][0], 2)
    cut(settings_of(tmp_path), loss)
    assert not list(tmp_path.glob(PREFIX + "*"))
    assert start(tmp_path) == places[1][0]


@pytest.mark.spec("DUR-09")
def test_checksums_are_ignored_after_another_broker_wrote_the_store(tmp_path: Path) -> None:
    places = asyncio.run(killed_store(tmp_path, 2))
    checkpoint = tmp_path / "checkpoint"
    data = checkpoint.read_bytes()
    checkpoint.write_bytes((int.from_bytes(data[:8], "big") + 1).to_bytes(8, "big") + data[8:])
    flip(log_file(tmp_path), places[1][0] + 90, 0)
    assert start(tmp_path) == places[1][0]


@pytest.mark.spec("DUR-09")
def test_checkpoint_and_stop_delete_the_checksums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_sums, "ROLL_BYTES", 100)

    async def run() -> None:
        store = MessageStore(settings_of(tmp_path))
        store.open()
        for number in range(20):
            await store.wait_confirmed(store.put(message(number)))
        assert len(list(tmp_path.glob(PREFIX + "*"))) > 5
        await store.write_all()
        assert len(list(tmp_path.glob(PREFIX + "*"))) == 1
        await store.stop()
        assert not list(tmp_path.glob(PREFIX + "*"))

    asyncio.run(run())
    checkpoint = Checkpoint(tmp_path / "checkpoint", Disk())
    checkpoint.load()
    assert checkpoint.note is not None
    assert checkpoint.note.log_synced == start(tmp_path)


class FullDisk(Disk):
    def create(self, path: Path, size_bytes: int, *, allocate: bool) -> int:
        if path.name.startswith(PREFIX):
            raise OSError(28, "No space left on device")
        return super().create(path, size_bytes, allocate=allocate)


def test_checksums_that_cannot_be_written_fail_no_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        store = MessageStore(settings_of(tmp_path), disk=FullDisk())
        store.open()
        for number in range(3):
            assert await store.wait_confirmed(store.put(message(number))) is PutStatus.PUT_OK
        await store.stop()

    asyncio.run(run())
    assert caplog.text.count("checksums not written") == 1


def test_blocks_survive_damage_before_them(tmp_path: Path) -> None:
    sums = RecordSums(tmp_path, Disk())
    for at in (0, 100, 200):
        sums.add((at, 100, at))
        sums.write(at + 100, at + 100)
    sums.add((300, 100, 1))
    sums.write(350, 350)  # its record is not whole yet
    sums.close()
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    assert len(data) == 3 * 36
    evidence = RecordSums(tmp_path, Disk()).load()
    assert evidence.reach == 300
    assert evidence.damaged(lambda at, size: None, 100) == [100, 200]
    path.write_bytes(data[:36] + b"SUM1" + data[40:50] + data[60:])
    assert RecordSums(tmp_path, Disk()).load().reach == 300
    path.write_bytes(data[:80])
    assert RecordSums(tmp_path, Disk()).load().reach == 200


def test_store_copied_while_it_ran_opens(tmp_path: Path) -> None:
    """A copy in the order of names has the checksums before the log, so they say nothing that the log does not have."""
    places = asyncio.run(killed_store(tmp_path / "store", 3))
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    assert start(tmp_path / "copy") == sum(places[-1])


def written(folder: Path, count: int) -> tuple[Path, bytes, list[int]]:
    """The file with a block of each of several records of 100 bytes, its bytes, and where its blocks end."""
    sums, ends = RecordSums(folder, Disk()), []
    for number in range(count):
        at = 100 * number
        for part in range(1 + number % 3):  # blocks of several records
            sums.add((at + 10 * part, 10, at + part))
        sums.write(at + 100, at + 100)
        ends.append(sums._size)
    sums.close()
    (path,) = folder.iterdir()
    return path, path.read_bytes(), ends


def read(folder: Path, caplog: pytest.LogCaptureFixture) -> tuple[int, set[int], int]:
    """Reach and positions of the blocks that are read, and the log lines about others."""
    caplog.clear()
    evidence = RecordSums(folder, Disk()).load()
    positions = set(evidence.damaged(lambda at, size: None, -(2**63)))
    return evidence.reach, positions, caplog.text.count("checksums unreadable, taken as absent")


@pytest.mark.spec("DUR-09")
def test_every_prefix_has_its_whole_blocks_and_one_log_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, data, ends = written(tmp_path, 7)
    for length in range(len(data) + 1):
        path.write_bytes(data[:length])
        whole = sum(end <= length for end in ends)
        reach, positions, lines = read(tmp_path, caplog)
        assert reach == (100 * whole if whole else -1)
        assert positions == {100 * n + 10 * part for n in range(whole) for part in range(1 + n % 3)}
        assert lines == (length not in (0, *ends))


@pytest.mark.spec("DUR-09")
def test_changed_bytes_cost_their_own_blocks_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, data, ends = written(tmp_path, 7)
    places = st.dictionaries(st.integers(0, len(data) - 1), st.integers(1, 255), min_size=1, max_size=20)

    @given(places, st.binary(max_size=60), st.binary(max_size=60))
    def check(changes: dict[int, int], before: bytes, after: bytes) -> None:
        changed = bytearray(data)
        for at, mask in changes.items():
            changed[at] ^= mask
        path.write_bytes(before + changed + after)
        begins = [0, *ends[:-1]]
        good = [n for n in range(7) if not any(begins[n] <= at < ends[n] for at in changes)]
        reach, positions, lines = read(tmp_path, caplog)
        assert reach == (100 * (good[-1] + 1) if good else -1)
        assert positions == {100 * n + 10 * part for n in good for part in range(1 + n % 3)}
        assert lines == 1

    check()


@given(st.lists(st.sampled_from([b"SUM1", b"\0\0\0\1", b"\xff" * 4, b"\0" * 8]) | st.binary(max_size=20), max_size=40))
def test_garbage_has_no_blocks(pieces: list[bytes]) -> None:
    assert list(record_sums._blocks(b"".join(pieces))) == []


@pytest.mark.spec("DUR-09")
def test_store_starts_whatever_its_checksums_are(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Truncated anywhere, with random bytes changed, replaced by garbage or by a folder; the log is whole."""
    source, root = tmp_path / "source", tmp_path / "copy"
    end = sum(asyncio.run(killed_store(source, 3))[-1])
    (name,) = (path.name for path in source.glob(PREFIX + "*"))
    data = (source / name).read_bytes()
    rng = random.Random(11)
    copies = [*harmed(data, rng), rng.randbytes(5000), b"SUM1" * 999, b"SUM1" + b"\xff" * 99, b"\0" * 4096]
    for bad in (*copies, None):
        shutil.copytree(source, root)
        if bad is None:
            (root / name).unlink()
            (root / name / "within").mkdir(parents=True)
        else:
            (root / name).write_bytes(bad)
        caplog.clear()
        assert start(root) == end
        lines = caplog.text.count("checksums unreadable, taken as absent")
        assert lines == (bad is not None and len(bad) not in (0, len(data) // 3, len(data) // 3 * 2))
        shutil.rmtree(root)


def found_by_verify(root: Path) -> list[Problem]:
    """Damage, and what the next start would cut. Verification changes nothing."""
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    report = verify(settings_of(root))
    assert before == {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    found = [problem for problem in report.problems if problem.path.parent.name == "commitlog"]
    assert report.sound == all(problem.weight is not Weight.DAMAGE for problem in report.problems)
    assert [problem for problem in report.problems if problem.weight is Weight.DAMAGE and problem not in found] == []
    return found


@pytest.mark.spec("DUR-08", "DUR-09")
@pytest.mark.parametrize("last", [True, False], ids=["last", "middle"])
@pytest.mark.parametrize(
    ("byte", "what"),
    [
        (12, "header, topic or properties"),  # queue id
        (16, "header, topic or properties"),  # flag
        (40, "header, topic or properties"),  # time of birth
        (64, "header, topic or properties"),  # port of the host that stored it
        (88, "CRC"),  # body
        (98, "header, topic or properties"),  # topic
        (-2, "header, topic or properties"),
        (4, "magic"),
    ],
)
def test_verify_reports_a_synced_record_that_differs(byte: int, what: str, last: bool, tmp_path: Path) -> None:
    places = asyncio.run(killed_store(tmp_path, 4))
    assert found_by_verify(tmp_path) == []
    at, size = places[3 if last else 1]
    flip(log_file(tmp_path), at + byte % size, 0)
    (problem,) = found_by_verify(tmp_path)
    assert (problem.weight, problem.path, problem.offset) == (Weight.DAMAGE, log_file(tmp_path), at)
    assert what in problem.description and "saturnmq store repair" in problem.next
    flip(log_file(tmp_path), at + byte % size, 0)
    assert found_by_verify(tmp_path) == []


@pytest.mark.spec("DUR-09")
def test_verify_reports_synced_records_that_are_missing(tmp_path: Path) -> None:
    places = asyncio.run(killed_store(tmp_path, 4))
    with log_file(tmp_path).open("r+b") as file:
        file.seek(places[2][0])
        file.write(bytes(sum(places[3]) - places[2][0]))
    (problem,) = found_by_verify(tmp_path)
    assert (problem.weight, problem.offset) == (Weight.DAMAGE, places[2][0])
    assert "2 records that were synced" in problem.description


@pytest.mark.spec("DUR-09")
def test_verify_names_file_and_byte_of_the_first_missing_record(tmp_path: Path) -> None:
    places = asyncio.run(killed_store(tmp_path, 1))
    file_bytes = log_file(tmp_path).stat().st_size
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    places = asyncio.run(killed_store(tmp_path, file_bytes // places[0][1] + 3))
    lost = places[-2][0]
    path = log_file(tmp_path).with_name(f"{file_bytes:020d}")
    assert file_bytes < lost < 2 * file_bytes
    with path.open("r+b") as file:
        file.seek(lost - file_bytes)
        file.write(bytes(sum(places[-1]) - lost))
    (problem,) = found_by_verify(tmp_path)
    assert (problem.path, problem.at, problem.offset) == (path, lost - file_bytes, lost)


@pytest.mark.spec("DUR-09")
def test_verify_reports_a_log_that_ends_before_what_was_synced(tmp_path: Path) -> None:
    """The record before the last is without its block and everything from it on is zero; the last block proves both."""
    places = asyncio.run(killed_store(tmp_path, 3))
    (sums,) = tmp_path.glob(PREFIX + "*")
    block = bytearray(sums.read_bytes()[-36:])
    block[16:32] = sums.read_bytes()[16:32]  # a checksum of the first record, and the reach of the last one
    block[32:] = zlib.crc32(block[:32]).to_bytes(4, "big")
    sums.write_bytes(block)
    with log_file(tmp_path).open("r+b") as file:
        file.seek(places[1][0])
        file.write(bytes(sum(places[2]) - places[1][0]))
    (problem,) = found_by_verify(tmp_path)
    assert (problem.weight, problem.offset) == (Weight.DAMAGE, places[1][0])
    assert f"ends at offset {places[1][0]}, but it was on disk up to {sum(places[2])}" in problem.description


@pytest.mark.spec("DUR-09")
def test_verify_takes_what_no_checksum_proves_as_torn(tmp_path: Path) -> None:
    """The block of the last record is torn, so nothing says that the record was synced."""
    places = asyncio.run(killed_store(tmp_path, 3))
    (sums,) = tmp_path.glob(PREFIX + "*")
    sums.write_bytes(sums.read_bytes()[:-3])
    flip(log_file(tmp_path), places[2][0] + 88, 0)
    (problem,) = found_by_verify(tmp_path)
    assert (problem.weight, problem.offset) == (Weight.PENDING, places[2][0])
    assert start(tmp_path) == places[2][0]


@pytest.mark.spec("DUR-09")
def test_verify_takes_a_later_block_as_proof(tmp_path: Path) -> None:
    places = asyncio.run(killed_store(tmp_path, 3))
    damage_first_block(tmp_path)
    flip(log_file(tmp_path), places[0][0] + 88, 0)
    (problem,) = found_by_verify(tmp_path)
    assert (problem.weight, problem.offset) == (Weight.DAMAGE, 0)


@pytest.mark.spec("DUR-09")
def test_verify_ignores_checksums_after_another_broker_wrote(tmp_path: Path) -> None:
    places = asyncio.run(killed_store(tmp_path, 2))
    checkpoint = tmp_path / "checkpoint"
    data = checkpoint.read_bytes()
    checkpoint.write_bytes((int.from_bytes(data[:8], "big") + 1).to_bytes(8, "big") + data[8:])
    flip(log_file(tmp_path), sum(places[1]) - 2, 1)
    assert found_by_verify(tmp_path) == []


def test_verify_reports_no_number_behind_a_damaged_record_as_wrong(tmp_path: Path) -> None:
    """No queue was written before the kill, so records must be numbered consecutively, except behind a damaged one."""
    places = asyncio.run(killed_store(tmp_path, 5))
    flip(log_file(tmp_path), places[2][0] + 40, 0)  # number 1 of queue 0, between two others
    (problem,) = found_by_verify(tmp_path)
    assert problem.offset == places[2][0]
