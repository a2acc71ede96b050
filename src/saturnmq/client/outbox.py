"""Transactional outbox: messages that are written to a table in the application's own database transaction and sent later.

`Outbox.add` inserts a row through the connection whose transaction also does the work: both are committed, or neither.
`Outbox.run` sends the rows that others committed and deletes each after its receipt. A process that dies between receipt and
deletion leaves the row, which is sent again: consumers compare the property OUTBOX_ID, which stays the same.

Rows are sent in the order of their ids, which begin with the time of `add`. A send that fails ends the round, so that no row
overtakes an earlier one; the next round begins with it. A row that the client refuses, such as one with an invalid topic, keeps
the reason in its column `error` and is left out from then on. Two relays on one table send some rows twice: run one.

    column      type        meaning
    id          text, key   time of add in ns, 20 digits, then 16 hexadecimal digits; the property OUTBOX_ID
    topic       text
    body        bytes
    tag         text        NULL without one
    message_keys text       JSON list
    properties  text        JSON object of strings
    shard_by    text        NULL without one
    error       text        NULL, or why the row cannot be sent

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
from contextlib import closing
from typing import Any, Final, Literal, Protocol

from saturnmq.client.producer.producer import Producer
from saturnmq.protocol.errors import ConfigError, LocalProtocolError, SaturnError

logger = logging.getLogger(__name__)

OUTBOX_ID: Final = "OUTBOX_ID"  # the property by which a consumer recognises a message that was sent twice
ROWS_MAX: Final = 100  # per round
ERROR_CHARACTERS_MAX: Final = 500
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

    def create_table(self, connection: Database) -> None:
        """Create the table if it is missing, and commit. Its columns may also be made by a migration of the application."""
        self._execute(
            connection,
            f"CREATE TABLE IF NOT EXISTS {self._table} (id VARCHAR(36) NOT NULL PRIMARY KEY, topic VARCHAR(255) NOT NULL, "
            f"body {self._bytes_type} NOT NULL, tag TEXT, message_keys TEXT NOT NULL, properties TEXT NOT NULL, shard_by TEXT, "
            f"error TEXT)",
        )
        connection.commit()

    def add(
        self,
        connection: Database,
        topic: str,
        body: bytes,
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        shard_by: str | None = None,
    ) -> str:
        """Insert a message in the open transaction of connection, which the caller commits. Returns the OUTBOX_ID.

        The options are those of `Producer.send`; they are checked when the row is sent. Raises what the driver raises.
        """
        row_id = f"{time.time_ns():020d}{secrets.token_hex(8)}"
        values = (row_id, topic, body, tag, json.dumps(list(keys)), json.dumps(dict(properties or {})), shard_by)
        marks = ", ".join([self._mark] * len(values))
        # the table's name was compared with _NAME
        self._execute(connection, f"INSERT INTO {self._table} ({_COLUMNS}) VALUES ({marks})", values)  # noqa: S608
        return row_id

    async def send_pending(self, producer: Producer[bytes]) -> int:
        """Send the oldest rows, at most 100, and delete each that a broker has stored. Returns how many were sent.

        Raises what `Producer.send` raises for brokers and routes, such as SendFailed and RouteNotFound: that row and those after
        it remain. Raises what the driver raises.
        """
        sent = 0
        for row in await asyncio.to_thread(self._pending):
            try:
                await self._send(producer, row)
            except (LocalProtocolError, ValueError, TypeError) as error:  # the row itself: no attempt can succeed
                logger.error("outbox row not sent table=%s id=%s error=%s", self._table, row[0], error)
                await asyncio.to_thread(self._refuse, row[0], str(error)[:ERROR_CHARACTERS_MAX])
            else:
                await asyncio.to_thread(self._delete, row[0])
                sent += 1
        return sent

    async def run(self, producer: Producer[bytes], *, interval: float = 1.0) -> None:
        """Send rows until cancelled; looks again after interval seconds when none is left or a send failed.

        Raises what the driver raises: the caller decides whether to go on without its database.
        """
        while True:
            try:
                sent = await self.send_pending(producer)
            except SaturnError as error:
                logger.warning("outbox waits table=%s retry_in_s=%s error=%s", self._table, interval, error)
                sent = 0
            if sent < ROWS_MAX:
                await asyncio.sleep(interval)

    async def _send(self, producer: Producer[bytes], row: Sequence[Any]) -> None:
        row_id, topic, body, tag, keys, properties, shard_by = row
        named = {**json.loads(properties), OUTBOX_ID: row_id}
        await producer.send(topic, bytes(body), tag=tag, keys=json.loads(keys), properties=named, shard_by=shard_by)

    def _pending(self) -> list[Any]:
        statement = f"SELECT {_COLUMNS} FROM {self._table} WHERE error IS NULL ORDER BY id LIMIT {ROWS_MAX}"  # noqa: S608
        with closing(self._connect()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

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
