"""A slave compares the end of its log with its master's before anything is appended; an old master may have more."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from slavestub import log_bytes, serving, small
from test_ha_slave import bodies, following, frame, liar

from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.replication.masterslave.log import SlaveLog
from saturnmq.replication.masterslave.tail import COMPARED_BYTES, WIDER, Diverged, TailCheck
from saturnmq.store.tools.repair import cut, loss_at
from waiting import until

SAME = 40  # messages that both logs begin with


async def two_logs(folder: Path, old: list[bytes], new: list[bytes]) -> int:
    """Stores `old` and `new`: the same messages, and then others. Returns the offset where they part."""
    async with serving(folder / "old") as port:
        port.put(SAME)
        parted = port.store.log.end
    shutil.copytree(folder / "old", folder / "new")
    for name, more in (("old", old), ("new", new)):
        async with serving(folder / name) as port:
            for body in more:
                port.put(body=body)
    return int(parted)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param([b"a", b"b"], [b"c", b"d", b"e"], id="others of the same size"),
        pytest.param([b"a", b"b"], [b"c" * 500], id="others of another size"),
        pytest.param([b"a"], [], id="more"),
        pytest.param([b"a" * 3000] * 40, [b"c" * 3000] * 60, id="in another file"),
    ],
)
async def test_an_old_master_says_what_its_new_master_does_not_have(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, old: list[bytes], new: list[bytes]
) -> None:
    """And continues after the command that it names; records of the same size used to be appended behind others."""
    parted = await two_logs(tmp_path, old, new)
    before = b""
    async with serving(tmp_path / "new", from_oldest=True) as port:
        async with following(tmp_path / "old", port) as slave:
            before = log_bytes(slave.store)
            await until(lambda: "store repair" in caplog.text)
            assert log_bytes(slave.store) == before and not slave.client.connected
        said = re.search(r"run `saturnmq store repair --data (\S+) --at (\d+) --yes`", caplog.text)
        assert said is not None and (said[1], int(said[2])) == (str(tmp_path / "old"), parted)
        await asyncio.to_thread(cut, small(tmp_path / "old"), loss_at(small(tmp_path / "old"), parted))
        async with following(tmp_path / "old", port) as slave:
            await slave.has(port)
            assert log_bytes(slave.store) == log_bytes(port.store)
            assert bodies(slave.store)[SAME:] == new


async def test_logs_that_part_before_the_comparison_are_compared_further(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("saturnmq.replication.masterslave.slave.COMPARED_BYTES", 600)
    parted = await two_logs(tmp_path, [b"a"] * 50, [b"c"] * 60)
    async with serving(tmp_path / "new", from_oldest=True) as port, following(tmp_path / "old", port):
        await until(lambda: f"--at {parted} --yes" in caplog.text)


async def test_a_log_that_its_new_master_continues_is_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await two_logs(tmp_path, [], [b"c"])
    async with serving(tmp_path / "new") as port, following(tmp_path / "old", port) as slave:
        await slave.has(port)
        assert bodies(slave.store)[SAME:] == [b"c"]
        await until(lambda: port.acks.highest == port.store.log.end)
        await asyncio.wait([asyncio.Future()], timeout=1)
        assert caplog.text.count("replication started") == 1


class Log:
    """The part of a log from `first` to its end, in files of 1000 bytes."""

    def __init__(self, first: int, data: bytes) -> None:
        self.first_position, self.end, self._data = first, first + len(data), data

    def view(self, at: int, size: int) -> memoryview:
        return memoryview(self._data)[at - self.first_position :][:size]

    def file_at(self, at: int) -> Any:
        return SimpleNamespace(start=at // 1000 * 1000)


def check_of(first: int, data: bytes, compared_bytes: int = COMPARED_BYTES) -> TailCheck:
    return TailCheck(cast(SlaveLog, Log(first, data)), compared_bytes)


@pytest.mark.parametrize(
    ("first", "size", "compared_bytes", "begin"),
    [
        (0, 0, COMPARED_BYTES, 0),
        (3000, 0, COMPARED_BYTES, 3000),
        (0, 500, COMPARED_BYTES, 1),
        (0, 1000, COMPARED_BYTES, 1),
        (0, 1001, COMPARED_BYTES, 1000),
        (0, 2500, 400, 2100),
        (2300, 200, COMPARED_BYTES, 2300),
        (0, 2500, COMPARED_BYTES * WIDER, 1),
        (2000, 6 << 20, COMPARED_BYTES + 1, 2000 + (6 << 20) - (4 << 20) - (128 << 10) - 1),
    ],
)
def test_comparison_begins_in_the_last_file(first: int, size: int, compared_bytes: int, begin: int) -> None:
    """One that is wider than at first may begin before it, and an offset of 0 is the report of an empty slave."""
    check = check_of(first, b"x" * size, compared_bytes)
    assert (check.first, check.at, check.is_complete) == (begin, begin, size == 0)


@pytest.mark.parametrize("differs", [0, 1, 2, 49, 50, 98])
def test_first_byte_that_differs_is_found_and_what_follows_is_returned(differs: int) -> None:
    data = bytes(range(100))
    check = check_of(0, data)
    assert check.received(data[1:31]) == b"" and check.at == 31 and not check.is_complete
    assert check.received(data[31:] + b"more") == b"more" and check.is_complete
    assert check.received(b"and more") == b"and more" and check.received(b"") == b"", "a heartbeat"
    check = check_of(0, data)
    bad = bytearray(data[1:])
    bad[differs] ^= 1
    with pytest.raises(Diverged, match=f"this log differs from its master's from offset {differs + 1} on") as error:
        check.received(bytes(bad) + b"more")
    assert check.diverged is error.value and error.value.at == differs + 1


def test_heartbeat_before_the_end_of_the_log_shows_that_the_master_has_less() -> None:
    check = check_of(2000, b"x" * 500)
    check.received(b"x" * 100)
    with pytest.raises(Diverged, match="the master's log ends at offset 2100, this one at 2500") as error:
        check.received(b"")
    assert error.value.at == 2100


def test_difference_is_certain_behind_64_kib_or_the_whole_log() -> None:
    part, whole = check_of(0, b"x" * 200_000, 100_000), check_of(500, b"x" * 300)
    assert part.first == 199_000
    assert [part.is_certain(PhysicalOffset(199_000 + size)) for size in (0, 65_535, 65_536)] == [False, False, True]
    assert whole.is_certain(PhysicalOffset(500))


@pytest.mark.spec("HA-04")
@pytest.mark.parametrize("files", [1, 2])
async def test_the_first_report_is_before_the_end_of_the_log_in_its_last_file(tmp_path: Path, files: int) -> None:
    async with serving(tmp_path / "s") as port:
        port.put(3)
        while len(port.store.log.files) < files:
            port.put()
        first = port.store.log.files[-1].start
    reports: list[int] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reports.append(int.from_bytes(await reader.readexactly(8), "big"))
        await reader.read()

    async with liar(listen) as address, following(tmp_path / "s", lambda: address):
        await until(lambda: reports)
    assert reports[0] == max(first, 1)


@pytest.mark.parametrize("data", [b"", b"\0" * 50, b"x" * 100_000], ids=["heartbeat", "zeros", "more than the log"])
async def test_what_differs_is_never_appended(tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tmp_path / "s") as port:
        port.put(3)
        before = log_bytes(port.store)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = int.from_bytes(await reader.readexactly(8), "big")
        writer.write(frame(first, data[: 65_536 - first]))
        await reader.read()

    async with liar(answer) as address, following(tmp_path / "s", lambda: address) as slave:
        await until(lambda: "store repair" in caplog.text)
        assert log_bytes(slave.store) == before
