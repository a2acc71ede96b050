"""Reads of a topic that reload: `saturnmq.spark.topic(...)`.

Spark plans a Python source once per `load()` and uses that plan for every query of the DataFrame, and of a view of it. Here each
call loads on its own, and narrowing is by options of that load, so that no query depends on another one (decision 0027).

A view that reloads for each query is a view on a catalog table without options: Spark resolves the table in each query and gives
the options of its clause WITH to the source. Within one query Spark creates the source of a table once and ignores other options
given for the same table, so each set of options has a table of its own.

Requirements: SRC-01, SPK-11, SPK-12.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession

from saturnmq.protocol.errors import ConfigError
from saturnmq.spark.local_session import NAME_SERVER_CONF

FORMAT: Final = "rocketmq"
VIEW_TABLES: Final = "spark_catalog.default.saturnmq_"  # tables of views; a digest of the options follows
_SECRETS: Final = ("accesskey", "secretkey", "securitytoken")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
Texts = str | Sequence[str]
Time = datetime | int | str


class TopicReads:
    """The messages of a topic. Create it with `saturnmq.spark.topic`; each method loads what the topic holds when it is called.

        orders = topic(spark, "orders", name_server="localhost:9876")
        orders.where("body is not null", tags=["paid"], since="2026-03-01").count()

    A DataFrame has one plan: its second action reads the same messages as its first. Call the method again for newer ones.
    """

    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        self._spark = spark
        self._options = dict(options)

    def load(self) -> DataFrame:
        """Return all messages of the topic.

        orders.load().groupBy("tags").count().show()
        """
        return self.where()

    def where(
        self,
        condition: str | Column | None = None,
        *,
        tags: Texts | None = None,
        sql: str | None = None,
        keys: Texts | None = None,
        uniq_keys: Texts | None = None,
        queues: Sequence[int] | int | None = None,
        since: Time | None = None,
        until: Time | None = None,
    ) -> DataFrame:
        """Return the messages that meet all that is given.

            orders.where("length(body) > 100", keys=["o-17", "o-18"])
            orders.where(sql="region = 'EU' AND total > 5", queues=[0, 3])
            orders.where(since=datetime(2026, 3, 1, tzinfo=UTC), until="2026-03-02")

        condition: SQL text or a Column, evaluated by Spark on every row. The others make the source read less: tags are
        compared by the broker; sql is an SQL92 condition on properties, evaluated by the broker; keys (a message has any of
        them) and uniq_keys are looked up in the key index where it covers the range, queues are queue ids; since (inclusive)
        and until (exclusive) are store times: datetime (UTC without a zone), Unix ms or ISO text. Raises ConfigError.
        """
        given = _narrowing(tags=tags, sql=sql, keys=keys, uniq_keys=uniq_keys, queues=queues, since=since, until=until)
        options = self._with(given)
        frame = self._spark.read.format(FORMAT).options(**options).load()
        return frame if condition is None else frame.where(condition)

    def stream(
        self,
        condition: str | Column | None = None,
        *,
        tags: Texts | None = None,
        sql: str | None = None,
        queues: Sequence[int] | int | None = None,
        since: Time | None = None,
    ) -> DataFrame:
        """Return a streaming DataFrame of the messages that meet all that is given; the arguments are those of `where`.

        orders.stream(tags="paid", since="2026-03-01").writeStream.format("console").start()
        """
        given = _narrowing(tags=tags, sql=sql, queues=queues, since=since)
        options = self._with(given)
        frame = self._spark.readStream.format(FORMAT).options(**options).load()
        return frame if condition is None else frame.where(condition)

    def view(
        self,
        name: str,
        condition: str | None = None,
        *,
        tags: Texts | None = None,
        sql: str | None = None,
        keys: Texts | None = None,
        uniq_keys: Texts | None = None,
        queues: Sequence[int] | int | None = None,
        since: Time | None = None,
        until: Time | None = None,
    ) -> None:
        """Create or replace a temporary view that reloads for each query; the arguments are those of `where`.

            orders.view("paid", tags="paid")
            spark.sql("SELECT count(*) FROM paid").show()

        condition: SQL text. The view reads a table without rows and options in the session's catalog, database `default`, which
        is created once per set of options. The text of a view is readable in the session, so credentials are rejected as
        options: set them in the environment or by option keyFile. Raises ConfigError.
        """
        if condition is not None and not isinstance(condition, str):
            raise ConfigError(f"view {name!r}: its condition is SQL text, not {type(condition).__name__}")
        given = _narrowing(tags=tags, sql=sql, keys=keys, uniq_keys=uniq_keys, queues=queues, since=since, until=until)
        options = self._with(given)
        if secrets := [option for option in options if option.lower() in _SECRETS]:
            raise ConfigError(
                f"view {name!r}: options {', '.join(secrets)} would be readable in the view's text; set SATURNMQ_ACCESS_KEY "
                "and SATURNMQ_SECRET_KEY, or give option keyFile"
            )
        schema = self._spark.read.format(FORMAT).options(**options).load().schema  # an invalid option fails here
        columns = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in schema.fields)
        digest = hashlib.sha256(json.dumps([columns, sorted(options.items())]).encode()).hexdigest()
        table = VIEW_TABLES + digest[:16]
        self._spark.sql(f"CREATE TABLE IF NOT EXISTS {table} ({columns}) USING {FORMAT}")
        assigned = ", ".join(f"{_quoted(option)} = {_literal(value)}" for option, value in sorted(options.items()))
        where = "" if condition is None else f" WHERE {condition}"
        self._spark.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW {_quoted(name)} AS SELECT * FROM {table} WITH ({assigned}){where}"  # noqa: S608 - names and values are quoted
        )

    def _with(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the options of a load. Raises ConfigError for one that the topic has already."""
        present = {option.lower(): option for option in self._options}
        for option in given:
            if option.lower() in present:
                raise ConfigError(f"option {present[option.lower()]} was given to topic() already")
        return {**self._options, **given}


def reads_of(spark: SparkSession, name: str, name_server: str | None, options: Mapping[str, Any]) -> TopicReads:
    """Return the reads of a topic. name_server: by default that of the session, else of the environment."""
    settled = {option: _text(value) for option, value in options.items()}
    if any(option.lower() == "topic" for option in settled):
        raise ConfigError(
            f"topic {name!r}: option topic names another one; several topics are one text, 'orders,refunds'"
        )
    server = name_server or spark.conf.get(NAME_SERVER_CONF, None)
    if server and "nameserver" not in {option.lower() for option in settled}:
        settled["nameServer"] = server
    return TopicReads(spark, {"topic": name, **settled})


def _narrowing(**arguments: Any) -> dict[str, str]:
    """Convert arguments of `where` to options. Raises ConfigError for an empty list: whether it means all or none is unclear."""
    given = {name: value for name, value in arguments.items() if value is not None}
    options = {}
    for name, value in given.items():
        if name in ("since", "until"):
            options["startingTimestamp" if name == "since" else "endingTimestamp"] = str(_unix_ms(name, value))
            continue
        if name == "sql":
            options["sql"] = value
            continue
        items = [value] if isinstance(value, (str, int)) else list(value)
        if not items:
            raise ConfigError(f"{name} is an empty list; leave the argument out to read all messages")
        option = "uniqKeys" if name == "uniq_keys" else name
        options[option] = ",".join(map(str, items)) if name == "queues" else json.dumps(items, ensure_ascii=False)
    return options


def _unix_ms(name: str, time: Time) -> int:
    """Return the first millisecond at or after a time: store times are whole milliseconds."""
    if isinstance(time, int):
        return time
    if isinstance(time, str):
        try:
            time = datetime.fromisoformat(time)
        except ValueError:
            raise ConfigError(f"{name}={time!r} is no time, such as 2026-01-31T12:00:00") from None
    aware = time if time.tzinfo else time.replace(tzinfo=UTC)
    return -((_EPOCH - aware) // timedelta(milliseconds=1))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _literal(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
