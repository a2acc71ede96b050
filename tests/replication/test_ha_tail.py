"""A slave compares the end of its log with its master's before anything is appended; an old master may have more."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pytest
from slavestub import log_bytes, serving, small
from test_ha_slave import bodies, following, frame, liar

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


async def test_a_log_that_its_new_master_continues_is_followed(tmp_path: Path) -> None:
    await two_logs(tmp_path, [], [b"c"])
    async with serving(tmp_path / "new") as port, following(tmp_path / "old", port) as slave:
        await slave.has(port)
        assert bodies(slave.store)[SAME:] == [b"c"]
        await until(lambda: port.acks.highest == port.store.log.end)


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
