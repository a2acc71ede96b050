"""Transactional outbox: messages that are written to a table in the application's own database transaction and sent later.

`Outbox.add` inserts a row through the connection whose transaction also does the work: both are committed, or neither.
`Outbox.run` sends the rows that others committed and deletes each after its receipt. A process that dies between receipt and
deletion leaves the row, which is sent again: consumers compare the property OUTBOX_ID, which stays the same.

Rows are sent in the order of their ids, which begin with the time of `add`. A send that fails ends the round, so that no row
overtakes an earlier one; the next round begins with it. A row that the client or a broker refuses for what it holds, such as an
invalid topic or a body that is too long, keeps the reason in its column `error` and is left out from then on.

Any number of relays may run on one table. The one that holds the lease, the only row of a second table, sends; it renews the lease
with every round and lets it go when it stops. The others look whether it has expired, by their own clocks. Clocks that are further
apart than LEASE_S, and a send that takes longer, make two relays send the same rows: consumers still see equal ids.

    column      type        meaning
    id          text, key   time of add in ns, 20 digits, then 16 hexadecimal digits; the property OUTBOX_ID
    topic       text
    body        bytes
    tag         text        NULL without one
    message_keys text       JSON list
    properties  text        JSON object of strings
    shard_by    text        NULL without one
    error       text        NULL, or why the row cannot be sent

    column of the lease  type     meaning
    id                   integer  1, the key
    holder               text     of the relay that sends, 32 hexadecimal digits; empty if there is none
    held_until           integer  Unix ms

Requirements: PRC-11.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypedDict, Unpack

from saturnmq.client.consumer.listener import signal_handlers
from saturnmq.client.producer.producer import Producer
from saturnmq.errors import Closed
from saturnmq.protocol.errors import ConfigError, LocalProtocolError, MessageIllegal, SaturnError

logger = logging.getLogger(__name__)

OUTBOX_ID: Final = "OUTBOX_ID"  # the property by which a consumer recognises a message that was sent twice
ROWS_MAX: Final = 100  # per round
ERROR_CHARACTERS_MAX: Final = 500
LEASE_S: Final = 30.0
BACKOFF_S_MAX: Final = 60.0
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_COLUMNS: Final = "id, topic, body, tag, message_keys, properties, shard_by"


class Cursor(Protocol):
    """The used part of a PEP 249 cursor."""

    def execute(self, statement: str, parameters: Sequence[Any] = ..., /) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def close(self) -> object: ...


class Database(Protocol):
    """The used part of a PEP 249 connection."""

    def cursor(self) -> Any: ...
    def commit(self) -> object: ...
    def close(self) -> object: ...


class OutboxOptions(TypedDict, total=False):
    """The keyword options of `Outbox.add`, those of `Producer.send` that a row has."""

    tag: str | None
    keys: Sequence[str]
    properties: Mapping[str, str] | None
    shard_by: str | None


@dataclass(slots=True)
class OutboxStats:
    """What one Outbox object has done as a relay since it was created.

    sent: rows that were sent and deleted. refused: rows that cannot be sent. failures: rounds that ended by an error of a broker or
    the database. is_active: whether it holds the lease.

    Example:
        print(outbox.stats.sent, outbox.stats.is_active)
    """

    sent: int = 0
    refused: int = 0
    failures: int = 0
    is_active: bool = False


def new_row(topic: str, body: bytes, options: OutboxOptions) -> dict[str, Any]:
    """The columns of a message, with a new id."""
    return {
        "id": f"{time.time_ns():020d}{secrets.token_hex(8)}",
        "topic": topic,
        "body": body,
        "tag": options.get("tag"),
        "message_keys": json.dumps(list(options.get("keys", ()))),
        "properties": json.dumps(dict(options.get("properties") or {})),
        "shard_by": options.get("shard_by"),
    }


class Outbox:
    """A table of messages to send, in a database of the application.

    connect: returns a new PEP 249 connection; called in a thread, one connection per round. table: its name. paramstyle: the
    driver's, as its module says: "qmark" (sqlite3) or "format" (psycopg, mysqlclient, PyMySQL). bytes_type: the database's type
    of the column `body`. Raises ConfigError for a table name that is no plain identifier of at most 63 characters.

    Example:
        outbox = Outbox(lambda: sqlite3.connect("shop.db"))
        with closing(sqlite3.connect("shop.db")) as db:
            outbox.create_table(db)
            with db:  # one transaction
                db.execute("INSERT INTO orders VALUES (?, ?)", (7, "paid"))
                outbox.add(db, "orders", b"order 7 is paid", tag="paid")
        async with Client.from_url(URL) as client, client.producer("shop-outbox") as out:
            await outbox.send_pending(out)
    """

    def __init__(
        self,
        connect: Callable[[], Database],
        *,
        table: str = "saturnmq_outbox",
        paramstyle: Literal["qmark", "format"] = "qmark",
        bytes_type: str = "BLOB",
    ) -> None:
        problems = []
        if not _NAME.fullmatch(table):
            problems.append(f"table is {table!r}, must be letters, digits and _, at most 63, no digit first")
        if not _NAME.fullmatch(bytes_type):
            problems.append(f"bytes_type is {bytes_type!r}, must be the name of a type, such as BLOB or BYTEA")
        if paramstyle not in ("qmark", "format"):
            problems.append(f"paramstyle is {paramstyle!r}, must be qmark or format")
        if problems:
            raise ConfigError(problems)
        self._connect = connect
        self._table = table
        self._mark = "?" if paramstyle == "qmark" else "%s"
        self._bytes_type = bytes_type
        self._holder = secrets.token_hex(16)
        self.stats = OutboxStats()

    def create_table(self, connection: Database) -> None:
        """Create the tables that are missing, and commit. A migration of the application may create them too."""
        self._execute(
            connection,
            f"CREATE TABLE IF NOT EXISTS {self._table} (id VARCHAR(36) NOT NULL PRIMARY KEY, topic VARCHAR(255) NOT NULL, "
            f"body {self._bytes_type} NOT NULL, tag TEXT, message_keys TEXT NOT NULL, properties TEXT NOT NULL, shard_by TEXT, "
            f"error TEXT)",
        )
        self._execute(
            connection,
            f"CREATE TABLE IF NOT EXISTS {self._table}_lease (id INTEGER NOT NULL PRIMARY KEY, holder VARCHAR(32) NOT NULL, "
            f"held_until BIGINT NOT NULL)",
        )
        connection.commit()

    def add(self, connection: Database, topic: str, body: bytes, **options: Unpack[OutboxOptions]) -> str:
        """Insert a message in the open transaction of connection, which the caller commits. Returns the OUTBOX_ID.

        options: tag, keys, properties and shard_by of `Producer.send`; they are checked when the row is sent. Raises what the
        driver raises.
        """
        row = new_row(topic, body, options)
        marks = ", ".join([self._mark] * len(row))
        # the table's name was compared with _NAME
        statement = f"INSERT INTO {self._table} ({', '.join(row)}) VALUES ({marks})"  # noqa: S608
        self._execute(connection, statement, tuple(row.values()))
        return str(row["id"])

    async def send_pending(self, producer: Producer[bytes]) -> int:
        """Send the oldest rows, at most 100, and delete each that a broker has stored. Returns how many were sent.

        For programs that run from time to time; services call `run`. Sends nothing while another relay holds the lease. Raises what
        `Producer.send` raises for brokers and routes, such as SendFailed and RouteNotFound: that row and those after it remain.
        Raises what the driver raises.
        """
        try:
            return await self._round(producer)
        finally:
            await self._let_go()

    async def _round(self, producer: Producer[bytes]) -> int:
        """As `send_pending`; keeps the lease."""
        renew_at = time.monotonic() + LEASE_S / 2
        self.stats.is_active = await asyncio.to_thread(self._acquire)
        sent = 0
        for row in await asyncio.to_thread(self._pending) if self.stats.is_active else ():
            if time.monotonic() > renew_at:
                break
            try:
                await self._send(producer, row)
            except (
                LocalProtocolError,
                MessageIllegal,
                ValueError,
                TypeError,
            ) as error:  # the row itself: no attempt can succeed
                logger.error("outbox row not sent table=%s id=%s error=%s", self._table, row[0], error)
                await asyncio.to_thread(self._refuse, row[0], str(error)[:ERROR_CHARACTERS_MAX])
                self.stats.refused += 1
            else:
                await asyncio.to_thread(self._delete, row[0])
                self.stats.sent += 1
                sent += 1
        return sent

    async def pending(self) -> int:
        """The number of rows that wait to be sent. Raises what the driver raises."""
        return await asyncio.to_thread(self._count)

    async def run(self, producer: Producer[bytes], *, interval: float = 1.0, handle_signals: bool = False) -> None:
        """Relay: send rows until cancelled; looks again after interval seconds when none is left.

        After an error of a broker or the database it waits twice as long each time, at most 60 s, and goes on. handle_signals:
        SIGTERM and SIGINT end it after the round that is running. Raises Closed when the producer or its client is stopped.
        """
        stop = asyncio.Event()
        failures = 0
        with signal_handlers(stop.set) if handle_signals else nullcontext():
            try:
                while not stop.is_set():
                    pause_s = 0.0
                    try:
                        if await self._round(producer) < ROWS_MAX:
                            pause_s = interval
                        failures = 0
                    except Closed:
                        raise
                    except Exception as error:  # of brokers, and of drivers, which have no common class
                        self.stats.failures += 1
                        failures += 1
                        pause_s = min(interval * 2 ** min(failures - 1, 16), max(interval, BACKOFF_S_MAX))
                        logger.warning(
                            "outbox waits table=%s retry_in_s=%s error=%r", self._table, pause_s, error,
                            exc_info=not isinstance(error, SaturnError),
                        )  # fmt: skip
                    with suppress(TimeoutError):
                        async with asyncio.timeout(pause_s):
                            await stop.wait()
            finally:
                await self._let_go()

    async def _send(self, producer: Producer[bytes], row: Sequence[Any]) -> None:
        row_id, topic, body, tag, keys, properties, shard_by = row
        named = {**json.loads(properties), OUTBOX_ID: row_id}
        await producer.send(topic, bytes(body), tag=tag, keys=json.loads(keys), properties=named, shard_by=shard_by)

    def _pending(self) -> list[Any]:
        statement = f"SELECT {_COLUMNS} FROM {self._table} WHERE error IS NULL ORDER BY id LIMIT {ROWS_MAX}"  # noqa: S608
        with closing(self._connect()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    async def _let_go(self) -> None:
        """Give up the lease, so that another relay can send at once; without the database it expires."""
        if self.stats.is_active:
            self.stats.is_active = False
            try:
                await asyncio.to_thread(self._release)
            except Exception as error:
                logger.warning("outbox lease not released table=%s error=%r", self._table, error)

    def _count(self) -> int:
        with closing(self._connect()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(f"SELECT COUNT(*) FROM {self._table} WHERE error IS NULL")  # noqa: S608
            return int(cursor.fetchone()[0])

    def _acquire(self) -> bool:
        """Take or renew the lease; False if another relay holds it."""
        now_ms = time.time_ns() // 1_000_000
        lease, mark = f"{self._table}_lease", self._mark
        values = (self._holder, now_ms + round(LEASE_S * 1000))
        with closing(self._connect()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(
                f"UPDATE {lease} SET holder = {mark}, held_until = {mark} WHERE holder = {mark} OR held_until < {mark}",  # noqa: S608
                (*values, self._holder, now_ms),
            )
            is_holder: bool = cursor.rowcount > 0
            if not is_holder:
                cursor.execute(f"SELECT COUNT(*) FROM {lease}")  # noqa: S608
                if cursor.fetchone()[0] == 0:  # the first relay; of two at the same time, the key lets one fail
                    cursor.execute(f"INSERT INTO {lease} VALUES (1, {mark}, {mark})", values)  # noqa: S608
                    is_holder = True
            connection.commit()
        return is_holder

    def _release(self) -> None:
        self._change(f"UPDATE {self._table}_lease SET held_until = 0 WHERE holder = {self._mark}", (self._holder,))  # noqa: S608

    def _delete(self, row_id: str) -> None:
        self._change(f"DELETE FROM {self._table} WHERE id = {self._mark}", (row_id,))  # noqa: S608

    def _refuse(self, row_id: str, why: str) -> None:
        self._change(f"UPDATE {self._table} SET error = {self._mark} WHERE id = {self._mark}", (why, row_id))  # noqa: S608

    def _change(self, statement: str, values: Sequence[Any]) -> None:
        with closing(self._connect()) as connection:
            self._execute(connection, statement, values)
            connection.commit()

    @staticmethod
    def _execute(connection: Database, statement: str, values: Sequence[Any] = ()) -> None:
        with closing(connection.cursor()) as cursor:
            cursor.execute(statement, values)
