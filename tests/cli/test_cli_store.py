"""`saturnmq store`, run as real processes: results on stdout, messages on stderr, exit codes.

Requirements: CLI-01..CLI-04, CLI-07, CLI-08.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from saturnmq.protocol.message import Host, Message
from saturnmq.store import FlushDiskType, MessageStore, PutStatus, StoreProfile, StoreSettings

Cli = Callable[..., "subprocess.CompletedProcess[str]"]
LOG_BYTES = 4096
HOST = Host("127.0.0.1", 10911)


def opened(path: Path) -> MessageStore:
    settings = StoreSettings(
        store_path_root_dir=str(path),
        profile=StoreProfile.SMALL,
        commit_log_file_bytes=LOG_BYTES,
        consume_queue_file_bytes=200,
        flush_disk_type=FlushDiskType.SYNC_FLUSH,
    )
    store = MessageStore(settings)
    store.open()
    return store


@pytest.fixture
def offsets(tmp_path: Path) -> list[int]:
    """Physical offsets of 40 messages in a store under tmp_path/data."""
    store = opened(tmp_path / "data")
    found = []
    for number in range(40):
        raw = b"UNIQ_KEY\x01u%d\x02city\x01K\xc3\xb6ln" % number
        body = bytes(range(200)) if number == 1 else b"hello %03d " % number * 15
        found.append(store.put(Message("T", body, raw, 0, born_host=HOST, store_host=HOST)).physical_offset)
    asyncio.run(store.stop())
    return found


def harmed(path: Path, offset: int) -> Path:
    """Flip a bit in the body of the record at offset; return the file."""
    file = path / "commitlog" / f"{offset // LOG_BYTES * LOG_BYTES:020d}"
    raw = bytearray(file.read_bytes())
    raw[offset % LOG_BYTES + 100] ^= 1
    file.write_bytes(raw)
    return file


@pytest.mark.spec("CLI-02", "DUR-09")
def test_store_verify_of_killed_store_compares_checksums(cli: Cli, tmp_path: Path) -> None:
    """A bit of the properties, which the CRC in the record does not cover."""

    async def killed() -> int:
        store = opened(tmp_path / "data")
        result = store.put(Message("T", b"body", b"city\x01Ulm", 0, born_host=HOST, store_host=HOST))
        assert await store.wait_confirmed(result) is PutStatus.PUT_OK
        await store.abort()
        return result.end_offset

    end = asyncio.run(killed())
    words = (
        "store",
        "verify",
        "--data",
        str(tmp_path / "data"),
        "--quiet",
        "--set",
        f"mappedFileSizeCommitLog={LOG_BYTES}",
    )
    assert cli(*words).returncode == 0
    file = tmp_path / "data" / "commitlog" / ("0" * 20)
    raw = bytearray(file.read_bytes())
    raw[end - 1] ^= 1
    file.write_bytes(raw)
    damaged = cli(*words)
    assert damaged.returncode == 3
    assert f"damage: {file} byte 0 (offset 0): the record is not what was synced here" in damaged.stdout
    assert "header, topic or properties" in damaged.stdout and "DAMAGED, 1 problems" in damaged.stdout


@pytest.mark.spec("CLI-02", "CLI-03", "CLI-04", "DUR-08")
def test_store_verify_reports_damage_and_exits_3(cli: Cli, tmp_path: Path, offsets: list[int]) -> None:
    data = str(tmp_path / "data")
    sound = cli("store", "verify", "--data", data)
    assert sound.returncode == 0, sound.stderr
    assert (
        f"{data}: sound; offsets 0 to" in sound.stdout
        and "40 records, 40 queue units, 40 index entries" in sound.stdout
    )
    assert "commitlog/00000000000000004096" in sound.stdout and "verify, bytes:" in sound.stderr
    file = harmed(tmp_path / "data", offsets[20])
    damaged = cli("store", "verify", "--data", data, "--quiet")
    assert damaged.returncode == 3
    place = f"damage: {file} byte {offsets[20] % LOG_BYTES} (offset {offsets[20]}): "
    assert place in damaged.stdout and "next: restore the file from a copy" in damaged.stdout
    assert "DAMAGED, 1 problems" in damaged.stdout and damaged.stderr == ""
    as_json = cli("store", "verify", "--data", data, "--json")
    assert as_json.returncode == 3 and as_json.stderr == ""
    document = json.loads(as_json.stdout)
    assert (document["schema"], document["command"], document["sound"]) == (1, "store verify", False)
    (row,) = document["rows"]
    assert (row["file"], row["byte"], row["offset"]) == (str(file), offsets[20] % LOG_BYTES, offsets[20])
    assert next(f["first"] for f in document["files"] if f["kind"] == "commit log") == 0


@pytest.mark.spec("UX-09", "CLI-03", "DUR-16")
def test_store_in_use_is_rejected_unless_verify_is_forced(cli: Cli, tmp_path: Path, offsets: list[int]) -> None:
    store = opened(tmp_path / "data")
    try:
        for action in ("verify", "rebuild", "repair"):
            done = cli("store", action, "--data", str(tmp_path / "data"))
            assert done.returncode == 1 and "is in use by process" in done.stderr and "next: Stop" in done.stderr
            assert done.stdout == ""
        forced = cli("store", "verify", "--data", str(tmp_path / "data"), "--force")
        assert forced.returncode == 0 and "sound" in forced.stdout
        assert "warning: " in forced.stderr and "may look damaged" in forced.stderr
        assert cli("store", "dump", str(offsets[3]), "--data", str(tmp_path / "data")).returncode == 0
    finally:
        store.close_files()


@pytest.mark.spec("DL-U07", "CLI-03", "DUR-09")
def test_store_commands_reject_dledger_store(cli: Cli, tmp_path: Path, offsets: list[int]) -> None:
    """Rebuilding it from the old commit log alone would remove all messages of the ledger from the consume queues."""
    data = tmp_path / "data"
    ledger = data / "dledger-n0" / "data" / f"{LOG_BYTES * 3:020d}"
    ledger.parent.mkdir(parents=True)
    ledger.write_bytes(bytes(LOG_BYTES))

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}

    before = files()
    for words in (["verify"], ["verify", "--force"], ["rebuild"], ["repair"], ["repair", "--at", "0", "--yes"]):
        done = cli("store", *words, "--data", str(data))
        assert done.returncode not in (0, 3) and done.stdout == "", words
        assert f"{ledger.parent} holds messages of a DLedger group" in done.stderr and "start the broker" in done.stderr
        assert files() == before
    assert cli("store", "dump", str(offsets[3]), "--data", str(data)).returncode == 0


@pytest.mark.spec("CLI-08", "CLI-04", "DUR-09")
def test_store_repair_shows_loss_and_requires_confirmation(cli: Cli, tmp_path: Path, offsets: list[int]) -> None:
    data = tmp_path / "data"
    whole = cli("store", "repair", "--data", str(data))
    assert whole.returncode == 0 and "the commit log is intact" in whole.stdout
    file = harmed(data, offsets[20])
    asked = cli("store", "repair", "--data", str(data))
    assert asked.returncode == 1 and "--yes" in asked.stderr
    assert f"{file} at byte {offsets[20] % LOG_BYTES} (offset {offsets[20]})" in asked.stdout
    assert "in which 19 records are still readable" in asked.stdout
    before = json.loads(cli("store", "repair", "--data", str(data), "--json").stdout)["rows"][0]
    assert (before["offset"], before["records"], before["done"]) == (offsets[20], 19, False)
    done = cli("store", "repair", "--data", str(data), "--yes")
    assert done.returncode == 0, done.stderr
    (kept,) = data.glob("cut-*")
    assert f"what was cut off is in {kept}" in done.stdout and "1 consume queues with 20 units" in done.stdout
    piece = kept / f"{offsets[20]:020d}"
    shown = cli("store", "dump", "--file", str(piece), "--at", str(offsets[21] - offsets[20]), "--data", str(data))
    assert shown.returncode == 0 and "hello 021" in shown.stdout, "what was cut off can be read"
    assert cli("store", "verify", "--data", str(data)).returncode == 0


@pytest.mark.spec("CLI-02", "CLI-04")
def test_store_rebuild_recreates_lost_queues(cli: Cli, tmp_path: Path, offsets: list[int]) -> None:
    data = tmp_path / "data"
    for path in (data / "consumequeue" / "T" / "0").iterdir():
        path.write_bytes(bytes(200))
    assert cli("store", "verify", "--data", str(data)).returncode == 3
    done = cli("store", "rebuild", "--data", str(data), "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"][0] | {"log_end": 0} == {
        "log_end": 0,
        "queues": 1,
        "units": 40,
        "index_files": 1,
    }
    assert cli("store", "verify", "--data", str(data)).returncode == 0


@pytest.mark.spec("CLI-02", "CLI-03", "CLI-04", "UX-09")
def test_store_dump_shows_fields_properties_and_body(cli: Cli, tmp_path: Path, offsets: list[int]) -> None:
    data = str(tmp_path / "data")
    shown = cli("store", "dump", str(offsets[3]), "--data", data)
    assert shown.returncode == 0 and "Köln" in shown.stdout and "hello 003" in shown.stdout
    assert "physical_offset" in shown.stdout and str(offsets[3]) in shown.stdout
    by_queue = ("store", "dump", "--topic", "T", "--queue", "0", "--queue-offset", "1", "--data", data)
    binary = cli(*by_queue)
    assert "00000010  10 11 12 13" in binary.stdout
    raw = subprocess.run(
        [sys.executable, "-m", "saturnmq.cli", *by_queue, "--raw"], capture_output=True, timeout=60, check=True
    )  # bytes, not text
    assert raw.stdout == bytes(range(200))
    row = json.loads(cli(*by_queue, "--json").stdout)["rows"][0]
    assert row["body_hex"] == bytes(range(200)).hex() and row["body_text"] is None
    assert row["properties"] == {"UNIQ_KEY": "u1", "city": "Köln"}
    for wrong in ((), ("5", "--topic", "T"), ("--topic", "T", "--queue", "0"), ("--at", "3")):
        done = cli("store", "dump", *wrong, "--data", data)
        assert done.returncode == 2 and "name one record" in done.stderr
    missed = cli("store", "dump", str(offsets[3] + 1), "--data", data)
    assert missed.returncode == 1 and f"byte {offsets[3] + 1}" in missed.stderr and "next: " in missed.stderr
    assert "Traceback" not in missed.stderr


@pytest.mark.spec("CLI-03", "CLI-04", "UX-05")
def test_missing_store_error_names_folder(cli: Cli, tmp_path: Path) -> None:
    done = cli("store", "verify", "--data", str(tmp_path / "none"))
    assert done.returncode == 1 and str(tmp_path / "none") in done.stderr and "next: " in done.stderr
    assert not (tmp_path / "none").exists()
    unnamed = cli("store", "verify")
    assert unnamed.returncode == 2 and "--data DIR" in unnamed.stderr
    assert cli("store").returncode == 2
