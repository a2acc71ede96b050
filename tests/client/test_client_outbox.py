"""The outbox: rows written with the application's work, sent later, against an embedded broker."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from saturnmq import OUTBOX_ID, Client, ConfigError, Outbox, SaturnError
from saturnmq.client import outbox as module
from saturnmq.errors import Closed
from saturnmq.store import StoreProfile, StoreSettings
from saturnmq.testing import EmbeddedBroker
from waiting import until

Run = Callable[[Callable[[], Any]], Any]


@pytest.fixture
def connect(tmp_path: Path) -> Callable[[], sqlite3.Connection]:
    return lambda: sqlite3.connect(tmp_path / "shop.db")


@pytest.fixture
def db(connect: Callable[[], sqlite3.Connection]) -> Iterator[sqlite3.Connection]:
    with closing(connect()) as connection:
        yield connection


def rows(db: sqlite3.Connection) -> list[tuple[Any, ...]]:
    return db.execute("SELECT topic, error FROM saturnmq_outbox ORDER BY id").fetchall()


async def received(client: Client, count: int) -> list[Any]:
    async with client.consumer("c", start="first") as inbox:
        await inbox.subscribe("Orders")
        messages = [await inbox.recv(30) for _ in range(count)]
        for message in messages:
            await message.ack()
    return messages


@pytest.mark.spec("PRC-11")
def test_message_is_sent_only_if_the_work_was_committed(
    run: Run, connect: Callable[[], sqlite3.Connection], db: sqlite3.Connection
) -> None:
    async def work() -> None:
        outbox = Outbox(connect)
        outbox.create_table(db)
        outbox.create_table(db)
        db.execute("CREATE TABLE work (id INTEGER)")
        with pytest.raises(RuntimeError), db:
            db.execute("INSERT INTO work VALUES (1)")
            outbox.add(db, "Orders", b"of work that failed")
            raise RuntimeError("the work failed")
        with db:
            db.execute("INSERT INTO work VALUES (2)")
            ids = [
                outbox.add(db, "Orders", b"%d" % n, tag="paid", keys=["k1", "k2"], properties={"a": "b"}, shard_by="o")
                for n in range(3)
            ]
        async with EmbeddedBroker() as server, Client.from_url(server.url) as client, client.producer("p") as out:
            assert await outbox.send_pending(out) == 3
            assert await outbox.send_pending(out) == 0 and rows(db) == []
            messages = await received(client, 3)
        assert [message.body for message in messages] == [b"0", b"1", b"2"]
        assert [message.properties[OUTBOX_ID] for message in messages] == ids == sorted(set(ids))
        for message in messages:
            assert (message.tag, message.keys, message.properties["a"]) == ("paid", ("k1", "k2"), "b")
        assert len({message.queue for message in messages}) == 1

    run(work)
    guide = (Path(__file__).parents[2] / "docs" / "guide.md").read_text(encoding="utf-8")
    for design, consequences in {
        "| send inside the database transaction": ("read of a phantom", "the order is lost"),
        "| outbox: a row in a table": ("can arrive twice", "consumers must be idempotent", "relay's next round"),
        "| [transactional message]": ("asks `check`",),
    }.items():
        (row,) = (line for line in guide.splitlines() if line.startswith(design))
        assert all(words in row for words in consequences)


@pytest.mark.spec("PRC-11")
async def test_row_is_sent_again_with_the_same_id_if_its_deletion_failed(
    connect: Callable[[], sqlite3.Connection], db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = Outbox(connect)
    outbox.create_table(db)
    with db:
        row_id = outbox.add(db, "Orders", b"twice")

    def locked(row: str) -> None:
        raise sqlite3.OperationalError("database is locked")

    async with EmbeddedBroker() as server, Client.from_url(server.url) as client, client.producer("p") as out:
        with monkeypatch.context() as patch:
            patch.setattr(outbox, "_delete", locked)
            with pytest.raises(sqlite3.OperationalError):
                await outbox.send_pending(out)
        assert rows(db) == [("Orders", None)]
        assert await outbox.send_pending(out) == 1
        assert [message.properties[OUTBOX_ID] for message in await received(client, 2)] == [row_id, row_id]


@pytest.mark.spec("PRC-11")
async def test_failed_send_keeps_the_rest_and_a_refused_row_its_reason(
    connect: Callable[[], sqlite3.Connection], db: sqlite3.Connection
) -> None:
    outbox = Outbox(connect)
    outbox.create_table(db)
    with db:
        for topic in ("Orders", "no/topic", "Orders"):
            outbox.add(db, topic, b"x")
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client, client.producer("p") as out:

        async def away(*_: Any, **__: Any) -> Any:
            raise SaturnError("no broker")

        stored, out.send = out.send, away  # type: ignore[method-assign]
        with pytest.raises(SaturnError):
            await outbox.send_pending(out)
        assert len(rows(db)) == 3
        out.send = stored  # type: ignore[method-assign]
        assert await outbox.send_pending(out) == 2
        ((topic, error),) = rows(db)
        assert topic == "no/topic" and "no/topic" in error
        assert await outbox.send_pending(out) == 0 and len(rows(db)) == 1


@pytest.mark.spec("PRC-11")
async def test_message_that_the_broker_refuses_holds_up_no_other(
    connect: Callable[[], sqlite3.Connection], db: sqlite3.Connection
) -> None:
    outbox = Outbox(connect)
    outbox.create_table(db)
    with db:
        outbox.add(db, "Orders", b"x" * 2001)
        outbox.add(db, "Orders", b"short")
    store = StoreSettings(profile=StoreProfile.SMALL, message_bytes_max=2000)
    async with (
        EmbeddedBroker(store=store) as server,
        Client.from_url(server.url) as client,
        client.producer("p") as out,
    ):
        assert await outbox.send_pending(out) == 1
        ((topic, error),) = rows(db)
        assert topic == "Orders" and "body of 2001 bytes, at most 2000" in error
        assert [message.body for message in await received(client, 1)] == [b"short"]


@pytest.mark.spec("PRC-11")
async def test_relay_goes_on_after_failures_until_it_is_cancelled(
    connect: Callable[[], sqlite3.Connection], db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROWS_MAX", 2)
    outbox = Outbox(connect)
    outbox.create_table(db)
    with db:
        for n in range(5):
            outbox.add(db, "Orders", b"%d" % n)
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client, client.producer("p") as out:
        attempts = 0
        stored = out.send

        async def fails_once(*arguments: Any, **options: Any) -> Any:
            nonlocal attempts
            attempts += 1
            if attempts == 2:
                raise SaturnError("no broker")
            return await stored(*arguments, **options)

        out.send = fails_once  # type: ignore[method-assign]
        relay = asyncio.create_task(outbox.run(out, interval=0.01))
        messages = await received(client, 5)
        relay.cancel()
        await asyncio.gather(relay, return_exceptions=True)
        assert sorted(message.body for message in messages) == [b"%d" % n for n in range(5)]
        assert attempts == 6


@pytest.mark.spec("PRC-11")
async def test_one_of_several_relays_sends_and_another_takes_over(
    connect: Callable[[], sqlite3.Connection], db: sqlite3.Connection
) -> None:
    first, second = Outbox(connect), Outbox(connect)
    first.create_table(db)
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client, client.producer("p") as out:
        relay = asyncio.create_task(first.run(out, interval=0.01))
        await until(lambda: first.stats.is_active)
        with db:
            first.add(db, "Orders", b"1", shard_by="o")
        assert await second.send_pending(out) == 0 and not second.stats.is_active
        await until(lambda: first.stats.sent == 1)
        relay.cancel()
        await asyncio.gather(relay, return_exceptions=True)
        assert not first.stats.is_active
        with db:
            second.add(db, "Orders", b"2", shard_by="o")
        assert await second.pending() == 1 and await second.send_pending(out) == 1, "at once: the first let go"
        with db:
            db.execute(
                "UPDATE saturnmq_outbox_lease SET holder = 'dead', held_until = ?", (time.time_ns() // 10**6 + 60_000,)
            )
            second.add(db, "Orders", b"3", shard_by="o")
        assert await second.send_pending(out) == 0, "the lease of a relay that died has not expired"
        with db:
            db.execute("UPDATE saturnmq_outbox_lease SET held_until = 1")
        assert await second.send_pending(out) == 1
        assert [message.body for message in await received(client, 3)] == [b"1", b"2", b"3"]


@pytest.mark.spec("PRC-11")
async def test_relay_survives_the_database_and_ends_with_its_producer(
    connect: Callable[[], sqlite3.Connection], db: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = Outbox(connect)
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client, client.producer("p") as out:
        relay = asyncio.create_task(outbox.run(out, interval=0.01))
        await until(lambda: outbox.stats.failures == 3)  # no table
        outbox.create_table(db)
        with db:
            outbox.add(db, "no/topic", b"x")
            outbox.add(db, "Orders", b"x")
        await until(lambda: outbox.stats.sent == 1)
        waits = [record.args[1] for record in caplog.records if record.message.startswith("outbox waits")]  # type: ignore[index]
        assert waits[:3] == [0.01, 0.02, 0.04]
        assert outbox.stats.refused == 1 and await outbox.pending() == 0
        await out.stop()
        with db:
            outbox.add(db, "Orders", b"later")
        with pytest.raises(Closed):
            await relay
        assert await outbox.pending() == 1 and not outbox.stats.is_active


def test_outbox_names_every_bad_setting() -> None:
    with pytest.raises(ConfigError) as raised:
        Outbox(lambda: sqlite3.connect(":memory:"), table="x; DROP", paramstyle="named", bytes_type="BLOB)")  # type: ignore[arg-type]
    assert len(raised.value.problems) == 3
    assert "%s" in Outbox(lambda: sqlite3.connect(":memory:"), paramstyle="format")._mark
