"""The outbox against SQLite and a producer that only records: rows, rounds, pauses after failures, and the lease of a relay."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from saturnmq import OUTBOX_ID, MessageRefused, Outbox, SaturnError
from saturnmq.client import outbox as module
from saturnmq.errors import Closed

NOW_MS = 1_700_000_000_000


class Clock:
    """What the module takes for `time`: Unix time, and the monotonic clock."""

    def __init__(self) -> None:
        self.ms = NOW_MS
        self.seconds = 1024.0

    def time_ns(self) -> int:
        return self.ms * 1_000_000 + 7

    def monotonic(self) -> float:
        return self.seconds


class Sent:
    """Stands for a producer. sends: (topic, body, options); outcomes: of the next sends, None or an error."""

    def __init__(self, *outcomes: Exception | None) -> None:
        self.sends: list[tuple[str, bytes, dict[str, Any]]] = []
        self.outcomes = list(outcomes)
        self.before: Callable[[], None] = lambda: None

    async def send(self, topic: str, body: bytes, **options: Any) -> None:
        self.before()
        if self.outcomes and (error := self.outcomes.pop(0)) is not None:
            raise error
        self.sends.append((topic, body, options))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    stopped = Clock()
    monkeypatch.setattr(module, "time", stopped)
    return stopped


@pytest.fixture
def connect(tmp_path: Path) -> Callable[[], sqlite3.Connection]:
    return lambda: sqlite3.connect(tmp_path / "shop.db")


@pytest.fixture
def db(connect: Callable[[], sqlite3.Connection]) -> Iterator[sqlite3.Connection]:
    with closing(connect()) as connection:
        yield connection


@pytest.fixture
def outbox(connect: Callable[[], sqlite3.Connection], db: sqlite3.Connection, clock: Clock) -> Outbox:
    box = Outbox(connect)
    box.create_table(db)
    return box


def lease_of(db: sqlite3.Connection) -> Any:
    return db.execute("SELECT * FROM saturnmq_outbox_lease").fetchall()


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class Statements:
    """Stands for a connection of another driver."""

    def __init__(self) -> None:
        self.executed: list[tuple[str, Any]] = []
        self.commits = 0
        self.open_cursors = 0

    def cursor(self) -> Any:
        self.open_cursors += 1
        execute = lambda statement, values: self.executed.append((statement, values))  # noqa: E731
        return SimpleNamespace(execute=execute, close=self._close)

    def _close(self) -> None:
        self.open_cursors -= 1

    def commit(self) -> None:
        self.commits += 1


def test_statements_follow_the_driver_and_its_types(clock: Clock) -> None:
    connection = Statements()
    box = Outbox(cast(Any, lambda: connection), table="Shop_1", paramstyle="format", bytes_type="BYTEA")
    assert not box.stats.is_active
    box.create_table(cast(Any, connection))
    (rows, _), (lease, _) = connection.executed
    assert rows.startswith("CREATE TABLE IF NOT EXISTS Shop_1 (") and "body BYTEA NOT NULL" in rows
    assert lease.startswith("CREATE TABLE IF NOT EXISTS Shop_1_lease (") and connection.commits == 1
    row_id = box.add(cast(Any, connection), "orders", b"x")
    statement, values = connection.executed[2]
    columns = "id, topic, body, tag, message_keys, properties, shard_by"
    assert statement == f"INSERT INTO Shop_1 ({columns}) VALUES ({', '.join(['%s'] * 7)})"
    assert values == (row_id, "orders", b"x", None, "[]", "{}", None)
    assert (connection.commits, connection.open_cursors) == (1, 0), "the caller commits"


def test_id_of_a_row_begins_with_its_time(outbox: Outbox, db: sqlite3.Connection, clock: Clock) -> None:
    first = outbox.add(db, "orders", b"x", tag="t", keys=["a", "b"], properties={"c": "d"}, shard_by="s")
    assert first[:20] == f"0{NOW_MS}000007" and len(first) == 36 and int(first[20:], 16) >= 0
    assert outbox.add(db, "orders", b"x", properties=None)[20:] != first[20:]
    clock.ms += 1
    assert outbox.add(db, "orders", b"x") > first
    (row,) = db.execute(f"SELECT {module._COLUMNS} FROM saturnmq_outbox WHERE id = ?", (first,))
    assert row == (first, "orders", b"x", "t", '["a", "b"]', '{"c": "d"}', "s")


@pytest.mark.parametrize(
    ("option", "value", "is_accepted"),
    [
        ("table", "a" * 63, True), ("table", "a" * 64, False), ("table", "1a", False), ("table", "_a1", True), ("table", "", False),
        ("bytes_type", "BYTEA", True), ("bytes_type", "BLOB(5)", False), ("paramstyle", "named", False),
    ],
)  # fmt: skip
def test_names_of_an_outbox_are_plain_identifiers(option: str, value: str, is_accepted: bool) -> None:
    def create() -> Outbox:
        return Outbox(lambda: sqlite3.connect(":memory:"), **{option: value})  # type: ignore[arg-type]

    if is_accepted:
        create()
    else:
        with pytest.raises(module.ConfigError, match=f"{option} is"):
            create()


@pytest.mark.spec("PRC-11")
async def test_round_sends_the_oldest_rows_with_their_options(
    outbox: Outbox, db: sqlite3.Connection, clock: Clock
) -> None:
    with db:
        for number in range(103):
            clock.ms = NOW_MS - number
            row_id = outbox.add(
                db, "orders", b"%d" % number, tag="t", keys=["a", "b"], properties={"c": "d"}, shard_by="s"
            )
    out = Sent()
    assert await outbox.send_pending(cast(Any, out)) == 100 and await outbox.pending() == 3
    assert [body for _, body, _ in out.sends] == [b"%d" % number for number in range(102, 2, -1)], "by their ids"
    topic, _, options = out.sends[0]
    properties = {"c": "d", "OUTBOX_ID": row_id}
    assert OUTBOX_ID == "OUTBOX_ID", "consumers in other languages compare it"
    assert (topic, options) == ("orders", {"tag": "t", "keys": ["a", "b"], "properties": properties, "shard_by": "s"})
    assert (outbox.stats.sent, outbox.stats.refused, outbox.stats.failures, outbox.stats.is_active) == (
        100,
        0,
        0,
        False,
    )


@pytest.mark.spec("PRC-11")
async def test_refused_row_keeps_500_characters_of_the_reason(outbox: Outbox, db: sqlite3.Connection) -> None:
    with db:
        for _ in range(4):
            outbox.add(db, "orders", b"x")
    out = Sent(MessageRefused("x" * 600), ValueError("bad value"), TypeError("bad type"))
    assert await outbox.send_pending(cast(Any, out)) == 1
    errors = [error for (error,) in db.execute("SELECT error FROM saturnmq_outbox ORDER BY id")]
    assert sorted(errors) == ["bad type", "bad value", "x" * 500] and await outbox.pending() == 0
    assert (outbox.stats.sent, outbox.stats.refused) == (1, 3)


@pytest.mark.spec("PRC-11")
async def test_round_ends_before_its_lease_could(outbox: Outbox, db: sqlite3.Connection, clock: Clock) -> None:
    with db:
        for _ in range(9):
            outbox.add(db, "orders", b"x")
    out = Sent()

    def later() -> None:
        clock.seconds += 5

    out.before = later
    assert await outbox.send_pending(cast(Any, out)) == 4, "15 s, half of the lease, and the send that passed it"


@pytest.mark.spec("PRC-11")
async def test_lease_lasts_30_seconds_and_is_released_by_its_holder(
    outbox: Outbox, connect: Callable[[], sqlite3.Connection], db: sqlite3.Connection, clock: Clock
) -> None:
    other = Outbox(connect)
    assert outbox._acquire() and lease_of(db) == [(1, outbox._holder, NOW_MS + 30_000)]
    clock.ms += 1000
    assert outbox._acquire() and lease_of(db) == [(1, outbox._holder, NOW_MS + 31_000)], "renewed"
    assert not other._acquire()
    other._release()
    clock.ms = NOW_MS + 31_000
    assert not other._acquire(), "held to its last millisecond"
    clock.ms += 1
    assert other._acquire() and lease_of(db) == [(1, other._holder, NOW_MS + 61_001)]
    assert not outbox._acquire()
    other._release()
    assert lease_of(db) == [(1, other._holder, 0)] and outbox._acquire(), "at once"
    assert len(outbox._holder) == 32 and outbox._holder != other._holder


@pytest.mark.spec("PRC-11")
async def test_relay_without_the_lease_sends_nothing_and_releases_nothing(
    outbox: Outbox, connect: Callable[[], sqlite3.Connection], db: sqlite3.Connection
) -> None:
    assert Outbox(connect)._acquire()
    held = lease_of(db)
    with db:
        outbox.add(db, "orders", b"x")
    out = Sent()
    assert await outbox.send_pending(cast(Any, out)) == 0 and not out.sends and lease_of(db) == held


async def test_lease_that_cannot_be_released_is_a_warning(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def locked() -> None:
        raise sqlite3.OperationalError("locked")

    monkeypatch.setattr(outbox, "_release", locked)
    assert await outbox.send_pending(cast(Any, Sent())) == 0
    assert "outbox lease not released table=saturnmq_outbox" in caplog.text and not outbox.stats.is_active


@pytest.mark.spec("PRC-11")
async def test_relay_waits_twice_as_long_after_each_failure_up_to_a_minute(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes: list[Any] = [SaturnError("away")] * 8 + [
        3,
        100,
        SaturnError("away"),
        ValueError("defect"),
        Closed("stopped"),
    ]
    rounds: list[Any] = []

    async def play(producer: Any) -> int:
        rounds.append(outcomes[len(rounds)])
        if isinstance(rounds[-1], Exception):
            raise rounds[-1]
        return cast(int, rounds[-1])

    waits: list[float] = []
    real = asyncio.timeout

    def timeout(seconds: float) -> Any:
        waits.append(seconds)
        return real(0)

    monkeypatch.setattr(outbox, "_round", play)
    monkeypatch.setattr(
        module, "asyncio", SimpleNamespace(timeout=timeout, Event=asyncio.Event, to_thread=asyncio.to_thread)
    )
    with pytest.raises(Closed):
        await outbox.run(cast(Any, None), interval=1.5)
    assert waits == [1.5, 3, 6, 12, 24, 48, 60, 60, 1.5, 0, 1.5, 3], "none after a full round"
    assert outbox.stats.failures == 10
    traces = [bool(record.exc_info) for record in caplog.records if "outbox waits" in record.message]
    assert traces == [False] * 9 + [True], "what no broker raised is shown with its stack"
    assert "outbox waits table=saturnmq_outbox retry_in_s=60" in caplog.text


@pytest.mark.parametrize(("interval", "longest"), [(90.0, 90.0), (1.0, 60.0)])
async def test_pause_is_never_shorter_than_the_interval(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch, interval: float, longest: float
) -> None:
    waits: list[float] = []
    real = asyncio.timeout

    def timeout(seconds: float) -> Any:
        waits.append(seconds)
        return real(0)

    async def fails(producer: Any) -> int:
        if len(waits) == 30:
            raise Closed("stopped")
        raise SaturnError("away")

    monkeypatch.setattr(outbox, "_round", fails)
    monkeypatch.setattr(
        module, "asyncio", SimpleNamespace(timeout=timeout, Event=asyncio.Event, to_thread=asyncio.to_thread)
    )
    with pytest.raises(Closed):
        await outbox.run(cast(Any, None), interval=interval)
    assert max(waits) == longest and waits[0] == interval


def test_row_of_a_message_is_json_where_it_is_a_list() -> None:
    row = module.new_row("orders", b"x", {"keys": ("a",), "properties": {"b": "c"}})
    assert (json.loads(row["message_keys"]), json.loads(row["properties"]), row["tag"], row["shard_by"]) == (
        ["a"],
        {"b": "c"},
        None,
        None,
    )
