"""Every refusal of a store to open names a command that mends it; the tests run that command.

Requirements: CLI-03, DUR-09, DUR-20.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import re
import shlex
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forkedcommand
import pytest

from saturnmq.protocol.errors import DiskFull, OutOfDescriptors, SaturnError, StoreError
from saturnmq.protocol.message import Host, Message
from saturnmq.store import GetStatus, MessageStore, StoreProfile, StoreSettings
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.state_file import StateFile
from saturnmq.store.tools.scan import shaped
from saturnmq.store.tools.verify import verify

LOG_BYTES = 4096
QUEUE_BYTES = 200
EXTENSION_BYTES = 40_000
COUNT = 60
HOST = Host("127.0.0.1", 10911)
COMMAND = re.compile(r"`([^`]+)`")
OPTION = re.compile(r"--set (\w+)=(\d+)")
FIELDS = {
    "mappedFileSizeCommitLog": "commit_log_file_bytes",
    "mappedFileSizeConsumeQueue": "consume_queue_file_bytes",
    "mappedFileSizeConsumeQueueExt": "queue_extension_file_bytes",
}


def settings_of(path: Path, **more: Any) -> StoreSettings:
    sizes = {
        "commit_log_file_bytes": LOG_BYTES,
        "consume_queue_file_bytes": QUEUE_BYTES,
        "queue_extension_enable": True,
        "queue_extension_file_bytes": EXTENSION_BYTES,
    }
    return StoreSettings(store_path_root_dir=str(path), profile=StoreProfile.SMALL, **(sizes | more))


def filled(path: Path, count: int = COUNT, **more: Any) -> list[int]:
    """Fill a store; returns where the records end."""
    ends = []
    store = MessageStore(settings_of(path, **more))
    store.open()
    for number in range(count):
        raw = b"KEYS\x01k%d" % number
        result = store.put(Message("T", b"%03d" % number * 40, raw, 0, born_host=HOST, store_host=HOST))
        ends.append(result.end_offset)
    asyncio.run(store.stop())
    return ends


def readable(path: Path, **more: Any) -> int:
    """Open the store, count the messages of its queue, stop it."""
    store = MessageStore(settings_of(path, **more))
    store.open()
    offset = 0
    try:
        while (result := store.get("T", 0, offset, 32)).status is GetStatus.FOUND:
            offset = result.next_offset
    finally:
        asyncio.run(store.stop())
    return offset


def refusal(path: Path, **more: Any) -> SaturnError:
    with pytest.raises(SaturnError) as caught:
        readable(path, **more)
    return caught.value


def commands(error: SaturnError) -> list[str]:
    assert error.hint
    return COMMAND.findall(error.hint)


def run(command: str) -> str:
    """Run a command that an error names; a repair first without and then with its confirmation."""
    words = shlex.split(command)
    if words[1:3] == ["store", "repair"]:
        dry = _completed(words)
        assert dry.returncode == 1 and "nothing was changed" in dry.stderr, dry
        words.append("--yes")
    done = _completed(words)
    assert done.returncode == 0, (command, done)
    return done.stdout


def _completed(words: list[str]) -> subprocess.CompletedProcess[str]:
    if words[0] != "saturnmq":
        return subprocess.run(words, capture_output=True, text=True, check=False)
    with tempfile.TemporaryDirectory() as folder:
        return forkedcommand.completed(tuple(words[1:]), Path(folder))


def log_file(path: Path, number: int) -> Path:
    return path / "commitlog" / f"{number * LOG_BYTES:020d}"


def kept_bytes(path: Path) -> int:
    return sum(part.stat().st_size for part in path.glob("cut-*/*"))


def overwrite(path: Path, at: int, data: bytes) -> None:
    raw = bytearray(path.read_bytes())
    raw[at : at + len(data)] = data
    path.write_bytes(raw)


def _cut_last(path: Path) -> None:
    last = max((path / "commitlog").iterdir())
    os.truncate(last, len(last.read_bytes().rstrip(b"\0")) + 3)


def _cut_full(path: Path) -> None:
    """A file in the middle ends with a filler; only zeros behind its header are cut."""
    full = log_file(path, 1)
    os.truncate(full, len(full.read_bytes().rstrip(b"\0")) + 1)


def _surplus(path: Path) -> None:
    with log_file(path, 1).open("ab") as file:
        file.write(b"surplus")


def _misfit(path: Path) -> None:
    """The record at the start of file 1 says that it is a message of another number."""
    overwrite(log_file(path, 1), 20, struct.pack(">q", 5))
    shutil.rmtree(path / "consumequeue")
    (path / "checkpoint").unlink()


def _bad_topic(path: Path) -> None:
    """The record at the start of file 1 has a topic that cannot be a folder."""
    head = log_file(path, 1).read_bytes()[:400]
    overwrite(log_file(path, 1), head.index(b"\x01T\x00") + 1, b"/")
    shutil.rmtree(path / "consumequeue")
    (path / "checkpoint").unlink()


def _after_crash(harm: Callable[[Path], None]) -> Callable[[Path], None]:
    def harmed(path: Path) -> None:
        harm(path)
        (path / "abort").write_bytes(b"")

    return harmed


LAST = 3  # number of the last file
WHOLE = 1 << 40
# name, harm, log offset up to which records stay, whether bytes are kept beside
LOG_HARMS: list[tuple[str, Callable[[Path], None], int, bool]] = [
    ("cut behind the last record", _cut_last, WHOLE, False),
    ("cut behind the last record, crash", _after_crash(_cut_last), WHOLE, False),
    ("cut behind a filler", _cut_full, WHOLE, False),
    ("too long", _surplus, WHOLE, True),
    ("cut inside a record", lambda path: os.truncate(log_file(path, 1), 1000), LOG_BYTES + 1000, True),
    ("last cut inside a record", lambda path: os.truncate(log_file(path, LAST), 100), LAST * LOG_BYTES, True),
    ("gap", lambda path: log_file(path, 1).unlink(), LOG_BYTES, True),
    ("last file missing", lambda path: log_file(path, LAST).unlink(), LAST * LOG_BYTES, False),
    ("no files", lambda path: shutil.rmtree(path / "commitlog"), 0, False),
    ("damaged record", lambda path: overwrite(log_file(path, 1), 100, b"?"), LOG_BYTES, True),
    ("number of a record", _misfit, LOG_BYTES, True),
    ("topic of a record", _bad_topic, LOG_BYTES, True),
]


@pytest.mark.parametrize(("name", "harm", "stays", "beside"), LOG_HARMS, ids=[row[0] for row in LOG_HARMS])
def test_refused_log_is_mended_by_the_command_named(
    tmp_path: Path, name: str, harm: Callable[[Path], None], stays: int, beside: bool
) -> None:
    ends = filled(tmp_path)
    assert max((tmp_path / "commitlog").iterdir()) == log_file(tmp_path, LAST)
    harm(tmp_path)
    if name.startswith(("number", "topic", "damaged")):
        (tmp_path / "abort").write_bytes(b"")  # the whole log is read then
        (tmp_path / "checkpoint").unlink(missing_ok=True)
    error = refusal(tmp_path)
    (command,) = commands(error)
    assert command.startswith("saturnmq store repair") and f"--data {tmp_path}" in command
    run(command)
    assert readable(tmp_path) == sum(end <= stays for end in ends)
    assert (kept_bytes(tmp_path) > 0) is beside
    assert verify(shaped(settings_of(tmp_path), {"mappedFileSizeCommitLog"})).sound


def _queue_files(path: Path) -> list[Path]:
    return sorted((path / "consumequeue" / "T" / "0").iterdir())


@pytest.mark.parametrize("length", [100, 95])
def test_queue_files_cut_to_one_wrong_length_are_rebuilt_at_start(tmp_path: Path, length: int) -> None:
    """queues.json says which size the store was written with, so this is no changed setting. 95 is no number of units."""
    filled(tmp_path)
    for path in _queue_files(tmp_path):
        os.truncate(path, length)
    report = verify(shaped(settings_of(tmp_path), {"mappedFileSizeCommitLog"}))
    assert any(f"is {length} bytes long, must be {QUEUE_BYTES}" in problem.description for problem in report.problems)
    assert readable(tmp_path) == COUNT


def test_queue_files_of_another_setting_can_be_kept_or_rebuilt(tmp_path: Path) -> None:
    filled(tmp_path)
    error = refusal(tmp_path, consume_queue_file_bytes=400)
    assert f"are {QUEUE_BYTES} bytes long, must be 400" in error.message and error.hint
    option = OPTION.search(error.hint)
    assert option and option.groups() == ("mappedFileSizeConsumeQueue", str(QUEUE_BYTES))
    assert readable(tmp_path) == COUNT
    (command,) = commands(error)
    assert command.startswith(f"saturnmq store rebuild --data {tmp_path}")
    run(command)
    assert readable(tmp_path, consume_queue_file_bytes=400) == COUNT


def test_queue_files_without_a_recorded_size_name_both_causes(tmp_path: Path) -> None:
    """A store of Apache RocketMQ has no queues.json."""
    filled(tmp_path)
    for name in ("queues.json", "queues.json.bak"):
        (tmp_path / name).unlink(missing_ok=True)
    for path in _queue_files(tmp_path):
        os.truncate(path, 100)
    error = refusal(tmp_path)
    assert error.hint and "--set mappedFileSizeConsumeQueue=100;" in error.hint
    run(commands(error)[0])
    assert readable(tmp_path) == COUNT


@pytest.mark.parametrize("listed", [True, False])
def test_log_files_of_another_setting_name_the_size_to_set(tmp_path: Path, listed: bool) -> None:
    filled(tmp_path)
    if not listed:
        for name in ("queues.json", "queues.json.bak"):
            (tmp_path / name).unlink(missing_ok=True)
    error = refusal(tmp_path, commit_log_file_bytes=8192)
    assert error.hint and not commands(error)
    option = OPTION.search(error.hint)
    assert option and readable(tmp_path, **{FIELDS[option[1]]: int(option[2])}) == COUNT


def test_cut_only_file_without_recorded_size_is_not_guessed(tmp_path: Path) -> None:
    """12288 bytes would be a possible size: the tools ask, and the refused start names it."""
    filled(tmp_path, 20, commit_log_file_bytes=16384)
    for name in ("queues.json", "queues.json.bak"):
        (tmp_path / name).unlink(missing_ok=True)
    os.truncate(log_file(tmp_path, 0), 12288)
    with pytest.raises(SaturnError, match="12288 bytes long") as caught:
        shaped(StoreSettings(store_path_root_dir=str(tmp_path)), frozenset())
    assert caught.value.hint and "--set mappedFileSizeCommitLog=BYTES" in caught.value.hint
    (command,) = commands(refusal(tmp_path, commit_log_file_bytes=16384))
    run(command)
    assert readable(tmp_path, commit_log_file_bytes=16384) == 20


def test_extension_files_of_a_wrong_length_name_setting_and_removal(tmp_path: Path) -> None:
    filled(tmp_path)
    extension = next((tmp_path / "consumequeue_ext").glob("T/0/*"))
    assert extension.stat().st_size == EXTENSION_BYTES
    error = refusal(tmp_path, queue_extension_file_bytes=50_000)
    option = OPTION.search(error.hint or "")
    assert option and readable(tmp_path, **{FIELDS[option[1]]: int(option[2])}) == COUNT
    os.truncate(extension, 100)
    (command,) = commands(refusal(tmp_path))
    run(command)
    assert readable(tmp_path) == COUNT


def test_damaged_index_and_checkpoint_never_refuse_a_start(tmp_path: Path) -> None:
    filled(tmp_path)
    for path in (tmp_path / "index").iterdir():
        path.write_bytes(b"x")
    (tmp_path / "checkpoint").write_bytes(b"x" * 5000)
    assert readable(tmp_path) == COUNT


def test_unreadable_state_file_names_the_removal(tmp_path: Path) -> None:
    state = StateFile(tmp_path / "a b" / "topics.json")
    state.write(b"{")
    state.write(b"{")
    with pytest.raises(SaturnError) as caught:
        state.read(json.loads)
    run(commands(caught.value)[0])
    assert state.read(json.loads) is None


@pytest.mark.parametrize(("error", "advice"), [
    (DiskFull("no space"), "df -h"), (OutOfDescriptors("too many"), "ulimit -n"), (StoreError("denied"), "ls -lR")
])  # fmt: skip
def test_refusal_by_the_system_has_a_hint(tmp_path: Path, error: SaturnError, advice: str) -> None:
    class Refusing(Disk):
        def map(self, fd: int, size_bytes: int) -> mmap.mmap:
            raise error

    filled(tmp_path)
    store = MessageStore(settings_of(tmp_path), disk=Refusing())
    with pytest.raises(type(error)) as caught:
        store.open()
    assert caught.value.hint and advice in caught.value.hint
