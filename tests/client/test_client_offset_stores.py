"""Offset stores of consumers: what reaches the broker, and in which order the file of a broadcast consumer is replaced."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from saturnmq import Client, MessageQueue, durable
from saturnmq.client.consumer.offsets import ClusterOffsets, LocalOffsets
from saturnmq.errors import ClientError
from saturnmq.protocol.bodies import ResetOffsetBody
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import ResponseError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.offsets import QueueOffset
from waiting import until

Run = Callable[..., Any]
ZERO, ONE = (MessageQueue("T", "b0", number) for number in range(2))


def at(number: int) -> QueueOffset:
    return QueueOffset(number)


def with_offsets(run: Run, cluster: Any, steps: Callable[[Any, ClusterOffsets], Any]) -> None:
    """Run steps with a scripted cluster and the offset store of group g."""

    async def work() -> None:
        async with cluster() as c, Client(name_servers=c.name_servers) as client:
            await client.topic_exists("T")
            await steps(c, ClusterOffsets(client._core, "g"))

    run(work)


def test_offset_is_sent_with_group_topic_queue_and_broker(run: Run, cluster: Any) -> None:
    async def steps(c: Any, offsets: ClusterOffsets) -> None:
        offsets.update(ONE, at(7))
        await offsets.persist(ONE, confirmed=True)
        fields = {"consumerGroup": "g", "topic": "T", "queueId": "1", "bname": "b0"}
        assert c.broker.of(15)[0].ext == fields | {"commitOffset": "7"}
        await offsets.read(ONE)
        assert c.broker.of(14)[0].ext == fields

    with_offsets(run, cluster, steps)


def test_offset_0_is_kept_stored_and_read(run: Run, cluster: Any) -> None:
    async def steps(c: Any, offsets: ClusterOffsets) -> None:
        offsets.update(ZERO, at(0))
        assert offsets.cached(ZERO) == 0
        await offsets.persist(ZERO, confirmed=True)
        assert c.broker.offsets == {("g", "T", 0): 0}
        assert await offsets.read(ZERO) == 0

    with_offsets(run, cluster, steps)


def test_negative_offset_of_a_broker_means_none(run: Run, cluster: Any) -> None:
    async def steps(c: Any, offsets: ClusterOffsets) -> None:
        c.broker.offsets["g", "T", 0] = -1
        assert await offsets.read(ZERO) is None
        c.broker.script[RequestCode.QUERY_CONSUMER_OFFSET] = lambda command: command.reply()
        assert await offsets.read(ZERO) is None, "no offset in the answer"

    with_offsets(run, cluster, steps)


def test_forgotten_queue_is_stored_again_with_the_same_offset(run: Run, cluster: Any) -> None:
    """Another member may have stored another offset meanwhile."""

    async def steps(c: Any, offsets: ClusterOffsets) -> None:
        offsets.update(ZERO, at(5))
        await offsets.persist(ZERO, confirmed=True)
        await offsets.persist(ZERO, confirmed=True)
        assert len(c.broker.of(15)) == 1, "it has not changed"
        offsets.forget(ZERO)
        await offsets.persist(ZERO, confirmed=True)
        assert len(c.broker.of(15)) == 1, "it has no offset"
        offsets.update(ZERO, at(5))
        await offsets.persist(ZERO, confirmed=True)
        assert len(c.broker.of(15)) == 2

    with_offsets(run, cluster, steps)


def test_queue_forgotten_during_a_store_is_stored_again(run: Run, cluster: Any) -> None:
    async def steps(c: Any, offsets: ClusterOffsets) -> None:
        answer = asyncio.Event()

        async def late(command: Command) -> Command:
            await answer.wait()
            return command.reply()

        c.broker.script[15] = [late]
        offsets.update(ZERO, at(5))
        storing = asyncio.create_task(offsets.persist(ZERO, confirmed=True))
        await c.broker.wait_for(15)
        offsets.forget(ZERO)
        answer.set()
        await storing
        offsets.update(ZERO, at(5))
        await offsets.persist(ZERO, confirmed=True)
        assert c.broker.offsets == {("g", "T", 0): 5}

    with_offsets(run, cluster, steps)


def test_offset_that_changes_during_a_store_is_stored_too(run: Run, cluster: Any) -> None:
    async def steps(c: Any, offsets: ClusterOffsets) -> None:
        answer = asyncio.Event()

        async def late(command: Command) -> Command:
            await answer.wait()
            return c.broker.on_15(command)

        c.broker.script[15] = [late]
        offsets.update(ZERO, at(5))
        storing = asyncio.create_task(offsets.persist(ZERO, confirmed=True))
        await c.broker.wait_for(15)
        offsets.update(ZERO, at(6))
        answer.set()
        await storing
        assert c.broker.offsets == {("g", "T", 0): 6}

    with_offsets(run, cluster, steps)


def test_refused_first_offset_is_raised_and_later_ones_are_oneway(run: Run, cluster: Any) -> None:
    async def steps(c: Any, offsets: ClusterOffsets) -> None:
        c.broker.script[15] = [lambda command: command.reply(ResponseCode.SYSTEM_BUSY, "busy")]
        offsets.update(ZERO, at(5))
        with pytest.raises(ResponseError, match="busy"):
            await offsets.persist(ZERO)
        await offsets.persist(ZERO)
        await until(lambda: c.broker.offsets == {("g", "T", 0): 5})
        assert [command.is_oneway for command in c.broker.of(15)] == [False, True]

    with_offsets(run, cluster, steps)


# the file of a broadcast consumer


async def test_local_file_is_written_only_after_a_change(tmp_path: Path) -> None:
    path = tmp_path / "client" / "group" / "offsets.json"
    offsets = LocalOffsets(path)
    await offsets.load()
    await offsets.persist_all()
    assert not path.exists()
    offsets.update(ZERO, at(3))
    await offsets.persist_all()
    again = LocalOffsets(path)
    await again.load()
    assert (await again.read(ZERO), again.cached(ONE)) == (3, None)
    path.unlink()
    await offsets.persist_all()
    await again.persist_all()
    assert not path.exists(), "nothing has changed"
    again.forget(ZERO)
    again.update(ONE, at(4))
    await again.persist_all()
    assert ResetOffsetBody.decode(path.read_bytes()).offset_table == {ZERO: 3, ONE: 4}


@pytest.mark.spec("OF-02")
def test_local_file_is_replaced_in_an_order_that_survives_a_crash(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new content is durable before the old file is renamed, and the folder last."""
    path = tmp_path / "offsets.json"
    steps: list[object] = []
    fsync, replace, sync_path = os.fsync, Path.replace, durable.sync_path

    def seen_fsync(number: int) -> None:
        steps.append(("fsync", os.fstat(number).st_size))
        fsync(number)

    def seen_replace(source: Path, target: Path) -> Path:
        steps.append((source.name, target.name))
        return replace(source, target)

    def seen_sync(folder: Path) -> None:
        steps.append(("folder", folder))
        sync_path(folder)

    monkeypatch.setattr(os, "fsync", seen_fsync)
    monkeypatch.setattr(Path, "replace", seen_replace)

    async def work() -> None:
        offsets = LocalOffsets(path)
        for number in (1, 2):
            offsets.update(ZERO, at(number))
            monkeypatch.setattr(durable, "sync_path", sync_path if number == 1 else seen_sync)
            steps.clear()
            await offsets.persist_all()

    run(work)
    assert [step for step in steps if step != ("fsync", tmp_path.stat().st_size)] == [
        ("fsync", path.stat().st_size),
        ("offsets.json", "offsets.json.bak"),
        ("offsets.json.tmp", "offsets.json"),
        ("folder", tmp_path),
    ]
    backup = ResetOffsetBody.decode(path.with_name("offsets.json.bak").read_bytes())
    assert (backup.offset_table, ResetOffsetBody.decode(path.read_bytes()).offset_table) == ({ZERO: 1}, {ZERO: 2})


@pytest.mark.parametrize("damaged", ["both", "file without backup", "backup without file"])
async def test_unreadable_local_files_are_an_error(tmp_path: Path, damaged: str) -> None:
    path = tmp_path / "offsets.json"
    if damaged != "backup without file":
        path.write_bytes(b"{")
    if damaged != "file without backup":
        path.with_name("offsets.json.bak").write_bytes(b"{")
    with pytest.raises(ClientError, match=r"cannot be read: .*offsets\.json"):
        await LocalOffsets(path).load()


@pytest.mark.parametrize("file", [b"{", None], ids=["damaged", "missing"])
async def test_backup_is_read_without_a_usable_file(tmp_path: Path, file: bytes | None) -> None:
    path = tmp_path / "offsets.json"
    if file is not None:
        path.write_bytes(file)
    path.with_name("offsets.json.bak").write_bytes(ResetOffsetBody({ZERO: at(8)}).encode())
    offsets = LocalOffsets(path)
    await offsets.load()
    assert offsets.snapshot() == {ZERO: 8}
