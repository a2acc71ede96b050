"""SQLAlchemy: outbox rows in the transactions of a session, sent by the relay."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import MetaData, create_engine, select, text
from sqlalchemy.orm import Session

from saturnmq import OUTBOX_ID, Client, ConfigError
from saturnmq.sqlalchemy import SQLAlchemyOutbox
from saturnmq.testing import EmbeddedBroker


async def test_rows_of_committed_sessions_and_connections_are_sent_in_order(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    metadata = MetaData()
    outbox = SQLAlchemyOutbox(engine, metadata)
    metadata.create_all(engine)
    with pytest.raises(ZeroDivisionError), Session(engine) as session, session.begin():
        outbox.add(session, "Orders", b"rolled back")
        raise ZeroDivisionError
    with Session(engine) as session, session.begin():
        session.execute(text("CREATE TABLE work (id INTEGER)"))
        ids = [outbox.add(session, "Orders", b"one", tag="paid", keys=["k"], properties={"a": "b"}, shard_by="o")]
        ids.append(outbox.add(session, "Orders", b"two", shard_by="o"))
    with engine.begin() as connection:
        ids.append(outbox.add(connection, "Orders", b"three", shard_by="o"))
        assert len(connection.execute(select(metadata.tables["saturnmq_outbox"])).all()) == 3
    assert await outbox.pending() == 3
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client, client.producer("p") as out:
        assert await outbox.send_pending(out) == 3 and await outbox.pending() == 0
        async with client.consumer("c", start="first") as inbox:
            await inbox.subscribe("Orders")
            messages = [await inbox.recv(30) for _ in range(3)]
    assert [(message.body, message.properties[OUTBOX_ID]) for message in messages] == [
        (body, row_id) for body, row_id in zip((b"one", b"two", b"three"), ids, strict=True)
    ]
    assert (messages[0].tag, messages[0].keys, messages[0].properties["a"]) == ("paid", ("k",), "b")
    engine.dispose()


def test_driver_with_other_parameters_is_refused() -> None:
    engine = create_engine("sqlite://")
    engine.dialect.paramstyle = "numeric_dollar"
    with pytest.raises(
        ConfigError, match="driver pysqlite has paramstyle numeric_dollar, must be qmark, format, pyformat"
    ):
        SQLAlchemyOutbox(engine, MetaData())
