"""SQLAlchemy: an outbox whose rows are written in the transaction of a Session or Connection.

    engine = create_engine("postgresql+psycopg://localhost/shop")
    outbox = SQLAlchemyOutbox(engine, Base.metadata)  # migrations and create_all make its tables

The relay is `saturnmq.Outbox.run`, with connections of the engine's pool.
"""

from __future__ import annotations

from typing import Any, Final, Unpack

from saturnmq.client.outbox import Outbox, OutboxOptions, new_row
from saturnmq.extras import install_command
from saturnmq.protocol.errors import ConfigError

try:
    from sqlalchemy import BigInteger, Column, Connection, Engine, Integer, LargeBinary, MetaData, String, Table, Text
    from sqlalchemy.orm import Session
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"saturnmq.sqlalchemy needs package sqlalchemy: {install_command('sqlalchemy')}", name=error.name
    ) from error

__all__ = ["SQLAlchemyOutbox"]

_STYLES: Final[dict[str, Any]] = {"qmark": "qmark", "format": "format", "pyformat": "format"}


class SQLAlchemyOutbox(Outbox):
    """A `saturnmq.Outbox` in the database of an engine.

    engine: of a driver that blocks, such as sqlite3, psycopg or PyMySQL; the relay calls it in threads. metadata: gets the two
    tables, so that `create_all` and Alembic make them. table: the name of the first one. Raises ConfigError for a driver whose
    parameters are written in another way, such as asyncpg.

    Example:
        with Session(engine) as session, session.begin():
            session.add(Order(total=9.5))
            outbox.add(session, "orders", b"order 7 is paid", tag="paid")
    """

    def __init__(self, engine: Engine, metadata: MetaData, *, table: str = "saturnmq_outbox") -> None:
        style = _STYLES.get(engine.dialect.paramstyle)
        if style is None:
            raise ConfigError(
                f"driver {engine.driver} has paramstyle {engine.dialect.paramstyle}, must be {', '.join(_STYLES)}; use another "
                f"driver for the relay, such as psycopg"
            )
        super().__init__(engine.raw_connection, table=table, paramstyle=style)
        self._messages = Table(
            table, metadata,
            Column("id", String(36), primary_key=True), Column("topic", String(255), nullable=False),
            Column("body", LargeBinary(2**24 - 1), nullable=False), Column("tag", Text),
            Column("message_keys", Text, nullable=False), Column("properties", Text, nullable=False),
            Column("shard_by", Text), Column("error", Text),
        )  # fmt: skip
        Table(
            f"{table}_lease", metadata,
            Column("id", Integer, primary_key=True, autoincrement=False), Column("holder", String(32), nullable=False),
            Column("held_until", BigInteger, nullable=False),
        )  # fmt: skip

    def add(  # type: ignore[override]  # another kind of connection
        self, connection: Session | Connection, topic: str, body: bytes, **options: Unpack[OutboxOptions]
    ) -> str:
        """Insert a message in the transaction of a session or connection, which the caller commits. Returns the OUTBOX_ID.

        options: tag, keys, properties and shard_by of `Producer.send`. With an AsyncSession:
        `await session.run_sync(outbox.add, "orders", b"order 7 is paid")`.

        Example:
            outbox.add(session, "orders", b"order 7 is paid", tag="paid", shard_by="order-7")
        """
        row = new_row(topic, body, options)
        connection.execute(self._messages.insert().values(row))
        return str(row["id"])
